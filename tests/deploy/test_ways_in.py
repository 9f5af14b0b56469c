"""One table of what can be wrong with a client's loss and data, and what each way in makes of it."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.algorithm import Cohort
from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.client.worker import train
from fedsolve.deploy.oracles.jax import JaxOracle

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
linear_model = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from fedsolve.deploy.oracles.sklearn import SklearnOracle  # noqa: E402
from fedsolve.deploy.oracles.torch import TorchOracle  # noqa: E402

WAYS = ("from_torch", "TorchOracle", "JaxOracle", "SklearnOracle")
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(9, 4)).astype(np.float32)
CLASSES, REAL = np.arange(9) % 3, DRAW.normal(size=9).astype(np.float32)
W = {k: DRAW.normal(size=(4, k)).astype(np.float32) for k in (1, 3)}
LATE = np.where(np.arange(9)[:, None] == 8, np.nan, X).astype(np.float32)  # in the last of three batches


@dataclass(frozen=True)
class Refused:
    """When it is made, in these words."""

    words: str


@dataclass(frozen=True)
class InRound:
    """When the round comes to it, in these words."""

    words: str


@dataclass(frozen=True)
class Right:
    """With this loss of all examples, at the start; None where it has no single value."""

    value: float | None


@dataclass(frozen=True)
class NotHere:
    """It cannot occur."""

    because: str


OWN = NotHere("the loss is fedsolve's own, one number for each example")


def given(
    torch=F.cross_entropy,
    jax=None,
    *,
    x=X,
    y=CLASSES,
    outputs=3,
    module=lambda module: module,
    params=lambda params: params,
    options=None,
    size=4,
):
    """What the ways in are given: losses (outputs, targets) -> value, examples, and changes of the linear model."""
    return SimpleNamespace(**locals())


def cross(o, y):
    return -jnp.take_along_axis(jax.nn.log_softmax(o), y[:, None], 1)[:, 0]


def mean_cross(o, y):
    return jnp.mean(cross(o, y))


def made_module(case):
    module = nn.Linear(4, case.outputs, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.as_tensor(W[case.outputs].T))
    return case.module(module)


def make(way, case):
    """A problem, or a task, of the case."""
    if way == "from_torch":
        return fs.tasks.from_torch(
            made_module(case), case.torch, [(case.x, case.y)], batch_size=case.size, translate=False
        )
    if way == "TorchOracle":
        x, y = torch.as_tensor(case.x), torch.as_tensor(case.y)
        batches = [(x[i : i + case.size], y[i : i + case.size]) for i in range(0, len(x), case.size)]
        return TorchOracle(made_module(case), case.torch, batches)
    if way == "JaxOracle":
        loss = lambda w, b: (case.jax or mean_cross)(b[0] @ w["w"], b[1])  # noqa: E731
        return JaxOracle(
            loss, case.params({"w": W[case.outputs]}), (case.x, case.y), batch_size=case.size, epochs=1
        )
    kind = linear_model.Ridge if case.outputs == 1 else linear_model.LogisticRegression
    own = {} if case.outputs == 1 else {"classes": [0, 1, 2]}
    estimator = kind(fit_intercept=False)
    return SklearnOracle(
        estimator, case.x, case.y, batch_size=case.size, epochs=1, **own | (case.options or {})
    )


def value_of(way, made, case):
    """The loss of all examples at the start, without a program."""
    if way == "TorchOracle":
        params = {name: torch.as_tensor(p) for name, p in made.params.items()}
        return float(made._module.full(params, np.zeros(2, np.uint32))[0])
    examples = made._examples if way != "from_torch" else made.data.examples
    loss = made.loss if way == "from_torch" else made._work.loss
    params = made.init(None) if way == "from_torch" else made.params
    return float(jnp.mean(loss(jax.tree.map(jnp.asarray, params), jax.tree.map(jnp.asarray, examples))))


def work(way, made):
    """A round."""
    if way == "from_torch":
        return fs.run(fs.FedAvg(0.1), made, rounds=1, progress=False)
    method, params = fs.FedAvg(0.1), jax.tree.map(jnp.asarray, made.params)
    broadcast = method.broadcast(method.init(params), Cohort(jnp.int32(0), jnp.int32(1), 1))
    request = SimpleNamespace(key=np.array([0, 1], np.uint32), client=0, round=0)
    return train(made, method, broadcast, method.enrol(broadcast, params), request)


class Counting:
    """A loss that is larger each time."""

    def __init__(self, loss):
        self.loss, self.calls = loss, 0

    def __call__(self, o, y):
        self.calls += 1
        return self.loss(o, y) * self.calls


class Wrong(torch.autograd.Function):
    """A gradient of another shape."""

    @staticmethod
    def forward(ctx, x):
        return x.sum(0)

    @staticmethod
    def backward(ctx, *up):
        return up[0][:2]


@jax.custom_vjp
def wrong(o):
    return jnp.sum(o)


wrong.defvjp(lambda o: (jnp.sum(o), None), lambda _, up: (jnp.zeros((2, 2)) * up,))


@jax.custom_vjp
def two(o):
    return jnp.sum(o)


two.defvjp(lambda o: (jnp.sum(o), None), lambda _, up: (up, up))


class Writing(nn.Linear):
    def forward(self, x):
        self.weight.data.mul_(0.5)
        return super().forward(x)


def writing(module):
    module.__class__ = Writing
    return module


def with_unused(module):
    module.unused = nn.Parameter(torch.ones(2))
    return module


class Outputs(OrderedDict):
    """As Hugging Face's models return."""


