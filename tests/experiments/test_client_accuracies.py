"""The measure of the study of fair methods: accuracies of clients, counted by hand."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import fedsolve as fs
from experiments.comparisons.fairness.over_clients import DECILE, MEAN, SPREAD, WORST, measured


@pytest.mark.full
def test_numbers_over_clients():
    """Clients of different sizes, of which some have nothing held out."""
    task = measured(fs.tasks.digits(num_clients=150, model="softmax"))
    x, y = task.test
    means = np.stack([x[y == label].mean(axis=0) for label in range(10)])
    start = task.init(jax.random.key(0))
    params = type(start)(weight=means, bias=-0.5 * (means**2).sum(axis=1))  # the nearest mean
    (diagnostic,) = task.diagnostics
    found = diagnostic(fs.diagnostics.Point(params, 0.0, None))
    x, y = task.validation
    right = np.argmax(x @ params.weight.T + params.bias, axis=1) == y
    owners = task.validation_clients
    assert 0 < len(set(owners)) < 150
    own = np.array([right[owners == i].mean() for i in sorted(set(owners))])
    low, high = np.percentile(own, [10, 90])
    expected = {MEAN: own.mean(), DECILE: low, WORST: own.min(), SPREAD: high - low}
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6)
    assert len({own.min(), low, own.mean(), high}) == 4
