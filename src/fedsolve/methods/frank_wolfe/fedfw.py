"""The three federated Frank-Wolfe methods by name (Dadras et al. 2024): `FrankWolfe` in its variants."""

from __future__ import annotations

from typing import Literal

from fedsolve.core.building import by_name
from fedsolve.geometry.regularizer import WithLmo
from fedsolve.methods.frank_wolfe.method import FrankWolfe
from fedsolve.methods.frank_wolfe.split_sets import SplitSets
from fedsolve.methods.frank_wolfe.steps import Convex, FrankWolfeSteps, Stochastic

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
