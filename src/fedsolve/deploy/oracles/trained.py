"""One client's own training loop, and the data that it has."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput, shown, unknown
from fedsolve.core.oracle import Outcome, TrainedRound, beginning_of
from fedsolve.core.types import Params, Scalar
from fedsolve.deploy.message import PartMetrics
from fedsolve.deploy.oracles.node_oracle import LocalProblem
from fedsolve.engine.compute.clients import own_key
from fedsolve.folders.files import write_atomically
from fedsolve.folders.untrusted import loads, read_bytes
from fedsolve.tasks.training_loops import TrainingLoop, TrainingRound, assign, parameters, told_by

_LAST = "returned.json"
_MOST = 2**20  # bytes of it

__all__ = ["TrainedClient", "TrainingRound", "assign", "parameters"]


class TrainedClient(LocalProblem):
    """A client with a training loop of its own: the server's model goes in, what the loop makes of it is sent.

    The client sends the difference of the parameters, of those that require gradients in a module, and the buffers.
    Methods that need more are refused when the client connects: `fedsolve list algorithms --json` and docs/methods.md
    say which. Wrappers (compression, secure sums, privacy, robust reductions) act on the difference. The local rate of
    the method moves nothing: the loop has its own.

    An exception in the loop, other shapes, types or names, or a number that is not finite end this client's part of the
    round in one line; the round goes on without it, as it does at its deadline (`server_app(round_seconds=)`).

    Parameters in float16 or bfloat16 stay so in the model; a difference is from what the loop was given, rounded to the
    model's types. It is sent, and summed, as float32; `fs.Compressed(..., fs.compression.Cast("bfloat16"))` sends 16
    bits of it, which is exact for a weight that a round does not change beyond its half or double. Models on a GPU are
    copied once each way in a round.

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
        self.loop, self._evaluate = TrainingLoop(model, train, examples), evaluate
        self.framework, self.constants = self.loop.framework, self.loop.constants
        # its shapes: values are copied where a method asks for them
        self.params = jax.tree.map(lambda x: np.broadcast_to(x.dtype.type(0), x.shape), self.loop.read())
        self.num_examples = examples or 1
        self.metrics = None  # which ones a loop returns is known once it has run

    @cached_property
    def initial(self) -> Params:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The model that the loop had before its first round."""
        return jax.tree.map(np.array, self.loop.read())

    @property
    def buffers(self) -> dict[str, np.ndarray]:
        """The module's buffers by name, as they are now."""
        return self.loop.buffers

    def load_buffers(self, buffers: Mapping[str, np.ndarray]) -> None:
        """Load the server's buffers (see `LocalProblem`)."""
        self.loop.load_buffers(buffers)

    def begin(self, key: Array, client: Scalar, dtype: Any, noise: Array | None = None) -> TrainedRound:
        """The client in a round, before its loop has run."""
        return TrainedRound(None, jnp.int32(client), own_key(key, client) if noise is None else noise)

    def measure(self, params: Params, metrics: Collection[str]) -> dict[str, PartMetrics]:
        """Metrics by `evaluate`, else those that the loop returned last (see `LocalProblem.measure`)."""
        path, found = self.folder / _LAST, dict.fromkeys(metrics, math.nan)
        if self._evaluate is not None:
            self.loop.write(params)
            found = self._evaluate(self.loop.model)
        elif path.exists():
            found = loads(read_bytes(path, _MOST, follow=False))
        told = told_by(found, self.num_examples, "evaluate")
        for name in metrics:
            if name not in told.metrics:
                raise unknown("metric that the client's loop returns", name, told.metrics)
        means = {name: told.metrics[name] for name in metrics}
        counts = {name: told.examples if math.isfinite(x) else 0.0 for name, x in means.items()}
        return {"train": PartMetrics(told.examples, means, counts)}


def run_loop(
    client: TrainedClient, algorithm: Algorithm, broadcast: Any, state: Any, oracle: Any, round: int
) -> TrainedRound:
    """A client in a round once its loop has run; `round` is from 0, and all else as `Algorithm.train` has it."""
    began = beginning_of(algorithm.train, broadcast, state, oracle)
    assert began is not None  # a method with a loop has local work
    client.folder.mkdir(parents=True, exist_ok=True)
    params, told = client.loop.run(began[0], TrainingRound(round + 1, client.folder), int(oracle.client))
    client.num_examples, client.untold = told.examples, "loss" if told.loss is None else ""
    write_atomically(client.folder / _LAST, json.dumps({"examples": told.examples, **told.metrics}))
    loss = None if told.loss is None else jnp.asarray(told.loss, trees.dtype_of(params))
    steps = None if told.steps is None else jnp.int32(told.steps)
    params = jax.tree.map(jnp.array, params)  # the program's own, in whose memory it makes the message
    return replace(oracle, outcome=Outcome(params, jnp.int32(told.examples), steps, loss))
