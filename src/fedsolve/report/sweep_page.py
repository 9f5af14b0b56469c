"""What people see of a sweep: plots as PNG, and one HTML file with everything in it that makes no request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedsolve.core.errors import Diverged, InvalidInput, check_range, shown
from fedsolve.folders.files import write_atomically
from fedsolve.report.markup import (
    definitions,
    note_list,
    page_text,
    paragraphs,
    picture,
    section,
    setting_text,
    static,
    text,
)
from fedsolve.report.page import SoFar
from fedsolve.report.plots import png
from fedsolve.report.style import count_text, human_time, number_writer, plus_minus
from fedsolve.report.sweep_plots import (
    averaged_text,
    axis_texts,
    best_over_grid,
    edges,
    heat_map,
    outcome_lines,
    pairs,
    ranking,
    rule_text,
    seeds_text,
    sensitivity,
    setting_rows,
    setting_table,
    setting_texts,
)
from fedsolve.report.table import ResultTable, full_name, metric_head, target_text
from fedsolve.results.history import first_as_good, mean_and_deviation
from fedsolve.results.metrics import describe
from fedsolve.results.record_files import PAGE as PAGE
from fedsolve.results.sweep import SweepRecord, axes_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAPS = 6


def pictures(sweep: SweepRecord) -> dict[str, tuple[str, Figure]]:
    """The plots of a sweep: a map of each pair of axes (six at most), the best along each axis, bands over seeds."""
    # The result has captions and figures by the name of a file.
    drawn: dict[str, tuple[str, Figure]] = {}
    alive = bool(np.isfinite(sweep.score).any())
    stopped = bool((sweep.stops >= 0).any())
    lost = "“div.”: the setting diverged, with all seeds or with the stated number."
    lost += " “stop.”: stopped after the stated round." if stopped else ""
    for x, y in pairs(sweep)[:_MAPS]:
        caption = f"Score by {y} and {x}; brighter is better. "
        caption += f"The {'ring' if sweep.drawn else 'frame'} is the best setting. " if alive else ""
        caption += "Crosses diverged, circles were stopped early." if sweep.drawn else lost
        drawn[f"map-{y}-{x}"] = (caption, heat_map(sweep, x, y))
    long = [axis for axis, values in sweep.grid.items() if len(values) > 1]
    for axis in long if len(long) > 1 and alive else []:
        caption = f"The best score over all other axes at each {axis}, and that setting's range over seeds."
        if sweep.drawn:
            caption = f"The score of each setting by {axis}, and its range over seeds; × diverged, ○ was stopped early."
        drawn[f"best-{axis}"] = (caption, best_over_grid(sweep, axis))
    if alive:
        caption = "The best setting by round: the mean over seeds, and the range over seeds as a band."
        caption += " Grey: settings that were stopped early." if stopped else ""
        drawn["best-setting"] = (caption, sensitivity(sweep))
    return drawn


def write_sweep_page(
    folder: str | Path, sweep: SweepRecord, *, title: str = "", command: str = "", draw: bool = True
) -> list[Path]:
    """Write the plots (as PNG) and `page.html` of a sweep into a folder; returns their paths, the page first."""
    folder = Path(folder)
    drawn = {name: (text, png(figure)) for name, (text, figure) in (pictures(sweep) if draw else {}).items()}
    files = [write_atomically(folder / f"{name}.png", image) for name, (_, image) in drawn.items()]
    images = dict(drawn.values())
    return [write_page(folder / PAGE, sweep, images, title=title, command=command), *files]


def write_page(
    path: str | Path,
    sweep: SweepRecord,
    drawn: Mapping[str, Figure | bytes],
    *,
    title: str = "",
    command: str = "",
    so_far: SoFar | None = None,
) -> Path:
    """Write the page of a sweep to `path`, atomically, and return the path."""
    # Plots (figures or PNGs) come by their caption, texts as those of `write_sweep_page`; `so_far` says how far it
    # is.
    settings, seeds = sweep.scores.shape
    axes = axes_text(sweep.grid, sweep.drawn, " × ")
    took = human_time(sweep.seconds)
    trials = f"{settings} settings ({axes}) with {seeds_text(sweep.seeds)}"
    tried = sweep.search["ranges"] if sweep.drawn else sweep.grid
    parts = {
        "title": text(title or f"Sweep of {sweep.label} on {sweep.task}"),
        "context": text(f"{sweep.task} · {settings} settings · {seeds_text(sweep.seeds)} · {took}"),
        "intro": paragraphs(
            f"{so_far.sentence if so_far else ''}\n\n{trials}, {settings * seeds} runs in all. "
            f"Chosen by: {rule_text(sweep)}."
        ),
        "refresh": so_far.refresh if so_far else "",
        "best": _best(sweep),
        "command": f'<pre class="command" tabindex="0"><code>{text(command)}</code></pre>' if command else "",
        "pictures": "\n".join(picture(*item) for item in drawn.items()),
        "table": setting_table(sweep, None).html(),
        "edges": note_list(edges(sweep)),
        "notes": section("Notes", note_list([note for note in sweep.notes if note not in edges(sweep)])),
        "grid": definitions({name: v if isinstance(v, str) else _span(v) for name, v in tried.items()}, "facts"),
        "settings": definitions(
            {n: setting_text(v) for n, v in sweep.settings.items() if n not in sweep.grid}
        ),
        "style": static("page.css"),
        "scripts": static("sorting.js"),
    }  # fmt: skip
    return write_atomically(path, page_text("sweep.html", parts))


def _best(sweep: SweepRecord) -> str:
    try:
        sweep.best  # noqa: B018
    except Diverged as error:
        return paragraphs(f"{str(error)[0].upper()}{str(error)[1:]}.")
    rows = setting_rows(sweep)
    lost, stopped = sum(row["diverged"] > 0 for row in rows), int((sweep.stops >= 0).sum())
    write, metric = number_writer(sweep.selection.metric), describe(sweep.selection.metric)
    best = rows[0]
    unit = f" {metric.unit}" if metric.unit == "%" else ""
    score = f"{metric.title} {write(best['score'])}{unit}"
    if len(sweep.seeds) > 1:
        score += f" (mean over seeds; {write(best['lowest'])} to {write(best['highest'])})"
    facts = {
        "Setting": ", ".join(f"{n} = {v}" for n, v in setting_texts(sweep, best["setting"]).items()),
        "Score": score,
        "Criterion": rule_text(sweep),
        "Within 5 % of the best": f"{100 * sweep.share_within(0.05):.0f} % of settings",
        "Diverged": f"{lost} of {len(rows)} settings" if lost else "none",
    }
    if stopped:
        facts |= {"Within 5 % of the best": "not known", "Stopped early": f"{stopped} settings"}
    return definitions(facts, "facts")


def _span(values: Sequence[object]) -> str:
    shown = axis_texts(values)
    return ", ".join(shown) if len(shown) <= 12 else f"{', '.join(shown[:5])}, …, {shown[-1]} ({len(shown)})"


# A sweep as a table for a paper and for a notebook: the settings, the best first.

_SHOWN = 10


def final_table(sweep: SweepRecord, metrics: Sequence[str] | None, target: float | None) -> ResultTable:
    # all settings with their score, or what is asked for; see `Records.to_latex`
    check_range("target", target, optional=True)
    if metrics is not None and (isinstance(metrics, str) or not all(isinstance(m, str) for m in metrics)):
        raise InvalidInput(f"metrics = {shown(metrics)} must be a list of names, such as ['test_auc']")
    names = [full_name(name, sweep.metrics) for name in metrics or ()]
    aimed = names[0] if names else sweep.selection.metric
    score = [] if names else [metric_head("mean" if len(sweep.seeds) > 1 else "", aimed)]
    heads = [*sweep.grid, *score, *(metric_head("final", name) for name in names)]
    if target is not None:
        heads.append(f"Rounds to {target_text(aimed, target)}")
    rows = []
    for setting in ranking(sweep):
        row = list(setting_texts(sweep, setting).values())
        cells = [(aimed, sweep.scores[setting])] * len(score)
        cells += [(name, sweep.metrics[name][setting, :, -1]) for name in names]
        stop = sweep.stops[setting]
        row += [f"stopped after {stop}" if stop >= 0 else _cell(*cell) for cell in cells]
        rows.append(row if target is None else [*row, _rounds_to(sweep, setting, aimed, target)])
    seeds = len(sweep.seeds)
    spread = f"Mean ± sample standard deviation (n - 1) over {seeds} seeds. " if seeds > 1 else ""
    return ResultTable("Final values", heads, rows, f"{spread}Score: {averaged_text(sweep)}.")


def sweep_html(sweep: SweepRecord) -> str:
    # the best settings as a table of HTML, and below it what came out
    caption = f"{sweep.label} · {sweep.task} · {seeds_text(sweep.seeds)}. Score: {averaged_text(sweep)}."
    below = "".join(f"<p>{text(line)}</p>" for line in dict.fromkeys((*outcome_lines(sweep), *sweep.notes)))
    return setting_table(sweep, _SHOWN).notebook(caption) + below


def _cell(metric: str, values: np.ndarray) -> str:
    # the mean of a metric over seeds, with ± the deviation where there are several
    mean, deviation = mean_and_deviation(values.tolist())
    scale = describe(metric).scale
    if not np.isfinite(deviation):
        return number_writer(metric)(mean)
    return plus_minus(scale * mean, scale * deviation)


def _rounds_to(sweep: SweepRecord, setting: int, metric: str, target: float) -> str:
    # the rounds that a setting takes to a target, the mean over seeds; '-' if a seed never gets there
    rounds = [
        first_as_good(values, metric, target, sweep.rounds) for values in sweep.metrics[metric][setting]
    ]
    known = [r for r in rounds if r is not None]
    if len(known) < len(rounds):
        return "-"
    mean, deviation = mean_and_deviation(known)
    return plus_minus(mean, deviation) if np.isfinite(deviation) else count_text(mean)
