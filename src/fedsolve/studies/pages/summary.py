"""What a page says first: the outcome in a sentence, one number of each claim, and the picture that shows it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fedsolve.studies.experiment import VERDICTS, Claim
from fedsolve.studies.pages.quotations import QUOTATIONS, paper_of

_WITH_INTERVAL = re.compile(r"[^;\]]*?\[(-?inf|-?[\d.e+-]+), (?:-?inf|-?[\d.e+-]+)\](?:(?!\. )[^,;\[(])*")
_OF_THE_TEST_SET = "with the test set's chance"
_LONGEST = 110
"""Characters of a number with its words."""

_SAID = {
    "partly": ("holds", "hold", "in part"),
    "not learnt": ("is", "are", "undecided, as methods have not learnt"),
    "not the paper's problem": ("is", "are", "not on the paper's problem"),
}


def outcome(claims: Sequence[Claim], without_paper: bool = False) -> str:
    """How many claims have which verdict, in one sentence; "" where none has any.

    >>> claims = [Claim("", "Table 1", "", "reproduced"), Claim("", "Table 1", "", "underpowered")]
    >>> outcome([*claims, Claim("", "Table 2", "", "reproduced", provisional="few seeds")])
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
    """A text of at most `_LONGEST` characters, at a space: what stands at the interval is kept."""
    if len(shown) <= _LONGEST:
        return shown
    if from_left:
        return f"… {shown[-_LONGEST:].partition(' ')[2]}"
    return f"{shown[:_LONGEST].rpartition(' ')[0]} …"


def curve_of(claim: Claim, captions: Mapping[str, str]) -> str:
    """The key of the picture whose caption shares most words with a claim, the first of several; "" without any."""

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
    """How many words a claim and a text share."""
    return len(_words(f"{claim.claim} {claim.theirs}") & _words(text))


def _words(text: str) -> set[str]:
    """Words of more than three letters, without their last letters, so that `rounds` is `round`."""
    return {word.rstrip("s")[:7] for word in re.findall(r"[a-z]{4,}", text.lower())}
