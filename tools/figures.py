"""The index of the papers' figures: `docs/figures.md` and `experiments/index.html`, from what experiments have kept.

Both say of each figure, table and theorem which experiments repeat it, in which size, and the verdicts of their pages.
"""

from __future__ import annotations

import importlib
import importlib.resources
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

from fedsolve.config.catalogue import short, title
from fedsolve.studies.experiment import VERDICTS, Claim
from fedsolve.studies.pages import paper_of
from fedsolve.studies.reproduce import find, program_folders

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # of the package `experiments`

from experiments.figures import BESIDE, ITEMS, NEWER, OURS, SIZES, Item  # noqa: E402

TITLE = "Reproduced figures and tables"
DRAWN = "plotted, no verdict"
"""Of a figure that an experiment shows, and of which none of its claims is."""
PROVISIONAL = ", provisional"
OTHERS = "Other experiments"
INTRO = (
    "For readers of the five papers: the outcome for each figure, table and theorem.",
    "docs/studies.md defines the verdicts. Sizes: "
    + "; ".join(f"{size}: {meaning}" for size, meaning in SIZES.items() if size != "none")
    + ".",
)


@dataclass(frozen=True)
class Kept:
    """What the repository keeps of an experiment.

    Attributes:
        name: of the experiment.
        page: below experiments/.
        verdicts: each with its words and how many claims have it, in the order of pages; None if it was not run.
    """

    name: str
    page: str
    verdicts: list[tuple[str, str, int]] | None

    @classmethod
    def of(cls, name: str, cited: str = "", paper: str = "") -> Kept:
        """As it lies in the repository: the claims that cite a figure, table or theorem of a paper, all if none."""
        folder = program_folders()[name]
        page = f"{folder.parent.name}/{folder.name}/page.html"
        results = folder / "results.json"
        if not results.exists():
            return cls(name, page, None)
        claims = [Claim(**claim) for claim in json.loads(results.read_text())["claims"]]
        if any(paper_of(c.theirs, "") for c in claims):  # of several papers
            claims = [c for c in claims if not paper or paper_of(c.theirs, find(name).citation) == paper]
        citing = [c for c in claims if c.own] if cited == OURS else []
        for names in ([cited], places(cited)) if cited else ():  # of a table's parts that which is asked for
            citing = citing or [
                c for c in claims if not c.own and any(cites(c.theirs, name) for name in names)
            ]
        found = Counter((c.verdict or "", c.shown_verdict) for c in (citing if cited else claims))
        order = sorted(found, key=lambda one: (VERDICTS.index(one[0]), len(one[1])))  # type: ignore[arg-type]
        return cls(name, page, [(*one, found[one]) for one in order])


def cites(theirs: str, place: str) -> bool:
    """Whether what a claim says of a paper names a place in it.

    >>> cites("Figure 13 and A.5.2", "Figure 1"), cites("Abstract: at par", "abstract")
    (False, True)
    """
    return re.search(rf"{re.escape(place)}(?![\w.]*\d)", theirs, re.IGNORECASE) is not None


def places(text: str) -> list[str]:
    """The figures, tables, sections and so on that a text names, one by one.

    >>> places("Theorems 1 to 3, Figures 2 and 4"), places("Appendix E.4")
    (['Theorem 1', 'Theorem 2', 'Theorem 3', 'Figure 2', 'Figure 4'], ['Appendix E.4'])
    """
    found = []
    kinds = r"(Figure|Table|Theorem|Lemma|Remark|Section|Appendix)s? ([A-Z]?[.\d]*(?:(?:, | and | to )\d+)*)"
    for kind, numbers in re.findall(kinds, text):
        first, _, last = numbers.partition(" to ")
        every = [str(i) for i in range(int(first), int(last) + 1)] if last else re.split(", | and ", numbers)
        found += [f"{kind} {number}" for number in every]
    return found


