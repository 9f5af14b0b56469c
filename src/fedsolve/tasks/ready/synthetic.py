"""synthetic(alpha, beta): softmax regression with clients whose models and inputs differ (Li et al. 2020)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsolve.core.building import by_name
from fedsolve.core.errors import InvalidInput, check_integer, check_number
from fedsolve.data.federated import FederatedData
from fedsolve.tasks.models.models import MLP, Softmax
from fedsolve.tasks.shared import classification, pick
from fedsolve.tasks.task import Examples, Task

FEATURES, CLASSES = 60, 10
_MOST_CLIENTS = 1_000_000
_WIDEST = 1e6  # beyond, rounding decides the labels
MODELS = {"softmax": Softmax(FEATURES, CLASSES), "mlp": MLP((FEATURES, 20, 20, CLASSES))}
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
    chosen = pick("model", model, MODELS)
    rng = np.random.default_rng(check_integer("seed", seed))
    if check_integer("num_clients", num_clients, 1) > _MOST_CLIENTS:
        raise InvalidInput(
            f"num_clients = {num_clients} of about 450 examples each: give at most {_MOST_CLIENTS}"
        )
    sizes = rng.lognormal(4.0, 2.0, num_clients).astype(np.int64) + 50
    if max_examples is not None:  # 5 so that each client holds out one: the test set is never empty
        sizes = np.minimum(sizes, check_integer("max_examples", max_examples, 5))
    shared = _weights(rng, 0.0)
    train, test = [], []
    for k, n in enumerate(sizes):
        weight, bias = shared if iid else _weights(rng, alpha * rng.standard_normal())
        center = 0.0 if iid else beta * rng.standard_normal() + rng.standard_normal(FEATURES)
        labels = (k + np.arange(labels_per_client or CLASSES)) % CLASSES
        examples = _examples(rng, n, weight, bias, center, np.sort(labels))
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
    return center + rng.standard_normal((FEATURES, CLASSES)), center + rng.standard_normal(CLASSES)


def _examples(
    rng: np.random.Generator,
    n: int,
    weight: np.ndarray,
    bias: np.ndarray,
    center: np.ndarray | float,
    labels: np.ndarray,
) -> Examples:
    # labels: among which the best is taken
    deviation = np.arange(1, FEATURES + 1) ** -0.6  # variance j^-1.2
    x = center + deviation * rng.standard_normal((n, FEATURES))
    y = labels[np.argmax((x @ weight + bias)[:, labels], axis=1)]
    return Examples(x.astype(np.float32), y.astype(np.int32))
