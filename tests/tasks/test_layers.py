"""Dropout, norms, sequence losses, what the networks refuse, and how many parameters they have."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput
from fedsolve.tasks import CNN, Affine, CrossEntropy, Examples
from fedsolve.tasks.losses.sequences import BitsPerToken, NextToken, NextTokenAccuracy, ReconstructionError
from fedsolve.tasks.models.models import dropout, group_norm, layer_norm, unit_norm
from fedsolve.tasks.models.pictures import ResNet18
from fedsolve.tasks.models.recurrent import GRU, LSTM, Autoencoder
from fedsolve.tasks.models.transformers import CausalTransformer, ViT

KEY = jax.random.key(0)


def count(model):
    return trees.size(jax.eval_shape(model.init, KEY))


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (CNN(dropout=(0.25, 0.5)), 1_206_590),  # Reddi et al. 2021
        (LSTM(90), 820_522),  # likewise, Shakespeare
        (LSTM(10_004, 96, 670, 1, 96), 4_050_748),  # likewise, Stack Overflow
        (Autoencoder(), 2_837_314),  # the sum over (784, 1000, 500, 250, 30) of in x out + out, twice
        (ResNet18(10), 11_173_962),  # as with batch normalisation, whose scale and shift are as many
        (GRU(90), 90 * 8 + 3 * 256 * (8 + 256 + 1) + 256 + 3 * 256 * (512 + 1) + 256 + 90 * 257),
        (ViT(), 48 * 192 + 192 + 64 * 192 + 6 * (12 * 192**2 + 13 * 192) + 2 * 192 + 10 * 193),
        (CausalTransformer(90), 90 * 128 + 80 * 128 + 2 * (12 * 128**2 + 13 * 128) + 2 * 128 + 90 * 129),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else str(value),
)
def test_parameters_are_as_many_as_published(model, parameters):
    assert count(model) == parameters


@pytest.mark.parametrize(("rate", "kept"), [(0.25, 0.75), (0.1, round(0.9 * 2**16) / 2**16)])
def test_dropout_keeps_as_many_as_it_should_and_the_mean(rate, kept):
    """Of 100,000 entries the share is within four standard errors, of each row too; neighbours do not agree."""
    x = jnp.ones((100, 1000))
    y = np.asarray(dropout(KEY, rate, x))
    np.testing.assert_allclose(np.unique(y), [0, 1 / kept], rtol=1e-6)
    alive = y > 0
    assert abs(alive.mean() - kept) < 4 * math.sqrt(kept * (1 - kept) / y.size)
    assert np.abs(alive.mean(1) - kept).max() < 4.5 * math.sqrt(kept * (1 - kept) / 1000)
    both = (alive[:, 1:] & alive[:, :-1]).mean()
    assert abs(both - kept**2) < 4 * math.sqrt(kept**2 * (1 - kept**2) / y.size) * 1.5


def test_dropout_is_its_key_s_and_none_without_one():
    x = jnp.ones((3, 7))
    assert dropout(None, 0.5, x) is x
    assert dropout(KEY, 0.0, x) is x
    np.testing.assert_array_equal(dropout(KEY, 0.5, x), dropout(jax.random.key(0), 0.5, x))
    assert not np.array_equal(dropout(KEY, 0.5, x), dropout(jax.random.key(1), 0.5, x))


def run(model, params, *arguments):
    return np.asarray(jax.jit(model)(params, *arguments))


@pytest.mark.full
def test_cnn_drops_hidden_units_in_training_alone():
    """Hidden units are the outputs: each is 0 or twice what it was, as its key says."""
    plain, model = CNN(4, 8, 8, (2, 3), 4), CNN(4, 8, 8, (2, 3), 4, dropout=(0.0, 0.5))
    params = jax.tree.map(lambda a: np.full(a.shape, 0.1, np.float32), jax.eval_shape(model.init, KEY))
    params = params._replace(output=Affine(np.eye(4, dtype=np.float32), np.zeros(4, np.float32)))
    x = np.random.default_rng(0).integers(0, 256, (3, 8, 8)).astype(np.uint8)
    hidden = run(plain, params, x)
    assert (hidden > 0).all()
    np.testing.assert_allclose(run(plain, params, x / np.float32(255)), hidden, rtol=1e-6)
    np.testing.assert_array_equal(run(model, params, x), hidden)
    dropped = run(model, params, x, KEY)
    assert set(np.unique(np.round(dropped / hidden, 4)).tolist()) == {0.0, 2.0}
    np.testing.assert_array_equal(run(model, params, x, jax.random.key(0)), dropped)
    assert not np.array_equal(run(model, params, x, jax.random.key(1)), dropped)
    pooled = run(CNN(4, 8, 8, (2, 3), 4, dropout=(0.5, 0.0)), params, x, KEY)
    assert len(np.unique(np.round(pooled / hidden, 4))) > 2  # sums over the places that are left


def test_a_model_asks_for_a_key_where_it_drops_anything():
    assert CrossEntropy(CNN(dropout=(0.25, 0.0))).asks == {"key"}
    assert NextToken(CausalTransformer(7, dropout=0.1)).asks == CrossEntropy(ViT(dropout=0.1)).asks == {"key"}
    for model in (CNN(), ViT(), CausalTransformer(7), LSTM(7), ResNet18()):
        assert CrossEntropy(model).asks == frozenset()


@pytest.mark.full
def test_transformers_drop_in_training_alone():
    model = CausalTransformer(7, 6, 8, 1, 2, dropout=0.5)
    params, x = model.init(KEY), np.array([[1, 2, 3]])
    assert not np.array_equal(model(params, x, KEY), model(params, x))
    np.testing.assert_array_equal(model(params, x), CausalTransformer(7, 6, 8, 1, 2)(params, x, KEY))


@pytest.mark.full
@pytest.mark.parametrize(
    "model", [LSTM(7, 4, 6, 2), GRU(7, 4, 6, 1), CausalTransformer(7, 6, 8, 2, 2)], ids=repr
)
def test_no_position_sees_what_follows(model):
    params = model.init(KEY)
    a, b = np.array([[1, 2, 3, 4]]), np.array([[1, 2, 5, 0]])
    outputs = jax.jit(model)(params, np.concatenate([a, b]))
    np.testing.assert_allclose(outputs[0, :2], outputs[1, :2], rtol=1e-6)
    assert not np.allclose(outputs[0, 2], outputs[1, 2], rtol=1e-3)


def outputs(params, x):
    return params


def test_sequence_losses_are_means_over_positions_that_count():
    logits = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    y = np.array([[1, 2, 0, 0], [4, 3, 2, 1], [0, 0, 0, 0]])
    batch = Examples(y, y)
    nats = -np.log(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))
    at = np.take_along_axis(nats, y[..., None], -1)[..., 0]
    expected = [at[0, :2].mean(), at[1].mean(), 0]
    np.testing.assert_allclose(NextToken(outputs).each(logits, batch), expected, rtol=1e-5)
    np.testing.assert_allclose(
        BitsPerToken(outputs).each(logits, batch), np.array(expected) / np.log(2), rtol=1e-5
    )
    np.testing.assert_allclose(NextToken(outputs, None).each(logits, batch), at.mean(-1), rtol=1e-5)
    right = logits.argmax(-1) == y
    found = NextTokenAccuracy(outputs).each(logits, batch)
    np.testing.assert_allclose(found, [right[0, :2].mean(), right[1].mean(), 0])
    with pytest.raises(InvalidInput, match=r"next tokens \(3, 3\)"):
        NextToken(outputs).each(logits, Examples(y, y[:, :3]))


def test_padding_has_no_gradient():
    logits, y = jnp.zeros((1, 3, 4)), np.array([[2, 1, 0]])
    found = np.asarray(jax.jit(jax.grad(lambda z: NextToken(outputs)(z, Examples(y, y))))(logits))
    assert found[0, :2].any(-1).all()
    assert not found[0, 2].any()


@pytest.mark.full
def test_autoencoder_gives_pictures_and_its_error_is_the_mean_square():
    model = Autoencoder((6, 4, 2))
    params = jax.jit(model.init)(KEY)
    x = np.random.default_rng(0).integers(0, 256, (3, 2, 3)).astype(np.uint8)
    found = run(model, params, x)
    h = x.reshape(3, 6) / 255
    for i, (w, b) in enumerate(params):
        h = h @ w.T + b
        h = h if i == 1 else 1 / (1 + np.exp(-h))
    np.testing.assert_allclose(found.reshape(3, 6), h, rtol=1e-5)
    expected = ((h - x.reshape(3, 6) / 255) ** 2).mean(1)
    each = run(ReconstructionError(model).each, params, Examples(x, x))
    np.testing.assert_allclose(each, expected, rtol=1e-5)


def test_norms_bring_groups_to_mean_zero_and_variance_one():
    x = 100 + np.random.default_rng(0).standard_normal((2, 3, 3, 4)).astype(np.float32)
    y = np.asarray(group_norm(unit_norm(4), x, 2)).reshape(2, 9, 2, 2)
    np.testing.assert_allclose(y.mean((1, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(y.var((1, 3)), 1, rtol=1e-4)
    y = np.asarray(layer_norm(unit_norm(4), x))
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CNN(dropout=(0.5, 1.0)), "dropout = 1.0"),
        (lambda: CNN(dropout=0.5), "two rates"),
        (lambda: LSTM(0), "vocabulary = 0"),
        (lambda: LSTM(7).__call__((), np.zeros((2, 0), int)), "time at least 1"),
        (lambda: GRU(7, projection=-1), "projection = -1"),
        (lambda: ResNet18(width=48, groups=32), "groups = 32 does not divide width = 48"),
        (lambda: Autoencoder((5,)), "an input and a code"),
        (lambda: ViT(patch=5), "patch = 5 does not divide image = 32"),
        (lambda: CausalTransformer(7, heads=3), "heads = 3 does not divide width = 128"),
        (lambda: CausalTransformer(7, 4).__call__((), np.zeros((2, 5), int)), "5 positions"),
        (lambda: NextToken(outputs, -1), "padding = -1"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()
