"""What clients do: momentum, decay, clipping, schedules, epochs or steps, optax on either side."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedsolve as fs
from equations.cases import EVERY, FULL, SOME, check_fedopt
from equations.server_rules import Average
from equations.transcript import Federation, LocalSGD, fedopt
from harness import engine, make_clients, make_task


@EVERY
def test_momentum_decay_and_clipping(sampling):
    """g = clip(g + .1 y, .5), b = .7 b + g, y -= .2 b; b starts at 0 each round; some gradients are
    clipped.
    """
    algorithm = fs.FedAvg(0.2, client_momentum=0.7, weight_decay=0.1, clip_norm=0.5)
    local = LocalSGD(0.2, momentum=0.7, decay=0.1, clip=0.5)
    check_fedopt(algorithm, lambda: Average(1.0), local, "examples", sampling)


def test_fedprox_clips_the_proximal_gradient():
    """FedProx's local objective is f_i + (mu/2)|y - w|^2: its whole gradient is clipped."""
    algorithm = fs.FedProx(0.3, mu=1.0, clip_norm=0.3, weight_decay=0.1, weighting="uniform")
    local = LocalSGD(0.3, mu=1.0, clip=0.3, decay=0.1)
    check_fedopt(algorithm, lambda: Average(1.0), local, "uniform", SOME)


@EVERY
def test_schedules(sampling):
    """eta_l = .4 x .9^t and eta_g = 1.5 / sqrt(t + 1), t from 0; an empty round counts as a round."""
    algorithm = fs.FedAvg(fs.schedules.Exponential(0.4, 0.9), server_lr=fs.schedules.InverseSqrt(1.5))
    rule = lambda: Average(lambda t: 1.5 / math.sqrt(t + 1))  # noqa: E731
    check_fedopt(algorithm, rule, LocalSGD(lambda t: 0.4 * 0.9**t), "examples", sampling, close=1e-10)


def linear(t):
    return 0.4 - 0.03 * t


def test_optax_schedules():
    """optax.linear_schedule(.4, .1, 10) is .4 - .03 t on the client; an exponential decay on the server."""
    algorithm = fs.FedAvg(
        optax.linear_schedule(0.4, 0.1, 10),
        server_lr=optax.exponential_decay(1.0, 1, 0.9),
        weighting="uniform",
    )
    check_fedopt(algorithm, lambda: Average(lambda t: 0.9**t), LocalSGD(linear), "uniform", SOME)


@EVERY
@pytest.mark.parametrize("steps", [1, 5])
def test_local_steps(sampling, steps):
    """K steps for everyone; a client of 7 in batches of 4 has 4 + 3 rows in a pass, then a new shuffle."""
    check_fedopt(fs.FedAvg(0.3), lambda: Average(1.0), LocalSGD(0.3), "examples", sampling, local_steps=steps)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.full
def test_even_clients(steps):
    """Five clients of 8 rows in batches of 4: the engine has no mask and no padding, the transcript is the same."""
    check_fedopt(
        fs.FedAvg(0.3),
        lambda: Average(1.0),
        LocalSGD(0.3),
        "examples",
        SOME,
        sizes=(8,) * 5,
        by=engine,
        local_steps=steps,
    )


def test_full_batches():
    """batch = all rows of the largest client: every step sees the whole client, the engine shuffles nothing."""
    clients = make_clients()
    run = engine(fs.FedAvg(0.3), make_task(clients, batch=None, local_steps=3), FULL)
    fed = Federation(clients, run.cohorts, None, 12, None, 3)
    want, _ = fedopt(fed, run.iterates[0], LocalSGD(0.3), Average(1.0), "examples")
    assert run.orders[0] is None
    np.testing.assert_allclose(run.iterates, want, rtol=1e-10, atol=1e-12)


class NumpyAdam:
    """Kingma and Ba: m, v with bias correction; start it anew with `fresh`."""

    def __init__(self, lr, b1=0.9, b2=0.999, eps=1e-8):
        self.lr, self.b1, self.b2, self.eps = lr, b1, b2, eps
        self.m = self.v = 0.0
        self.count = 0

    def move(self, g):
        self.count += 1
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.b2 * self.v + (1 - self.b2) * g**2
        m, v = self.m / (1 - self.b1**self.count), self.v / (1 - self.b2**self.count)
        return -self.lr * m / (np.sqrt(v) + self.eps)


class ServerMove:
    """w += move(-D) of a NumPy optimiser."""

    def __init__(self, optimiser):
        self.optimiser = optimiser

    def __call__(self, w, D, spread, size, t):
        return w + self.optimiser.move(-D), self.optimiser.lr


class NumpyNesterov:
    lr = 0.5

    def __init__(self):
        self.b = 0.0

    def move(self, g):
        self.b = 0.9 * self.b + g
        return -self.lr * (g + 0.9 * self.b)


