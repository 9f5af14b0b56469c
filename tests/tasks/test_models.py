"""Models against NumPy, their parameter counts against the papers, and what they refuse."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core import introspect, trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.errors import InvalidInput
from fedsolve.core.trees import named_leaves
from fedsolve.core.types import reports
from fedsolve.core.xla.convolutions import max_pool2x2
from fedsolve.deploy import communication
from fedsolve.deploy.signature import float_type
from fedsolve.engine.compute.train import reduce_stacked
from fedsolve.tasks.leaves import split_leaves
from fedsolve.tasks.models.models import CNN, MLP, Affine, Linear, MatrixLinear, Softmax, check_model
from harness import crossed

KEY = jax.random.key(0)
MODELS = [
    Linear(6),
    Linear(6, bias=True),
    MatrixLinear(2, 3, bias=True),
    Softmax(6, 3),
    MLP((6, 5, 3)),
    CNN(5, 8, 9, (2, 3), 4, inputs=2),
]


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_convex_models_start_at_zero_and_are_affine():
    x = normal(0, 4, 6)
    assert not Linear(6).init(KEY).weight.any()
    assert len(jax.tree.leaves(Linear(6).init(KEY))) == 1
    w, b = normal(1, 6), np.float32(0.5)
    np.testing.assert_allclose(Linear(6)(Affine(w, None), x), x @ w, rtol=1e-5)
    np.testing.assert_allclose(Linear(6, bias=True)(Affine(w, b), x), x @ w + b, rtol=1e-5)
    assert all(not leaf.any() for leaf in jax.tree.leaves(Softmax(6, 3).init(KEY)))
    w, b = normal(1, 6, 3), normal(2, 3)
    images = x.reshape(4, 2, 3)
    np.testing.assert_allclose(Softmax(6, 3)(Affine(w.T, b), images), x @ w + b, rtol=1e-5, atol=1e-6)


def test_matrix_linear_is_the_inner_product_of_matrices():
    x, w, b = normal(0, 5, 3, 4), normal(1, 3, 4), np.float32(0.5)
    expected = np.einsum("nij,ij->n", x, w)
    np.testing.assert_allclose(MatrixLinear(3, 4)(Affine(w, None), x), expected, rtol=1e-5)
    np.testing.assert_allclose(MatrixLinear(3, 4, bias=True)(Affine(w, b), x), expected + b, rtol=1e-5)
    start = MatrixLinear(3, 4, bias=True).init(KEY)
    assert (start.weight.shape, start.bias.shape) == ((3, 4), ())
    assert not any(leaf.any() for leaf in jax.tree.leaves(start))
    assert len(jax.tree.leaves(MatrixLinear(3, 4).init(KEY))) == 1


def test_matrix_linear_refuses_transposed_matrices():
    with pytest.raises(InvalidInput, match=r"does not take examples of shape \(4, 3\)"):
        check_model(MatrixLinear(3, 4), (4, 3), ())


def test_mlp_is_relu_layers_with_an_affine_output():
    model = MLP((6, 5, 4, 3))
    params = [Affine(normal(i, b, a), normal(9 + i, b)) for i, (a, b) in enumerate([(6, 5), (5, 4), (4, 3)])]
    x = normal(3, 7, 6)
    h = x
    for w, b in params[:2]:
        h = np.maximum(h @ w.T + b, 0)
    expected = h @ params[2].weight.T + params[2].bias
    assert (expected < 0).any()
    np.testing.assert_allclose(model(tuple(params), x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_he_weights_have_variance_two_over_fan_in():
    """200 x 300 weights of variance 2 / 200 = .01: the sample variance is within 2 % (4 standard errors)."""
    first, second = jax.device_get(jax.jit(MLP((200, 300, 10)).init)(KEY))
    assert abs(float(first.weight.var()) - 0.01) < 2e-4
    assert not first.bias.any()
    assert not np.array_equal(first.weight[:10, 0], second.weight[:10, 0])
    conv = jax.jit(lambda key: CNN(channels=(32, 64)).init(key).conv2.weight)(KEY)
    assert abs(float(conv.var()) * 9 * 32 / 2 - 1) < 0.05


@pytest.mark.full
def test_cnn_has_the_parameters_of_the_paper():
    """320 + 18,496 + 1,179,776 + 7,998: Table 5 of Takakura et al. 2025."""
    params = CNN().init(KEY)
    assert [trees.size(layer) for layer in params] == [320, 18_496, 1_179_776, 7_998]
    assert params.conv1.weight.shape == (3, 3, 1, 32)
    assert params.hidden.weight.shape == (128, 64 * 12 * 12)


def test_max_pool_takes_the_largest_of_each_block_and_drops_an_odd_line():
    x = np.arange(2 * 5 * 4 * 3).reshape(2, 5, 4, 3).astype(np.float32)
    x = np.random.default_rng(0).permutation(x.ravel()).reshape(x.shape)
    expected = np.stack(
        [[x[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max((1, 2)) for j in range(2)] for i in range(2)]
    )
    np.testing.assert_array_equal(max_pool2x2(x), expected.transpose(2, 0, 1, 3))


@pytest.mark.full
def test_cnn_is_its_four_layers():
    model = CNN(5, 8, 9, (2, 3), 4, inputs=2)
    params = jax.tree.map(lambda a: np.asarray(a) + np.float32(0.1), jax.jit(model.init)(KEY))
    x = normal(0, 3, 8, 9, 2)

    def conv(x, layer):
        y = jax.lax.conv_general_dilated(
            x, layer.weight, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.maximum(y + layer.bias, 0)

    @jax.jit
    def both(params, x):
        h = conv(conv(x, params.conv1), params.conv2)
        h = jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        h = jnp.maximum(h.reshape(3, -1) @ params.hidden.weight.T + params.hidden.bias, 0)
        return model(params, x), h @ params.output.weight.T + params.output.bias

    np.testing.assert_allclose(*both(params, x), rtol=2e-4, atol=1e-4)


@pytest.mark.full
def test_cnn_takes_images_with_or_without_a_channel_axis():
    model = CNN(5, 8, 8, (2, 3), 4)
    params, x = model.init(KEY), normal(0, 3, 8, 8)
    np.testing.assert_array_equal(model(params, x), model(params, x[..., None]))


@pytest.mark.full_rows(
    "CNN(classes=5, height=8, width=9, channels=(2, 3), hidden=4, inputs=2, dropout=(0.0, 0.0))",
    "MLP(sizes=(6, 5, 3))",
)
@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_equal_models_are_one_compilation(model):
    traces = []

    @jax.jit(static_argnums=0)
    def outputs(model, params, x):
        traces.append(model)
        return model(params, x)

    shapes = {CNN: (2, 8, 9, 2), MatrixLinear: (2, 2, 3)}
    x = normal(0, *shapes.get(type(model), (2, 6)))
    copy = type(model)(**vars(model))
    assert copy is not model
    outputs(model, model.init(KEY), x)
    outputs(copy, copy.init(KEY), x)
    assert len(traces) == 1


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_the_seed_decides_the_parameters(model):
    same = jax.tree.map(np.array_equal, model.init(KEY), model.init(jax.random.key(0)))
    assert all(jax.tree.leaves(same))
    if isinstance(model, MLP | CNN):
        other = jax.tree.map(np.array_equal, model.init(KEY), model.init(jax.random.key(1)))
        assert not all(jax.tree.leaves(other))


def test_a_list_of_sizes_is_as_good_as_a_tuple():
    assert MLP([4, 3, 2]) == MLP((4, 3, 2))
    assert hash(CNN(channels=[2, 3])) == hash(CNN(channels=(2, 3)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Linear(0), "features = 0"),
        (lambda: MatrixLinear(0, 3), "rows = 0"),
        (lambda: MatrixLinear(3, True), "columns = True"),
        (lambda: Softmax(4, 1), "classes = 1"),
        (lambda: Softmax(2.0, 3), "features = 2.0"),
        (lambda: MLP((4,)), "two or more"),
        (lambda: MLP((4, 0)), "sizes = 0"),
        (lambda: MLP(5), "sizes = 5"),
        (lambda: CNN(height=5), "height = 5"),
        (lambda: CNN(channels=(1, 2, 3)), "channels"),
        (lambda: CNN(channels=(1, 0)), "channels = 0"),
        (lambda: CNN(channels=3), "channels = 3"),
    ],
)
def test_bad_sizes_are_refused_at_construction(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


def test_check_model_names_the_shape_that_does_not_fit():
    check_model(Softmax(6, 3), (2, 3), (3,))
    check_model(Linear(6), (6,), ())
    with pytest.raises(InvalidInput, match=r"does not take examples of shape \(5,\)"):
        check_model(Softmax(6, 3), (5,), (3,))
    with pytest.raises(InvalidInput, match=r"shape \(3,\) for an example, the task needs \(4,\)"):
        check_model(Softmax(6, 3), (6,), (4,))


# Models of equinox, flax and users' own classes, with every method: a round's verbs keep their structure.

RNG = np.random.default_rng(0)
CLIENTS = [(RNG.normal(size=(n, 3)), RNG.normal(size=(n, 1))) for n in (9, 4, 6)]


class Pair(NamedTuple):
    """Fields named as a message's are."""

    delta: Any
    loss: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class KindsAffine:
    delta: Any
    loss: Any
    width: int = dataclasses.field(default=1, metadata={"static": True})


