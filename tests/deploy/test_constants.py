"""What decides results at a site and is in no message is compared when a client connects."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from deploy_small import QUICK
from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.client.app import OracleCache, _make
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.deploy.oracles.node_oracle import NodeContext
from fedsolve.deploy.signature import (
    check_constants,
    constant_digests,
    other_constant,
    usual_constants,
)
from fedsolve.tasks.task import Examples

X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
Y = np.array([0, 1, 0, 1, 1, 0])


def frozen(seed, mask=True):
    """A module with a frozen layer, and with buffers that are not sent."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch.manual_seed(seed)
    first = torch.nn.Linear(3, 2).requires_grad_(False)
    torch.manual_seed(0)
    net = torch.nn.Sequential(first, torch.nn.Linear(2, 2))
    net.register_buffer("mask", torch.tensor([mask]))
    net.register_buffer("scale", torch.ones(2), persistent=False)
    net.register_buffer("edges", torch.eye(2).to_sparse(), persistent=False)
    return net


def of_module(net):
    from fedsolve.deploy.oracles.torch import TorchOracle

    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    loader = torch.utils.data.DataLoader(list(zip(X, Y, strict=True)), batch_size=3)
    return TorchOracle(net, torch.nn.functional.cross_entropy, loader, epochs=1)


def scaled(mean, classes=(0, 1), step=None):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from fedsolve.deploy.oracles.sklearn import SklearnOracle

    step = StandardScaler().fit(X + np.float32(mean)) if step is None else step
    pipeline = make_pipeline(step, LogisticRegression())
    return SklearnOracle(pipeline, X, np.array(classes)[Y], batch_size=None, epochs=1, classes=classes)


def nested(mean, largest=2):
    """A scaler and categories, of which one column has fewer, in a step of their own."""
    compose = pytest.importorskip("sklearn.compose", reason="scikit-learn is not installed")
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    codes = np.array([[0, 0, 0], [1, 1, 1], [2, largest, 0]], float)
    both = [("a", StandardScaler(), [0]), ("b", OneHotEncoder(handle_unknown="ignore"), [1, 2])]
    return scaled(
        0, step=compose.ColumnTransformer(both, sparse_threshold=0).fit(codes + np.array([mean, 0, 0]))
    )


def of_loss(weight, partial=False):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from fedsolve.deploy.oracles.torch import TorchOracle

    weights = torch.tensor([1.0, weight])
    loss = functools.partial(torch.nn.functional.cross_entropy, weight=weights)
    module = torch.nn.Linear(3, 2)
    batches = [(torch.as_tensor(X), torch.as_tensor(Y))]
    return TorchOracle(module, loss if partial else torch.nn.CrossEntropyLoss(weights), batches)


def layers(*layers, **loss):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from fedsolve.deploy.oracles.torch import TorchOracle

    module = torch.nn.Sequential(
        torch.nn.Linear(3, 2), *(getattr(torch.nn, n)(*given) for n, *given in layers)
    )
    batches = [(torch.as_tensor(X), torch.as_tensor(Y))]
    loss |= {name: torch.tensor(value) for name, value in loss.items() if name == "weight"}
    return TorchOracle(module, torch.nn.CrossEntropyLoss(**loss), batches)


def of_jax(smoothing=0.0, weights=None):
    """A loss of one's own with an argument, or fedsolve's with weights of classes."""

    def own(w, batch, smoothing):
        return jnp.mean((batch.x @ w[:, 0] - batch.y + smoothing) ** 2)

    loss = functools.partial(own, smoothing=smoothing)
    if weights is not None:
        loss = fs.tasks.CrossEntropy(lambda w, x: x @ w, weights)
    data = Examples(X, Y.astype(np.int32))
    return JaxOracle(loss, np.zeros((3, 2), np.float32), data, batch_size=None, epochs=1)


def linear(**options):
    """A loss of hinges, or of their squares."""
    svm = pytest.importorskip("sklearn.svm", reason="scikit-learn is not installed")
    from fedsolve.deploy.oracles.sklearn import SklearnOracle

    return SklearnOracle(svm.LinearSVC(**options), X, Y, batch_size=None, epochs=1)


def tabled(**changes):
    """What a client's own function makes of a table by its schema."""
    column = {"name": "age", "mean": 40.0, "standard_deviation": 10.0} | changes
    schema = fs.data.Schema((1,), (0, 1), (fs.data.schema.Column(**column),), "ill")

    def oracle_for(node):
        loss = lambda w, b: jnp.mean((b[0] @ w - b[1]) ** 2)  # noqa: E731
        return JaxOracle(loss, np.zeros(1, np.float32), schema.check(X[:, :1], Y), batch_size=None, epochs=1)

    return _make(oracle_for, None)


