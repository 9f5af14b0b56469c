"""Federated Frank-Wolfe: constrained problems without projections (Dadras et al. 2024, Algorithm 1)."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.errors import InvalidInput, is_one_of, shown
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Scalar, Weighting, given, module, static
from fedsolve.core.wire import OneOf
from fedsolve.geometry.diagnostics import Diagnostic, Feasibility, FrankWolfeGap
from fedsolve.geometry.regularizer import check_start, require, with_lmo
from fedsolve.methods.frank_wolfe.split_sets import SplitSets
from fedsolve.methods.frank_wolfe.steps import Convex, FrankWolfeSteps

Variant = Literal["plain", "plus", "stochastic"]
_NAMES = {"plain": "FedFW", "plus": "FedFWPlus", "stochastic": "FedFWSto"}


@module
class FedFWServer:
    """xbar, the mean of all clients' x_i."""

    params: Params


@module
class FedFWBroadcast:
    """xbar, the number of the round and n, the number of all clients."""

    params: Params
    round: Scalar
    population: Scalar


@module
class FedFWClient:
    """x_i; FedFWPlus its dual y_i; FedFWSto its mean gradient d_i; the last vertex where the oracle starts there."""

    params: Params
    dual: Params
    mean: Params
    vertex: Any


@module
class FedFWMessage:
    """The extreme point s_i by its code: what the server, which knows the set, needs to rebuild it."""

    vertex: Any


@module
class FedFWChange:
    """s_i - x_i, which the server forms because it can follow every x_i, or which the client sends."""

    params: Params


