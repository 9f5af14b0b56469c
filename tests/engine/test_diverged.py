"""What is said of a run that diverged: the rates as they were, or that they are not to blame."""

from __future__ import annotations

import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedsolve as fs
from fedsolve.config.build import arguments, build, example_of
from fedsolve.config.catalogue import ALGORITHMS
from fedsolve.core.errors import InvalidInput
from fedsolve.engine.checks.methods import divergence_hint, largest_value, rates
from fedsolve.engine.compute.casting import cast
from fedsolve.methods.client import Optax
from fedsolve.methods.server import ServerSGD
from fedsolve.results.sweep import Selection, SweepRecord
from harness import cross_entropy, make_clients, make_task

REFUSED = {"client_lr", "server_lr", "eta_max", "eta", "mu", "tau", "client_momentum", "clip_norm"}
NO_RATE = ("FedFW", "FedFWPlus", "FedFWSto", "PAdaMFed", "Newton", "FastFedDA", "CFedDA", "MCFedDA")


@pytest.mark.parametrize("name", [*ALGORITHMS, "SCAFFOLD+FedProx+FedAdam"])
def test_every_method_names_its_rates(name):
    """Those that the catalogue takes (eta_max of a line search too); Frank-Wolfe, FastFedDA, PAdaMFed, Newton none."""
    own = arguments(name)
    found = rates(build(name, example_of(name)), 3)
    assert all(math.isfinite(value) for value in found.values())
    assert bool(found) == (name not in NO_RATE)
    for rate in ("client_lr", "server_lr", "eta_max"):
        if rate in own and own[rate].default is not None:
            assert found[rate] == own[rate].default, rate


@pytest.mark.full_rows("DP+FedAvg")
@pytest.mark.parametrize("name", [*ALGORITHMS, "SCAFFOLD+FedProx+FedAdam", "DP+FedAvg"])
def test_a_number_that_the_type_cannot_hold_is_refused_under_its_arguments_name(name):
    """Not under the field that keeps it, such as `inner.local.lr`; 1e-50 is 0 in float32."""
    known = arguments(name)
    for argument in REFUSED.intersection(known):
        method = build(name, example_of(name) | {argument: 1e-50})
        with pytest.raises(InvalidInput, match=rf"^{argument} = 1e-50 of .* is no more than 0 in float32"):
            cast(method, jnp.float32)
    assert REFUSED.intersection(known) or name in NO_RATE


def test_a_rate_by_round_and_an_optax_optimisers_are_refused_under_their_names():
    by_round = fs.FedAvg(client_lr=fs.schedules.Exponential(1e-50, 0.5))
    with pytest.raises(InvalidInput, match=r"^client_lr\.initial = 1e-50 of FedAvg"):
        cast(by_round, jnp.float32)
    with pytest.raises(InvalidInput, match=r"^client_lr = 1e-50 of "):
        cast(fs.FedOpt(Optax(optax.adam, learning_rate=1e-50), ServerSGD()), jnp.float32)
    with pytest.raises(InvalidInput, match=r"^b1 = 1e-50 of "):
        cast(fs.FedOpt(Optax(optax.adam, learning_rate=1.0, b1=1e-50), ServerSGD()), jnp.float32)


def test_schedules_have_the_value_of_the_round():
    method = fs.FedAvg(client_lr=fs.schedules.Exponential(0.8, 0.5), server_lr=fs.schedules.InverseSqrt(2.0))
    assert rates(method, 3) == {"client_lr": 0.1, "server_lr": 1.0}


def test_the_rate_of_an_optax_optimiser_is_found():
    found = rates(fs.FedOpt(Optax(optax.adam, learning_rate=0.25), ServerSGD()), 0)
    assert found == {"client_lr": 0.25, "server_lr": 1.0}


