"""`fedsolve sweep`: what it writes, that it is the library's sweep, that it resumes, and what it refuses."""

import json
import os
import re
import shlex
import signal
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from cli_small import SMALL

import fedsolve as fs
from fedsolve.cli import runs as sweeps
from fedsolve.cli.configuration.config import parse, to_toml
from fedsolve.cli.configuration.prepare import prepare_sweep
from fedsolve.cli.configuration.values import parse_grid
from fedsolve.cli.progress import Lines
from fedsolve.engine import progress
from fedsolve.engine.progress import Progress
from fedsolve.engine.sweep_grid import Search
from fedsolve.folders import run_folder
from fedsolve.report import page as running
from fedsolve.results.sweep import SELECTIONS, Selection, load

GRID = ("--grid", "client_lr=0.01:1:3log", "--grid", "server_lr=0.1,1")
PAIRS = ("--parallel-trials", "2")  # one program for all grids
SWEEP = ("sweep", "digits", "FedAvg", *SMALL, *PAIRS, *GRID)
PARQUET = ("sweep.parquet", "curves.parquet")


def files(folder):
    return {p.name for p in Path(folder).iterdir()}


@pytest.mark.full
def test_a_sweep_leaves_its_tables_pictures_and_page(call):
    ended = call(*SWEEP, "--seeds", "2", "--out", "s")
    assert ended.code == 0, ended.err
    assert files("s") == {
        ".lock", "config.toml", "lanes", "sweep.parquet", "curves.parquet", "sweep.json", "page.html",
        "map-client_lr-server_lr.png", "best-client_lr.png", "best-server_lr.png", "best-setting.png",
    }  # fmt: skip
    assert "FedAvg on digits, 3 client_lr x 2 server_lr x 2 seeds, into s: 12 runs of 3 rounds" in ended.err
    assert "of 36 rounds of all trials, 0 diverged" in ended.err
    assert "\x1b" not in ended.out + ended.err
    found = load("s")
    assert found.grid == {"client_lr": (0.01, 0.1, 1.0), "server_lr": (0.1, 1.0)}
    at = ", ".join(f"{k} = {v:g}" for k, v in found.best_settings.items())
    assert f"best: {at}, with training loss {found.score.min():.4f}" in ended.out
    assert "share of settings within 5 % of the best: " in ended.out
    assert "page     s/page.html" in ended.out
    assert call("show", "s").out == ended.out
    assert found.settings["task.num_clients"] == 4
    assert not {"client_lr", "server_lr", "seed"} & found.settings.keys()


def test_the_numbers_are_those_of_the_library_and_the_command_runs_the_best(call, no_pictures):
    ended = call(*SWEEP, "--seeds", "3,1", "--eval-every", "2", "--json", "--out", "s")
    document = ended.document
    task = fs.tasks.digits(num_clients=4, model="softmax")
    expected = fs.sweep(
        "FedAvg", task, {"client_lr": [0.01, 0.1, 1.0], "server_lr": [0.1, 1.0]}, seeds=(3, 1), rounds=3,
        clients_per_round=2, eval_every=2, parallel_trials=2,
    )  # fmt: skip
    found = load("s")
    for name, values in expected.metrics.items():
        np.testing.assert_array_equal(found.metrics[name], values)
    assert document["status"] == "finished"
    assert document["best"]["values"] == expected.best_settings
    assert document["best"]["scores"] == expected.scores[expected.best].tolist()
    assert document["share_within_5_percent"] == expected.share_within(0.05)
    assert [r["score"] for r in document["ranking"]] == sorted(expected.score.tolist())
    assert call("show", "s", "--json").document == document
    fedsolve, *command = shlex.split(document["best"]["command"])
    assert fedsolve == "fedsolve"
    again = call(*command, "--json", "--out", "best")
    assert again.code == 0, again.err
    loss = again.document["result"]["final_train_loss"]
    assert loss == pytest.approx(found.metrics["train_loss"][found.best, 0, -1], rel=1e-5)
    assert "--seed 3" in document["best"]["command"]
    assert "--eval-every 2" in document["best"]["command"]


