"""Curves with more evaluations than a picture has room for: fewer points, every peak, a page of 3 MB."""

from __future__ import annotations

import numpy as np

from fedsolve.report.page import page_data, write_page
from fedsolve.report.thin import kept
from fedsolve.results.history import History

DRAW = np.random.default_rng(0)
ROUNDS = np.arange(10_001)
PEAKS = DRAW.choice(50, 25, replace=False) * 200 + 7  # single evaluations that stand out, up or down
SIGNS = DRAW.choice([-2.0, 2.0], len(ROUNDS))


def long_run(number):
    """10,000 rounds, each evaluated, with the metrics of a task with clients and two iterates."""
    curve = np.exp(-ROUNDS / 3000)

    def noisy():
        return curve + 0.02 * DRAW.normal(size=len(ROUNDS)) + np.isin(ROUNDS, PEAKS) * SIGNS

    names = [
        f"{part}_{what}{how}"
        for part in ("train", "test")
        for what in ("loss", "accuracy")
        for how in ("", "_averaged")
    ]
    names += [f"client_loss_{what}" for what in ("mean", "p10", "p90", "worst")]
    columns = {"round": ROUNDS, "seconds": ROUNDS * 0.01} | {name: noisy() for name in names}
    log = {"round": ROUNDS[1:], "server_lr": noisy()[1:]} | {
        k: ROUNDS[1:] * 0 + 999 for k in ("bytes_up", "bytes_down")
    }
    return History(f"method {number}", "task", {"seed": 0}, columns, log)


def test_a_page_of_twelve_long_runs_is_small_and_keeps_every_peak(tmp_path):
    runs = [long_run(i) for i in range(12)]
    page = write_page(tmp_path / "page.html", runs, title="long")
    assert page.stat().st_size < 3e6
    assert "history.json has all" in page.read_text()
    for run, drawn in zip(runs, page_data(runs, "train_loss")["runs"], strict=True):
        rounds, losses = np.array(drawn["columns"]["round"]), np.array(drawn["columns"]["test_loss"])
        assert len(rounds) <= 1500
        assert (np.diff(rounds) > 0).all()
        np.testing.assert_allclose(losses, run.evaluations["test_loss"][rounds], rtol=1e-6)
        assert set(PEAKS.tolist()) <= set(rounds.tolist())
        assert losses.max() == np.float64(f"{run.evaluations['test_loss'].max():.7g}")


def test_what_has_room_is_drawn_whole():
    assert kept([np.zeros(100)], 100).tolist() == list(range(100))


def test_gaps_are_no_values():
    values = np.full(1000, np.nan)
    values[500] = 7.0
    assert kept([values], 10).tolist() == [0, 500, 999]
