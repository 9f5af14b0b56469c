"""One client's own training loop, and the data that it has."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput, shown, unknown
from fedsolve.core.oracle import Oracle, Outcome, TrainedRound, loop_start
from fedsolve.core.types import Params, Scalar
from fedsolve.deploy.message import PartMetrics
from fedsolve.deploy.oracles.node_oracle import STATE_FOLDER, LocalProblem
from fedsolve.engine.compute.clients import own_key
from fedsolve.folders.files import write_atomically
from fedsolve.folders.untrusted import loads, read_bytes
from fedsolve.methods.trained import with_trained
from fedsolve.tasks.training_loops import (
    TrainingLoop,
    TrainingRound,
    assign,
    measured_by,
    parameters,
    trainee,
)

_LAST = "returned.json"
_MOST = 2**20  # bytes of it

__all__ = ["TrainedClient", "TrainingRound", "assign", "parameters"]


class _AnyName(Collection[str]):
    """All names: which metrics a loop returns is known once it has run."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 1


class TrainedClient(LocalProblem):
    """A client with a training loop of its own: the server's model goes in, what the loop makes of it is sent.

    The client sends the difference of the parameters, of those that require gradients in a module, and the buffers.
    All methods that need no more run with it, and others are refused in one line: `fedsolve list algorithms --json` and
    docs/methods.md say which. Wrappers (compression, secure sums, privacy, robust reductions) act on the difference.
    The local rate of the method moves nothing: the loop has its own.

    An exception in the loop, other shapes, types or names, or a number that is not finite end this client's part of the
    round in one line; the round goes on without it. An endless loop ends with the round's deadline
    (`server_app(round_seconds=)`), of which the server says that the client gave no answer.

    Parameters in float16 or bfloat16 stay so in the model; they are sent, and summed, as float32. A difference is from
    what the loop was given, rounded to the model's types. Models on a GPU are copied once each way in a round.

    Args:
        model: a `torch.nn.Module`, an estimator with `partial_fit` that was fitted once (`coef_` and `intercept_`, or
            `coefs_` and `intercepts_`), or a dictionary of NumPy arrays, flat or nested, written to in place.
        train: (model, round) -> number of examples, or a mapping with `examples`, and, where it has them, `steps`
            (local steps), `loss` (a float: the mean loss of the model that it was given, before training), and metrics
            by name. It changes the model in place. `round` is an integer from 1, whose `folder` is the place for what
            the loop keeps from round to round, such as an optimiser's state (`TrainingRound`).
        evaluate: model -> metrics by name, and `examples` if `examples` here does not say; what `client_metrics` asks
            for. It must leave the model as it is. None: `client_metrics` are those that the loop last returned, of its
            own training, none before its first round.
        examples: the client's number of examples, >= 1; None if the loop returns it.

    Raises:
        InvalidInput: another model, or one without parameters to train; functions that are none.

    >>> def train(model, round):
    ...     model["w"] += 1
    ...     return {"examples": 4, "steps": 1}
    >>> TrainedClient({"w": np.zeros(2, np.float32)}, train).params
    {'w': array([0., 0.], dtype=float32)}
    """

    exact_loss = False
    # those that a loop changes are found after it
    moving_buffers = ()  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def __init__(
        self,
        model: Any,
        train: Callable[[Any, TrainingRound], Any],
        *,
        evaluate: Callable[[Any], Mapping[str, Any]] | None = None,
        examples: int | None = None,
    ) -> None:
        if evaluate is not None and not callable(evaluate):
            raise InvalidInput(f"evaluate = {shown(evaluate)} must be a function of the model, or None")
        own = trainee(model)
        self._loop, self._evaluate = TrainingLoop(own, train, examples), evaluate
        self.framework, self.constants = own.framework, own.constants
        # its shapes: values are copied where a method asks for them
        self.params = jax.tree.map(lambda x: np.broadcast_to(np.zeros((), x.dtype), x.shape), own.read())
        self._initial: Params | None = None
        self.num_examples = examples or 1
        self.metrics = _AnyName()

    @property
    def initial(self) -> Params:
        """The model that the loop had before its first round."""
        if self._initial is None:
            self._initial = jax.tree.map(np.array, self._loop.of.read())
        return self._initial

    @property
    def buffers(self) -> dict[str, np.ndarray]:
        """The module's buffers by name, as they are now."""
        return self._loop.of.buffers

    def load_buffers(self, buffers: Mapping[str, np.ndarray]) -> None:
        """Load the server's buffers (see `LocalProblem`)."""
        self._loop.of.load_buffers(buffers)

    def begin(self, key: Array, client: Scalar, dtype: Any, noise: Array | None = None) -> TrainedRound:
        """The client in a round, before its loop has run."""
        return TrainedRound(
            None, jnp.asarray(client, jnp.int32), own_key(key, client) if noise is None else noise
        )

    def prepare(
        self, algorithm: Algorithm, broadcast: Any, state: Any, oracle: Oracle, round: int
    ) -> tuple[Algorithm, Oracle]:
        """Run the loop: the method and the client as the message is made of them."""
        assert isinstance(oracle, TrainedRound)
        algorithm = with_trained(algorithm, self.params)
        start, _ = loop_start(algorithm.train, broadcast, state, oracle)
        folder = self.folder or Path(STATE_FOLDER) / "client-loop"
        folder.mkdir(parents=True, exist_ok=True)
        start = jax.tree.map(np.asarray, start)
        params, told = self._loop.run(start, TrainingRound(round + 1, folder), int(oracle.client))
        self.num_examples, self.untold = told.examples, "" if told.loss is not None else "loss"
        last = {"examples": told.examples, **told.metrics, **({} if self.untold else {"loss": told.loss})}
        write_atomically(folder / _LAST, json.dumps(last))
        dtype = jnp.result_type(*jax.tree.leaves(params))
        loss = None if told.loss is None else jnp.asarray(told.loss, dtype)
        steps = None if told.steps is None else jnp.int32(told.steps)
        return algorithm, replace(oracle, outcome=Outcome(params, jnp.int32(told.examples), steps, loss))

    def measure(self, params: Params, metrics: Collection[str]) -> dict[str, PartMetrics]:
        """Metrics by `evaluate`, else those that the loop returned last (see `LocalProblem.measure`)."""
        if self._evaluate is None:
            found = self._last() or dict.fromkeys(metrics, float("nan"))
        else:
            self._loop.of.write(params)
            found = self._evaluate(self._loop.of.model)
        examples, values = measured_by(found, self.num_examples)
        for name in metrics:
            if name not in values:
                raise unknown("metric that the client's loop returns", name, values)
        means = {name: values[name] for name in metrics}
        counts = {name: examples if math.isfinite(x) else 0.0 for name, x in means.items()}
        return {"train": PartMetrics(examples, means, counts)}

    def _last(self) -> dict[str, Any]:
        # What the loop returned last in this experiment; {} before its first round.
        path = None if self.folder is None else self.folder / _LAST
        return loads(read_bytes(path, _MOST, follow=False)) if path is not None and path.exists() else {}