@pytest.mark.full
def test_the_saved_configuration_sweeps_again_with_the_same_bits(call, no_pictures):
    psi = ("--set", "psi={name='L1', on='weight'}", "--grid", "psi.weight=0.001:0.1:3log")
    rule = ("--select", "validation_accuracy:1", "--validation", "0.25", *PAIRS, "--seeds", "2")
    args = ("sweep", "digits", "Subgradient+FedAvg", *SMALL, *psi, *rule, "--grid", "clip_norm=none,1")
    assert call(*args).code == 0
    first = Path("runs/digits-Subgradient+FedAvg-sweep-1")
    table = tomllib.loads((first / "config.toml").read_text())
    assert table["sweep"] == {
        "grid": {"psi.weight": [0.001, 0.01, 0.1], "clip_norm": ["none", 1]},
        "seeds": [0, 1], "select": "validation_accuracy:1", "validation": 0.25, "parallel_trials": 2,
    }  # fmt: skip
    assert table["method"][0]["settings"]["psi"] == {"name": "L1", "on": "weight"}
    assert "fedsolve sweep --config config.toml" in (first / "config.toml").read_text()
    again = call("sweep", "--config", first, "--json")
    assert again.code == 0, again.err
    second = Path("runs/digits-Subgradient+FedAvg-sweep-2")
    for name in PARQUET:
        assert (first / name).read_bytes() == (second / name).read_bytes()
    assert (first / "config.toml").read_text() == (second / "config.toml").read_text()
    assert load(second).grid["clip_norm"] == (None, 1)
    assert again.document["best"]["score"] > 0.3
    typed = call("sweep", "--config", first, "--grid", "psi.weight=0.5", "--seeds", "4,1", "--out", "other")
    assert typed.code == 0, typed.err
    assert (load("other").grid, load("other").seeds) == ({"psi.weight": (0.5,)}, (4, 1))
    assert load("other").selection.metric == "validation_accuracy"


def test_a_random_search_with_halving(call, no_pictures, monkeypatch):
    """The library's bits; interrupted between its stops it goes on to the same; its file asks for it again."""
    ranges = (
        "--grid",
        "client_lr=0.01:1:log",
        "--grid",
        "server_lr=1,0.1",
        "--grid",
        "weighting=uniform,examples",
    )
    search = ("--search", "random", "--trials", "6", "--halving", "2", "--search-seed", "3")
    args = ("sweep", "digits", "FedAvg", *SMALL, *PAIRS, *ranges, *search, "--eval-every", "1")

    def interrupt(self, progress):
        if progress.done >= 6:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "_SECONDS_BETWEEN", 0.0)
        patch.setattr(Lines, "advance", interrupt)
        ended = call(*args, "--out", "s")
    assert ended.code == 130
    assert (
        "FedAvg on digits, 6 at random: client_lr x server_lr x weighting x seed 0, into s: 6 runs of 3"
        in ended.err
    )
    table = tomllib.loads(Path("s/config.toml").read_text())["sweep"]
    assert table == {
        "grid": {"client_lr": "0.01:1:log", "server_lr": [1, 0.1], "weighting": ["uniform", "examples"]},
        "search": "random", "trials": 6, "search_seed": 3, "halving": 2,
        "seeds": [0], "select": "train_loss:1", "parallel_trials": 2,
    }  # fmt: skip
    assert "FedAvg: unfinished sweep, all runs after round 2 of 3\n" in call("show", "s").out
    document = call("sweep", "--resume", "s", "--json").document
    found, task = load("s"), fs.tasks.digits(num_clients=4, model="softmax")
    expected = fs.sweep(
        "FedAvg", task, {"client_lr": "0.01:1:log", "server_lr": [1.0, 0.1], "weighting": ["uniform", "examples"]},
        search="random", trials=6, search_seed=3, halving=2, rounds=3, clients_per_round=2, eval_every=1,
        parallel_trials=2,
    )  # fmt: skip
    assert (found.points, dict(found.search)) == (expected.points, dict(expected.search))
    assert sorted(found.stopped.tolist()) == [-1, 1, 1, 1, 2, 2]
    for name, values in expected.metrics.items():
        np.testing.assert_array_equal(found.metrics[name], values)
    assert document["search"]["trials"] == 6
    assert [r["stopped"] for r in document["ranking"]] == [None, 2, 2, 1, 1, 1]
    assert any("search_seed = 3" in note for note in document["notes"])
    assert "stopped after round\xa02" in Path("s/page.html").read_text()
    assert call("show", "s", "--json").document == document
    again = prepare_sweep(parse(tomllib.loads(Path("s/config.toml").read_text()), "s"))
    assert (
        again.options().search
        == prepare_sweep(parse(tomllib.loads(to_toml(again.config)), "s")).options().search
    )


