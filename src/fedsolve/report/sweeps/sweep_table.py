"""The settings of a sweep as rows, the best first and those that diverged last: for terminal, JSON and page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from fedsolve.core.errors import InvalidInput, is_plain_number
from fedsolve.report.number_text import number_writer, power_of_ten
from fedsolve.report.style import wrapped
from fedsolve.report.table import narrow_table
from fedsolve.results.metrics import describe
from fedsolve.results.sweep import SweepRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_TITLES = {
    "client_lr": "Client learning rate",
    "server_lr": "Server learning rate",
    "tau": "Adaptivity τ",
    "eps_g": "Extrapolation ε_g",
    "eps": "ε",
    "mu": "Proximal weight μ",
    "beta1": "β₁",
    "beta2": "β₂",
    "client_momentum": "Client momentum",
    "weight_decay": "Weight decay",
    "clip_norm": "Clipping norm",
    "psi.weight": "Weight of the penalty",
    "constraint.radius": "Radius of the set",
}


def axis_title(name: str) -> str:
    """The title of an axis, with the setting's own name.

    >>> axis_title("client_lr"), axis_title("solver")
    ('Client learning rate (client_lr)', 'solver')
    """
    return f"{_TITLES[name]} ({name})" if name in _TITLES else name


def is_numeric(values: Sequence[Any]) -> bool:
    """Whether all values of an axis are finite numbers."""
    return all(is_plain_number(v) and np.isfinite(v) for v in values)


def is_log(values: Sequence[Any]) -> bool:
    """Whether an axis is spaced by factors: positive, over at least a decade, more evenly than by differences.

    >>> is_log([0.01, 0.03, 0.1]), is_log([1, 2, 3, 4]), is_log([None, 1.0])
    (True, False, False)
    """
    if len(values) < 2 or not is_numeric(values) or min(values) <= 0 or max(values) < 10 * min(values):
        return False
    x = np.sort(np.array(values, float))
    factors, steps = np.diff(np.log(x)), np.diff(x)
    return bool(np.ptp(factors) / factors.mean() <= np.ptp(steps) / steps.mean())


def value_text(value: Any, digits: int = 2) -> str:
    """A value of an axis as it was typed; one that was computed, such as those of `0.03:3:5log`, in a few digits.

    >>> value_text(0.94868), value_text(0.125), value_text(None), value_text(True), value_text(1e-5), value_text(1e4)
    ('0.95', '0.125', 'none', 'true', '1e-5', '10000')
    """
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if not isinstance(value, float):
        return str(value)
    if 1000 <= abs(value) < 1e6 and value.is_integer():
        return f"{value:.0f}"
    typed = f"{value:.10g}" == f"{value:.3g}"
    return power_of_ten(f"{value:.3g}" if typed else f"{value:.{digits}g}")


def axis_texts(values: Sequence[Any]) -> list[str]:
    """The values of an axis, each by `value_text`, with as many digits as distinguish them.

    >>> axis_texts([0.03, 0.0948683, 0.3]), axis_texts([0.12345, 0.1241])
    (['0.03', '0.095', '0.3'], ['0.123', '0.124'])
    """
    for digits in (2, 3, 4, 6):
        texts = [value_text(v, digits) for v in values]
        if len(set(texts)) == len(texts):
            return texts
    return [str(v) for v in values]


def tick_texts(values: Sequence[Any]) -> list[str]:
    """The values for the ticks of an axis: powers of ten where all are whole or half decades.

    >>> tick_texts([0.01, 0.0316227766, 0.1])
    ['$10^{-2}$', '$10^{-1.5}$', '$10^{-1}$']
    """
    if len(values) > 2 and is_log(values):
        decades = 2 * np.log10(np.array(values, float))
        if np.allclose(decades, decades.round(), atol=2e-3) and (decades.round() % 2).any():
            return [f"$10^{{{d / 2:g}}}$" for d in decades.round()]
    return axis_texts(values)


def setting_texts(sweep: SweepRecord, setting: int) -> dict[str, str]:
    """The values of a setting, axis by axis, with as many digits as distinguish the axis's values."""
    at = sweep.points[setting]
    return {name: axis_texts(values)[values.index(at[name])] for name, values in sweep.grid.items()}


