"""Drawn data: anisotropic, sparse and low-rank regressions, and synthetic(alpha, beta) of Li et al. 2020."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedsolve.core.building import by_name
from fedsolve.core.errors import InvalidInput, check_integer, check_number, is_integer
from fedsolve.data.federated import FederatedData
from fedsolve.geometry.diagnostics import RecoveryError, Support
from fedsolve.tasks.losses.losses import SquaredError
from fedsolve.tasks.models.models import MLP, Affine, Linear, MatrixLinear, Softmax
from fedsolve.tasks.shared import classification, pick
from fedsolve.tasks.task import Examples, Task


@by_name("regression")
def anisotropic_regression(
    seed: int = 0,
    num_clients: int = 20,
    examples_per_client: int = 30,
    features: int = 1000,
    decay: float = 1.1,
    client_variance: float = 0.1,
) -> Task:
    """Anisotropic linear regression (Takakura et al. 2025): input variances k^-decay, one weight vector per example.

    For client i and example j: w_i ~ N(0, client_variance I), w_ij ~ N(w_i, I), x_ij ~ N(0, diag(k^-decay)),
    y_ij = <w_ij, x_ij>. With the defaults 600 examples meet 1,000 weights, so some w fits all of them. The
    model is <w, x> from w = 0; a round is 20 local steps on all 30 examples; there is no test set.

    The loss is the mean of squares without a half: the paper only says "linear regression", and this is what
    its framework (PyTorch) calls the squared error. With a half, every client_lr would be twice as large. The
    paper's N(0, 0.1) is read as a variance.

    Args:
        seed: of the data, at least 0.
        num_clients: M, 20 in the paper; at least 1.
        examples_per_client: |D_i|, 30 in the paper; at least 1.
        features: d, 1,000 in the paper; at least 1.
        decay: the paper's beta, 1.1; 0 gives isotropic inputs; at least 0.
        client_variance: variance of each coordinate of w_i, at least 0.

    Returns:
        The task `regression`, x float (clients x examples_per_client, features), y of one number for each row.

    Raises:
        InvalidInput: a size below 1 or a negative or non-finite number.
    """
    x, y, _ = draw_regression(seed, num_clients, examples_per_client, features, decay, client_variance)
    pooled = Examples(x.reshape(-1, features), y.reshape(-1))  # float64: a run in float64 sees exact data
    model = Linear(features)
    return Task(
        name="regression",
        init=model.init,
        loss=SquaredError(model),
        data=FederatedData(pooled, np.full(num_clients, examples_per_client)),
        batch_size=None,
        epochs=None,
        local_steps=20,
        citation="takakura2025feddua",
    )


def draw_regression(
    seed: int, num_clients: int, examples_per_client: int, features: int, decay: float, client_variance: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    # x and w (clients, examples, features), y (clients, examples), float64
    rng = np.random.default_rng(check_integer("seed", seed))
    shape = (
        check_integer("num_clients", num_clients, 1),
        check_integer("examples_per_client", examples_per_client, 1),
        check_integer("features", features, 1),
    )
    check_number("decay", decay, at_least=0)
    check_number("client_variance", client_variance, at_least=0)
    deviation = np.arange(1, features + 1) ** (-decay / 2)
    of_client = np.sqrt(client_variance) * rng.standard_normal((num_clients, 1, features))
    w = of_client + rng.standard_normal(shape)
    x = deviation * rng.standard_normal(shape)
    return x, np.sum(w * x, axis=-1), w


FEATURES, SIDE, TEST_EXAMPLES = 1024, 32, 2000


class Setup(NamedTuple):
    """One of the paper's data sets: ones in the truth, clients, examples of each client."""

    ones: int
    clients: int
    examples: int


LASSO = {1: Setup(512, 64, 128), 2: Setup(64, 64, 128), 3: Setup(8, 64, 128), 4: Setup(512, 256, 32)}
"""The four data sets of sparse regression."""
LOWRANK = {1: Setup(16, 64, 128), 2: Setup(4, 64, 128), 3: Setup(1, 64, 128), 4: Setup(16, 256, 32)}
"""The four data sets of matrix estimation."""


@by_name("lasso")
def lasso(dataset: int = 1, seed: int = 0) -> Task:
    """Sparse regression on 1,024 features, 64 clients of 128 or 256 of 32 examples (Yuan et al. 2021).

    The true w has ones in its first 512, 64, 8 or 512 coordinates (data sets 1 to 4) and zeros elsewhere, the
    true b ~ N(0, 1). Client m has a center mu_m ~ N(0, I); x = mu_m + N(0, I), y = <w, x> + b + N(0, 1).
    The model is <w, x> + b from zero, the loss the mean of squares without a half, a round one epoch of
    batches of 10. `truth` holds w and b; runs measure the support and the recovery
    error of w. 2,000 further examples of the same clients are the test set.

    A minibatch Hessian has an eigenvalue near 2 |mu_m|^2, about 2,100: plain local steps need a client
    rate below 1e-3.

    Args:
        dataset: 1 to 4; 4 has 256 clients of 32 examples. 1 to 3 share their inputs and noise.
        seed: of the data, at least 0.

    Returns:
        The task `lasso-1` to `lasso-4`, whose model is an `Affine` of weight (1024,) and a scalar bias, both 0.

    Raises:
        InvalidInput: another data set, or a seed that is none.
    """
    setup = _setup(dataset, LASSO, "ones")
    weight = np.zeros(FEATURES)
    weight[: setup.ones] = 1
    return _task(f"lasso-{dataset}", Linear(FEATURES, bias=True), weight, setup, seed)


