"""A task whose clients train with a loop of the user's own: what a deployment of `TrainedClient`s is, simulated."""

from __future__ import annotations

import copy
import hashlib
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput, check_path, shown
from fedsolve.core.oracle import Outcome
from fedsolve.core.types import Params
from fedsolve.core.xla.host_calls import HostCalls, call_host
from fedsolve.data.columns import check_list
from fedsolve.data.federated import FederatedData
from fedsolve.methods.trained import support, with_loop
from fedsolve.tasks.task import Task
from fedsolve.tasks.training_loops import UNMOVED, Told, Trainee, TrainingLoop, TrainingRound, told_by

_RUNS = count(1)
_MODELS = 3  # whose metrics are remembered


class Loops(HostCalls):
    """The loops of a task's clients on one machine, one after another, and what they are measured by."""

    def __init__(
        self, loop: TrainingLoop, data: list[Any], evaluate: Callable[..., Any] | None, folder: Path | None
    ) -> None:
        super().__init__()
        self._loop, self._data, self._evaluate, self._folder = loop, data, evaluate, folder
        self._runs = tempfile.TemporaryDirectory(prefix="fedsolve-loops-")  # goes with this object
        self._known: dict[tuple[bytes, int], Mapping[str, float]] = {}
        self._told: dict[int, Mapping[str, float]] = {}
        self.notes: dict[str, int] = {}  # lines for a run's record, each with the first client that it is of
        self.initial, self.buffers = jax.tree.map(np.array, loop.read()), loop.buffers

    def train(
        self, given: tuple[Params, Mapping[str, np.ndarray]], run: int, round: int, client: int, asks: Any
    ) -> tuple[Params, dict[str, np.ndarray], Told]:
        """One client's part of a round: the model and the buffers after it, and what the loop told."""
        folder = (self._folder or Path(self._runs.name) / f"run-{run}") / f"client-{client}"
        folder.mkdir(parents=True, exist_ok=True)
        with self.running():
            self._loop.load_buffers(given[1])
            ends, told = self._loop.run(
                given[0], TrainingRound(round + 1, folder), client, self._data[client]
            )
            if missing := [name for name in asks if getattr(told, name) is None]:
                raise InvalidInput(
                    f"the method needs '{missing[0]}' from the training loop, and it returned none"
                )
            if jax.tree.all(jax.tree.map(np.array_equal, given[0], ends)):
                self.notes.setdefault(UNMOVED, client)
            self._told[client] = told.metrics
            # copies: the next client trains in the same memory
            return jax.tree.map(np.array, ends), self._loop.buffers, told

    def measure(
        self, params: Params, buffers: Mapping[str, np.ndarray], clients: list[int]
    ) -> list[Mapping[str, float]]:
        """The metrics of a model on the data of each of some clients; without `evaluate` what their loops last told."""
        if self._evaluate is None:
            return [self._told.get(client, {}) for client in clients]
        digest = hashlib.blake2b()
        for leaf in jax.tree.leaves((params, buffers)):
            digest.update(np.asarray(leaf).tobytes())
        model = digest.digest()
        with self.running():
            if missing := {client for client in clients if (model, client) not in self._known}:
                if len(self._known) >= _MODELS * len(self._data):
                    self._known.clear()
                    missing = set(clients)
                self._loop.load_buffers(buffers)
                self._loop.write(params)
                self._known |= {(model, client): self.evaluated(client) for client in sorted(missing)}
            return [self._known[model, client] for client in clients]

    def evaluated(self, client: int) -> Mapping[str, float]:
        """The metrics of the model as it is on a client's data."""
        assert self._evaluate is not None
        return told_by(self._evaluate(self._loop.model, self._data[client]), 1, "evaluate").metrics

    def copy(self, params: Params, buffers: Any) -> Any:
        of = Trainee(copy.deepcopy(self._loop.model))
        of.write(params)
        of.load_buffers(buffers or {})
        return of.model


@dataclass(frozen=True, eq=False)
class LoopMetric:
    """A metric of the loops' models, of each client in a batch of clients' numbers."""

    # As a task's loss, "loss" also has the loops that train in place of its gradient.

    loops: Loops = field(repr=False)
    name: str
    asks: tuple[str, ...]

    def __call__(self, params: Params, batch: Array, buffers: Any = None) -> Any:
        def host(params: Params, batch: np.ndarray, buffers: Any) -> np.ndarray:
            found = self.loops.measure(params, buffers, batch.tolist())
            return np.array([one.get(self.name, math.nan) for one in found])

        shape = jax.ShapeDtypeStruct(batch.shape, trees.dtype_of(params))
        value = call_host(host, shape, params, batch, buffers or {})
        return (value, buffers) if self.loops.buffers and self.name == "loss" else value

    each = __call__

    def training_loop(self, params: Params, buffers: Any, solver: Any, who: tuple[Any, Any, Any]) -> Outcome:
        """Where the loop of a client ends, as part of a program; who: its number, the round, whether it takes part."""
        given = params, {} if buffers is None else buffers.given()

        def host(given: Any, run: Any, client: Any, round: Any, present: Any) -> Any:
            if not present:  # a place in the program where nobody is
                return *given, 1, 1, 0.0
            ends, after, told = self.loops.train(given, int(run), int(round), int(client), solver.asks)
            return ends, after, told.examples, told.steps or 0, told.loss or 0.0

        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), given)
        number = jax.ShapeDtypeStruct((), jnp.int32)
        results = (*like, number, number, jax.ShapeDtypeStruct((), trees.dtype_of(params)))
        ends, after, examples, steps, loss = call_host(host, results, given, solver.run, *who, once=True)
        told = {n: x for n, x in (("steps", steps), ("loss", loss)) if n in solver.asks}
        return Outcome(ends, examples, **told, buffers=None if buffers is None else after)


