"""Fast-FedDA, C-FedDA and MC-FedDA: dual averaging for F + psi with F strongly convex (Bao et al. 2022).

All three take y = argmin <G/t, y> + psi(y) + (mu/4t) sum of |y - y_s|^2 + (gamma/2t) |y - x0|^2 after t gradients with
the sum G, and differ in the points y_s. The sums enter as one vector A = G - (mu/2) sum of y_s - gamma x0 alone,

    y = prox of (t/b) psi at -A/b,   b = t mu/2 + gamma,

so that one vector travels each way where the authors send two.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.building import choice, class_by_name, number
from fedsolve.core.errors import InvalidInput, is_integer, shown
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import (
    MessageBounds,
    Params,
    Scalar,
    Traced,
    Weighting,
    bounded,
    converted,
    module,
    replace,
    static,
)
from fedsolve.geometry.blocks import Geometry, as_blocks
from fedsolve.geometry.diagnostics import measures_of
from fedsolve.geometry.mirrors import Euclidean
from fedsolve.geometry.penalties import L1
from fedsolve.geometry.regularizer import with_prox
from fedsolve.methods.client.solver import local_loop


@module
class DualAverage:
    """A (shapes of the model) and the number t of gradients; of MC-FedDA also x0 and the number of the stage."""

    dual: Params
    count: Traced
    start: Params = ()
    stage: Traced = ()
    round: Traced = ()  # of a broadcast, by which wrappers draw


@module
class DualMessage:
    """A_i - A (shapes of the model), and the number of the client's steps."""

    delta: Params
    steps: Traced = bounded(MessageBounds(at_least=0, whole=True))


@class_by_name("FastFedDA")
@module
class FastFedDA(Algorithm):
    """Fast-FedDA (Bao et al. 2022): dual averaging whose steps shorten as strong convexity allows, for F + psi.

        client:  K times:   A <- A + g_i(y) - (mu/2) y,   t <- t + 1,   y <- prox of (t/b) psi at -A/b
        server:  A <- sum_i p_i A_i,   t <- t + sum_i p_i K_i
        model:   prox of (t/b) psi at -A/b,   b = t mu/2 + gamma;   A_0 = -gamma x0, t_0 = 0

    Down: A and t. Up: A_i - A (d numbers) and the number of steps. Kept: nothing. The points y_s are those at which
    gradients were taken, t of them. The authors' code counts the server's model beside the clients' last points,
    one point a round more; this is their formula. With mu = 0 it is dual averaging with the step 1/gamma.

    Args:
        psi: penalty or set of `fedsolve.geometry` with a prox.
        mu: strong convexity of F, at least 0.
        gamma: above 0; 1/gamma is the length of the first steps (the authors' Lasso has 550).
        weighting: p_i `uniform` (the authors' for Lasso and nuclear norms) or by `examples`.

    Raises:
        InvalidInput: psi has no prox; a number out of its range; an unknown weighting.

    Reference: Bao, Crawshaw, Luo and Liu, "Fast Composite Optimization and Statistical Recovery in Federated Learning",
    ICML 2022, and the authors' code.
    """

    name: ClassVar[str] = "FastFedDA"
    each_step: ClassVar[bool] = True

    psi: Annotated[Any, Geometry] = converted(converter=with_prox)
    _: KW_ONLY
    mu: Scalar = number(default=0.1, at_least=0)
    gamma: Scalar = number(default=10.0, above=0)
    weighting: Weighting = choice("uniform", "examples", default="uniform")

    def __post_init__(self) -> None:
        object.__setattr__(self, "psi", as_blocks(self.psi))

    def init(self, params: Params) -> DualAverage:
        self.psi.check(params)
        zero = jnp.zeros((), trees.dtype_of(params))
        return DualAverage(trees.scale(-self.gamma, params), zero)

    def init_client(self, broadcast: Any) -> tuple[()]:
        return ()

    def broadcast(self, server: DualAverage, cohort: Cohort) -> DualAverage:
        return replace(server, round=cohort.round)

    def train(
        self, broadcast: DualAverage, client: tuple[()], oracle: Oracle
    ) -> tuple[DualMessage, tuple[()]]:
        y, dual = self.model(broadcast), broadcast.dual
        if not self.each_step:
            # the round's own point counts once for each of its steps
            dual = trees.axpy(-self.mu / 2 * oracle.steps, y, dual)

        def step(k: Scalar, carry: tuple[Params, Params]) -> tuple[Params, Params]:
            dual, y = carry
            dual = trees.add(dual, oracle(y, k)[1])
            if self.each_step:
                dual = trees.axpy(-self.mu / 2, y, dual)
            count = broadcast.count + (k + 1 if self.each_step else oracle.steps)
            return dual, self._primal(broadcast, dual, count)

        last, _ = local_loop(oracle, step, (dual, y))
        steps = jnp.asarray(oracle.steps, broadcast.count.dtype)
        return DualMessage(trees.sub(last, broadcast.dual), steps), client

    def update(self, server: DualAverage, message: DualMessage, cohort: Cohort) -> DualAverage:
        dual, count = trees.add(server.dual, message.delta), server.count + message.steps
        return DualAverage(dual, count.astype(server.count.dtype), server.start, server.stage)

    def model(self, broadcast: DualAverage) -> Params:
        return self._primal(broadcast, broadcast.dual, broadcast.count)

    def export(self, server: DualAverage) -> Params:
        return self.model(server)

    def diagnostics(self) -> tuple[Any, ...]:
        return measures_of(self.psi)

    def _primal(self, at: DualAverage, dual: Params, count: Scalar) -> Params:
        below = count * self.mu / 2 + self.gamma
        return Euclidean().composite(self.psi, trees.scale(-1 / below, dual), count / below)


