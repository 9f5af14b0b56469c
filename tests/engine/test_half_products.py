"""Products in bfloat16, against gradients written in NumPy whose operands are rounded by hand."""

from __future__ import annotations

import re

import jax
import jax.export
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.xla.direct import direct
from fedsolve.core.xla.products import with_half_products
from fedsolve.deploy.oracles.jax import JaxOracle

RNG = np.random.default_rng(0)
CLIENTS = [fs.Examples(RNG.normal(size=(n, 6)).astype("f"), RNG.normal(size=n).astype("f")) for n in (4, 3)]
START = {
    "a": RNG.normal(size=(6, 5)).astype("f"),
    "b": RNG.normal(size=5).astype("f"),
    "c": RNG.normal(size=5).astype("f"),
}
LR = 0.1


def loss(w, batch):
    """Two layers, the first under `jax.checkpoint`: 2 products forward, 3 backward."""
    hidden = jax.checkpoint(lambda x: jnp.tanh(x @ w["a"] + w["b"]))(batch.x)
    return (hidden @ w["c"] - batch.y) ** 2


def r(a):
    return a.astype(ml_dtypes.bfloat16).astype(np.float64)


def step(w, batch):
    """A step of gradient descent; products of rounded numbers, everything else as it is."""
    hidden = np.tanh(r(batch.x) @ r(w["a"]) + w["b"])
    error = 2 * (r(hidden) @ r(w["c"]) - batch.y) / len(batch.y)
    inner = np.outer(r(error), r(w["c"])) * (1 - hidden**2)
    gradient = {"a": r(batch.x).T @ r(inner), "b": inner.sum(0), "c": r(hidden).T @ r(error)}
    return {name: w[name] - LR * gradient[name] for name in w}


@pytest.mark.full
def test_a_round_of_rounded_products():
    """Uneven clients, a step each; where float32 would be, 1/1000 away, is seen to be elsewhere."""
    task = fs.Task.from_arrays(loss, START, CLIENTS, batch_size=None)
    method = fs.FedAvg(LR, weighting="uniform")
    half, whole = (
        fs.run(method, task, rounds=1, matmul_dtype=matmul_dtype).params
        for matmul_dtype in ("bfloat16", None)
    )
    ends = [step(START, client) for client in CLIENTS]
    for name, start in START.items():
        expected = np.mean([end[name] for end in ends], axis=0) - start
        size = np.abs(expected).max()
        assert half[name].dtype == jnp.float32
        np.testing.assert_allclose(half[name] - start, expected, atol=2e-5 * size)
        assert np.abs(whole[name] - half[name]).max() > 1e-3 * size


def test_loops_convolutions_and_branches():
    """As casting by hand where the products are; what has an own derivative (relu) keeps it."""

    def written(cast, conv_cast):
        def f(w, x):
            def step(h, row):
                return jax.nn.relu(cast(h, w) + row), None

            h = jax.lax.scan(step, x[:, 0], jnp.swapaxes(x, 0, 1))[0]
            h = jax.lax.cond(h[0, 0] > 0, lambda: cast(h, w), lambda: h)
            kernel = jnp.reshape(w[:3, :2], (3, 1, 2))
            return jnp.sum(conv_cast(h[:, :, None], kernel)) + jnp.sum(w)

        return f

    def conv(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (1,), "VALID", dimension_numbers=("NHC", "HIO", "NHC"))

    def low(a):
        return a.astype(jnp.bfloat16)

    plain = written(lambda h, w: h @ w, conv)
    by_hand = written(
        lambda h, w: jnp.matmul(low(h), low(w), preferred_element_type=jnp.float32),
        lambda h, k: conv(low(h), low(k)).astype(jnp.float32),
    )
    w, x = (0.3 * RNG.normal(size=shape).astype("f") for shape in ((4, 4), (2, 3, 4)))
    found = jax.jit(jax.vmap(with_half_products(plain), in_axes=(0, None)))(np.stack([w, -w]), x)
    np.testing.assert_array_equal(found, jax.jit(jax.vmap(by_hand, in_axes=(0, None)))(np.stack([w, -w]), x))
    assert abs(float(found[0]) - float(plain(w, x))) > 1e-5


def test_direct_convolutions():
    """Operands rounded, sums in float32, forward and backward."""
    x, kernel = (jnp.asarray(RNG.normal(size=s), jnp.float32) for s in ((2, 4, 4, 3), (3, 3, 3, 16)))

    def found(x, kernel):
        return jnp.sum(direct(x, kernel, strides=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1)))

    def low(a):
        return np.asarray(a.astype(jnp.bfloat16).astype(jnp.float32))

    value, (of_x, of_kernel) = jax.jit(with_half_products(jax.value_and_grad(found, (0, 1))))(x, kernel)
    want, (want_x, want_kernel) = jax.jit(jax.value_and_grad(found, (0, 1)))(low(x), low(kernel))
    np.testing.assert_allclose(
        (value, *of_x.ravel(), *of_kernel.ravel()),
        (want, *want_x.ravel(), *want_kernel.ravel()),
        rtol=1e-5,
        atol=1e-5,
    )
    assert abs(value - found(x, kernel)) > 1e-4 * abs(value)


def test_direct_convolutions_on_a_gpu(monkeypatch):
    """There the products of patches are of bfloat16 numbers, in all three directions."""
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((2, 4, 4, 3), (3, 3, 3, 16))]

    def found(x, kernel):
        return jnp.sum(direct(x, kernel, strides=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1)) ** 2)

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    half = jax.jit(with_half_products(jax.grad(found, (0, 1))))
    text = jax.export.export(half, platforms=["cuda"])(*shapes).mlir_module()
    products = re.findall(r"stablehlo.dot_general .*: (.*)", text)
    assert len(products) == 3
    assert all(types.count("bf16>") >= 2 for types in products)


def test_not_in_float64():
    task = fs.Task.from_arrays(loss, START, CLIENTS)
    with pytest.raises(fs.InvalidInput, match=r"matmul_dtype = 'bfloat16' in a run of dtype = 'float64'"):
        fs.run(fs.FedAvg(LR), task, rounds=1, matmul_dtype="bfloat16", dtype="float64")
    with pytest.raises(fs.InvalidInput, match="matmul_dtype = 'half' must be 'bfloat16'"):
        JaxOracle.of_task(task, 0, matmul_dtype="half")
    problem = JaxOracle.of_task(task, 0, matmul_dtype="bfloat16")
    with jax.enable_x64(True), pytest.raises(fs.InvalidInput, match="the federation runs in float64"):
        problem.begin(jax.random.key(0), 0, "float64")


def test_a_deployed_client_rounds_the_same():
    """One step of the client of four examples, as the round above has it."""
    problem = JaxOracle(loss, START, CLIENTS[0], batch_size=None, epochs=1, matmul_dtype="bfloat16")
    _, gradient = jax.jit(lambda o, w: o(w, 0))(problem.begin(jax.random.key(0), 0, "float32"), START)
    expected = step(START, CLIENTS[0])
    for name, start in START.items():
        moved = expected[name] - start
        np.testing.assert_allclose(-LR * gradient[name], moved, atol=2e-5 * np.abs(moved).max())