WORDS = [
    ((2.3, {"client_lr": 10.0}, 1.0), " (client_lr 10): lower the rates"),
    ((2.3, {"client_lr": 0.1}, 3e12), " (client_lr 0.1): scale the data, which reach 3e+12, or lower the rates"),
    ((2.3, {}, 1.0), ": X has no rate of its own to lower: look at the data and the loss"),
    ((2.3, {}, 3e12), ": X has no rate of its own to lower: scale the data, which reach 3e+12"),
    ((math.inf, {"client_lr": 0.1}, 3e30), ": the training loss of the initial model is inf already, the data reach "
     "3e+30: look at the data, the loss and the initial model"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "words"), WORDS)
def test_words(given, words):
    assert divergence_hint(*given, "X") == words


def test_the_size_of_the_data_is_that_of_its_real_numbers():
    assert largest_value((jnp.array([3, 700]), jnp.array([-5.5, 2.0]))) == 5.5
    assert largest_value(jnp.array([1, 2])) == 0


def broken(params, batch):
    """A loss that is not finite from the start."""
    return cross_entropy(params, batch) + jnp.log(0 * jnp.sum(params.bias))


RUNS = [
    (fs.FedAvg(client_lr=1e38), 1.0, None, r"\(client_lr 1e\+38, server_lr 1\): lower the rates\. No"),
    (fs.FedAvg(client_lr=1.0), 1e30, None, r"\(client_lr 1, server_lr 1\): scale the data, which reach [\d.]+e\+30"),
    (fs.FedAvg(client_lr=0.1), 1.0, broken, "the training loss of the initial model is -inf already: look at"),
]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize(("method", "scale", "loss", "words"), RUNS)
def test_a_run_says_why(method, scale, loss, words):
    clients = [c._replace(x=scale * c.x) for c in make_clients()]
    task = make_task(clients)
    task = task if loss is None else replace(task, loss=loss)
    with pytest.raises(fs.Diverged, match=words):
        fs.run(method, task, rounds=2)


def sweep_of(grid, start):
    count = math.prod(map(len, grid.values()))
    return SweepRecord(
        "X", "small", grid, (0,), np.array([0, 2]), {"train_loss": np.array([[[start, np.nan]]] * count)},
        np.ones((count, 1), int), Selection.parse("training-loss"),
    )  # fmt: skip


SWEEPS = [
    ({"client_lr": (1.0, 0.1), "tau": (1e-3, 1.0)}, 2.3, "the smallest tried were client_lr = 0.1: try smaller ones"),
    ({"steps.lam0": (1.0, 0.1)}, 2.3, r"no axis \(steps.lam0\) is a rate: look at the data, the loss and the rates"),
    ({"client_lr": (1.0, 0.1)}, np.nan, "the training loss of the initial model is nan already: look at the data"),
]  # fmt: skip


@pytest.mark.parametrize(("grid", "start", "words"), SWEEPS)
def test_a_sweep_of_which_all_diverged_says_why(grid, start, words):
    with pytest.raises(
        fs.Diverged, match=f"all {math.prod(map(len, grid.values()))} settings of X diverged.*{words}"
    ):
        sweep_of(grid, start).best  # noqa: B018


def test_a_loss_that_overflows_after_the_last_round_is_said():
    """The model is finite, and no later round trains from it to notice."""
    rows = (np.ones((4, 2), np.float32), np.ones(4, np.float32))
    task = fs.Task.from_arrays(
        lambda w, b: jnp.mean((b[0] @ w - b[1]) ** 2), np.zeros(2, np.float32), [rows, rows]
    )
    found = fs.run(fs.FedAvg(0.1, server_lr=1e22), task, rounds=1)
    assert np.isfinite(found.params).all()
    assert not np.isfinite(found.history.evaluations["train_loss"][-1])
    said = "the last train_loss is inf, of a model that is finite (client_lr 0.1, server_lr 1e+22): lower the rates"
    assert said in found.history.notes
    assert not any("that is finite" in note for note in fs.run(fs.FedAvg(0.1), task, rounds=1).history.notes)