def markdown() -> str:
    """`docs/figures.md`."""

    def shown(kept: Kept) -> str:
        if kept.verdicts is None:
            return f"`{kept.name}`"
        verdicts: dict[str, list[int]] = {}  # by name: how many, and how many of them are provisional
        for _, words, count in kept.verdicts:
            counts = verdicts.setdefault(words.replace(PROVISIONAL, ""), [0, 0])
            counts[0] += count
            counts[1] += count * words.endswith(PROVISIONAL)
        listed = (
            f"{n} {words}" + ("" if not weak else "†" if weak == n else f" ({weak}†)")
            for words, (n, weak) in verdicts.items()
        )
        return f"[`{kept.name}`](../experiments/{kept.page}) " + (", ".join(listed) or DRAWN)

    intro = "\n\n".join(INTRO).replace("docs/studies.md", "`docs/studies.md`")
    lines = [
        f"# {TITLE}",
        "",
        intro,
        "",
        "`fedsolve reproduce NAME` runs an experiment. † marks provisional verdicts. "
        f"[The list of all experiments](../experiments/index.html) has {len(BESIDE) - len(NEWER)} on other questions.",
        "",
        f"Papers that follow the five: {'; '.join(shown(Kept.of(name)) for name in NEWER)}.",
    ]
    for heading, rows in _sections(shown):
        if heading == OTHERS:
            continue
        lines += ["", f"## {heading}", ""]
        none: dict[str, list[str]] = {}  # by the reason
        for name, _, size, found, experiments in rows:
            if size == "none":
                none.setdefault(experiments[0], []).append(name)
            run = [text for text in experiments if "](" in text]
            if run:
                outcome = f"{found[:1].upper()}{found[1:]}. " if found else ""
                lines.append(f"* **{name}** ({size}): {outcome}{'; '.join(run)}.")
        reasons = (f"{', '.join(names)} ({reason})" for reason, names in none.items())
        lines += [f"* No experiment: {'; '.join(reasons)}."] if none else []
    return "\n".join([*lines, ""])


def page() -> str:
    """`experiments/index.html`, with links to the pages beside it."""

    def shown(kept: Kept) -> str:
        name = escape(kept.name)
        if kept.verdicts is None:
            return f"{name}: not run"
        badges = (
            f'<span class="verdict" data-verdict="{escape(verdict)}">{count} {escape(words)}</span>'
            for verdict, words, count in kept.verdicts
        )
        return f'<a href="{escape(kept.page)}">{name}</a> {" ".join(badges) or DRAWN}'

    sections = []
    for heading, rows in _sections(shown):
        head = "".join(
            f'<th scope="col">{h}</th>' for h in ("", "Subject", "Size", "Outcome", "Experiment and verdicts")
        )
        body = "\n".join(
            f'<tr><th scope="row">{escape(name)}</th><td>{escape(shows)}</td><td>{size}</td>'
            f"<td>{escape(found)}</td><td>{'<br>'.join(experiments)}</td></tr>"
            for name, shows, size, found, experiments in rows
        )
        sections.append(
            f'<section>\n<h2>{escape(heading)}</h2>\n<div class="scroll" tabindex="0" role="region" '
            f'aria-label="{escape(heading)}"><table class="words"><thead><tr>{head}</tr></thead>\n'
            f"<tbody>\n{body}\n</tbody></table></div>\n</section>"
        )
    style = (importlib.resources.files("fedsolve.report") / "static" / "page.css").read_text(encoding="utf-8")
    intro = "\n".join(f"<p>{escape(paragraph)}</p>" for paragraph in INTRO)
    return _PAGE.format(title=escape(TITLE), style=style, intro=intro, sections="\n".join(sections))


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}
table.words td, table.words th {{ text-align: left; white-space: normal; vertical-align: top; }}
table.words td:last-child {{ min-width: 13rem; line-height: 1.9; }}
table.words a {{ color: var(--accent); }}
@media (max-width: 40rem) {{ /* a row is a card: its four columns do not fit side by side */
  table.words, table.words tbody, table.words tr, table.words th, table.words td {{ display: block; }}
  table.words thead {{ display: none; }}
  table.words tr {{ padding: 0.5rem 0; border-bottom: 1px solid var(--rule); }}
  table.words tr > * {{ padding: 0.1rem 0.75rem; border: 0; }}
  table.words tr > :empty {{ display: none; }}
}}
</style>
</head>
<body>
<header>
<p class="brand">fedsolve</p>
<h1>{title}</h1>
</header>
<main>
<section class="lead">
{intro}
</section>
{sections}
</main>
</body>
</html>
"""

Row = tuple[str, str, str, str, list[str]]
"""Name, subject, size, outcome, experiments with their verdicts."""


def _sections(shown: Callable[[Kept], str]) -> Iterator[tuple[str, list[Row]]]:
    for paper, items in groupby(ITEMS, key=lambda item: item.paper):
        yield f"{short(paper)}, “{title(paper)}”", [_row(item, shown) for item in items]
    yield (
        OTHERS,
        [(name, text, "", "", [shown(Kept.of(name))]) for name, text in BESIDE.items()],
    )


def _row(item: Item, shown: Callable[[Kept], str]) -> Row:
    words = [shown(Kept.of(name, item.name, item.paper)) for name in item.experiments]
    run = any((program_folders()[name] / "results.json").exists() for name in item.experiments)
    return (
        item.name,
        item.shows,
        item.size,
        item.found if run else "",
        [*words, *([item.note] if item.note else [])],
    )
