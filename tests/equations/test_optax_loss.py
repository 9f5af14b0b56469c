"""Optimisers of optax that ask for the loss, that restart an estimate, and that are evaluated at another point."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedsolve as fs
from equations.cases import SOME
from fedsolve.core.optax_bridge import asked_for, transformation
from harness import crossed, make_clients, make_task
from verbs_harness import play

FEDOPT, SGD = fs.FedOpt, fs.client.SGD(0.3)


def test_polyak_of_optax_is_polyak_on_the_server():
    """The loss comes in units of D: tau_i f_i."""
    task = make_task(make_clients())
    theirs = FEDOPT(SGD, fs.server.Optax(optax.polyak_sgd, max_learning_rate=1e9))
    ours = play(FEDOPT(SGD, fs.server.Polyak()), task, SOME, 6).iterates
    np.testing.assert_allclose(play(theirs, task, SOME, 6).iterates, ours, rtol=1e-10)


def test_what_is_asked_for():
    assert asked_for(transformation(optax.adam, learning_rate=0.1)) == ()
    assert asked_for(transformation(optax.contrib.momo)) == ("value",)
    assert "value_fn" in asked_for(transformation(optax.lbfgs))
    with pytest.raises(
        fs.InvalidInput, match="lbfgs asks for losses at other models, which a server has not"
    ):
        fs.server.Optax(optax.lbfgs)
    with pytest.raises(fs.InvalidInput, match="needs clients whose steps add up gradients"):
        FEDOPT(fs.client.Optax(optax.adam, learning_rate=0.1), fs.server.Optax(optax.contrib.momo))


@pytest.mark.parametrize("factory", [optax.contrib.dog, optax.contrib.prodigy])
def test_an_estimate_that_restarts_is_told(factory):
    params = {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}
    assert "keep=True" in fs.client.Optax(factory).why_it_stands_still(params, 5, 40)
    assert fs.client.Optax(factory, keep=True).why_it_stands_still(params, 5, 40) == ""
    assert fs.client.Optax(optax.adam, learning_rate=0.1).why_it_stands_still(params, 5, 40) == ""


def test_schedule_free_is_evaluated_at_its_point():
    """The server's model is where gradients are taken; the exported one is the mean of optax's own definition."""
    rule = fs.server.Optax(optax.contrib.schedule_free_sgd, learning_rate=1.0)
    run = play(FEDOPT(SGD, rule), make_task(make_clients()), SOME, 4)
    server = run.state.server
    point = optax.contrib.schedule_free_eval_params(server.server_optimizer.optax, server.params)
    flat = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(p)]) for p in (point, server.params)]
    np.testing.assert_allclose(run.iterates[-1], flat[0], rtol=1e-12)
    assert np.abs(flat[0] - flat[1]).max() > 1e-3
    solver = fs.client.Optax(optax.contrib.schedule_free_sgd, keep=True, learning_rate=1.0)
    with pytest.raises(fs.InvalidInput, match="an iterate of its own, which a client would keep"):
        play(FEDOPT(solver, fs.server.ServerSGD()), make_task(make_clients()), SOME, 1)


@pytest.mark.parametrize(
    "factory", crossed([optax.contrib.momo, optax.polyak_sgd, optax.lbfgs], [optax.lbfgs])
)
def test_clients_give_the_loss(factory):
    run = play(FEDOPT(fs.client.Optax(factory), fs.server.ServerSGD()), make_task(make_clients()), SOME, 2)
    assert np.abs(run.iterates[-1] - run.iterates[0]).max() > 1e-3


@pytest.mark.parametrize("keep", [True, None])
@pytest.mark.filterwarnings("ignore:Specifying a key")
def test_a_random_key_is_not_kept(keep):
    """Neither on the server nor by clients."""
    noisy = {"learning_rate": 0.1, "factory": optax.noisy_sgd}
    server = fs.server.Optax(**noisy) if keep is None else fs.server.ServerSGD()
    method = FEDOPT(SGD if keep is None else fs.client.Optax(keep=True, **noisy), server)
    with pytest.raises(fs.InvalidInput, match="keeps a random key in its state"):
        fs.run(method, make_task(make_clients()), rounds=1)


def test_arguments_and_models_that_do_not_fit():
    for make in (fs.client.Optax, fs.server.Optax):
        with pytest.raises(
            fs.InvalidInput, match=r"adam cannot be called with these arguments: missing .*learning_rate"
        ):
            make(optax.adam)
    rule = fs.server.Optax(optax.adamw, learning_rate=0.1, mask={"other": True})
    with pytest.raises(fs.InvalidInput, match="cannot start from this model"):
        rule.init({"w": jnp.zeros(2)})
