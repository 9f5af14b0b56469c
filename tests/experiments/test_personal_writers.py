"""The study of unseen writers: who is measured, and accuracy after steps, of one network and of the better of two."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from experiments.personalisation.personal_writers import writers
from fedsolve.studies.reproduce import reproduce

TASK = writers.random_images()
MEASURE = TASK.diagnostics[0]
MODEL = writers.NormalizedPerceptron()
APPLY = jax.jit(MODEL.apply)


@functools.cache  # no other test waits for them
def networks():
    return [jax.jit(MODEL.init)(jax.random.key(i)) for i in range(2)]


@jax.jit
def loss(params, x, y):
    return -jnp.mean(jax.nn.log_softmax(MODEL.apply(params, x))[jnp.arange(len(y)), y])


GRADIENT = jax.jit(jax.grad(loss))


def by_hand(rate):
    """Mean accuracy of the unseen writers, one after another, each from the better network."""
    found, unseen = [], MEASURE.unseen
    for x, y, rest, labels, counted in zip(*map(np.asarray, jax.tree.leaves(unseen)), strict=True):
        params = min(networks(), key=lambda p, x=x, y=y: float(loss(p, x, y)))
        for _ in range(writers.STEPS if rate else 0):
            params = jax.tree.map(
                lambda p, g: p - np.float32(rate) * np.asarray(g), params, GRADIENT(params, x, y)
            )
        right = np.argmax(APPLY(params, rest), axis=1) == labels
        found.append(np.mean(right[counted > 0]))
    return np.mean(found)


@pytest.mark.full
def test_accuracy_after_steps():
    """From the better of two networks, at one of the two rates; and without steps."""
    params = jax.tree.map(lambda *x: np.stack(x), *networks())
    found = jax.jit(lambda measure, p: measure(fs.diagnostics.Point(p, jnp.zeros(()), None)))(MEASURE, params)
    np.testing.assert_allclose(found["unadapted_accuracy"], by_hand(0.0), atol=1e-6)
    after = [by_hand(rate) for rate in writers.RATES]
    assert min(abs(float(found["adapted_accuracy"]) - x) for x in after) < 1e-6
    assert max(after) > by_hand(0.0)


def test_bytes_are_shares_of_255():
    """Training on bytes and steps on shares see the same images."""
    x = np.arange(784, dtype=np.uint8).reshape(1, 28, 28, 1)
    of_bytes, of_shares = (APPLY(networks()[0], given) for given in (jnp.asarray(x), x / 255.0))
    np.testing.assert_allclose(of_bytes, of_shares, atol=1e-5)


def test_nobody_who_is_measured_trains():
    """Seven of twelve clients train, on four fifths of their images; shown images are not predicted."""
    assert (TASK.data.num_clients, TASK.data.counts.tolist()) == (7, [32] * 7)
    trained = {x.tobytes() for x in (np.asarray(TASK.data.examples.x, np.float32) / 255)}
    shown, rest = (
        {x.tobytes() for x in np.concatenate(part)} for part in (MEASURE.unseen.x, MEASURE.unseen.to_predict)
    )
    assert not trained & (shown | rest)
    assert not shown & rest
    assert np.asarray(MEASURE.unseen.counted).sum(axis=1).tolist() == [10] * 3


@pytest.mark.full
def test_a_quick_run(tmp_path):
    assert not reproduce("personal-writers", tmp_path, quick=True).outcome.claims
