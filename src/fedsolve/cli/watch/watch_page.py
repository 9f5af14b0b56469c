"""The page of `fedsolve watch`: a table of runs, the curves of those chosen, two of them side by side.

Python writes tables and texts, so that the page works without scripts; with them it follows the runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from string import Template
from typing import Any
from urllib.parse import urlencode

import numpy as np

from fedsolve.cli.watch.runs import Folder
from fedsolve.cli.watch.watched import Watched
from fedsolve.report.markup import definitions, result_html, section, settings_html, static, text
from fedsolve.report.number_text import human_bytes, human_time, show_number
from fedsolve.report.page import curves_html, drawing, page_data
from fedsolve.report.separation import first_metric
from fedsolve.report.style import distinct_names
from fedsolve.report.table import headline
from fedsolve.results.history import History
from fedsolve.results.metrics import describe, duration
from fedsolve.results.seeds import over_seeds

STATUSES = ("running", "finished", "stopped", "waiting", "diverged", "unreadable")
MOST_DRAWN = 12
_LONGER = 2.0
_POINTS = 1000
"""Of a curve: more are not seen on a screen."""
_HEAD = ("Run", "Method", "Status", "Rounds", "Test metric", "Training loss", "Sent", "Time", "Left")


@dataclass(frozen=True)
class View:
    """What is looked at.

    Attributes:
        words: runs whose name, method, task or status has them.
        status: runs of this status, "" for all.
        chosen: names of the runs that are drawn, none for those that are listed.
    """

    words: str = ""
    status: str = ""
    chosen: tuple[str, ...] = ()

    def listed(self, runs: Mapping[str, Watched]) -> list[Watched]:
        """The runs of the table."""
        wanted = self.words.lower()
        return [
            run
            for run in runs.values()
            if self.status in ("", run.status)
            and wanted in f"{run.shown} {run.label} {run.task} {run.status}".lower()
        ]

    def drawn(self, runs: Mapping[str, Watched]) -> list[Watched]:
        """The runs with curves, in the order of the table: those chosen, else those listed, running ones rather.

        Of those that are not chosen, runs much longer or shorter than the first are left out.
        """
        names = {
            *self.chosen,
            *(p.name for name in self.chosen if name in runs for p in _rows_of(runs[name])),
        }
        found = [run for run in runs.values() if run.name in names and run.histories]
        if not found:
            found = [run for run in self.listed(runs) if run.histories]
            found.sort(key=lambda run: run.status != "running")
            found = [run for run in found if 1 / _LONGER <= _rounds(run) / _rounds(found[0]) <= _LONGER]
        first = sorted(found, key=lambda run: run.status != "running")[:MOST_DRAWN]
        return [run for run in runs.values() if run in first]

    def query(self) -> str:
        """As the query of an address."""
        pairs = [("words", self.words), ("status", self.status), *(("run", name) for name in self.chosen)]
        return urlencode([(name, value) for name, value in pairs if value])


def whole_page(folder: Folder, view: View) -> str:
    """The page as it stands now."""
    now = state(folder, view)
    options = "".join(
        f'<option value="{s}"{" selected" if s == view.status else ""}>{s or "any status"}</option>'
        for s in ("", *STATUSES)
    )
    parts = {
        "title": text(f"Runs in {folder.folder.name}/"),
        "words": text(view.words),
        "options": options,
        "standing": now["standing"],
        "table": now["table"],
        "details": now["details"],
        "chart": curves_html([history for run in folder.look().values() for history in run.histories]),
        **drawing(now["data"]),
        "plotting": static("plotting.js"),
        "curves": static("curves.js"),
        "sorting": static("sorting.js"),
        "scripts": static("watch.js"),
    }
    return Template(static("watch.html")).substitute(parts)


def state(folder: Folder, view: View) -> dict[str, Any]:
    """What the page shows, in parts: HTML, and the data of its curves (None where there are none)."""
    runs = folder.look()
    listed, drawn = view.listed(runs), view.drawn(runs)
    histories = [_thin(replace(h, label=_name(run))) for run in drawn for h in run.histories]
    return {
        "standing": text(_standing(folder, runs, listed)),
        "table": _table(listed, view),
        "details": _details(drawn, histories, view),
        "data": page_data(histories, first_metric(histories)) if histories else None,
    }


def _standing(folder: Folder, runs: Mapping[str, Watched], listed: Sequence[Watched]) -> str:
    """How it stands, in a line."""
    if folder.gone:
        return "The folder is not there any more."
    if not runs:
        return "No runs yet."
    counts = {s: sum(run.status == s for run in runs.values()) for s in STATUSES}
    words = ", ".join(f"{count} {s}" for s, count in counts.items() if count)
    return f"{len(listed)} of {len(runs)} runs listed: {words}."


def _table(listed: Sequence[Watched], view: View) -> str:
    """The runs as rows, each with a box to draw it and a button to stop it."""
    if not listed:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Drawn", *_HEAD, ""))
    rows = "\n".join(_row(run, view) for run in listed)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Runs"><table class="runs">'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def _row(run: Watched, view: View) -> str:
    name, shown = text(run.name), text(run.shown)
    checked = " checked" if run.name in view.chosen else ""
    box = f'<input type="checkbox" name="run" value="{name}" form="view" aria-label="Draw {shown}"{checked}>'
    cells = [
        f"{text(run.label)}{f' on {text(run.task)}' if run.task else ''}",
        f'<span class="status" data-status="{run.status}">{run.status}</span>',
        _done(run),
        *(_metrics(run.histories) if run.histories else ("", "", "", "")),
        "" if run.seconds_left is None else text(f"about {duration(run.seconds_left)}"),
        _actions(run),
    ]
    if run.page:
        shown = f'<a href="page?{text(urlencode({"run": run.name}))}">{shown}</a>'
    message = f'<div class="message">{text(run.message)}</div>' if run.message else ""
    part = ' class="part"' if "/" in run.name else ""
    return (
        f'<tr{part}><td>{box if run.every_history else ""}</td><th scope="row">{shown}{message}</th>'
        + "".join(f"<td>{cell}</td>" for cell in cells)
        + "</tr>"
    )


def _done(run: Watched) -> str:
    """Rounds of all, with a bar."""
    # a sweep or a study, which tells how far it is while it runs
    if run.history is None and run.progress is None:
        return "all" if run.status == "finished" else ""
    if run.total is None:
        return str(run.done)
    return (
        f'{run.done:,} of {run.total:,}<progress value="{run.done}" max="{max(run.total, 1)}" '
        f'aria-label="Progress of {text(run.shown)}"></progress>'
    )


def _metrics(histories: Sequence[History]) -> tuple[str, str, str, str]:
    """The test metric, the training loss, what was sent and the time, as text: of several seeds their means."""
    history, key = over_seeds(histories)[0].history, headline(histories)
    shown = "" if key == "train_loss" else text(_value(key, history.final(key)))
    sent = history.total("bytes_up") + history.total("bytes_down")
    return (
        shown,
        text(_value("train_loss", history.final("train_loss"))),
        human_bytes(sent),
        human_time(history.seconds),
    )


def _value(key: str, value: float) -> str:
    metric = describe(key)
    return f"{value * metric.scale:.2f} %" if metric.unit == "%" else show_number(value)


def _actions(run: Watched) -> str:
    if run.status != "running" or (run.progress is None and run.history is None):  # nothing to save yet
        return ""
    return (
        f'<form method="post" action="stop"><input type="hidden" name="run" value="{text(run.name)}">'
        f'<button type="submit" aria-label="Stop {text(run.shown)}">Stop</button></form>'
    )


def _details(drawn: Sequence[Watched], histories: Sequence[History], view: View) -> str:
    """Of runs that were chosen: results and settings side by side, what they said, who takes part."""
    if not view.chosen or not histories:
        return ""
    said = {
        name: " ".join(h.notes)
        for name, h in zip(distinct_names(histories), histories, strict=True)
        if h.notes
    }
    who = {h.label: _cohorts(h) for h in histories if "participants" in h.rounds and len(h.rounds["round"])}
    return "\n".join(
        (
            section("Side by side", result_html(histories)),
            section("Settings", settings_html(histories)),
            section("Who takes part", definitions(who, "facts") if who else ""),
            section("Messages", definitions(said, "facts") if said else ""),
        )
    )


def _cohorts(history: History) -> str:
    """Clients a round, and how many updates were dropped, in words."""
    count = history.rounds["participants"]
    words = (
        f"{int(count.min())} to {int(count.max())} clients a round, {float(np.mean(count)):.1f} on average"
    )
    lost = history.total("dropped")
    return f"{words}; {lost} updates dropped" if lost else words


def _name(run: Watched) -> str:
    """The name of a run's curve, with its folder, by which runs are distinguished."""
    where = "" if run.name == "." else run.name
    told = where.rpartition("/")[2] == run.label  # the folder's name tells the method already
    return where if told else f"{run.label}, {where}" if where else run.label


def _rows_of(run: Watched) -> tuple[Watched, ...]:
    """The methods of a comparison."""
    return run.parts if run.listed else ()


def _rounds(run: Watched) -> int:
    """How many rounds a run has, or will have."""
    return max(
        [
            run.rounds or 0,
            1,
            *(part.rounds or 0 for part in run.parts),
            *(len(h.rounds["round"]) for h in run.histories),
        ]
    )


def _thin(history: History) -> History:
    """The record with at most so many evaluations as can be seen, the first and the last among them."""
    count = len(history.evaluations["round"])
    if count <= _POINTS:
        return history
    kept = np.unique(np.linspace(0, count - 1, _POINTS).round().astype(int))
    return replace(history, evaluations={k: v[kept] for k, v in history.evaluations.items()})
