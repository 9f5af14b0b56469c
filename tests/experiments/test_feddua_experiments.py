"""The FedDuA studies: the iterate that is judged, grids alike, names and methods of the combinations; a quick run."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fedsolve as fs
from experiments.feddua.feddua_combinations import study as feddua_combinations
from experiments.feddua.feddua_synthetic import study as feddua
from experiments.feddua.methods import ADAPTIVE_LR, AVERAGING_LR, CLIENT_LR, METHODS, MeanOfTwo
from fedsolve.studies.reproduce import reproduce

SMALL = {"num_clients": 3, "examples_per_client": 4, "features": 10}


@pytest.mark.full
@pytest.mark.parametrize("name", ["feddua-synthetic", "feddua-combinations"])
def test_quick_run_writes_everything(name, tmp_path):
    made = reproduce(name, tmp_path, quick=True)
    assert "QUICK" in json.loads((tmp_path / "results.json").read_text())["made_with"]
    assert all((tmp_path / f"{key}.png").stat().st_size > 5000 for key in made.outcome.pictures)


def test_the_grids_are_half_decades_and_alike():
    for axis in (CLIENT_LR, AVERAGING_LR, ADAPTIVE_LR):
        np.testing.assert_allclose(np.diff(np.log10(axis)), 0.5, atol=1e-6)
    rates = {name: method.grid for name, method in METHODS.items()}
    assert all(grid["client_lr"] == CLIENT_LR for grid in rates.values())
    assert {n for n, g in rates.items() if "server_lr" not in g} == {
        "FedExP",
        "FedDuAdagrad",
        "FedExPM",
        "FedDuAdam",
    }
    assert set(feddua.PAPER_EPS_G) < set(feddua.EPS_G)
    assert set(feddua.PAPER_ETA_G) < set(feddua.ETA_G)


@pytest.mark.parametrize("problem", feddua.PROBLEMS)
def test_a_method_has_the_rates_of_its_grid(problem):
    """And epsilon = epsilon_g = 0 where the grid has none; FedDuA and FedExP are judged at the mean of two iterates."""
    for name, method in feddua.methods(problem).items():
        setting = {axis: values[1] for axis, values in method.grid.items()}
        made = method.make(**setting)
        averaged = name.startswith(("FedDu", "FedExP"))
        assert isinstance(made, MeanOfTwo) == averaged
        inner = made.inner if averaged else made
        assert inner.local.lr == setting["client_lr"]
        step = inner.server_optimizer
        assert step.eps_g == setting.get("eps_g", 0.0) if averaged else step.lr == setting["server_lr"]
        if name.startswith("FedDu"):
            assert step.eps == setting.get("eps", 0.0)


def test_mean_of_two_is_judged_at_the_mean_and_trains_from_the_last():
    """Its train_loss is the train_loss_averaged of the method alone."""
    task = fs.tasks.build("regression", **SMALL)
    method = fs.FedExP(0.1, eps_g=0.0)
    alone = fs.run(method, task, rounds=4, eval_every=1, dtype="float64")
    judged = fs.run(MeanOfTwo(method), task, rounds=4, eval_every=1, dtype="float64")
    np.testing.assert_allclose(judged.metrics["train_loss"], alone.metrics["train_loss_averaged"], rtol=1e-12)
    assert not np.allclose(judged.metrics["train_loss"][1:], alone.metrics["train_loss"][1:])


def test_the_combinations():
    """Each name is its method: 15 of them, whose wrappers and steps are those that it says."""
    found = feddua_combinations.methods(feddua_combinations.DIGITS)
    assert len(found) == 15
    made = found["SCAFFOLD+FedDuAdam"].make(client_lr=0.1)
    assert isinstance(made, MeanOfTwo)
    assert isinstance(made.inner, fs.ControlVariates)
    assert made.inner.inner == fs.FedDuAdam(0.1, eps=1e-9, weighting="examples")
    assert found["FedProx"].make(client_lr=0.1, server_lr=3.0, mu=0.5) == fs.Proximal(
        fs.FedAvg(0.1, server_lr=3.0), 0.5
    )
    assert found["SCAFFOLD+FedAdam"].make(client_lr=0.1, server_lr=3.0).inner.server_optimizer.lr == 3.0
