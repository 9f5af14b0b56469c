"""Products of clients side by side, and those in bfloat16."""

import re

import jax
import jax.export
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import fedsolve as fs
from fedsolve.core.xla import products as client_products
from fedsolve.core.xla.compiler import all_equations
from fedsolve.core.xla.direct import direct
from fedsolve.core.xla.products import with_client_products, with_half_products
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.tasks import MLP, CrossEntropy
from harness import crossed

# Products of clients side by side as sums and of rows: the same numbers, in the programs that rounds run.

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


# Products in bfloat16, against gradients written in NumPy whose operands are rounded by hand.

HALF_CLIENTS = [
    fs.Examples(RNG.normal(size=(n, 6)).astype("f"), RNG.normal(size=n).astype("f")) for n in (4, 3)
]
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
    task = fs.Task.from_arrays(loss, START, HALF_CLIENTS, batch_size=None)
    method = fs.FedAvg(LR, weighting="uniform")
    half, whole = (
        fs.run(method, task, rounds=1, matmul_dtype=matmul_dtype).params
        for matmul_dtype in ("bfloat16", None)
    )
    ends = [step(START, client) for client in HALF_CLIENTS]
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
    task = fs.Task.from_arrays(loss, START, HALF_CLIENTS)
    with pytest.raises(fs.InvalidInput, match=r"matmul_dtype = 'bfloat16' in a run of dtype = 'float64'"):
        fs.run(fs.FedAvg(LR), task, rounds=1, matmul_dtype="bfloat16", dtype="float64")
    with pytest.raises(fs.InvalidInput, match="matmul_dtype = 'half' must be 'bfloat16'"):
        JaxOracle.of_task(task, 0, matmul_dtype="half")
    problem = JaxOracle.of_task(task, 0, matmul_dtype="bfloat16")
    with jax.enable_x64(True), pytest.raises(fs.InvalidInput, match="the federation runs in float64"):
        problem.begin(jax.random.key(0), 0, "float64")


def test_a_deployed_client_rounds_the_same():
    """One step of the client of four examples, as the round above has it."""
    problem = JaxOracle(loss, START, HALF_CLIENTS[0], batch_size=None, epochs=1, matmul_dtype="bfloat16")
    _, gradient = jax.jit(lambda o, w: o(w, 0))(problem.begin(jax.random.key(0), 0, "float32"), START)
    expected = step(START, HALF_CLIENTS[0])
    for name, start in START.items():
        moved = expected[name] - start
        np.testing.assert_allclose(-LR * gradient[name], moved, atol=2e-5 * np.abs(moved).max())