@class_by_name("CFedDA")
@module
class CFedDA(FastFedDA):
    """C-FedDA (Bao et al. 2022): `FastFedDA` in which strong convexity counts once a round, at the model of the server.

        client:  A <- A - (mu/2) K w,   t <- t + K,   K times:   A <- A + g_i(y),   y <- prox of (t/b) psi at -A/b
        server, model, traffic:  as `FastFedDA`

    A client's prox has the same parameters in all steps of a round.

    Args:
        psi: as in `FastFedDA`.
        mu: as in `FastFedDA`.
        gamma: as in `FastFedDA` (the authors' Lasso has 600).
        weighting: as in `FastFedDA`.

    Raises:
        InvalidInput: as `FastFedDA`.

    Reference: as `FastFedDA`.
    """

    name: ClassVar[str] = "CFedDA"
    each_step: ClassVar[bool] = False


@class_by_name("MCFedDA")
@module
class MCFedDA(CFedDA):
    """MC-FedDA (Bao et al. 2022): `CFedDA` in stages, each with a smaller weight and within an l1 ball about its start.

        at the start of stage s:  x0 <- w,   t <- 0,   psi_s(y) = a_s lam |y|_1 on |y - x0|_1 <= r_s

    a_s are `scales`, r_s `radii`, lam is the weight. The prox of psi_s is exact: the multiplier nu of the ball by
    bisection, each coordinate the prox of a_s lam |y| + nu |y - x0| in closed form. The last stage goes on for as long
    as the run does.

    Down: A, t and x0 (2 d). Up: as `CFedDA`. Kept: nothing.

    Args:
        psi: `L1(weight)` on the whole model.
        mu: as in `CFedDA`.
        gamma: as in `CFedDA`.
        weighting: as in `CFedDA`.
        stages: rounds of the stages but the last one; the authors' Lasso has (250, 250).
        scales: of the weight, above 0, one more than stages; theirs are 4, 2, 1.
        radii: of the balls, above 0, one more than stages; theirs are 1e4 times 1/2, 1/4, 1/8.

    Raises:
        InvalidInput: another penalty; lengths that do not fit; a number out of its range.

    Reference: as `FastFedDA`.
    """

    name: ClassVar[str] = "MCFedDA"

    _: KW_ONLY
    stages: tuple[int, ...] = static(default=(250, 250))
    scales: tuple[float, ...] = static(default=(4.0, 2.0, 1.0))
    radii: tuple[float, ...] = static(default=(5e3, 2.5e3, 1.25e3))

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = [(type(part.psi), part.pattern) for part in self.psi.parts]
        if parts != [(L1, "*")]:
            raise InvalidInput(
                f"MCFedDA takes L1(weight) on the whole model, not {shown(self.psi)}: take CFedDA"
            )
        for name in ("stages", "scales", "radii"):
            values = tuple(getattr(self, name))
            object.__setattr__(self, name, values)
            if name == "stages" and not all(is_integer(x) and x > 0 for x in values):
                raise InvalidInput(f"stages = {values} must be numbers of rounds, each at least 1")
            if name != "stages" and (len(values) != len(self.stages) + 1 or not all(x > 0 for x in values)):
                raise InvalidInput(
                    f"{name} = {values} must be {len(self.stages) + 1} numbers above 0: one for each of stages, and one"
                )

    def init(self, params: Params) -> DualAverage:
        first = super().init(params)
        return DualAverage(first.dual, first.count, params, jnp.int32(0))

    def update(self, server: DualAverage, message: DualMessage, cohort: Cohort) -> DualAverage:
        after = super().update(server, message, cohort)
        ends = jnp.cumsum(jnp.asarray(self.stages, jnp.int32))
        stage = jnp.sum(cohort.round + 1 >= ends).astype(server.stage.dtype)
        model = self.model(after)
        anew = DualAverage(trees.scale(-self.gamma, model), jnp.zeros_like(after.count), model, stage)
        return trees.where(stage > server.stage, anew, after)

    def _primal(self, at: DualAverage, dual: Params, count: Scalar) -> Params:
        below = count * self.mu / 2 + self.gamma
        weight = self.psi.parts[0].psi.weight * jnp.asarray(self.scales)[at.stage] * count / below
        radius = jnp.asarray(self.radii)[at.stage]
        return l1_within_ball(trees.scale(-1 / below, dual), at.start, weight, radius)


