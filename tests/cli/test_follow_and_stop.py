"""`fedsolve show --follow` until a run has ended, and `fedsolve stop`."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from runs_made_up import finish, write_run

import fedsolve as fs
from fedsolve.cli import show
from fedsolve.cli.main import main
from fedsolve.folders import files as interrupt
from fedsolve.folders.files import STOP, locked


def at_each_wait(monkeypatch, module, *steps):
    """What happens while a module waits: one step after another."""
    left = iter(steps)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: next(left)())


def test_a_run_is_followed_until_it_ends(call, tmp_path, monkeypatch):
    run, hold = tmp_path / "a", ExitStack()
    write_run(run, 40, [0.9, 0.5])
    hold.enter_context(locked(run))

    def end():
        finish(run, "FedAvg", [0.9, 0.5, 0.2, 0.1])
        hold.close()

    steps = (lambda: None, lambda: write_run(run, 80, [0.9, 0.5, 0.2]), lambda: None, end)
    at_each_wait(monkeypatch, show, *steps)
    ended = call("show", run, "--follow")
    assert ended.code == 0
    heads = [line for line in ended.out.splitlines() if line.startswith(("digits,", "FedAvg:"))]
    at = "digits, 100 rounds"  # each state once, and none of another run that was there before
    assert heads == [at, "FedAvg: running, 40 of 100 rounds", at, "FedAvg: running, 80 of 100 rounds", at]


def test_ctrl_c_ends_following_alone(call, tmp_path, monkeypatch):
    write_run(tmp_path / "a", 40, [0.9, 0.5])

    def press():
        raise KeyboardInterrupt

    at_each_wait(monkeypatch, show, press)
    with locked(tmp_path / "a"):
        ended = call("show", tmp_path / "a", "--follow")
    assert (ended.code, ended.err) == (130, "error: no longer followed; what runs goes on\n")
    assert not (tmp_path / "a" / STOP).exists()


def test_a_killed_run_is_not_followed_for_ever(call, tmp_path, monkeypatch):
    write_run(tmp_path / "a", 40, [0.9, 0.5])
    monkeypatch.setattr(show, "_IDLE_SECONDS", 0.0)
    ended = call("show", tmp_path / "a", "--follow")
    assert ended.code == 0
    assert "FedAvg: unfinished, 40 of 100 rounds\nresume with: fedsolve run --resume" in ended.out


def test_a_run_is_asked_to_stop_and_resumed(tmp_path):
    """The same bits as of a run that nobody stopped."""
    task, options = fs.tasks.build("regression", num_clients=4), {"rounds": 60, "eval_every": 2}
    codes: list[int] = []
    asking = threading.Thread(target=lambda: codes.append(main(["stop", str(tmp_path)])))

    def ask(progress):
        if progress.round == 10:
            asking.start()
            while not (tmp_path / "a" / STOP).exists():
                asking.join(0.01)

    with pytest.raises(fs.Interrupted, match="resume"):
        fs.run(fs.FedAvg(client_lr=0.1), task, out=tmp_path / "a", progress=ask, **options)
    asking.join(60)
    assert codes == [0]
    assert not (tmp_path / "a" / STOP).exists()
    resumed = fs.run(fs.FedAvg(client_lr=0.1), task, out=tmp_path / "a", resume=True, **options)
    whole = fs.run(fs.FedAvg(client_lr=0.1), task, **options)
    losses = [run.history.evaluations["train_loss"] for run in (resumed, whole)]
    assert losses[0].tobytes() == losses[1].tobytes()


def test_a_comparison_that_prepares_is_asked_again(call, tmp_path, monkeypatch):
    """It holds its folder before its first method does, and reads what is in the method's folder alone."""
    both, method = locked(tmp_path), ExitStack()
    seen: list[list[Path]] = []

    def look():
        seen.append(sorted(path.parent for path in tmp_path.rglob(STOP)))

    def begin():
        look()
        method.enter_context(locked(tmp_path / "FedAvg"))

    def end():
        look()
        method.close()
        both.__exit__(None, None, None)

    both.__enter__()
    at_each_wait(monkeypatch, interrupt, begin, end)
    assert call("stop", tmp_path).code == 0
    assert seen == [[tmp_path], [tmp_path, tmp_path / "FedAvg"]]
    look()
    assert seen[-1] == []


def test_where_nothing_runs_nothing_is_asked(call, tmp_path):
    write_run(tmp_path / "a", 40, [0.9, 0.5])
    for folder in (tmp_path, tmp_path / "none"):
        ended = call("stop", folder)
        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert f"nothing runs in {folder}" in ended.err
    assert not [*tmp_path.rglob(STOP)]
