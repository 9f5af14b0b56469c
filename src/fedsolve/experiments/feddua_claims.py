"""What the FedDuA paper says of the synthetic problem and of sensitivity, and verdicts by rule."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedsolve.experiments.feddua_methods import METHODS, OURS, family
from fedsolve.results.sweep import Sweep
from fedsolve.studies.experiment import Claim, Verdict

FLAT = 2.0
"""A method whose best-over-the-grid loss varies by less than this factor is called insensitive."""
TOLERANCE = 1.05


def geometric(values: np.ndarray) -> float:
    """The geometric mean over data sets, which decides between losses that are decades apart."""
    with np.errstate(divide="ignore"):
        return float(np.exp(np.log(values).mean()))


def first_to(rounds: np.ndarray, losses: np.ndarray, target: float) -> float:
    """The first evaluated round from which the mean over data sets stays at or below a target; infinite if none.

    >>> first_to(np.array([0, 2, 4, 6]), np.array([[4.0, 1.0, 3.0, 0.5]]), 1.0)
    6.0
    """
    above = np.flatnonzero(~(losses.mean(axis=0) <= target))
    place = above[-1] + 1 if len(above) else 0
    return float(rounds[place]) if place < len(rounds) else float("inf")


def claim_final(momentum: bool, finals: Mapping[str, np.ndarray]) -> Claim:
    """FedDuA below its panel's baselines at the end: on every data set, or only on (geometric) average."""
    *others, ours = [name for name in family(momentum) if name in finals]
    margins = np.array([finals[name] / finals[ours] for name in others])
    mean = {name: geometric(finals[name]) for name in (*others, ours)}
    verdict: Verdict = (
        "reproduced" if (margins > 1).all()
        else "partly" if mean[ours] < min(mean[n] for n in others) else "not reproduced"
    )  # fmt: skip
    shown = ", ".join(f"{name} {value:.2g}" for name, value in sorted(mean.items(), key=lambda m: m[1]))
    panel = "lower panel, with" if momentum else "upper panel, without"
    return Claim(
        f"{ours} outperforms the baselines of its panel on the synthetic problem",
        f"Figure 1, {panel} server momentum: the lowest curve (no numbers given)",
        f"training loss at the end, geometric mean over {len(finals[ours])} data sets: {shown}",
        verdict,
        "reproduced if it is below every baseline on every data set, partly if in the geometric mean",
    )


def claim_speed(
    rounds: np.ndarray, losses: Mapping[str, np.ndarray], targets: tuple[float, ...] = (1.0, 1e-1, 1e-2, 1e-3)
) -> Claim:
    """FedDuA the first of its panel to a target: at all targets that anyone reaches, or at more than half."""
    wins, cells, shown = 0, 0, []
    for target in targets:
        at = {name: first_to(rounds, curves, target) for name, curves in losses.items()}
        for momentum in (False, True):
            members = [name for name in family(momentum) if name in at]
            if not members or min(at[n] for n in members) == np.inf:
                continue
            cells += 1
            wins += at[members[-1]] < min(at[n] for n in members[:-1])
        if min(at.values()) < np.inf:
            text = ", ".join(f"{n} {r:g}" if r < np.inf else f"{n} never" for n, r in at.items())
            shown.append(f"{target:g}: {text}")
    verdict: Verdict = (
        "reproduced" if cells and wins == cells else "partly" if 2 * wins > cells else "not reproduced"
    )
    return Claim(
        "FedDuA converges faster than the other methods in terms of training loss",
        "Figure 8 (no numbers given)",
        f"first in {wins} of {cells} cells (panel and target); rounds until the mean loss stays at a target: "
        + "; ".join(shown),
        verdict,
        "reproduced if first in all cells that any method of the panel reaches, partly in more than half",
    )


def spread(best: np.ndarray) -> float:
    """The largest over the smallest best-over-the-grid loss; infinite if a value has none.

    >>> spread(np.array([1.0, 3.0, 2.0]))
    3.0
    """
    return float(best.max() / best.min()) if np.isfinite(best).all() else float("inf")


def claim_flat(spreads: Mapping[str, float], grid: str) -> Claim:
    """FedDuA varies little over the paper's grid of epsilon_g."""
    flat = [spreads[name] <= FLAT for name in OURS if name in spreads]
    return Claim(
        "The performance of FedDuA is not sensitive to epsilon_g",
        "Figure 2, accuracies on real data (no numbers given)",
        f"worst over best loss along {grid}, client rate tuned at each value: "
        + ", ".join(f"{name} {value:.3g}" for name, value in spreads.items()),
        _all_or_some(flat),
        f"reproduced if both FedDuA methods vary by a factor of at most {FLAT:g}, partly if one does",
    )


