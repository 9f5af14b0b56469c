"""Where the studies of the papers are found: in the clone around the current folder, or nowhere, which is said."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedsolve.studies import reproduce as names

STUDY = """
import fedsolve as fs
from fedsolve.studies import Method, Problem, Study

problem = Problem("softmax regression", "30 clients", lambda data_dir: fs.tasks.synthetic(), {"rounds": 2})
STUDY = Study(
    "A study in a file", "Of one's own.", {"line": problem},
    {"FedAvg": Method(lambda client_lr: fs.FedAvg(client_lr), {"client_lr": 0.1})}, (0,), (), {}, needs_data=False,
)
"""


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """Another clone, with one study, and the current folder somewhere in it."""
    (tmp_path / "src" / "fedsolve").mkdir(parents=True)
    study = tmp_path / "experiments" / "paper" / "a_study"
    study.mkdir(parents=True)
    for folder in (study, study.parent, study.parent.parent):
        (folder / "__init__.py").touch()
    (study / "study.py").write_text(STUDY)
    monkeypatch.chdir(study)
    here = [name for name in sys.modules if name.partition(".")[0] == names.PROGRAMS]
    for name in here:
        monkeypatch.delitem(sys.modules, name)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == names.PROGRAMS]:
        del sys.modules[name]  # what was there before comes back


def test_the_clone_around_the_current_folder_is_the_one(clone, call):
    ended = call("list", "experiments", "--json")
    assert [row["name"] for row in ended.document] == ["a-study"]
    assert call("reproduce", "a-study", "--quick", "--out", "ran").code == 0
    assert "A study in a file" in Path("ran", "page.html").read_text()


def test_from_elsewhere_it_is_the_one_that_the_package_runs_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert names.repository() == Path(__file__).parents[2]
    assert "lasso-1" in names.entries()


@pytest.mark.parametrize("words", [("reproduce", "lasso-1", "--quick"), ("verdict", "lasso-1")])
def test_without_a_clone_one_line_says_where_they_are(call, monkeypatch, words):
    """As where the package was installed from its wheel."""
    monkeypatch.setattr(names, "repository", lambda: None)
    ended = call(*words)
    assert ended.code == 2
    assert ended.err == (
        "error: experiment 'lasso-1': the studies of the papers are not installed with the package; run "
        "`fedsolve reproduce lasso-1` in a clone of fedsolve's repository, which has them in experiments/\n"
    )


def test_without_a_clone_the_list_says_so(call, monkeypatch):
    monkeypatch.setattr(names, "repository", lambda: None)
    ended = call("list", "experiments", "--json")
    assert (ended.code, ended.document) == (0, [])
    assert "the studies of the papers are in experiments/ of fedsolve's repository" in ended.err


def test_a_study_in_a_file_of_its_own(call):
    Path("mine_in_a_file.py").write_text(STUDY)
    assert call("study", "mine_in_a_file.py", "--quick").code == 0
    assert "fedsolve study mine_in_a_file.py" in Path("runs", "mine_in_a_file", "page.html").read_text()


@pytest.mark.full
def test_a_program_of_the_clone_by_its_path(call):
    path = names.program_folders()["fw-averaging"] / "study.py"
    assert call("study", str(path), "--quick").code == 0
    assert Path("runs", "fw_averaging", "page.html").exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gone.py", "gone.py: there is no such file"),
        ("random.py", "random"),
        ("empty_study.py", "no attribute 'STUDY'"),
    ],
)
def test_a_file_without_a_study_is_one_line(call, name, says):
    if name != "gone.py":
        Path(name).touch()
    ended = call("study", name)
    assert ended.code == 2
    assert says in ended.err
    assert ended.err.count("\n") == 1
