"""An experiment's results as files: a page, its pictures, its tables as CSV, and everything as JSON."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
from fedsolve.studies.experiment import Claim, Experiment, Outcome, command, is_users

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
    without_paper = is_without_paper(name, experiment)
    provenance += f" · {QUICK}" if quick else ""
    document = {
        "experiment": name,
        "quick": quick,
        "claims": claim_facts(outcome.claims, without_paper),
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
    intro = f"{experiment.summary}\n\nRun it again: {command(name)}"
    intro = f"{QUICK}: no claim has a verdict.\n\n{intro}" if quick else intro
    settings = {str(key): dumps(value).strip('"') for key, value in outcome.settings.items()}
    parts = {
        "title": text(experiment.title),
        "context": text(f"{paper} · {_duration(seconds)} · {provenance}"),
        "intro": paragraphs(intro),
        "claims": "\n".join(_claim(claim, without_paper) for claim in outcome.claims),
        "theory": section("Theory", paragraphs(experiment.theory)),
        "pictures": "\n".join(pictures),
        "tables": "\n".join(section(t.caption, t.html()) for t in outcome.tables.values()),
        "deviations": _deviations(outcome.deviations, without_paper),
        "settings": definitions(settings, "facts"),
        "style": static("page.css"),
        "scripts": static("sorting.js"),
    }
    return write_atomically(folder / "page.html", page_text("experiment.html", parts))


def is_without_paper(name: str, experiment: Experiment) -> bool:
    """Whether an experiment is a user's own study that names no paper: nothing is said of one then."""
    return is_users(name) and not experiment.citation


def claim_facts(claims: Sequence[Claim], without_paper: bool) -> list[dict[str, Any]]:
    """Claims as plain data; `theirs` is empty where there is no paper."""
    return [vars(c) | ({"theirs": ""} if without_paper and c.own else {}) for c in claims]


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s of processor time" if math.isfinite(seconds) else "made in several calls"


def _deviations(deviations: Sequence[str], without_paper: bool) -> str:
    """Where it departs from the paper; of a study without one its deviations, if it names any."""
    if without_paper:
        return section("Deviations", note_list(deviations))
    return section(
        "Where this departs from the paper", note_list(deviations) or "<p>Nowhere that we know of.</p>"
    )


def _claim(claim: Claim, without_paper: bool) -> str:
    rows = {
        "Paper": "makes no such claim" if claim.own else claim.theirs,
        "This run": claim.ours, "Why": claim.reason, "Provisional": claim.provisional,
    }  # fmt: skip
    if without_paper and claim.own:
        rows = {"Result": rows.pop("This run"), **rows, "Paper": ""}
    items = "".join(f"<dt>{name}</dt><dd>{text(value)}</dd>" for name, value in rows.items() if value)
    verdict = ""
    if claim.verdict is not None:
        verdict = (
            f'<span class="verdict" data-verdict="{text(claim.verdict)}">{text(claim.shown_verdict)}</span>'
        )
    return f'<article class="claim"><h3>{text(claim.claim)} {verdict}</h3><dl>{items}</dl></article>'
