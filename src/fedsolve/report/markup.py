"""The parts of the result page as HTML: every text that comes from outside passes through `text`."""

from __future__ import annotations

import base64
import html
import importlib.resources
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from string import Template
from typing import TYPE_CHECKING, Any

from fedsolve.config.build import changed_settings
from fedsolve.report.plots import png
from fedsolve.report.style import distinct_names, line_styles, show_number
from fedsolve.report.table import Cell, ResultTable, long_class, result_table
from fedsolve.results.clients import ClientMetrics
from fedsolve.results.history import History, group_by_seed
from fedsolve.results.metrics import describe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CLIENT_COLUMNS = ("client_loss_mean", "client_loss_p10", "client_loss_p90", "client_loss_worst")
_CLIENTS_WITH_DECILES = 10
_CLIENTS_IN_TABLE = 50
_FOLDERS = re.compile(r"(?<![\w./])/(?:[^/\s,;:'\"{}()]+/)+(?=[^/\s])")


def text(value: object) -> str:
    return html.escape(str(value), quote=True)


def static(name: str) -> str:
    return (importlib.resources.files("fedsolve.report") / "static" / name).read_text(encoding="utf-8")


def page_text(body: str, parts: Mapping[str, str]) -> str:
    """A whole page: a body of `static/`, its parts filled in, in the frame that pages share."""
    # The frame's own parts are `title`, `context`, `style`, `scripts`, and `data` and `refresh`, which are empty if
    # they are not given.
    filled = Template(static(body)).substitute(parts)
    return Template(static("frame.html")).substitute({"data": "", "refresh": "", **parts, "body": filled})


def paragraphs(value: str) -> str:
    # plain text as paragraphs, cut at blank lines
    blocks = (block.strip() for block in value.split("\n\n"))
    return "\n".join(f"<p>{text(block)}</p>" for block in blocks if block)


def section(heading: str, body: str) -> str:
    # a section of the page; '' if it has no body
    return f"<section>\n<h2>{text(heading)}</h2>\n{body}\n</section>" if body else ""


def details(heading: str, body: str, shown: bool = False) -> str:
    # a part of the page that is opened by its heading; '' if it has no body
    opened = " open" if shown else ""
    return f"<details{opened}>\n<summary>{text(heading)}</summary>\n{body}\n</details>" if body else ""


def without_folders(words: str) -> str:
    """A text with absolute paths cut to their last parts: a page is sent to others.

    >>> without_folders("trace in /home/me/runs/a.csv, 1/2 of it")
    'trace in a.csv, 1/2 of it'
    """
    return _FOLDERS.sub("", words)


