"""Rounds compiled beside what runs: once each, with the same bits, and never a user's own code."""

import threading
from typing import Any

import jax
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.engine.preparation import ahead
from fedsolve.tasks import Linear, SquaredError

ROUNDS: dict[str, Any] = {"rounds": 2, "clients_per_round": 2, "progress": False}


def small(loss: Any = SquaredError):
    draw, model = np.random.default_rng(0), Linear(11)
    clients = [fs.Examples(draw.normal(size=(n, 11)), draw.normal(size=n)) for n in (4, 7, 5)]
    return fs.Task("small", model.init, loss(model), fs.FederatedData.from_clients(clients))


def own(model):
    """A user's loss."""
    return lambda params, batch: SquaredError(model)(params, batch)


@pytest.fixture
def traced():
    """The name of the thread that traced rounds, each time."""
    names = []

    def listen(event: str, duration_secs: float, **about: Any) -> None:
        if event.endswith("jaxpr_trace_duration") and about.get("fun_name") == "on_all_devices":
            names.append(threading.current_thread().name)

    jax.monitoring.register_event_duration_secs_listener(listen)  # there is no way to remove one
    return names


def methods(rate):
    return {
        "a": fs.FedAvg(rate),
        "b": fs.FedAvgM(client_lr=rate, server_lr=0.5),
        "c": fs.FedProx(rate, mu=0.1),
    }


def test_each_methods_rounds_are_traced_once_and_give_the_same_bits(traced, monkeypatch):
    jax.clear_caches()
    task = small()
    found = fs.compare(methods(0.01), task, seeds=2, **ROUNDS)
    assert len(traced) == 3
    assert threading.current_thread().name not in traced
    monkeypatch.setattr(ahead, "_is_ours", lambda task, algorithm: False)
    jax.clear_caches()
    again = fs.compare(methods(0.01), task, seeds=2, **ROUNDS)
    for a, b in zip(found.histories, again.histories, strict=True):
        np.testing.assert_array_equal(a.evaluations["train_loss"], b.evaluations["train_loss"])


def test_a_users_loss_is_traced_by_what_runs_alone(traced):
    fs.run(fs.FedAvg(0.01), small(own), **ROUNDS)
    assert traced == [threading.current_thread().name]


def test_what_fails_beside_is_left_to_the_run(monkeypatch):
    def fails(*given):
        raise ValueError("too early")

    monkeypatch.setattr(ahead, "prepare", fails)
    assert len(fs.compare(methods(0.02), small(), **ROUNDS).histories) == 3
