"""The trials of a sweep: what all of them share, and a batch of them under way."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm
from fedsolve.engine.checks.shape_checks import check_round
from fedsolve.engine.compute.keys import run_key, start_params
from fedsolve.engine.compute.layout import parallel_trials
from fedsolve.engine.compute.round import RunState, on_all_devices, one_round
from fedsolve.engine.evaluation.blocks import EvalClients
from fedsolve.engine.evaluation.nonfinite_clients import without_nonfinite_clients
from fedsolve.engine.prepared_run import PreparedRun
from fedsolve.engine.reacting import reacted, reacts
from fedsolve.engine.sweep.compiled_trials import (
    EvaluationSpec,
    TrialBatch,
    advance,
    evaluate,
    models,
    plan_batches,
    start,
)
from fedsolve.geometry.diagnostics import Diagnostic


@dataclass(frozen=True)
class Trials:
    """What the trials of a sweep share, and the method and diagnostics of each setting, in the run's type."""

    prepared: PreparedRun
    methods: tuple[Algorithm, ...]
    diagnostics: tuple[tuple[Diagnostic, ...], ...]
    seeds: tuple[int, ...]

    def without_nonfinite_clients(self) -> Trials:
        """Without clients whose loss is not finite at the initial model, in training and validation metrics."""
        prepared = without_nonfinite_clients(self.prepared)
        return self if prepared is self.prepared else dataclasses.replace(self, prepared=prepared)

    @property
    def evaluated(self) -> np.ndarray:
        """Rounds done at each evaluation, shape (evaluations,), 0 first."""
        last = self.prepared.rounds
        return np.unique([*range(0, last, self.prepared.eval_every), last])

    def batches(self, trials: int | None) -> tuple[list[TrialBatch], tuple[str, ...]]:
        """All trials in batches, those of one program together, and what is to be said of it."""
        programs: dict[Any, list[int]] = {}
        for i, pair in enumerate(zip(self.methods, self.diagnostics, strict=True)):
            programs.setdefault(jax.tree.structure(pair), []).append(i)
        prepared, total = self.prepared, len(self.methods) * len(self.seeds)
        most, note = parallel_trials(trials, total, prepared.params, prepared.program.chunk, prepared.state)
        batches = [b for settings in programs.values() for b in plan_batches(settings, len(self.seeds), most)]
        return batches, (*prepared.remarks, *([note] if note else []))

    def begin(self, batch: TrialBatch) -> RunningBatch:
        """A batch at its start."""
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

    def reacted(self, batch: TrialBatch, metrics: Mapping[str, np.ndarray], evaluations: int) -> Algorithm:
        """The methods of the trials' next rounds after so many evaluations, leading axes (S, L)."""
        rounds = self.evaluated[:evaluations]
        stop = int(self.evaluated[min(evaluations, len(self.evaluated) - 1)])

        def after(setting: int, seed: int) -> Algorithm:
            seen = {name: values[setting, seed, :evaluations] for name, values in metrics.items()}
            return reacted(self.methods[setting], {"round": rounds, **seen}, self.prepared.versions, stop)

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
        """The methods of the trials' next rounds after so many evaluations, leading axes (S, L).

        Raises:
            InvalidInput: a rate reacts to a metric that is not measured.
        """
        if reacts(self.algorithms):
            return self.trials.reacted(self.batch, metrics, evaluations)
        seeds = len(self.keys)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (seeds, *x.shape)), self.algorithms)

    def advance(self, rounds: int, metrics: Mapping[str, np.ndarray], evaluations: int) -> RunningBatch:
        """Some rounds further, at the rates that follow from so many evaluations of all trials."""
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
        """All metrics, each of shape (L, S), NaN where a trial has diverged."""
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
        """Metrics of held-out sets that are no means, trial by trial on the host, each of shape (S, L)."""
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

    def with_columns(self, batches: Sequence[RunningBatch], source: np.ndarray) -> RunningBatch:
        """A batch whose column l, a setting with its trials, is that of `batches[source[l]]`."""
        columns = np.arange(len(source))

        def picked(axis: int, *each: Any) -> Any:
            stacked = np.stack([np.asarray(x) for x in each])
            return jnp.array(np.moveaxis(stacked, axis + 1, 1)[source, columns].swapaxes(0, axis))

        def of(axis: int, trees: list[Any]) -> Any:
            return jax.tree.map(lambda *each: picked(axis, *each), *trees)

        settings = np.stack([b.batch.settings for b in batches])[source, columns]
        return dataclasses.replace(
            self,
            batch=TrialBatch(settings, self.batch.seeds),
            algorithms=of(0, [b.algorithms for b in batches]),
            diagnostics=of(0, [b.diagnostics for b in batches]),
            states=of(1, [b.states for b in batches]),
        )

    @property
    def failed(self) -> np.ndarray:
        """The round in which each trial diverged, counted from 1, -1 if it has not; shape (L, S)."""
        failed = np.asarray(self.states.failed)
        return np.where(failed < 0, -1, failed + 1).T