def l1_within_ball(v: Params, center: Params, weight: Scalar, radius: Scalar) -> Params:
    """argmin weight |y|_1 + |y - v|^2 / 2 over |y - center|_1 <= radius, to the last bits of nu."""

    def prox(nu: Scalar) -> Params:
        return jax.tree.map(lambda v, c: _between(v, c, weight, nu), v, center)

    def distance(nu: Scalar) -> Array:
        return jax.tree.reduce(jnp.add, jax.tree.map(lambda y, c: jnp.sum(jnp.abs(y - c)), prox(nu), center))

    def halve(_: Scalar, ends: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        low, high = ends
        middle = (low + high) / 2
        outside = distance(middle) > radius
        return jnp.where(outside, middle, low), jnp.where(outside, high, middle)

    apart = jax.tree.map(lambda v, c: jnp.max(jnp.abs(v - c)), v, center)
    most = jax.tree.reduce(jnp.maximum, apart) + weight  # from there on every coordinate is at the centre
    zero = jnp.zeros_like(most)
    nu = lax.fori_loop(0, 2 * jnp.finfo(most.dtype).nmant, halve, (zero, most))[1]
    return prox(jnp.where(distance(zero) > radius, nu, 0))


def _between(v: Array, center: Array, weight: Scalar, nu: Scalar) -> Array:
    # minimises weight |y| + nu |y - center| + (y - v)^2 / 2, whose slope is constant but for kinks at 0 and center
    low, high = jnp.minimum(center, 0), jnp.maximum(center, 0)
    slope = jnp.where(center > 0, weight - nu, nu - weight)  # between the kinks
    inside = jnp.clip(v - slope, low, high)
    outer = weight + nu
    y = jnp.where(v + outer < low, v + outer, jnp.where(v - outer > high, v - outer, inside))
    return y.astype(v.dtype)
