"""The paper for the Journal of Open Source Software: its form, its citations, and that its commands and program run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "paper" / "paper.md"
_, HEAD, TEXT = PAPER.read_text(encoding="utf-8").split("---\n", 2)
KEY = re.compile(r"^@\w+\{([\w-]+),", re.M)


def test_its_length_and_sections_are_those_the_journal_asks_for():
    assert 750 <= len(TEXT.split()) <= 1750
    for section in ("# Summary", "# Statement of need", "# Acknowledgements", "# References"):
        assert section in TEXT
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} <= set(
        re.findall(r"^(\w+):", HEAD, re.M)
    )


def test_every_citation_has_an_entry_and_every_entry_of_its_own_is_cited():
    files = re.findall(r"^ +- (\S+\.bib)$", HEAD, re.M)
    own, shared = (set(KEY.findall((PAPER.parent / name).read_text())) for name in files)
    cited = set(re.findall(r"@([\w-]+)", TEXT))
    assert own <= cited <= own | shared


def test_files_and_commands_that_it_names_are_there():
    for path in re.findall(r"python (?:-m pytest )?([\w/]+(?:\.py)?)", TEXT):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"\]\((\S+)\)", TEXT):
        assert (PAPER.parent / path).exists(), path


@pytest.mark.full
def test_its_program_runs():
    (program,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    names: dict[str, object] = {}
    exec(program.replace("seeds=5", "seeds=2").replace("rounds=200", "rounds=2"), names)
    assert set(names["results"].final("test_accuracy")) == {"FedAvg", "FedDuAdam"}