@pytest.mark.full
def test_a_grid_in_a_file(call, no_pictures):
    Path("c.toml").write_text(
        'task = "digits"\ntask_options = {num_clients = 4, model = "softmax"}\n'
        "[run]\nrounds = 2\nclients_per_round = 2\n"
        '[[method]]\nname = "FedAvg"\nlabel = "mine"\n[[method]]\nname = "FedExP"\n'
        '[sweep]\nseeds = 2\nselect = "test_accuracy"\nparallel_trials = 2\n[sweep.grid]\n'
        'client_lr = "0.01:0.1:2log"\nserver_lr = [0.5, 1]\n'
    )
    ended = call("sweep", "digits", "mine", "--config", "c.toml", "--json", "--out", "s")
    assert ended.code == 0, ended.err
    assert ended.document["label"] == "mine"
    assert ended.document["grid"] == {"client_lr": [0.01, 0.1], "server_lr": [0.5, 1.0]}
    assert ended.document["selection"]["rule"] == "most test_accuracy, mean of the last 1 rounds"
    assert "2 methods (mine, FedExP): name the one" in call("sweep", "--config", "c.toml").err


def test_an_interrupted_sweep_goes_on_to_the_same_bits(call, no_pictures, monkeypatch):
    args = (*SWEEP, "--rounds", "6", "--eval-every", "2")
    assert call(*args, "--out", "whole").code == 0

    page, refresh = Path("a folder/page.html"), '<meta http-equiv="refresh" content="0.01">'

    def interrupt(self, progress):
        if progress.done == 12:  # six trials after two rounds; after four, the page may have those
            until = time.monotonic() + 60
            while not (page.exists() and "after round 2 of 6." in page.read_text()):
                assert time.monotonic() < until
                time.sleep(0.01)
            assert refresh in page.read_text()
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        for module, seconds in ((run_folder, 0.0), (running, 0.01)):
            patch.setattr(module, "_SECONDS_BETWEEN", seconds)
            patch.setattr(module, "_TIMES_BETWEEN", 0)
        patch.setattr(Lines, "advance", interrupt)
        ended = call(*args, "--out", "a folder")
    assert ended.code == 130
    last = ended.err.splitlines()[-1]
    assert last.startswith("error: interrupted after 2")
    assert last.endswith("of 36 rounds of all trials; resume with: fedsolve sweep --resume 'a folder'")
    assert "sweep.json" not in files("a folder")
    stopped = page.read_text()
    assert re.search(r"<p>Stopped, [\d:]+: all runs after round 4 of 6\.</p>", stopped)
    assert "refresh" not in stopped
    shown = call("show", "a folder")
    assert shown.code == 0
    state = "FedAvg: unfinished sweep, all runs after round 4 of 6\n"
    assert f"{state}resume with: fedsolve sweep --resume 'a folder'" in shown.out
    assert call("show", "a folder", "--json").document["status"] == "unfinished"
    assert call("sweep", "--resume", "a folder").code == 0
    for name in PARQUET:
        assert Path("a folder", name).read_bytes() == Path("whole", name).read_bytes()
    assert "refresh" not in page.read_text()


