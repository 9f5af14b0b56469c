"""Losses and metrics against NumPy by hand, their limits, and the check of labels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsolve.core.errors import InvalidInput
from fedsolve.tasks.losses.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    Logistic,
    Ridge,
    SquaredError,
    check_labels,
)
from fedsolve.tasks.losses.sequences import Accuracy, BinaryAccuracy, LikeliestSet, RecallAt, TopK
from fedsolve.tasks.models.models import Affine, Linear, Softmax
from fedsolve.tasks.task import Examples


def outputs(params, x):
    """A model that gives its inputs."""
    return x


LOGITS = np.array([[1.0, 2.0, 0.5, -1.0], [0.0, 0.0, 3.0, 0.1], [5.0, 4.0, 3.0, 2.0]], np.float32)
LABELS = np.array([1, 3, 2], np.int32)
BATCH = Examples(LOGITS, LABELS)


def test_cross_entropy_is_minus_the_log_of_the_softmax():
    p = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
    expected = -np.log(p[np.arange(3), LABELS]).mean()
    np.testing.assert_allclose(CrossEntropy(outputs)((), BATCH), expected, rtol=1e-6)


def test_cross_entropy_gradient_is_softmax_minus_one_hot():
    found = jax.grad(lambda x: CrossEntropy(outputs)((), Examples(x, LABELS)))(jnp.asarray(LOGITS))
    p = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
    np.testing.assert_allclose(found, (p - np.eye(4)[LABELS]) / 3, atol=1e-6)


def test_cross_entropy_of_large_logits_stays_finite():
    """Logits (1000, 0): the right label costs 0, the wrong one 1000, without overflow."""
    x = np.array([[1000.0, 0.0]], np.float32)
    assert float(CrossEntropy(outputs)((), Examples(x, np.array([0])))) == 0.0
    assert float(CrossEntropy(outputs)((), Examples(x, np.array([1])))) == 1000.0


def test_squared_error_is_the_mean_square_and_half_of_it():
    """Residuals 1, -2, 3: mean square 14 / 3."""
    batch = Examples(np.array([1.0, 0.0, 3.0]), np.array([0.0, 2.0, 0.0]))
    np.testing.assert_allclose(SquaredError(outputs)((), batch), 14 / 3, rtol=1e-6)
    np.testing.assert_allclose(SquaredError(outputs, half=True)((), batch), 7 / 3, rtol=1e-6)
    with pytest.raises(InvalidInput, match=r"\(3,\), targets \(3, 1\)"):
        SquaredError(outputs)((), Examples(batch.x, batch.y[:, None]))


MARGINS = np.array([0.0, 2.0, -1.5, 30.0, -0.3], np.float32)
SIDES = np.array([1, 0, 0, 1, 1], np.int32)


def test_logistic_is_the_mean_of_log_one_plus_exp_of_minus_the_signed_margin():
    m, s = MARGINS.astype(np.float64), 2.0 * SIDES - 1
    each = np.log1p(np.exp(-s * m))
    batch = Examples(MARGINS, SIDES)
    np.testing.assert_allclose(Logistic(outputs).each((), batch), each, rtol=1e-5)
    np.testing.assert_allclose(Logistic(outputs)((), batch), each.mean(), rtol=1e-6)
    assert each[3] < 1e-12  # a margin of 30 is told from none: 9e-14, which log(1 + small) would round to 0
    for y in (SIDES.astype(np.float32), SIDES.astype(bool)):
        assert float(Logistic(outputs)((), Examples(MARGINS, y))) == float(Logistic(outputs)((), batch))


def test_logistic_gradient_is_the_sigmoid_minus_the_label():
    found = jax.grad(lambda x: Logistic(outputs)((), Examples(x, SIDES)))(jnp.asarray(MARGINS))
    expected = (1 / (1 + np.exp(-MARGINS.astype(np.float64))) - SIDES) / 5
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)


def test_logistic_and_its_gradient_stay_exact_at_margins_of_a_thousand():
    x, y = jnp.array([1000.0, 1000.0, -1000.0, -1000.0]), np.array([1, 0, 1, 0])
    assert Logistic(outputs).of(x, y).tolist() == [0, 1000, 1000, 0]
    assert jax.vmap(jax.grad(lambda x, y: Logistic(outputs).of(x[None], y[None])[0]))(x, y).tolist() == [
        0,
        1,
        -1,
        0,
    ]


def test_logistic_of_a_linear_model_has_the_gradient_of_numpy():
    rng = np.random.default_rng(0)
    x, w, b = rng.standard_normal((7, 3)).astype(np.float32), np.float32([0.5, -1, 2]), np.float32(0.3)
    y = rng.integers(0, 2, 7).astype(np.int32)
    found = jax.grad(Logistic(Linear(3, bias=True)))(Affine(w, b), Examples(x, y))
    residual = 1 / (1 + np.exp(-(x @ w + b))) - y
    np.testing.assert_allclose(found.weight, residual @ x / 7, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.bias, residual.mean(), rtol=1e-5)


def test_binary_accuracy_counts_sides_and_a_margin_of_zero_is_label_0():
    assert BinaryAccuracy(outputs).each((), Examples(MARGINS, SIDES)).tolist() == [0, 0, 1, 1, 0]
    assert float(BinaryAccuracy(outputs)((), Examples(MARGINS, SIDES))) == pytest.approx(0.4)


@pytest.mark.parametrize("make", [Logistic, BinaryAccuracy])
def test_binary_losses_refuse_a_column_of_margins(make):
    """(n, 1) against (n,) would broadcast to (n, n)."""
    with pytest.raises(InvalidInput, match=r"\(5, 1\), targets \(5,\)"):
        make(outputs)((), Examples(MARGINS[:, None], SIDES))


def test_accuracy_and_top_k_count_by_hand():
    """Ranks of the labels: 0, 1, 2."""
    assert float(Accuracy(outputs)((), BATCH)) == pytest.approx(1 / 3)
    assert float(Accuracy(outputs)((), tuple(BATCH))) == pytest.approx(1 / 3)  # of any pair
    assert [float(TopK(outputs, k)((), BATCH)) for k in (1, 2, 3, 4)] == pytest.approx([1 / 3, 2 / 3, 1, 1])


def test_equal_logits_are_not_all_right():
    """A model that has learnt nothing scores 1 / classes and k / classes, not 1."""
    batch = Examples(np.zeros((4, 4), np.float32), np.arange(4))
    assert float(Accuracy(outputs)((), batch)) == 0.25
    assert float(TopK(outputs, 2)((), batch)) == 0.5


@pytest.mark.parametrize("make", [CrossEntropy, SquaredError, Accuracy, lambda m: TopK(m, 2)])
def test_every_one_is_a_mean_over_the_first_axis(make):
    y = LOGITS[::-1].copy() if make is SquaredError else LABELS
    f = make(outputs)
    single = [float(f((), Examples(LOGITS[i : i + 1], y[i : i + 1]))) for i in range(3)]
    np.testing.assert_allclose(f((), Examples(LOGITS, y)), np.mean(single), rtol=1e-6)


@pytest.mark.parametrize("make", [Logistic, BinaryAccuracy])
def test_binary_ones_are_means_over_the_first_axis(make):
    f = make(outputs)
    single = [float(f((), Examples(MARGINS[i : i + 1], SIDES[i : i + 1]))) for i in range(5)]
    np.testing.assert_allclose(f((), Examples(MARGINS, SIDES)), np.mean(single), rtol=1e-6)


def test_equal_losses_of_equal_models_are_equal_keys():
    assert Logistic(Linear(3)) == Logistic(Linear(3)) != Logistic(Linear(4))
    assert CrossEntropy(Softmax(3, 2)) == CrossEntropy(Softmax(3, 2)) != CrossEntropy(Softmax(3, 4))
    assert hash(TopK(Softmax(3, 2), 2)) == hash(TopK(Softmax(3, 2), 2))
    assert SquaredError(Linear(3)) != SquaredError(Linear(3), half=True)


def test_top_k_refuses_k_out_of_range():
    with pytest.raises(InvalidInput, match="k = 0"):
        TopK(outputs, 0)
    with pytest.raises(InvalidInput, match="k = 5 is more than the 4 classes"):
        TopK(outputs, 5)((), BATCH)


def test_check_labels_gives_int32():
    for y in ([0, 1, 2], np.array([0.0, 2.0]), np.array([0, 2], np.uint8)):
        assert check_labels(y, 3).dtype == np.int32
    assert check_labels([2, 0], 3).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0, 1, -1, 7], r"label -1 in row 2 is outside 0 \.\. 2"),
        ([0, 3], "label 3 in row 1"),
        ([0.0, 1.5], r"label 1\.5 in row 1"),
        ([0.0, np.nan], "no value for example 1"),
        (["a", "b"], "labels have type"),
        ([True, False], "labels have type bool"),
        ([[0, 1]], "shape"),
        ([], "shape"),
    ],
)
def test_check_labels_names_the_first_bad_label(y, message):
    with pytest.raises(InvalidInput, match=message):
        check_labels(y, 3)


TAGS = np.array([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 1]], np.int32)


def test_binary_cross_entropy_sums_the_tags_and_averages_the_examples():
    p = 1 / (1 + np.exp(-LOGITS.astype(np.float64)))
    each = -(TAGS * np.log(p) + (1 - TAGS) * np.log(1 - p)).sum(1)
    batch = Examples(LOGITS, TAGS)
    np.testing.assert_allclose(BinaryCrossEntropy(outputs).each((), batch), each, rtol=1e-5)
    np.testing.assert_allclose(BinaryCrossEntropy(outputs)((), batch), each.mean(), rtol=1e-5)
    found = jax.grad(lambda x: BinaryCrossEntropy(outputs)((), Examples(x, TAGS)))(jnp.asarray(LOGITS))
    np.testing.assert_allclose(found, (p - TAGS) / 3, rtol=1e-5, atol=1e-7)


def test_binary_cross_entropy_stays_exact_at_a_thousand():
    x, y = np.array([[1000.0, -1000.0]]), np.array([[1, 0]])
    assert float(BinaryCrossEntropy(outputs)((), Examples(x, y))) == 0
    assert float(BinaryCrossEntropy(outputs)((), Examples(x, 1 - y))) == 2000


def recall(scores, y, k):
    """Recall@k of one example by a loop: the k largest scores, of equal ones the first."""
    best = sorted(range(len(scores)), key=lambda j: (-scores[j], j))[:k]
    return sum(y[j] for j in best) / y.sum()


@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_recall_is_the_share_of_an_example_s_tags_among_the_k_largest(k):
    rng = np.random.default_rng(0)
    scores = rng.integers(-3, 4, (40, 9)).astype(np.float32)  # with many ties
    y = (rng.random((40, 9)) < 0.4).astype(np.int32)
    y[:, 3] |= y.sum(1) == 0
    expected = [recall(s, t, k) for s, t in zip(scores, y, strict=True)]
    np.testing.assert_allclose(RecallAt(outputs, k).each((), Examples(scores, y)), expected, rtol=1e-6)
    np.testing.assert_allclose(RecallAt(outputs, k)((), Examples(scores, y)), np.mean(expected), rtol=1e-6)


def test_recall_of_no_tags_is_whole():
    assert RecallAt(outputs, 2).of(jnp.asarray(LOGITS), TAGS * 0).tolist() == [1, 1, 1]


def test_the_likeliest_set_is_the_one_of_highest_likelihood():
    """Against the likelihood of every set, the tags independent."""
    rng = np.random.default_rng(1)
    sets = ((0, 1), (2,), (0, 2, 3), (3,))
    members = np.array([[j in s for j in range(4)] for s in sets])
    m = rng.standard_normal((50, 4)).astype(np.float32)
    p = 1 / (1 + np.exp(-m.astype(np.float64)))
    likelihood = np.array([[np.prod(np.where(own, q, 1 - q)) for own in members] for q in p])
    label = rng.integers(0, 4, 50)
    found = LikeliestSet(outputs, sets).each((), Examples(m, members[label].astype(np.int32)))
    np.testing.assert_array_equal(found, likelihood.argmax(1) == label)
    assert 0 < float(found.mean()) < 1


def test_ridge_adds_half_the_square_of_the_weight_once_however_examples_are_averaged():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        x, w, b = rng.standard_normal((7, 3)), rng.standard_normal(3), 0.3
        y, params = rng.integers(0, 2, 7), Affine(jnp.asarray(w), jnp.asarray(b))
        f = Ridge(Logistic(Linear(3, bias=True)), 0.2)
        s = 2.0 * y - 1
        each = np.log1p(np.exp(-s * (x @ w + b))) + 0.1 * w @ w
        np.testing.assert_allclose(f.each(params, Examples(x, y)), each, rtol=1e-12)
        np.testing.assert_allclose(f(params, Examples(x, y)), each.mean(), rtol=1e-12)
        found = jax.grad(f)(params, Examples(x, y))
        residual = 1 / (1 + np.exp(-(x @ w + b))) - y
        np.testing.assert_allclose(found.weight, residual @ x / 7 + 0.2 * w, rtol=1e-12)
        np.testing.assert_allclose(found.bias, residual.mean(), rtol=1e-12)  # the bias is free


def test_losses_of_tags_refuse_what_does_not_fit():
    for make in (BinaryCrossEntropy, RecallAt, lambda m: LikeliestSet(m, ((0,),))):
        with pytest.raises(InvalidInput, match=r"\(3, 4\), targets \(3,\)"):
            make(outputs)((), BATCH)
    with pytest.raises(InvalidInput, match="k = 5 is more than the 4 tags"):
        RecallAt(outputs, 5)((), Examples(LOGITS, TAGS))
    with pytest.raises(InvalidInput, match="k = 0"):
        RecallAt(outputs, 0)
    with pytest.raises(InvalidInput, match=r"l2 = -1\.0 must be finite and >= 0"):
        Ridge(Logistic(Linear(3)), -1.0)