def squared(predict):
    return lambda model, batch: jnp.mean((predict(model, batch[0]) - batch[1]) ** 2)


def equinox_linear():
    eqx = pytest.importorskip("equinox")
    return eqx.nn.Linear(3, 1, key=jax.random.key(0)), lambda m, x: jax.vmap(m)(x)


def linen():
    nn = pytest.importorskip("flax.linen")
    model = nn.Dense(1)
    return model.init(jax.random.key(0), jnp.ones((1, 3))), model.apply


def linen_frozen():
    params, apply = linen()
    return pytest.importorskip("flax.core").freeze(params), apply


def nnx_module():
    nnx = pytest.importorskip("flax.nnx")
    layers = [nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(4, 1, rngs=nnx.Rngs(1))]
    return nnx.Sequential(*layers), lambda model, x: model(x)


def nnx_state():
    nnx = pytest.importorskip("flax.nnx")
    graph, state = nnx.split(nnx_module()[0])
    return state, lambda state, x: nnx.merge(graph, state)(x)


def named_tuple():
    return Pair(np.ones((3, 1), np.float32), np.zeros(1, np.float32)), lambda p, x: x @ p.delta + p.loss


def own_dataclass():
    return KindsAffine(
        np.ones((3, 1), np.float32), np.zeros(1, np.float32)
    ), lambda p, x: x @ p.delta + p.loss


