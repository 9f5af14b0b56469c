"""A run of more evaluations than a picture has room for, for tests of what is drawn and of how fast it opens."""

from __future__ import annotations

import numpy as np

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
