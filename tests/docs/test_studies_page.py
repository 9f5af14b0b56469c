"""docs/studies.md: its study runs by its reference, in its quick size, and is judged again."""

import os
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "studies.md").read_text()


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The page's block as mine.py in the current folder."""
    pytest.importorskip("sklearn")
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mine_study.py").write_text(block)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert os.getcwd() == str(tmp_path)


def test_the_pages_study_is_found(mine):
    from fedsolve.experiments.catalogue import find

    found = find("mine_study:study")
    assert (found.title, found.full) == ("Does FedAdam pay on digits?", False)


@pytest.mark.full
def test_the_pages_study_runs_and_is_judged(mine, capsys):
    from fedsolve.cli.main import main

    assert main(["reproduce", "mine_study:study", "--quick"]) == 0
    assert Path("runs/mine_study-study/page.html").exists()
    capsys.readouterr()
    assert main(["reproduce", "mine_study:study", "--out", "whole"]) == 0
    ran = capsys.readouterr().out
    assert main(["verdict", "mine_study:study", "--out", "whole"]) == 0
    assert capsys.readouterr().out.strip() == ran.strip()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["reproduce", "mine_study:PAGE"], "PAGE"),
        (["reproduce", "mine_study:study", "--quick", "--full"], "quick and full are two sizes"),
        (["reproduce", "mine_study:study", "--full"], "one size"),
        (["verdict", "mine_study:study"], "keeps no data of mine_study:study"),
    ],
)
def test_bad_calls_are_one_line(mine, capsys, words, says):
    from fedsolve.cli.main import main

    assert main(words) == 2
    assert says in capsys.readouterr().err
