"""Words that docs/glossary.md abandons do not come back, in code or in prose; files that still have them are listed."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
SECTION = "## Abandoned words"

ALLOWED: dict[str, set[str]] = {
    "lanes": {  # folders and options of earlier versions
        "docs/sweep.md",
        "src/fedsolve/cli/",
        "src/fedsolve/engine/sweep",
        "src/fedsolve/folders/run_folder.py",
        "src/fedsolve/results/sweep.py",
    },
}
"""Word -> files and folders that still have it; no new ones."""


def terms(page: str) -> list[str]:
    """What each item of a list is about, which stands before its colon."""
    return [line[2:].partition(":")[0] for line in page.splitlines() if line.startswith("* ")]


def abandoned() -> list[str]:
    """Each word or phrase that is not to be used."""
    return [word for row in terms(GLOSSARY.read_text().split(SECTION)[1]) for word in row.split(", ")]


def files() -> list[Path]:
    """What is searched: the package, its pages, and programs to copy; a kept result says what it said."""
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    programs = [p for f in ("src", "tools", "examples", "docs/tutorials") for p in (ROOT / f).rglob("*.py")]
    kept = ROOT / "src" / "fedsolve" / "experiments"  # programs of studies, whose pages are kept
    return [path for path in [*pages, *programs] if path != GLOSSARY and kept not in path.parents]


@cache
def texts() -> dict[str, tuple[str, str]]:
    """What is searched, by its place: as it is read, a page as one line, and in small letters."""
    read = {p: p.read_text().replace("\n", " " if p.suffix == ".md" else "\n") for p in files()}
    return {str(path.relative_to(ROOT)): (text, text.lower()) for path, text in read.items()}


def found(word: str, text: str) -> int:
    """How often a word stands in a text, with a phrase that goes on in an indented line or in a comment's next one."""
    pattern = r"(?:[ \t]+|\n[ \t]*#[ \t]|\n[ \t]+)".join(map(re.escape, word.split()))
    return len(re.findall(rf"(?<![\w-]){pattern}(?![\w-])", text, re.IGNORECASE))


@pytest.mark.parametrize("word", abandoned())
def test_an_abandoned_word_does_not_come_back(word):
    first = word.split()[0].lower()
    holding = {place for place, (text, small) in texts().items() if first in small and found(word, text)}
    allowed = tuple(ALLOWED.get(word, ()))
    assert [p for p in sorted(holding) if not p.startswith(allowed)] == [], (
        "docs/glossary.md has the word to use"
    )


def test_words_are_found_in_whole():
    assert found("league", "the League of `tuning-free-league/` and leagues") == 1
    assert found("told from", "told from\ntold\n    from\n# told\n# from") == 3
    assert found("told from", "import told\nfrom x import y") == 0
    assert found("lanes", "lanes/ and lanes.safetensors, not lanes_of, bus-lanes") == 2


def test_each_term_has_one_row():
    page = GLOSSARY.read_text().split(SECTION)[0]
    rows = [row.split(", ") for row in terms(page)]
    known = [term for row in rows for term in row]
    assert len(known) == len(set(known))
    assert rows == sorted(rows, key=lambda row: row[0].lower())
    assert not set(known) & set(abandoned())
