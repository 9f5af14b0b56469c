"""`progress=True`: one line, rewritten on a terminal, with the rate and the time left."""

from __future__ import annotations

import io

import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.engine import progress
from fedsolve.engine.progress import ProgressLine

TASK = fs.Task.from_arrays(
    lambda w, b: jnp.mean((b[0] @ w - b[1]) ** 2), np.zeros(2), [(np.ones((4, 2)), np.ones(4))] * 3
)


def shown(monkeypatch, rewritten, looks):
    """What is written if the looks, (second, done, words), come at their times."""
    clock, stream = iter([at for at, _, _ in looks]), io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    line = ProgressLine(stream, rewritten)
    line.begin("A")
    line.compiling("A")
    for _, done, words in looks:
        line.show("A", done, 100, words)
    line.end()
    return stream.getvalue()


def test_rate_and_time_left(monkeypatch):
    """From the first look on: 20 rounds in 4 s are 5 a second, and 70 more take 14 s."""
    told = shown(
        monkeypatch,
        True,
        [(10.0, 10, "a longer text"), (10.1, 11, "unseen"), (14.0, 30, "b"), (15.0, 100, "c")],
    )
    assert told == (
        "\rA: preparing\rA: compiling"
        "\rA: round 10 of 100, a longer text"
        "\rA: round 30 of 100, b, 5 a second, 14 s left"
        "\rA: round 100 of 100, c, 18 a second, done   \n"
    )  # fmt: skip


def test_a_file_gets_a_line_now_and_then(monkeypatch):
    told = shown(monkeypatch, False, [(0.0, 1, ""), (3.0, 2, ""), (6.0, 7, ""), (6.1, 100, "")])
    assert told == (
        "A: preparing\nA: compiling\nA: round 1 of 100\n"
        "A: round 7 of 100, 1 a second, 2 min left\nA: round 100 of 100, 16.2 a second, done\n"
    )


def test_of_runs_comparisons_and_sweeps(capsys):
    options = {"rounds": 3, "progress": True}
    fs.run(fs.FedAvg(0.1), TASK, **options, seeds=2)
    err = capsys.readouterr().err
    assert "FedAvg: round 6 of 6, training loss" in err
    fs.compare({"a": fs.FedAvg(0.1), "b": fs.FedAvg(0.2)}, TASK, **options)
    fs.sweep("FedAvg", TASK, {"client_lr": [0.1, 0.2]}, **options)
    err = capsys.readouterr().err
    for words in (
        "a: compiling",
        "a: round 3 of 3",
        "b: compiling\nb: round 1 of 3",
        "b: round 3 of 3",
        "FedAvg: round 6 of 6",
    ):
        assert words in err
    with pytest.raises(fs.InvalidInput, match="progress = 3 must be True or a function"):
        fs.run(fs.FedAvg(0.1), TASK, rounds=1, progress=3)