@dataclass(frozen=True, repr=False)
class LoopTask(Task):
    """A task whose clients train with a loop of the user's own."""

    def around(self, algorithm: Algorithm) -> Algorithm:
        # with the loop in the place of the method's local SGD
        loss: Any = self.loss
        found = support(algorithm, loss.loops.initial)
        if found.refused:
            raise InvalidInput(found.refused)
        return super().around(with_loop(algorithm, found.needs, next(_RUNS)))


def from_training(
    model: Any,
    train: Callable[..., Any],
    clients: Sequence[Any],
    *,
    evaluate: Callable[..., Mapping[str, Any]] | Sequence[str] = (),
    test: Any = None,
    examples: Sequence[int] | None = None,
    folder: str | Path | None = None,
    name: str = "training",
) -> Task:
    """Make a task whose clients train with your own loop, as `fs.flower.TrainedClient` has it in a deployment.

    One model is loaded, trained and read for one client after another, in one process. `train` is the function of a
    deployment with the client's data as a third argument: there it is `functools.partial(train, data=mine)`, or a
    function of (model, round) around it. A loop that fails ends the run.

    Methods that need gradients of local steps are refused, as in a deployment (docs/methods.md).

    Args:
        model: a `torch.nn.Module`, an estimator with `partial_fit`, or a dictionary of NumPy arrays; its parameters are
            the initial ones.
        train: (model, round, data) -> number of examples, or a mapping, as `TrainedClient` takes it.
        clients: the data of each client, whatever `train` takes; at least one.
        evaluate: (model, data) -> metrics by name, finite floats, among them `loss`: of each client before the first
            round and every `eval_every` rounds. It must leave the model as it is. Or the names of metrics that `train`
            returns: those of each client's last round, NaN before its first.
        test: the server's own data, as `evaluate` takes it; None for none.
        examples: of each client, >= 1: how much its metrics count in the means over all; None for alike. In training a
            client counts by what `train` returns.
        folder: where `round.folder` of all clients is, of one run at a time, which a resumed run needs; None for a
            temporary one of each run.
        name: what tables and folders call the task.

    Returns:
        A task for `fs.run`, `fs.compare` and `fs.sweep`; `Result.module` is a copy of the model, trained.

    Raises:
        InvalidInput: another kind of model, no clients, functions that are none, metrics that are no numbers by name.

    >>> def train(model, round, data):
    ...     model["w"] += data - model["w"]
    ...     return 1
    >>> task = from_training({"w": np.zeros(2, np.float32)}, train, [np.ones(2), np.zeros(2)])
    >>> task.data.num_clients
    2
    """
    check_list("clients", clients, "the data of each client")
    named = isinstance(evaluate, list | tuple) and all(isinstance(n, str) for n in evaluate)
    if not named and not callable(evaluate):
        raise InvalidInput(
            f"evaluate = {shown(evaluate)} must be a function of (model, data), or names of metrics"
        )
    if test is not None and named:
        raise InvalidInput("test is given and evaluate is not: give evaluate, which measures the model on it")
    sizes = [1] * len(clients) if examples is None else list(examples)
    if not clients or len(sizes) != len(clients):
        raise InvalidInput(
            f"examples = {shown(examples)} of {len(clients)} clients: give a number for each, at least one"
        )
    where = None if folder is None else check_path("folder", folder)
    function = evaluate if callable(evaluate) else None
    loops = Loops(TrainingLoop(model, train), [*clients, test], function, where)
    names = loops.evaluated(0) if callable(evaluate) else evaluate
    asks = ("buffers",) if loops.buffers else ()
    rows = [np.full(n, i, np.int32) for i, n in enumerate(sizes)]
    return LoopTask(
        name,
        lambda key: loops.initial,
        LoopMetric(loops, "loss", asks),
        FederatedData.from_clients(rows),
        None if test is None else np.full(1, len(clients), np.int32),
        {n: LoopMetric(loops, n, asks) for n in names if n != "loss"},
        batch_size=None,
        epochs=None,
        local_steps=1,
        module=loops.copy,
        buffers=loops.buffers or None,
    )
