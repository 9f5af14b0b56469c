"""A PyTorch module behind the oracle: the same numbers as in JAX, and randomness that stays in its place."""

from __future__ import annotations

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flwr.app import RecordDict
from oracle_small import far, key, local_work, same

import fedsolve as fs
from conformance.entries import METHODS
from deploy_small import ask
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.client.worker import Worker
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.deploy.server.coordinator import Coordinator, Federation
from fedsolve.geometry import L1
from harness import crossed

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from fedsolve.deploy.oracles.torch import TorchOracle, assign, buffers, parameters  # noqa: E402

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((50, 6)).astype(np.float32), RNG.integers(0, 3, 50)
IMAGES = RNG.standard_normal((50, 1, 8, 8)).astype(np.float32)
BATCH = 16


def linear(w, name, x):
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def conv(w, name, x):
    dims = ("NCHW", "OIHW", "NCHW")
    out = jax.lax.conv_general_dilated(x, w[f"{name}.weight"], (1, 1), "VALID", dimension_numbers=dims)
    return out + w[f"{name}.bias"][:, None, None]


def cnn(w, x):
    x = jax.nn.relu(conv(w, "2", jax.nn.relu(conv(w, "0", x))))
    x = x.reshape(len(x), 5, 2, 2, 2, 2).max((3, 5))
    return linear(w, "6", x.reshape(len(x), -1))


MODELS = {
    "softmax": (lambda: nn.Sequential(nn.Linear(6, 3)), lambda w, x: linear(w, "0", x), X),
    "mlp": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)),
        lambda w, x: linear(w, "2", jnp.tanh(linear(w, "0", x))),
        X,
    ),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(20, 3),
        ),
        cnn,
        IMAGES,
    ),
}  # fmt: skip


def made(module):
    """A module with the same start in every test."""
    torch.manual_seed(1)
    return module()


def batches(x=X, y=Y, size=BATCH):
    return [(torch.tensor(x[i : i + size]), torch.tensor(y[i : i + size])) for i in range(0, len(x), size)]


def shuffled(**options):
    data = TensorDataset(torch.tensor(X), torch.tensor(Y))
    return DataLoader(data, batch_size=BATCH, shuffle=True, **options)


class InOrder(JaxOracle):
    """JAX examples with a mask of batches in their order, as a list of them comes from a loader."""

    def begin(self, key, client, dtype, noise=None):
        oracle = super().begin(key, client, dtype, noise)
        object.__setattr__(oracle, "order", jnp.broadcast_to(jnp.arange(64), (self._work.passes, 64)))
        return oracle


def pair(name, dtype="float32"):
    """The same model twice: its module, in PyTorch and in JAX."""
    make, apply, x = MODELS[name]
    module = made(make).to(getattr(torch, dtype))

    def loss(w, batch):
        out = jax.nn.log_softmax(apply(w, batch[0]))
        return -jnp.mean(jnp.take_along_axis(out, batch[1][:, None], axis=1))

    theirs = InOrder(loss, parameters(module), (x.astype(dtype), Y), batch_size=BATCH, epochs=2)
    return TorchOracle(module, nn.functional.cross_entropy, batches(x), epochs=2), theirs


@pytest.mark.full_rows("cnn-float32")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param("softmax", "float32", marks=pytest.mark.full),
        pytest.param("mlp", "float32", marks=pytest.mark.full),
        ("cnn", "float32"),
        ("mlp", "float64"),
    ],
)
def test_losses_and_gradients_are_those_of_jax(name, dtype):
    """On each minibatch (16, 16, 16, 2 of 50, twice), alone and with its gradient, and on all examples."""
    with jax.enable_x64(dtype == "float64"):
        ours, theirs = (p.begin(key(), 5, dtype) for p in pair(name, dtype))
        close = 1e-6 if dtype == "float32" else 1e-14
        params = jax.tree.map(jnp.asarray, ours.problem.params)
        assert (ours.steps, ours.num_examples, ours.batch_size) == (8, 50, 16)

        @jax.jit
        def everything(o):
            steps = jax.lax.map(lambda k: (o(params, k), o.loss(params, k)), jnp.arange(8))
            return steps, o.full(params)

        found = everything(ours)
        assert all(v.dtype == dtype for v in jax.tree.leaves(found))
        assert far(found, everything(theirs)) < close


