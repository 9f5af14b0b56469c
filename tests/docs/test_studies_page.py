"""docs/studies.md: its study in TOML is that of a program in Python; it runs, also in its quick size."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "studies.md").read_text()
IN_PYTHON = """
import fedsolve as fs
from fedsolve.studies import Method, Problem, Statement, Study
from fedsolve.studies.pictures import Curves
from fedsolve.studies.rules import better


def study() -> Study:
    digits = Problem(
        "digits, softmax regression",
        size="100 clients",
        task=lambda data_dir: fs.tasks.digits(model="softmax"),
        options={"rounds": 50, "clients_per_round": 20, "eval_every": 5},
        metric="test_accuracy",
        last=10,
        select="train_loss:10",
    )
    rates = (0.3, 1.0, 3.0, 10.0)
    return Study(
        title="Does FedAdam pay off on digits?",
        summary="FedAvg and FedAdam, each at the best of its grid.",
        problems={"digits": digits},
        methods={
            "FedAvg": Method(lambda client_lr: fs.FedAvg(client_lr), grid={"client_lr": rates}),
            "FedAdam": Method(
                lambda client_lr, server_lr: fs.FedAdam(client_lr, server_lr=server_lr),
                grid={"client_lr": rates, "server_lr": (0.03, 0.1, 0.3)},
            ),
        },
        seeds=(0, 1, 2, 3, 4),
        statements=(Statement("FedAdam is better than FedAvg", "", better("digits", "FedAdam", "FedAvg")),),
        pictures={"curves": Curves("Accuracy by round at the chosen rates.")},
        needs_data=False,
    )
"""
"""The page's study as a program."""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The page's study as mine_study.py and mine.toml in the current folder."""
    pytest.importorskip("sklearn")
    (tmp_path / "mine_study.py").write_text(IN_PYTHON)
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mine.toml").write_text(block)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert os.getcwd() == str(tmp_path)


def test_the_pages_study_is_found(mine):
    from fedsolve.studies.reproduce import find

    found = find("mine_study:study")
    assert (found.title, found.full) == ("Does FedAdam pay off on digits?", False)


def test_both_forms_are_one_study(mine):
    """The same methods at the same settings, options and seeds, claim, judgement."""
    import mine_study

    from fedsolve.cli.configuration.study import study_in
    from fedsolve.engine.sweep_grid import build_methods

    file, python = study_in(Path("mine.toml")), mine_study.study()
    assert (file.title, file.seeds) == (python.title, python.seeds)
    for name, method in python.methods.items():
        assert dict(file.methods[name].grid) == dict(method.grid)
        assert build_methods(file.methods[name].make, method.grid) == build_methods(method.make, method.grid)
    one, other = file.problems["digits"], python.problems["digits"]
    for field in ("options", "metric", "last", "select"):
        assert getattr(one, field) == getattr(other, field)
    np.testing.assert_array_equal(one.task(None).data.client(3).x, other.task(None).data.client(3).x)
    assert [s.says for s in file.statements] == [s.says for s in python.statements]


@pytest.mark.full
@pytest.mark.parametrize("own", ["mine_study:study", "mine.toml"])
def test_the_pages_study_runs_and_is_judged(mine, capsys, own):
    from fedsolve.cli.main import main

    assert main(["study", own, "--quick"]) == 0
    assert Path("runs", {"mine.toml": "mine"}.get(own, "mine_study-study"), "page.html").exists()
    capsys.readouterr()
    assert main(["study", own, "--out", "whole"]) == 0
    ran = capsys.readouterr().out
    assert main(["verdict", own, "--out", "whole"]) == 0
    assert capsys.readouterr().out.strip() == ran.strip()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["study", "mine_study:PAGE"], "PAGE"),
        (["study", "mine_study:study", "--quick", "--full"], "quick and full are two sizes"),
        (["study", "mine_study:study", "--full"], "one size"),
        (
            ["verdict", "mine_study:study"],
            "keeps no data of mine_study:study: run fedsolve study mine_study:study",
        ),
        (["verdict", "mine.toml"], "runs/mine keeps no data of mine.toml: run fedsolve study mine.toml"),
        (["reproduce", "mine.toml"], "a study of your own: run it with fedsolve study mine.toml"),
        (["study", "lasso-1"], "run an experiment with fedsolve reproduce lasso-1"),
        (["study", "mine.toml", "--full"], "one size"),
    ],
)
def test_bad_calls_are_one_line(mine, capsys, words, says):
    from fedsolve.cli.main import main

    assert main(words) == 2
    assert says in capsys.readouterr().err
