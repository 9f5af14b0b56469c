"""`fedsolve study` on a file: run, interrupted, resumed and judged again; what is wrong in it is one line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedsolve.cli.configuration.study import study_in
from fedsolve.core.errors import Interrupted
from fedsolve.core.sampling import Bernoulli
from fedsolve.studies import runner

TEXT = """
task = "regression"

[task_options]
num_clients = 3
examples_per_client = 4
features = 5

[run]
rounds = 4
eval_every = 2
participation = 0.9

[study]
metric = "train_loss"
select = "train_loss"
seeds = 2

[[method]]
name = "FedAvg"
settings = { client_lr = 0.01 }

[[method]]
name = "FedAdam"
label = "Adam"
settings = { beta1 = 0.5 }
grid = { client_lr = [0.01, 0.1], server_lr = "1e-3:1:3log" }

[[claim]]
says = "Adam is better"
theirs = "Table 1"
rule = "better"
a = "Adam"
b = "FedAvg"

[[claim]]
says = "They are alike"
rule = "close"
a = "Adam"
b = "FedAvg"
margin = 1e9
"""


def write(*changes: tuple[str, str]) -> None:
    """The file with other text in some places."""
    text = TEXT
    for old, new in changes:
        assert text.count(old) >= 1, old
        text = text.replace(old, new, 1)
    Path("mine.toml").write_text(text)


@pytest.mark.full
def test_a_study_is_interrupted_goes_on_and_is_judged_again(call, monkeypatch):
    write()
    sweep = runner.fs.sweep

    def interrupted(*a, **k):
        if k["label"] == "Adam":
            raise Interrupted("now")
        return sweep(*a, **k)

    monkeypatch.setattr(runner.fs, "sweep", interrupted)
    ended = call("study", "mine.toml")
    assert ended.code == 130
    assert "continue with the same command, fedsolve study mine.toml" in ended.err
    (kept,) = Path("runs/mine/parts").iterdir()
    before = kept.stat().st_mtime_ns
    monkeypatch.setattr(runner.fs, "sweep", sweep)
    ended = call("study", "mine.toml", "--json")
    assert ended.code == 0
    assert kept.stat().st_mtime_ns == before
    assert {p.name for p in Path("runs/mine").iterdir()} >= {
        "page.html",
        "curves.png",
        "grid1.png",
        "regression.csv",
    }
    page = Path("runs/mine/page.html").read_text()
    assert "fedsolve study mine.toml" in page
    assert "paper" not in re.sub(r"<style>.*?</style>|<script.*?</script>", "", page, flags=re.DOTALL)
    assert "time is not known" not in ended.err
    told = ended.document["claims"]
    assert [(c["claim"], c["theirs"]) for c in told] == [
        ("Adam is better", "Table 1"), ("They are alike", ""),
    ]  # fmt: skip
    assert told[1]["verdict"] == "not learnt"  # of two seeds in a few rounds nothing is certain
    assert json.loads(Path("runs/mine/results.json").read_text())["experiment"] == "mine.toml"
    assert call("verdict", "mine.toml", "--json").document["claims"] == told


def test_what_the_file_says_is_what_is_run():
    write()
    study = study_in(Path("mine.toml"))
    assert study.seeds == (0, 1)
    assert study.methods["FedAvg"].published == {"client_lr": 0.01}
    assert study.methods["Adam"].grid == {
        "client_lr": (0.01, 0.1),
        "server_lr": (1e-3, pytest.approx(0.0316, rel=1e-2), 1.0),
    }
    adam = study.methods["Adam"].make(client_lr=0.1, server_lr=1.0)
    assert adam.server_optimizer.beta1 == 0.5
    options = dict(study.problems["regression"].options)
    assert options.pop("sampling") == Bernoulli(0.9)
    assert options == {"rounds": 4, "eval_every": 2}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("seeds = 2", "seed = 2", "mine.toml: unknown key in study 'seed': did you mean 'seeds'?"),
        ("seeds = 2", "seeds = []", "mine.toml: seeds = []: give at least one"),
        ("seeds = 2", "seeds = [1, 1]", "mine.toml: seeds = [1, 1]: a seed comes twice"),
        (
            '"FedAdam"',
            '"FedAdm"',
            "mine.toml: method Adam: unknown algorithm 'FedAdm': did you mean 'FedAdam'?",
        ),
        ("[0.01, 0.1]", "[]", "mine.toml: method Adam: grid: client_lr = [] must be a list of values"),
        ("server_lr =", "sever_lr =", "mine.toml: method Adam: unknown setting of FedAdam 'sever_lr'"),
        ("[0.01, 0.1]", "[0.01, -1]", "mine.toml: method Adam: client_lr = -1.0 must be"),
        ('label = "Adam"', 'label = "FedAvg"', "mine.toml: two methods are called 'FedAvg'"),
        ('a = "Adam"', 'a = "FedAdam"', "mine.toml: claim 1: unknown method 'FedAdam': did you mean 'Adam'?"),
        (
            'rule = "better"',
            'rule = "best"',
            "mine.toml: claim 1: rule = 'best' must be 'better', 'better_than_all'",
        ),
        ('b = "FedAvg"', 'others = "FedAvg"', "mine.toml: claim 1: others = 'FedAvg' must be a list"),
        ('b = "FedAvg"', 'others = ["FedAvg"]', "mine.toml: claim 1: better needs b: it takes a, b"),
        (
            'rule = "better"',
            'rule = "better"\nmargin = 1.0',
            "mine.toml: claim 1: better takes a, b and no margin",
        ),
        ("rounds = 4", "rounds = 0", "mine.toml: run.rounds = 0 must be >= 1"),
        ("rounds = 4", "rounds = 4\nseed = 3", "mine.toml: run.seed: a study has several"),
        (
            '"train_loss"',
            '"train_los"',
            "mine.toml: unknown metric of study.metric 'train_los': did you mean 'train_loss'?",
        ),
        ("features = 5", "featurs = 5", "mine.toml: unknown option of the task regression 'featurs'"),
        ('"regression"', '"regresion"', "mine.toml: unknown task 'regresion': did you mean 'regression'?"),
    ],
)
def test_what_is_wrong_is_one_line(call, old, new, says):
    write((old, new))
    ended = call("study", "mine.toml")
    assert ended.code == 2
    assert says in ended.err
    assert ended.err.count("\n") == 1
    assert not Path("runs").exists()


def test_one_method_is_no_study(call):
    Path("mine.toml").write_text('task = "digits"\n[[method]]\nname = "FedAvg"\n')
    ended = call("study", "mine.toml")
    assert ended.code == 2
    assert "method" in ended.err
    assert (
        call("study", "gone.toml").err
        == "error: cannot read the configuration gone.toml: No such file or directory\n"
    )
