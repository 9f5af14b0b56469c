"""Rates that are negative or not a number: refused before anything is compiled, or in the round where they come up."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedsolve as fs
from fedsolve.core.schedules import Reacting, Schedule
from fedsolve.core.types import Scalar, module, replace
from fedsolve.deploy.server.serve import Deployment
from fedsolve.deploy.server.settings import Settings
from harness import make_clients, make_task

TASK = make_task(make_clients())


def falling(t):
    return 0.05 - 0.01 * t


@module
class Falling(Schedule):
    """A user's: 0.05 - slope t."""

    slope: Scalar

    def __call__(self, round):
        return 0.05 - self.slope * round


@module
class Turning(Reacting):
    """One whose rate is another after some evaluations."""

    rate: Scalar
    then: Scalar
    at: Scalar

    def __call__(self, round):
        return self.rate

    def after(self, evaluations):
        return replace(self, rate=self.then) if len(evaluations["round"]) >= self.at else self


@pytest.fixture
def nothing_compiled(monkeypatch):
    """No round of a run may begin."""

    def never(*given):
        raise AssertionError("a round was run")

    monkeypatch.setattr("fedsolve.engine.prepare.compiled_advance", never)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (lambda: fs.FedAvg(lambda t: -0.1), r"client_lr = .* is -0.1 in round 0 .*finite and at least 0"),
        (lambda: fs.FedAvg(falling), r"client_lr = .*falling.* is -0.01 in round 6 "),
        (lambda: fs.FedAvg(Falling(0.02)), r"client_lr = Falling\(.* is -0.01 in round 3 "),
        (lambda: fs.FedAvg(0.1, server_lr=lambda t: jnp.log(3.0 - t)), "server_lr = .* is -inf in round 3 "),
        (lambda: fs.FedAvg(lambda t: jnp.sqrt(6.5 - t)), "client_lr = .* is nan in round 7 "),
        (
            lambda: fs.FedOpt(fs.client.Optax(optax.sgd, learning_rate=Falling(0.02)), fs.server.ServerSGD()),
            "client_lr = Falling.* is -0.01 in round 3 ",
        ),
        (
            lambda: fs.ControlVariates(fs.FedAvg(0.1, server_lr=Falling(0.02))),
            "server_lr = Falling.* is -0.01 in round 3 ",
        ),
    ],
)
def test_a_schedule_is_looked_at_over_all_rounds_before_the_run(method, words, nothing_compiled):
    with pytest.raises(fs.InvalidInput, match=words):
        fs.run(method(), TASK, rounds=8)


def test_in_a_sweep_and_a_federation_too(nothing_compiled):
    with pytest.raises(fs.InvalidInput, match=r"client_lr = Falling\(.* is -0.01 in round 3 "):
        fs.sweep(lambda slope: fs.FedAvg(Falling(slope)), TASK, {"slope": [0.001, 0.02]}, rounds=8)
    with pytest.raises(fs.InvalidInput, match=r"client_lr = .*falling.* is -0.01 in round 6 "):
        Deployment.of(fs.FedAvg(falling), {"w": np.zeros(2)}, Settings(rounds=8, population=2))


@pytest.mark.full
def test_a_warm_up_from_nothing_and_a_later_round_are_none_of_it():
    """0 is a rate, in rounds 0 and 6, and what comes after the last round does not matter."""
    fs.run(fs.FedAvg(lambda t: 0.01 * t * (6 - t)), TASK, rounds=7)


@pytest.mark.parametrize(("then", "shown"), [(-1.0, "-1"), (float("nan"), "nan")])
def test_a_rate_that_reacts_is_looked_at_when_it_changes(then, shown):
    """After the evaluation of round 4, the third, rounds 4 and 5 would have it; those before were run."""
    words = rf"client_lr = Turning\(rate={shown}[.,].*\) is {shown} in round 4 \(rounds count from 0\)"
    with pytest.raises(fs.InvalidInput, match=words):
        fs.run(fs.FedAvg(Turning(0.1, then, 3)), TASK, rounds=8, eval_every=2)
    fs.run(
        fs.FedAvg(Turning(0.1, then, 5)), TASK, rounds=8, eval_every=2
    )  # of the last evaluation: no round follows
    with pytest.raises(fs.InvalidInput, match=words):
        fs.sweep(lambda x: fs.FedAvg(Turning(x, then, 3)), TASK, {"x": [0.1]}, rounds=8, eval_every=2)
