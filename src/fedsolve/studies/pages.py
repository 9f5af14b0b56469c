"""An experiment's results as files: a page, its pictures, its tables as CSV, and everything as JSON."""

from __future__ import annotations

import csv
import io
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
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
from fedsolve.studies.experiment import VERDICTS, Claim, Experiment, Outcome, command, is_users

# What a page says first: the outcome in a sentence, one number of each claim, and the picture that shows it.

_WITH_INTERVAL = re.compile(r"[^;\]]*?\[(-?inf|-?[\d.e+-]+), (?:-?inf|-?[\d.e+-]+)\](?:(?!\. )[^,;\[(])*")
_OF_THE_TEST_SET = "with the test set's chance"
_LONGEST = 110
"""Characters of a number with its words."""

_SAID = {
    "partly": ("holds", "hold", "in part"),
    "not learnt": ("is", "are", "undecided, as methods have not learnt"),
    "not the paper's problem": ("is", "are", "not on the paper's problem"),
}


def outcome_sentence(claims: Sequence[Claim], without_paper: bool = False) -> str:
    """How many claims have which verdict, in one sentence; "" where none has any.

    >>> claims = [Claim("", "Table 1", "", "reproduced"), Claim("", "Table 1", "", "underpowered")]
    >>> outcome_sentence([*claims, Claim("", "Table 2", "", "reproduced", provisional="few seeds")])
    'Of 3 claims of the paper, 2 are reproduced (1 provisional) and 1 is underpowered.'
    """
    judged = [claim for claim in claims if claim.verdict is not None]
    groups = {
        "claims of the paper": [c for c in judged if not c.own],
        "further claims": [c for c in judged if c.own],
    }
    groups = {"claims": judged} if without_paper else groups
    said = "; ".join(_counted(name, group) for name, group in groups.items() if group)
    return f"{said[0].upper()}{said[1:]}." if said else ""


def _counted(name: str, claims: Sequence[Claim]) -> str:
    words = []
    for verdict in VERDICTS:
        alike = [claim for claim in claims if claim.verdict == verdict]
        if alike:
            weak = sum(bool(claim.provisional) for claim in alike)
            is_, are, name_of = _SAID.get(verdict, ("is", "are", alike[0].shown_verdict))
            shown = f"{len(alike)} {is_ if len(alike) == 1 else are} {name_of.removesuffix(', provisional')}"
            words.append(shown + (f" ({weak} provisional)" if weak else ""))
    *first, last = words
    if len(claims) == 1:
        return f"1 {name.replace('claims', 'claim')}{last[1:]}"
    return f"of {len(claims)} {name}, {' and '.join([', '.join(first), last]) if first else last}"


def headline(ours: str) -> str:
    """One number of what was measured: of those with intervals the one that speaks least for the claim.

    >>> headline("A 3 ± 1, B 1 ± 1; A over B +2 [1.1, 2.9]; A over C +1 [-1, 3]")
    'A over C +1 [-1, 3]'
    >>> headline("log10 of the loss: A -3, B -1; A over B +2 [1, 3]")
    'A over B +2 [1, 3] in log10 of the loss'
    >>> headline("largest |x| of 4000 rounds: 0; nothing else")
    'largest |x| of 4000 rounds: 0'
    """
    found = [one for one in _WITH_INTERVAL.finditer(ours) if _OF_THE_TEST_SET not in one.group(0)]
    least = min(found, key=lambda one: float(one.group(1)), default=None)
    shown = least.group(0) if least else ours.partition(";")[0]
    shown = shown.strip(" ,;:.")
    scale = ours.partition(":")[0]
    if scale.startswith("log10") and not shown.startswith("log10"):
        shown = f"{shown} in {scale}"
    cut = shown
    if len(shown) > _LONGEST:  # at a space: what stands at the interval is kept
        cut = (
            f"… {shown[-_LONGEST:].partition(' ')[2]}"
            if least
            else f"{shown[:_LONGEST].rpartition(' ')[0]} …"
        )
    return cut + ")" * (cut.count("(") > cut.count(")"))


def quotation(claim: Claim, citation: str) -> str:
    """The paper's words on a claim: of those at the places that it names the ones most like it; "" without any.

    >>> quotation(Claim("FedMiD remains slow", "Figure 6 and A.2.2", "", None), "yuan2021fco")
    'The convergence of FedMiD and FedMiD-OSP remains slow'
    """
    unquoted = not claim.own and "“" not in claim.theirs
    places = QUOTATIONS.get(paper_of(claim.theirs, citation), {}) if unquoted else {}
    there = [words for place, quoted in places.items() if place in claim.theirs for words in quoted]
    return max(there, key=lambda words: _shared(claim, words), default="")


