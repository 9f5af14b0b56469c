"""Compilation is counted once, however deep its reports are nested."""

import pytest

from fedsolve.engine.clock import CompileClock


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