@EVERY
def test_optax_on_the_server(sampling):
    """optax.adam(.05, b1=.8) sees -D as its gradient, once per round with a cohort."""
    algorithm = fs.FedOpt(fs.client.SGD(0.3), fs.server.Optax(optax.adam, learning_rate=0.05, b1=0.8))
    check_fedopt(algorithm, lambda: ServerMove(NumpyAdam(0.05, 0.8)), LocalSGD(0.3), "examples", sampling)


def test_another_optax_rule():
    """optax.sgd with Nesterov momentum (a flag is part of the program): b = .9 b + g, w -= .5 (g + .9 b)."""
    rule = fs.server.Optax(optax.sgd, learning_rate=0.5, momentum=0.9, nesterov=True)
    check_fedopt(
        fs.FedOpt(fs.client.SGD(0.3), rule),
        lambda: ServerMove(NumpyNesterov()),
        LocalSGD(0.3),
        "examples",
        SOME,
    )


def local_adam(fed, t, i, w, correction=0.0):
    adam, y = NumpyAdam(0.05 * 0.9**t, b2=0.99), w
    for rows in fed.minibatches(t, i):
        y = y + adam.move(fed.gradient(i, y, rows))
    return y


@EVERY
def test_optax_on_the_client(sampling):
    """optax.adam starts anew on every client in every round; its learning rate follows .05 x .9^t."""
    local = fs.client.Optax(optax.adam, learning_rate=fs.schedules.Exponential(0.05, 0.9), b2=0.99)
    algorithm = fs.FedOpt(local, fs.server.ServerSGD(0.9))
    check_fedopt(algorithm, lambda: Average(0.9), local_adam, "examples", sampling)


class DeltaSteps:
    """The step of Delta-SGD, afresh in each round; keeps the ratios after which a step grew freely."""

    def __init__(self, first, gamma, delta):
        self.first, self.gamma, self.delta, self.grew_after, self.count = first, gamma, delta, [], 0

    def __call__(self, fed, t, i, w):
        y, eta, theta, before = w, self.first, 1.0, None
        for rows in fed.minibatches(t, i):
            g = fed.gradient(i, y, rows)
            if before is not None:
                changed = np.linalg.norm(g - before)
                grown = math.sqrt(1 + self.delta * theta) * eta
                bound = self.gamma * eta * np.linalg.norm(before) / (2 * changed)
                self.count += 1
                self.grew_after += [theta] * int(grown < bound)
                theta, eta = min(bound, grown) / eta, min(bound, grown)
            y, before = y - eta * g, g
        return y


@EVERY
def test_delta_sgd(sampling):
    """Steps that grow and steps that the gradients' change bounds; uneven clients take unlike numbers of them."""
    local = DeltaSteps(0.2, 2.0, 0.5)
    check_fedopt(fs.FedDeltaSGD(gamma=2.0, delta=0.5), lambda: Average(1.0), local, "uniform", sampling)
    assert min(local.grew_after) < 0.5
    assert len(local.grew_after) < local.count


@pytest.mark.parametrize(("curvature", "second"), [(8.0, 1 / 8), (2.0, 0.2 * 1.1**0.5)])
def test_delta_sgd_on_a_parabola(curvature, second):
    """|g_1 - g_0| = L |y^1 - y^0|: the second step is 1 / L, or as much as a step may grow; then y is 0, or nearly."""
    task = fs.Task.from_arrays(
        lambda y, batch: jnp.mean(curvature / 2 * jnp.sum(y**2) * batch[0]),
        np.ones(3),
        [(np.ones((1, 1)),)],
    )
    found = fs.run(fs.FedDeltaSGD(), task, rounds=1, local_steps=2, dtype="float64").params
    np.testing.assert_allclose(
        found, (1 - 0.2 * curvature) * (1 - second * curvature), rtol=1e-12, atol=1e-15
    )


def test_delta_sgd_of_one_step_is_fedavg_and_standing_still_is_no_curvature():
    """At a minimum nothing moves: the step grows, is a number, and another minibatch's gradient is followed."""
    task = make_task(make_clients(), local_steps=1)
    one, other = (
        engine(m, task, SOME, 4) for m in (fs.FedDeltaSGD(0.4), fs.FedAvg(0.4, weighting="uniform"))
    )
    np.testing.assert_array_equal(one.iterates, other.iterates)
    x = np.array([[0.0], [0.0], [1.0]])  # of three steps the first two have no gradient, or the last two
    task = fs.Task.from_arrays(lambda y, batch: jnp.mean(batch[0] @ y), np.ones(1), [(x,)], batch_size=1)
    found = fs.run(fs.FedDeltaSGD(delta=3.0), task, rounds=1, dtype="float64").params
    steps = [0.2, 0.2 * 2, 0.2 * 2 * 7**0.5]
    assert np.isclose(1 - np.asarray(found), steps).sum() == 1
