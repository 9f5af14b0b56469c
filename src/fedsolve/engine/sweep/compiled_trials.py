"""Trials side by side: settings of one method with several seeds, vmapped in one program, rounds in a loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
from fedsolve.engine.compute.clients import Loss, PackedClients
from fedsolve.engine.compute.program import Program
from fedsolve.engine.compute.round import RunState, initial, one_round
from fedsolve.engine.evaluation.blocks import EvalClients
from fedsolve.engine.evaluation.example_metrics import Metrics, OwnModels, on_all, on_clients
from fedsolve.engine.evaluation.objective import measured, objective
from fedsolve.engine.evaluation.pooling import pooled


@dataclass(frozen=True)
class TrialBatch:
    """Trials that run together: numbers of settings, shape (L,), and of seeds, shape (S,).

    All batches of a sweep have one shape, so that they share a program; the last ones repeat a number to fill it.
    """

    settings: np.ndarray
    seeds: np.ndarray

    @property
    def trials(self) -> int:
        """Trials that are not repeated."""
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
    """The first state of each trial, leading axes (S, L): one start for each seed.

    `algorithms` has a leading axis (L,), `params` one of (S,).
    """

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
    """`rounds` rounds of every trial in one call; it ends early when all have diverged.

    `algorithms` has leading axes (S, L): a rate may react to the evaluations of its own trial.
    """
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
    """All metrics, each of shape (S, L); `finite` says whether the model is.

    `diagnostics` has a leading axis (L,). `held_out` are further examples by name: `name_loss` and so on; `owned`
    those evaluated with their owners' models, with which the loss of `train` is. What the servers report is that of
    the last round, NaN before the first.
    """

    def one(diagnostics: Any, algorithm: Algorithm, state: RunState) -> dict[str, Array]:
        params = algorithm.export(state.server)
        begun = state.round > 0
        values = {name: jnp.where(begun, x, jnp.nan) for name, (x, _) in reports(state.server).items()}
        values["train_loss"] = _train_loss(what.loss, eval_clients, params)
        values |= measured(what.loss, what.uniform, diagnostics, eval_clients, params) if diagnostics else {}
        for part, examples in held_out.items():
            means = on_all(what.means, eval_clients.model(params), examples)
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
    """The loss over all examples."""
    if not hasattr(loss, "of_sums"):
        return objective(loss, False, packed, params, False)[0]
    return pooled(loss, on_all(Metrics(loss, ()), packed.model(params), packed.examples)["loss"], None)


def _pooled(part: str, metrics: Metrics, values: dict[str, Array], examples: Batch) -> dict[str, Array]:
    counts = metrics.counts(examples)
    return {
        f"{part}_{name}": value
        for k, v in values.items()
        for name, value in metrics.by_column(k, pooled(metrics.all[k], v, counts.get(k))).items()
    }


@compiled
def models(algorithms: Algorithm, states: RunState) -> Params:
    """The exported model of each trial, leading axes (S, L)."""
    return _over(lambda states: _over(lambda a, s: a.export(s.server), algorithms, states), states)


def _over(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function over the leading axis: vmapped, or plainly where the axis has length 1."""
    if jax.tree.leaves(arguments)[0].shape[0] > 1:
        return jax.vmap(function)(*arguments)
    result = function(*jax.tree.map(lambda x: x[0], arguments))
    return jax.tree.map(lambda x: jnp.asarray(x)[None], result)
