"""Words that docs/glossary.md abandons do not come back, in code or in prose; files that still have them are listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
SECTION = "## Abandoned words"

ALLOWED: dict[str, set[str]] = {
    "lanes": {  # folders and options of earlier versions
        "docs/sweep.md",
        "src/fedsolve/cli/",
        "src/fedsolve/engine/sweep/",
        "src/fedsolve/folders/run_folder.py",
        "src/fedsolve/results/sweep_files.py",
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


def found(word: str, text: str) -> int:
    """How often a word stands in a text, with a phrase that goes on in an indented line or in a comment's next one."""
    pattern = r"(?:[ \t]+|\n[ \t]*#[ \t]|\n[ \t]+)".join(map(re.escape, word.split()))
    return len(re.findall(rf"(?<![\w-]){pattern}(?![\w-])", text, re.IGNORECASE))


def stands_in(word: str, path: Path) -> bool:
    """Whether a file has a word; a phrase of a page may go on in the next line."""
    text = path.read_text()
    return found(word, text.replace("\n", " ") if path.suffix == ".md" else text) > 0


@pytest.mark.parametrize("word", abandoned())
def test_an_abandoned_word_does_not_come_back(word):
    holding = {str(p.relative_to(ROOT)) for p in files() if stands_in(word, p)}
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
