"""Products of clients side by side as sums and of rows: the same numbers, in the programs that rounds run."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedsolve as fs
from fedsolve.core.xla import products as client_products
from fedsolve.core.xla.compiler import all_equations
from fedsolve.core.xla.products import with_client_products
from fedsolve.tasks import MLP, CrossEntropy
from harness import crossed

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
        assert over_examples(with_client_products(gradients), w, x) == 0
        found = jax.jit(with_client_products(gradients))(w, x)
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
    assert over_examples(with_client_products(inside), w, x) == 0
    found = jax.jit(with_client_products(inside))(w, x)
    np.testing.assert_allclose(found, jax.jit(inside)(w, x), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("shared", "common", "sums"), [(True, 1, 1), (False, 1, 0), (False, 2, 1)])
def test_trials(shared, common, sums):
    """Two trials of each client, as a sweep has them, on the same examples or on each its own."""
    w, x = given(5)
    ws, xs = jnp.stack([w, -w], axis=1), x if shared else jnp.stack([x, 2 * x], axis=1)
    of_trials = jax.vmap(
        jax.vmap(jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w))), (0, None if shared else 0))
    )
    summed = with_client_products(of_trials, common)
    assert products(of_trials, ws, xs) - products(summed, ws, xs) == sums
    found = jax.jit(summed)(ws, xs)
    np.testing.assert_allclose(found[:, 1], gradients(-w, x if shared else 2 * x), rtol=0, atol=1e-5)


def wide(x, y):
    """A product that adds up in float32."""
    return lax.dot_general(x, y, (((1,), (1,)), ((0,), (0,))), preferred_element_type=jnp.float32)


def test_products_that_stay():
    """Many terms or none, a small result, other axes, and sums of another type than the factors."""
    few = jnp.ones((CLIENTS, 10, INPUTS))
    assert over_examples(with_client_products(wide), few, few) == 0
    assert over_examples(with_client_products(gradients), *given(17)) == 1
    assert over_examples(with_client_products(wide), few[:, :0], few[:, :0]) == 1
    assert products(with_client_products(jnp.matmul), few[..., :12], jnp.ones((CLIENTS, 12, INPUTS))) == 1
    small = jnp.ones((CLIENTS, 10, 9))
    assert over_examples(with_client_products(wide), small, few) == 1
    assert over_examples(with_client_products(wide), few.astype(jnp.bfloat16), few.astype(jnp.bfloat16)) == 1


def columns(w, x):
    """w times the examples of each client, as columns."""
    return jax.vmap(lambda x: jnp.tanh(w @ x.T))(x)


def turned(function, *arguments):
    """How many products of one factor for all clients have each client's examples as columns, or in another order."""
    found = all_equations(jax.make_jaxpr(function)(*arguments))
    return sum(e.primitive.name == "dot_general" and e.invars[1].aval.ndim == 3 for e in found)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(), (OUTPUTS,), (2, OUTPUTS)])
@pytest.mark.parametrize("nested", [False, True])
def test_rows_of_all_clients(dtype, shape, nested):
    """Of a vector, a matrix and two trials' matrices that all clients share."""
    with jax.enable_x64(dtype == "float64"):
        w = jnp.asarray(RNG.normal(size=(*shape, INPUTS)), dtype)
        x = jnp.asarray(RNG.normal(size=(CLIENTS, 7, INPUTS)), dtype)
        function = jax.jit(columns) if nested else columns
        assert (turned(function, w, x), turned(with_client_products(function), w, x)) == (1, 0)
        found = jax.jit(with_client_products(function))(w, x)
        expected = np.tanh(np.einsum("...k,cnk->c...n", np.float64(w), np.float64(x)))
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 if dtype == "float64" else 1e-5)


