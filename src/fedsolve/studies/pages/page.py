"""An experiment's results as files: a page, its pictures, its tables as CSV, and everything as JSON."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsolve.config.catalogue import short, title
from fedsolve.folders.files import write_atomically
from fedsolve.report.markup import (
    definitions,
    details,
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
from fedsolve.studies.pages import summary

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
    captions, pictures = {}, []
    for key, draw in outcome.pictures.items():
        captions[key], figure = draw()
        drawn = png(figure)
        write_atomically(folder / f"{key}.png", drawn)
        pictures.append(picture(captions[key], drawn, key))
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
    first = (
        f"{QUICK}: no claim has a verdict."
        if quick
        else summary.outcome_sentence(outcome.claims, without_paper)
    )
    settings = {str(key): dumps(value).strip('"') for key, value in outcome.settings.items()}
    parts = {
        "title": text(experiment.title),
        "context": text(f"{paper} · {_duration(seconds)} · {provenance}"),
        "outcome": text(first),
        "intro": paragraphs(experiment.summary),
        "first": "\n".join(pictures[:1]),
        "claims": "\n".join(
            _claim(claim, without_paper, captions, experiment.citation) for claim in outcome.claims
        ),
        "pictures": "\n".join(pictures[1:]),
        "tables": "\n".join(section(t.caption, t.html()) for t in outcome.tables.values()),
        "theory": details("Theory", paragraphs(experiment.theory)),
        "deviations": _deviations(outcome.deviations, without_paper),
        "settings": details(
            "Settings", paragraphs(f"Run it again: {command(name)}") + definitions(settings, "facts")
        ),
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
        return details("Deviations", note_list(deviations))
    return details(
        "Where this departs from the paper", note_list(deviations) or "<p>Nowhere that we know of.</p>"
    )


def _claim(claim: Claim, without_paper: bool, captions: Mapping[str, str], citation: str) -> str:
    """Verdict, claim, what the paper says, one number and its picture; the rest is folded."""
    verdict = ""
    if claim.verdict is not None:
        verdict = (
            f'<span class="verdict" data-verdict="{text(claim.verdict)}">{text(claim.shown_verdict)}</span>'
        )
    number, key = summary.headline(claim.ours), summary.curve_of(claim, captions)
    curve = f' <a href="#{text(key)}">picture</a>' if key else ""
    rows = {
        "Measured": claim.ours if claim.ours != number else "",
        "Why": claim.reason,
        "Provisional": claim.provisional,
    }
    items = "".join(f"<dt>{name}</dt><dd>{text(value)}</dd>" for name, value in rows.items() if value)
    folded = details("Details", f"<dl>{items}</dl>") if items else ""
    quoted = summary.quotation(claim, citation)
    said = f"{claim.theirs}: “{quoted}”" if quoted else claim.theirs
    theirs = "" if claim.own else f'<p class="theirs">{text(said)}</p>'
    if claim.own and not without_paper:
        theirs = '<p class="theirs">The paper makes no such claim.</p>'
    return (
        f'<article class="claim"><h3>{text(claim.claim)} {verdict}</h3>{theirs}'
        f"<p>{text(number)}{curve}</p>{folded}</article>"
    )
