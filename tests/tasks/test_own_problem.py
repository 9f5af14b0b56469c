"""A user's own loss, parameters and arrays: any pytree, a model with leaves that are not trained included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs

RNG = np.random.default_rng(0)
CLIENTS = [(RNG.normal(size=(n, 3)), RNG.normal(size=(n, 1))) for n in (9, 4, 6)]


@pytest.mark.full
def test_an_equinox_model():
    """Activation functions and sizes come back as they were, all weights have moved, and the model still runs."""
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(3, 1, 8, 1, key=jax.random.key(0))

    def loss(model, batch):
        return jnp.mean((jax.vmap(model)(batch[0]) - batch[1]) ** 2)

    task = fs.Task.from_arrays(loss, model, CLIENTS, batch_size=4)
    result = fs.run(fs.FedDuAdam(0.05), task, rounds=20)
    assert result.metrics["train_loss"][-1] < 0.9 * result.metrics["train_loss"][0]
    assert result.params.activation is model.activation
    pairs = zip(eqx.filter(result.params, eqx.is_array).layers, model.layers, strict=True)
    assert all(not np.array_equal(a.weight, b.weight) for a, b in pairs)
    assert result.params(jnp.ones(3)).shape == (1,)


@pytest.mark.full
def test_a_dict_in_closed_form():
    """Least squares, full batch, one step, everyone, by examples: that is gradient descent on the pooled loss."""
    x, y = (np.concatenate([c[i] for c in CLIENTS]) for i in (0, 1))

    def loss(params, batch):
        return jnp.mean((batch[0] @ params["w"] - batch[1]) ** 2)

    task = fs.Task.from_arrays(loss, {"w": np.zeros((3, 1))}, CLIENTS, batch_size=9, local_steps=1)
    result = fs.run(fs.FedAvg(0.1), task, rounds=30, dtype="float64")
    w = np.zeros((3, 1))
    for _ in range(30):
        w = w - 0.1 * 2 / len(x) * x.T @ (x @ w - y)
    np.testing.assert_allclose(result.params["w"], w, rtol=1e-12)