def rule_text(sweep: SweepRecord) -> str:
    """The rule of the selection in words."""
    return f"{'highest' if sweep.selection.most else 'lowest'} {averaged_text(sweep)}"


def averaged_text(sweep: SweepRecord) -> str:
    """What the score of a setting averages, in words: the metric, the evaluations and their rounds."""
    at = sweep.rounds[sweep.selection.counted(sweep.rounds)]
    title = describe(sweep.selection.metric).title
    when = (
        f"at round {at[-1]}" if len(at) == 1 else f"mean of {len(at)} evaluations, rounds {at[0]} to {at[-1]}"
    )
    return f"{title[0].lower() + title[1:] if title[1:2].islower() else title}, {when}"


def seeds_text(seeds: Sequence[int]) -> str:
    """Seeds in words.

    >>> seeds_text((0,)), seeds_text((0, 1, 2)), seeds_text(range(9))
    ('seed 0', '3 seeds: 0, 1, 2', '9 seeds: 0, 1, …, 8')
    """
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    listed = [*seeds] if len(seeds) <= 5 else [*seeds[:2], "…", seeds[-1]]
    return f"{len(seeds)} seeds: {', '.join(map(str, listed))}"


def axis_phrase(axis: str) -> str:
    """An axis within a sentence."""
    title = axis_title(axis).split(" (")[0]
    return title[0].lower() + title[1:] if title[1:2].islower() else title


def axis_label(axis: str, values: Sequence[Any]) -> str:
    """The title of an axis that is drawn."""
    return axis_title(axis) + (", log scale" if is_log(values) else "")


def add_title(axes: Axes, text: str, sweeps: Sequence[SweepRecord], pad: float = 6.0) -> None:
    """What is drawn, and below it methods, task, seeds and rule."""
    parts = [sweeps[0].label] if len(sweeps) == 1 else []
    parts.append(", ".join(dict.fromkeys(s.task for s in sweeps)))
    parts.append("; ".join(dict.fromkeys(seeds_text(s.seeds) for s in sweeps)))
    rule = "; ".join(dict.fromkeys(rule_text(s) for s in sweeps))
    lines = (text, " · ".join(parts), f"chosen by: {rule}")
    inches = axes.figure.bbox.width / axes.figure.dpi
    axes.set_title(wrapped(lines, inches), loc="left", fontsize=9, pad=pad)


def as_list(sweeps: SweepRecord | Sequence[SweepRecord]) -> list[SweepRecord]:
    """The sweeps, which must have one selection criterion.

    Raises:
        InvalidInput: no sweeps, or sweeps with different selection criteria.
    """
    several = [sweeps] if isinstance(sweeps, SweepRecord) else list(sweeps)
    if not several:
        raise InvalidInput("no sweeps to show: give at least one")
    rules = dict.fromkeys(repr(s.selection) for s in several)
    if len(rules) > 1:
        raise InvalidInput(
            f"sweeps with different selection criteria cannot share an axis: {'; '.join(rules)}"
        )
    return several


def ranking(sweep: SweepRecord) -> list[int]:
    """The numbers of all settings, the best first; of equal ones, and of those that diverged, in grid order."""
    score = -sweep.score if sweep.selection.most else sweep.score
    return [int(i) for i in np.argsort(score, kind="stable")]