@module
class FrankWolfe(Algorithm):
    """Federated Frank-Wolfe (Dadras et al. 2024): the common implementation of FedFW, FedFWPlus and FedFWSto.

        client i:  g = (1/n) grad f_i(x_i) + lambda_t (x_i - xbar)                          plain
                   g = (the same) + y_i,   y_i <- y_i + lambda_0 (x_i - xbar) before         plus
                   g = d_i + lambda_t (x_i - xbar),
                   d_i <- (1 - rho_t) d_i + rho_t (1/n) grad f_i(x_i; batch) before          stochastic
                   s_i = argmin over D of <g, s>,   x_i <- (1 - eta_t) x_i + eta_t s_i
        server:    xbar <- xbar + (eta_t / n) sum over S of (s_i - x_i)

    Down: xbar. Up: s_i by its code (for an l1 ball one small integer), or s_i - x_i (d numbers). Kept: x_i, and y_i or
    d_i (all shapes of the model). x_i is never overwritten by xbar. The server's line keeps xbar the mean of all x_i
    when clients are absent, where the line that the paper prints does not; with all present they agree. Each
    round is one step on all of a client's data (plain, plus) or on its first minibatch (stochastic); local
    epochs and steps of the run do not matter. F weighs clients alike, F = (1/n) sum f_i.

    Args:
        constraint: D, a set with a linear minimisation oracle on every leaf; the whole vector if not `on`.
        steps: eta_t, lambda_t and rho_t.
        split: each client's own superset of D, or None. xbar may then leave D: its violation is measured.
        variant: see above.
        start: begin at the `given` model, which must lie in D, or at its projection (`projected`).
        sends: the `code` of s_i, with which the server follows every x_i, or the `step` s_i - x_i, whose sum is enough
            (`fs.Secure`).

    Raises:
        InvalidInput: a set without `lmo`, a free leaf, a start outside the set.
    """

    weighting: ClassVar[Weighting] = "uniform"
    only_mean: ClassVar[str] = "xbar must stay the mean of all clients' x_i"

    constraint: Any = given(converter=with_lmo)
    _: KW_ONLY
    steps: FrankWolfeSteps = Convex()
    split: SplitSets | None = None
    variant: Variant = static(default="plain")
    start: Literal["given", "projected"] = static(default="given")
    sends: Literal["code", "step"] = static(default="code", later=True)

    def __post_init__(self) -> None:
        if not is_one_of(self.variant, _NAMES):
            raise InvalidInput(f"variant = {self.variant!r} must be one of {', '.join(_NAMES)}")
        if not is_one_of(self.start, ("given", "projected")):
            raise InvalidInput(f"start = {self.start!r} must be 'given' or 'projected'")
        if not is_one_of(self.sends, ("code", "step")):
            raise InvalidInput(f"sends = {self.sends!r} must be 'code' or 'step'")
        if not isinstance(self.steps, FrankWolfeSteps):
            raise InvalidInput(f"steps = {self.steps!r} must be step schedules such as Convex(lam0=0.01)")
        if self.split is not None and not isinstance(self.split, SplitSets):
            raise InvalidInput(f"split = {shown(self.split)} must be SplitSets(sets, of_client) or None")
        instead = "a set, such as L1Ball(10.0) or L2Ball(10.0)"
        object.__setattr__(self, "constraint", require(self.name, self.constraint, "lmo", instead))
        if self.start == "projected":
            require(f"{self.name} with start='projected'", self.constraint, "project", "start='given'")

    @property
    def name(self) -> str:
        """The name of the method in tables."""
        return _NAMES[self.variant]

    def init(self, params: Params) -> FedFWServer:
        """The server's first state: xbar = x_i = the initial model, or its projection on the set."""
        for constraint in (self.constraint, *(self.split.sets if self.split else ())):
            constraint.check(params)
            if free := constraint.free(params):
                raise InvalidInput(
                    f"{self.name} needs a set on every leaf of the model: {', '.join(free)} is free; put one on "
                    "the whole vector, or use FedMiD or FedDualAvg, which leave leaves free"
                )
        if self.start == "projected":
            return FedFWServer(self.constraint.project(params))
        check_start(self.name, self.constraint, params)
        return FedFWServer(params)

    def broadcast(self, server: FedFWServer, cohort: Cohort) -> FedFWBroadcast:
        """The mean xbar, the number of the round and the number of clients."""
        if self.split is not None and np.shape(self.split.of_client) != (cohort.population,):
            raise InvalidInput(
                f"of_client names the sets of {len(self.split.of_client)} clients: there are {cohort.population}"
            )
        return FedFWBroadcast(server.params, cohort.round, jnp.asarray(cohort.population, jnp.int32))

    def init_client(self, broadcast: FedFWBroadcast) -> FedFWClient:
        """A client's first state: x_i = xbar of the first round, y_i = d_i = 0."""
        zero = trees.zeros_like(broadcast.params)
        dual = zero if self.variant == "plus" else ()
        mean = zero if self.variant == "stochastic" else ()
        vertex = self.constraint.vertex(zero) if self.constraint.warm and self.split is None else ()
        return FedFWClient(broadcast.params, dual, mean, vertex)

    def train(
        self, broadcast: FedFWBroadcast, client: FedFWClient, oracle: Oracle
    ) -> tuple[FedFWMessage | FedFWChange, FedFWClient]:
        """Solve one linear minimisation over the set, and take a step towards its solution."""
        t, x = broadcast.round + 1, client.params
        n = jnp.asarray(broadcast.population, trees.dtype_of(x))  # 1 / integer would be float32
        apart = trees.sub(x, broadcast.params)  # x_i - xbar
        dual, mean = client.dual, client.mean
        loss, gradient = oracle(x, 0) if self.variant == "stochastic" else oracle.full(x)
        if self.variant == "stochastic":
            rho = self.steps.rho(t)
            mean = trees.axpy(rho / n, gradient, trees.scale(1 - rho, mean))
            g = trees.axpy(self.steps.penalty(t), apart, mean)
        else:
            g = trees.axpy(self.steps.penalty(t), apart, trees.scale(1 / n, gradient))
        if self.variant == "plus":
            dual = trees.axpy(self.steps.lam0, apart, dual)
            g = trees.add(g, dual)
        vertex = self._vertex(g, client, oracle)
        change = trees.sub(self._point(vertex, x), x)
        # codes cannot always be NaN: a loss or gradient that is not finite shows in the state
        sets = self.split.sets if self.split else (self.constraint,)
        fine = jnp.isfinite(loss) if all(s.propagates_nan for s in sets) else trees.all_finite((loss, g))
        eta = jnp.where(fine, self.steps.eta(t), jnp.nan)
        kept = vertex if jax.tree.leaves(client.vertex) else ()
        after = FedFWClient(trees.axpy(eta, change, x), dual, mean, kept)
        if self.sends == "code":
            return FedFWMessage(vertex), after
        nan = trees.scale(jnp.nan, change)
        return FedFWChange(trees.where(fine, change, nan)), after

    def is_finite(self, message: FedFWMessage | FedFWChange, client: FedFWClient) -> Array:
        """Whether a client's vertex and step are numbers: by an entry of each leaf of x_i where a failure is in all.

        A loss that is not finite makes the step NaN, a gradient that is not makes the vertex so.
        """
        sets = self.split.sets if self.split else (self.constraint,)
        if self.variant == "stochastic" or self.sends != "code" or not all(s.spreads_nan for s in sets):
            return super().is_finite(message, client)
        return trees.all_finite([x.ravel()[:1] for x in jax.tree.leaves(client.params)])

    def receive(
        self, broadcast: FedFWBroadcast, message: FedFWMessage | FedFWChange, client: FedFWClient
    ) -> tuple[FedFWChange, FedFWClient]:
        """Decode s_i - x_i unless it was sent, and the client's next x_i."""
        if isinstance(message, FedFWChange):
            change = message.params
        else:
            change = trees.sub(self._point(message.vertex, client.params), client.params)
        params = trees.axpy(self.steps.eta(broadcast.round + 1), change, client.params)
        return FedFWChange(change), FedFWClient(params, client.dual, client.mean, client.vertex)

    def update(self, server: FedFWServer, message: FedFWChange, cohort: Cohort) -> FedFWServer:
        """Update the mean: xbar + (eta_t / n) sum over S of (s_i - x_i)."""
        share = self.steps.eta(cohort.round + 1) * cohort.size / cohort.population
        return FedFWServer(trees.axpy(share, message.params, server.params))

    def export(self, server: FedFWServer) -> Params:
        """The mean xbar."""
        return server.params

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """The Frank-Wolfe gap and the violation of the set."""
        return FrankWolfeGap(self.constraint), Feasibility(self.constraint)

    def _vertex(self, g: Params, client: FedFWClient, oracle: Oracle) -> Any:
        if self.split is None:
            return self.constraint.vertex(g, client.vertex or None)
        mine = jnp.asarray(self.split.of_client)[oracle.client]
        return OneOf(mine, tuple(own.vertex(g) for own in self.split.sets))

    def _point(self, vertex: Any, like: Params) -> Params:
        if self.split is None:
            return self.constraint.point(vertex, like)
        points = [own.point(code, like) for own, code in zip(self.split.sets, vertex.options, strict=True)]
        chosen = points[0]
        for k, point in enumerate(points[1:], 1):
            chosen = trees.where(vertex.which == k, point, chosen)
        return chosen
