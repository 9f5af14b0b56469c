"""An experiment's results as files: a page, its pictures, its tables as CSV, and everything as JSON."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

from fedsolve.config.bibliography import short, title
from fedsolve.folders.files import write_atomically
from fedsolve.report.markup import (
    definitions,
    note_list,
    page_text,
    paragraphs,
    picture,
    section,
    static,
    text,
)
from fedsolve.report.plots import png
from fedsolve.results.columns import dumps
from fedsolve.studies.experiment import Claim, Experiment, Outcome, command

QUICK = "QUICK: not the experiment, its numbers mean nothing"
"""What is said of a quick run wherever its numbers are shown."""


def write_results(
    folder: Path,
    name: str,
    experiment: Experiment,
    outcome: Outcome,
    seconds: float,
    provenance: str,
    quick: bool = False,
) -> Path:
    """Write `page.html`, `results.json`, one PNG a picture and one CSV a table; returns the page.

    Of a `quick` run all of it says that the numbers mean nothing.

    Raises:
        InvalidInput: the folder cannot be written.
    """
    pictures = []  # a caption may stand under several
    for key, draw in outcome.pictures.items():
        caption, figure = draw()
        drawn = png(figure)
        write_atomically(folder / f"{key}.png", drawn)
        pictures.append(picture(caption, drawn))
    for key, table in outcome.tables.items():
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(table.head)
        writer.writerows(table.rows)
        write_atomically(folder / f"{key}.csv", buffer.getvalue())
    provenance += f" · {QUICK}" if quick else ""
    document = {
        "experiment": name,
        "quick": quick,
        "claims": [vars(claim) for claim in outcome.claims],
        "deviations": list(outcome.deviations),
        "settings": dict(outcome.settings),
        "seconds": round(seconds, 1) if math.isfinite(seconds) else None,
        "made_with": provenance,
    }
    write_atomically(folder / "results.json", dumps(document, indent=2) + "\n")
    paper = "A study"
    if experiment.citation:
        named = title(experiment.citation)  # "" of a key that is none of ours
        paper = short(experiment.citation) + (f", “{named}”" if named else "")
    intro = f"{experiment.summary}\n\nMade again by: {command(name)}"
    intro = f"{QUICK}: no claim has a verdict.\n\n{intro}" if quick else intro
    settings = {str(key): dumps(value).strip('"') for key, value in outcome.settings.items()}
    parts = {
        "title": text(experiment.title),
        "context": text(f"{paper} · {_duration(seconds)} · {provenance}"),
        "intro": paragraphs(intro),
        "claims": "\n".join(map(_claim, outcome.claims)),
        "theory": section("Theory", paragraphs(experiment.theory)),
        "pictures": "\n".join(pictures),
        "tables": "\n".join(section(t.caption, t.html()) for t in outcome.tables.values()),
        "deviations": note_list(outcome.deviations) or "<p>Nowhere that we know of.</p>",
        "settings": definitions(settings, "facts"),
        "style": static("page.css"),
        "scripts": static("sorting.js"),
    }
    return write_atomically(folder / "page.html", page_text("experiment.html", parts))


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s of processor time" if math.isfinite(seconds) else "made in several calls"


def _claim(claim: Claim) -> str:
    rows = {
        "Theirs": claim.theirs, "Ours": claim.ours, "Why": claim.reason, "Provisional": claim.provisional,
    }  # fmt: skip
    items = "".join(f"<dt>{name}</dt><dd>{text(value)}</dd>" for name, value in rows.items() if value)
    verdict = ""
    if claim.verdict is not None:
        verdict = (
            f'<span class="verdict" data-verdict="{text(claim.verdict)}">{text(claim.shown_verdict)}</span>'
        )
    return f'<article class="claim"><h3>{text(claim.claim)} {verdict}</h3><dl>{items}</dl></article>'
