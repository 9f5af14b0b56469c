"""Rules that decide a statement: by paired intervals over seeds, not a threshold; each says its numbers in words."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec

import numpy as np

from fedsolve.results.intervals import FEW, Interval, interval
from fedsolve.results.metrics import describe
from fedsolve.studies.cells import Cells, SettingKind, alike, around, beyond, chance, decided, elsewhere
from fedsolve.studies.experiment import Verdict
from fedsolve.studies.study import Decision

# By how much a method is better than another over the same seeds, and what that decides of several claimed at once.


@dataclass(frozen=True)
class Difference:
    """By how much `a` is better than `b`, over the same seeds.

    Attributes:
        a, b: the methods.
        mean: of the differences, positive if `a` is better, in the unit that is shown.
        low, high: the interval (Student's t, paired by seed); infinite where a seed diverged.
        chance: half the width of one for what the draw of the test examples does to it, at most; 0 where unknown.
        collapsed: seeds that are left out, since one of the two collapsed.
    """

    a: str
    b: str
    mean: float
    low: float
    high: float
    chance: float = 0.0
    collapsed: int = 0

    @property
    def wide(self) -> Difference:
        """With the chance of the test examples, which is independent of that of the seeds, in its interval."""
        if not self.chance:
            return self
        ends = self.mean - self.low, self.high - self.mean
        below, above = (float(np.hypot(end, self.chance)) for end in ends)
        return replace(self, low=self.mean - below, high=self.mean + above, chance=0.0)

    @property
    def words(self) -> str:
        """Such as 'FedAdam over FedAvg +3.1 [1.2, 5.0]'."""
        if not np.isfinite(self.mean):
            return f"{self.b if self.mean > 0 else self.a} diverged against {self.a if self.mean > 0 else self.b}"
        beside = (
            f", with the test set's chance [{self.wide.low:.3g}, {self.wide.high:.3g}]" if self.chance else ""
        )
        seeds = f"{self.collapsed} seed{'s' if self.collapsed > 1 else ''}"
        without = f" without {seeds} that collapsed" if self.collapsed else ""
        return f"{self.a} over {self.b} {Interval(self.mean, self.low, self.high):+.3g}{without}{beside}"


def difference(
    cells: Cells, problem: str, a: str, b: str, which: SettingKind = "tuned", comparisons: int = 1
) -> Difference:
    """How much better `a` is than `b` at the end, with an interval that is one of several which share the 5 %."""
    # A method of which a seed diverged is infinitely worse; of two that diverged neither is better. Seeds on which
    # either collapsed are left out, and counted. Seeds that change neither method (all clients, whole batches, one
    # start) are one observation; data sets are always several.
    metric = describe(cells.problem(problem).metric)
    sign = metric.scale * (1 if metric.higher_is_better else -1)
    ends = [cells.final(problem, name, which) for name in (a, b)]
    ours, theirs = (sign * end for end in ends)
    lost_a, lost_b = (not np.isfinite(values).all() for values in (ours, theirs))
    if lost_a or lost_b:
        mean = np.inf * (int(lost_b) - int(lost_a)) if lost_a != lost_b else 0.0
        return Difference(a, b, mean, mean if mean else -np.inf, mean if mean else np.inf)
    out = cells.collapsed(problem, a, which) | cells.collapsed(problem, b, which)
    ours, theirs, ends = ours[~out], theirs[~out], [end[~out] for end in ends]
    same = np.ptp(ours) == np.ptp(theirs) == 0 and not cells.problem(problem).data_by_seed
    of_mean = cells.interval(problem, (ours - theirs)[: 1 if same else None], comparisons)
    tested = cells.problem(problem).tested
    drawn = chance([end.mean() for end in ends], tested, comparisons * cells.sharing) if tested else 0.0
    return Difference(a, b, *of_mean, metric.scale * drawn, int(out.sum()))


def grade(differences: Sequence[Difference], not_learnt: Collection[str] = ()) -> tuple[Verdict, str]:
    """The verdict on differences that are all claimed to be positive, and in which it holds if in some."""
    one = len({d.a for d in differences}) == 1
    named = [(d.b if one else f"{d.a} over {d.b}", d) for d in differences]
    void = [name for name, d in named if {d.a, d.b} <= set(not_learnt)]
    if len(void) == len(named):
        return "not learnt", ""
    learnt = ((name, d) for name, d in named if not {d.a, d.b} <= set(not_learnt))
    verdict, which = beyond([(name, Interval(d.mean, d.low, d.high)) for name, d in learnt], 0.0)
    if not void:
        return verdict, which
    why = f"{which}; neither has learnt in {', '.join(void)}"
    return "partly" if verdict == "reproduced" else verdict, why


def may_change(differences: Iterable[Difference]) -> tuple[str, ...]:
    """The methods whose better setting, outside the grid, could change a verdict on these differences."""
    # A better setting of the method that is ahead makes a decided difference larger: only the other one's may change
    # it.
    names: list[str] = []
    for d in differences:
        names += [name for name, ahead in ((d.a, d.low > 0), (d.b, d.high < 0)) if not ahead]
    return tuple(dict.fromkeys(names))


# Whether methods have learnt: a comparison of two that have not says nothing of either.

TRAINING_LOSS = "train_loss"
KNOWN = "a known solution"
"""The note of a record that no run made, but a solution whose numbers stand in every evaluation of others."""


def not_learnt(
    cells: Cells, problem: str, names: Iterable[str], which: SettingKind = "tuned"
) -> tuple[str, ...]:
    """Those of the methods that have not learnt, each once."""
    # A method has learnt if its training loss is lower at the end than before the first round, by the 95 % interval
    # over the seeds; and a metric of the test data, where the problem compares one, better than before and than
    # `Problem.chance`. A method that lost a seed has not; one marked `KNOWN` is not asked.
    return tuple(name for name in dict.fromkeys(names) if not _has_learnt(cells, problem, name, which))


def no_better(cells: Cells, problem: str, names: Iterable[str]) -> str:
    """In words, that methods of a problem have not learnt."""
    asked = cells.problem(problem)
    bar = f" or than the best constant prediction, {describe(asked.metric).scale * asked.chance:.3g}"
    by = "training loss or test metric" if asked.metric.startswith("test_") else "training loss"
    return f"{' and '.join(names)} ended no better by {by} than at the start{bar if asked.chance else ''}"


def _has_learnt(cells: Cells, problem: str, method: str, which: SettingKind) -> bool:
    run, asked = cells.cell(problem, method).of(which), cells.problem(problem)
    if run is None:
        return False
    if KNOWN in run.notes:
        return True
    metrics = [TRAINING_LOSS, *([asked.metric] if asked.metric.startswith("test_") else [])]
    gains = []  # by how much each seed's metric is better at the end than before the first round
    for metric in filter(run.metrics.__contains__, metrics):
        start = cells.curve(problem, method, which, metric)[1][:, 0]
        gains.append(_better_by(metric, cells.final(problem, method, which, metric), start))
    if asked.chance and asked.metric in metrics:
        gains.append(_better_by(asked.metric, cells.final(problem, method, which), asked.chance))
    return all(_is_positive(cells, problem, gain) for gain in gains)


def _better_by(metric: str, ours: np.ndarray, other: np.ndarray | float) -> np.ndarray:
    return (ours - other) if describe(metric).higher_is_better else (other - ours)


def _is_positive(cells: Cells, problem: str, gain: np.ndarray) -> bool:
    if not np.isfinite(gain).all():
        return False
    if np.ptp(gain) == 0:  # one seed, or seeds that change nothing
        return bool(gain[0] > 0)
    return cells.interval(problem, gain).low > 0


Rule = Callable[[Cells], Decision]
P = ParamSpec("P")


def rule(decide: Callable[Concatenate[Cells, P], Decision]) -> Callable[P, Rule]:
    """A function of the cells and of what it compares, as what makes rules: of what it compares alone."""
    # Such as `better(problem, a, b)`, which returns a function of the cells.
    signature = inspect.signature(decide)
    cells, *compared = signature.parameters.values()

    @wraps(decide)
    def make(*args: P.args, **kwargs: P.kwargs) -> Rule:
        signature.bind(cells, *args, **kwargs)  # what is missing raises before anything runs
        return lambda found: decide(found, *args, **kwargs)

    vars(make)["__signature__"] = signature.replace(parameters=compared, return_annotation=Rule)
    return make


def better(problem: str, a: str, b: str, which: SettingKind = "tuned") -> Rule:
    """`a` is better than `b`."""
    return better_than_all(problem, a, (b,), which)


def better_than_all(problem: str, a: str, others: Sequence[str], which: SettingKind = "tuned") -> Rule:
    """`a` is better than each of the others: partly, with which, if it is better than some."""
    return each_better(problem, [(a, b) for b in others], which)


@rule
def each_better(
    cells: Cells, problem: str, pairs: Sequence[tuple[str, str]], which: SettingKind = "tuned"
) -> Decision:
    """In every pair the first is better than the second."""
    differences = [difference(cells, problem, a, b, which, len(pairs)) for a, b in pairs]
    return all_positive(cells, problem, which, differences, [name for pair in pairs for name in pair])


def close(problem: str, a: str, b: str, margin: float, which: SettingKind = "tuned") -> Rule:
    """`a` and `b` differ by at most `margin`, in the unit that is shown: the whole interval lies within it."""
    words = "within {} of one another"
    return _by_margin(problem, (a, b), margin, which, lambda d, m: alike(d.low, d.high, m), words, (a, b))


def at_least_as_good(problem: str, a: str, b: str, margin: float, which: SettingKind = "tuned") -> Rule:
    """`a` is better than `b`, or worse by less than `margin` in the unit that is shown."""
    words = "better, or worse by less than {}"
    return _by_margin(
        problem, (a, b), margin, which, lambda d, m: decided(Interval(d.mean, d.low, d.high), -m), words, (b,)
    )


@rule
def _by_margin(
    cells: Cells,
    problem: str,
    pair: tuple[str, str],
    margin: float,
    which: SettingKind,
    graded: Callable[[Difference, float], Verdict],
    what: str,
    at_risk: tuple[str, ...],
) -> Decision:
    """The verdict of `graded`.

    Where it holds, a better setting of those `at_risk` could change it; where the contrary does, one of the method that
    is behind; where nothing is decided, one of either.
    """
    one = difference(cells, problem, *pair, which)
    given: dict[float, Verdict] = {bar: graded(one, bar) for bar in around(margin)}
    ours = f"{_ends(cells, problem, pair, which)}; {one.words} ({elsewhere(given, margin)})"
    void = not_learnt(cells, problem, pair, which)
    if len(void) == 2 or (void and given[margin] == "reproduced"):
        weak = provisional(cells, problem, which, void)
        return Decision(ours, "not learnt", no_better(cells, problem, void), weak)
    metric = describe(cells.problem(problem).metric)
    unit = "points" if metric.unit == "%" else metric.unit or "in value"
    within = f"{margin:g} {'point' if (margin, unit) == (1, 'points') else unit}"
    reason = f"{what.format(within)}, by the whole 95 % interval over {cells.problem(problem).paired}"
    could = {"reproduced": at_risk, "not reproduced": may_change([one])}.get(given[margin], pair)
    weak = provisional(cells, problem, which, could, one.collapsed)
    reason = also(reason, with_chance(given[margin], graded(one.wide, margin)))
    return Decision(ours, given[margin], reason, weak)


@rule
def together(cells: Cells, *rules: Rule) -> Decision:
    """All of several rules: partly if some hold, not reproduced if none does and one is contradicted.

    They share the 5 %, as several comparisons in one rule do.
    """
    shared = replace(cells, sharing=cells.sharing * len(rules))
    decisions = [one(shared) for one in rules]
    verdicts: set[Verdict] = {one.verdict for one in decisions}
    reason = "; ".join(dict.fromkeys(one.reason for one in decisions))
    weak = "; ".join(dict.fromkeys(one.provisional for one in decisions if one.provisional))
    reason += f"; these {len(rules)} share the 5 %" if len(rules) > 1 else ""
    ours = [one.ours if len(verdicts) == 1 else f"{one.verdict}: {one.ours}" for one in decisions]
    return Decision("; ".join(ours), mixed(verdicts), reason, weak)


def mixed(verdicts: Collection[Verdict]) -> Verdict:
    """Of several that are claimed together: one where all are alike, partly where some hold."""
    if len(set(verdicts)) == 1:
        return next(iter(verdicts))
    if "reproduced" in verdicts or "partly" in verdicts:
        return "partly"
    return "not reproduced" if "not reproduced" in verdicts else "underpowered"


def all_positive(
    cells: Cells, problem: str, which: SettingKind, differences: Sequence[Difference], names: Sequence[str]
) -> Decision:
    """The verdict on differences that are all claimed to be positive, of methods `names` at a kind of setting."""
    void = not_learnt(cells, problem, names, which)
    verdict, which_hold = grade(differences, void)
    if verdict in ("reproduced", "partly") and any(
        cells.collapsed(problem, d.a, which).any() for d in differences
    ):
        verdict, which_hold = "partly", f"{which_hold or ': it holds'} on the seeds that did not collapse"
    reason = f"95 % intervals over {cells.problem(problem).paired}{which_hold}"
    words = "; ".join(d.words for d in differences)
    ends = _ends(cells, problem, dict.fromkeys(names), which)
    reason = also(reason, with_chance(verdict, grade([d.wide for d in differences], void)[0]))
    out = max(d.collapsed for d in differences)
    weak = provisional(cells, problem, which, may_change(differences), out)
    return Decision(f"{ends}; {words}", verdict, reason, weak)


def provisional(
    cells: Cells, problem: str, which: SettingKind, names: Sequence[str], collapsed: int = 0
) -> str:
    """What makes a verdict provisional: few seeds, or a chosen setting at the edge of its grid.

    Args:
        cells, problem, which: what the verdict is on.
        names: methods of which a better setting could change it, as `may_change` finds them. The grid of a problem
            that has a wider one beside it is a condition of the statement.
        collapsed: seeds that are left out.
    """
    tuned = which == "tuned" and not cells.problem(problem).grid_of
    at = [
        f"{name}'s best {axis} = {in_words(cells.cell(problem, name).chosen[axis])}"
        for name in dict.fromkeys(names if tuned else ())
        for axis in cells.cell(problem, name).edges
    ]
    edges = f"{', '.join(at)} {'lie' if len(at) > 1 else 'lies'} at the edge of the grid" if at else ""
    return also(few(cells, problem, collapsed), edges)


def with_chance(verdict: Verdict, wide: Verdict) -> str:
    """That a verdict is another with the chance of the test examples in its intervals; "" if it is the same."""
    return "" if wide == verdict else f"with the chance of the test examples {wide}"


def also(*remarks: str) -> str:
    return "; ".join(filter(None, remarks))


def few(cells: Cells, problem: str, collapsed: int = 0) -> str:
    """That fewer than `FEW` seeds or data sets are compared, those that collapsed left out; "" where as many are."""
    count = len(cells.seeds) - collapsed
    return f"{count} {cells.problem(problem).replicates}, fewer than {FEW}" if count < FEW else ""


def in_words(value: Any) -> str:
    """A setting's value, or its values where several were drawn together."""
    if isinstance(value, tuple):
        return ", ".join(map(in_words, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _ends(cells: Cells, problem: str, names: Sequence[str] | dict[str, None], which: SettingKind) -> str:
    return ", ".join(f"{name} {shown_final(cells, problem, name, which)}" for name in names)


def shown_final(cells: Cells, problem: str, name: str, which: SettingKind) -> str:
    """A method's metric at the end: mean ± standard deviation over seeds with its unit, or who diverged."""
    # Seeds that collapsed are not in the mean; it is said how many and where they end.
    metric = describe(cells.problem(problem).metric)
    values = metric.scale * cells.final(problem, name, which)
    lost = int((~np.isfinite(values)).sum())
    if lost:
        return f"diverged ({lost} of {len(values)} seeds)"
    out = cells.collapsed(problem, name, which)
    if out.any():
        ends = ", ".join(f"{value:.3g}" for value in values[out])
        apart = f" and {ends} on {out.sum()} of {len(values)} seeds, which collapsed"
        return f"{_mean_and_spread(values[~out], metric.unit)}{apart}"
    return _mean_and_spread(values, metric.unit)


def _mean_and_spread(values: np.ndarray, unit: str) -> str:
    spread = f" ± {values.std(ddof=1):.2g}" if len(values) > 1 else ""
    return f"{values.mean():.4g}{spread}{' ' + unit if unit == '%' else ''}"


@rule
def better_in_each(
    cells: Cells, problems: Sequence[str], a: str, others: Sequence[str], which: SettingKind = "tuned"
) -> Decision:
    """On every problem `a` is better than each of the others; all these comparisons share the 5 %."""
    count = len(problems) * len(others)
    by_other = {b: {p: difference(cells, p, a, b, which, count) for p in problems} for b in others}
    every = [d for by in by_other.values() for d in by.values()]
    void = {p: not_learnt(cells, p, (a, *others), which) for p in problems}
    decided = [by[p] for by in by_other.values() for p in problems if not {a, by[p].b} <= set(void[p])]
    verdict: Verdict = grade(decided)[0] if decided else "not learnt"
    if verdict == "reproduced" and len(decided) < count:
        verdict = "partly"
    above, below = sum(d.low > 0 for d in every), sum(d.high < 0 for d in every)
    ends = ", ".join(f"{m} {_range(cells, problems, m, which)}" for m in (a, *others))
    differences = "; ".join(f"{a} over {b}: {_where(by)}" for b, by in by_other.items())
    weak = {p: provisional(cells, p, which, may_change(by[p] for by in by_other.values())) for p in problems}
    return Decision(
        f"least and greatest of {len(problems)} problems: {ends}. {differences}",
        verdict,
        also(
            f"95 % intervals over {cells.problem(problems[0]).over}, paired, all {count} comparisons together: "
            f"{above} for it, {below} against it",
            *(f"{p}: {no_better(cells, p, names)}" for p, names in void.items() if names),
            with_chance(verdict, grade([d.wide for d in decided])[0] if decided else verdict),
        ),
        also(*(f"{p}: {words}" for p, words in weak.items() if words)),
    )


def _range(cells: Cells, problems: Sequence[str], method: str, which: SettingKind) -> str:
    metric = describe(cells.problem(problems[0]).metric)
    ends = [metric.scale * cells.final(p, method, which).mean() for p in problems]
    return f"{np.min(ends):.3g} to {np.max(ends):.3g}" if np.isfinite(ends).all() else "diverged on some"


def _where(by_problem: dict[str, Difference]) -> str:
    # such as 'better on 7 of 9, worse on 1 (alpha 1, K 3), open on 1 (alpha 1, K 1)'
    worse = [p for p, d in by_problem.items() if d.high < 0]
    unknown = [p for p, d in by_problem.items() if d.low <= 0 <= d.high]
    words = [f"better on {len(by_problem) - len(worse) - len(unknown)} of {len(by_problem)}"]
    words += [
        f"{what} on {len(names)} ({'; '.join(names)})"
        for what, names in (("worse", worse), ("open", unknown))
        if names
    ]
    return ", ".join(words)


def time_to(cells: Cells, problem: str, method: str, target: float) -> np.ndarray:
    """Simulated seconds at the first evaluation as good as a target, (seeds,); NaN where it is never reached."""
    metric = describe(cells.problem(problem).metric)
    values = cells.curve(problem, method)[1]
    times = cells.curve(problem, method, metric="time")[1]
    reached = values >= target if metric.higher_is_better else values <= target
    return np.where(reached.any(axis=1), times[np.arange(len(times)), reached.argmax(axis=1)], np.nan)


@rule
def sooner(
    cells: Cells, problems: Sequence[str], a: str, b: str, target: float, neighbours: Sequence[float]
) -> Decision:
    """On every problem `a` reaches the target in less time than `b`; the comparisons share the 5 %.

    The verdict is shown at the target's neighbours too.
    """
    words, verdict = _sooner(cells, problems, a, b, target)
    metric = describe(cells.problem(problems[0]).metric)
    given: dict[float, Verdict] = {
        metric.scale * bar: _sooner(cells, problems, a, b, bar)[1] for bar in neighbours
    }
    reason = (
        f"seconds to {metric.scale * target:g} {metric.unit}".rstrip()
        + f", 95 % intervals of their ratio over {cells.problem(problems[0]).over}, paired, all {len(problems)} "
        f"together; {elsewhere(given, metric.scale * target)}"
    )
    return Decision(words, verdict, reason)


def _sooner(cells: Cells, problems: Sequence[str], a: str, b: str, target: float) -> tuple[str, Verdict]:
    # what was found, in words, and the verdict
    differences, words = [], []
    for problem in problems:
        ours, theirs = (time_to(cells, problem, name, target) for name in (a, b))
        title = cells.problem(problem).title
        if np.isnan(ours + theirs).any():
            lost = [name for name, times in ((a, ours), (b, theirs)) if np.isnan(times).any()]
            differences.append(Difference(a, b, np.nan, -np.inf, np.inf))
            words.append(f"{title}: not reached with every seed by {' and '.join(lost)}")
            continue
        ratio = interval(np.log(theirs / ours), len(problems))
        differences.append(Difference(a, b, *ratio))
        words.append(
            f"{title}: {a} {_mean(ours)}, {b} {_mean(theirs)} s, {ratio.factor.text('.2f', 'times as fast')}"
        )
    return "; ".join(words), grade(differences)[0]


def _mean(times: np.ndarray) -> str:
    # the geometric mean, which goes with ratios
    return f"{np.exp(np.log(times).mean()):.3g}"
