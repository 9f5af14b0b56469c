"""The trials of a sweep: what all of them share, and a batch of them under way."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.sampling import Sampling
from fedsolve.core.types import Batch, Params, Scalar, Traced, replace, reports
from fedsolve.core.xla.compiler import compiled
from fedsolve.engine.checks.methods import check_round
from fedsolve.engine.compute.casting import run_key, start_params
from fedsolve.engine.compute.clients import Loss, PackedClients
from fedsolve.engine.compute.layout import parallel_trials
from fedsolve.engine.compute.round import RunState, initial, on_all_devices, one_round
from fedsolve.engine.compute.sharding import Program
from fedsolve.engine.evaluation.averaged_iterates import measured, objective
from fedsolve.engine.evaluation.client_metrics import without_nonfinite_clients
from fedsolve.engine.evaluation.eval_sets import pooled
from fedsolve.engine.evaluation.example_metrics import EvalClients, Metrics, OwnModels, on_all, on_clients
from fedsolve.engine.feedback_schedules import has_feedback, with_current_rates
from fedsolve.engine.prepare import PreparedRun
from fedsolve.geometry.diagnostics import Diagnostic

# Trials side by side: settings of one method with several seeds, vmapped in one program, rounds in a loop.


@dataclass(frozen=True)
class TrialBatch:
    """Trials that run together: numbers of settings, shape (L,), and of seeds, shape (S,)."""

    # All batches of a sweep have one shape, so that they share a program; the last ones repeat a number to fill it.

    settings: np.ndarray
    seeds: np.ndarray

    @property
    def trials(self) -> int:
        return len(np.unique(self.settings)) * len(np.unique(self.seeds))


def plan_batches(settings: Sequence[int], seeds: int, trials: int) -> list[TrialBatch]:
    """Batches of at most `trials` trials, as even as can be; several seeds in one only if all settings fit.

    >>> [b.settings.tolist() for b in plan_batches(range(5), 1, 3)]
    [[0, 1, 2], [3, 4, 4]]
    """
    wide = _cut(np.asarray(settings), trials)
    deep = _cut(np.arange(seeds), max(1, trials // len(wide[0])))
    return [TrialBatch(some, which) for which in deep for some in wide]


def _cut(numbers: np.ndarray, most: int) -> list[np.ndarray]:
    parts = math.ceil(len(numbers) / max(1, most))
    size = math.ceil(len(numbers) / parts)
    filled = np.pad(numbers, (0, parts * size - len(numbers)), mode="edge")
    return list(filled.reshape(parts, size))


@dataclass(frozen=True)
class EvaluationSpec:
    """What is static in an evaluation: the loss, means over held-out examples, whether clients count alike."""

    loss: Any
    means: Metrics
    uniform: bool


def start(algorithms: Algorithm, params: Params, population: int) -> RunState:
    # the first state of each trial, leading axes (S, L): one start for each seed.
    #
    # `algorithms` has a leading axis (L,), `params` one of (S,).
    def of_seed(params: Params) -> RunState:
        return jax.vmap(lambda a: initial(a, params, population))(algorithms)

    states = jax.vmap(of_seed)(params)
    return jax.tree.map(lambda x: jnp.array(x, copy=True), states)  # buffers of their own: they are donated


@partial(compiled, static_argnums=0, donate_argnums=5)
def advance(
    program: Program,
    algorithms: Algorithm,
    sampling: Sampling,
    packed: PackedClients,
    keys: Array,
    states: RunState,
    rounds: Scalar,
) -> RunState:
    # `rounds` rounds of every trial in one call; it ends early when all have diverged.
    #
    # `algorithms` has leading axes (S, L): a rate may react to the evaluations of its own trial.
    first = jnp.max(states.round)

    def unfinished(carry: tuple[Scalar, RunState]) -> Traced:
        return (carry[0] < rounds) & jnp.any(carry[1].failed < 0)

    def one_more(carry: tuple[Scalar, RunState]) -> tuple[Scalar, RunState]:
        # round and key are common to the settings: so are their cohorts, shuffles and gathered examples
        done, states = carry

        def of_seed(key: Array, algorithms: Algorithm, states: RunState) -> RunState:
            def one(algorithm: Algorithm, state: RunState) -> RunState:
                state = replace(state, round=first + done)
                new, _ = one_round(program, algorithm, sampling, packed, key, state)
                return replace(new, failed=jnp.where(state.failed < 0, new.failed, state.failed))

            return _over(one, algorithms, states)

        return done + 1, _over(of_seed, keys, algorithms, states)

    return lax.while_loop(unfinished, one_more, (jnp.int32(0), states))[1]


@partial(compiled, static_argnums=0)
def evaluate(
    what: EvaluationSpec,
    diagnostics: Any,
    eval_clients: PackedClients,
    held_out: dict[str, Batch],
    owned: dict[str, EvalClients],
    algorithms: Algorithm,
    states: RunState,
) -> dict[str, Array]:
    # all metrics, each of shape (S, L); `finite` says whether the model is.
    #
    # `diagnostics` has a leading axis (L,). `held_out` are further examples by name: `name_loss` and so on; `owned`
    # those evaluated with their owners' models, with which the loss of `train` is. What the servers report is that of
    # the last round, NaN before the first.
    def one(diagnostics: Any, algorithm: Algorithm, state: RunState) -> dict[str, Array]:
        params = algorithm.export(state.server)
        begun = state.round > 0
        values = {name: jnp.where(begun, x, jnp.nan) for name, (x, _) in reports(state.server).items()}
        values["train_loss"] = _train_loss(what.loss, eval_clients, params)
        values |= measured(what.loss, what.uniform, diagnostics, eval_clients, params) if diagnostics else {}
        for part, examples in held_out.items():
            means = on_all(what.means, eval_clients.frozen, params, examples)
            values |= _pooled(part, what.means, means, examples)
        for part, owners in owned.items():
            metrics = Metrics(what.loss, ()) if part == "train" else what.means
            clients = jax.tree.map(lambda x, ids=owners.ids: x[ids], state.clients)
            own_models = OwnModels(algorithm, clients, owners.rows)
            means = on_clients(metrics, owners.packed, params, own_models)
            values |= _pooled(part, metrics, means, owners.packed.examples)
        return values | {"finite": trees.all_finite(params)}

    return _over(lambda states: _over(one, diagnostics, algorithms, states), states)


def _train_loss(loss: Loss, packed: PackedClients, params: Params) -> Array:
    # the loss over all examples
    if not hasattr(loss, "of_sums"):
        return objective(loss, False, packed, params, False)[0]
    return pooled(loss, on_all(Metrics(loss, ()), packed.frozen, params, packed.examples)["loss"], None)


def _pooled(part: str, metrics: Metrics, values: dict[str, Array], examples: Batch) -> dict[str, Array]:
    counts = metrics.counts(examples)
    return {
        f"{part}_{name}": value
        for k, v in values.items()
        for name, value in metrics.by_column(k, pooled(metrics.all[k], v, counts.get(k))).items()
    }


@compiled
def models(algorithms: Algorithm, states: RunState) -> Params:
    # the exported model of each trial, leading axes (S, L)
    return _over(lambda states: _over(lambda a, s: a.export(s.server), algorithms, states), states)


def _over(function: Callable[..., Any], *arguments: Any) -> Any:
    # the function over the leading axis: vmapped, or plainly where the axis has length 1
    if jax.tree.leaves(arguments)[0].shape[0] > 1:
        return jax.vmap(function)(*arguments)
    result = function(*jax.tree.map(lambda x: x[0], arguments))
    return jax.tree.map(lambda x: jnp.asarray(x)[None], result)


@dataclass(frozen=True)
class Trials:
    """What the trials of a sweep share, and the method and diagnostics of each setting, in the run's type."""

    prepared: PreparedRun
    methods: tuple[Algorithm, ...]
    diagnostics: tuple[tuple[Diagnostic, ...], ...]
    seeds: tuple[int, ...]

    def without_nonfinite_clients(self) -> Trials:
        # without clients whose loss is not finite at the initial model, in training and validation metrics
        prepared = without_nonfinite_clients(self.prepared)
        return self if prepared is self.prepared else dataclasses.replace(self, prepared=prepared)

    def of(self, batch: TrialBatch) -> Trials:
        return dataclasses.replace(
            self,
            methods=tuple(self.methods[i] for i in batch.settings),
            diagnostics=tuple(self.diagnostics[i] for i in batch.settings),
            seeds=tuple(self.seeds[i] for i in batch.seeds),
        )

    @property
    def evaluated(self) -> np.ndarray:
        # rounds done at each evaluation, shape (evaluations,), 0 first
        last = self.prepared.rounds
        return np.unique([*range(0, last, self.prepared.eval_every), last])

    def batches(self, trials: int | None, stops: dict[int, int]) -> tuple[list[TrialBatch], tuple[str, ...]]:
        # all trials in batches, those of one program together, and what is to be said of it
        programs: dict[Any, list[int]] = {}
        for i, pair in enumerate(zip(self.methods, self.diagnostics, strict=True)):
            programs.setdefault(jax.tree.structure(pair), []).append(i)
        prepared, total = self.prepared, len(self.methods) * len(self.seeds)
        most, note = parallel_trials(trials, total, prepared.params, prepared.program.chunk, prepared.state)
        if trials is None and stops:  # narrow: the few that go on fill their batches
            most = min(most, [*stops.values()][:2][-1])
        batches = [b for settings in programs.values() for b in plan_batches(settings, len(self.seeds), most)]
        return batches, (*prepared.remarks, *([note] if note else []))

    def begin(self, batch: TrialBatch) -> RunningBatch:
        prepared = self.prepared
        pairs = [(self.methods[i], self.diagnostics[i]) for i in batch.settings]
        algorithms, diagnostics = jax.tree.map(lambda *x: jnp.stack(x), *pairs)
        seeds = [self.seeds[i] for i in batch.seeds]
        models = [start_params(prepared.task, seed, prepared.dtype) for seed in seeds]
        params = jax.tree.map(lambda *x: jnp.stack(x), *models)
        keys = jnp.stack([run_key(seed) for seed in seeds])
        what = EvaluationSpec(prepared.task.loss, prepared.metrics, pairs[0][0].traits.weighting == "uniform")
        states = start(algorithms, params, prepared.task.data.num_clients)
        return RunningBatch(self, batch, what, algorithms, diagnostics, keys, states)

    def with_current_rates(
        self, batch: TrialBatch, metrics: Mapping[str, np.ndarray], evaluations: int
    ) -> Algorithm:
        # the methods of the trials' next rounds after so many evaluations, leading axes (S, L)
        rounds = self.evaluated[:evaluations]
        stop = int(self.evaluated[min(evaluations, len(self.evaluated) - 1)])

        def after(setting: int, seed: int) -> Algorithm:
            seen = {name: values[setting, seed, :evaluations] for name, values in metrics.items()}
            return with_current_rates(
                self.methods[setting], {"round": rounds, **seen}, self.prepared.versions, stop
            )

        trials = [[after(i, j) for i in batch.settings] for j in batch.seeds]
        rows = [jax.tree.map(lambda *x: jnp.stack(x), *settings) for settings in trials]
        return jax.tree.map(lambda *x: jnp.stack(x), *rows)