def note_list(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{text(note)}</li>" for note in notes)
    return f'<ul class="notes">{items}</ul>' if items else ""


def result_html(histories: Sequence[History]) -> str:
    table = result_table(histories)
    spread = f"{table.note} Bands in plots are the range over seeds." if table.note else ""
    return replace(table, note="").html(_line_samples(histories)) + paragraphs(spread)


def clients_table(histories: Sequence[History]) -> str:
    # mean, p10, p90 and worst client loss of each run at its last evaluation; '' if no run has them
    names = [c for c in _CLIENT_COLUMNS if any(c in h.evaluations and c not in too_few(h) for h in histories)]
    if not names:
        return ""
    head = ["Method", *(describe(c).title.removeprefix("Client loss, ").capitalize() for c in names)]
    rows, means = [], [m.history for m in group_by_seed(histories)]
    for name, h in zip(distinct_names(means), means, strict=True):
        values = [h.final(c) if c in h.evaluations and c not in too_few(h) else None for c in names]
        rows.append([name, *(None if v is None else Cell(show_number(v), v) for v in values)])
    table = ResultTable("Loss over clients at the last evaluation", head, rows)
    return table.html(_line_samples(histories))


def sites_table(measured: ClientMetrics) -> str:
    # the examples and metrics of each client, by its name, at the last evaluation; '' if there are too many
    if len(measured.names) > _CLIENTS_IN_TABLE:
        return ""
    head = ["Client", "Examples", *(describe(f"train_{name}").title for name in measured.metrics)]
    rows = []
    for i, name in enumerate(measured.names):
        count, values = int(measured.examples[i]), [float(v[i]) for v in measured.metrics.values()]
        cells = [None if math.isnan(value) else Cell(show_number(value), value) for value in values]
        rows.append([name, Cell(f"{count:,}", count), *cells])
    return ResultTable("Each client at the last evaluation", head, rows).html()


def too_few(history: History) -> tuple[str, ...]:
    # columns that say nothing of a run: percentiles of a handful of clients
    names = ("clients", "task.num_clients", "population")
    count = next((history.settings[name] for name in names if name in history.settings), None)
    few = isinstance(count, int) and count < _CLIENTS_WITH_DECILES
    return ("client_loss_p10", "client_loss_p90") if few else ()


def settings_html(histories: Sequence[History]) -> str:
    # resolved settings: those that all runs share as a list, those that differ as a table
    histories = [m.history for m in group_by_seed(histories)]
    settings = [_as_written(h.settings) for h in histories]
    names = list(dict.fromkeys(name for each in settings for name in each))
    first = settings[0]
    shared = [n for n in names if all(n in each and each[n] == first.get(n) for each in settings)]
    items = definitions({n: setting_text(first[n]) for n in shared}) if shared else ""
    listed = f"<h3>The same for all</h3>\n{items}" if items else ""
    differ = [n for n in names if n not in shared]
    if not differ:
        return listed
    rows = [
        [name, *(Cell(setting_text(each[n]), each[n]) if n in each else Cell("", None) for n in differ)]
        for name, each in zip(distinct_names(histories), settings, strict=True)
    ]
    table = ResultTable("Settings that differ between methods", ["Method", *differ], rows)
    return f'{listed}\n<h3>Different between methods</h3>\n<div class="methods">{table.html()}</div>'


def _as_written(settings: Mapping[str, Any]) -> dict[str, Any]:
    # settings with the method as a person writes it, such as `FedAvg(client_lr=0.3)`; without where runs are kept
    shown = {name: value for name, value in settings.items() if name != "out"}
    if not isinstance(shown.get("algorithm"), str):
        return shown
    method, others = changed_settings(shown.pop("algorithm"), shown)
    return {"algorithm": method, **others}


def definitions(items: Mapping[str, str], kind: str = "settings") -> str:
    # names with what they are, as a list: of settings in columns, or of `facts` one below the other
    rows = []
    for name, value in items.items():
        row = f"<dt>{text(name)}</dt><dd>{text(value)}</dd>"
        rows.append(row if kind == "facts" else f"<div{long_class(value)}>{row}</div>")
    return f'<dl class="{kind}">{"".join(rows)}</dl>'


def picture(caption: str, figure: Figure | bytes, key: str = "") -> str:
    # a matplotlib figure (or a PNG) as an image within the page, described by its caption; `key` is for links to it.
    #
    # It shrinks to half of its pixels, where its letters are still read; on a page narrower than that it scrolls.
    drawn = figure if isinstance(figure, bytes) else png(figure)
    least = int.from_bytes(drawn[16:20]) // 2  # a PNG begins with its width
    anchor = f' id="{text(key)}"' if key else ""
    return (
        f'<figure{anchor} style="--least: {least}px"><img alt="{text(caption)}" '
        f'src="data:image/png;base64,{base64.b64encode(drawn).decode()}">'
        f"<figcaption>{text(caption)}</figcaption></figure>"
    )


def _line_samples(histories: Sequence[History]) -> list[str]:
    styles = line_styles(histories)
    return [
        '<svg class="sample" viewBox="0 0 26 8" aria-hidden="true"><line x1="1" y1="4" x2="25" y2="4" '
        f'stroke="var(--series-{styles[h.label].colour})" '
        f'stroke-dasharray="{" ".join(map(str, styles[h.label].dash))}"/></svg>'
        for h in (m.history for m in group_by_seed(histories))
    ]


def setting_text(value: object) -> str:
    # a setting as text; floats with ten digits, so that 0.1 + 0.2 reads 0.3
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:.10g}" if isinstance(value, float) else without_folders(str(value))
