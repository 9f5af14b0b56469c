"""Losses are called in one way, whatever they ask for and return."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.tasks.loss_arguments import asked, call
from fedsolve.tasks.losses.losses import Ridge, SquaredError

X = np.arange(6.0).reshape(3, 2)


def plain(w, batch):
    return jnp.mean(batch @ w)


def own_weights(w, batch, weights=(0.5, 2.0)):
    return plain(w, batch)


class Model:
    def __call__(self, params, x, key=None):
        return x @ params


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (plain, set()),
        (lambda w, b, key: 0.0, {"key"}),
        (lambda w, b, *, weights=None, buffers: 0.0, {"weights", "buffers"}),
        (own_weights, set()),
        (partial(lambda w, b, key, weights: 0.0, key=None), {"weights"}),
        (jax.jit(lambda w, b, key=None, scale=2.0: 0.0), {"key"}),
        (Model(), {"key"}),
        (SquaredError(Model()), {"key"}),
        (Ridge(SquaredError(Model()), 0.1), {"key"}),
        (fs.tasks.CrossEntropy(fs.tasks.MLP((2, 2))), set()),
    ],
)
def test_what_a_function_asks_for(function, names):
    assert asked(function) == names


@pytest.mark.parametrize(("word", "nearest"), [("kye", "key"), ("weight", "weights"), ("bufers", "buffers")])
def test_a_misspelt_argument(word, nearest):
    """Wherever it is met first, and in words."""
    loss = eval(f"lambda w, batch, {word}: 0.0")
    with pytest.raises(fs.InvalidInput, match=f"argument of .*'{word}': did you mean '{nearest}'"):
        fs.run(fs.FedAvg(0.1), fs.Task.from_arrays(loss, np.zeros(2, np.float32), [X]), rounds=1)


def test_buffers_come_back():
    """A loss returns them beside its value; a metric may return its value alone."""

    def loss(w, batch, buffers):
        return plain(w, batch), buffers + 1

    assert call(loss, jnp.ones(2), X, buffers=4) == (5.0, 5)
    assert call(lambda w, b, buffers: plain(w, b), jnp.ones(2), X, buffers=4) == (5.0, 4)
    assert call(plain, jnp.ones(2), X, buffers=4) == (5.0, 4)


def test_arguments_pass_through_a_model_with_other_leaves():
    """An equinox-like model with a function among its leaves: `from_arrays` puts it back around the loss."""
    model = {"w": np.ones(2, np.float32), "activation": jnp.tanh}

    def loss(m, batch, key=None, weights=None):
        assert weights is not None
        return jnp.sum(weights * m["activation"](batch @ m["w"])) if key is None else jnp.zeros(())

    task = fs.Task.from_arrays(loss, model, [X])
    assert asked(task.loss) == {"key", "weights"}
    value = call(task.loss, task.init(jax.random.key(0)), X, weights=np.array([1.0, 0.0, 0.0]))[0]
    np.testing.assert_allclose(value, np.tanh(1.0), rtol=1e-6)
    assert not hasattr(task.loss, "each")
    built_in = fs.Task.from_arrays(
        SquaredError(lambda m, x: m["activation"](x @ m["w"])), model, [fs.Examples(X, X[:, 0])]
    )
    each = built_in.loss.each(built_in.init(jax.random.key(0)), fs.Examples(X, X[:, 0]))
    np.testing.assert_allclose(each, (np.tanh(X.sum(1)) - X[:, 0]) ** 2, rtol=1e-6)