@dataclass(frozen=True)
class RunningBatch:
    """A batch under way: methods and diagnostics (leading axis L), keys (S) and states (S, L)."""

    trials: Trials
    batch: TrialBatch
    what: EvaluationSpec
    algorithms: Algorithm
    diagnostics: Any
    keys: Any
    states: RunState

    def next_methods(self, metrics: Mapping[str, np.ndarray], evaluations: int) -> Algorithm:
        # the methods of the trials' next rounds after so many evaluations, leading axes (S, L)
        if has_feedback(self.algorithms):
            return self.trials.with_current_rates(self.batch, metrics, evaluations)
        seeds = len(self.keys)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (seeds, *x.shape)), self.algorithms)

    def advance(self, rounds: int, metrics: Mapping[str, np.ndarray], evaluations: int) -> RunningBatch:
        # some rounds further, at the rates that follow from so many evaluations of all trials
        prepared, algorithms = self.trials.prepared, self.next_methods(metrics, evaluations)
        shared = (prepared.sampling, prepared.packed)
        try:
            states = advance(prepared.program, algorithms, *shared, self.keys, self.states, jnp.int32(rounds))
        except TypeError:  # a shape or type that changes is said plainly, of the first trial
            algorithm, state = jax.tree.map(lambda x: x[0, 0], (algorithms, self.states))
            first_trial = partial(
                on_all_devices, one_round, prepared.program, algorithm, *shared, self.keys[0]
            )
            check_round(first_trial, state)
            raise
        return dataclasses.replace(self, states=jax.block_until_ready(states))

    def evaluate(self) -> dict[str, np.ndarray]:
        # all metrics, each of shape (L, S), NaN where a trial has diverged
        prepared = self.trials.prepared
        parts, sets = prepared.parts
        clients = {name: c for name, c in parts.items() if isinstance(c, EvalClients)}  # in a sweep all are
        if prepared.unseen is not None:
            sets["unseen"] = prepared.unseen.packed.examples
        owned = clients if prepared.algorithm.traits.personal else {}
        given = (clients["train"].packed, sets, owned, self.algorithms, self.states)
        values = trees.on_host(evaluate(self.what, self.diagnostics, *given))
        values |= self._on_whole_sets()
        clock = self.trials.prepared.clock(int(np.asarray(self.states.round).max()))
        values |= {name: np.full(self.states.failed.shape, seconds) for name, seconds in clock.items()}
        alive = values.pop("finite") & (np.asarray(self.states.failed) < 0)
        return {name: np.where(alive, x, np.nan).T for name, x in values.items()}

    def _on_whole_sets(self) -> dict[str, np.ndarray]:
        # metrics of held-out sets that are no means, trial by trial on the host, each of shape (S, L)
        whole, sets = self.trials.prepared.whole, self.trials.prepared.held_out
        if not whole or not sets:
            return {}
        params, shape = models(self.algorithms, self.states), self.states.failed.shape
        first = not np.asarray(self.states.round).any()
        model = self.trials.prepared.packed.model
        trials = [
            whole(model(jax.tree.map(lambda x, i=i: x[i], params)), sets, first) for i in np.ndindex(*shape)
        ]
        return {name: np.array([one[name] for one in trials]).reshape(shape) for name in trials[0]}

    def with_columns(self, batches: Sequence[RunningBatch], columns: np.ndarray) -> RunningBatch:
        # a batch of some columns, each a setting with its trials, counted through all of the batches
        def of(axis: int, trees: list[Any]) -> Any:
            return jax.tree.map(lambda *x: jnp.array(np.concatenate(x, axis).take(columns, axis)), *trees)

        settings = np.concatenate([b.batch.settings for b in batches])[columns]
        return dataclasses.replace(
            self,
            batch=TrialBatch(settings, self.batch.seeds),
            algorithms=of(0, [b.algorithms for b in batches]),
            diagnostics=of(0, [b.diagnostics for b in batches]),
            states=of(1, [b.states for b in batches]),
        )

    @property
    def failed(self) -> np.ndarray:
        # the round in which each trial diverged, counted from 1, -1 if it has not; shape (L, S)
        failed = np.asarray(self.states.failed)
        return np.where(failed < 0, -1, failed + 1).T
