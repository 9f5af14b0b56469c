"""A grid of settings in one program: each is the run it would be alone, and one that diverges stops alone."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.engine.grid import run_grid
from fedsolve.errors import InvalidInput
from fedsolve.geometry import L1, L1Ball
from fedsolve.measures import Density
from harness import make_clients, make_task

RATES = (0.3, 0.05, 0.1)
OPTIONS = {"rounds": 8, "clients_per_round": 3, "seed": 4, "eval_every": 2, "dtype": "float64"}


@pytest.mark.parametrize("psi", [L1(0.01), L1(0.01).on("weight")], ids=["all", "weight"])
def test_a_grid_is_its_runs(psi):
    """Same cohorts, shuffles and start: models and metrics of `fs.run` with each rate, to rounding."""
    task = make_task(make_clients())
    grid = run_grid([fs.FedDualAvg(psi, c) for c in RATES], task, **OPTIONS)
    assert grid.rounds.tolist() == [0, 2, 4, 6, 8]
    for k, rate in enumerate(RATES):
        alone = fs.run(fs.FedDualAvg(psi, rate), task, **OPTIONS)
        for name in ("objective", "prox_gradient"):
            np.testing.assert_allclose(grid.metrics[name][k], alone.metrics[name], rtol=1e-9)
        for got, want in zip(jax.tree.leaves(grid.params), jax.tree.leaves(alone.params), strict=True):
            np.testing.assert_allclose(got[k], want, rtol=1e-9, atol=1e-12)


def test_settings_whose_start_depends_on_them():
    """FedAdam's accumulator starts at tau^2, a hyper-parameter: every setting has its own start."""
    task = make_task(make_clients())
    taus = (1e-3, 0.1)
    grid = run_grid([fs.FedAdam(0.1, 0.1, tau=t) for t in taus], task, **OPTIONS)
    for k, tau in enumerate(taus):
        alone = fs.run(fs.FedAdam(0.1, 0.1, tau=tau), task, **OPTIONS)
        for got, want in zip(jax.tree.leaves(grid.params), jax.tree.leaves(alone.params), strict=True):
            np.testing.assert_allclose(got[k], want, rtol=1e-9, atol=1e-12)


def test_settings_of_a_set_and_its_steps():
    """Radius and lambda_0 of FedFW differ by setting; the start lies in every ball."""
    task = make_task(make_clients())
    values = ((60.0, 0.01), (40.0, 0.3))
    methods = [fs.FedFW(L1Ball(r), fs.Convex(lam)) for r, lam in values]
    grid = run_grid(methods, task, **OPTIONS)
    for k, method in enumerate(methods):
        alone = fs.run(method, task, **OPTIONS)
        np.testing.assert_allclose(grid.metrics["gap"][k], alone.metrics["gap"], rtol=1e-9)


def quartic(params, batch):
    """Mean of (<w, x> - y)^4: large rates overflow, and stay so."""
    return ((batch.x @ params.weight[:, 0] - batch.y) ** 4).mean()


def test_a_setting_that_diverges_stops_alone():
    """Two of three overflow: their values are NaN from then on, the third is the run it would be alone."""
    from dataclasses import replace

    task = replace(make_task(make_clients()), loss=quartic)
    rates = (1e6, 1e-3, 1e5)
    grid = run_grid([fs.FedAvg(r) for r in rates], task, measures=[Density()], **OPTIONS)
    alone = fs.run(fs.FedAvg(1e-3), task, **OPTIONS)
    assert np.isfinite(grid.metrics["train_loss"][:, 0]).all()
    for k in (0, 2):
        assert np.isnan(grid.metrics["train_loss"][k, -1])
        assert np.isnan(grid.metrics["density"][k, -1])
    assert np.isfinite(grid.metrics["train_loss"][1]).all()
    np.testing.assert_allclose(grid.params.weight[1], alone.params.weight, rtol=1e-9)
    assert np.isnan(grid.params.weight[0]).all()


def test_one_method_only():
    task = make_task(make_clients())
    with pytest.raises(InvalidInput, match="of one method and differ in numbers alone"):
        run_grid([fs.FedAvg(0.1), fs.FedAdam(0.1)], task, **OPTIONS)
    with pytest.raises(InvalidInput, match="at least one setting"):
        run_grid([], task, **OPTIONS)
