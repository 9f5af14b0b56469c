"""Experiments of another distribution, found by its entry points: listed, run, and named where they cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsolve.studies import reproduce as names

STUDY = """
import fedsolve as fs
from fedsolve.studies import Method, Problem, Study

problem = Problem("softmax regression", "30 clients", lambda data_dir: fs.tasks.synthetic(), {"rounds": 2})
STUDY = Study(
    "A study of others", "Theirs.", {"line": problem},
    {"FedAvg": Method(lambda client_lr: fs.FedAvg(client_lr), {"client_lr": 0.1})}, (0,), (), {},
    paper="doe2026other", needs_data=False,
)
STUDIES = {"theirs-2": STUDY}
NUMBER = 3


def theirs():
    return STUDY


def raises():
    raise RuntimeError("no such scanner")
"""
ENTRIES = """[fedsolve.studies]
theirs = others:STUDY
theirs-2 = others:STUDIES
theirs-3 = others:theirs
lasso-1 = others:STUDY
gone = nowhere:STUDY
number = others:NUMBER
broken = others:raises
../up = others:STUDY
"""


@pytest.fixture
def others(tmp_path_factory, monkeypatch):
    """A distribution beside this one, as installing it leaves it."""
    place = tmp_path_factory.mktemp("site")
    (place / "others.py").write_text(STUDY)
    info = place / "others-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(place))
    names._installed.cache_clear()
    yield
    names._installed.cache_clear()


BAD = {
    "gone": "'gone' of others 1.0 (nowhere:STUDY): ModuleNotFoundError: No module named 'nowhere'",
    "number": "'number' of others 1.0 (others:NUMBER) is an int: name a fedsolve.studies.Study",
    "broken": "'broken' of others 1.0 (others:raises): RuntimeError: no such scanner (",
    "../up": "'../up' of others 1.0 (others:STUDY): a name has letters, digits,",
}


def test_they_are_listed_after_ours_and_those_that_cannot_be_are_named(others, call):
    ended = call("list", "experiments", "--json")
    rows = {row["name"]: row for row in ended.document}
    assert list(rows) == [*names.program_folders(), "theirs", "theirs-2", "theirs-3"]
    assert rows["theirs"]["summary"] == "Theirs"
    assert rows["lasso-1"]["citation"] == "yuan2021fco"  # a name of ours stays ours
    said = [line for line in ended.err.splitlines() if line.startswith("left out: experiment ")]
    assert len(said) == len(BAD)
    assert all(any(words in line for line in said) for words in BAD.values())


@pytest.mark.parametrize(("name", "words"), BAD.items())
def test_one_that_cannot_be_loaded_is_one_line(others, call, name, words):
    ended = call("reproduce", name)
    assert ended.code == 2
    assert ended.err.startswith("error: experiment " + words)
    assert ended.err.count("\n") == 1


@pytest.mark.full
def test_one_runs_by_its_name(others, call):
    assert call("reproduce", "theirs-2", "--quick").code == 0
    page = Path("runs", "theirs-2", "page.html").read_text()
    assert "A study of others" in page
    assert "doe2026other ·" in page  # a paper that is not in our list has its key alone
    assert "Run it again: fedsolve reproduce theirs-2" in page