@pytest.mark.full
def test_an_interrupt_before_the_first_round_can_be_resumed(call, no_pictures, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sweeps, "run_sweep", stop)
        ended = call(*SWEEP, "--out", "s")
    assert ended.code == 130
    assert ended.err.splitlines()[-1].startswith(
        "error: interrupted before its first round ended; resume with:"
    )
    assert call("sweep", "--resume", "s").code == 0


def test_a_finished_sweep_is_only_shown_again(call, finished, monkeypatch):
    finished(*SWEEP, to="s")
    before = {name: Path("s", name).read_bytes() for name in (*PARQUET, "sweep.json", "config.toml")}
    monkeypatch.setattr(sweeps, "run_sweep", lambda *a, **k: pytest.fail("it ran again"))
    assert call("sweep", "--resume", "s", "--json").document == call("show", "s", "--json").document
    assert {name: Path("s", name).read_bytes() for name in before} == before


def test_settings_that_diverge_are_marked(call, no_pictures):
    args = ("sweep", "digits", "FedAvg", *SMALL, *PAIRS, "--grid", "client_lr=0.1,3e38", "--json")
    ended = call(*args, "--out", "s")
    assert ended.code == 0
    assert ended.document["trials_diverged"] == 1
    assert [r["score"] is None for r in ended.document["ranking"]] == [False, True]
    assert "diverged, from round" in call("show", "s").out


def test_if_all_diverge_the_results_are_kept_and_the_smallest_are_named(call, no_pictures):
    args = ("sweep", "digits", "FedAvg", *SMALL, *PAIRS, "--grid", "client_lr=2e38,3e38")
    args += ("--grid", "server_lr=1,2")
    ended = call(*args, "--out", "s")
    assert ended.code == 3
    last = ended.err.splitlines()[-1]
    assert last.startswith(
        "error: all 4 settings of FedAvg diverged; the smallest tried were client_lr = 2e+38"
    )
    assert {*PARQUET, "sweep.json", "page.html"} <= files("s")
    again = call("sweep", "--resume", "s", "--json")
    assert again.code == 3
    assert again.document["status"] == "diverged"
    assert again.document["best"] is None
    assert again.document["error"] == last.removeprefix("error: ")


