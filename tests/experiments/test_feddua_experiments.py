"""The FedDuA studies: what is compared, the terms of a theorem, the searches beside others; a quick run."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

import fedsolve as fs
from experiments.feddua.feddua_combinations import study as feddua_combinations
from experiments.feddua.feddua_dimension.dimension_problems import CLIENT_LR as CLIENT_RATE
from experiments.feddua.feddua_dimension.dimension_problems import regression
from experiments.feddua.feddua_dimension.study import METHODS as METHODS_BY_DIMENSION
from experiments.feddua.feddua_synthetic import study as feddua
from experiments.feddua.feddua_theorems.step_search import draw_case, least_worst_case, step_ratios
from experiments.feddua.methods import ADAPTIVE_LR, AVERAGING_LR, CLIENT_LR, METHODS, MeanOfTwo
from fedsolve.studies.reproduce import reproduce

SMALL = {"num_clients": 3, "examples_per_client": 4, "features": 10}


@pytest.mark.full
@pytest.mark.parametrize("name", ["feddua-synthetic", "feddua-combinations", "feddua-dimension"])
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


@pytest.mark.full
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


@pytest.mark.full
def test_terms_of_the_theorem():
    """Three rounds of FedDuAdagrad beside NumPy: the sum of Bregman divergences, tr G and the largest distance."""
    task = regression(None, 0, features=6, decay=1.1)
    sweep = fs.sweep(
        METHODS_BY_DIMENSION["FedDuAdagrad"].make, task, {"client_lr": (CLIENT_RATE,)}, seeds=(0,), rounds=3,
        eval_every=1, dtype="float64", select="train_loss",
    )  # fmt: skip
    x, y = (np.asarray(part) for part in task.data.examples)
    clients = list(zip(np.split(x, 20), np.split(y, 20), strict=True))
    assert max(2 * np.linalg.norm(own, 2) ** 2 / len(own) for own, _ in clients) == pytest.approx(1)
    w, s, g, divergences, distance = np.zeros(6), np.zeros(6), np.zeros(6), 0.0, 0.0
    for t in range(3):
        deltas = []
        for own, targets in clients:
            v = w.copy()
            for _ in range(5):
                v -= CLIENT_RATE * 2 / len(own) * own.T @ (own @ v - targets)
            deltas.append(v - w)
        mean, m = np.mean(deltas, axis=0), np.mean(np.sum(np.square(deltas), axis=1)) / 2
        s += mean**2
        divergences += 0.5 * np.sum((w - 1) ** 2 * (np.sqrt(s) - g))
        distance = max(distance, np.abs(w - 1).max())
        g = np.sqrt(s)
        w = w + m / np.sum(mean**2 / g) * mean / g
        found = {name: sweep.metrics[name][0, 0, t + 1] for name in ("divergences", "trace", "distance")}
        assert found == pytest.approx(
            {"divergences": divergences, "trace": g.sum(), "distance": distance}, rel=1e-10
        )


def test_the_least_worst_case_is_fedduas_next_model():
    """Also no w* of the box for which A.P.C. holds is worse than the corners say."""
    with jax.enable_x64(True):
        apart, gain, plain = least_worst_case("diagonal", 0, 2, 3)
        case = draw_case("diagonal", np.random.default_rng(0), 2, 3)
    assert apart < 1e-6
    assert abs(gain) < 1e-9
    assert plain > 0
    rng, own = np.random.default_rng(1), case.own
    points = rng.uniform(case.corners.min(axis=0), case.corners.max(axis=0), (2000, 2))
    points = points[(points - case.model) @ case.mean >= case.bound]
    model = case.model + 0.3 * rng.standard_normal(2)
    values = own.divergence(points, model) - own.divergence(points, case.model)
    worst = case.worst(model[None])[0]
    assert values.max() <= worst
    assert values.max() > worst - 0.1 * np.ptp(values)


def test_the_best_step_is_not_shorter():
    with jax.enable_x64(True):
        for momentum in (False, True):
            assert step_ratios("diagonal", 0, 5, 4, 3, momentum).min() >= 1
