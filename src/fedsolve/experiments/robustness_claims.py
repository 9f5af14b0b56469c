"""What papers say of robust reductions, beside the accuracies under attack; verdicts follow from the numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsolve.experiments.robustness_runs import ATTACKS, CLASSES, Found, Plan
from fedsolve.studies.experiment import Claim, Verdict

SENT = ("sign flip", "scaled", "Gaussian")
"""Attacks on what is sent; label flips are honest work on wrong data."""
KEPT, PRICE, HALF = 0.9, 2.0, 0.5
"""A reduction holds if it keeps 90 % of its own accuracy, and costs nothing within 2 points of the mean."""


def means(found: Found, rule: str, reduction: str) -> np.ndarray:
    """Test accuracy in per cent, mean over the seeds, shape (attacks, shares)."""
    return 100 * found[rule, reduction].mean(axis=0)


def worst(found: Found, rule: str, reduction: str, share: int) -> float:
    """The least accuracy (%) at a share (its place) over the attacks on what is sent."""
    return float(min(means(found, rule, reduction)[list(ATTACKS).index(a), share] for a in SENT))


def honest(found: Found, rule: str, reduction: str) -> float:
    """The accuracy (%) without attackers."""
    return float(means(found, rule, reduction)[0, 0])


def by_count(held: int, of: int) -> Verdict:
    """All reproduce, some partly."""
    return "reproduced" if held == of else "partly" if held else "not reproduced"


def claims(plan: Plan, found: Found) -> list[Claim]:
    """The mean's failure, each reduction's robustness, their price, and two answers without a paper."""
    made = [mean_fails(plan, found)]
    made += [holds(plan, found, r, THEIRS[r]) for r in plan.reductions if r in THEIRS]
    if "geometric median" in plan.reductions:
        made.append(price(plan, found))
    return [*made, prices(plan, found), label_flips(plan, found), rules(plan, found)]


THEIRS = {
    "median": "statistical rates for any share of attackers below 1/2 (Yin et al. 2018)",
    "trimmed mean": "statistical rates if the share cut is at least that of attackers (Yin et al. 2018)",
    "geometric median": "a breakdown point of 1/2 (Pillutla et al. 2022)",
    "Krum": "resilient to f of n clients where 2f + 2 < n (Blanchard et al. 2017)",
    "multi-Krum": "resilient as Krum (Blanchard et al. 2017)",
}


def mean_fails(plan: Plan, found: Found) -> Claim:
    """The mean at the smallest share of attackers."""
    rows = [(r, honest(found, r, "mean"), worst(found, r, "mean", 1)) for r in plan.rules]
    lost = [r for r, before, after in rows if after < HALF * before]
    return Claim(
        "A few attackers are enough against a mean",
        "no linear combination of messages tolerates a single Byzantine one (Blanchard et al. 2017)",
        f"{100 * plan.shares[1]:.0f} % of clients attack, worst of {', '.join(SENT)}: "
        + "; ".join(f"{r} {before:.0f} to {after:.0f} %" for r, before, after in rows),
        by_count(len(lost), len(rows)),
        "all rules that lose half of their accuracy reproduce, some partly",
    )


def holds(plan: Plan, found: Found, reduction: str, theirs: str) -> Claim:
    """Up to which share a reduction keeps its accuracy under every attack on what is sent."""
    most, words = [], []
    for rule in plan.rules:
        before = honest(found, rule, reduction)
        kept = [worst(found, rule, reduction, s) >= KEPT * before for s in range(len(plan.shares))]
        most.append(len(kept) if all(kept) else kept.index(False))
        share = 100 * plan.shares[most[-1] - 1] if most[-1] else 0
        last = worst(found, rule, reduction, -1)
        words.append(
            f"{rule} up to {share:.0f} % ({before:.0f} % without, {last:.0f} % at the largest share)"
        )
    verdict: Verdict = (
        "reproduced"
        if min(most) == len(plan.shares)
        else "partly"
        if max(most) > len(plan.shares) // 2
        else "not reproduced"
    )
    return Claim(
        f"{reduction[0].upper()}{reduction[1:]} holds against fewer than half of the clients",
        theirs,
        f"keeps {100 * KEPT:.0f} % of its accuracy under {', '.join(SENT)}: " + "; ".join(words),
        verdict,
        f"reproduced if at {100 * plan.shares[-1]:.0f} % with every rule, partly if one rule holds at half of the "
        "shares; clients differ here, where the theorems want them alike",
    )


def price(plan: Plan, found: Found) -> Claim:
    """What the geometric median costs without attackers."""
    gaps = {r: loss_of(found, r, "geometric median") for r in plan.rules}
    return Claim(
        "The geometric median costs nothing among honest clients",
        "competitive with the mean at little corruption (Pillutla et al. 2022)",
        "; ".join(f"{r} {gap:+.1f} points against the mean" for r, gap in gaps.items()),
        by_count(sum(gap >= -PRICE for gap in gaps.values()), len(gaps)),
        f"within {PRICE:.0f} points counts as nothing; reproduced if with every rule",
    )


def prices(plan: Plan, found: Found) -> Claim:
    """What every reduction costs without attackers."""
    words = [
        f"{reduction} " + ", ".join(f"{loss_of(found, rule, reduction):+.1f}" for rule in plan.rules)
        for reduction in plan.reductions
        if reduction != "mean"
    ]
    return Claim(
        "What each reduction costs among honest clients",
        "not of one paper",
        f"points of test accuracy against the mean, {', '.join(plan.rules)}: " + "; ".join(words),
        "not comparable",
        "told to expect 40 % of attackers, trimmed mean, Krum and multi-Krum leave out honest clients",
    )


def loss_of(found: Found, rule: str, reduction: str) -> float:
    """Accuracy without attackers against that of the mean, in points."""
    return honest(found, rule, reduction) - honest(found, rule, "mean")


def label_flips(plan: Plan, found: Found) -> Claim:
    """Who keeps most under label flips, where attackers look like clients."""
    place = list(ATTACKS).index("label flip")
    words = []
    for rule in plan.rules:
        last = {r: float(means(found, rule, r)[place, -1]) for r in plan.reductions}
        best = max(last, key=last.__getitem__)
        words.append(f"{rule} {best} {last[best]:.0f} % (mean {last['mean']:.0f} %)")
    return Claim(
        f"Label flips by {100 * plan.shares[-1]:.0f} % of the clients: what keeps most",
        "not of one paper",
        "; ".join(words) + f"; guessing is {100 / CLASSES:.0f} %",
        "not comparable",
    )


def rules(plan: Plan, found: Found) -> Claim:
    """Which reduction each server optimiser does best with, over all attacks at the largest share but two."""
    share = min(2, len(plan.shares) - 1)
    words = []
    for rule in plan.rules:
        least = {r: float(means(found, rule, r)[:, share].min()) for r in plan.reductions}
        words.append(f"{rule}: " + ", ".join(f"{r} {v:.0f} %" for r, v in ordered(least)[:3]))
    return Claim(
        f"What to take against {100 * plan.shares[share]:.0f} % of attackers of any of these kinds",
        "not of one paper",
        "least accuracy over all four attacks, the best three: " + "; ".join(words),
        "not comparable",
    )


def ordered(values: dict[str, float]) -> Sequence[tuple[str, float]]:
    """Largest first."""
    return sorted(values.items(), key=lambda item: -item[1])