def setting_rows(sweep: SweepRecord, count: int | None = None) -> list[dict[str, Any]]:
    """The `count` best settings (all if None) as plain data: values, mean, range and scores over seeds.

    `score`, `lowest` and `highest` are None where a seed diverged; `diverged` counts the seeds that did, and
    `round` is the first round in which one did.
    """
    rows = []
    for rank, setting in enumerate(ranking(sweep)[:count], 1):
        scores, rounds = sweep.scores[setting], sweep.diverged[setting]
        finite = bool(np.isfinite(scores).all())
        rows.append(
            {
                "rank": rank,
                "setting": setting,
                "values": sweep.points[setting],
                "score": float(sweep.score[setting]) if finite else None,
                "lowest": float(scores.min()) if finite else None,
                "highest": float(scores.max()) if finite else None,
                "scores": [float(s) if np.isfinite(s) else None for s in scores],
                "diverged": int((~np.isfinite(scores)).sum()),
                "round": int(rounds[rounds >= 0].min()) if (rounds >= 0).any() else None,
            }
        )
    return rows


def heads(sweep: SweepRecord) -> list[str]:
    """The heads of the columns."""
    label = describe(sweep.selection.metric).label.replace(" (mean per example)", "")
    over = [f"Range over {len(sweep.seeds)} seeds"] if len(sweep.seeds) > 1 else []
    return ["Rank", *sweep.grid, f"Mean {label[0].lower()}{label[1:]}" if over else label, *over]


def row_texts(sweep: SweepRecord, row: dict[str, Any]) -> list[str]:
    """The cells of one row."""
    write = number_writer(sweep.selection.metric)
    several = len(sweep.seeds) > 1
    values = list(setting_texts(sweep, row["setting"]).values())
    if row["score"] is None:
        return ["-", *values, divergence(sweep, row), *[""] * several]
    band = [f"{write(row['lowest'])} … {write(row['highest'])}"] if several else []
    return [str(row["rank"]), *values, write(row["score"]), *band]


def divergence(sweep: SweepRecord, row: dict[str, Any]) -> str:
    """That a setting diverged, in how many seeds and when."""
    seeds = f" in {row['diverged']} of {len(sweep.seeds)} seeds" if len(sweep.seeds) > 1 else ""
    when = f", from round {row['round']}" if row["round"] is not None else ", not finite"
    return f"diverged{seeds}{when}"


def setting_table(sweep: SweepRecord, count: int = 10) -> Table:
    """The best settings as a rich table."""
    return narrow_table(heads(sweep), [row_texts(sweep, row) for row in setting_rows(sweep, count)])


def outcome_lines(sweep: SweepRecord) -> list[str]:
    """The best setting, how easy the method was to tune, and how much diverged, in a sentence each."""
    lost = int((~np.isfinite(sweep.scores)).any(axis=1).sum())
    settings = len(sweep.score)
    diverged = f"{lost} of {settings} settings diverged" if lost else f"none of {settings} settings diverged"
    if lost == settings:
        return [f"all {settings} settings diverged"]
    write, best = number_writer(sweep.selection.metric), sweep.best
    unit = " %" if describe(sweep.selection.metric).unit == "%" else ""
    at = ", ".join(f"{name} = {value}" for name, value in setting_texts(sweep, best).items())
    return [
        f"best: {at}, with {describe(sweep.selection.metric).title.lower()} {write(sweep.score[best])}{unit} "
        f"({averaged_text(sweep).partition(', ')[2]})",
        f"share of the grid within 5 % of the best: {100 * sweep.share_within(0.05):.0f} % of {settings}; {diverged}",
        *edges(sweep),
    ]


def edges(sweep: SweepRecord) -> list[str]:
    """Axes on whose edge the best setting lies: the best may be outside."""
    sentences = []
    for name, values in sweep.grid.items() if np.isfinite(sweep.score).any() else ():
        numbers = [v for v in values if is_plain_number(v)]
        value = sweep.best_settings[name]
        if len(numbers) == len(values) > 2 and value in (min(numbers), max(numbers)):
            end, others = ("smallest", "smaller") if value == min(numbers) else ("largest", "larger")
            sentences.append(f"the best {name} is the {end} tried: {others} ones may be better")
    return sentences