def test_without_pyarrow_nothing_runs(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr(sweeps, "run_sweep", lambda *a, **k: pytest.fail("it ran"))
    ended = call(*SWEEP, "--out", "s")
    assert ended.code == 2
    assert "pip install 'fedsolve[sweep]'" in ended.err
    assert not Path("s").exists()


CALLS = [
    (("sweep",), "no task"),
    (("sweep", "digits"), "no method"),
    (("sweep", "digits", "FedAvg", *SMALL), "no grid: give at least one axis, such as --grid client_lr=1e-3:1:7log"),
    ((*SWEEP, "--grid", "client_rl=0.1,1"), "unknown setting of FedAvg 'client_rl': did you mean 'client_lr'?"),
    ((*SWEEP, "--grid", "client_lr=1"), "--grid client_lr is given twice"),
    ((*SWEEP, "--set", "client_lr=1"), "client_lr is given by --set and by --grid"),
    ((*SWEEP, "--seeds", "x"), "--seeds 'x' must be how many, as 5, or which, as 0,3,7"),
    ((*SWEEP, "--seeds", "0"), "--seeds 0 must be at least 1"),
    ((*SWEEP, "--seeds", "1,1"), "a seed comes twice"),
    ((*SWEEP, "--select", "train_loss:x"), "'x' must be a number of last rounds"),
    ((*SWEEP, "--select", "test_acuracy:3"), "'test_acuracy': did you mean 'test_accuracy'?"),
    ((*SWEEP, "--select", "recovery-error"), "unknown metric of the selection 'recovery_error'"),
    ((*SWEEP, "--select", "validation-accuracy"), "needs examples held out of training: give --validation 0.1"),
    ((*SWEEP, "--trials", "6"), "search = 'grid', trials = 6: give trials, such as 60, to a random search alone"),
    ((*SWEEP, "--search", "random"), "search = 'random', trials = None: give trials"),
    ((*SWEEP, "--search", "radnom"), "sweep.search = 'radnom' must be 'grid' or 'random'"),
    ((*SWEEP, "--search", "random", "--trials", "99"), "trials = 99: there are about 6 different settings"),
    ((*SWEEP, "--halving", "1"), "sweep.halving = 1 must be >= 2"),
    ((*SWEEP, "--halving", "7"), "halving = 7 of 6 settings, evaluated every 1 of 3 rounds: take more settings"),
    ((*SWEEP, "--validation", "1.5"), "sweep.validation = 1.5 must be < 1"),
    ((*SWEEP, "--parallel-trials", "0"), "sweep.parallel_trials = 0 must be >= 1"),
    ((*SWEEP, "--rounds", "0"), "run.rounds = 0 must be >= 1"),
    ((*SWEEP, "--clients-per-round", "9"), "the task has 4 clients"),
    ((*SWEEP, "--devices", "2"), "--devices"),
    ((*SWEEP, "--seed", "2"), "--seed"),
    (("sweep", "digits", "FedAvgg", *SMALL, *GRID), "did you mean 'FedAvg'?"),
    (("sweep", "digit", "FedAvg", *SMALL, *GRID), "did you mean 'digits'?"),
    (("sweep", "--resume", "nowhere"), "there is no folder nowhere"),
]  # fmt: skip
AXES = [
    ("client_lr", "must be written axis=values"),
    ("client_lr=", "must be written axis=values"),
    (
        "client_lr=0:1:7log",
        "a log axis needs values > 0, not 0; start above 0, or write linear steps as 0:1:7",
    ),
    ("client_lr=-1:1:7log", "a log axis needs values > 0, not -1"),
    ("client_lr=1:x:7log", "'x' is not a finite number"),
    ("client_lr=1:2", "is not a range: write a:b:Nlog"),
    ("client_lr=1e-3:1:log", "a random search also draws a:b:log"),
    ("client_lr=1:2:3exp", "is not a range: write a:b:Nlog"),
    ("client_lr=1:2:1", "1 values from 1 to 2 is not a range"),
    ("client_lr=1:2:0log", "0 values from 1 to 2 is not a range"),
    ("client_lr=1,,2", "'' is not a value"),
    ("client_lr=1,1.0", "the value 1.0 comes twice"),
    ("client_lr=0.1,0", "client_lr = 0.0 must be finite and > 0"),
    ("client_lr=0.1,fast", "client_lr = 'fast' must be a number"),
    ("client_lr=0.1,none", "none is not allowed"),
    ("weighting=uniform,all", "weighting = 'all' must be one of uniform, examples"),
    ("client_lr.initial=0.1,1", "needs client_lr as a table"),
]


@pytest.mark.parametrize(("arguments", "message"), CALLS, ids=[m for _, m in CALLS])
def test_bad_input_is_one_line_and_nothing_is_written(call, arguments, message):
    ended = call(*arguments)
    assert ended.code == 2
    (line,) = ended.err.splitlines()
    assert message in line
    assert not list(Path().iterdir())


@pytest.mark.parametrize(("axis", "message"), AXES, ids=[a for a, _ in AXES])
def test_a_bad_axis_is_one_line_and_nothing_is_written(call, axis, message):
    ended = call("sweep", "digits", "FedAvg", *SMALL, "--grid", axis)
    assert ended.code == 2
    (line,) = ended.err.splitlines()
    assert message in line
    assert not list(Path().iterdir())


def test_folders_of_runs_and_sweeps_are_told_apart(call, finished):
    finished(*SWEEP, to="s")
    finished("run", "digits", "FedAvg", *SMALL)
    for arguments, message in [
        ((*SWEEP, "--out", "s"), "s holds a run already: resume it with `fedsolve sweep --resume s`"),
        (("run", "--resume", "s"), "this is the configuration of a sweep: use `fedsolve sweep --resume s`"),
        (("run", "--config", "s"), "this is the configuration of a sweep: use `fedsolve sweep --config s`"),
        (("sweep", "--resume", "r"), "r holds no sweep: resume it with `fedsolve run --resume r`"),
        (("sweep", "--resume", "s", "--rounds", "9"), "--rounds does not go with --resume: a sweep is resumed as"),
        (("sweep", "--resume", "s", *GRID), "--grid does not go with --resume"),
    ]:  # fmt: skip
        ended = call(*arguments)
        assert ended.code == 2
        assert message in ended.err
    assert call("cite", "s").code == 0
    assert json.loads(Path("s/sweep.json").read_text())["lanes"] == 6


def test_ranges_give_round_numbers():
    found = parse_grid(["a=1e-3:1:7log", "b=1:0:3", "c=0.1:0.5:5lin", "d=2:2:1", "e=1,2", "f=true,false"])
    assert found["a"] == [0.001, 0.003162277660, 0.01, 0.03162277660, 0.1, 0.3162277660, 1.0]
    assert found["b"] == [1.0, 0.5, 0.0]
    assert found["c"] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert (found["d"], found["e"], found["f"]) == ([2.0], [1, 2], [True, False])


def test_progress_says_what_diverged_and_how_long_it_takes(capsys, monkeypatch):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    with Lines() as board:
        board.begin("X")
        board.compiling("X")
        for done, diverged in ((0, 0), (100, 1), (200, 3)):
            board(Progress("X", done, 1000, {}, diverged=diverged, notes=("in 2 parts",)))
    assert capsys.readouterr().err.splitlines() == [
        "X: preparing",
        "X: compiling",
        "note: in 2 parts",
        "X: 100 of 1,000 rounds of all trials, 1 diverged",
        "X: 200 of 1,000 rounds of all trials, 3 diverged, 10 a second, 80 s left",
    ]


# docs/sweep.md does what it says: its Python runs, its commands and its file are understood, its files are there.

PAGE = (Path(__file__).parents[2] / "docs" / "sweep.md").read_text()


@pytest.mark.full
def test_the_python_runs_and_writes_the_files_that_are_named():
    for module in ("pyarrow", "matplotlib", "sklearn"):
        pytest.importorskip(module)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)
    assert names["same"].best_settings == names["found"].best_settings
    assert Path("client_lr.png").exists()
    left = {p.name for p in Path("my-sweep").iterdir()}
    named = set(re.findall(r"`(\w+\.(?:html|parquet))`", PAGE[PAGE.index("## Output files") :]))
    assert len(named) == 3
    assert named < left