METHODS_HERE = {
    "FedDuAdam": METHODS["FedDuAdam"],
    "SCAFFOLD+FedLiLS": METHODS["SCAFFOLD+FedLiLS"],
    "SCAFFOLD(I)": lambda lr: fs.ControlVariates(fs.FedAvg(lr), option="I"),
    "optax": METHODS["optax"],
    "FedDR": lambda lr: fs.build("FedDR", {"client_lr": lr, "psi": L1(0.02)}),
    "FedFW": lambda lr: fs.FedFW(fs.geometry.L2Ball(9.0), steps=fs.frank_wolfe.Convex(lr, 0.5)),
}
"""All that is asked of an oracle: gradients of minibatches, corrected ones, losses, all examples, an optax solver."""


@pytest.mark.full
@pytest.mark.parametrize("name", crossed(METHODS_HERE, ["FedDuAdam", "SCAFFOLD+FedLiLS", "optax"]))
def test_methods_do_the_same_work_as_in_jax(name):
    """Message and state of a whole compiled round."""
    algorithm = METHODS_HERE[name](0.1)
    ours, theirs = pair("mlp")
    tolerance = 1e-4 if name == "optax" else 2e-6  # Adam divides by the root of small squares
    found = (local_work(algorithm, p, ours.params) for p in (ours, theirs))
    assert far(*found) < tolerance


@pytest.mark.full
def test_methods_do_the_same_work_in_float64():
    with jax.enable_x64(True):
        ours, theirs = pair("cnn", "float64")
        found = (local_work(METHODS["FedLiLS"](0.1), p, ours.params, "float64") for p in (ours, theirs))
        assert far(*found) < 1e-12


def noisy():
    return nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3))


def ready(module=noisy, loader=None, **options):
    problem = TorchOracle(made(module), nn.functional.cross_entropy, loader or shuffled(), **options)
    return problem, jax.tree.map(jnp.asarray, problem.params)


@pytest.mark.full
def test_one_step_has_one_dropout_and_one_batch():
    """Whatever was evaluated in between; another step, key or client has others."""
    problem, w = ready()
    oracle = problem.begin(key(), 5, "float32")
    first = [float(oracle.loss(w, k)) for k in range(8)]
    assert len(set(first)) == 8
    assert [float(oracle(w, k)[0]) for k in range(8)] == first
    assert [float(oracle.loss(w, k)) for k in (5, 0, 7, 2)] == [first[k] for k in (5, 0, 7, 2)]
    oracle.full(w)
    assert float(oracle.loss(w, 3)) == first[3]
    for other in (problem.begin(key(4), 5, "float32"), problem.begin(key(), 6, "float32")):
        assert all(float(other.loss(w, k)) != first[k] for k in range(8))