def _shared(claim: Claim, text: str) -> int:
    # how many words a claim and a text share
    return len(_words(f"{claim.claim} {claim.theirs}") & _words(text))


def _words(text: str) -> set[str]:
    # words of more than three letters, without their last letters, so that `rounds` is `round`
    return {word.rstrip("s")[:7] for word in re.findall(r"[a-z]{4,}", text.lower())}


QUOTATIONS: Mapping[str, Mapping[str, Sequence[str]]] = tomllib.loads(
    resources.files("fedsolve.studies").joinpath("quotations.toml").read_text(encoding="utf-8")
)
"""Key of a paper -> part of the text that names a place -> what stands there."""


def paper_of(theirs: str, citation: str) -> str:
    """The key of the paper that a claim is of: the study's, unless the claim begins with another paper's first author.

    >>> paper_of("Reddi et al., Table 1", "takakura2025feddua"), paper_of("Table 2", "takakura2025feddua")
    ('reddi2021fedopt', 'takakura2025feddua')
    """
    author = re.match(r"(\w+) et al\.", theirs)
    return next((key for key in QUOTATIONS if author and key.startswith(author[1].lower())), citation)


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
    # write `page.html`, `results.json`, one PNG a picture and one CSV a table; returns the page.
    #
    # Of a `quick` run all of it says that the numbers mean nothing.
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
    took = f"{seconds:.0f} s of processor time" if math.isfinite(seconds) else "made in several calls"
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
    first = f"{QUICK}: no claim has a verdict." if quick else outcome_sentence(outcome.claims, without_paper)
    heading, nothing = "Where this departs from the paper", "<p>Nowhere that we know of.</p>"
    if without_paper:  # its deviations, if it names any
        heading, nothing = "Deviations", ""
    settings = {str(key): dumps(value).strip('"') for key, value in outcome.settings.items()}
    parts = {
        "title": text(experiment.title),
        "context": text(f"{paper} · {took} · {provenance}"),
        "outcome": text(first),
        "intro": paragraphs(experiment.summary),
        "first": "\n".join(pictures[:1]),
        "claims": "\n".join(
            _claim(claim, without_paper, captions, experiment.citation) for claim in outcome.claims
        ),
        "pictures": "\n".join(pictures[1:]),
        "tables": "\n".join(section(t.caption, t.html()) for t in outcome.tables.values()),
        "theory": details("Theory", paragraphs(experiment.theory)),
        "deviations": details(heading, note_list(outcome.deviations) or nothing),
        "settings": details(
            "Settings", paragraphs(f"Run it again: {command(name)}") + definitions(settings, "facts")
        ),
        "style": static("page.css"),
        "scripts": static("sorting.js"),
    }
    return write_atomically(folder / "page.html", page_text("experiment.html", parts))


def is_without_paper(name: str, experiment: Experiment) -> bool:
    # whether an experiment is a user's own study that names no paper: nothing is said of one then
    return is_users(name) and not experiment.citation


def claim_facts(claims: Sequence[Claim], without_paper: bool) -> list[dict[str, Any]]:
    # claims as plain data; `theirs` is empty where there is no paper
    return [vars(c) | ({"theirs": ""} if without_paper and c.own else {}) for c in claims]


def _claim(claim: Claim, without_paper: bool, captions: Mapping[str, str], citation: str) -> str:
    # verdict, claim, what the paper says, one number and its picture; the rest is folded
    verdict = ""
    if claim.verdict is not None:
        verdict = (
            f'<span class="verdict" data-verdict="{text(claim.verdict)}">{text(claim.shown_verdict)}</span>'
        )
    number = headline(claim.ours)
    # the picture whose caption shares most words with the claim, the first of several
    key = max(captions, key=lambda key: _shared(claim, f"{key} {captions[key]}"), default="")
    curve = f' <a href="#{text(key)}">picture</a>' if key else ""
    rows = {
        "Measured": claim.ours if claim.ours != number else "",
        "Why": claim.reason,
        "Provisional": claim.provisional,
    }
    items = "".join(f"<dt>{name}</dt><dd>{text(value)}</dd>" for name, value in rows.items() if value)
    folded = details("Details", f"<dl>{items}</dl>") if items else ""
    quoted = quotation(claim, citation)
    said = f"{claim.theirs}: “{quoted}”" if quoted else claim.theirs
    theirs = "" if claim.own else f'<p class="theirs">{text(said)}</p>'
    if claim.own and not without_paper:
        theirs = '<p class="theirs">The paper makes no such claim.</p>'
    return (
        f'<article class="claim"><h3>{text(claim.claim)} {verdict}</h3>{theirs}'
        f"<p>{text(number)}{curve}</p>{folded}</article>"
    )
