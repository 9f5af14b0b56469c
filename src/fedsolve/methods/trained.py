"""Clients that train with a loop of their own: which methods can go without the gradients of local steps.

What a method asks for is found by tracing its `train` on a client that knows where its loop ends and no more. A method
that asks for anything else is refused, never run without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedsolve.core import introspect, trees
from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.oracle import NeedsMore, Oracle, Outcome, TrainedRound
from fedsolve.core.types import Params, Scalar, module, replace, static
from fedsolve.methods.client.sgd import SGD
from fedsolve.methods.client.solver import LocalSolver, Solution
from fedsolve.methods.server.fedopt import FedOpt
from fedsolve.methods.server.server_optimizer import ServerOptimizer


@module
class TrainedLocally(SGD):
    """A training loop of the client's own in the place of local SGD.

    Its rate moves nothing; what a method makes of the rates of local steps (FedNova, QFedAvg, server.Polyak) it makes
    of this one, which is then taken for the loop's. The loop must tell what `asks` names (`steps`, `loss`) beside the
    number of examples; by `run`, a number of the run in a simulation, loops keep apart what they keep.
    """

    run: Scalar = 0.0
    asks_rates: bool = static(default=False)
    asks: tuple[str, ...] = static(default=())

    def solve(self, params: Params, oracle: Oracle, round: Scalar) -> Solution:
        outcome = oracle.trained(params)
        # a loss that the loop does not tell is no part of the record (`TrainReply.untold`)
        loss = jnp.asarray(0 if outcome.loss is None else outcome.loss, trees.dtype_of(params))
        asked = self.asks_rates or outcome.steps is not None
        return Solution(outcome.params, loss, self.rate_sum(oracle.steps, round) if asked else None)


def with_loop(algorithm: Algorithm, asks: tuple[str, ...] = (), run: int = 0) -> Algorithm:
    """The method with a loop of the client's own in the place of its local SGD; `NeedsMore` if that is not all."""
    inner = getattr(algorithm, "inner", None)
    if isinstance(inner, Algorithm):
        return replace(algorithm, inner=with_loop(inner, asks, run))
    local = vars(algorithm).get("local")  # a field: a method may tell its solver without taking another
    if not isinstance(local, LocalSolver):
        raise NeedsMore("the gradient of each local step")
    is_plain = type(local) is SGD and (local.momentum, local.weight_decay, local.clip_norm) == (None,) * 3
    if not is_plain and name_of(algorithm) not in _OUTER:
        plain = "SGD with momentum, weight decay or clipping"
        raise NeedsMore(
            f"clients with its own solver ({plain if isinstance(local, SGD) else type(local).__name__})"
        )
    needs = getattr(getattr(algorithm, "server_optimizer", None), "needs", None)
    rate = local.lr if isinstance(local, SGD) else 1.0
    loop = TrainedLocally(rate, run=float(run), asks_rates=needs == "sums_gradients", asks=asks)
    return replace(algorithm, local=loop)


_OUTER = ("DiLoCo",)
"""Methods that are a server's step around whatever optimiser clients have, which may then be the loop's own."""


class Support(NamedTuple):
    """Whether a method runs on clients with a training loop of their own: `refused` says why not, '' if it does.

    `needs` is what the loop must return beside the number of examples: some of `steps` and `loss`.
    """

    refused: str
    needs: tuple[str, ...] = ()


_MODEL = {
    "weight": jax.ShapeDtypeStruct((64, 32), jnp.float32),
    "bias": jax.ShapeDtypeStruct((32,), jnp.float32),
}
"""Of which methods run that compress, or that divide a model by its leaves."""
_MAY = ("steps", "loss")  # what a loop may return beside the number of examples


def support(algorithm: Algorithm, params: Params = _MODEL) -> Support:
    """Whether a method runs on clients with a training loop of their own, by tracing it on a model or its shapes."""
    if why := _why_not(algorithm, params):
        return Support(f"{name_of(algorithm)} needs {why}: {_instead(algorithm, params)}")
    return Support("", tuple(x for x in _MAY if _why_not(algorithm, params, [y for y in _MAY if y != x])))


def _why_not(algorithm: Algorithm, params: Params, told: Sequence[str] = _MAY) -> str:
    # What a method asks for that a loop does not tell, which tells some of what it may; '' for nothing.
    def message(method: Any, params: Params) -> Any:
        broadcast = method.broadcast(method.init(params), introspect.first_cohort(_population(algorithm)))
        values = {"steps": jnp.int32(2), "loss": jnp.ones((), trees.dtype_of(params))}
        # a model that is not that of the broadcast: what is known of one is not taken for the other
        ends = jax.tree.map(jnp.ones_like, params)
        outcome = Outcome(ends, jnp.int32(3), **{name: values[name] for name in told})
        round = TrainedRound(outcome, jnp.int32(0), jax.random.key(0))
        return method.train(broadcast, method.enrol(broadcast, params), round)

    try:
        jax.eval_shape(partial(message, with_loop(algorithm)), params)
    except NeedsMore as error:
        return error.need
    return ""


def _population(algorithm: Any) -> int:
    # The clients that a method accounts for, else any number.
    inner = getattr(algorithm, "inner", None)
    return getattr(algorithm, "population", None) or (4 if inner is None else _population(inner))


def _instead(algorithm: Algorithm, params: Params) -> str:
    # The nearest method that does run.
    inner, name = getattr(algorithm, "inner", None), name_of(algorithm)
    while isinstance(inner, Algorithm):
        if name_of(inner) != name and not _why_not(inner, params):
            return f"take {name_of(inner)}"
        inner = getattr(inner, "inner", None)
    rule = getattr(algorithm, "server_optimizer", None)
    searches = getattr(rule, "needs", None) == "searches"
    if not isinstance(rule, ServerOptimizer) or searches or _why_not(FedOpt(SGD(0.1), rule), params):
        return "take FedAvg"
    return f"take FedOpt with its server optimiser, server.{type(rule).__name__}, and such steps in the loop"
