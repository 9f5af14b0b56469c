"""fedopt-tuning: the small network, methods, and the best client rate by server rate on made-up numbers."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.fedopt.fedopt_tuning.problems import ADAPTIVE, PROBLEMS, TAU, TAUS, SmallCNN, methods
from experiments.fedopt.fedopt_tuning.study import best_rates, inverse
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells
from fedsolve.studies.cells import Cell
from fedsolve.studies.reproduce import reproduce

CLIENT, SERVER = (0.1, 1.0, 10.0), (0.01, 0.1, 1.0)


def made_up(losses):
    """Cells of an adaptive method: loss by (client, server) at tau 1e-3, two seeds; other values of tau are better."""
    by_tau = np.stack([np.asarray(losses, float) * (1 if tau == TAU else 0.1) for tau in TAUS], axis=-1)
    end = np.repeat(by_tau.reshape(-1, 1), 2, axis=1)
    curve = np.stack([np.full_like(end, 10.0), end], axis=-1)
    grid = SweepRecord(
        "m", "p", {"client_lr": CLIENT, "server_lr": SERVER, "tau": TAUS}, (0, 1), np.array([0, 1]),
        {"train_loss": curve, "test_accuracy": curve}, np.full(end.shape, -1), Selection("train_loss", 1),
    )  # fmt: skip
    return Cells(PROBLEMS, (0, 1), {("digits", m): Cell(None, grid, None) for m in ADAPTIVE})


def test_the_best_client_rate_by_server_rate():
    """At tau 1e-3 alone; a server rate whose best loss is nearer to the start's than to the best is left out."""
    cells = made_up([[8, 3, 1], [9, 2, 4], [7, 5, 5]])
    for servers, clients in best_rates(cells, "digits", "FedAdam"):
        assert servers.tolist() == [0.1, 1.0]  # at 0.01 the best is 7, over (1 + 10) / 2
        assert clients.tolist() == [1.0, 0.1]
    told = inverse("digits")(cells)
    assert told.verdict == "reproduced"
    assert told.provisional == ""  # one of each two lies at an edge: wherever beyond, it is on that side
    both = inverse("digits")(
        made_up([[8, 1, 1], [9, 2, 4], [7, 5, 5]])
    )  # they are tied, and might fall or rise
    assert (both.verdict, "FedYogi's best client_lr in 4 of 4 pairs" in both.provisional) == (
        "underpowered",
        True,
    )
    assert inverse("digits")(made_up([[1, 3, 8], [2, 2, 2], [3, 2.5, 1]])).verdict == "not reproduced"


def test_all_methods_of_a_task_have_one_grid_of_rates():
    for problem in PROBLEMS:
        grids = [m.grid for m in methods(problem).values()]
        assert all(g["client_lr"] == grids[0]["client_lr"] for g in grids)
        assert all(g["server_lr"] == grids[0]["server_lr"] for g in grids)
    made = methods("digits")["FedYogi"].make(client_lr=0.3, server_lr=0.2, tau=0.1)
    assert (made.local.lr, made.server_optimizer.lr, made.server_optimizer.tau) == (0.3, 0.2, 0.1)


def test_small_network_sees_means_of_2x2_pixels():
    class Seen:
        height = width = 14
        __call__ = staticmethod(lambda params, x: x)

    x = np.random.default_rng(0).random((3, 28, 28, 1)).astype(np.float32)
    halved = [
        [[i[2 * r : 2 * r + 2, 2 * c : 2 * c + 2].mean() for c in range(14)] for r in range(14)] for i in x
    ]
    np.testing.assert_allclose(SmallCNN(Seen())(None, x)[..., 0], halved, rtol=1e-5)


@pytest.mark.full
def test_quick_run(tmp_path):
    told = reproduce("fedopt-tuning", tmp_path, quick=True)
    assert len(list(tmp_path.glob("*.png"))) == len(told.outcome.pictures)
