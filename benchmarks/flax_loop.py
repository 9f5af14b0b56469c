"""An ordinary flax CNN, as a user writes it: federated averaging as a Python loop over a jitted step, and its task."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedsolve as fs

RATE, CLIENTS, COHORT, BATCH = 0.1, 20, 10, 20
EVEN = [100] * CLIENTS
UNEVEN = np.random.default_rng(1).integers(60, 101, CLIENTS).tolist()


class CNN(nn.Module):
    """Two convolutions with max-pools and two dense layers: 105,866 parameters on 28 x 28 images of 10 classes."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits (batch, 10) of images (batch, 28, 28, 1)."""
        x = nn.max_pool(nn.relu(nn.Conv(16, (3, 3))(x)), (2, 2), (2, 2))
        x = nn.max_pool(nn.relu(nn.Conv(32, (3, 3))(x)), (2, 2), (2, 2))
        return nn.Dense(10)(nn.relu(nn.Dense(64)(x.reshape(x.shape[0], -1))))


model = CNN()


def loss(params, batch):
    x, y = batch
    return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, x), y).mean()


def start():
    return model.init(jax.random.key(0), jnp.zeros((1, 28, 28, 1)))


def clients(sizes: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    shapes = [(n, 28, 28, 1) for n in sizes]
    return [(rng.standard_normal(s, np.float32), rng.integers(0, 10, s[0]).astype(np.int32)) for s in shapes]


def task(sizes: list[int]) -> fs.Task:
    return fs.Task.from_arrays(loss, start(), clients(sizes), batch_size=BATCH, name="flax CNN")


def program(sizes: list[int]) -> Callable[[], None]:
    """A round as a Python loop: every client's steps through one jitted function, then the weighted mean."""
    data, params, rng = clients(sizes), start(), np.random.default_rng(2)

    @jax.jit
    def step(params, x, y):
        return jax.tree.map(lambda p, g: p - RATE * g, params, jax.grad(loss)(params, (x, y)))

    @jax.jit
    def mean(models, weights):
        return jax.tree.map(lambda *leaves: sum(w * x for w, x in zip(weights, leaves, strict=True)), *models)

    def one_round() -> None:
        models, counts = [], []
        for i in rng.choice(len(data), COHORT, replace=False):
            (x, y), local = data[i], params
            order = rng.permutation(len(y))
            for k in range(0, len(y), BATCH):
                rows = order[k : k + BATCH]
                local = step(local, x[rows], y[rows])
            models.append(local)
            counts.append(len(y))
        jax.block_until_ready(mean(models, np.float32(counts) / np.float32(sum(counts))))

    for n in sorted({n % BATCH or BATCH for n in sizes}):  # every size of a last minibatch is compiled before
        step(params, data[0][0][:n], data[0][1][:n])
    one_round()
    return one_round
