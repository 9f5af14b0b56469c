"""Validation examples: held out by example or by client, measured, stopped by, and the same for runs and sweeps."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs

RNG = np.random.default_rng(0)
CLIENTS = [(RNG.normal(size=(n, 3)), RNG.normal(size=n)) for n in (10, 4, 7, 9)]


def loss(w, b):
    return jnp.mean((b[0] @ w - b[1]) ** 2)


TASK = fs.Task.from_arrays(loss, np.zeros(3), CLIENTS, batch_size=4)
OPTIONS = {"rounds": 6, "eval_every": 2, "clients_per_round": 2, "dtype": "float64"}


def by_hand(w, examples):
    x, y = examples
    return np.mean((x @ np.asarray(w) - y) ** 2)


@pytest.mark.gate("client")
@pytest.mark.parametrize("by", ["example", "client"])
def test_what_is_held_out_is_measured_and_not_trained_on(by):
    task = TASK.hold_out(0.25, by=by)
    rows = np.concatenate([task.data.examples[1], task.validation[1]])
    assert sorted(rows) == sorted(np.concatenate([y for _, y in CLIENTS]))
    if by == "example":
        assert (TASK.data.counts - task.data.counts).tolist() == [2, 1, 2, 2]  # round(n / 4)
        owned = [np.isin(task.validation[1], y).nonzero()[0] for _, y in CLIENTS]
        assert [task.validation_clients[i].tolist() for i in owned] == [[0, 0], [1], [2, 2], [3, 3]]
    else:
        assert task.data.num_clients == 3
        assert any(np.array_equal(task.validation[1], y) for _, y in CLIENTS)
    result = fs.run(fs.FedAvg(0.1), task, **OPTIONS)
    assert result.metrics["validation_loss"][-1] == pytest.approx(
        by_hand(result.params, task.validation), rel=1e-12
    )
    if by == "example":
        alone = fs.Task("custom", task.init, loss, task.data, batch_size=4)
        np.testing.assert_array_equal(fs.run(fs.FedAvg(0.1), alone, **OPTIONS).params, result.params)


@pytest.mark.full
def test_runs_and_sweeps_hold_out_alike():
    task = TASK.hold_out(0.25)
    (one,) = fs.sweep("FedAvg", TASK, {"client_lr": [0.1]}, validation=0.25, **OPTIONS).metrics[
        "validation_loss"
    ]
    (two,) = fs.sweep("FedAvg", task, {"client_lr": [0.1]}, **OPTIONS).metrics["validation_loss"]
    np.testing.assert_array_equal(one, two)
    run = fs.run(fs.FedAvg(0.1), task, **OPTIONS)
    np.testing.assert_allclose(one[0], run.metrics["validation_loss"], rtol=1e-12)


@pytest.mark.full
def test_a_run_stops_by_them():
    worse = fs.Task.from_arrays(loss, np.zeros(3), CLIENTS, validation=(-CLIENTS[0][0], CLIENTS[0][1]))
    stop = [fs.callbacks.EarlyStopping("validation_loss", 1)]
    result = fs.run(fs.FedAvg(0.05), worse, **(OPTIONS | {"clients_per_round": 4}), callbacks=stop)
    assert "validation_loss was no better" in result.history.notes[-1]


def test_a_client_without_a_loss_is_left_out_of_them():
    clients = [*CLIENTS, (np.full((4, 3), 1e200), np.full(4, 1e200))]
    task = fs.Task.from_arrays(loss, np.ones(3), clients, batch_size=4).hold_out(0.25)
    result = fs.run(fs.FedAvg(0.1), task, **OPTIONS)
    assert "left out of all metrics" in result.history.notes[0]
    assert np.isfinite(result.metrics["validation_loss"]).all()
    assert result.metrics["validation_loss"][0] == pytest.approx(
        by_hand(np.ones(3), [a[task.validation_clients < 4] for a in task.validation]), rel=1e-12
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: TASK.hold_out(1.0), "validation = 1.0"),
        (lambda: TASK.hold_out(0.1, by="client"), "validation = 0.1 holds out 0 of 4 clients"),
        (
            lambda: TASK.hold_out(0.2, by="clients"),
            "unknown way to hold out 'clients': did you mean 'client'",
        ),
        (lambda: TASK.hold_out(0.25).hold_out(0.25), "has validation examples already"),
        (
            lambda: fs.Task("t", TASK.init, loss, TASK.data, validation=(np.ones((2, 3)), np.ones(3))),
            "validation set",
        ),
    ],
)
def test_what_cannot_be_held_out_is_one_line(call, words):
    with pytest.raises(fs.InvalidInput, match=words) as raised:
        call()
    assert "\n" not in str(raised.value)
