"""The reference works as plain JAX programs: what an engine has to keep up with.

Every `make_*` gives (run, state), where `run(state, key, rounds)` is compiled and returns the parameters
after that many rounds of federated averaging. The findings behind the choices are in FINDINGS.md.

    python benchmarks/handwritten.py w1 w2 w3
    XLA_FLAGS=--xla_force_host_platform_device_count=2 python benchmarks/handwritten.py w3
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from fedsolve.core.xla.convolutions import conv, max_pool2x2

RATE = 0.1


class Linear(NamedTuple):
    """Softmax regression: weights (classes, features), bias (classes,)."""

    weights: Any
    bias: Any


def orders(key: jax.Array, clients: int, n: int, m: int) -> jax.Array:
    """For each client the first m places of a uniform random order of n: (clients, m).

    The ranks of independent draws are a uniform permutation; counting them beats sorting at small n.
    """
    draws = jax.random.bits(key, (clients, n))
    mine, place = draws[:, :m, None], jnp.arange(n)
    below = (draws[:, None] < mine) | ((draws[:, None] == mine) & (place < place[:m, None]))
    return jnp.sum(below, axis=-1, dtype=jnp.int32)


def cohort(key: jax.Array, clients: int, size: int) -> jax.Array:
    """Distinct clients, uniformly: the largest of 30-bit draws, as floats (only their top_k is fast)."""
    draws = (jax.random.bits(key, (clients,)) >> 2) + jnp.uint32(0x00800000)
    return lax.top_k(lax.bitcast_convert_type(draws, jnp.float32), size)[1]


def softmax_loss(logits: jax.Array, y: jax.Array) -> jax.Array:
    """Mean cross-entropy of logits (classes, batch): the reduction over the first axis is the fast one."""
    picked = jnp.take_along_axis(logits, y[None], axis=0)[0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=0) - picked)


def linear_loss(p: Linear, x: jax.Array, y: jax.Array) -> jax.Array:
    return softmax_loss(p.weights @ x.T + p.bias[:, None], y)


def sgd_step(loss: Callable, p: Any, x: jax.Array, y: jax.Array) -> Any:
    return jax.tree.map(lambda a, g: a - RATE * g, p, jax.grad(loss)(p, x, y))


def synthetic(clients: int, n: int, shape: tuple[int, ...], classes: int) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients, n, *shape), np.float32)
    return jnp.asarray(x), jnp.asarray(rng.integers(0, classes, (clients, n)), jnp.int32)


def rounds_of(one_round: Callable) -> Callable:
    """The compiled loop of n rounds of `one_round(params, round key) -> params`."""

    @partial(jax.jit, static_argnums=2)
    def run(state, key, rounds):
        def body(params, t):
            return one_round(params, jax.random.fold_in(key, t)), None

        return lax.scan(body, state, jnp.arange(rounds))[0]

    return run


def one_epoch(loss: Callable, start: Any, features: int, clients: int, n: int, size: int, batch: int):
    """Some of the clients a round, one epoch of local steps: vmap over clients."""
    x, y = synthetic(clients, n, (features,), 10)

    def one_round(params, key):
        key_cohort, key_order = jax.random.split(key)

        def client(i, order):
            def step(p, rows):
                return sgd_step(loss, p, x[i, rows], y[i, rows]), None

            return lax.scan(step, params, order.reshape(-1, batch))[0]

        trained = jax.vmap(client)(cohort(key_cohort, clients, size), orders(key_order, size, n, n))
        return jax.tree.map(lambda p, q: p + jnp.mean(q - p, axis=0), params, trained)

    return rounds_of(one_round), start


def make_w1(clients: int = 100, n: int = 100, size: int = 10, batch: int = 10):
    """Softmax regression, 10 of 100 clients a round, 10 local steps."""
    start = Linear(jnp.zeros((10, 60)), jnp.zeros(10))
    return one_epoch(linear_loss, start, 60, clients, n, size, batch)


def mlp_loss(p: tuple[Linear, Linear], x: jax.Array, y: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(x @ p[0].weights.T + p[0].bias)
    return softmax_loss((hidden @ p[1].weights.T + p[1].bias).T, y)


def make_w6(clients: int = 100, n: int = 100, size: int = 20, batch: int = 10):
    """An MLP with one hidden layer of 64, 20 of 100 clients a round, 10 local steps."""
    keys = jax.random.split(jax.random.key(0))
    shapes = ((64, 64), (10, 64))
    layers = (jax.random.normal(k, s) * (2 / s[1]) ** 0.5 for k, s in zip(keys, shapes, strict=True))
    start = tuple(Linear(weights, jnp.zeros(len(weights))) for weights in layers)
    return one_epoch(mlp_loss, start, 64, clients, n, size, batch)


def make_w3(
    clients: int = 10_000, n: int = 20, size: int = 1000, batch: int = 10, devices: int | None = None
):
    """Softmax regression, 1,000 of 10,000 clients a round, one local step, split over the devices."""
    x, y = synthetic(clients, n, (60,), 10)
    devices = devices or jax.device_count()

    def deltas(params, chosen, key):
        def client(i, rows):
            trained = sgd_step(linear_loss, params, x[i, rows], y[i, rows])
            return jax.tree.map(jnp.subtract, trained, params)

        each = jax.vmap(client)(chosen, orders(key, len(chosen), n, batch))
        return jax.tree.map(lambda d: jnp.sum(d, axis=0) / size, each)

    def share(params, chosen, key):
        part = deltas(params, chosen, jax.random.fold_in(key, lax.axis_index("cohort")))
        return jax.tree.map(lambda d: lax.psum(d, "cohort"), part)

    if devices > 1:
        mesh = jax.make_mesh(
            (devices,), ("cohort",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices]
        )
        specs = {"in_specs": (P(), P("cohort"), P()), "out_specs": P()}
        total = jax.shard_map(share, mesh=mesh, check_vma=False, **specs)
    else:
        total = deltas

    def one_round(params, key):
        key_cohort, key_order = jax.random.split(key)
        return jax.tree.map(jnp.add, params, total(params, cohort(key_cohort, clients, size), key_order))

    return rounds_of(one_round), Linear(jnp.zeros((10, 60)), jnp.zeros(10))


def cnn_params(classes: int = 62) -> dict[str, jax.Array]:
    rng = np.random.default_rng(1)
    shapes = {
        "conv1": (3, 3, 1, 32),
        "conv2": (3, 3, 32, 64),
        "dense1": (9216, 128),
        "dense2": (128, classes),
    }
    params = {}
    for name, shape in shapes.items():
        scale = np.sqrt(2 / np.prod(shape[:-1]))
        params[name] = jnp.asarray(scale * rng.standard_normal(shape), jnp.float32)
        params[name + "_bias"] = jnp.zeros(shape[-1])
    return params


def cnn_loss(
    conv: Callable, pool: Callable, p: dict[str, jax.Array], x: jax.Array, y: jax.Array
) -> jax.Array:
    h = jax.nn.relu(conv(x, p["conv1"]) + p["conv1_bias"])
    h = jax.nn.relu(
        pool(conv(h, p["conv2"]) + p["conv2_bias"])
    )  # ReLU and max commute: a quarter of the work
    h = jax.nn.relu(h.reshape(len(x), -1) @ p["dense1"] + p["dense1_bias"])
    return softmax_loss(p["dense2"].T @ h.T + p["dense2_bias"][:, None], y)


def lax_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    dims = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=dims)


def lax_pool(x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def make_w2(
    clients: int = 100, n: int = 100, size: int = 10, batch: int = 20, over: str = "scan", plain: bool = False
):
    """The CNN, 10 of 100 clients a round, one epoch of 5 local steps, clients one after another.

    `over="vmap"` runs the clients side by side; `plain` uses XLA's convolution and pooling.
    """
    x, y = synthetic(clients, n, (28, 28, 1), 62)
    loss = partial(cnn_loss, lax_conv, lax_pool) if plain else partial(cnn_loss, conv, max_pool2x2)

    def one_round(params, key):
        key_cohort, key_order = jax.random.split(key)
        work = cohort(key_cohort, clients, size), orders(key_order, size, n, n)

        def client(i, order):
            def step(p, rows):
                return sgd_step(loss, p, x[i, rows], y[i, rows]), None

            return lax.scan(step, params, order.reshape(-1, batch))[0]

        if over == "vmap":
            return jax.tree.map(lambda p, q: p + jnp.mean(q - p, axis=0), params, jax.vmap(client)(*work))

        def add_client(total, one):
            return jax.tree.map(lambda s, p, q: s + (q - p), total, params, client(*one)), None

        total = lax.scan(add_client, jax.tree.map(jnp.zeros_like, params), work)[0]
        return jax.tree.map(lambda p, s: p + s / size, params, total)

    return rounds_of(one_round), cnn_params()


WORKS: dict[str, tuple[Callable, int]] = {
    "w1": (make_w1, 500),
    "w2": (make_w2, 1),
    "w2-vmap": (partial(make_w2, over="vmap"), 1),
    "w2-lax": (partial(make_w2, plain=True), 1),
    "w3": (make_w3, 50),
    "w6": (make_w6, 100),
}


def measure(name: str, repeats: int = 7) -> tuple[float, float]:
    """Seconds a round of a work: (minimum, median) over repeats of some rounds."""
    make, rounds = WORKS[name]
    run, state = make()
    jax.block_until_ready(run(state, jax.random.key(0), rounds))
    times = []
    for repeat in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(run(state, jax.random.key(repeat), rounds))
        times.append((time.perf_counter() - start) / rounds)
    return min(times), statistics.median(times)


if __name__ == "__main__":
    for work in sys.argv[1:] or ["w1", "w2", "w3"]:
        best, middle = measure(work, 2 if work == "w2-lax" else 7)
        print(f"{work:8} min {1e3 * best:10.3f} ms  median {1e3 * middle:10.3f} ms  a round", flush=True)
