"""Cross-entropy over classes in rows, and its derivatives, against the plain formula in float64."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from fedsolve.core.xla import cross_entropy as form
from fedsolve.core.xla.cross_entropy import cross_entropy

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(3, 4, 5, 7)) * 3  # of 3 trials, 4 clients, 5 classes and 7 examples
LABELS = RNG.integers(0, 5, (4, 7))
RATES = RNG.uniform(0.1, 2, 7)


def plain(logits, labels):
    """In NumPy: values (n,) and softmax - is label (classes, n)."""
    powers = np.exp(logits - logits.max(0))
    softmax = powers / powers.sum(0)
    return -np.log(softmax[labels, np.arange(len(labels))]), softmax - np.eye(len(logits))[labels].T


def weighted(logits, labels):
    return jnp.sum(RATES * cross_entropy(logits, labels))


pytestmark = pytest.mark.usefixtures("x64")


def near(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.full_rows("few")
@pytest.mark.parametrize("classes", [2, form._FEW, form._FEW + 1], ids=["two", "few", "many"])
def test_values_and_gradients(classes):
    """Of few and of many classes, whose sums are not row by row."""
    logits, labels = RNG.normal(size=(classes, 7)), RNG.integers(0, classes, 7)
    values, slopes = plain(logits, labels)
    near(jax.jit(cross_entropy)(logits, labels), values)
    near(jax.jit(jax.grad(weighted))(logits, labels), RATES * slopes)


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["first", "middle", "last"])
def test_clients_and_trials_side_by_side(axis):
    """Labels are the clients', common to all trials; the axis of trials may lie anywhere."""
    given = np.moveaxis(LOGITS, 0, axis + 1)  # (4, ..., 3 at axis, ...)
    clients = jax.vmap(jax.vmap(jax.value_and_grad(weighted), (axis, None)))
    values, gradients = jax.jit(clients)(given, LABELS)
    for i, j in np.ndindex(4, 3):
        expected, slopes = plain(LOGITS[j, i], LABELS[i])
        near(values[i, j], RATES @ expected)
        near(gradients[i, j], RATES * slopes)


def test_one_model_on_all_clients():
    """Logits without an axis of clients, as where one model is tried on several labels."""
    values = jax.jit(jax.vmap(cross_entropy, (None, 0)))(LOGITS[0, 0], LABELS)
    near(values, [plain(LOGITS[0, 0], own)[0] for own in LABELS])


def test_second_derivatives():
    logits, labels = jnp.asarray(LOGITS[0, 0]), LABELS[0]
    softmax = plain(LOGITS[0, 0], labels)[1] + np.eye(5)[labels].T
    of_each = np.einsum("in,ij->ijn", softmax, np.eye(5)) - np.einsum("in,jn->ijn", softmax, softmax)
    expected = np.einsum("ijn,n,nm->injm", of_each, RATES, np.eye(7))
    ways = jax.hessian(weighted), jax.jacrev(jax.grad(weighted))
    for found in jax.jit(lambda *of: [way(*of) for way in ways])(logits, labels):
        near(found, expected)


def test_values_that_are_not_finite():
    """As jax.nn.logsumexp has them: one infinite logit is an infinite loss, NaN stays NaN."""
    logits = jnp.array([[1.0, -jnp.inf, jnp.inf, jnp.nan], [2.0, 1.0, 1.0, 1.0]])
    labels = jnp.array([0, 1, 1, 1])
    both = lambda z, y: (cross_entropy(z, y), jax.nn.logsumexp(z, axis=0) - z[y, jnp.arange(4)])  # noqa: E731
    found, expected = map(np.asarray, jax.jit(both)(logits, labels))
    np.testing.assert_array_equal(np.isfinite(expected), [True, True, False, False])
    np.testing.assert_allclose(found, expected, rtol=1e-15)


def test_a_label_that_is_no_class():
    near(
        jax.jit(cross_entropy)(jnp.asarray(LOGITS[0, 0]), np.full(7, -1)),
        jax.nn.logsumexp(LOGITS[0, 0], axis=0),
    )


def test_labels_of_bytes():
    """More classes than a byte counts."""
    logits, labels = RNG.normal(size=(300, 4)), np.array([0, 5, 43, 255], np.uint8)
    near(jax.jit(cross_entropy)(logits, labels), plain(logits, labels)[0])


def test_as_many_labels_as_examples():
    with pytest.raises(ValueError, match=r"\(5, 7\) for labels of shape \(6,\)"):
        cross_entropy(jnp.asarray(LOGITS[0, 0]), LABELS[0, :6])


def test_steps_are_functions_of_their_own():
    """On a CPU none is inlined, and all examples are the last axis; on a GPU XLA is free."""
    side_by_side = jax.jit(jax.vmap(jax.grad(weighted)))
    given = jax.ShapeDtypeStruct((4, 5, 7), jnp.float64), jax.ShapeDtypeStruct((4, 7), jnp.int64)
    for platform, kept in (("cpu", 4), ("cuda", 0)):
        text = jax.export.export(side_by_side, platforms=[platform])(*given).mlir_module()
        calls = [line for line in text.splitlines() if "call @" in line and 'inlineable = "false"' in line]
        assert len(calls) == kept
    assert "tensor<5x28xf64>" in text
