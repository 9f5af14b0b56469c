"""A claim of speed fails where its bound does not hold or nothing was measured; the pages say the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import bench  # noqa: E402
import stored  # noqa: E402
from speed_bounds import BOUNDS, HEADLINES, Bound, broken  # noqa: E402

sys.path.pop()  # other tests ask whether a name is a module's


@pytest.fixture(autouse=True)
def _folder(monkeypatch):
    """What the programs import when they run."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


TIMES = {
    "A": [2.0, 4.0, 6.0],
    "B": [1.0, 2.0, 2.0],
    "loop, 1 thread": [4.0, 4.0, 4.0],
    "loop, 2 threads": [2.0, 2.5, 2.5],
    "B, 1 device": [0.1, 0.1, 0.1],
}
WORKS = {"X1": {"times": TIMES, "unit": "s"}}


@pytest.mark.parametrize(
    ("bound", "value", "holds"),
    [
        (Bound("X1", "A", 2.0, "B"), 2.0, True),  # the median of 2, 2, 3: not the quotient of medians of all
        (Bound("X1", "A", 1.9, "B"), 2.0, False),
        (Bound("X1", "A", 2.0, "B", at_least=True), 2.0, True),
        (Bound("X1", "A", 2.1, "B", at_least=True), 2.0, False),
        (Bound("X1", "B", 0.8, "loop"), 0.8, True),  # the fastest loop
        (Bound("X1", "A", 3.0), 4.0, False),
        (Bound("X1", "C", 9.0, "B"), None, False),
        (Bound("X1", "A", 9.0, "C"), None, False),
        (Bound("X2", "A", 9.0), None, False),
    ],
)
def test_a_bound_is_of_ratios_within_a_repetition(bound, value, holds):
    assert bound.value(WORKS) == value
    assert bound.holds(WORKS) == holds


def test_a_line_for_each_bound_that_does_not_hold(capsys, monkeypatch):
    bounds = [Bound("X1", "A", 1.5, "B"), Bound("X1", "A", 5.0), Bound("X2", "A", 1.0, "B", at_least=True)]
    assert broken(WORKS, bounds) == [
        "X1: A / B <= 1.5: measured 2",
        "X2: A / B >= 1: not measured",
    ]
    monkeypatch.setattr(bench, "BOUNDS", bounds)
    assert bench.checked(WORKS) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 of 3 bounds hold"
    assert bench.checked(WORKS, keys=set()) == 0
    monkeypatch.setattr(bench, "BOUNDS", bounds[1:2])
    assert bench.checked(WORKS) == 0


def test_check_reads_what_is_stored(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(stored, "RESULTS", tmp_path)
    assert bench.main(["--check"]) == 1  # nothing is
    assert capsys.readouterr().out.count("not measured") == len(BOUNDS)
    kept = {"date": "2026-01-02", "versions": {}, "about": "", "base": "", "unit": "ms"}
    limit = {b.work: {**kept, "times": {}} for b in BOUNDS}
    for b in BOUNDS:  # every program takes as long
        times = limit[b.work]["times"]
        times.setdefault(b.program, [1.0])
        if b.over:
            times.setdefault(b.over, [1.0])
    assert stored.store(limit) == stored.path_of(stored.processor())
    stored.store({"other": {**kept, "times": {"A": [1.0]}}})
    works = stored.load(stored.path_of(stored.processor()))["works"]
    assert works == limit | {"other": {**kept, "times": {"A": [1.0]}}}
    assert bench.main(["--check"]) == 1
    lines = capsys.readouterr().out.splitlines()[:-1]
    assert len(lines) == sum(not b.holds(works) for b in BOUNDS) > 0


def test_claims_are_named_once_and_headlines_have_a_label():
    claims = [(b.work, b.program, b.over) for b in BOUNDS]
    assert len({*claims}) == len(claims)
    assert all(b.label for b in HEADLINES)
    assert {*HEADLINES} <= {*BOUNDS}


def test_a_wrong_work_is_one_line(capsys):
    with pytest.raises(SystemExit):
        bench.main(["w9"])
    assert "no work is called w9" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        bench.main(["w1", "--store", "--tiny"])
    assert "--tiny measures nothing" in capsys.readouterr().err


def test_times_are_noted_where_they_are_collected(tmp_path, monkeypatch):
    lines = tmp_path / "lines"
    monkeypatch.setenv("FEDSOLVE_BENCH_LINES", str(lines))
    entry = {"key": "X1", "about": "work", "unit": "s", "base": "A", "times": {"A": [1.23456789]}}
    stored.record(entry)
    found = stored.collected(lines)["X1"]
    assert found["times"] == {"A": [1.2346]}
    assert "jax" in found["versions"]
    assert stored.collected(tmp_path / "none") == {}
