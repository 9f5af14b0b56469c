"""One HTML file with everything in it: interactive curves, results, settings. It makes no request.

Python writes all text and tables, so the page can be read without scripts; the scripts draw and sort.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedsolve.core.errors import Diverged, Interrupted
from fedsolve.folders.files import write_atomically
from fedsolve.report.markup import (
    clients_table,
    details,
    note_list,
    page_text,
    paragraphs,
    picture,
    result_html,
    settings_html,
    sites_table,
    static,
    text,
    too_few,
    without_folders,
)
from fedsolve.report.plots import focus, on_a_clock
from fedsolve.report.style import DARK, LIGHT, context, distinct_names, line_styles
from fedsolve.report.table import headline, outcome
from fedsolve.results.clients import ClientMetrics
from fedsolve.results.columns import plain
from fedsolve.results.history import History, group_by_seed
from fedsolve.results.metrics import AVERAGED, describe, wants_log
from fedsolve.results.record_files import PAGE as PAGE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A page while its runs go on: written again every few seconds, and loaded again by the browser, until they end.

_SECONDS_BETWEEN = 5.0
_TIMES_BETWEEN = 20  # as long as a writing takes: at most a twentieth of the time goes to it


class SoFar(NamedTuple):
    """How far runs are, in words, and whether they go on."""

    words: str
    goes_on: bool

    @property
    def sentence(self) -> str:
        return f"{'Running' if self.goes_on else 'Stopped'}, {time.strftime('%H:%M:%S')}: {self.words}."

    @property
    def refresh(self) -> str:
        # what has the browser load the page again
        return f'<meta http-equiv="refresh" content="{_SECONDS_BETWEEN:g}">\n' if self.goes_on else ""


@contextlib.contextmanager
def written_meanwhile(write: Callable[[bool], bool]) -> Iterator[None]:
    """Write a page every few seconds in a thread of its own; and once more where the block stops before its end."""
    # `write` is told whether the runs go on, and says whether it wrote; what it raises ends nothing.
    ended, written = threading.Event(), threading.Event()

    def attempt(goes_on: bool) -> None:
        with contextlib.suppress(Exception):
            if write(goes_on):
                written.set()

    def follow() -> None:
        took = 0.0
        while not ended.wait(max(_SECONDS_BETWEEN, _TIMES_BETWEEN * took)):
            begun = time.monotonic()
            attempt(goes_on=True)
            took = time.monotonic() - begun

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    except BaseException as error:
        ended.set()
        thread.join()
        if written.is_set() or isinstance(error, Interrupted | Diverged):  # not where the folder was refused
            attempt(goes_on=False)
        raise
    finally:
        ended.set()
        thread.join()


_MOST_POINTS = 18_000
"""Of all curves of a metric together: twelve methods with a dozen metrics make a page of 3 MB."""
_AXES = ("round", "seconds", "megabytes", "time")
_TIME = '<label><input type="radio" name="x" value="time"><span>simulated time</span></label>'
_HELP = "Last iterate. Click a column heading to sort. “Sent” counts the bytes of all clients and rounds"
_COMPILED = "time excludes compilation"
_LONG_CURVES = "Long curves show the minimum and maximum of each interval; history.json has every value."
_SCRIPTS = ("plotting.js", "curves.js", "clients.js", "sorting.js")


def write_page(
    path: str | Path,
    histories: Sequence[History],
    *,
    title: str,
    how_tuned: str = "",
    notes: Sequence[str] = (),
    pictures: Mapping[str, Figure | bytes] | None = None,
    clients: ClientMetrics | None = None,
    so_far: SoFar | None = None,
) -> Path:
    """Write the page of some runs to `path`, atomically, and return the path; runs of one label share a colour."""
    # All texts are plain: a blank line starts a paragraph, and markup is shown as it is written. `notes` are a list
    # above those of the runs, `pictures` figures of matplotlib (or PNGs) by the sentence that describes them,
    # `clients` what each client measured last, for a table of up to 50 by name. `so_far` tells how far the runs are,
    # in place of their outcome and settings; None where they have ended.
    main = headline(histories)
    methods = group_by_seed(histories)
    remarks = [*notes, *(f"{m.history.label}: {note}" for m in methods for note in m.history.notes)]
    points = [len(m.history.evaluations["round"]) * (3 if m.several else 1) for m in methods]
    if max(points) * len(methods) > _MOST_POINTS:
        remarks.append(_LONG_CURVES)
    remarks = [without_folders(note) for note in remarks]
    drawn = "\n".join(picture(*item) for item in (pictures or {}).items())
    compiled = [_COMPILED] if any(h.compile_seconds for h in histories) else []
    explained = f'<p class="help">{"; ".join([_HELP, *compiled])}.</p>'
    clock = _TIME if on_a_clock(histories) else ""
    table, sites = clients_table(histories), "" if clients is None else sites_table(clients)
    over = Template(static("clients.html")).substitute(table=table) if table else ""
    parts = {
        "title": text(title),
        "context": text(context(histories)),
        "outcome": text(so_far.sentence if so_far else outcome(histories)),
        "refresh": so_far.refresh if so_far else "",
        "curves": Template(static("curves.html")).substitute(clock=clock),
        "results": details("Results", f"{result_html(histories)}\n{explained}", shown=True),
        "notes": details(f"Notes ({len(remarks)})", note_list(remarks)),
        "clients": details("Each client", sites, shown=True) + details("Over the clients", over),
        "pictures": details("Data and clients", drawn),
        "tuning": details("How the hyper-parameters were chosen", paragraphs(how_tuned)),
        "settings": "" if so_far else details("Settings", settings_html(histories)),
        **drawing(page_data(histories, main)),
        "scripts": "\n".join(static(name) for name in _SCRIPTS),
    }
    return write_atomically(path, page_text("page.html", parts))


def page_data(histories: Sequence[History], main: str) -> dict[str, Any]:
    # what the scripts draw: the methods with their columns, and the metrics to choose from, `main` first.
    #
    # Of several seeds the columns are means, and `low` and `high` the range.
    styles, methods = line_styles(histories), group_by_seed(histories)
    runs = []
    for name, method in zip(distinct_names([m.history for m in methods]), methods, strict=True):
        h, style = method.history, styles[method.history.label]
        shown = {key: values for key, values in h.evaluations.items() if key not in too_few(h)}
        columns = shown | {"megabytes": h.megabytes()}
        if "server_lr" in h.rounds:
            columns.setdefault("server_lr", h.at_evaluations("server_lr"))
        tables = {"columns": columns} | ({"low": method.low, "high": method.high} if method.several else {})
        # means of two iterates need not keep peaks of their own
        kept = [
            np.asarray(values, float)
            for table in tables.values()
            for key, values in table.items()
            if key not in _AXES and not key.endswith(AVERAGED)
        ]
        drawn = rows_to_draw(kept, _MOST_POINTS // (len(methods) * len(tables)))
        run = {"name": name, "label": h.label, "colour": style.colour, "dash": style.dash}
        runs.append(run | {part: {k: _short(v[drawn]) for k, v in t.items()} for part, t in tables.items()})
    columns = dict.fromkeys(key for run in runs for key in run["columns"] if key not in _AXES)
    bases = [key for key in columns if not key.endswith(AVERAGED)]
    bases.sort(key=lambda key: key != main)
    return {
        "runs": runs,
        "metrics": [_metric(key, key + AVERAGED in columns, runs) for key in bases],
        "axes": {key: describe(key).label for key in _AXES if key != "time" or on_a_clock(histories)},
    }


def drawing(data: Any) -> dict[str, str]:
    # the parts that all pages with curves share: `style` with the colours, and `data` with what draws it
    sheets = [static(name) for name in ("uPlot.min.css", "page.css", "run.css")]
    light, dark = ("".join(f"--series-{i}:{c};" for i, c in enumerate(colours)) for colours in (LIGHT, DARK))
    rules = f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}"
    style = "\n".join((*sheets, rules))
    # the script of uPlot, its licence text in the place of its first comment, which is a link
    plotter = f"/*! uPlot\n{static('uPlot.LICENSE')}\n*/\n{static('uPlot.iife.min.js').split('*/', 1)[1]}"
    block = f'<script type="application/json" id="page-data">{script_json(data)}</script>\n'
    return {"style": style, "data": f"{block}<script>{plotter}</script>\n"}


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element: no character of it can end the element.

    >>> script_json("</script>")
    '"\\\\u003c/script\\\\u003e"'
    """
    standard = json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&]", lambda m: f"\\u{ord(m[0]):04x}", standard)


