"""Step schedules of FedFW: the step eta_t, the penalty lambda_t and the averaging rho_t by round t = 1, 2, ...

Theorems and sections are of Dadras, Banerjee, Prakhya and Yurtsever 2024.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import jax.numpy as jnp

from fedsolve.core.building import Registry
from fedsolve.core.errors import InvalidInput, check_range
from fedsolve.core.schedules import Rate, Schedule, as_rate, rate_at
from fedsolve.core.types import Scalar, module


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

    lam0: Scalar = 0.01
    participation: Scalar = 1.0

    def __post_init__(self) -> None:
        check_range("lam0", self.lam0, above=0)
        check_range("participation", self.participation, above=0, at_most=1)

    def _clock(self, t: Scalar) -> Scalar:
        return self.participation * (t - 1) + 2

    def eta(self, t: Scalar) -> Scalar:
        """The step 2 / (p (t - 1) + 2)."""
        return 2 / self._clock(t)

    def penalty(self, t: Scalar) -> Scalar:
        """The weight lam0 sqrt(p (t - 1) + 2)."""
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

    rounds: Scalar
    lam0: Scalar = 0.01
    participation: Scalar | None = None

    def __post_init__(self) -> None:
        check_range("rounds of NonConvex", self.rounds, at_least=1)
        check_range("lam0", self.lam0, above=0)
        check_range("participation", self.participation, above=0, at_most=1, optional=True)

    def _horizon(self) -> Scalar:
        horizon = self.rounds if self.participation is None else self.participation * self.rounds + 1
        return jnp.asarray(horizon, float)

    def eta(self, t: Scalar) -> Scalar:
        """The step T^(-2/3)."""
        return self._horizon() ** (-2 / 3)

    def penalty(self, t: Scalar) -> Scalar:
        """The weight lam0 T^(1/3)."""
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

    lam0: Scalar = 0.01

    def __post_init__(self) -> None:
        check_range("lam0", self.lam0, above=0)

    def eta(self, t: Scalar) -> Scalar:
        """The step 9 / (t + 8)."""
        return 9 / (t + 8.0)

    def penalty(self, t: Scalar) -> Scalar:
        """The weight lam0 sqrt(t + 8)."""
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

    step: Rate
    weight: Rate
    averaging: Rate = 1.0
    lam0: Scalar = 0.01

    def __post_init__(self) -> None:
        for field in ("step", "weight", "averaging"):
            object.__setattr__(self, field, as_rate(field, getattr(self, field)))
        check_range("lam0", self.lam0, above=0)
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
        """The step eta_t."""
        return rate_at(self.step, t - 1)

    def penalty(self, t: Scalar) -> Scalar:
        """The weight lambda_t."""
        return rate_at(self.weight, t - 1)

    def rho(self, t: Scalar) -> Scalar:
        """The weight rho_t."""
        return rate_at(self.averaging, t - 1)


STEPS = Registry("steps", {cls.__name__: cls for cls in (Convex, NonConvex, Stochastic)})
"""Step schedules by name, as a configuration gives them."""

_TRIED = (0, 1, 2, 3, 5, 10, 20, 50, 100, 1_000, 10_000, 1_000_000)


def _concrete(schedule: Schedule, round: int) -> float | None:
    """The value of a schedule whose parameters are plain numbers, None inside a program."""
    try:
        return float(schedule(round))
    except TypeError:
        return None
