"""Norms far beyond the usual: what is usual, by hand; the mean of the rest against NumPy; attackers in the engine."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core import trees
from fedsolve.core.types import MessageBounds, bounded, module, reduced, replace
from fedsolve.methods.robust.reductions import FACTOR, Mean, parts_of, usual_norm

FAR = 2 * FACTOR


@pytest.mark.parametrize("xp", [np, jnp])
@pytest.mark.parametrize(
    ("norms", "before", "usual"),
    [
        ([3.0], 0, 3.0),  # a first reply alone: nothing to compare it with
        ([3.0, FAR], 0, 3.0),
        ([3.0, 1.0, 2.0], 0, 2.0),
        ([1.0, 2.0, FAR, FAR], 0, 2.0),  # the smaller of the middle two
        ([0.0, 0.0, 0.0, 5.0], 0, 5.0),  # zeros do not count
        ([0.0, 0.0], 0, 0.0),
        ([0.0, 0.0], 4, 4.0),
        ([1.0, 1.0, 1.0], 4, 4.0),  # it never falls
        ([7.0, 7.0, 7.0], 4, 7.0),
        ([9.0, 9.0, 9.0], 4, 8.0),  # at most twice that of before
        ([3 * FACTOR, 5 * FACTOR, FAR], 1, 3 * FACTOR),  # most are beyond: the run has changed
        ([FAR, FAR], 1, 2.0),  # two cannot say so
        ([FAR], 1, 2.0),
        ([1.0, 1.0, np.inf], 1, 1.0),
    ],
)
def test_what_is_usual(norms, before, usual, xp):
    with jax.enable_x64(True):
        assert float(usual_norm(xp.asarray(norms), xp.asarray(float(before)), xp)) == usual


@module
class Inner:
    delta: Any
    steps: Any
    squared: Any = bounded(MessageBounds(of_delta=trees.squared_norm))


@module
class Up:
    inner: Inner
    control: Any = reduced("average")
    step: Any = reduced("max")


def test_what_is_compared():
    """Each field by itself; not what follows from the displacement, whose ratios would be squares."""
    up = Up(Inner({"a": 1, "b": 2}, (), 3), [4], 5)
    assert parts_of(up) == {"inner.delta": [1, 2], "control": [4], "step": [5]}
    assert parts_of({"w": 6}) == {"message": [6]}


def sent(n=8, seed=0):
    rng = np.random.default_rng(seed)
    delta = {"a": rng.standard_normal((n, 3)), "b": rng.standard_normal((n, 2, 2))}
    squares = sum((x**2).reshape(n, -1).sum(1) for x in delta.values())
    return Up(Inner(delta, (), squares), 1e-3 * rng.standard_normal((n, 4)), np.abs(rng.standard_normal(n)))


@pytest.mark.gate("control")
@pytest.mark.parametrize("field", ["delta", "control", "step"])
def test_the_mean_of_the_rest(field):
    """Clients 1 and 4 are far beyond in one field, client 6 is not used: NumPy's means of the other five."""
    up, weight, used = sent(), np.arange(1.0, 9.0), np.arange(8) != 6
    scaled = np.where(np.isin(np.arange(8), (1, 4)), 5 * FACTOR, 1.0)

    def times(x):
        return x * scaled.reshape(-1, *(1,) * (x.ndim - 1))

    if field == "delta":
        inner = replace(up.inner, delta=jax.tree.map(times, up.inner.delta))
        up = replace(up, inner=inner)
    else:
        up = replace(up, **{field: times(getattr(up, field))})
    rest = used & (scaled == 1)
    with jax.enable_x64(True):
        found = fs.robust.WithoutOutliers()(up, weight, used)
    share = weight[rest] / weight[rest].sum()
    for name, x in up.inner.delta.items():
        np.testing.assert_allclose(found.inner.delta[name], np.tensordot(share, x[rest], 1), rtol=1e-12)
    np.testing.assert_allclose(found.control, up.control[rest].mean(0), rtol=1e-12)
    assert float(found.step) == up.step[rest].max()


def squares(params, batch):
    return jnp.mean((batch.x @ params["w"] - batch.y) ** 2)


def uneven(counts):
    """Least squares of clients with so many examples."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((sum(counts), 3)).astype(np.float32)
    y = (x @ np.ones(3) + 0.1 * rng.standard_normal(len(x))).astype(np.float32)
    data = fs.FederatedData(fs.Examples(x, y), np.array(counts))
    return fs.Task("uneven", lambda key: {"w": jnp.zeros(3)}, squares, data)


def model_of(method, task, **options):
    given = {"rounds": 4, "eval_every": 4, "batch_size": 5, "epochs": 2} | options
    return np.asarray(fs.run(method, task, **given).params["w"])


@pytest.mark.full
def test_honest_clients_of_very_different_size_all_count():
    """Three clients of one example and one of 400, at a small rate: the bits of the plain mean."""
    task = uneven([1, 1, 1, 400])
    without, mean = (
        model_of(fs.robust.Robust(fs.FedAvg(1e-3), reduction), task)
        for reduction in (fs.robust.WithoutOutliers(), Mean())
    )
    np.testing.assert_array_equal(without, mean)
    assert np.abs(mean).min() > 1e-3


@pytest.mark.gate("1e+18")
@pytest.mark.parametrize("size", [1e6, 1e18, 1e30])
def test_attackers_in_the_engine(size):
    """Two of six send so many times their displacement: the model is that of the other four alone."""
    task, honest = uneven([5] * 6), uneven([5] * 6)
    keep = np.repeat(np.arange(6) < 4, 5)
    examples = fs.Examples(honest.data.examples.x[keep], honest.data.examples.y[keep])
    alone = fs.Task("four", honest.init, honest.loss, fs.FederatedData(examples, np.full(4, 5)))
    attacked = fs.attacks.Attacked(fs.FedAvg(0.1), fs.attacks.Scaled(size), (4, 5))
    found = model_of(fs.robust.Robust(attacked, fs.robust.WithoutOutliers()), task)
    np.testing.assert_allclose(found, model_of(fs.FedAvg(0.1), alone), rtol=1e-5)
