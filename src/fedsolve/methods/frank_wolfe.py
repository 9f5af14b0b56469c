"""Step schedules and split sets for the Frank-Wolfe methods (`fs.FedFW`, `fs.FedFWPlus`, `fs.FedFWSto`).

fs.FedFW(L1Ball(10.0), steps=fs.frank_wolfe.Convex(lam0=0.01))
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.building import Registry, by_name, checked, choice, number
from fedsolve.core.errors import InvalidInput, check_range, is_one_of, shown
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate, Schedule, as_rate, rate_at
from fedsolve.core.trees import as_array
from fedsolve.core.types import Params, Scalar, Weighting, converted, module, static
from fedsolve.core.wire import OneOf
from fedsolve.geometry.diagnostics import Diagnostic, Feasibility, FrankWolfeGap
from fedsolve.geometry.regularizer import WithLmo, check_start, require, with_lmo

__all__ = ["Convex", "FrankWolfe", "FrankWolfeSteps", "NonConvex", "OwnSteps", "SplitSets", "Stochastic"]

# Step schedules of FedFW: the step eta_t, the penalty lambda_t and the averaging rho_t by round t = 1, 2, ...
#
# Theorems and sections are of Dadras, Banerjee, Prakhya and Yurtsever 2024.


class FrankWolfeSteps(ABC):
    """Base class of FedFW's step schedules: eta_t in [0, 1], lambda_t >= 0 and rho_t in [0, 1] for t = 1, 2, ...

    Attributes:
        lam0: lambda_0, the initial penalty parameter, which FedFWPlus also uses for its dual step.
    """

    lam0: Scalar

    @abstractmethod
    def eta(self, t: Scalar) -> Scalar:
        """The step eta_t towards the extreme point.

        Args:
            t: the round, from 1.

        Returns:
            In [0, 1].
        """

    @abstractmethod
    def penalty(self, t: Scalar) -> Scalar:
        """The weight lambda_t of the distance to the mean.

        Args:
            t: the round, from 1.

        Returns:
            lambda_t, at least 0.
        """

    def rho(self, t: Scalar) -> Scalar:
        """The weight rho_t of a new stochastic gradient in its running mean (FedFWSto).

        Args:
            t: the round, from 1.

        Returns:
            In [0, 1].
        """
        return 4 / (jnp.asarray(t) + 7.0) ** (2 / 3)


@module
class Convex(FrankWolfeSteps):
    """Steps for convex problems: eta = 2 / (p (t - 1) + 2), lambda = lam0 sqrt(p (t - 1) + 2).

    p = 1 is Theorem 1; smaller p are those of section 4.2.

    Attributes:
        lam0: lambda_0 > 0, in units of the loss per squared parameter; 0.01 is where to begin, it is tuned.
        participation: p in (0, 1], the chance that a client takes part in a round.

    Raises:
        InvalidInput: lam0 that is not positive, a participation outside (0, 1].

    >>> [float(Convex(0.01).eta(t)) for t in (1, 3)], [float(Convex(0.01, 0.5).eta(t)) for t in (1, 5)]
    ([1.0, 0.5], [1.0, 0.5])
    """

    lam0: Scalar = number(default=0.01, above=0)
    participation: Scalar = number(default=1.0, above=0, at_most=1)

    def _clock(self, t: Scalar) -> Scalar:
        return self.participation * (t - 1) + 2

    def eta(self, t: Scalar) -> Scalar:
        return 2 / self._clock(t)

    def penalty(self, t: Scalar) -> Scalar:
        return self.lam0 * jnp.sqrt(jnp.asarray(self._clock(t)))


@module
class NonConvex(FrankWolfeSteps):
    """Steps for non-convex problems (Theorem 2): eta = T^(-2/3), lambda = lam0 T^(1/3), the same in all rounds.

    With `participation` p section 4.2's form, p T + 1 in place of T (so p = 1 is not the same as none).

    Attributes:
        rounds: T, the rounds of the whole run, at least 1.
        lam0: lambda_0, > 0.
        participation: p in (0, 1], or None when all clients take part.

    Raises:
        InvalidInput: rounds below 1, lam0 that is not positive, a participation outside (0, 1].
    """

    rounds: Scalar = number(at_least=1, name="rounds of NonConvex")
    lam0: Scalar = number(default=0.01, above=0)
    participation: Scalar | None = number(default=None, above=0, at_most=1)

    def _horizon(self) -> Scalar:
        horizon = self.rounds if self.participation is None else self.participation * self.rounds + 1
        return jnp.asarray(horizon, float)

    def eta(self, t: Scalar) -> Scalar:
        return self._horizon() ** (-2 / 3)

    def penalty(self, t: Scalar) -> Scalar:
        return self.lam0 * self._horizon() ** (1 / 3)


@module
class Stochastic(FrankWolfeSteps):
    """Steps for stochastic gradients (Theorem 3), which decrease at fixed rates.

    eta = 9 / (t + 8), lambda = lam0 sqrt(t + 8), rho = 4 / (t + 7)^(2/3).

    The paper defines no form for partial participation; this one is used there as it is.

    Attributes:
        lam0: lambda_0 > 0, in units of the loss per squared parameter; 0.01 is where to begin, it is tuned.

    Raises:
        InvalidInput: lam0 that is not positive.
    """

    lam0: Scalar = number(default=0.01, above=0)

    def eta(self, t: Scalar) -> Scalar:
        return 9 / (t + 8.0)

    def penalty(self, t: Scalar) -> Scalar:
        return self.lam0 * jnp.sqrt(t + 8.0)


@module
class OwnSteps(FrankWolfeSteps):
    """Steps of your choice: numbers, or schedules by round, which count from 0.

    Attributes:
        step: eta, in (0, 1] at every round.
        weight: lambda, > 0.
        averaging: rho, in (0, 1] at every round; 1 uses each stochastic gradient as it is.
        lam0: of FedFWPlus's dual step, > 0.

    Raises:
        InvalidInput: a step or averaging outside (0, 1], at any of the first million rounds tried.
    """

    step: Rate = checked(as_rate)
    weight: Rate = checked(as_rate)
    averaging: Rate = checked(as_rate, default=1.0)
    lam0: Scalar = number(default=0.01, above=0)

    def __post_init__(self) -> None:
        for field in ("step", "averaging"):
            value = getattr(self, field)
            if not isinstance(value, Schedule):
                check_range(field, value, above=0, at_most=1)
                continue
            for round in _TRIED:
                rate = _concrete(value, round)
                if rate is not None and not 0 <= rate <= 1:
                    raise InvalidInput(
                        f"{field} is {rate:g} in round {round + 1}: a Frank-Wolfe step must lie in [0, 1]"
                    )

    def eta(self, t: Scalar) -> Scalar:
        return rate_at(self.step, t - 1)

    def penalty(self, t: Scalar) -> Scalar:
        return rate_at(self.weight, t - 1)

    def rho(self, t: Scalar) -> Scalar:
        return rate_at(self.averaging, t - 1)


STEPS = Registry("steps", {cls.__name__: cls for cls in (Convex, NonConvex, Stochastic)})

_TRIED = (0, 1, 2, 3, 5, 10, 20, 50, 100, 1_000, 10_000, 1_000_000)


def _concrete(schedule: Schedule, round: int) -> float | None:
    """The value of a schedule whose parameters are plain numbers, None inside a program."""
    try:
        return float(schedule(round))
    except TypeError:
        return None


# A constraint set as an intersection of supersets, one for each client (Dadras et al. 2024, section 4.3).


@module
class SplitSets:
    """Supersets D_i of a set D, one for each client, whose intersection is D (Dadras et al. 2024, section 4.3).

    Attributes:
        sets: the different supersets.
        of_client: the number of each client's superset, integers of shape (clients,).

    Raises:
        InvalidInput: sets that are no tuple of sets with a linear minimisation, numbers that name none of them.
    """

    sets: tuple[Any, ...]
    of_client: Any

    def __post_init__(self) -> None:
        instead = "a set, such as L2Ball(10.0)"
        if not isinstance(self.sets, list | tuple):
            raise InvalidInput(
                f"sets = {shown(self.sets)} must be a tuple of sets, such as (L2Ball(1.0), L1Ball(1.0))"
            )
        sets = tuple(require("FedFW with split sets", s, "lmo", instead) for s in self.sets)
        object.__setattr__(self, "sets", sets)
        numbers = as_array("of_client", self.of_client)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or not len(numbers):
            raise InvalidInput("of_client must be one integer for each client")
        if numbers.min() < 0 or numbers.max() >= len(sets):
            raise InvalidInput(
                f"of_client holds numbers {numbers.min()} to {numbers.max()}: there are {len(sets)} sets, "
                f"0 to {len(sets) - 1}"
            )
        object.__setattr__(self, "of_client", numbers.astype(np.int32))


# Federated Frank-Wolfe: constrained problems without projections (Dadras et al. 2024, Algorithm 1).

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

    constraint: Any = converted(converter=with_lmo)
    _: KW_ONLY
    steps: FrankWolfeSteps = Convex()
    split: SplitSets | None = None
    variant: Variant = static(default="plain")
    start: Literal["given", "projected"] = choice("given", "projected", default="given")
    sends: Literal["code", "step"] = choice("code", "step", default="code", later=True)

    def __post_init__(self) -> None:
        if not is_one_of(self.variant, _NAMES):
            raise InvalidInput(f"variant = {self.variant!r} must be one of {', '.join(_NAMES)}")
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
        if self.split is not None and np.shape(self.split.of_client) != (cohort.population,):
            raise InvalidInput(
                f"of_client names the sets of {len(self.split.of_client)} clients: there are {cohort.population}"
            )
        return FedFWBroadcast(server.params, cohort.round, jnp.asarray(cohort.population, jnp.int32))

    def init_client(self, broadcast: FedFWBroadcast) -> FedFWClient:
        # a client's first state: x_i = xbar of the first round, y_i = d_i = 0
        zero = trees.zeros_like(broadcast.params)
        dual = zero if self.variant == "plus" else ()
        mean = zero if self.variant == "stochastic" else ()
        vertex = self.constraint.vertex(zero) if self.constraint.warm and self.split is None else ()
        return FedFWClient(broadcast.params, dual, mean, vertex)

    def train(
        self, broadcast: FedFWBroadcast, client: FedFWClient, oracle: Oracle
    ) -> tuple[FedFWMessage | FedFWChange, FedFWClient]:
        # solve one linear minimisation over the set, and take a step towards its solution
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
        # whether a client's vertex and step are numbers: by an entry of each leaf of x_i where a failure is
        # in all. A loss that is not finite makes the step NaN, a gradient that is not makes the vertex so.
        sets = self.split.sets if self.split else (self.constraint,)
        if self.variant == "stochastic" or self.sends != "code" or not all(s.spreads_nan for s in sets):
            return super().is_finite(message, client)
        return trees.all_finite([x.ravel()[:1] for x in jax.tree.leaves(client.params)])

    def receive(
        self, broadcast: FedFWBroadcast, message: FedFWMessage | FedFWChange, client: FedFWClient
    ) -> tuple[FedFWChange, FedFWClient]:
        # decode s_i - x_i unless it was sent, and the client's next x_i
        if isinstance(message, FedFWChange):
            change = message.params
        else:
            change = trees.sub(self._point(message.vertex, client.params), client.params)
        params = trees.axpy(self.steps.eta(broadcast.round + 1), change, client.params)
        return FedFWChange(change), FedFWClient(params, client.dual, client.mean, client.vertex)

    def update(self, server: FedFWServer, message: FedFWChange, cohort: Cohort) -> FedFWServer:
        # update the mean: xbar + (eta_t / n) sum over S of (s_i - x_i)
        share = self.steps.eta(cohort.round + 1) * cohort.size / cohort.population
        return FedFWServer(trees.axpy(share, message.params, server.params))

    def export(self, server: FedFWServer) -> Params:
        return server.params

    def diagnostics(self) -> tuple[Diagnostic, ...]:
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


# The three federated Frank-Wolfe methods by name (Dadras et al. 2024): `FrankWolfe` in its variants.

Start = Literal["given", "projected"]
Sends = Literal["code", "step"]
_CONVEX, _STOCHASTIC = Convex(), Stochastic()


@by_name("FedFW")
def FedFW(
    constraint: WithLmo,
    *,
    steps: FrankWolfeSteps = _CONVEX,
    start: Start = "given",
    split: SplitSets | None = None,
    sends: Sends = "code",
) -> FrankWolfe:
    """FedFW (Dadras et al. 2024): Frank-Wolfe over a set, with one linear minimisation a round and no projection.

        client i:  g = (1/n) grad f_i(x_i) + lambda_t (x_i - xbar),   s_i = argmin over D of <g, s>
                   x_i <- (1 - eta_t) x_i + eta_t s_i
        server:    xbar <- xbar + (eta_t / n) sum over S of (s_i - x_i)

    Up: the code of s_i (for an l1 ball one integer). Down: xbar (d numbers). Kept: x_i on each client (d), which xbar
    never overwrites. There is no client rate: each round is one step on all of a client's data, whatever the run's
    local steps. The public code overwrites x_i by xbar, which the paper proves wrong; see `FrankWolfe`.

    Args:
        constraint: D, a set of `fedsolve.geometry` with an `lmo`, such as `L1Ball(10.0)`, on every leaf: on
            the whole vector or, with `.on("weight")` and `+`, leaf by leaf.
        steps: eta_t and lambda_t, of `fedsolve.frank_wolfe`: `Convex()` (eta 2 / (t + 1), lambda 0.01 sqrt(t + 1):
            Theorem 1 and the figures' lambda_0), `NonConvex(rounds)`.
        start: begin at the `given` model, which must lie in D, or at its projection on D (`projected`).
        split: `SplitSets`, each client's own superset of D, or None (section 4.3).
        sends: the `code` of s_i, or the `step` s_i - x_i (d numbers), whose sum over the cohort is enough.

    Returns:
        A `frank_wolfe.FrankWolfe` of the `plain` variant.

    Raises:
        InvalidInput: a set without a linear minimisation oracle, steps that are none, an unknown start; when a run
            begins, a leaf of the model without a set, a start outside D.

    Reference: Dadras, Banerjee, Prakhya and Yurtsever, "Federated Frank-Wolfe Algorithm", 2024, Algorithm 1.
    """
    return FrankWolfe(constraint, steps=steps, split=split, variant="plain", start=start, sends=sends)


@by_name("FedFWPlus")
def FedFWPlus(
    constraint: WithLmo,
    *,
    steps: FrankWolfeSteps = _CONVEX,
    start: Start = "given",
    split: SplitSets | None = None,
    sends: Sends = "code",
) -> FrankWolfe:
    """FedFW+ (Dadras et al. 2024): FedFW with a dual variable on each client (an augmented Lagrangian).

        client i:  y_i <- y_i + lambda_0 (x_i - xbar),   g = (1/n) grad f_i(x_i) + lambda_t (x_i - xbar) + y_i
                   s_i = argmin over D of <g, s>,   x_i <- (1 - eta_t) x_i + eta_t s_i
        server:    xbar <- xbar + (eta_t / n) sum over S of (s_i - x_i)

    Up: the code of s_i. Down: xbar (d numbers). Kept: x_i and y_i on each client (2 d); y_i starts at 0.

    Args:
        constraint: D, a set of `fedsolve.geometry` with an `lmo`, such as `L1Ball(10.0)`, on every leaf: on
            the whole vector or, with `.on("weight")` and `+`, leaf by leaf.
        steps: eta_t, lambda_t and lambda_0, of `fedsolve.frank_wolfe`: `Convex()` (lambda_0 0.01, as in the figures).
        start: begin at the `given` model, which must lie in D, or at its projection on D (`projected`).
        split: `SplitSets`, each client's own superset of D, or None (section 4.3).
        sends: the `code` of s_i, or the `step` s_i - x_i (d numbers), whose sum over the cohort is enough.

    Returns:
        A `frank_wolfe.FrankWolfe` of the variant `plus`.

    Raises:
        InvalidInput: a set without a linear minimisation oracle, steps that are none, an unknown start; when a run
            begins, a leaf of the model without a set, a start outside D.

    Reference: Dadras, Banerjee, Prakhya and Yurtsever, "Federated Frank-Wolfe Algorithm", 2024, section 4.4.
    """
    return FrankWolfe(constraint, steps=steps, split=split, variant="plus", start=start, sends=sends)


@by_name("FedFWSto")
def FedFWSto(
    constraint: WithLmo,
    *,
    steps: FrankWolfeSteps = _STOCHASTIC,
    start: Start = "given",
    split: SplitSets | None = None,
    sends: Sends = "code",
) -> FrankWolfe:
    """FedFW-sto (Dadras et al. 2024): FedFW with running means of minibatch gradients.

        client i:  d_i <- (1 - rho_t) d_i + rho_t (1/n) grad f_i(x_i; batch),   g = d_i + lambda_t (x_i - xbar)
                   s_i = argmin over D of <g, s>,   x_i <- (1 - eta_t) x_i + eta_t s_i
        server:    xbar <- xbar + (eta_t / n) sum over S of (s_i - x_i)

    Up: the code of s_i. Down: xbar (d numbers). Kept: x_i and d_i on each client (2 d). One minibatch a round, whatever
    the run's local steps. The paper defines full participation alone; absent clients keep x_i and d_i.

    Args:
        constraint: D, a set of `fedsolve.geometry` with an `lmo`, such as `L1Ball(10.0)`, on every leaf: on
            the whole vector or, with `.on("weight")` and `+`, leaf by leaf.
        steps: eta_t, lambda_t and rho_t, of `fedsolve.frank_wolfe`: `Stochastic()` (Theorem 3; lambda_0 0.01).
        start: begin at the `given` model, which must lie in D, or at its projection on D (`projected`).
        split: `SplitSets`, each client's own superset of D, or None (section 4.3).
        sends: the `code` of s_i, or the `step` s_i - x_i (d numbers), whose sum over the cohort is enough.

    Returns:
        A `frank_wolfe.FrankWolfe` of the `stochastic` variant.

    Raises:
        InvalidInput: a set without a linear minimisation oracle, steps that are none, an unknown start; when a run
            begins, a leaf of the model without a set, a start outside D.

    Reference: Dadras, Banerjee, Prakhya and Yurtsever, "Federated Frank-Wolfe Algorithm", 2024, section 4.1.
    """
    return FrankWolfe(constraint, steps=steps, split=split, variant="stochastic", start=start, sends=sends)