def exported(algorithm, params):
    """The shapes of the model after a round of the verbs as the engine calls them; nothing is compiled."""
    server = algorithm.init(params)
    cohort = Cohort(jnp.int32(0), jnp.int32(4), 4, jax.random.key(0))

    def one(server):
        broadcast = algorithm.broadcast(server, cohort)
        client = algorithm.enrol(broadcast, params)
        message, after = algorithm.train(broadcast, client, introspect.ShapeOracle())
        message, _ = algorithm.receive(broadcast, message, client)
        assert jax.tree.structure(after) == jax.tree.structure(client)
        messages = jax.tree.map(lambda x: jnp.stack([x, x]), message)
        reduced = reduce_stacked(algorithm, messages, jnp.ones(2), jnp.ones(2, bool))
        new = algorithm.update(server, reduced, cohort)
        assert reports(new).keys() == reports(server).keys()
        return algorithm.export(new)

    return jax.eval_shape(one, server)


LIBRARIES = (equinox_linear, linen, linen_frozen, nnx_module, nnx_state)
OWN = (named_tuple, own_dataclass)


@pytest.mark.gate("nnx_state-4-40", "linen_frozen-2-40")
@pytest.mark.parametrize(
    ("kind", "first", "step"),
    [
        *((kind, i, len(OWN)) for i, kind in enumerate(OWN)),
        *((kind, i, 8 * len(LIBRARIES)) for i, kind in enumerate(LIBRARIES)),
        *(pytest.param(kind, 0, 1, marks=pytest.mark.full) for kind in (*OWN, *LIBRARIES)),
    ],
)
def test_every_method_takes_the_model(kind, first, step):
    """All methods of the catalogue, and what wraps them, each on a model with the names of its own fields, and a few
    on a model of each library: it comes out as it went in.
    """
    params = split_leaves(kind()[0]).trained
    more = {"Robust(Krum)": fs.build("Robust+FedAdam", {"reduction": fs.robust.Krum(1)})}
    last = named_leaves(params)[0][-1]
    for name, algorithm in list((communication.examples() | more).items())[first::step]:
        if isinstance(algorithm, fs.Personal):  # of whatever the model calls its leaves
            algorithm = dataclasses.replace(algorithm, leaves=(last,))
        if hasattr(algorithm, "smallest"):  # leaves of any size
            every = fs.compression.TopK(1.0) if name.startswith("SCAFCOM") else fs.compression.RandomK(1.0)
            algorithm = dataclasses.replace(algorithm, compressor=every, smallest=1)
        after = exported(algorithm, params)
        assert jax.tree.structure(after) == jax.tree.structure(params), name
        shapes = [(x.shape, x.dtype) for x in jax.tree.leaves(after)]
        assert shapes == [(x.shape, x.dtype) for x in jax.tree.leaves(params)], name


