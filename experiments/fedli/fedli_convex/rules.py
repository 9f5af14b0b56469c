"""Rules of `fedli-convex`: a bound holds or has a counter-example; a rate lasts or not; what a search costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from experiments.fedli.fedli_convex import theorems
from experiments.fedli.fedli_convex.problems import L2, STEPS, smoothness
from experiments.margins import margin
from fedsolve.studies import Cells, Decision
from fedsolve.studies.experiment import Verdict
from fedsolve.studies.rules import beyond, decided, elsewhere, interval, intervals, rule

LASTING, ADAPTING = (margin("fedli-convex", name) for name in ("lasting", "adapting"))
ROUNDING = 1e-10
"""Of float64 and of w*, whose gradient is not quite 0: less is no rise and no distance."""


def _bound(violated: bool) -> Verdict:
    return "refuted" if violated else "consistent"


@rule
def descends(cells: Cells, problems: Sequence[str], methods: Sequence[str]) -> Decision:
    """F rises in no round of no data set: a single rise, where nothing is drawn, is a counter-example."""
    words, total = [], 0
    for method in methods:
        rises = {p: np.diff(cells.curve(p, method, metric="suboptimality")[1]) for p in problems}
        count = sum(int((r > ROUNDING).sum()) for r in rises.values())
        total += count
        most = max(rises, key=lambda p: rises[p].max())
        words.append(
            f"{method}: F rises in {count} of {sum(r.size for r in rises.values())} rounds"
            + (f", by up to {rises[most].max():.2g} ({most})" if count else "")
        )
    reason = (
        f"refuted by one rise of more than {ROUNDING:g}, full batches, all clients, server step 1, float64"
    )
    return Decision("; ".join(words), _bound(total > 0), reason)


@rule
def theorem_1(cells: Cells, problems: Sequence[str], method: str, dataset: Callable[[str], str]) -> Decision:
    """The mean of F - F* over the rounds, which is at least F at the mean iterate less F*, is within (15)."""
    shares = {}
    for p in problems:
        rounds, gaps = cells.curve(p, method, metric="suboptimality")
        _, squares = cells.curve(p, method, metric="squared_distance")
        means = np.cumsum(gaps[:, :-1], axis=1) / rounds[1:]  # of w_0 to w_{T-1}
        bound = theorems.sublinear(smoothness(dataset(p)), STEPS, 1, 1.0) * squares[:, :1] / rounds[1:]
        shares[p] = float((means / bound).max())
    most = max(shares, key=lambda p: shares[p])
    ours = f"the mean of F - F* is at most {shares[most]:.2g} of the bound, in any round of any data set ({most})"
    reason = "R, K and the condition on c computed with L and eta_max of the run"
    return Decision(ours, _bound(shares[most] > 1), reason)


@rule
def theorem_2(cells: Cells, problems: Sequence[str], method: str, dataset: Callable[[str], str]) -> Decision:
    """|w_T - w*|^2 is within (16) in every round; begun at w* the bound is 0."""
    worst, violated = [], False
    for p in problems:
        rounds, squares = cells.curve(p, method, metric="squared_distance")
        bound = theorems.linear(smoothness(dataset(p)), STEPS, L2, squares[:, :1], rounds)
        over = squares - bound
        broken = over > ROUNDING
        violated |= bool(broken[:, 1:].any())
        at = np.unravel_index(np.argmax(over[:, 1:]), over[:, 1:].shape)
        seed, t = int(at[0]), int(at[1]) + 1
        worst.append(f"{p}: {squares[seed, t]:.2g} and {bound[seed, t]:.2g} after {rounds[t]}")
    ours = (
        "|w_T - w*|^2 and the bound in the round where it is nearest to it or furthest above: "
        + "; ".join(worst)
    )
    return Decision(ours, _bound(violated), f"refuted by one that is larger by more than {ROUNDING:g}")


@rule
def lasts(cells: Cells, problems: Sequence[str], method: str) -> Decision:
    """log10 of F - F* falls in the second half of the rounds by half as much as in the first, and half a decade."""
    words, apart = [], {}
    for p in problems:
        rounds, gaps = cells.curve(p, method, metric="suboptimality")
        logs, last = np.log10(np.maximum(gaps, 1e-16)), cells.problem(p).last
        middle, end = (
            logs[:, (rounds > at - last) & (rounds <= at)].mean(axis=1) for at in (rounds[-1] / 2, rounds[-1])
        )
        first, second = logs[:, 0] - middle, middle - end
        apart[p] = second - LASTING * np.maximum(first, 1.0)
        words.append(f"{p} {first.mean():.2f} and {interval(second, len(problems)):.2f}")
    ours = f"decades that F - F* falls in the halves of the rounds: {'; '.join(words)}"
    held, where = beyond(intervals(apart).items(), 0.0)
    reason = (
        "it lasts where the second half brings at least half of the first, and half a decade, by the 95 % "
    )
    reason += f"intervals together; means over {cells.problem(problems[0]).last} rounds{where}"
    return Decision(ours, held, reason)


@rule
def searches(cells: Cells, problems: Sequence[str], methods: Sequence[str]) -> Decision:
    """Loss evaluations a local step."""
    shown = []
    for method in methods:
        trials = [cells.curve(p, method, metric="loss_evaluations")[1][:, 1:] / STEPS for p in problems]
        shown.append(f"{method} {np.mean(trials):.2f}, at most {np.max(trials):.2f}")
    ours = f"loss evaluations a local step, beside its gradient: {'; '.join(shown)}"
    return Decision(ours, "not the paper's problem", "there is no figure to compare with")


@rule
def adapts(cells: Cells, problems: Sequence[str], method: str) -> Decision:
    """gamma is below 1 in at least half of the rounds; the verdict is shown at a tenth and at nine tenths too."""
    gammas = np.stack([cells.curve(p, method, metric="gamma")[1][:, 1:] for p in problems])
    shares = (gammas < 1).mean(axis=(0, 2))
    found = interval(shares)
    given: dict[float, Verdict] = {bar: decided(found, bar) for bar in (0.1, ADAPTING, 0.9)}
    ours = f"gamma < 1 in a share of {found:.2f} of {gammas.size} rounds, least {gammas.min():.3g}"
    reason = "in at least half of the rounds, by the 95 % interval over data sets"
    return Decision(ours, given[ADAPTING], f"{reason}; {elsewhere(given, ADAPTING)}")


def remark_2(cells: Cells) -> Decision:
    """Its numbers, computed."""
    steps, met, after = theorems.remark_2()
    holds = all(met) and after > 1
    ours = (
        f"steps {steps[0]:.4f} and {steps[1]:g} from 1 meet Armijo's condition with c = 0.1; x^3 at the average is "
        f"{after:.4f}, before 1"
    )
    why = "computed; a search from one eta_max for both clients would not end at these two steps"
    return Decision(ours, "reproduced" if holds else "not reproduced", why)


def lemma_2(cells: Cells) -> Decision:
    """The stated lower bound on an accepted step, on a parabola."""
    c, beta, smooth, eta_max = 0.1, 0.9, 1.0, 1.9
    step, stated = theorems.searched(eta_max, c, beta, smooth), min(2 * (1 - c) / smooth, eta_max)
    ours = f"f = x^2 / 2 (L = 1), eta_max {eta_max:g}, c {c:g}, beta {beta:g}: {step:.3g} is accepted"
    ours += f", the bound is {stated:.3g}"
    return Decision(
        ours, _bound(step < stated), "computed; times beta, for the last factor of the search, it holds"
    )


def condition(cells: Cells) -> Decision:
    """Whether any constants meet the theorems' condition with a tenth of the clients."""
    met = any(
        theorems.condition(c, eta, 1.0, 0.1, STEPS) for c in (0.5, 0.9, 1.0) for eta in (1e-9, 1e-3, 0.1)
    )
    ours = "with S/N = 0.1 its term eta_g / (2 S/N) alone is 5, and c is at most 1: " + (
        "some constants meet it" if met else "no constants meet it; it needs S/N > 1/2"
    )
    return Decision(ours, "reproduced" if met else "not reproduced", "computed from the condition as printed")
