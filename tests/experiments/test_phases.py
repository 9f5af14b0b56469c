"""The phase diagram: grids alike for all methods of a kind, and its two own rules on made-up numbers."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.client_drift.phase_diagram import study as phases
from experiments.feddua.methods import MeanOfTwo
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells
from fedsolve.studies.cells import Cell
from fedsolve.studies.reproduce import reproduce

NOISE = 0.01 * np.array([1.0, -1.0, 0.5, -0.5, 0.0])


def made_up(losses):
    """All cells: (alpha, steps) -> method -> mean loss at the end, five data sets."""
    cells = {}
    for (alpha, steps), methods in losses.items():
        for k, (method, end) in enumerate(methods.items()):
            curve = np.repeat((end + np.roll(NOISE, k))[:, None], 3, axis=1)[None]
            one = SweepRecord(
                method, "digits", {"client_lr": (0.1,)}, phases.SEEDS, np.array([0, 45, 50]), {"train_loss": curve},
                np.full((1, 5), -1), Selection("train_loss", 1),
            )  # fmt: skip
            cells[phases.name_of(alpha, steps), method] = Cell(one, None, None)
    return Cells(phases.STUDY.problems, phases.SEEDS, cells)


EVERY = [(alpha, steps) for alpha in phases.ALPHAS for steps in phases.STEPS]


def test_one_method_wins_everywhere_or_is_beaten_somewhere():
    best = {cell: {"FedAvg": 0.5, "FedAdam": 0.9} for cell in EVERY}
    assert phases.one_wins()(made_up(best)).verdict == "reproduced"
    beaten = phases.one_wins()(made_up(best | {EVERY[2]: {"FedAvg": 0.9, "FedAdam": 0.5}}))
    assert beaten.verdict == "not reproduced"
    assert beaten.ours.endswith(f"FedAvg {len(EVERY) - 1} ({len(EVERY) - 1}), FedAdam 1 (1)")
    assert f"in 1 cells: {phases.name_of(*EVERY[2])}" in beaten.reason
    nearly = best | {EVERY[2]: {"FedAvg": 0.501, "FedAdam": 0.5}}
    assert phases.one_wins()(made_up(nearly)).verdict == "underpowered"


@pytest.mark.parametrize(
    ("skewed", "verdict"), [(0.5, "reproduced"), (0.6, "not reproduced"), (0.548, "underpowered")]
)
def test_a_loss_that_the_skew_does_not_affect(skewed, verdict):
    """At alpha 10 it is 0.5: ratios of 1, 1.2 and 1.096 against 1.1."""
    losses = {cell: {"SCAFFOLD": skewed if cell[0] == phases.ALPHAS[0] else 0.5} for cell in EVERY}
    cells = made_up(losses)
    if verdict == "underpowered":
        for key, cell in cells.by_name.items():
            if key[0] == phases.name_of(phases.ALPHAS[0], phases.STEPS[-1]):
                cell.published.metrics["train_loss"][..., 1:] *= (1 + NOISE)[:, None]
    assert phases.unaffected("SCAFFOLD", phases.STEPS[-1])(cells).verdict == verdict


def test_grids_are_alike():
    """One range of client rates for all; methods without a server rate have their proximal weight or nothing."""
    second = {
        name: [axis for axis in method.grid if axis != "client_lr"] for name, method in phases.METHODS.items()
    }
    assert all(method.grid["client_lr"] == phases.CLIENT_LR for method in phases.METHODS.values())
    assert {name for name, axes in second.items() if not axes} == {"FedExP", "FedDuAdagrad", "FedDuAdam"}
    assert second["FedProx"] == ["mu"]
    assert isinstance(phases.METHODS["FedExP"].make(client_lr=0.1), MeanOfTwo)
    assert len(phases.METHODS) == 10


@pytest.mark.full
def test_quick_run(tmp_path):
    made = reproduce("phase-diagram", tmp_path, quick=True)
    assert set(made.outcome.pictures) == {"phases"}
    assert not made.outcome.claims