@pytest.mark.parametrize(
    "kind", crossed((equinox_linear, nnx_module), (nnx_module,)), ids=lambda f: f.__name__
)
@pytest.mark.full
def test_the_model_trains_and_comes_back(kind, tmp_path):
    """A run with checkpoints gives the model back, trained, in its own class and to the same bits when resumed."""
    model, predict = kind()
    task = fs.Task.from_arrays(squared(predict), model, CLIENTS, batch_size=4)
    given = {"rounds": 4, "eval_every": 4, "out": tmp_path}
    result = fs.run(fs.FedDuAdam(0.05), task, **given)
    again = fs.run(fs.FedDuAdam(0.05), task, resume=True, **given)
    assert type(result.params) is type(model)
    assert result.metrics["train_loss"][-1] < 0.9 * result.metrics["train_loss"][0]
    x = CLIENTS[0][0].astype(np.float32)
    np.testing.assert_array_equal(predict(result.params, x), predict(again.params, x))


# Models whose numbers are of 16 bits are refused, and those of several types are told: no type changes in silence.

X = np.ones((4, 3), np.float32)
HALVES = [jnp.bfloat16, np.float16]


def loss(params, x):
    return jnp.mean((x @ params["w"].astype(x.dtype) + params["b"].astype(x.dtype) - 1) ** 2)


def params(w, b=np.float32):
    return {"b": jnp.zeros((), b) if b is not np.float64 else np.zeros(()), "w": jnp.zeros(3, w)}


def run(start, **options):
    task = fs.Task("mine", lambda key: start, loss, fs.FederatedData.from_clients([X, X]))
    return fs.run(fs.FedAvg(0.1), task, rounds=1, batch_size=2, **options)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_models_of_16_bits_are_refused(half, dtype):
    words = f"the model of task mine has {np.dtype(half)} numbers in w: runs are in float32 or float64; convert it"
    with pytest.raises(fs.InvalidInput, match=words) as error:
        run(params(half), dtype=dtype)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("half", HALVES)
def test_also_beside_others_in_a_federation(half):
    with pytest.raises(fs.InvalidInput, match=f"the model has {np.dtype(half)} numbers in b: "):
        float_type(params(np.float32, half))


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_modules_of_pytorch(name):
    torch = pytest.importorskip("torch")
    from fedsolve.deploy.oracles.torch import TorchOracle

    module = torch.nn.Linear(3, 2).to(getattr(torch, name))
    with pytest.raises(fs.InvalidInput, match=f"the module has {name} numbers in weight: runs are in"):
        TorchOracle(module, torch.nn.functional.cross_entropy, [(torch.ones(2, 3), torch.tensor([0, 1]))])


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.full)])
def test_several_types_are_told(dtype):
    note = f"the model's leaves are of float32 and float64: all of them are {dtype} in this run"
    assert note in run(params(np.float32, np.float64), dtype=dtype).history.notes
    assert not run(params(np.float32), dtype=dtype).history.notes


# A user's own loss, parameters and arrays: any pytree, a model with leaves that are not trained included.


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