def claim_less_sensitive(eps_g: Mapping[str, float], server_lr: Mapping[str, float], grids: str) -> Claim:
    """Along its own grid FedDuA varies less than FedOpt of the same preconditioner along its own."""
    pairs = [(du, opt) for du, opt in zip(OURS, ("FedAdagrad", "FedAdam"), strict=True) if du in eps_g]
    less = [eps_g[du] < server_lr[opt] for du, opt in pairs]
    return Claim(
        "FedOpt needs careful tuning of eta_g, FedDuA no tuning of epsilon_g",
        "Figure 2, accuracies on real data (no numbers given)",
        f"worst over best loss along {grids}: "
        + ", ".join(f"{du} {eps_g[du]:.3g}, {opt} {server_lr[opt]:.3g}" for du, opt in pairs),
        _all_or_some(less),
        "reproduced if both FedDuA methods vary less than their FedOpt counterparts, partly if one does",
    )


def claim_zero(at_zero: Mapping[str, float], best: Mapping[str, float], limit: float = 1.1) -> Claim:
    """epsilon_g = 0 within a tenth of the best epsilon_g."""
    good = [at_zero[name] <= limit * best[name] for name in OURS if name in at_zero]
    return Claim(
        "epsilon_g = 0 is sufficient: FedDuA is free of hyper-parameters but the client rate",
        "Figure 2 and text (no numbers given)",
        "loss at epsilon_g = 0 and at the best positive epsilon_g: "
        + ", ".join(f"{name} {at_zero[name]:.3g} and {best[name]:.3g}" for name in at_zero),
        _all_or_some(good),
        "reproduced if for both the loss at 0 is at most 1.1 times the best, partly if for one",
    )


def claim_eps(best: Mapping[str, np.ndarray], at_zero: Mapping[str, float], eps: tuple[float, ...]) -> Claim:
    """epsilon = 0 as good as the smallest, and no larger one better: the loss only grows with epsilon."""
    grows, zero, shown = [], [], []
    for name, losses in best.items():
        grows.append(bool((losses[1:] >= losses[:-1] / TOLERANCE).all()) and losses[-1] > losses[0])
        zero.append(at_zero[name] <= TOLERANCE * losses[0])
        values = ", ".join(f"{e:g}: {x:.3g}" for e, x in zip(eps, losses, strict=True))
        shown.append(f"{name} 0: {at_zero[name]:.3g}, {values}")
    good = [*grows, *zero]
    verdict: Verdict = "reproduced" if all(good) else "partly" if any(good) else "not reproduced"
    return Claim(
        "FedDuA works with epsilon = 0, and increasing epsilon degrades it gradually",
        "Figure 2, right, and text (no numbers given)",
        f"loss by epsilon, client rate tuned at each value: {'; '.join(shown)}",
        verdict,
        "reproduced if the loss never falls by more than 5 % as epsilon grows, ends above where it began, and "
        "epsilon = 0 is within 5 % of the smallest; partly if for one method or one of the two",
    )


def claim_rates(curves: Mapping[str, np.ndarray]) -> Claim:
    """The range of the global learning rate: Figure 7 has no claim in words."""
    shown = ", ".join(
        f"{name} {geometric(rates):.3g} ({rates.min():.2g} to {rates.max():.2g})"
        for name, rates in curves.items()
        if (rates > 0).all() and METHODS[name].averaged
    )
    return Claim(
        "Global learning rates by round",
        "Figure 7, on real data; no claim in words",
        f"geometric mean over rounds and data sets (smallest to largest): {shown}",
        "not comparable",
        "shown for the reader: nothing is claimed",
    )


def best_along(sweep: Sweep, axis: str, least: float = 0.0, most: float = np.inf) -> np.ndarray:
    """The best score over all other axes at the values of an axis within limits."""
    inside = [least * 0.99 <= v <= most * 1.01 for v in sweep.grid[axis]]
    return sweep.best_over_grid(axis)[np.array(inside)]


def _all_or_some(facts: list[bool]) -> Verdict:
    return "reproduced" if facts and all(facts) else "partly" if any(facts) else "not reproduced"
