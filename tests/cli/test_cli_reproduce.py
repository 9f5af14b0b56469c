"""`fedsolve reproduce` on an experiment made here: its page, its files, interrupting it and going on."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from fedsolve.report.plots import new_figure
from fedsolve.report.table import ResultTable
from fedsolve.studies import reproduce as names
from fedsolve.studies.experiment import Claim, Context, Experiment, Outcome

COMPUTED: list[str] = []


def made(context: Context) -> Outcome:
    """Two parts; the second is interrupted the first time."""

    def first():
        COMPUTED.append("first")
        context.say("first", 1, 1)
        return {"x": np.arange(3.0)}

    def second():
        COMPUTED.append("second")
        if COMPUTED.count("second") == 1:
            raise KeyboardInterrupt
        return {"y": np.float64(2.5)}

    x = context.part("first", {"rate": 0.1}, first)["x"]
    y = float(context.part("second", {"rate": 0.1}, second)["y"])
    figure = new_figure(3, 2)
    figure.subplots().plot(x)
    claims = [
        Claim("it grows", "2", f"{y:g} <b>", "reproduced"),
        Claim("it falls", "-", "no", "not reproduced", "it grows"),
    ]
    table = ResultTable("Numbers", ["a", "b"], [["x", 1.5], ["y", None]])
    settings = {"rate": 0.1, "grid": [1, 2]}
    return Outcome(
        claims, {"curve": lambda: ("A curve.", figure)}, {"numbers": table}, ["One seed."], settings
    )


@pytest.fixture(autouse=True)
def _experiment(monkeypatch):
    COMPUTED.clear()
    experiment = Experiment("A made experiment", "yuan2021fco", "Two parts.", made, 0.1)
    monkeypatch.setattr(names, "find", lambda name: experiment)


def test_interrupted_then_finished(call):
    ended = call("reproduce", "made", "--out", "m")
    assert ended.code == 130
    assert "continue with the same command, fedsolve reproduce made --out m" in ended.err
    ended = call("reproduce", "made", "--out", "m")
    assert ended.code == 0
    assert COMPUTED == ["first", "second", "second"]  # the first part was kept
    assert "reproduced" in ended.out
    assert "page: m/page.html" in ended.err


def test_page_and_files(call):
    call("reproduce", "made", "--out", "m")
    ended = call("reproduce", "made", "--out", "m", "--json")
    assert [c["verdict"] for c in ended.document["claims"]] == ["reproduced", "not reproduced"]
    page = Path("m/page.html").read_text()
    for text in (
        "A made experiment",
        "Yuan et al. 2021",
        "2.5 &lt;b&gt;",
        "One seed.",
        "fedsolve reproduce made",
    ):
        assert text in page
    assert "data:image/png;base64," in page
    assert Path("m/curve.png").stat().st_size > 1000
    assert list(csv.reader(Path("m/numbers.csv").read_text().splitlines())) == [
        ["a", "b"],
        ["x", "1.5"],
        ["y", ""],
    ]
    results = json.loads(Path("m/results.json").read_text())
    assert results["settings"] == {"rate": 0.1, "grid": [1, 2]}
    assert results["deviations"] == ["One seed."]


def test_a_quick_run_has_no_verdict(call):
    """Neither in the terminal, on the page, nor in the files: its numbers mean nothing, and that is said."""
    ended = call("reproduce", "made", "--out", "m", "--quick", "--data-dir", "my data")
    assert "the same command, fedsolve reproduce made --quick --data-dir 'my data' --out m" in ended.err
    ended = call("reproduce", "made", "--out", "m", "--quick")
    assert ended.code == 0
    assert "numbers mean nothing" in " ".join(ended.err.split())
    page, results = Path("m/page.html").read_text(), json.loads(Path("m/results.json").read_text())
    assert "numbers mean nothing" in page
    assert results["quick"] is True
    assert [c["verdict"] for c in results["claims"]] == [None, None]
    for text in (ended.out, page.split("</style>")[1]):
        assert "it grows" in text
        assert "reproduced" not in text
        assert "data-verdict" not in text
    ended = call("reproduce", "made", "--out", "m", "--quick", "--json")
    assert [c["verdict"] for c in ended.document["claims"]] == [None, None]


def test_other_settings_are_other_parts(tmp_path):
    context = Context(tmp_path)
    calls = []

    def compute():
        calls.append(1)
        return {"x": np.ones(2)}

    for settings in ({"a": 1}, {"a": 1}, {"a": 2}):
        np.testing.assert_array_equal(context.part("p", settings, compute)["x"], 1)
    Context(tmp_path, quick=True).part("p", {"a": 1}, compute)
    assert len(calls) == 3