@by_name("lowrank")
def lowrank(dataset: int = 1, seed: int = 0) -> Task:
    """Estimation of a 32 x 32 matrix of low rank, 64 clients of 128 or 256 of 32 (Yuan et al. 2021).

    The true W has ones in the first 16, 4, 1 or 16 places of its diagonal (data sets 1 to 4), which is its
    rank, and zeros elsewhere; the true b ~ N(0, 1). Client m has a center M_m of N(0, 1) entries;
    X = M_m + N(0, 1), y = <W, X> + b + N(0, 1). The model is <W, X> + b from zero; loss, batches, test set
    and `truth` are those of `lasso`.

    Args:
        dataset: 1 to 4; 4 has 256 clients of 32 examples. 1 to 3 share their inputs and noise.
        seed: of the data, at least 0.

    Returns:
        The task `lowrank-1` to `lowrank-4`, whose model is an `Affine` of weight (32, 32) and a scalar bias, both 0.

    Raises:
        InvalidInput: another data set, or a seed that is none.
    """
    setup = _setup(dataset, LOWRANK, "the rank")
    weight = np.diag((np.arange(SIDE) < setup.ones).astype(float))
    return _task(f"lowrank-{dataset}", MatrixLinear(SIDE, SIDE, bias=True), weight, setup, seed)


def _setup(dataset: int, known: Mapping[int, Setup], what: str) -> Setup:
    if not is_integer(dataset) or dataset not in known:
        sizes = ", ".join(f"{i} ({s.ones}; {s.clients} x {s.examples})" for i, s in known.items())
        raise InvalidInput(
            f"dataset = {dataset!r} must be one of {sizes}, in brackets {what} and clients x examples"
        )
    return known[int(dataset)]


def _task(name: str, model: Linear | MatrixLinear, weight: np.ndarray, setup: Setup, seed: int) -> Task:
    # find `weight` and a bias from noisy inner products; diagnostics measure how much of it is found
    data, test, bias = draw_composite(weight, setup, seed)
    truth = Affine(weight, np.asarray(bias))
    support = (Support(truth, on="weight"),) if weight.ndim == 1 else ()
    return Task(
        name=name,
        init=model.init,
        loss=SquaredError(model),
        data=data,
        test=test,
        batch_size=10,
        epochs=1,
        citation="yuan2021fco",
        diagnostics=(*support, RecoveryError(truth, "weight")),
        truth=truth,
    )


def draw_composite(
    weight: np.ndarray, setup: Setup, seed: int, test_examples: int = TEST_EXAMPLES
) -> tuple[FederatedData, Examples, float]:
    # float64; x (n, *weight.shape), y (n,). Held-out examples are dealt evenly, in the order of the clients:
    # the first ones have one more where they do not divide
    rng = np.random.default_rng(check_integer("seed", seed))
    bias = float(rng.standard_normal())
    centers = rng.standard_normal((setup.clients, *weight.shape))

    def draw(counts: np.ndarray) -> Examples:
        x = np.repeat(centers, counts, axis=0)
        x += rng.standard_normal(x.shape)
        y = np.tensordot(x, weight, weight.ndim) + bias + rng.standard_normal(len(x))
        return Examples(x, y)  # float64, so that a run in float64 sees exact data, as in `regression`

    counts = np.full(setup.clients, setup.examples)
    held_out = test_examples // setup.clients + (np.arange(setup.clients) < test_examples % setup.clients)
    return FederatedData(draw(counts), counts), draw(held_out), bias


SYNTHETIC_FEATURES, CLASSES = 60, 10
_MOST_CLIENTS = 1_000_000
_WIDEST = 1e6  # beyond, rounding decides the labels
SYNTHETIC_MODELS = {
    "softmax": Softmax(SYNTHETIC_FEATURES, CLASSES),
    "mlp": MLP((SYNTHETIC_FEATURES, 20, 20, CLASSES)),
}
"""Models of the task by name; the MLP is the network of Dadras et al. 2024."""