@pytest.mark.gate("function-options2")
@pytest.mark.parametrize(
    ("kind", "options"),
    [("loader", {"generator": True}), ("loader", {"drop_last": True}), ("function", {})],
)
def test_a_round_is_repeatable_and_keys_differ(options, kind):
    """In another process too: nothing but the key and the client is used. Passes differ."""

    def loader():
        own = {"generator": torch.Generator()} if options.get("generator") else {}
        made = {k: v for k, v in options.items() if k != "generator"}
        if kind == "function":
            return lambda generator: shuffled(**made, generator=generator)
        return shuffled(**made, **own)

    def message(seed):
        problem, w = ready(loader=loader(), epochs=2)
        torch.rand(random.randrange(9))  # what else draws in the process does not matter
        return local_work(fs.FedLiLS(eta_max=1.0), problem, w, seed=seed)[0], [
            float(problem.begin(key(seed), 5, "float32").loss(w, k)) for k in (0, problem.steps // 2)
        ]

    (one, passes), (again, _), (other, _) = message(1), message(1), message(2)
    assert same(one, again)
    assert not same(one.delta, other.delta)
    assert passes[0] != passes[1]


def test_nothing_of_the_program_around_is_drawn_or_changed():
    problem, w = ready()
    module = problem._module._module
    before = parameters(module), buffers(module)
    torch.manual_seed(7), random.seed(7), np.random.seed(7)  # noqa: NPY002
    expected = torch.rand(1), random.random(), np.random.rand()  # noqa: NPY002
    torch.manual_seed(7), random.seed(7), np.random.seed(7)  # noqa: NPY002
    module.eval()
    local_work(fs.FedAvg(0.1), problem, w)
    assert (torch.rand(1), random.random(), np.random.rand()) == expected  # noqa: NPY002
    assert same(before, (parameters(module), buffers(module)))
    assert not any(m.training for m in module.modules())


@pytest.mark.full
def test_augmentation_follows_from_the_key():
    """From any of the three generators; full sees the same examples at every call of a round."""

    class Augmented(TensorDataset):
        def __getitem__(self, i):
            x, y = super().__getitem__(i)
            return x + torch.rand(1) + random.random() + np.random.rand(), y  # noqa: NPY002

    def losses(seed):
        data = Augmented(torch.tensor(X, dtype=torch.float32), torch.tensor(Y))
        problem, w = ready(MODELS["mlp"][0], DataLoader(data, batch_size=BATCH, shuffle=True))
        oracle = problem.begin(key(seed), 0, "float32")
        assert float(oracle.full(w)[0]) == float(oracle.full(w)[0])
        return [float(v) for v in (oracle.full(w)[0], oracle.loss(w, 0), oracle.loss(w, 3))]

    assert losses(1) == losses(1)
    assert all(a != b for a, b in zip(losses(1), losses(2), strict=True))


@pytest.mark.full
def test_running_statistics_move_once_a_step():
    """After k steps they are what PyTorch's own training mode makes of the k batches, whatever else is evaluated."""
    loader = batches()
    problem, w = ready(loader=loader, epochs=2)
    oracle, module = problem.begin(key(), 5, "float32"), made(noisy)
    for k in range(6):
        oracle.loss(w, k), oracle.full(w)
        oracle(w, k)
        oracle(w, k), oracle.loss(w, k), oracle.full(w)
        module.train()(loader[k % 4][0])
    expected = buffers(module)
    assert int(problem.buffers["1.num_batches_tracked"]) == 6
    assert far(problem.buffers, expected) < 1e-6
    problem.load_buffers({k: v.astype(np.float64) + 0.6 for k, v in expected.items()})
    assert int(problem.buffers["1.num_batches_tracked"]) == 7
    assert problem.buffers["1.running_mean"].dtype == np.float32
    oracle(w, 5)
    assert int(problem.buffers["1.num_batches_tracked"]) == 8


def test_full_is_in_evaluation_mode_and_sees_dropped_examples():
    problem, w = ready(loader=shuffled(drop_last=True))
    module = made(noisy).eval()
    expected = nn.functional.cross_entropy(module(torch.tensor(X)), torch.tensor(Y))
    gradient = torch.autograd.grad(expected, list(module.parameters()))
    loss, slope = problem.begin(key(), 5, "float32").full(w)
    expected = expected.detach()
    assert (problem.num_examples, problem.steps) == (50, 3)
    assert abs(float(loss) - float(expected)) < 1e-6
    names = [name for name, _ in module.named_parameters()]
    assert far(slope, dict(zip(names, [g.numpy() for g in gradient], strict=True))) < 1e-6


def test_frozen_and_unused_parameters():
    """What does not require a gradient stays where it is; what plays no part has gradient 0."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head, self.unused = nn.Linear(6, 4), nn.Linear(4, 3), nn.Linear(2, 2)
            self.body.weight.requires_grad_(False)

        def forward(self, x):
            return self.head(self.body(x))

    problem, w = ready(Model)
    assert sorted(w) == ["body.bias", "head.bias", "head.weight", "unused.bias", "unused.weight"]
    gradient = problem.begin(key(), 0, "float32")(w, 0)[1]
    assert not gradient["unused.weight"].any()
    assert gradient["body.bias"].any()


class Unsized:
    def __iter__(self):
        return iter(batches())


def test_loaders_that_must_be_counted():
    for loader in (Unsized(), lambda generator: iter(batches()), batches(), tuple(batches())):
        problem, w = ready(loader=loader, steps=9)
        assert (problem.num_examples, problem.batch_size, problem.steps) == (50, 16, 9)
        oracle = problem.begin(key(), 0, "float32")
        assert float(oracle.full(w)[0]) == float(oracle.full(w)[0])
        assert np.isfinite(float(oracle(w, 8)[0]))


def test_a_model_of_several_inputs():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, inputs):
            return self.layer(inputs["left"] - inputs["right"][0])

    loader = [({"left": x, "right": (0 * x,)}, y) for x, y in batches()]
    plain, _ = ready(lambda: nn.Sequential(nn.Linear(6, 3)), batches())
    several, w = ready(Model, loader)
    same_ = {"0.bias": w["layer.bias"], "0.weight": w["layer.weight"]}
    assert same(
        several.begin(key(), 0, "float32").loss(w, 1), plain.begin(key(), 0, "float32").loss(same_, 1)
    )


@pytest.mark.full
def test_large_models_do_not_block_the_program():
    """4 M parameters, more than the runtime hands over at once, in loops; the result is a plain loop's."""
    layers = lambda: nn.Sequential(nn.Linear(6, 2000), nn.ReLU(), nn.Linear(2000, 2000), nn.Linear(2000, 3))  # noqa: E731
    problem, w = ready(layers, batches(), epochs=2)
    message, _ = local_work(fs.FedAvg(0.01), problem, w)
    local_work(fs.FedLiLS(eta_max=0.1), problem, w)
    module = made(layers)
    for x, y in 2 * batches():
        gradient = torch.autograd.grad(nn.functional.cross_entropy(module(x), y), list(module.parameters()))
        with torch.no_grad():
            for p, g in zip(module.parameters(), gradient, strict=True):
                p -= 0.01 * g
    assert (
        far(message.delta, {name: p - problem.params[name] for name, p in parameters(module).items()}) < 1e-6
    )


def test_writing_a_model_back():
    module, trained = made(noisy), parameters(made(lambda: noisy().double()))
    values = {name: p + 0.5 for name, p in trained.items()}
    assign(module, jax.tree.map(jnp.asarray, values), {n: b + 2.4 for n, b in buffers(module).items()})
    assert far(parameters(module), values) < 1e-6
    assert module[0].weight.dtype == torch.float32
    assert int(module[1].num_batches_tracked) == 2
    with pytest.raises(
        fs.InvalidInput, match=r"parameter '0.bias' has shape \(2,\), the model here has \(32,\)"
    ):
        assign(module, values | {"0.bias": np.zeros(2)})
    with pytest.raises(fs.InvalidInput, match=r"parameter '0.weight' is missing"):
        assign(module, {name: v for name, v in values.items() if name != "0.weight"})
    with pytest.raises(fs.InvalidInput, match=r"buffer 'more' .* has none"):
        assign(module, values, buffers(module) | {"more": np.zeros(1)})
    assert far(parameters(module), values) < 1e-6


def frozen():
    module = nn.Linear(6, 3)
    module.requires_grad_(False)
    return module


LINEAR, CROSS = lambda: nn.Linear(6, 3), nn.functional.cross_entropy
BAD = {
    "empty": (LINEAR, CROSS, [], {}, "the loader is empty"),
    "all dropped": (LINEAR, CROSS, lambda: DataLoader(TensorDataset(torch.tensor(X)), 99, drop_last=True), {}, "empty"),
    "once": (LINEAR, CROSS, lambda: iter(batches()), {}, "list_iterator, which cannot be read again"),
    "no loader": (LINEAR, CROSS, lambda: 3, {}, "the loader is an int"),
    "three": (LINEAR, CROSS, [(torch.zeros(2, 6),) * 3], {}, "3 parts: it must be a pair"),
    "tensor": (LINEAR, CROSS, [torch.zeros(2, 6)], {}, "a Tensor: it must be a pair"),
    "targets": (LINEAR, CROSS, [(torch.zeros(2, 6), 3)], {}, "the targets of a batch are an int"),
    "no mean": (LINEAR, lambda out, y: out.abs().amax(0), batches(), {}, r"of shape \(3,\): it must be one"),
    "number": (LINEAR, lambda out, y: 1.0, batches(), {}, "is a float: it must be one real number"),
    "frozen": (frozen, CROSS, batches(), {}, "Linear has no trainable parameter"),
    "lazy": (lambda: nn.LazyLinear(3), CROSS, batches(), {}, "'weight' has no shape yet"),
    "renormalised": (lambda: nn.Sequential(nn.Embedding(5, 2, max_norm=1.0)), CROSS, batches(), {}, "max_norm"),
    "both": (LINEAR, CROSS, batches(), {"epochs": 1, "steps": 2}, "at most one"),
    "none": (LINEAR, CROSS, batches(), {"epochs": 0}, "epochs = 0 must be an integer of at least 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    module, loss, loader, options, says = BAD[name]
    with pytest.raises(fs.InvalidInput, match=says):
        TorchOracle(module(), loss, loader() if callable(loader) else loader, **options)


def test_bad_input_of_a_round():
    problem, _ = ready()
    with pytest.raises(fs.InvalidInput, match="bfloat16 must be float32 or float64"):
        problem.begin(key(), 0, "bfloat16")
    with pytest.raises(fs.InvalidInput, match=r"buffer '1.running_mean' is missing"):
        problem.load_buffers({})


def test_what_goes_wrong_in_a_round_is_told_as_it_is():
    """The loader ends early the second time; afterwards the process goes on."""
    lengths = iter((4, 4, 2, 4, 4, 4, 4))

    class Shrinking:
        def __iter__(self):
            return iter(batches()[: next(lengths)])

    problem, w = ready(MODELS["softmax"][0], Shrinking())
    with (
        pytest.raises(fs.InvalidInput, match="gave 2 batches in a pass and 4 before"),
        problem.failing_plainly(),
    ):
        local_work(fs.FedAvg(0.1), problem, w)
    with problem.failing_plainly():
        local_work(fs.FedAvg(0.1), problem, w, seed=9)


@pytest.mark.full
def test_a_module_is_measured_in_evaluation_mode_on_all_examples():
    """Loss, accuracy and a metric of one's own against NumPy, on what the loader drops too and on what is held out."""
    module = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).double()
    options = {
        "metrics": {"margin": lambda out, y: out.max(1).values.mean()},
        "validation": batches(X[:7], Y[:7], 3),
    }
    problem = TorchOracle(module, nn.functional.cross_entropy, shuffled(drop_last=True), **options)
    mean, var = np.array([0.3, -0.2, 0.1]), np.array([2.0, 0.5, 1.5])
    problem.load_buffers(problem.buffers | {"1.running_mean": mean, "1.running_var": var})
    w = {name: RNG.standard_normal(p.shape) for name, p in problem.params.items()}
    out = (X @ w["0.weight"].T + w["0.bias"] - mean) / np.sqrt(var + 1e-5) * w["1.weight"] + w["1.bias"]
    own = np.log(np.exp(out).sum(1)) - out[np.arange(50), Y]
    found = problem.measure(w, ("margin", "loss"))
    for part, count in (("train", 50), ("validation", 7)):
        wanted = {"loss": own[:count].mean(), "margin": out[:count].max(1).mean()}
        assert found[part].means == pytest.approx(wanted, rel=1e-12)
        assert found[part].examples == found[part].counts["loss"] == count
    np.testing.assert_array_equal(problem.buffers["1.running_mean"], mean)
    assert problem.metrics == ("loss", "margin")
    plain = TorchOracle(module, nn.functional.cross_entropy, batches())
    plain.load_buffers(problem.buffers)
    assert plain.metrics == ("loss", "accuracy")
    assert plain.measure(w, ("accuracy",))["train"].means["accuracy"] == (out.argmax(1) == Y).mean()
    assert (
        TorchOracle(nn.Linear(6, 3), nn.functional.cross_entropy, batches())
        .begin_steps(key(), 0, "float32", 7)
        .steps
        == 7
    )
    regression = [(torch.tensor(X), torch.tensor(X))]
    assert TorchOracle(nn.Linear(6, 6), nn.functional.mse_loss, regression).metrics == ("loss",)


@pytest.mark.parametrize(("wrong", "places"), [((12, 3, 1), "1 to 12"), ((-1, 2, 0), "-1 to 2")])
def test_targets_that_are_no_classes(wrong, places, tmp_path):
    """Told with their range: of the first batch before any round, by the client's number; of others when they come."""
    words = f"the targets of a batch are {places}, and the module has outputs for 3 classes, 0 to 2: number them from 0"
    bad = [(torch.tensor(X[:3]), torch.tensor(wrong))]

    def problem(batches):
        return TorchOracle(made(MODELS["softmax"][0]), nn.functional.cross_entropy, batches)

    with pytest.raises(fs.InvalidInput, match=words):
        problem(bad)
    later = problem(batches()[:1] + bad)
    with pytest.raises(fs.InvalidInput, match=words), later.failing_plainly():
        local_work(fs.FedAvg(0.1), later, later.params)
    answer = ask(client_app(lambda node: problem(bad)), RecordDict(), tmp_path, client=2, kind="query")
    assert answer["refused"]["why"].startswith(
        "client 2: the targets of a batch are others than these: the module has"
    )


def measured(problem, steps, tmp_path):
    """What a client with this problem answers to the question of a server that has its model."""
    given = {"population": 6, "sampling": fs.sampling.Uniform(6), "seed": 0, "experiment": "a-1"}
    server = Coordinator(fs.FedAvg(0.1), problem.params, Federation(**given), buffers=problem.buffers)
    question = server.evaluate_requests(("loss", "accuracy"), steps, fs.client.SGD(0.5))(5)
    return Worker(problem, tmp_path).evaluate(question).parts["train"].means


@pytest.mark.full
def test_fine_tuning_is_that_of_jax_and_leaves_no_trace(tmp_path):
    """Three steps on all examples, then measured: a module with dropout and running statistics is as before."""
    make, apply, x = MODELS["mlp"]
    module = made(make).double()

    def loss(w, batch):
        out = jax.nn.log_softmax(apply(w, batch[0]))
        return -jnp.mean(jnp.take_along_axis(out, batch[1][:, None], axis=1))

    metrics = {"accuracy": lambda w, batch: jnp.mean(jnp.argmax(apply(w, batch[0]), 1) == batch[1])}
    ours = TorchOracle(module, nn.functional.cross_entropy, batches(size=50))
    rows = (x.astype(np.float64), Y)
    theirs = JaxOracle(loss, parameters(module), rows, batch_size=None, epochs=1, metrics=metrics)
    for steps in (0, 3):
        found, wanted = (measured(problem, steps, tmp_path) for problem in (ours, theirs))
        assert found == pytest.approx(wanted, rel=1e-12)
    problem, _ = ready()
    before, first = problem.buffers, measured(problem, 0, tmp_path)
    after = measured(problem, 8, tmp_path)
    assert abs(after["loss"] - first["loss"]) > 1e-3
    assert all(np.array_equal(before[name], value) for name, value in problem.buffers.items())
    assert measured(problem, 0, tmp_path) == first
    assert measured(problem, 8, tmp_path) == after
    assert not list(tmp_path.iterdir())
