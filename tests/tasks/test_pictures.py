"""Augmentation of pictures against NumPy: standardised middles in evaluation, and what is drawn in training."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsolve.core.errors import InvalidInput
from fedsolve.tasks import Augmented, Softmax

X = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
W = {"w": jnp.ones(())}


@dataclass(frozen=True)
class Seen:
    """A model that gives what it is given."""

    def init(self, key):
        return W

    def __call__(self, params, x):
        return x


@dataclass(frozen=True)
class Keyed(Seen):
    """One that asks for a key, too."""

    def __call__(self, params, x, key=None):
        return key


def standardised(x):
    x = x / 255
    spread = x.std((1, 2, 3), keepdims=True)
    return (x - x.mean((1, 2, 3), keepdims=True)) / np.maximum(spread, x[0].size ** -0.5)


def test_evaluation_takes_the_middle_standardised():
    """TensorFlow's central crop: half of what is cut, rounded down, lies before it. A flat picture becomes 0."""
    flat = np.full_like(X, 7)
    np.testing.assert_allclose(Augmented(Seen(), 3)(W, X), standardised(X[:, 1:4, 0:3]), atol=1e-5)
    np.testing.assert_allclose(Augmented(Seen(), None)(W, X), standardised(X), atol=1e-5)
    np.testing.assert_allclose(Augmented(Seen(), None)(W, flat), 0, atol=1e-5)


@pytest.mark.full
def test_training_draws_places_and_mirrors_for_each_picture():
    """Each picture is one of its 3 x 2 crops, mirrored or not, all of which occur; a key gives the same again."""
    x = np.repeat(X[:1], 300, axis=0)
    crops = [x[0, i : i + 3, j : j + 3] for i in range(3) for j in range(2)]
    known = standardised(np.stack([c for crop in crops for c in (crop, crop[:, ::-1])]))
    draw = jax.jit(lambda key: Augmented(Seen(), 3)(W, x, key=key))
    seen = np.asarray(draw(jax.random.key(3)))
    which = np.abs(seen[:, None] - known[None]).max((2, 3, 4)).argmin(1)
    np.testing.assert_allclose(seen, known[which], atol=1e-5)
    assert np.bincount(which, minlength=12).min() > 8  # 25 each in the mean
    np.testing.assert_array_equal(seen, draw(jax.random.key(3)))
    assert (seen != draw(jax.random.key(4))).any()
    with jax.enable_x64(True):  # a run in float64 sees the same ones
        np.testing.assert_array_equal(seen, draw(jax.random.key(3)))


def test_a_model_that_asks_gets_a_key_of_its_own():
    key = jax.random.key(0)
    assert Augmented(Keyed())(W, np.zeros((1, 24, 24, 3), np.uint8)) is None
    own = Augmented(Keyed(), 3)(W, X, key=key)
    assert (jax.random.key_data(own) != jax.random.key_data(key)).any()


def test_a_crop_is_checked():
    with pytest.raises(InvalidInput, match="crop = 0"):
        Augmented(Seen(), crop=0)
    assert hash(Augmented(Softmax(3, 2))) == hash(Augmented(Softmax(3, 2)))
