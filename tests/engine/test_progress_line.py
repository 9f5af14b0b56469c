"""Progress by default: a line in a terminal, a bar in a notebook; with the rate and the time left."""

from __future__ import annotations

import io
import sys
import time
import types

import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.engine import progress, scheduler
from fedsolve.engine.progress import Display, Progress, TerminalLine

TASK = fs.Task.from_arrays(
    lambda w, b: jnp.mean((b[0] @ w - b[1]) ** 2), np.zeros(2), [(np.ones((4, 2)), np.ones(4))] * 3
)


def shown(monkeypatch, rewritten, looks):
    """What is written if the looks, (second, done, words), come at their times."""
    clock, stream = iter([at for at, _, _ in looks]), io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with TerminalLine(stream) if rewritten else Display(stream) as line:
        line.begin("A")
        line.compiling("A")
        for _, done, words in looks:
            line(Progress("A", done, 100, {}, words))
    return stream.getvalue()


def test_rate_and_time_left(monkeypatch):
    """From the first look on: 20 rounds in 4 s are 5 a second, and 70 more take 14 s."""
    told = shown(
        monkeypatch,
        True,
        [
            (10.0, 10, "a longer text"),
            (10.1, 11, "unseen"),
            (10.5, 12, "too early"),
            (14.0, 30, "b"),
            (15.0, 100, "c"),
        ],
    )
    assert told == (
        "\rA: preparing\rA: compiling"
        "\rA: round 10 of 100, a longer text"
        "\rA: round 12 of 100, too early    "
        "\rA: round 30 of 100, b, 5 a second, 14 s left"
        "\rA: round 100 of 100, c, 18 a second, done   \n"
    )  # fmt: skip


def test_a_file_gets_a_line_now_and_then(monkeypatch):
    told = shown(monkeypatch, False, [(0.0, 1, ""), (3.0, 2, ""), (6.0, 7, ""), (6.1, 100, "")])
    assert told == (
        "A: preparing\nA: compiling\nA: round 1 of 100\n"
        "A: round 7 of 100, 1 a second, 2 min left\nA: round 100 of 100, 16.2 a second, done\n"
    )


@pytest.mark.full
def test_of_runs_comparisons_and_sweeps(capsys):
    options = {"rounds": 3, "progress": True}
    fs.run(fs.FedAvg(0.1), TASK, **options, seeds=2)
    err = capsys.readouterr().err
    assert "FedAvg: seed 2 of 2, round 3 of 3, training loss" in err
    fs.compare({"a": fs.FedAvg(0.1), "b": fs.FedAvg(0.2)}, TASK, **options)
    fs.sweep("FedAvg", TASK, {"client_lr": [0.1, 0.2]}, **options)
    err = capsys.readouterr().err
    for words in (
        "a: compiling",
        "a: round 3 of 3",
        "b: compiling\nb: round 1 of 3",
        "b: round 3 of 3",
        "FedAvg: compiling\nFedAvg: ",
        "FedAvg: 6 of 6 rounds of all trials, 0 diverged",
    ):
        assert words in err
    with pytest.raises(fs.InvalidInput, match="progress = 3 must be True, False or a function"):
        fs.run(fs.FedAvg(0.1), TASK, rounds=1, progress=3)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "progress", "line"),
    [(Terminal, None, True), (Terminal, False, False), (io.StringIO, None, False), (io.StringIO, True, True)],
)
def test_a_line_where_somebody_watches(monkeypatch, stream, progress, line):
    err = stream()
    monkeypatch.setattr(sys, "stderr", err)
    fs.run(fs.FedAvg(0.1), TASK, rounds=2, progress=progress)
    assert ("FedAvg: round 2 of 2" in err.getvalue()) == line


def in_a_notebook(monkeypatch):
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))


def test_a_bar_in_a_notebook(monkeypatch):
    """A real one of tqdm and ipywidgets: full, with the seed and the latest evaluation beside it."""
    notebook = pytest.importorskip("tqdm.notebook")
    pytest.importorskip("ipywidgets")
    bars = []

    class Kept(notebook.tqdm):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs, display=False)
            bars.append(self)

    monkeypatch.setattr(notebook, "tqdm", Kept)
    in_a_notebook(monkeypatch)
    fs.run(fs.FedAvg(0.1), TASK, rounds=3, seeds=2)
    (bar,) = bars
    left, middle, right = bar.container.children
    assert (middle.value, middle.max, middle.bar_style) == (6, 6, "success")
    assert "FedAvg: seed 2 of 2, round 3 of 3" in left.value.replace("\u2007", " ")
    assert "training loss" in right.value.replace("\u2007", " ")
    fs.run(fs.FedAvg(0.1), TASK, rounds=3, progress=False)
    assert len(bars) == 1


def test_without_widgets_a_notebook_has_the_line(monkeypatch, capsys):
    in_a_notebook(monkeypatch)
    monkeypatch.setattr(progress.importlib.util, "find_spec", lambda name: None)
    fs.run(fs.FedAvg(0.1), TASK, rounds=2)
    out, err = capsys.readouterr()
    assert "\rFedAvg: round 2 of 2" in out
    assert not err


@pytest.mark.full_rows("0")
@pytest.mark.parametrize("slow", [0, 1])
def test_a_seed_that_ended_early_counts_as_done(monkeypatch, slow):
    """Seed 0 ends after one round: what is shown next is the other's, and whoever ends last, all is done then."""
    seen, run_rounds = [], scheduler.run_rounds

    def slowly(prepared, *rest):
        result = run_rounds(prepared, *rest)
        time.sleep(0.3 if prepared.options.seed == slow else 0)
        return result

    monkeypatch.setattr(scheduler, "run_rounds", slowly)

    def stops_first(seed):
        return [lambda at: "enough" if seed == 0 and at.round == 1 else None]

    fs.run(fs.FedAvg(0.1), TASK, rounds=4, seeds=2, progress=seen.append, callbacks=stops_first)
    assert (seen[-1].done, seen[-1].total) == (8, 8)
    assert seen[-1].where == "seed 2 of 2, round 4 of 4"
