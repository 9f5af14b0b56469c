"""Works N1 to N3 as plain JAX: a CNN with dropout, a two-layer LSTM, a ResNet-18 with group normalisation, all even.

Written as one would by hand, without fedsolve's models: only the convolution is shared, since XLA's own,
differentiated by JAX, is many times slower inside a loop on a CPU. Clients are scanned or vmapped (`over`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedsolve.core.xla.convolutions import conv, max_pool2x2
from handwritten import RATE, cnn_params, cohort, orders, rounds_of, softmax_loss

COHORT = 10


def federated(loss: Callable, params: Any, x: Any, y: Any, batch: int, over: str):
    """(run, params): FedAvg, 10 clients a round, one epoch; loss(params, x, y, key)."""
    clients, n = x.shape[:2]

    def one_round(params, key):
        key_cohort, key_order, key_noise = jax.random.split(key, 3)
        work = cohort(key_cohort, clients, COHORT), orders(key_order, COHORT, n, n)

        def client(i, order):
            own = jax.random.fold_in(key_noise, i)

            def step(p, at):
                k, rows = at
                g = jax.grad(loss)(p, x[i, rows], y[i, rows], jax.random.fold_in(own, k))
                return jax.tree.map(lambda a, b: a - RATE * b, p, g), None

            return lax.scan(step, params, (jnp.arange(n // batch), order.reshape(-1, batch)))[0]

        if over == "vmap":
            return jax.tree.map(lambda p, q: p + jnp.mean(q - p, axis=0), params, jax.vmap(client)(*work))

        def add(total, one):
            return jax.tree.map(lambda s, p, q: s + (q - p), total, params, client(*one)), None

        total = lax.scan(add, jax.tree.map(jnp.zeros_like, params), work)[0]
        return jax.tree.map(lambda p, s: p + s / COHORT, params, total)

    return rounds_of(one_round), params


def make_n1(n: int, over: str = "scan"):
    """The CNN of Reddi et al. 2021 with dropout, `n` bytes images a client, batches of 20."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(0, 256, (COHORT, n, 28, 28, 1)), jnp.uint8)
    y = jnp.asarray(rng.integers(0, 62, (COHORT, n)), jnp.int32)

    def drop(key, rate, h):
        return jnp.where(jax.random.bernoulli(key, 1 - rate, h.shape), h / (1 - rate), 0)

    def loss(p, x, y, key):
        k1, k2 = jax.random.split(key)
        h = jax.nn.relu(conv(x.astype(jnp.float32) / 255, p["conv1"]) + p["conv1_bias"])
        h = jax.nn.relu(max_pool2x2(conv(h, p["conv2"]) + p["conv2_bias"]))
        h = jax.nn.relu(drop(k1, 0.25, h.reshape(len(x), -1)) @ p["dense1"] + p["dense1_bias"])
        return softmax_loss(p["dense2"].T @ drop(k2, 0.5, h).T + p["dense2_bias"][:, None], y)

    return federated(loss, cnn_params(), x, y, 20, over)


def make_n2(
    n: int, over: str = "scan", vocabulary: int = 90, hidden: int = 256, time: int = 80, batch: int = 10
):
    """Embedding of 8, two LSTM layers, logits at each of 80 positions; batches of 10 sequences."""
    rng = np.random.default_rng(0)
    text = jnp.asarray(rng.integers(1, vocabulary, (4 * COHORT, n, time + 1)), jnp.int32)
    normal = lambda *shape: jnp.asarray(rng.standard_normal(shape) / np.sqrt(shape[0]), jnp.float32)  # noqa: E731
    params = {
        "embedding": normal(vocabulary, 8),
        "layers": [
            (normal(i, 4 * hidden), normal(hidden, 4 * hidden), jnp.zeros(4 * hidden)) for i in (8, hidden)
        ],
        "output": (normal(hidden, vocabulary), jnp.zeros(vocabulary)),
    }

    def loss(p, x, y, key):
        h = p["embedding"][x.T]
        for own, recurrent, bias in p["layers"]:

            def step(state, gates, recurrent=recurrent):
                i, f, g, o = jnp.split(gates + state[0] @ recurrent, 4, axis=-1)
                c = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
                return (h, c), h

            zero = jnp.zeros((x.shape[0], hidden))
            h = lax.scan(step, (zero, zero), h @ own + bias)[1]
        weights, bias = p["output"]
        logits = weights.T @ h.reshape(-1, hidden).T + bias[:, None]
        return softmax_loss(logits, y.T.reshape(-1))

    return federated(loss, params, text[..., :-1], text[..., 1:], batch, over)


def make_n3(n: int, over: str = "scan", width: int = 16, classes: int = 100, batch: int = 20):
    """ResNet-18 with 2 groups a norm on 32 x 32 pictures, batches of 20."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(0, 256, (2 * COHORT, n, 32, 32, 3)), jnp.uint8)
    y = jnp.asarray(rng.integers(0, classes, (2 * COHORT, n)), jnp.int32)

    def layer(size, into, out):
        kernel = rng.standard_normal((size, size, into, out)) * np.sqrt(2 / (size * size * into))
        return jnp.asarray(kernel, jnp.float32), jnp.ones(out), jnp.zeros(out)

    sizes = [width, *[width * 2**s for s in range(4) for _ in range(2)]]
    blocks = [
        (layer(3, a, b), layer(3, b, b), layer(1, a, b) if a != b else None) for a, b in pairwise(sizes)
    ]
    last = jnp.asarray(rng.standard_normal((classes, sizes[-1])) / np.sqrt(sizes[-1]), jnp.float32)
    params = {"stem": layer(3, 3, width), "blocks": blocks, "output": (last, jnp.zeros(classes))}

    def apply(p, x, stride):
        kernel, scale, shift = p
        y = conv(x, kernel, stride=stride, padding=kernel.shape[0] // 2)
        groups = y.reshape(len(y), -1, 2, y.shape[-1] // 2)
        mean = groups.mean((1, 3), keepdims=True)
        groups = (groups - mean) * lax.rsqrt(groups.var((1, 3), keepdims=True) + 1e-5)
        return groups.reshape(y.shape) * scale + shift

    def loss(p, x, y, key):
        h = jax.nn.relu(apply(p["stem"], x.astype(jnp.float32) / 255, 1))
        for first, second, shortcut in p["blocks"]:
            stride = 1 if shortcut is None else 2
            g = apply(second, jax.nn.relu(apply(first, h, stride)), 1)
            h = jax.nn.relu(g + (h if shortcut is None else apply(shortcut, h, stride)))
        weights, bias = p["output"]
        return softmax_loss(weights @ h.mean((1, 2)).T + bias[:, None], y)

    return federated(loss, params, x, y, batch, over)