def _metric(key: str, averaged: bool, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    metric = describe(key)
    numbers = [np.array([float(v) for v in run["columns"][key]]) for run in runs if key in run["columns"]]
    log = wants_log(key, numbers)
    differ = None if log else focus(numbers)
    return {
        "key": key,
        "title": metric.title,
        "label": metric.label,
        "unit": metric.unit,
        "scale": metric.scale,
        "averaged": averaged,
        "log": log,
        "range": differ and [metric.scale * v for v in differ],
    }


def _short(values: np.ndarray) -> list[Any]:
    # values with seven digits, enough for a plot
    return plain([v if isinstance(v, int) else float(f"{v:.7g}") for v in values.tolist()])


def rows_to_draw(columns: Sequence[np.ndarray], most: int) -> np.ndarray:
    """The rows to draw of columns of one length, shape (rows,), ascending: all, or about `most` where there are more.

    Of every stretch of rows each column keeps its least and its largest value, so that curves lose no peak.

    >>> rows_to_draw([np.array([0.0, 9.0, 1.0, 1.0, 1.0, -5.0, 1.0, 1.0])], 4).tolist()
    [0, 1, 4, 5, 7]
    """
    rows = len(columns[0])
    if rows <= most:
        return np.arange(rows)
    stretches = max(1, most // (2 * len(columns)))
    rows_drawn = {0, rows - 1}
    for stretch in np.array_split(np.arange(rows), stretches):
        for column in columns:
            numbers = stretch[np.isfinite(column[stretch])]
            if len(numbers):
                rows_drawn |= {int(numbers[column[numbers].argmin()]), int(numbers[column[numbers].argmax()])}
    return np.array(sorted(rows_drawn))