class Named(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return Outputs(logits=self.module(x))


def root(o, y):
    return ((o[:, 0] * 0) ** 2) ** 0.5 + (o[:, 0] - y) ** 2


def own(o, y):
    z = o - np.log(np.exp(o).sum(1, keepdims=True))
    return float(-np.mean(z[np.arange(len(y)), y]))


LOSS = own(X @ W[3], CLASSES)
TABLE: dict[str, tuple[Any, dict[str, Any]]] = {
    "a loss that broadcasts": (
        given(F.mse_loss, lambda o, y: jnp.mean((o - y) ** 2), y=REAL, outputs=1),
        {
            "from_torch": Refused("not a mean over examples: of 31 examples it is"),
            "TorchOracle": Refused(r"broadcasts outputs of shape \(4, 1\) against targets of shape \(4,\)"),
            "JaxOracle": Refused("not a mean over examples"),
            "SklearnOracle": OWN,
        },
    ),
    "a sum": (
        given(lambda o, y: F.cross_entropy(o, y, reduction="sum"), lambda o, y: jnp.sum(cross(o, y))),
        {
            "from_torch": Refused("not a mean over examples: of 31 examples it is .* each of them twice"),
            "TorchOracle": Refused("not a mean over examples: of a batch of 4 it is .* twice"),
            "JaxOracle": Refused("not a mean over examples: .* is the sum of their own values"),
            "SklearnOracle": OWN,
        },
    ),
    "a loss of another shape": (
        given(lambda o, y: o.abs().amax(0), lambda o, y: jnp.max(o, 0)),
        {
            "from_torch": Refused(r"is of shape \(3,\): it must be one real number"),
            "TorchOracle": Refused(r"is of shape \(3,\): it must be one real number"),
            "JaxOracle": Refused(r"is of shape \(3,\) .*: it must be one real number"),
            "SklearnOracle": OWN,
        },
    ),
    "no number": (
        given(lambda o, y: (F.cross_entropy(o, y), 1), lambda o, y: (mean_cross(o, y), 1)),
        dict.fromkeys(WAYS[:3], Refused("is a tuple: it must be one real number")) | {"SklearnOracle": OWN},
    ),
    "each example's own": (
        given(lambda o, y: F.cross_entropy(o, y, reduction="none"), cross),
        dict.fromkeys(WAYS[:3], Right(LOSS)) | {"SklearnOracle": OWN},
    ),
    "no gradient": (
        given(
            lambda o, y: (o.argmax(1) != y).float().mean() + 1,
            lambda o, y: jnp.mean((o.argmax(1) != y).astype(o.dtype)) + 1,
        ),
        dict.fromkeys(WAYS[:3], Refused("depends on no parameter, so it has no gradient"))
        | {"SklearnOracle": OWN},
    ),
    "a gradient of another shape": (
        given(lambda o, y: Wrong.apply(o).mean() / len(y), lambda o, y: wrong(o) / len(y)),
        {
            "from_torch": Refused("invalid gradient|cannot be trained|fails"),
            "TorchOracle": Refused("the gradient of the loss fails on outputs"),
            "JaxOracle": Refused("the gradient of the loss fails on a batch of shape"),
            "SklearnOracle": OWN,
        },
    ),
    "a gradient of another tree": (
        given(jax=lambda o, y: two(o) / len(y)),
        {
            "from_torch": NotHere("gradients are asked for by name"),
            "TorchOracle": NotHere("gradients are asked for by name"),
            "JaxOracle": Refused("the gradient of the loss fails on a batch of shape"),
            "SklearnOracle": OWN,
        },
    ),
    "a parameter that plays no part": (
        given(module=with_unused, params=lambda p: p | {"unused": np.ones(2, np.float32)}),
        dict.fromkeys(WAYS[:3], Right(LOSS)) | {"SklearnOracle": OWN},
    ),
    "a loss that fails": (
        given(lambda o, y: F.mse_loss(o, y[:, :2]), lambda o, y: jnp.mean((o - y[:, :2]) ** 2), y=X[:, :3]),
        {
            "from_torch": Refused(r"the loss fails on outputs of shape \(31, 3\)"),
            "TorchOracle": Refused(r"the loss fails on outputs of shape \(4, 3\)"),
            "JaxOracle": Refused(
                r"the loss fails on a batch of shape \(2, 4\) float32 and of shape \(2, 3\)"
            ),
            "SklearnOracle": Refused(r"y have shape \(9, 3\)"),
        },
    ),
    "a module that returns several": (
        given(module=Named),
        {
            "from_torch": Refused(
                r"not Outputs: wrap the module in one that returns a tensor of the Outputs"
            ),
            "TorchOracle": Refused(
                r"not Outputs: wrap the module in one that returns a tensor of the Outputs"
            ),
        }
        | dict.fromkeys(WAYS[2:], NotHere("a loss of the outputs is theirs")),
    ),
    "inputs of another width": (
        given(x=X[:, :3]),
        {
            "from_torch": Refused(r"Linear fails in evaluation on inputs of shape \(31, 3\)"),
            "TorchOracle": Refused(r"Linear fails in training on inputs of shape \(4, 3\)"),
            "JaxOracle": Refused(r"the loss fails on a batch of shape \(2, 3\)"),
            "SklearnOracle": NotHere("the width of its parameters is that of x"),
        },
    ),
    "a loss that is not finite": (
        given(
            lambda o, y: (torch.log(o[:, 0] - 1e3) - y).mean(),
            lambda o, y: jnp.mean(jnp.log(o[:, 0] - 1e3) - y),
            y=REAL,
            outputs=1,
        ),
        {
            "from_torch": InRound("the training loss of the initial model is nan already: look at the data"),
            "TorchOracle": InRound("the loss is not finite at the model that the steps begin from: look"),
            "JaxOracle": InRound("the loss is not finite at the model that the steps begin from: look"),
            "SklearnOracle": OWN,
        },
    ),
    "a gradient that is not finite": (
        given(lambda o, y: root(o, y).mean(), lambda o, y: jnp.mean(root(o, y)), y=REAL, outputs=1),
        dict.fromkeys(
            WAYS[:3],
            InRound("the gradient of the loss is not finite at the model that the steps begin from: look"),
        )
        | {"SklearnOracle": OWN},
    ),
    "a gradient that is not finite on the last example": (
        given(
            lambda o, y: torch.sqrt(y * (1 + o[:, 0] ** 2)).mean(),
            lambda o, y: jnp.mean(jnp.sqrt(y * (1 + o[:, 0] ** 2))),
            y=np.append(np.ones(len(REAL) - 1, np.float32), np.float32(0)),
            outputs=1,
        ),
        {
            "from_torch": InRound(
                f"the gradient of the loss is not finite on example {len(REAL) - 1} of client 0 at"
            ),
            "TorchOracle": InRound(
                "the gradient of the loss is not finite at the model that the steps begin from: look"
            ),
            "JaxOracle": InRound(
                "the gradient of the loss is not finite at the model that the steps begin from: look"
            ),
            "SklearnOracle": OWN,
        },
    ),
    "numbers of 16 bits": (
        given(
            module=lambda m: m.bfloat16(),
            params=lambda p: jax.tree.map(lambda a: jnp.asarray(a, jnp.bfloat16), p),
        ),
        {
            "from_torch": Right(own(X @ np.asarray(jnp.asarray(W[3], jnp.bfloat16), np.float32), CLASSES)),
            "TorchOracle": Refused("the module has bfloat16 numbers in weight: runs are in float32"),
            "JaxOracle": Refused(r"the model has bfloat16 numbers in w: runs are in float32"),
            "SklearnOracle": NotHere("its parameters are fedsolve's own"),
        },
    ),
    "integers in the model": (
        given(params=lambda p: p | {"count": np.arange(2)}),
        {
            "from_torch": NotHere("PyTorch has no integer parameters"),
            "TorchOracle": NotHere("PyTorch has no integer parameters"),
            "JaxOracle": Refused("the model must be floating-point arrays"),
            "SklearnOracle": NotHere("its parameters are fedsolve's own"),
        },
    ),
    "labels out of range": (
        given(y=CLASSES + 1),
        {
            "from_torch": Refused("the targets are 1 to 3"),
            "TorchOracle": Refused(
                "the targets of a batch are 1 to 3, and the module has outputs for 3 classes"
            ),
            "JaxOracle": Refused("looks up entries 1 to 3 of an axis of 3"),
            "SklearnOracle": Refused(r"label 3 in row 2 of y is not among classes"),
        },
    ),
    "labels as floating-point numbers": (
        given(y=CLASSES.astype(np.float32)),
        {
            "from_torch": Refused("expected target dtype to be Long"),
            "TorchOracle": Refused("expected target dtype to be Long"),
            "JaxOracle": Refused(
                "the loss fails on a batch .*: TypeError: take_along_axis indices must be of integer"
            ),
            "SklearnOracle": Right(float(np.log(3))),
        },
    ),
    "integer features": (
        given(x=(10 * X).astype(int)),
        dict.fromkeys(WAYS[:2], Refused("Linear fails in .* the same dtype, but got"))
        | {
            "JaxOracle": Right(own((10 * X).astype(int) @ W[3], CLASSES)),
            "SklearnOracle": Right(float(np.log(3))),
        },
    ),
    "complex features": (
        given(x=X.astype(np.complex64)),
        dict.fromkeys(WAYS[:2], Refused("Linear fails in .* the same dtype, but got"))
        | {
            "JaxOracle": Refused("and type complex64: it must be one real number"),
            "SklearnOracle": Refused("x has type complex64: give real numbers"),
        },
    ),
    "NaN among the first": (
        given(x=LATE[::-1].copy(), y=CLASSES[::-1].copy()),
        {
            "from_torch": Refused("field .x of client 0 holds a non-finite number in row 0"),
            "TorchOracle": Refused("the inputs of a batch hold a number that is not finite"),
            "JaxOracle": Refused(r"field \[0\] of this client holds a non-finite number in row 0"),
            "SklearnOracle": Refused("field .x of this client holds a non-finite number in row 0"),
        },
    ),
    "NaN in a later batch": (
        given(x=LATE),
        {
            "from_torch": Refused("holds a non-finite number in row 8"),
            "TorchOracle": InRound("the inputs of a batch hold a number that is not finite"),
            "JaxOracle": Refused("holds a non-finite number in row 8"),
            "SklearnOracle": Refused("holds a non-finite number in row 8"),
        },
    ),
    "a batch in which nothing counts": (
        given(
            y=np.where(np.arange(9) < 4, -100, CLASSES),
            jax=lambda o, y: jnp.sum(jnp.where(y >= 0, cross(o, jnp.maximum(y, 0)), 0)) / jnp.sum(y >= 0),
        ),
        {
            "from_torch": Right(own(X[4:] @ W[3], CLASSES[4:])),
            "TorchOracle": Right(own(X[4:] @ W[3], CLASSES[4:])),
            "JaxOracle": Refused("the loss is not a mean over examples"),
            "SklearnOracle": Refused("label -100 in row 0 of y is not among classes"),
        },
    ),
    "a batch larger than the data": (
        given(size=100),
        dict.fromkeys(WAYS[:3], Right(LOSS)) | {"SklearnOracle": Right(float(np.log(3)))},
    ),
    "no examples": (
        given(x=X[:0], y=CLASSES[:0]),
        {
            "from_torch": Refused("client 0 has no examples"),
            "TorchOracle": Refused("the loader is empty"),
            "JaxOracle": Refused("this client has no examples"),
            "SklearnOracle": Refused("this client has no examples"),
        },
    ),
    "fields of different lengths": (
        given(y=CLASSES[:8]),
        {
            "from_torch": Refused(r"different lengths \[8, 9\]"),
            "TorchOracle": Refused("a batch of the loader has no targets"),
            "JaxOracle": Refused(r"different lengths \[8, 9\]"),
            "SklearnOracle": Refused(r"x has shape \(9, 4\), y \(8,\)"),
        },
    ),
    "one row in the last batch under BatchNorm": (
        given(
            module=lambda m: nn.Sequential(m, nn.BatchNorm1d(3)),
            jax=lambda o, y: mean_cross((o - o.mean(0)) / jnp.sqrt(o.var(0) + 1e-5), y),
        ),
        {
            "from_torch": Refused("a batch of client 0 has one example: .* take another batch_size"),
            "TorchOracle": Refused("a batch of the loader has one example: .* or drop_last=True"),
            "JaxOracle": Refused("not a mean over examples: .* GroupNorm for BatchNorm"),
            "SklearnOracle": OWN,
        },
    ),
    "negative weights": (
        given(options={"sample_weight": -np.ones(9)}),
        dict.fromkeys(WAYS[:3], NotHere("weights are part of the user's loss and examples"))
        | {"SklearnOracle": Refused("sample_weight of shape .* must be a finite number of at least 0")},
    ),
    "weights that are not finite": (
        given(options={"sample_weight": np.full(9, np.nan)}),
        dict.fromkeys(WAYS[:3], NotHere("as a loss, or data, that is not finite"))
        | {"SklearnOracle": Refused("sample_weight of shape .* must be a finite number of at least 0")},
    ),
    "64 bits inside": (
        given(
            lambda o, y: F.cross_entropy(o.double(), y),
            lambda o, y: mean_cross(o, y).astype(np.float64),
        ),
        dict.fromkeys(WAYS[:3], Right(LOSS)) | {"SklearnOracle": OWN},
    ),
    "another value each time": (
        given(Counting(F.cross_entropy), Counting(mean_cross)),
        {
            "from_torch": Refused("computed again with the same weights.*keep in a buffer"),
            "TorchOracle": Refused("computed again with the same weights.*keep in a buffer"),
            "JaxOracle": Refused("differs between two evaluations"),
            "SklearnOracle": OWN,
        },
    ),
    "chance from NumPy": (
        given(
            lambda o, y: F.cross_entropy(o, y) * (1 + 0 * np.random.standard_normal()),  # noqa: NPY002
            lambda o, y: mean_cross(o, y) * np.random.default_rng().random(),
        ),
        {
            "from_torch": Right(LOSS),
            "TorchOracle": Right(LOSS),
            "JaxOracle": Refused("differs between two evaluations .*np.random"),
            "SklearnOracle": OWN,
        },
    ),
    "a model that writes to itself": (
        given(module=writing),
        dict.fromkeys(WAYS[:2], Refused("Writing writes to its parameter 'weight' when it is called"))
        | {"JaxOracle": NotHere("arrays of JAX cannot be written to"), "SklearnOracle": OWN},
    ),
}


def test_the_table_has_no_hole():
    assert {(name, *cells) for name, (_, cells) in TABLE.items()} == {(name, *WAYS) for name in TABLE}


DEAR = {  # whose module is compared with PyTorch, or whose round is compiled
    (name, "from_torch")
    for name, (_, cells) in TABLE.items()
    if not isinstance(cells["from_torch"], Refused | NotHere) and name != "a batch in which nothing counts"
}
CELLS = [
    pytest.param(name, way, id=f"{name}, {way}", marks=[pytest.mark.full] * ((name, way) in DEAR))
    for name, way in itertools.product(TABLE, WAYS)
    if not isinstance(TABLE[name][1][way], NotHere)
]


@pytest.mark.filterwarnings(
    "ignore:Using a target size", "ignore:Explicitly requested dtype", "ignore:Casting complex"
)
@pytest.mark.parametrize(("name", "way"), CELLS)
def test_each_way_in(name, way):
    case, cells = TABLE[name]
    cell = cells[way]
    if isinstance(cell, Refused):
        with pytest.raises(InvalidInput, match=cell.words) as caught:
            make(way, case)
        assert "\n" not in str(caught.value)
        return
    made = make(way, case)
    if isinstance(cell, InRound):
        with pytest.raises(fs.FedsolveError, match=cell.words):
            work(way, made)
    else:
        assert value_of(way, made, case) == pytest.approx(cell.value, rel=1e-4)
