"""Lint the prose of the pages with proselint, and with the words that docs/glossary.md abandons.

python tools/prose.py                  # all pages; exit code 1 where something is found
python tools/prose.py docs/sweep.md

Code, formulas and links are no prose. tools/proselint.json chooses the checks. Nothing is read from elsewhere.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from proselint.checks import __register__
from proselint.config import Config
from proselint.registry import CheckRegistry
from proselint.registry.checks import Check, Padding
from proselint.registry.checks.engine import Fancy
from proselint.registry.checks.types import PreferredForms
from proselint.tools import LintFile

ROOT = Path(__file__).parent.parent
GLOSSARY = ROOT / "docs" / "glossary.md"
CODE = re.compile(
    r"^ *(?P<fence>`{3,}|~{3,}).*?^ *(?P=fence)"  # fenced blocks, formulas among them
    r"|(?<=\n\n)(?: {4}[^\n]*\n)+"  # indented blocks
    r"|`[^`\n]+`|\$[^$\n]+\$"  # code and formulas within a line
    r"|(?<=\])\([^)\s]*\)|<[^>\n]*>|https?://\S+",  # targets of links, tags, addresses
    re.MULTILINE | re.DOTALL,
)


def prose(page: str) -> str:
    """A page whose code, formulas and links are signs that no check reads; each character keeps its place.

    >>> prose("Use `x = 1`, see [here](docs/sweep.md).")
    'Use ¤¤¤¤¤¤¤, see [here]¤¤¤¤¤¤¤¤¤¤¤¤¤¤¤.'
    """
    return CODE.sub(lambda found: re.sub(r"[^\n]", "¤", found[0]), page)


def vocabulary(glossary: str) -> dict[str, str]:
    """Each word that the glossary abandons, with what it says in its place.

    >>> vocabulary("## Abandoned words\\n\\n* old, older: new\\n")
    {'old': 'new', 'older': 'new'}
    """
    items = re.findall(r"^\* ([^:\n]+): (.+)$", glossary.partition("## Abandoned words")[2], re.MULTILINE)
    return {word.lower(): instead for words, instead in items for word in words.split(", ")}


def checks(words: dict[str, str]) -> Config:
    """What is checked: proselint's own checks and the vocabulary, as tools/proselint.json chooses."""
    patterns = {re.escape(word).replace("\\ ", r"\s+"): instead for word, instead in words.items()}
    own = Check(
        PreferredForms(patterns, padding=Padding.STRICT_WORDS_IN_TEXT),  # not in `tuning-free-league`
        engine=Fancy(),
        path="glossary",
        message="say '{}' in place of '{}' (docs/glossary.md)",
    )
    registry = CheckRegistry()
    if not registry.checks:
        registry.register_many((*__register__, own))
    return Config(max_errors=1000, checks=json.loads((ROOT / "tools" / "proselint.json").read_text()))


def found(page: str, config: Config) -> Iterator[tuple[int, int, str]]:
    """Line, column and message of everything that the checks find in a page."""
    text = prose(page)
    for result in LintFile("page", text).lint(config) if text.strip() else ():
        start, end = result.check_result.span
        repeated = result.check_result.check_path == "lexical_illusions"
        if repeated and "\n\n" in f"\n{text}\n"[start:end]:
            continue  # a heading, and a sentence that begins with its word
        yield (*result.pos, f"{result.check_result.check_path}: {result.check_result.message}")


def pages() -> list[Path]:
    """Every page of the repository and of the documentation."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def main(paths: list[Path]) -> int:
    """Print what is found; 1 if anything is."""
    glossary = GLOSSARY.read_text(encoding="utf-8")
    config, failed = checks(vocabulary(glossary)), 0
    for path in paths:
        page = path.read_text(encoding="utf-8")
        if path == GLOSSARY:  # its last table has the words that are not to be used
            page = page.partition("## Abandoned words")[0]
        for line, column, message in found(page, config):
            print(f"{path.relative_to(ROOT)}:{line}:{column}: {message}")
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main([Path(name).resolve() for name in sys.argv[1:]] or pages()))
