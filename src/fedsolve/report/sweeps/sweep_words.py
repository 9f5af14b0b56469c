"""A sweep in words: its settings, seeds and selection criterion, and the titles of its plots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedsolve.core.errors import InvalidInput
from fedsolve.report.axes import axis_title, is_log, value_text
from fedsolve.results.metrics import describe
from fedsolve.results.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def setting_texts(sweep: Sweep, setting: int) -> dict[str, str]:
    """The values of a setting, axis by axis, as few digits as tell the axis's values apart."""
    texts = {}
    for name, values in sweep.grid.items():
        short = [value_text(v) for v in values]
        index = values.index(sweep.points[setting][name])
        texts[name] = short[index] if len(set(short)) == len(short) else str(values[index])
    return texts


def rule_text(sweep: Sweep) -> str:
    """The rule of the selection in words."""
    rule = sweep.selection
    title = describe(rule.metric).title
    title = title[0].lower() + title[1:] if title[1:2].islower() else title
    when = "at the end" if rule.last == 1 else f"mean of the last {rule.last} rounds"
    return f"{'highest' if rule.most else 'lowest'} {title}, {when}"


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


def add_title(axes: Axes, text: str, sweeps: Sequence[Sweep], pad: float = 6.0) -> None:
    """What is drawn, and below it methods, task, seeds and rule."""
    parts = [sweeps[0].label] if len(sweeps) == 1 else []
    parts.append(", ".join(dict.fromkeys(s.task for s in sweeps)))
    parts.append("; ".join(dict.fromkeys(seeds_text(s.seeds) for s in sweeps)))
    rule = "; ".join(dict.fromkeys(rule_text(s) for s in sweeps))
    axes.set_title(f"{text}\n{' · '.join(parts)}\nchosen by: {rule}", loc="left", fontsize=10, pad=pad)


def as_list(sweeps: Sweep | Sequence[Sweep]) -> list[Sweep]:
    """The sweeps, which must have one selection criterion.

    Raises:
        InvalidInput: no sweeps, or sweeps chosen by different rules.
    """
    several = [sweeps] if isinstance(sweeps, Sweep) else list(sweeps)
    if not several:
        raise InvalidInput("no sweeps to show: give at least one")
    rules = dict.fromkeys(repr(s.selection) for s in several)
    if len(rules) > 1:
        raise InvalidInput(f"sweeps chosen by different rules cannot share an axis: {'; '.join(rules)}")
    return several
