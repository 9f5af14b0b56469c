"""The CPU forms of convolution and pooling against XLA's own operations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedsolve.core.xla.convolutions import conv, max_pool2x2

SHAPES = [
    (2, 10, 12, 8, 16),
    (3, 8, 8, 1, 5),
    (2, 7, 9, 8, 9),
    (1, 4, 4, 32, 33),
    (2, 3, 3, 2, 2),
    (4, 28, 28, 1, 32),
]


def layer(x, kernel, bias):
    return conv(x, kernel) + bias


def reference(x, kernel, bias):
    dims = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=dims) + bias


def reference_pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def arrays(shape, dtype, seed=0):
    n, h, w, c, out = shape
    rng = np.random.default_rng(seed)
    x, kernel = rng.normal(size=(n, h, w, c)), rng.normal(size=(3, 3, c, out)) / np.sqrt(9 * c)
    return tuple(jnp.asarray(a, dtype) for a in (x, kernel, rng.normal(size=out)))


def value_and_gradients(function, args, target):
    def loss(*args):
        return jnp.mean((function(*args) - target) ** 2)

    both = jax.jit(lambda args: (function(*args), jax.grad(lambda a: loss(*a))(args)))
    return both(args)


def assert_close(a, b, tol):
    for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert u.shape == v.shape
        assert u.dtype == v.dtype
        np.testing.assert_allclose(u, v, rtol=tol, atol=tol)


@pytest.mark.full_rows("float64-1e-12-shape2", "float64-1e-12-shape5")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("dtype", "tol"), [pytest.param("float32", 1e-5, marks=pytest.mark.full), ("float64", 1e-12)]
)
def test_convolution_and_its_gradients(shape, dtype, tol):
    with jax.enable_x64(dtype == "float64"):
        args = arrays(shape, dtype)
        target = jnp.asarray(np.random.default_rng(9).normal(size=reference(*args).shape), dtype)
        assert_close(
            value_and_gradients(layer, args, target), value_and_gradients(reference, args, target), tol
        )


@pytest.mark.full
@pytest.mark.parametrize("shape", SHAPES[:2])
def test_vmap_over_clients_with_their_own_kernels(shape):
    clients = [arrays(shape, "float32", seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *clients)

    def gradients(function):
        return jax.value_and_grad(lambda args: jnp.mean(jnp.sin(function(*args))))

    together = jax.jit(jax.vmap(gradients(layer)))(stacked)
    alone = jax.jit(gradients(reference))
    for i, args in enumerate(clients):
        assert_close(jax.tree.map(lambda leaf, i=i: leaf[i], together), alone(args), 1e-5)


@pytest.mark.parametrize("shape", [(2, 8, 6, 3), (1, 24, 24, 64), (2, 7, 5, 2)])
def test_pooling_and_its_gradient(shape):
    x = jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32)
    target = jnp.ones(reference_pool(x).shape)
    assert_close(
        value_and_gradients(max_pool2x2, (x,), target),
        value_and_gradients(reference_pool, (x,), target),
        1e-7,
    )


def test_tied_windows_share_the_gradient():
    gradient = jax.grad(lambda x: max_pool2x2(x).sum())(jnp.ones((1, 2, 2, 1)))
    np.testing.assert_allclose(gradient, 0.25)
