"""An experiment's results as files: a page, its pictures, its tables as CSV, and everything as JSON."""

from __future__ import annotations

import csv
import io
import math
import re
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
    'Of 3 statements of the paper 2 are reproduced (1 provisional) and 1 is underpowered.'
    """
    judged = [claim for claim in claims if claim.verdict is not None]
    groups = {
        "statements of the paper": [c for c in judged if not c.own],
        "statements of ours": [c for c in judged if c.own],
    }
    groups = {"statements": judged} if without_paper else groups
    said = [_counted(name, group) for name, group in groups.items() if group]
    return "; of ".join(said).join(("Of ", ".")) if said else ""


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
    name = name if len(claims) > 1 else name.replace("statements", "statement")
    return f"{len(claims)} {name} {' and '.join([', '.join(first), last]) if first else last}"


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
    cut = _cut(shown, from_left=least is not None)
    return cut + ")" * (cut.count("(") > cut.count(")"))


def _cut(shown: str, from_left: bool) -> str:
    # a text of at most `_LONGEST` characters, at a space: what stands at the interval is kept
    if len(shown) <= _LONGEST:
        return shown
    if from_left:
        return f"… {shown[-_LONGEST:].partition(' ')[2]}"
    return f"{shown[:_LONGEST].rpartition(' ')[0]} …"


def curve_of(claim: Claim, captions: Mapping[str, str]) -> str:
    # the key of the picture whose caption shares most words with a claim, the first of several; "" without any
    return max(captions, key=lambda key: _shared(claim, f"{key} {captions[key]}"), default="")


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


QUOTATIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "takakura2025feddua": {
        "Figure 1": ("FedDuA consistently outperforms existing methods across all datasets",),
        "Table 2": (
            "FedDuA consistently outperforms existing methods across all datasets",
            "non-momentum methods perform better or comparable in the other datasets",
        ),
        "Figure 2": (
            "the performance of FedDuA is not sensitive to the choice of epsilon_g. Furthermore, epsilon_g = 0 is "
            "sufficient to achieve good performance",
        ),
        "Figure 3": (
            "vanilla SCAFFOLD does not outperform FedAvg, [...] but FedDuA with SCAFFOLD outperforms the other methods",
        ),
        "Figure 6": ("FedProx-type local training does not improve performance in our setup",),
        "Figure 8": ("FedDuA converges faster than other methods in terms of training loss",),
        "Section 1": ("FedDuA is orthogonal to the existing methods which [modify] the local training procedure",),
    },
    "reddi2021fedopt": {
        "Stack Overflow LR": (
            "adaptive optimizers dramatically outperform non-adaptive ones",
            "FedAdagrad is the best optimizer, and is robust to tau",
        ),
        "Figure 2": (
            "For FedAvgM, there are only a few good values [of the client rate] for each [server rate], while for "
            "FedAdam and FedYogi, there are many",
        ),
        "Figure 3": ("tau = 1e-3 works almost as well all other values",),
        "EMNIST CR": ("FedAdam and FedYogi perform comparably to or better than non-adaptive optimizers throughout",),
        "Appendix E.4": ("the inverse relationship between [the two rates] in Corollary 1 & 2, which we observe",),
    },
    "dadras2024fedfw": {
        "Figure 1 and": (
            "The Deep Leakage Algorithm can recover CIFAR-100 data points from shared gradients. Sharing linear "
            "minimization outputs enhances privacy",
        ),
        "Table 3": ("FedFW-sto outperformed FedDR in our experiments in the stochastic setting",),
        "Figure 2": ("faster convergence for higher participation probability",),
        "Figure 3": ("faster convergence for higher participation probability",),
        "Figure 4": ("A higher [lam0] leads to a larger gap in the initial iterations",),
        "Section 4.3": ("This modification does not affect the solution set, due to the consensus constraint",),
        "Section 6": ("an empirically faster version of FedFW",),
    },
    "geetika2024fedli": {
        "Lemma 3": ("for convex objectives the descent in the global function comes for free",),
    },
    "yuan2021fco": {
        "Figure 3": (
            "FedDualAvg not only identifies most of the sparsity pattern but also is fastest",
            "the less-principled FedDualAvg-OSP is also very competitive",
            "The poor performance of FedMiD",
            "corroborated empirically by the least sparse solution obtained by FedMiD",
        ),
        "A.2.2": (
            "FedDualAvg converges to the perfect F1-score in less than 100 rounds, which outperforms the other "
            "baselines by a margin",
            "The convergence of FedMiD and FedMiD-OSP remains slow",
            "The F1-score of FedDualAvg-OSP converges faster on these sparser datasets",
        ),
        "A.2.3": (
            "all the four algorithms take more rounds to converge",
            "FedDualAvg manages to find perfect F1-score in less than 200 rounds, which outperforms the other "
            "algorithms significantly",
            "FedDualAvg-OSP can recover an almost perfect F1-score after 500 rounds",
            "FedMiD and FedMiD-OSP have very limited progress within 500 rounds",
        ),
        "Figure 4": (
            "FedDualAvg finds the solution with exact rank in less than 100 communication rounds",
            "FedMiD and FedMiD-OSP converge slower in loss and rank",
            "FedDualAvg-OSP can generate low-rank solutions but is far less accurate",
        ),
        "A.3.2": (
            "FedDualAvg can recover the exact rank in less than 100 rounds, which outperforms the other baselines by a "
            "margin",
            "FedDualAvg-OSP can recover a low-rank solution but is less accurate",
            "The convergence of FedMiD and FedMiD-OSP remains slow",
        ),
        "A.3.3": (
            "FedDualAvg manages to find exact rank in less than 200 rounds, which outperforms the other "
            "algorithms significantly",
        ),
        "Figure 1: sig": ("[FedDualAvg] significantly outperforms the local baseline [...] and the FedAvg baseline",),
        "Figure 5": (
            "FedDualAvg yields sparse and accurate solutions that are comparable with the centralized baseline",
            "FedMiD and FedMiD-OSP provides denser solutions that are relatively less accurate",
            "FedDualAvg-OSP can provide sparse solutions but far less accurate",
        ),
        "Figure 12": (
            "FedDualAvg recovers sparse and accurate solutions, and is robust to learning-rate configurations",
        ),
        "Figure 13": (
            "FedDualAvg outperforms the other three algorithms by a margin",
            "the other three algorithms behave very closely in terms of the three metrics tested",
        ),
        "Figure 14": (
            "FedDualAvg outperforms the FedMiD and FedMiD-OSP in all three metrics",
            "FedMiD and FedMiD-OSP share very similar trajectories",
            "FedDualAvg-OSP behaves much worse in training loss",
            "the training accuracy and validation accuracy [of FedDualAvg-OSP] are better",
        ),
        "Figure 15": (
            "FedDualAvg outperforms FedMiD and FedMiD-OSP in all three metrics",
            "FedMiD and FedMiD-OSP share similar trajectories",
            "FedDualAvg-OSP behaves much worse (which is out of the plotting ranges)",
        ),
    },
}  # fmt: skip
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
    # whether an experiment is a user's own study that names no paper: nothing is said of one then
    return is_users(name) and not experiment.citation


def claim_facts(claims: Sequence[Claim], without_paper: bool) -> list[dict[str, Any]]:
    # claims as plain data; `theirs` is empty where there is no paper
    return [vars(c) | ({"theirs": ""} if without_paper and c.own else {}) for c in claims]


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s of processor time" if math.isfinite(seconds) else "made in several calls"


def _deviations(deviations: Sequence[str], without_paper: bool) -> str:
    # where it departs from the paper; of a study without one its deviations, if it names any
    if without_paper:
        return details("Deviations", note_list(deviations))
    return details(
        "Where this departs from the paper", note_list(deviations) or "<p>Nowhere that we know of.</p>"
    )


def _claim(claim: Claim, without_paper: bool, captions: Mapping[str, str], citation: str) -> str:
    # verdict, claim, what the paper says, one number and its picture; the rest is folded
    verdict = ""
    if claim.verdict is not None:
        verdict = (
            f'<span class="verdict" data-verdict="{text(claim.verdict)}">{text(claim.shown_verdict)}</span>'
        )
    number, key = headline(claim.ours), curve_of(claim, captions)
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
