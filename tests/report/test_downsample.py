"""Curves with more evaluations than a picture has room for: fewer points, every peak, a page of 3 MB."""

from __future__ import annotations

import numpy as np
import pytest

from fedsolve.report.page import page_data, rows_to_draw, write_page
from long_run import PEAKS, long_run


@pytest.mark.full
def test_a_page_of_twelve_long_runs_is_small_and_keeps_every_peak(tmp_path):
    runs = [long_run(i) for i in range(12)]
    page = write_page(tmp_path / "page.html", runs, title="long")
    assert page.stat().st_size < 3e6
    assert "history.json has every value" in page.read_text()
    for run, drawn in zip(runs, page_data(runs, "train_loss")["runs"], strict=True):
        rounds, losses = np.array(drawn["columns"]["round"]), np.array(drawn["columns"]["test_loss"])
        assert len(rounds) <= 1500
        assert (np.diff(rounds) > 0).all()
        np.testing.assert_allclose(losses, run.evaluations["test_loss"][rounds], rtol=1e-6)
        assert set(PEAKS.tolist()) <= set(rounds.tolist())
        assert losses.max() == np.float64(f"{run.evaluations['test_loss'].max():.7g}")


def test_what_has_room_is_drawn_whole():
    assert rows_to_draw([np.zeros(100)], 100).tolist() == list(range(100))


def test_gaps_are_no_values():
    values = np.full(1000, np.nan)
    values[500] = 7.0
    assert rows_to_draw([values], 10).tolist() == [0, 500, 999]
