"""The study of voxels: splits, baselines in the columns, statements on made-up ends, a quick run."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from experiments.fco.fmri import study as fmri
from experiments.fco.fmri.statements import ALONE, NAME, shown, statements
from experiments.fco.methods import CENTRAL, METHODS
from fedsolve.engine.baselines import fista
from fedsolve.geometry.diagnostics import Point
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells
from fedsolve.studies.cells import Cell
from fedsolve.studies.reproduce import reproduce

SEEDS = fmri.STUDY.seeds
NO, YES = "not reproduced", "reproduced"


def rows(task):
    """Inputs of all clients of a task, shape (n, features)."""
    return np.concatenate([task.data.client(i).x for i in range(task.data.num_clients)])


def held_out(task):
    return {one.name: one for one in task.diagnostics if isinstance(one, fmri.HeldOut)}


@pytest.mark.full
def test_splits_test_each_run_once_and_validate_on_others():
    """Test, validation and training runs are disjoint, and together all; the validation runs are the same."""
    splits = [fmri.made_up(None, number) for number in range(6)]
    first, *others = (held_out(one)["validation"].examples.x for one in splits)
    assert all(np.array_equal(first, other) for other in others)
    tested = np.concatenate([held_out(one)["test"].examples.x for one in splits])
    assert len(np.unique(np.concatenate([first, tested]), axis=0)) == 10 * 18
    for number, one in enumerate(splits):
        parts = [rows(one), tested[18 * number :][:18], first]
        assert [len(x) for x in parts] == [5 * 18, 18, 4 * 18]
        assert len(np.unique(np.concatenate(parts), axis=0)) == 10 * 18


@pytest.mark.full
def test_columns_tell_what_the_centralised_solution_has():
    """By NumPy, from the model that FISTA finds on the clients' data."""
    task = fmri.made_up(None, 1)
    best = fista(task, fmri.PENALTY, iterations=500, tolerance=1e-7).params
    weight, bias = (np.asarray(leaf, np.float64) for leaf in (best.weight, best.bias))
    point = Point(best, np.float32(0), None)
    found = {name: float(x) for one in task.diagnostics for name, x in one(point).items()}
    for name, one in held_out(task).items():
        margin = np.asarray(one.examples.x, np.float64) @ weight.ravel() + bias.ravel()
        y = np.asarray(one.examples.y)
        loss = np.mean(np.log1p(np.exp(-np.where(y == 1, margin, -margin))))
        expected = loss + fmri.LAMBDA * np.abs(weight).sum()
        assert found[f"{name}_objective"] == pytest.approx(expected, rel=1e-5)
        assert found[f"{name}_accuracy"] == pytest.approx(np.mean((margin > 0) == (y == 1)))
        assert found[f"{CENTRAL}_{name}_objective"] == pytest.approx(expected, rel=1e-5)
    assert found["density"] == found[f"{CENTRAL}_density"] == pytest.approx(np.mean(np.abs(weight) > 1e-4))
    assert found[f"{ALONE}_test_accuracy"] < found[f"{CENTRAL}_test_accuracy"]


def made_up(density, accuracy, good):
    """Cells of each method's density and accuracy at the end, the same over splits but for noise.

    Args:
        density, accuracy: by method; the centralised solution has 0.03 and 0.95, a client alone 0.85.
        good: by method, how many of the grid's shown settings end with a density of 0.03, the others with 0.5.
    """
    noise = 1e-4 * np.arange(len(SEEDS))[:, None]
    known = {
        f"{CENTRAL}_density": 0.03,
        f"{CENTRAL}_test_accuracy": 0.95,
        f"{CENTRAL}_validation_accuracy": 0.95,
    }
    known |= {f"{ALONE}_density": 0.01, f"{ALONE}_test_accuracy": 0.85}

    def sweep(method, axes, seeds, own):
        metrics = {name: np.full(own["density"].shape, x) for name, x in known.items()} | own
        start = {
            k: 1 if k in known else 0 if "accuracy" in k else 2 for k in metrics
        }  # a known solution stands
        metrics = {k: np.concatenate([start[k] * v, v], -1) for k, v in metrics.items()}
        lost = np.full(own["density"].shape[:2], -1)
        select = Selection("validation_objective", 1)
        return SweepRecord(method, NAME, axes, seeds, np.array([0, 300]), metrics, lost, select)

    cells = {}
    for method in METHODS:
        one = np.ones((1, len(SEEDS), 1))
        own = {
            "density": density[method] * one,
            "test_accuracy": accuracy[method] + noise[None],
            "train_loss": one,
        }
        tuned = sweep(method, {"client_lr": (0.1,), "server_lr": (1.0,)}, SEEDS, own)
        axes = dict(fmri.PAPER_GRID)
        loss = np.ones((49, len(SEEDS), 1))
        ends = 0.5 * loss
        whole = {
            "density": ends,
            "validation_accuracy": 0.94 * loss,
            "train_loss": loss,
            "validation_objective": loss,
        }
        grid = sweep(method, axes, SEEDS, whole)
        grid.metrics["density"][np.flatnonzero(shown(grid))[: good[method]], :, -1] = 0.03
        cells[NAME, method] = Cell(None, grid, tuned)
    return Cells(fmri.STUDY.problems, SEEDS, cells)


def each(first, others):
    return {name: first if name == "FedDualAvg" else others for name in METHODS}


def test_what_the_paper_says_is_reproduced_by_such_ends():
    cells = made_up(each(0.03, 0.4) | {"FedDualAvgOSP": 0.01}, each(0.95, 0.8), each(15, 3))
    assert [one.decide(cells).verdict for one in statements()] == [YES] * 8


def test_other_ends_contradict_it():
    cells = made_up(each(0.5, 0.4), each(0.8, 0.95), each(3, 15))
    assert [one.decide(cells).verdict for one in statements()] == [NO] * 6 + [NO, NO]


def test_figure_12_shows_the_settings_whose_rates_multiply_to_its_range():
    cells = made_up(each(0.5, 0.4), each(0.8, 0.95), each(3, 15))
    grid = cells.cell(NAME, "FedMiD").grid
    found = {
        (p["client_lr"], p["server_lr"]) for p, kept in zip(grid.points, shown(grid), strict=True) if kept
    }
    client, server = fmri.PAPER_GRID["client_lr"], fmri.PAPER_GRID["server_lr"]
    assert found == {(c, s) for c in client for s in server if 3e-3 <= round(c * s, 12) <= 0.3}
    assert len(found) == 28


@pytest.mark.full
def test_quick_run(tmp_path):
    """On made-up runs, without the data folder."""
    made = reproduce("fmri", tmp_path, quick=True)
    assert not made.outcome.claims
    assert "QUICK" in json.loads((tmp_path / "results.json").read_text())["made_with"]
    assert sorted(path.stem for path in tmp_path.glob("*.png")) == ["curves", "dots"]
    assert jax.tree.leaves(fmri.made_up(None, 0).data.examples)[0].shape == (90, 40)
