"""docs/architecture.md is short, and the files and functions that its answers name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fedsolve"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PATH = re.compile(r"`((?:\w+/)+(?:\w+\.py)?)`")
QUESTIONS = [line for line in PAGE.splitlines() if re.match(r"\| (Where|What|Who|Which|Why|How) ", line)]


def test_the_page_is_short():
    assert len(PAGE.split()) <= 1500
    assert PAGE.count("```mermaid") == 1


def test_every_file_and_folder_that_is_named_exists():
    named = {name for name in PATH.findall(PAGE) if "NAME" not in name}
    assert len(named) > 30
    assert sorted(n for n in named if not ((SOURCE / n).exists() or (ROOT / n).exists())) == []


def test_there_are_ten_questions():
    assert len(QUESTIONS) == 10


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer_names_at_most_three_files_and_functions_that_are_in_them(question):
    """A reader who opens the named file finds the function there, and the rest by its imports."""
    assert 1 <= len(PATH.findall(question)) <= 3
    for path, name in re.findall(r"`([\w/]+\.py)` \(`([\w.]+)`\)", question):
        text = (SOURCE / path).read_text()
        for part in name.split("."):
            assert re.search(rf"^\s*(?:def|class) {part}\b", text, re.M), (path, name)