@by_name("synthetic")
def synthetic(
    alpha: float = 1.0,
    beta: float = 1.0,
    num_clients: int = 30,
    iid: bool = False,
    seed: int = 0,
    labels_per_client: int | None = None,
    model: Any = "softmax",
    max_examples: int | None = None,
) -> Task:
    """Synthetic(alpha, beta) of Li et al. 2020: softmax regression from zero, 60 features, 10 classes.

    Client k has floor(lognormal(4, 2)) + 50 examples, y = argmax(x W_k + b_k), with
    W_k, b_k ~ N(u_k, 1), u_k ~ N(0, alpha^2): how much the clients' models differ;
    x ~ N(v_k, diag(j^-1.2)), v_kj ~ N(B_k, 1), B_k ~ N(0, beta^2): how much their inputs differ.
    alpha and beta are standard deviations, as in the authors' code (the paper's N(0, alpha) leaves it open).
    u_k adds the same to all logits of an example, so alpha does not change its label: the clients' models
    differ by their own N(u_k, 1) draws, at alpha = 0 too. alpha is kept because the problem is named by it.
    With `iid` every client has the same W, b ~ N(0, 1) and v = 0. A random fifth of each client's
    examples (rounded down) is held out, all of it together.

    With `labels_per_client` = c, client k (from 0) knows only the labels (k + j) mod 10, j = 0 .. c - 1: y is
    the largest of these c logits. Its inputs and size stay as they are without it; no example is thrown
    away, because a client's own model may hardly ever choose the labels it is given. Dadras et al. 2024 have
    c = 3, alpha = beta = 0.5 and 10 or 100 clients; their code makes the whole problem one of c classes
    instead.

    Args:
        alpha: 0 to 10^6; keep 1 with `iid`, where it has no meaning.
        beta: 0 to 10^6; keep 1 with `iid`, where it has no meaning.
        num_clients: 30 in the paper; at least 1.
        iid: identical clients but for their sizes.
        seed: of the data, at least 0.
        labels_per_client: labels of a client, 1 to 10; default all. Not with `iid`.
        model: "softmax", "mlp" (two hidden layers of 20), or any model of 60 inputs and 10 logits.
        max_examples: at most so many examples of a client, held-out ones included, >= 5; default no limit
            (the largest of 100 clients has tens of thousands).

    Returns:
        The task `synthetic-1-1` (alpha, beta) or `synthetic-iid`, with `accuracy` as its metric; x of shape (n, 60).

    Raises:
        InvalidInput: a number out of its range, an option given with `iid` that has no meaning there,
            or a model that does not fit.
    """
    for what, deviation in (("alpha", alpha), ("beta", beta)):
        check_number(what, deviation, at_least=0, at_most=_WIDEST)
    if iid and (alpha, beta) != (1.0, 1.0):
        raise InvalidInput(f"alpha = {alpha}, beta = {beta} have no meaning with iid = True: leave them out")
    _check_labels_per_client(labels_per_client, iid)
    chosen = pick("model", model, SYNTHETIC_MODELS)
    rng = np.random.default_rng(check_integer("seed", seed))
    if check_integer("num_clients", num_clients, 1) > _MOST_CLIENTS:
        raise InvalidInput(
            f"num_clients = {num_clients} of about 450 examples each: give at most {_MOST_CLIENTS}"
        )
    sizes = rng.lognormal(4.0, 2.0, num_clients).astype(np.int64) + 50
    if max_examples is not None:  # 5 so that each client holds out one: the test set is never empty
        sizes = np.minimum(sizes, check_integer("max_examples", max_examples, 5))
    shared = _weights(rng, 0.0)
    deviation = np.arange(1, SYNTHETIC_FEATURES + 1) ** -0.6  # variance j^-1.2
    train, test = [], []
    for k, n in enumerate(sizes):
        weight, bias = shared if iid else _weights(rng, alpha * rng.standard_normal())
        center = 0.0 if iid else beta * rng.standard_normal() + rng.standard_normal(SYNTHETIC_FEATURES)
        labels = np.sort((k + np.arange(labels_per_client or CLASSES)) % CLASSES)
        x = center + deviation * rng.standard_normal((n, SYNTHETIC_FEATURES))
        y = labels[np.argmax((x @ weight + bias)[:, labels], axis=1)]
        examples = Examples(x.astype(np.float32), y.astype(np.int32))
        held_out = n // 5  # the examples are independent draws: the first ones are as random as any
        test.append(Examples(*(a[:held_out] for a in examples)))
        train.append(Examples(*(a[held_out:] for a in examples)))
    pooled = Examples(np.concatenate([t.x for t in test]), np.concatenate([t.y for t in test]))
    name = "synthetic-iid" if iid else f"synthetic-{alpha:g}-{beta:g}"
    name += "" if labels_per_client is None else f"-{labels_per_client}labels"
    data = FederatedData.from_clients(train)
    return classification(name, chosen, CLASSES, data, pooled, "li2020fedprox")


def _check_labels_per_client(count: int | None, iid: bool) -> None:
    if count is None:
        return
    if iid:
        raise InvalidInput(f"labels_per_client = {count} has no meaning with iid = True: leave one out")
    if check_integer("labels_per_client", count, 1) > CLASSES:
        raise InvalidInput(f"labels_per_client = {count} is more than the {CLASSES} classes: give fewer")


def _weights(rng: np.random.Generator, center: float) -> tuple[np.ndarray, np.ndarray]:
    # W (features, classes) and b (classes,), all ~ N(center, 1)
    return center + rng.standard_normal((SYNTHETIC_FEATURES, CLASSES)), center + rng.standard_normal(CLASSES)