def test_the_commands_are_understood(call, monkeypatch):
    asked = []
    monkeypatch.setattr(sweeps, "sweep_command", lambda config, *a: asked.append(prepare_sweep(config)) or 0)
    lines = re.findall(r"^    (fedsolve sweep .*)$", PAGE, re.MULTILINE)
    assert len(lines) == 4
    for line in lines[:3]:
        ended = call(*shlex.split(line)[1:])
        assert ended.code == 0, ended.err
    assert [len(p.grid["client_lr"]) for p in asked] == [7, 3, len("1e-3:1:log")]
    assert asked[2].options().search == Search(kind="random", trials=60, halving=3)
    assert asked[0].section.seeds == [0, 1, 2, 3, 4]
    assert asked[1].section.validation == 0.1


def test_the_file_is_a_sweep():
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    found = prepare_sweep(parse(tomllib.loads(text), "page"))
    assert found.config.run.rounds == 200
    assert found.grid["client_lr"][1] == pytest.approx(10**-2.5)


def test_the_tables_say_what_is_so():
    axes = re.findall(r"^\* `(\w[\w.]*=[^`]+)`", PAGE, re.MULTILINE)
    assert len(axes) == 6
    sizes = [len(values) for axis in axes for values in parse_grid([axis]).values()]
    assert sizes == [7, 4, 3, 2, 3, 4]
    for name, rule in SELECTIONS.items():
        (row,) = re.findall(rf"^\* .*`{name}`.*: (.*?) \(", PAGE, re.MULTILINE)
        assert row.endswith(f"of the last {rule.last} rounds")
        assert rule.most == (name in ("validation-accuracy", "f1"))
    assert Selection.parse("training-loss") == SELECTIONS["training-loss"]
