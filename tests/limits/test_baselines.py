"""The centralised and local baselines against closed forms and certificates."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.errors import InvalidInput
from fedsolve.geometry import L1, L1Ball, L2Ball
from harness import prepare


def quadratic(params, batch):
    """Half the mean squared distance to the rows: F(w) = (1/2) |w - mean|^2 + a constant."""
    return 0.5 * jnp.mean(jnp.sum((params["w"] - batch) ** 2, axis=1))


ROWS = [np.random.default_rng(i).normal(1.0, 2.0, (n, 5)) for i, n in enumerate((4, 9, 2))]


def task():
    return fs.Task.from_arrays(quadratic, {"w": np.zeros(5)}, ROWS)


@pytest.mark.full_rows("uniform")
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_fista_is_the_soft_threshold_of_the_mean(weighting):
    """The minimiser of F + .3 |w|_1 is the mean of the clients' means (or of all rows), thresholded at .3."""
    mean = np.mean([r.mean(0) for r in ROWS], 0) if weighting == "uniform" else np.concatenate(ROWS).mean(0)
    want = np.sign(mean) * np.maximum(np.abs(mean) - 0.3, 0)
    found = fs.baselines.fista(task(), L1(0.3), weighting=weighting, dtype="float64", tolerance=1e-12)
    np.testing.assert_allclose(found.params["w"], want, atol=1e-10)
    assert found.iterations < 100


@pytest.mark.full
def test_fista_without_psi_and_with_a_set():
    mean = np.mean([r.mean(0) for r in ROWS], 0)
    found = fs.baselines.fista(task(), dtype="float64", tolerance=1e-12)
    np.testing.assert_allclose(found.params["w"], mean, atol=1e-10)
    found = fs.baselines.fista(task(), L2Ball(0.5), dtype="float64", tolerance=1e-12)
    np.testing.assert_allclose(found.params["w"], 0.5 * mean / np.linalg.norm(mean), atol=1e-10)


@pytest.mark.full
def test_frank_wolfe_certifies_its_distance():
    """F - F* <= gap, and the optimum over an l1 ball agrees with FISTA's projections."""
    best = fs.baselines.fista(task(), L1Ball(1.0), dtype="float64", tolerance=1e-12)
    found = fs.baselines.frank_wolfe(task(), L1Ball(1.0), dtype="float64", tolerance=1e-6, iterations=20_000)
    assert -1e-12 <= found.value - best.value <= found.optimality
    assert found.optimality < 1e-3
    assert np.abs(found.params["w"]).sum() <= 1 + 1e-12


def test_alone_is_one_client():
    """The second client's own minimiser is its own mean; the test set and the metrics stay."""
    own = fs.baselines.alone(task(), 1)
    assert own.data.counts.tolist() == [9]
    found = fs.baselines.fista(own, dtype="float64", tolerance=1e-12)
    np.testing.assert_allclose(found.params["w"], ROWS[1].mean(0), atol=1e-10)


@pytest.mark.full
def test_it_starts_where_a_run_starts():
    """One iteration on a task with a random start: the start is that of `fs.run` with the same seed."""
    problem = fs.tasks.digits(model="mlp", num_clients=4)
    setup = prepare(fs.FedAvg(1e-9), problem, fs.sampling.Uniform(4), dtype="float32", seed=3)
    start = setup.algorithm.export(setup.state.server)
    found = fs.baselines.fista(problem, iterations=1, seed=3)
    steps = [
        np.abs(a - b).max()
        for a, b in zip(jax.tree.leaves(start), jax.tree.leaves(found.params), strict=True)
    ]
    assert max(steps) < 0.2  # He weights of another seed differ by more than 0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fs.baselines.frank_wolfe(task(), L1(1.0)), "needs the operation 'lmo', which L1 lacks"),
        (lambda: fs.baselines.fista(task(), L1(1.0), iterations=0), "iterations = 0 must be an integer"),
        (lambda: fs.baselines.fista(task(), L1(1.0), tolerance=0), "tolerance = 0 must be finite and > 0"),
        (lambda: fs.baselines.frank_wolfe(task(), L1Ball(1.0), tolerance=0), "tolerance = 0 must be finite"),
        (lambda: fs.baselines.fista(task(), L1(1.0), seed=-1), "seed = -1 must be an integer of at least 0"),
        (lambda: fs.baselines.alone(task(), 3), "client = 3 must be one of 0 to 2"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()
