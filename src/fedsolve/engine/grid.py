"""A grid of settings of one method as one program: the settings vmapped, the rounds scanned."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedsolve import trees
from fedsolve.algorithm import Algorithm
from fedsolve.engine.compiled import compiler_options
from fedsolve.engine.evaluate import Measures, on_all
from fedsolve.engine.interrupt import Interruptible
from fedsolve.engine.judge import measured, objective
from fedsolve.engine.round import RunState, initial, one_round
from fedsolve.engine.run import choose_sampling
from fedsolve.engine.setup import Setup, cast
from fedsolve.errors import Interrupted, InvalidInput
from fedsolve.measures.measure import Measure
from fedsolve.tasks.task import Task
from fedsolve.types import Params, replace


@dataclass(frozen=True)
class Grid:
    """What a grid found.

    Attributes:
        rounds: rounds done at each evaluation, shape (evaluations,), 0 first.
        metrics: name -> values of shape (settings, evaluations); NaN once a setting has diverged.
        params: final models, leaves of shape (settings, ...).
        seconds: wall time in all, compilation included.
    """

    rounds: np.ndarray
    metrics: dict[str, np.ndarray]
    params: Params
    seconds: float


def run_grid(
    algorithms: Sequence[Algorithm],
    task: Task,
    *,
    rounds: int,
    clients_per_round: int | None = None,
    seed: int = 0,
    batch_size: int | Literal["full"] | None = None,
    epochs: int | None = None,
    local_steps: int | None = None,
    eval_every: int | None = None,
    dtype: Literal["float32", "float64"] = "float32",
    measures: Sequence[Measure] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Grid:
    """Run one method with many settings on a task; all see the same cohorts, shuffles and start.

    Arguments are those of `fedsolve.run`. A setting that diverges stops alone, and its values are NaN from
    there on. Metrics are `train_loss`, the test metrics, and `measures`: default the task's and the methods'.

    Raises:
        InvalidInput: the algorithms differ in more than the values of their hyper-parameters.
        Interrupted: Ctrl-C.
    """
    begun = time.perf_counter()
    with jax.enable_x64(dtype == "float64"), Interruptible() as interrupt:
        if not algorithms:
            raise InvalidInput("a grid needs at least one setting")
        first = Setup.make(
            algorithms[0], task, rounds, choose_sampling(clients_per_round, None, task), seed, batch_size,
            epochs, local_steps, eval_every, jnp.dtype(dtype), None, 1, None,
        )  # fmt: skip
        batch = _Batch.of(algorithms, task, first, measures)
        seen, found, done = [0], [batch.look(first, len(algorithms))], 0
        while done < rounds:
            step = min(first.eval_every, rounds - done)
            batch = batch.advance(first, done, step)
            done += step
            seen.append(done)
            found.append(batch.look(first, len(algorithms)))
            batch = batch.without_dead()
            if progress is not None:
                progress(done, rounds)
            if interrupt.asked:
                raise Interrupted(
                    f"interrupted after round {done} of {rounds} of a grid of {len(algorithms)} settings"
                )
        metrics = {name: np.stack([f[name] for f in found], axis=1) for name in found[0]}
        params = batch.params(len(algorithms))
    return Grid(np.array(seen), metrics, params, time.perf_counter() - begun)


@dataclass(frozen=True)
class _Batch:
    """The settings that are in the program: their numbers, and all they have with a leading axis.

    When half of them have diverged the program is compiled for the others alone: divergence comes early, in
    whole rows of a grid, and dead settings would cost as much as live ones.
    """

    settings: np.ndarray
    algorithms: Algorithm
    extra: Any
    states: RunState

    @classmethod
    def of(
        cls, algorithms: Sequence[Algorithm], task: Task, setup: Setup, measures: Sequence[Measure] | None
    ) -> _Batch:
        dtype = trees.dtype_of(setup.params)
        given = None if measures is None else tuple(measures)
        found = [
            cast((a, (*task.measures, *a.measures()) if given is None else given), dtype) for a in algorithms
        ]
        for other in found:
            if jax.tree.structure(other) != jax.tree.structure(found[0]):
                raise InvalidInput("the settings of a grid must be of one method and differ in numbers alone")
        stacked, extra = jax.tree.map(lambda *x: jnp.stack(x), *found)
        population = task.data.num_clients
        states = jax.vmap(lambda a: initial(a, setup.params, population))(stacked)
        states = jax.tree.map(
            lambda x: jnp.array(x, copy=True), states
        )  # buffers of its own: they are donated
        return cls(np.arange(len(algorithms)), stacked, extra, states)

    def advance(self, setup: Setup, done: int, step: int) -> _Batch:
        """Some rounds further."""
        common = (setup.program, self.algorithms, setup.sampling, setup.packed, setup.key)
        states = _compiled_step()(*common, self.states, jnp.int32(done), jnp.int32(step))
        return replace(self, states=states)

    def look(self, setup: Setup, count: int) -> dict[str, np.ndarray]:
        """All metrics, each of shape (count,), NaN for settings that are not in the program."""
        inputs = (_Looks.of(setup), self.extra, setup.judged, setup.test, self.algorithms, self.states)
        return {name: self._spread(x, count) for name, x in jax.device_get(_compiled_look()(*inputs)).items()}

    def without_dead(self) -> _Batch:
        """The settings that are alive, if half of those in the program are not."""
        alive = np.flatnonzero(np.asarray(self.states.failed) < 0)
        if len(alive) > len(self.settings) // 2 or len(alive) == 0:
            return self
        algorithms, extra, states = jax.tree.map(
            lambda x: x[alive], (self.algorithms, self.extra, self.states)
        )
        return _Batch(self.settings[alive], algorithms, extra, states)

    def params(self, count: int) -> Params:
        """All models, leaves of shape (count, ...)."""
        found = jax.device_get(jax.vmap(lambda a, s: a.export(s.server))(self.algorithms, self.states))
        return jax.tree.map(lambda x: self._spread(x, count), found)

    def _spread(self, values: Any, count: int) -> np.ndarray:
        spread = np.full((count, *np.shape(values)[1:]), np.nan, np.asarray(values).dtype)
        spread[self.settings] = values
        return spread


@dataclass(frozen=True)
class _Looks:
    """What is static in an evaluation."""

    loss: Any
    uniform: bool
    measures: Measures

    @classmethod
    def of(cls, setup: Setup) -> _Looks:
        return cls(setup.task.loss, setup.algorithm.weighting == "uniform", setup.measures)


@cache
def _compiled_step() -> Any:
    def all_settings(
        program: Any,
        algorithms: Any,
        sampling: Any,
        packed: Any,
        key: Any,
        states: RunState,
        first: Any,
        rounds: Any,
    ) -> RunState:
        def one_more(i: Any, states: RunState) -> RunState:
            # the round is the loop's, common to all settings: so are cohorts, shuffles and gathered examples
            def one(algorithm: Any, state: RunState) -> RunState:
                state = replace(state, round=first + i)
                new, _ = one_round(program, algorithm, sampling, packed, key, state)
                return replace(new, failed=jnp.where(state.failed < 0, new.failed, state.failed))

            return jax.vmap(one)(algorithms, states)

        return lax.fori_loop(0, rounds, one_more, states)

    return jax.jit(all_settings, static_argnums=0, donate_argnums=5, compiler_options=compiler_options())


@cache
def _compiled_look() -> Any:
    def all_settings(
        looks: _Looks, extra: Any, judged: Any, test: Any, algorithms: Any, states: RunState
    ) -> dict[str, Any]:
        def one(measures: Any, algorithm: Any, state: RunState) -> dict[str, Any]:
            params = algorithm.export(state.server)
            found = {"train_loss": objective(looks.loss, looks.uniform, judged, params, False)[0]}
            found |= measured(looks.loss, looks.uniform, measures, judged, params) if measures else {}
            if test is not None:
                values = on_all(looks.measures, params, test)
                found |= {f"test_{name}": jnp.mean(v) for name, v in values.items()}
            return {name: jnp.where(state.failed < 0, x, jnp.nan) for name, x in found.items()}

        return jax.vmap(one)(extra, algorithms, states)

    return jax.jit(all_settings, static_argnums=0, compiler_options=compiler_options())
