"""What is refused only once a run has a folder leaves no trace of it: the mended command finds it as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_small import SMALL

import fedsolve.cli.runs
import fedsolve.engine.scheduler
from fedsolve.cli.folders import restore_on_error
from fedsolve.core.errors import Diverged, Interrupted, InvalidInput
from fedsolve.folders.files import locked
from fedsolve.folders.run_folder import RUN

PRIVATE = ("clip_norm=1", "noise_multiplier=1", "population=4", "cohort=3", "delta=0.1", "weighting=uniform")
DP = ("run", "digits", "DP+FedAvg", *SMALL, *(f"--set={setting}" for setting in PRIVATE), "--out", "here")
SWEEP = ("sweep", "digits", "FedAvg", *SMALL, "--grid", "client_lr=0.1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (DP, "DP accounts for"),
        ((*SWEEP, "--validation", "1e-9"), "holds out no example"),
        ((*SWEEP, "--validation", "1e-9", "--out", "here"), "holds out no example"),
    ],
)
def test_refused_before_there_is_a_folder(call, arguments, message):
    ended = call(*arguments)
    assert ended.code == 2
    assert message in ended.err
    assert not list(Path().iterdir())


COMMANDS = {
    "run": ("run", "digits", "FedAvg", *SMALL),
    "compare": ("compare", "digits", "FedAvg", "FedExP", *SMALL),
    "sweep": SWEEP,
}


@pytest.mark.parametrize("error", [InvalidInput("no"), KeyError("a bug")], ids=["refused", "bug"])
@pytest.mark.parametrize("out", [(), ("--out", "here")], ids=["", "out"])
@pytest.mark.parametrize("command", COMMANDS)
def test_refused_when_there_is_a_folder(call, monkeypatch, command, out, error):
    """By the engine, say, or by a loss that raises: the folder is gone again."""

    def refuse(*args, **options):
        assert list(Path().rglob("config.toml"))
        raise error

    for module in (fedsolve.engine.scheduler, fedsolve.engine.scheduler):
        monkeypatch.setattr(module, "prepare", refuse)
    monkeypatch.setattr(fedsolve.cli.runs, "run_sweep", refuse)
    try:
        assert call(*COMMANDS[command], *out).code != 0
    except KeyError:
        assert isinstance(error, KeyError)
    assert not list(Path().iterdir())


def fail_in_folder(error, config="new", more=()):
    with restore_on_error(Path("r")):
        with locked(Path("r")):
            for name, text in {"config.toml": config, **dict(more)}.items():
                (Path("r") / name).parent.mkdir(parents=True, exist_ok=True)
                (Path("r") / name).write_text(text)
        raise error


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "r"


def test_a_refused_continuation_leaves_the_configuration(here):
    """Such as one of fewer rounds than are done: the configuration of the run stays that of the run."""
    here.mkdir()
    (here / "config.toml").write_text("old")
    (here / RUN.file).write_text("kept")
    with pytest.raises(InvalidInput):
        fail_in_folder(InvalidInput("no"), more={"FedAvg/config.toml": "new"})
    assert sorted(p.name for p in here.iterdir()) == [RUN.file, "config.toml"]
    assert (here / "config.toml").read_text() == "old"


@pytest.mark.parametrize(
    "error", [InvalidInput("disk full"), Interrupted("ctrl-c"), Diverged("round 3"), SystemExit()]
)
def test_what_ran_stays(here, error):
    """With a checkpoint of its own it can be resumed, whatever ended it; interrupted before that, from the start."""
    more = {RUN.file: "new"} if isinstance(error, InvalidInput) else {}
    with pytest.raises(type(error)):
        fail_in_folder(error, more=more)
    assert (here / "config.toml").read_text() == "new"


def test_an_empty_folder_of_the_user_stays(here):
    here.mkdir()
    with pytest.raises(InvalidInput):
        fail_in_folder(InvalidInput("no"))
    assert list(here.iterdir()) == []


def test_a_folder_that_another_run_holds_is_left_alone(here):
    with locked(here):
        (here / "config.toml").write_text("another's")
        with pytest.raises(InvalidInput, match="in use"):
            fail_in_folder(InvalidInput("no"))
    assert (here / "config.toml").read_text() == "another's"


PLATEAU = "={schedule='reduce_on_plateau', initial=0.1, metric='nope', patience=3}"


@pytest.mark.full_rows("arguments1-unknown metric", "arguments3-unknown metric")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "digits", "FedPer", *SMALL, "--set", "leaves=nope"), "no leaf of the model"),
        (("run", "digits", "FedAvg", *SMALL, "--set", f"client_lr{PLATEAU}"), "unknown metric"),
        (
            ("run", "digits", "FedAvg", *SMALL, "--seeds", "2", "--set", f"client_lr{PLATEAU}"),
            "unknown metric",
        ),
        ((*SWEEP, "--set", f"server_lr{PLATEAU}"), "unknown metric"),
        (("run", "digits", "FedAvg", *SMALL, "--systems", "nope"), "systems"),
    ],
)
def test_refused_before_the_rounds_are_compiled(call, arguments, message):
    ended = call(*arguments)
    assert ended.code == 2
    assert message in ended.err
    assert "compiling" not in ended.err


def test_every_method_of_a_comparison_is_looked_at_before_the_first_is_run(call):
    Path("c.toml").write_text(
        'task = "digits"\n[task_options]\nnum_clients = 4\nmodel = "softmax"\n[run]\nrounds = 3\n'
        '[[method]]\nname = "FedAvg"\n[[method]]\nname = "FedPer"\n[method.settings]\nleaves = "nope"\n'
    )
    ended = call("compare", "--config", "c.toml", "--out", "here")
    assert ended.code == 2
    assert "no leaf of the model" in ended.err
    assert "FedAvg: " not in ended.err
    assert not Path("here").exists()
