"""Help, completion, and tables on a terminal of 80 columns: what a user sees before anything runs."""

from __future__ import annotations

import importlib.util
import io
import json
import runpy
import sys
from pathlib import Path

import pytest
from rich.console import Console

from fedsolve.cli.console import complete_algorithm, complete_experiment, complete_task
from fedsolve.cli.listing import complete_kind
from fedsolve.cli.main import app
from fedsolve.config.catalogue import ALGORITHMS
from fedsolve.report.table import narrow_table
from fedsolve.results.metrics import duration
from fedsolve.studies import reproduce
from fedsolve.studies import reproduce as names

PAGES = [
    (), ("run",), ("compare",), ("sweep",), ("reproduce",), ("study",), ("verdict",), ("list",), ("show",), ("cite",),
    ("federate",), ("federate", "new"), ("federate", "demo"), ("federate", "check"), ("doctor",), ("stop",),
    ("predict",), ("export",),
]  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_help_is_plain_and_asked_for_in_two_ways(call, page):
    ended = call(*page, "--help")
    assert ended.code == 0
    assert "\\" not in ended.out
    assert call(*page, "-h").out == ended.out


def test_needed_arguments_are_marked(call):
    assert "[required]" in call("show", "--help").out


def test_python_m_fedsolve_is_the_command(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fedsolve", "--version"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("fedsolve", run_name="__main__")
    assert capsys.readouterr().out.startswith("fedsolve ")


def test_names_are_completed(capsys, monkeypatch):
    assert complete_task("dig") == ["digits"]
    assert complete_algorithm("FedDuA") == ["FedDuAdagrad", "FedDuAdam", "FedDuA"]
    assert complete_algorithm("SCAFFOLD+FedDuA") == [f"SCAFFOLD+FedDuA{end}" for end in ("dagrad", "dam", "")]
    assert complete_algorithm("Nothing+FedDuA") == []
    assert complete_experiment("fw-p") == ["fw-participation", "fw-penalty", "fw-privacy"]
    assert complete_kind("g") == ["geometries"]
    monkeypatch.setenv("_FEDSOLVE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "fedsolve compare digits SCAFFOLD FedAda")
    monkeypatch.setenv("COMP_CWORD", "4")
    with pytest.raises(SystemExit):
        app([], prog_name="fedsolve")
    assert capsys.readouterr().out.split() == [name for name in ALGORITHMS if name.startswith("FedAda")]


def test_heads_break_between_words_and_cells_not_at_all():
    heads = ["Method", "Final test accuracy (%)", "Best test accuracy (%)", "Final training loss", "Rounds to 90 %",
             "Sent up", "Sent down", "Time (s)"]  # fmt: skip
    cells = [["FedDuAdam", "43.73", "49.58", "1.8819", "100", "15.6 kB", "15.6 kB", "0.0"]]
    out = io.StringIO()
    Console(file=out, width=80).print(narrow_table(heads, cells))
    words = out.getvalue().split()
    assert max(map(len, out.getvalue().splitlines())) <= 80
    for text in (*heads, *cells[0]):
        assert set(text.split()) <= set(words)


def test_announced_times_are_those_of_the_kept_results():
    """Within a quarter, and none is announced that was not kept."""
    for name, folder in names.program_folders().items():
        path = folder / "results.json"
        seconds = json.loads(path.read_text())["seconds"] if path.exists() else None
        minutes = names.find(name).minutes
        assert (minutes is None) == (seconds is None), name
        if seconds is not None:
            assert 60 * minutes == pytest.approx(seconds, rel=0.25), name
    assert duration(60) == "60 s"


def test_an_experiment_needs_matplotlib_before_it_computes(call, no_pictures, monkeypatch):
    monkeypatch.setattr(reproduce.Context, "part", lambda *a: pytest.fail("it computed"))
    ended = call("reproduce", "lasso-2", "--quick")
    assert importlib.util.find_spec("matplotlib") is None
    assert ended.code == 2
    assert ended.err == "error: plots need matplotlib, which is not installed: pip install 'fedsolve[plot]'\n"
    assert not list(Path().iterdir())


def test_judging_again_draws_nothing(no_pictures, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert reproduce.evaluate_claims("fw-split", names.program_folders()["fw-split"])