PAIRS = {
    "weights of a loss": (lambda: of_loss(2.0), lambda: of_loss(3.0), "loss: weight"),
    "weights of a function": (lambda: of_loss(2.0, True), lambda: of_loss(3.0, True), "loss: weight"),
    "a loss's number": (layers, lambda: layers(label_smoothing=0.1), "loss: label_smoothing"),
    "no weights": (layers, lambda: layers(weight=[1.0, 2.0]), "loss: weight"),
    "a layer's number": (
        lambda: layers(("Dropout", 0.1)),
        lambda: layers(("Dropout", 0.5)),
        "layer 1: p",
    ),
    "a kind of layer": (lambda: layers(("ReLU",)), lambda: layers(("Tanh",)), "layer 1: kind"),
    "an argument in JAX": (of_jax, lambda: of_jax(0.1), "loss: smoothing"),
    "weights in JAX": (
        lambda: of_jax(weights=(1.0, 1.0)),
        lambda: of_jax(weights=(1.0, 2.0)),
        "loss: class_weights",
    ),
    "a kind of loss": (linear, lambda: linear(loss="hinge"), "loss"),
    "weights of classes": (
        lambda: linear(class_weight={1: 2.0}),
        lambda: linear(class_weight={1: 3.0}),
        "class_weight",
    ),
    "a schema": (tabled, lambda: tabled(mean=50.0), "schema.toml, column age"),
    "frozen weights": (lambda: of_module(frozen(0)), lambda: of_module(frozen(1)), "0.bias"),
    "a mask": (lambda: of_module(frozen(0)), lambda: of_module(frozen(0, mask=False)), "mask"),
    "a scaler": (lambda: scaled(0), lambda: scaled(1), "standardscaler.mean_"),
    "a nested step": (lambda: nested(0), lambda: nested(1), "columntransformer.transformers_.0.1.mean_"),
    "categories": (
        lambda: nested(0),
        lambda: nested(0, 3),
        "columntransformer.transformers_.1.1.categories_.0",
    ),
    "classes": (lambda: scaled(0), lambda: scaled(0, (0, 2)), "classes"),
}


@pytest.mark.parametrize("case", PAIRS)
def test_differences_are_named(case):
    """And what is built alike is the same, whatever its data."""
    make, other, name = PAIRS[case]
    ours, same, theirs = (constant_digests(oracle().shared) for oracle in (make, make, other))
    usual = usual_constants([ours, theirs])  # of as many the first one's
    assert other_constant(same, usual) is None
    assert other_constant(theirs, usual) == name
    assert other_constant(ours, usual_constants([ours, theirs, theirs])) == name


def test_a_constant_that_changes_during_a_run_is_named(tmp_path):
    """By the process of a later message, which reads the file again; at the next start it is compared by the server."""
    numbers = [0.0]

    def during(run, connects=False):
        with OracleCache(lambda node: of_jax(numbers[-1])).borrow(run, node, anew=connects) as problem:
            return problem

    node = NodeContext(0, "north", {"state-dir": str(tmp_path / "state")}, {})
    during(1)  # connected from another folder
    during(1, connects=True)
    during(1)
    numbers.append(0.1)
    with pytest.raises(InvalidInput, match="'loss: smoothing' of north has changed since its node connected"):
        during(1)
    during(2)
    during(1, connects=True)
    during(1)
    (tmp_path / "state" / "client-0-constants.json").write_text("{}")
    during(1)


@pytest.mark.parametrize("without", [0, 1])
def test_a_constant_that_is_not_there_is_another_one_but_for_columns(without):
    """A site may have an array where others have a table."""
    pair = [["columns a", "head b"], []][:: 1 - 2 * without]
    assert other_constant(pair[1], usual_constants(pair)) == "head"
    pair = [["columns a"], []][:: 1 - 2 * without]
    assert other_constant(pair[1], usual_constants(pair)) is None


def test_parameters_and_buffers_that_are_sent_are_no_constants():
    constants = {name for name in of_module(frozen(0)).constants if not name.startswith(("layer ", "loss: "))}
    assert constants == {"0.weight", "0.bias", "mask", "scale", "edges"}
    assert check_constants(constant_digests(JaxOracle.of_task(QUICK, 0).constants)) == []


@pytest.mark.parametrize("digests", ["a b", ["a"], [3], ["a " + "b" * 2000]])
def test_what_is_no_list_of_digests(digests):
    with pytest.raises(InvalidInput, match="no names and digests"):
        check_constants(digests)
