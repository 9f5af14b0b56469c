"""The measure of the study of fair methods: accuracies of clients, counted by hand."""

from __future__ import annotations

import jax
import numpy as np

import fedsolve as fs
from experiments.comparisons.fairness.over_clients import DECILE, MEAN, SPREAD, WORST, measured
from fedsolve.geometry.diagnostics.diagnostic import Point


def test_numbers_over_clients():
    """Clients of different sizes, of which some have nothing held out."""
    task = measured(fs.tasks.digits(num_clients=300, model="softmax"))
    params = jax.tree.map(
        lambda w: np.random.default_rng(0).standard_normal(w.shape), task.init(jax.random.key(0))
    )
    (diagnostic,) = task.diagnostics
    found = diagnostic(Point(params, 0.0, None))
    x, y = task.validation
    right = np.argmax(x @ params.weight.T + params.bias, axis=1) == y
    owners = task.validation_clients
    assert 0 < len(set(owners)) < 300
    own = np.array([right[owners == i].mean() for i in sorted(set(owners))])
    low, high = np.percentile(own, [10, 90])
    expected = {MEAN: own.mean(), DECILE: low, WORST: own.min(), SPREAD: high - low}
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6)