def test_products_that_stay_of_all_clients():
    """Of columns that lie so, of axes that are turned in another way, of no examples, and over other axes."""
    w = jnp.asarray(RNG.normal(size=(OUTPUTS, INPUTS)), "float32")
    x = jnp.asarray(RNG.normal(size=(INPUTS, INPUTS, INPUTS)), "float32")
    over = (((1,), (1,)), ((), ()))
    for given, product in (
        (x, lambda w, x: lax.dot_general(w, x, over)),
        (x, lambda w, x: lax.dot_general(w, x.transpose(2, 1, 0), over)),
        (x, lambda w, x: lax.dot_general(w, x.transpose(0, 2, 1), (((1,), (2,)), ((), ())))),
        (x[:0], lambda w, x: lax.dot_general(w, x.transpose(0, 2, 1), over)),
    ):
        assert turned(with_client_products(product), w, given) == 1
        expected = product(w, given)
        np.testing.assert_allclose(with_client_products(product)(w, given), expected, rtol=0, atol=1e-4)


def test_a_product_of_rows_has_the_precision_of_that_of_columns():
    def exact(w, x):
        return jax.vmap(lambda x: jnp.matmul(w, x.T, precision="highest", preferred_element_type="float32"))(
            x
        )

    few = jnp.ones((CLIENTS, 7, INPUTS), "bfloat16")
    found = all_equations(jax.make_jaxpr(with_client_products(exact))(few[0], few))
    (product,) = (e for e in found if e.primitive.name == "dot_general")
    assert product.invars[1].aval.shape == (CLIENTS * 7, INPUTS)
    assert product.params["preferred_element_type"] == jnp.float32
    assert product.params["precision"] == (lax.Precision.HIGHEST, lax.Precision.HIGHEST)


def test_what_has_none_stays_the_same_program():
    """A function that is called twice is traced, and then compiled, once: it must stay one object."""
    called = jax.jit(jnp.tanh)
    program = jax.make_jaxpr(with_client_products(lambda x: called(x) + called(2 * x)))(jnp.ones(3))
    once, again = (e.params["jaxpr"] for e in program.eqns if "jaxpr" in e.params)
    assert once is again


def test_on_another_device_nothing_changes(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert with_client_products(gradients) is gradients


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


@pytest.mark.full
@pytest.mark.parametrize(("chunk", "sums"), crossed([(None, 2), (2, 2), (1, 0)], [(2, 2)]))
def test_rounds_of_uneven_clients(chunk, sums, monkeypatch):
    """All clients side by side, in twos and alone, against NumPy; alone, products stay."""
    seen, usual = [], client_products._outer_products

    def counted(x, y):
        seen.append(x.shape)
        return usual(x, y)

    monkeypatch.setattr(client_products, "_outer_products", jax.jit(counted))
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


@pytest.mark.parametrize("chunk", [None, 2])
def test_one_step_of_uneven_clients(chunk, monkeypatch):
    """Of softmax regression, whose product with all examples is one of rows, against NumPy."""
    seen, usual = [], client_products._product_of_rows

    def counted(x, rows, **given):
        seen.append(rows.shape)
        return usual(x, rows, **given)

    options = ("precision", "preferred_element_type")
    monkeypatch.setattr(client_products, "_product_of_rows", jax.jit(counted, static_argnames=options))
    model, rng = fs.tasks.Softmax(INPUTS, 4), np.random.default_rng(1)
    clients = [fs.Examples(rng.normal(size=(n, INPUTS)), rng.integers(4, size=n)) for n in (7, 3, 12, 5)]
    task = fs.Task.from_arrays(CrossEntropy(model), model.init(None), clients, batch_size=None)
    options = {"rounds": 3, "local_steps": 1, "chunk": chunk, "devices": 1, "dtype": "float64"}
    found = fs.run(fs.FedAvg(0.5, weighting="examples"), task, **options).params
    w, b = np.zeros((4, INPUTS)), np.zeros(4)
    x, y = np.concatenate([c.x for c in clients]), np.concatenate([c.y for c in clients])
    for _ in range(3):  # weighted by examples, the mean of the clients' steps is that of all
        powers = np.exp(x @ w.T + b)
        slope = (powers / powers.sum(1, keepdims=True) - np.eye(4)[y]) / len(y)
        w, b = w - 0.5 * slope.T @ x, b - 0.5 * slope.sum(0)
    np.testing.assert_allclose(found.weight, w, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.bias, b, rtol=0, atol=1e-12)
    assert seen == [(chunk or 4, 12, INPUTS)]
