"""The studies of FedSLS and FedAda2: evaluations until a loss is reached, problems with and without one minimiser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from experiments.comparisons.fedada2 import study as fedada2
from experiments.fedli.fedsls import interpolation, study
from experiments.fedli.fedsls.evaluations import evaluations, saves
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells
from fedsolve.studies.cells import Cell
from fedsolve.studies.reproduce import reproduce

ROUNDS, SEEDS = np.arange(11), (0, 1, 2, 3, 4)


def cells(rounds_needed, trials=0):
    """FedAvg, whose loss falls from 1 to 0 in ten rounds, and a search with so many trials that needs fewer."""
    found = {}
    for name, needed in (("FedAvg", np.full(5, 10)), ("search", np.asarray(rounds_needed))):
        loss = np.clip(1 - ROUNDS / needed[:, None], 0, 1)[None]
        metrics = {"train_loss": loss, "test_accuracy": 1 - loss}
        if name == "search":
            metrics["loss_evaluations"] = np.where(ROUNDS > 0, trials, np.nan) * np.ones_like(loss)
        record = SweepRecord(
            name,
            "p",
            {"a": (1,)},
            SEEDS,
            ROUNDS,
            metrics,
            np.full((1, 5), -1),
            Selection("train_loss", 1),
            {},
        )
        found |= {(problem, name): Cell(record, None, None) for problem in study.BOTH}
    return Cells(study.PROBLEMS, SEEDS, found)


def test_evaluations_are_counted():
    """20 gradients a round, and the trials of all rounds until then; a method without a search has none."""
    some = cells([5] * 5, trials=30)
    np.testing.assert_array_equal(evaluations(some, study.MNIST, "search", losses=True)[0], 50.0 * ROUNDS)
    np.testing.assert_array_equal(evaluations(some, study.MNIST, "search", losses=False)[0], 20.0 * ROUNDS)
    np.testing.assert_array_equal(evaluations(some, study.MNIST, "FedAvg", losses=True)[0], 20.0 * ROUNDS)


@pytest.mark.parametrize(
    ("needed", "trials", "losses", "verdict"),
    [
        ([5] * 5, 30, False, "reproduced"),  # 5 rounds of 20 against 9 of 20
        ([5] * 5, 30, True, "not reproduced"),  # 5 rounds of 50
        ([5] * 5, 10, True, "reproduced"),  # 5 rounds of 30
        ([5, 5, 5, 5, 10_000], 0, False, "not reproduced"),  # a seed that never arrives
        ([5, 9, 10, 11, 11], 0, False, "underpowered"),
    ],
)
def test_fewer_evaluations(needed, trials, losses, verdict):
    decision = saves(study.BOTH, "search", "FedAvg", losses)(cells(needed, trials))
    assert decision.verdict == verdict


def test_clients_share_a_minimiser_or_not():
    """Without noise each client's own least squares has the same solution; F is strongly convex with and without."""
    for name, noise in interpolation.NOISE.items():
        task = interpolation.least_squares(None, 3, noise)
        of_clients = [task.data.client(i) for i in range(interpolation.CLIENTS)]
        own = np.stack([np.linalg.lstsq(c.x, c.y, rcond=None)[0] for c in of_clients])
        assert (np.ptp(own, axis=0).max() < 1e-6) == (name == interpolation.SHARED)
        assert min(np.linalg.eigvalsh(c.x.T @ c.x).min() for c in of_clients) > 0.01
        (measured,) = task.diagnostics
        assert (float(measured.optimum) < 1e-12) == (name == interpolation.SHARED)


def test_what_is_compared():
    """The paper's constants of a round; its rates are in the grids, and FedProx is not run where its mu is 0."""
    for name in study.BOTH:
        options = study.PROBLEMS[name].options
        assert (options["clients_per_round"], options["local_steps"], options["batch_size"]) == (20, 20, 50)
    assert set(study.methods(study.MNIST)) - set(study.methods(study.FEMNIST)) == {"FedProx"}
    made: Any = study.methods(study.MNIST)["FedAvg"].make(client_lr=0.01)
    assert float(made.local.lr(1)) == pytest.approx(0.01 * 0.998**2)
    assert set(fedada2.METHODS) >= {"FedAda2", "FedAda2++", "FedAdam", "FedAdamW", "FedLADA", "FedAvg"}
    assert isinstance(fedada2.METHODS["FedAda2++"].make(client_lr=0.01, server_lr=0.01), fs.FedOpt)


@pytest.mark.full
@pytest.mark.parametrize("name", ["fedsls", "fedada2"])
def test_quick_run_writes_everything(name, tmp_path):
    made = reproduce(name, tmp_path, quick=True)
    assert all((tmp_path / f"{key}.png").stat().st_size > 5000 for key in made.outcome.pictures)
