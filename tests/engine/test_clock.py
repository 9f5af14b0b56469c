"""Compilation is counted once, however deep its reports are nested."""

import pytest

from fedsolve.engine import loop
from fedsolve.engine.loop import CompileClock


def test_reports_inside_a_report_count_once():
    """Spans 1-2 and 2-3 lie inside 0.5-4 and are covered by it: 3.5 s; 5-6 comes after it: 4.5 s in all."""
    clock = CompileClock()
    clock.add(2.0, 1.0)
    clock.add(3.0, 1.0)
    assert clock.seconds == pytest.approx(2.0)
    clock.add(4.0, 3.5)
    assert clock.seconds == pytest.approx(3.5)
    clock.add(6.0, 1.0)
    assert clock.seconds == pytest.approx(4.5)


def test_the_first_call_is_of_one_round_and_the_next_of_about_a_second(monkeypatch):
    """Nothing is known: one round, so that progress and Ctrl-C wait for no interval; then by what a round took."""
    now = iter([0.0, 0.5, 10.0, 14.0])
    monkeypatch.setattr(loop.time, "perf_counter", lambda: next(now))
    calls = loop.CallLength(CompileClock())
    assert [calls.rounds(1), calls.rounds(100_000)] == [1, 1]
    for count, rounds in ((10, 20), (2, 1)):  # 0.05 s a round, then two seconds
        with calls.timed(count):
            pass
        assert calls.rounds(100_000) == rounds
