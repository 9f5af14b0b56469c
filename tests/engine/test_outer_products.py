"""Products over few examples as sums: the same numbers, in the programs that rounds run."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedsolve as fs
from fedsolve.core.xla.products import outer_products
from fedsolve.core.xla.products.outer_products import with_outer_products
from fedsolve.core.xla.programs import all_equations
from fedsolve.tasks import MLP, CrossEntropy

RNG = np.random.default_rng(0)
CLIENTS, INPUTS, OUTPUTS = 3, 20, 18


def gradients(w, x):
    """Of sum(tanh(x w)) of each client: one product forward, one over the examples."""
    return jax.vmap(jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w))))(w, x)


def given(examples, dtype="float32"):
    w, x = RNG.normal(size=(CLIENTS, INPUTS, OUTPUTS)), RNG.normal(size=(CLIENTS, examples, INPUTS))
    return jnp.asarray(w, dtype), jnp.asarray(x, dtype)


def products(function, *arguments, over=None):
    """How many products a program has, over those axes of both factors."""
    found = [
        e.params["dimension_numbers"][0]
        for e in all_equations(jax.make_jaxpr(function)(*arguments))
        if e.primitive.name == "dot_general"
    ]
    return len(found) if over is None else found.count(over)


def over_examples(function, *arguments):
    """Those over the second axis of both factors."""
    return products(function, *arguments, over=((1,), (1,)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("examples", [1, 2, 16])
def test_sums_are_the_products(dtype, examples):
    with jax.enable_x64(dtype == "float64"):
        w, x = given(examples, dtype)
        assert over_examples(gradients, w, x) == 1
        assert over_examples(with_outer_products(gradients), w, x) == 0
        found = jax.jit(with_outer_products(gradients))(w, x)
        slopes = 1 - np.tanh(np.einsum("cki,cio->cko", x, w, dtype="float64")) ** 2
        expected = np.einsum("cki,cko->cio", np.float64(x), slopes)
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 if dtype == "float64" else 1e-5)


@pytest.mark.parametrize(
    "inside",
    [
        lambda w, x: lax.fori_loop(0, 2, lambda i, w: w - gradients(w, x), w),
        lambda w, x: lax.scan(lambda w, x: (w - gradients(w, x), None), w, x[None])[0],
        lambda w, x: lax.cond(x[0, 0, 0] > 9, lambda w: w, lambda w: gradients(w, x), w),
        lambda w, x: jax.jit(gradients)(w, x),
        lambda w, x: jax.checkpoint(gradients)(w, x),
    ],
)
def test_in_what_a_program_calls(inside):
    w, x = given(10)
    assert over_examples(inside, w, x) == 1
    assert over_examples(with_outer_products(inside), w, x) == 0
    found = jax.jit(with_outer_products(inside))(w, x)
    np.testing.assert_allclose(found, jax.jit(inside)(w, x), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("shared", "common", "sums"), [(True, 1, 1), (False, 1, 0), (False, 2, 1)])
def test_trials(shared, common, sums):
    """Two trials of each client, as a sweep has them, on the same examples or on each its own."""
    w, x = given(5)
    ws, xs = jnp.stack([w, -w], axis=1), x if shared else jnp.stack([x, 2 * x], axis=1)
    of_trials = jax.vmap(
        jax.vmap(jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w))), (0, None if shared else 0))
    )
    summed = with_outer_products(of_trials, common)
    assert products(of_trials, ws, xs) - products(summed, ws, xs) == sums
    found = jax.jit(summed)(ws, xs)
    np.testing.assert_allclose(found[:, 1], gradients(-w, x if shared else 2 * x), rtol=0, atol=1e-5)


def wide(x, y):
    """A product that adds up in float32."""
    return lax.dot_general(x, y, (((1,), (1,)), ((0,), (0,))), preferred_element_type=jnp.float32)


def test_products_that_stay():
    """Many terms or none, a small result, other axes, and sums of another type than the factors."""
    few = jnp.ones((CLIENTS, 10, INPUTS))
    assert over_examples(with_outer_products(wide), few, few) == 0
    assert over_examples(with_outer_products(gradients), *given(17)) == 1
    assert over_examples(with_outer_products(wide), few[:, :0], few[:, :0]) == 1
    assert products(with_outer_products(jnp.matmul), few[..., :12], jnp.ones((CLIENTS, 12, INPUTS))) == 1
    small = jnp.ones((CLIENTS, 10, 9))
    assert over_examples(with_outer_products(wide), small, few) == 1
    assert over_examples(with_outer_products(wide), few.astype(jnp.bfloat16), few.astype(jnp.bfloat16)) == 1


def test_what_has_none_stays_the_same_program():
    """A function that is called twice is traced, and then compiled, once: it must stay one object."""
    called = jax.jit(jnp.tanh)
    program = jax.make_jaxpr(with_outer_products(lambda x: called(x) + called(2 * x)))(jnp.ones(3))
    once, again = (e.params["jaxpr"] for e in program.eqns if "jaxpr" in e.params)
    assert once is again


def test_on_another_device_nothing_changes(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert with_outer_products(gradients) is gradients


def loss_gradient(params, x, y):
    """Of the mean cross-entropy of two layers, by hand."""
    (w1, b1), (w2, b2) = params
    before = x @ w1.T + b1
    hidden = np.maximum(before, 0)
    logits = hidden @ w2.T + b2
    powers = np.exp(logits - logits.max(1, keepdims=True))
    slope = (powers / powers.sum(1, keepdims=True) - np.eye(len(b2))[y]) / len(y)
    back = (slope @ w2) * (before > 0)
    return (back.T @ x, back.sum(0)), (slope.T @ hidden, slope.sum(0))


def moved(params, steps, lr):
    return [
        tuple(p - lr * s for p, s in zip(*layers, strict=True)) for layers in zip(params, steps, strict=True)
    ]


@pytest.mark.parametrize(("chunk", "sums"), [(None, 2), (2, 2), (1, 0)])
def test_rounds_of_uneven_clients(chunk, sums, monkeypatch):
    """All clients side by side, in twos and alone, against NumPy; alone, products stay."""
    seen, usual = [], outer_products._outer_products

    def counted(x, y):
        seen.append(x.shape)
        return usual(x, y)

    monkeypatch.setattr(outer_products, "_outer_products", jax.jit(counted))
    model, rng = MLP((INPUTS, OUTPUTS, 12)), np.random.default_rng(1)
    clients = [fs.Examples(rng.normal(size=(n, INPUTS)), rng.integers(12, size=n)) for n in (7, 3, 12, 5)]
    start = model.init(jax.random.key(0))
    task = fs.Task.from_arrays(CrossEntropy(model), start, clients, batch_size=None)
    method = fs.FedAvg(0.5, weighting="examples")
    found = fs.run(method, task, rounds=2, local_steps=3, chunk=chunk, devices=1, dtype="float64").params
    params = [tuple(np.float64(p) for p in layer) for layer in start]
    for _ in range(2):
        ends = []
        for client in clients:
            own = params
            for _ in range(3):
                own = moved(own, loss_gradient(own, client.x, client.y), 0.5)
            ends.append([p for layer in own for p in layer])
        sizes = np.array([len(client.y) for client in clients]) / 27
        means = [np.tensordot(sizes, np.stack(each), 1) for each in zip(*ends, strict=True)]
        params = [tuple(means[:2]), tuple(means[2:])]
    for layer, expected in zip(found, params, strict=True):
        for p, value in zip(layer, expected, strict=True):
            np.testing.assert_allclose(p, value, rtol=0, atol=1e-12)
    assert len(seen) == sums, seen
