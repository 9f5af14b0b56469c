"""Leaves of 16 and 8 bits: stored as they are, computed with in the run's type, given back in their own types."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.xla.narrow import Narrow, with_late_widening
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.engine.compute.clients import frozen_on_device
from fedsolve.tasks.leaf_types import in_int8

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(4, 3)).astype(np.float32), RNG.normal(size=(4, 2)).astype(np.float32)
CLIENTS = [(X, Y), (X[:2], -Y[:2])]
BODY = {"bias": RNG.normal(size=4), "weight": RNG.normal(size=(3, 4))}
HEAD = {"bias": RNG.normal(size=2), "weight": RNG.normal(size=(4, 2))}
BF16, F16, F32 = jnp.bfloat16, np.float16, np.float32
GIVEN = {"rounds": 2, "eval_every": 1, "batch_size": 2}


def predict(model, x):
    hidden = jnp.tanh(x @ model["body"]["weight"] + model["body"]["bias"])
    return hidden @ model["head"]["weight"] + model["head"]["bias"]


def squared(model, batch):
    return jnp.mean((predict(model, batch[0]) - batch[1]) ** 2)


def cast(tree, dtype):
    return jax.tree.map(lambda a: np.asarray(a, np.float32).astype(dtype), tree)


def task(body, head=F32, frozen_dtype=None, freeze=("body.*",)):
    model = {"body": cast(BODY, body) if isinstance(body, type) else body, "head": cast(HEAD, head)}
    made = fs.Task.from_arrays(
        squared, model, CLIENTS, test=(X, Y), freeze=freeze, frozen_dtype=frozen_dtype, predict=predict
    )
    return made, model


def by_hand(matrix):
    """A matrix rounded to int8 and back."""
    scale = np.abs(matrix).max(axis=1, keepdims=True) / 127
    return (np.round(matrix / scale) * scale).astype(np.float32)


def types(tree):
    return [str(x.dtype) for x in jax.tree.leaves(tree)]


def on_device(frozen):
    """The bits of a number of each array there."""
    return [8 * x.dtype.itemsize for x in jax.tree.leaves(frozen_on_device(frozen, np.float32))]


def check_same(found, wanted):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a, np.float64), np.asarray(b, np.float64))


@pytest.mark.parametrize(
    ("body", "head", "frozen_dtype", "stored"),
    [
        (F16, BF16, None, [16, 16]),
        pytest.param(F32, F32, "int8", [32, 8, 32], marks=pytest.mark.full),
        pytest.param(F16, F32, "bfloat16", [16, 16], marks=pytest.mark.full),
    ],
)
def test_a_run_is_that_of_the_widened_model(body, head, frozen_dtype, stored, tmp_path):
    """Stored as it says; numbers are those of a float32 model of the same values; what comes back is rounded once."""
    made, model = task(body, head, frozen_dtype)
    assert on_device(made.frozen) == stored
    assert types(made.init(jax.random.key(0))) == ["float32", "float32"]
    values = cast(model["body"], F32)
    if frozen_dtype == "int8":
        values["weight"] = by_hand(values["weight"])
    elif frozen_dtype:
        values = cast(cast(values, BF16), F32)
    widened, _ = task(values, F32)
    start = cast(cast(HEAD, head), F32)
    found = fs.run(fs.FedAvg(0.1), made, out=tmp_path, **GIVEN)
    wanted = fs.run(fs.FedAvg(0.1), widened, start={"body": values, "head": start}, **GIVEN)
    for name in ("train_loss", "test_loss", "client_loss_worst"):
        np.testing.assert_allclose(found.metrics[name], wanted.metrics[name], rtol=1e-6)
    assert types(found.params) == types(model)
    np.testing.assert_allclose(
        np.asarray(found.params["head"]["weight"], F32),
        np.asarray(wanted.params["head"]["weight"]).astype(head).astype(F32),
        rtol=1e-6 if head == F32 else 8e-3,
    )
    check_same(found.params["body"], cast(values, body))
    np.testing.assert_array_equal(found.rounds["bytes_up"], wanted.rounds["bytes_up"])
    check_same(fs.load(tmp_path, made).params, found.params)
    np.testing.assert_array_equal(fs.load(tmp_path, made).predict(X), found.predict(X))
    longer = fs.run(fs.FedAvg(0.1), made, out=tmp_path, resume=True, **GIVEN | {"rounds": 3})
    again = fs.run(fs.FedAvg(0.1), made, start=found, **GIVEN | {"rounds": 1})
    assert again.metrics["test_loss"][0] == pytest.approx(longer.metrics["test_loss"][2], rel=1e-3)


def test_all_leaves_of_16_bits_train():
    """The run has float32 copies: steps far below the spacing of bfloat16 add up."""
    model = {"w": np.ones(3, BF16)}
    made = fs.Task.from_arrays(lambda m, b: jnp.mean(b @ m["w"]), model, [np.ones((2, 3), F32)])
    found = fs.run(fs.FedAvg(2.0**-10), made, rounds=16, batch_size=2)
    np.testing.assert_array_equal(np.asarray(found.params["w"], F32), np.full(3, 1 - 2.0**-6))
    assert types(found.params) == ["bfloat16"]


@pytest.mark.parametrize("shape", [(5, 7), (3, 2, 4), (2, 0)])
def test_int8_is_within_half_a_scale(shape):
    matrix = RNG.normal(size=shape).astype(F32) * np.arange(shape[0]).reshape(-1, *(1,) * (len(shape) - 1))
    stored = in_int8(matrix)  # the first row is 0
    assert stored.values.dtype == np.int8
    assert np.abs(stored.values.astype(int)).max(initial=0) <= 127
    assert stored.scale.shape == (shape[0], *(1,) * (len(shape) - 1))
    assert np.all(np.abs(stored.values * stored.scale - matrix) <= stored.scale / 2 * (1 + 1e-5))
    if matrix.size:
        flat = np.abs(matrix.reshape(shape[0], -1)).max(1)
        np.testing.assert_allclose(stored.scale.ravel()[1:], flat[1:] / 127, rtol=1e-6)
        assert np.all(np.abs(stored.values.reshape(shape[0], -1)[1:].astype(int)).max(1) == 127)


def test_a_client_of_its_own_has_the_same_gradient_and_tells_its_frozen_leaves():
    made, _ = task(BF16, F32, "int8")
    values = cast(cast(BODY, BF16), F32)
    widened, _ = task({**values, "weight": by_hand(values["weight"])})
    one, other = (JaxOracle.of_task(t, 0) for t in (made, widened))
    start = made.init(jax.random.key(0))
    (loss, slope), (wanted, gradient) = (
        o.begin(jax.random.key(3), 0, jnp.float32)(start, 0) for o in (one, other)
    )
    np.testing.assert_allclose(loss, wanted, rtol=1e-6)
    np.testing.assert_allclose(slope["head"]["weight"], gradient["head"]["weight"], rtol=1e-5)
    assert {str(x.dtype) for name, x in one.constants.items() if "body" in name} == {
        "bfloat16",
        "int8",
        "float32",
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"frozen_dtype": "int4"}, "unknown type of frozen leaves 'int4'.* int8"),
        ({"frozen_dtype": "int8", "freeze": ()}, "frozen_dtype = 'int8' and no leaf is frozen: name some"),
        (
            {"body": {**BODY, "bias": np.full(4, np.inf)}, "frozen_dtype": "bfloat16"},
            "bias has a number that",
        ),
        (
            {"body": {**BODY, "bias": np.full(4, 1e5)}, "frozen_dtype": "float16"},
            "body.bias has a number that",
        ),
    ],
)
def test_what_cannot_be_stored(given, words):
    with pytest.raises(fs.InvalidInput, match=words) as error:
        task(**{"body": F32, **given})
    assert "\n" not in str(error.value)


def test_a_file_of_bfloat16_by_another_program_begins_a_run(tmp_path):
    from safetensors.numpy import save_file

    made, _ = task(F32)
    model = {"body": cast(BODY, F32), "head": cast(cast(HEAD, BF16), F32)}
    names = {f"{part}.{name}": a for part, leaves in model.items() for name, a in leaves.items()}
    save_file({n: a.astype(BF16) if "head" in n else a for n, a in names.items()}, tmp_path / "a.safetensors")
    found, wanted = (
        fs.run(fs.FedAvg(0.1), made, start=start, **GIVEN) for start in (tmp_path / "a.safetensors", model)
    )
    np.testing.assert_array_equal(found.metrics["test_loss"], wanted.metrics["test_loss"])


# Modules of PyTorch.

LABELS = np.array([0, 1, 1, 0])


def network(body, head):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    module[0].to(getattr(torch, body)).requires_grad_(False)
    module[2].to(getattr(torch, head))
    return module


@pytest.mark.parametrize(
    ("body", "head", "frozen_dtype"),
    [pytest.param("bfloat16", "bfloat16", None, marks=pytest.mark.full), ("float16", "float16", "int8")],
)
def test_a_module_of_16_bits_is_compared_widened_and_comes_back_in_its_types(
    body, head, frozen_dtype, tmp_path
):
    import torch

    module, reference = network(body, head), network(body, head).float()
    if frozen_dtype:
        reference[0].weight.data = torch.tensor(by_hand(reference[0].weight.numpy()))
    made, wide = (
        fs.tasks.from_torch(
            m, torch.nn.functional.cross_entropy, [(X, LABELS)], batch_size=2, translate=True, **given
        )
        for m, given in ((module, {"frozen_dtype": frozen_dtype}), (reference, {}))
    )
    stored = [16, 16] if frozen_dtype is None else [16, 8, 32]
    assert on_device(made.frozen) == stored
    assert any("rounded to int8" in note for note in made.notes) == (frozen_dtype is not None)
    found, wanted = (
        fs.run(fs.FedAvg(0.1), t, out=tmp_path / str(i), **GIVEN) for i, t in enumerate((made, wide))
    )
    np.testing.assert_allclose(found.metrics["train_loss"], wanted.metrics["train_loss"], rtol=1e-6)
    after, other = found.module().state_dict(), wanted.module().state_dict()
    for name, tensor in after.items():
        assert tensor.dtype == module.state_dict()[name].dtype
        torch.testing.assert_close(tensor.float(), other[name].to(tensor.dtype).float(), rtol=1e-3, atol=1e-6)
    sent = {name: a for name, a in found.params.items() if name not in made.frozen}
    for name, tensor in made.module(sent).state_dict().items():  # as a server has them
        assert torch.equal(tensor, after[name])
    assert types(found.params) == [body] * 4
    for loaded in (fs.load(tmp_path / "0", made), fs.load(tmp_path / "0", module=module)):
        np.testing.assert_array_equal(loaded.predict(X, scores=True), found.predict(X, scores=True))
    with torch.no_grad():
        direct = found.module()(torch.tensor(X, dtype=getattr(torch, body))).float().numpy()
    np.testing.assert_array_equal(found.predict(X, scores=True), direct)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"translate": False}, "frozen_dtype = 'int8': the module runs in PyTorch.*leave it out"),
        ({"all": True}, "no leaf is frozen: set requires_grad = False"),
    ],
)
def test_modules_whose_leaves_cannot_be_stored_so(given, words):
    torch = pytest.importorskip("torch")
    module = network("float32", "float32").requires_grad_("all" in given)
    module[2].requires_grad_()
    with pytest.raises(fs.InvalidInput, match=words):
        fs.tasks.from_torch(
            module,
            torch.nn.functional.cross_entropy,
            [(X, LABELS)],
            frozen_dtype="int8",
            translate=given.get("translate"),
        )


# Programs widen narrow arrays where they use them.

STORED = {"bfloat16": BF16, "float16": F16, "int8": None}


def layers(kind, count, size):
    wide = [np.asarray(RNG.normal(size=(size, size)) / size**0.5, F32) for _ in range(count)]
    return [in_int8(w) if kind == "int8" else Narrow.of_half(w.astype(STORED[kind])) for w in wide]


def network_of(weights, params, tokens):
    """An embedding, products by weights and transposed ones, a loop over stacked layers, one computed again."""
    table, first, *rest = weights
    hidden = table[tokens] * params

    def layer(hidden, weight):
        return jnp.tanh(hidden @ weight.T), None

    hidden, _ = jax.lax.scan(layer, hidden @ first, jnp.stack(rest))
    hidden = jax.checkpoint(lambda h, w: jnp.tanh(w @ h.T).T)(hidden, first)
    return jnp.mean((hidden @ table.T).astype(jnp.bfloat16).astype(F32) ** 2)


KINDS = ["bfloat16", pytest.param("float16", marks=pytest.mark.full), "int8"]


@pytest.mark.parametrize("kind", KINDS)
def test_narrow_arrays_give_the_numbers_of_wide_ones(kind):
    """Also for models side by side, of which one has left the finite numbers."""
    weights, tokens = layers(kind, 4, 8), np.array([1, 5, 2])
    params = jnp.asarray(RNG.normal(size=(3, 8)), F32).at[0].set(np.nan)
    gradient = jax.value_and_grad(network_of, argnums=1)
    wide = [w.widened(F32) for w in weights]
    late = with_late_widening(gradient, F32)
    found, wanted = (
        jax.jit(jax.vmap(lambda p, f=f, w=w: f(w, p, tokens)))(params)
        for f, w in ((late, weights), (gradient, wide))
    )
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert np.isfinite(found[0][1:]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_no_wide_copy_stays_in_memory(kind):
    """Of a loop over steps, in whose gradient each layer is used twice."""
    weights = layers(kind, 8, 128)

    def value(weights, params, row):
        for w in weights:
            params = jnp.tanh(w @ params)
        return jnp.mean(params * row)

    def memory(function, weights):
        def steps(params, weights, rows):
            def step(p, row):
                return p - function(weights, p, row), None

            return jax.lax.scan(step, params, rows)[0]

        program = jax.jit(steps).lower(np.ones((128, 2), F32), weights, np.ones((3, 128, 2), F32))
        return program.compile().memory_analysis().temp_size_in_bytes

    gradient, one = jax.grad(value, argnums=1), 4 * 128**2
    least = memory(gradient, [w.widened(F32) for w in weights])
    assert memory(with_late_widening(gradient, F32), weights) < least + 3 * one
    assert memory(lambda w, *rest: gradient([x.widened(F32) for x in w], *rest), weights) > least + 7 * one
