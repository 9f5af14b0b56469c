"""Words that docs/glossary.md abandons do not come back: code, help texts, pages, tutorials, templates of apps."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command

from fedsolve.cli.main import app

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
SECTION, IN_PAGES = "## Abandoned words", "### In pages"

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


def abandoned(everywhere: bool = True) -> list[str]:
    """Each word or phrase that is not to be used: everywhere, or in what users read."""
    lists = GLOSSARY.read_text().split(SECTION)[1].split(IN_PAGES)
    return [word for row in terms(lists[0 if everywhere else 1]) for word in row.split(", ")]


def files() -> list[Path]:
    """What is searched: code, pages, programs to copy and templates; a kept result says what it said."""
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.md"), ROOT / "Makefile"]
    pages += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    programs = [p for f in ("src", "tools", "examples", "docs") for p in (ROOT / f).rglob("*.py")]
    templates = (ROOT / "src").rglob("templates/*.txt")  # of `fedsolve federate new`
    kept = ROOT / "src" / "fedsolve" / "experiments"  # programs of studies, whose pages are kept
    return [p for p in [*pages, *programs, *templates] if p != GLOSSARY and kept not in p.parents]


@cache
def texts() -> dict[str, tuple[str, str]]:
    """What is searched, by its place: as it is read, a page as one line, and in small letters."""
    read = {p: p.read_text().replace("\n", " " if p.suffix == ".md" else "\n") for p in files()}
    return {str(path.relative_to(ROOT)): (text, text.lower()) for path, text in read.items()}


@cache
def texts_for_users() -> dict[str, str]:
    """Pages, tutorials and templates by their place, and the help text of every command."""
    pages = (".md", ".txt", "Makefile")
    read = {p: t for p, (t, _) in texts().items() if p.endswith(pages) or p.startswith("docs/")}
    return read | dict(helps("fedsolve", get_command(app)))


def helps(name, command):
    """The help text of a command and of its options, by its name; those of its sub-commands likewise."""
    options = [getattr(option, "help", None) or "" for option in command.params]
    yield name, "\n".join([command.help or "", command.short_help or "", *options])
    for inner, sub in getattr(command, "commands", {}).items():
        yield from helps(f"{name} {inner}", sub)


def found(word: str, text: str) -> int:
    """How often a word stands in a text; a phrase may go on in an indented line, a comment or a string's next part."""
    next_part = r'[ \t]+|\n[ \t]*#[ \t]|\n[ \t]+|[ \t]*"\n[ \t]*f?"[ \t]*'
    pattern = rf"(?:{next_part})".join(map(re.escape, word.split()))
    return len(re.findall(rf"(?<![\w-]){pattern}(?![\w-])", text, re.IGNORECASE))


@pytest.mark.parametrize("word", abandoned())
def test_an_abandoned_word_does_not_come_back(word):
    first = word.split()[0].lower()
    holding = {place for place, (text, small) in texts().items() if first in small and found(word, text)}
    allowed = tuple(ALLOWED.get(word, ()))
    assert [p for p in sorted(holding) if not p.startswith(allowed)] == [], (
        "docs/glossary.md has the word to use"
    )


@pytest.mark.parametrize("word", abandoned(everywhere=False))
def test_nor_one_that_users_should_not_read(word):
    assert [place for place, text in texts_for_users().items() if found(word, text)] == []


def test_help_texts_and_templates_are_searched():
    places = texts_for_users()
    assert "Port of the SuperLink" in places["fedsolve federate demo"]
    assert "larger norm" in places["src/fedsolve/cli/federation/templates/pyproject.toml.txt"]
    assert {"docs/tutorials/sweep.py", "docs/gallery.py", "README.md", "Makefile"} <= set(places)


def test_words_are_found_in_whole():
    assert found("league", "the League of `tuning-free-league/` and leagues") == 1
    assert found("told from", "told from\ntold\n    from\n# told\n# from") == 3
    assert found("told from", "import told\nfrom x import y") == 0
    assert found("told from", 'help="cannot be told "\n    "from others"') == 1
    assert found("lanes", "lanes/ and lanes.safetensors, not lanes_of, bus-lanes") == 2


def test_each_term_has_one_row():
    page = GLOSSARY.read_text().split(SECTION)[0]
    rows = [row.split(", ") for row in terms(page)]
    known = [term for row in rows for term in row]
    assert len(known) == len(set(known))
    assert rows == sorted(rows, key=lambda row: row[0].lower())
    assert not set(known) & {*abandoned(), *abandoned(everywhere=False)}
