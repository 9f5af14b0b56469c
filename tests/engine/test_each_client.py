"""Metrics of each client at chosen rounds, of clients that train and of unseen ones, against NumPy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.results.callbacks import EachClient
from fedsolve.results.clients import ClientMetrics
from harness import squares as loss

RNG = np.random.default_rng(0)


def made(sizes):
    return [(RNG.normal(size=(n, 3)), RNG.normal(size=n)) for n in sizes]


CLIENTS, UNSEEN = made((10, 4, 7, 9)), made((5, 3))


def sign(w, b):
    return jnp.mean((b[0] @ w > 0) == (b[1] > 0))


def by_hand(w, clients):
    return [np.mean((x @ np.asarray(w) - y) ** 2) for x, y in clients]


def run(clients=CLIENTS, callbacks=(), start=None, **more):
    given = {"unseen": UNSEEN, "metrics": {"sign_accuracy": sign}, "batch_size": 4}
    task = fs.Task.from_arrays(loss, np.zeros(3) if start is None else start, clients, **given)
    options = {"rounds": 4, "eval_every": 2, "clients_per_round": 2, "dtype": "float64"} | more
    return fs.run(fs.FedAvg(0.1), task, callbacks=callbacks, **options)


@pytest.mark.full
def test_each_client_at_chosen_rounds():
    models, seen, unseen = {}, EachClient(rounds=(2, 3)), EachClient(unseen=True)

    def keep(at):
        models[at.round] = np.asarray(at.result().params)

    result = run(callbacks=[keep, seen, unseen])
    assert list(seen.found) == [2]  # no evaluation after round 3
    assert list(unseen.found) == [0, 2, 4]
    np.testing.assert_allclose(seen.found[2].column("loss"), by_hand(models[2], CLIENTS), rtol=1e-12)
    assert seen.found[2].examples.tolist() == [10, 4, 7, 9]
    for done, model in models.items():
        np.testing.assert_allclose(unseen.found[done].column("loss"), by_hand(model, UNSEEN), rtol=1e-12)
    assert seen.found[2].column("loss").max() == result.metrics["client_loss_worst"][1]
    assert run().params.tolist() == result.params.tolist()  # looking changes nothing


@pytest.mark.full
def test_clients_that_are_left_out_have_no_name_there():
    look = EachClient()
    lost = (np.full((4, 3), 1e200), np.full(4, 1e200))
    result = run([*CLIENTS[:1], lost, *CLIENTS[1:]], [look], start=np.ones(3))
    names = fs.FederatedData.from_clients([*CLIENTS, lost]).names
    assert look.found[4].names == tuple(names[i] for i in (0, 2, 3, 4))
    np.testing.assert_allclose(look.found[4].column("loss"), by_hand(result.params, CLIENTS), rtol=1e-12)


METRICS = ClientMetrics(
    tuple("abcd"), np.ones(4), {"loss": np.array([1.0, 4.0, np.nan, 2.0]), "accuracy": np.array([0.9, 0.1, 0.5, 0.2])}
)  # fmt: skip


def test_deciles_the_worst_and_groups():
    assert METRICS.deciles("accuracy")[[0, 5, 10]].tolist() == [0.1, 0.35, 0.9]
    assert METRICS.worst("loss", 3) == [("b", 4.0), ("d", 2.0), ("a", 1.0)]
    assert METRICS.worst("accuracy", 2) == [("b", 0.1), ("d", 0.2)]
    assert METRICS.by_group("accuracy", ["x", "y", "x", "y"]) == pytest.approx({"x": 0.7, "y": 0.15})
    assert repr(METRICS) == "ClientMetrics(4 clients: loss, accuracy)"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: METRICS.deciles("los"), "unknown metric of clients 'los': did you mean 'loss'"),
        (lambda: METRICS.by_group("loss", "xy"), "2 groups for 4 clients"),
        (lambda: METRICS.worst("loss", 0), "count = 0"),
        (
            lambda: fs.run(
                fs.FedAvg(0.1), fs.Task.from_arrays(loss, np.zeros(3), CLIENTS), rounds=1,
                callbacks=[EachClient(unseen=True)],
            ),
            "task custom has no unseen clients",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_one_line(call, words):
    with pytest.raises(fs.InvalidInput, match=words):
        call()
