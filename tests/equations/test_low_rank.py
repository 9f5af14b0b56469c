"""Low-rank updates against NumPy: rounds of the four averages, what each misses of the mean, and their limits."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from equations.cases import (
    CLOSE,
    FULL,
    ROUNDS,
    SOME,
    availability,
    compare,
    displacement_error,
    federation,
)
from equations.transcript import shares
from fedsolve.core.algorithm import Cohort, client_update_of
from fedsolve.core.sampling import Trace
from fedsolve.methods.low_rank import FactorOracle, Factors, random_factors
from harness import CLASSES, FEATURES, engine, make_clients, make_task
from verbs_harness import play

RATE, SERVER, ALPHA, RANK = 0.5, 0.8, 1.7, 1
AVERAGES = ("both", "A", "exact", "stack")
CUT = FEATURES * CLASSES


def drawn(*numbers):
    """A of the weight, from the seed of the implementation."""
    with jax.enable_x64(True):
        shape = jnp.zeros((FEATURES, CLASSES))
        return np.array(random_factors(shape, RANK, *numbers).a)


def transcript(fed, w, average, weighting):
    """FedAvg on (B, A, bias), one client after another; the model after each round."""
    base, bias = w[:CUT].reshape(FEATURES, CLASSES), w[CUT:]
    b, a = np.zeros((FEATURES, RANK)), drawn()
    iterates = [w]
    for t, cohort in enumerate(fed.cohorts):
        ends = []
        for i in cohort:
            y, z, v = (0 * b, drawn(t, i), bias) if average == "stack" else (b, a, bias)
            for rows in fed.minibatches(t, i):
                model = np.concatenate([(base + ALPHA / RANK * y @ z).ravel(), v])
                gradient = fed.gradient(i, model, rows)
                g = ALPHA / RANK * gradient[:CUT].reshape(FEATURES, CLASSES)
                step = 0.0 if average == "A" else y.T @ g
                y, z, v = y - RATE * g @ z.T, z - RATE * step, v - RATE * gradient[CUT:]
            ends.append((y, z, v))
        if ends:
            p = shares(fed, cohort, weighting)
            mean = lambda parts, p=p: np.tensordot(p, np.stack(parts), 1)  # noqa: E731
            product = mean([y @ z for y, z, _ in ends])
            mean_b, mean_a = mean([y for y, _, _ in ends]), mean([z for _, z, _ in ends])
            bias = bias + SERVER * (mean([v for _, _, v in ends]) - bias)
            if average == "stack":
                base = base + SERVER * ALPHA / RANK * product
            else:
                b, a = b + SERVER * (mean_b - b), a + SERVER * (mean_a - a)
            if average == "exact":
                base = base + ALPHA / RANK * (product - mean_b @ mean_a)
        iterates.append(np.concatenate([(base + ALPHA / RANK * b @ a).ravel(), bias]))
    return np.stack(iterates)


def method(average: Any, weighting: Any = "uniform", rank=RANK, **options):
    inner = fs.FedAvg(RATE, server_lr=SERVER, weighting=weighting)
    return fs.LowRank(inner, rank, average, leaves="weight", alpha=ALPHA, **options)


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("by", [play, pytest.param(engine, marks=pytest.mark.full)])
def test_rounds(average, by):
    """Every iterate, with cohorts that vary and are empty once, of clients of 3 to 12 examples."""
    clients = make_clients()
    weighting: Any = "examples" if by is engine else "uniform"
    run = by(method(average, weighting), make_task(clients), SOME, ROUNDS)
    iterates = transcript(federation(run, clients), run.iterates[0], average, weighting)
    run.logs.setdefault("server_lr", np.full(ROUNDS, np.nan))
    compare(run, iterates, np.full(ROUNDS, SERVER))


ROWS, COLUMNS, WIDE = 6, 8, 2
CENTERS = np.random.default_rng(3).standard_normal((4, ROWS, COLUMNS))


class Near(fs.Oracle):
    """A client's loss |W - C|^2 / 2 for a matrix of its own; three local steps."""

    num_examples = batch_size = 1
    steps = bound = 3

    def __init__(self, client):
        self.client = client

    def __call__(self, params, step):
        residual = params["w"] - jnp.asarray(CENTERS)[self.client]
        return jnp.sum(residual**2) / 2, {"w": residual}

    def loss(self, params, step):
        return self(params, step)[0]

    def full(self, params):
        return self(params, 0)


@partial(jax.jit, static_argnums=0)
def a_round(method, server, t):
    """What the server makes of the message of each client, the models of single clients, and the next server."""
    everyone, alone = (Cohort(t, n, n) for n in (len(CENTERS), 1))
    broadcast = method.broadcast(server, everyone)
    start = method.init_client(broadcast)

    def of_client(i):
        message = method.receive(broadcast, method.train(broadcast, start, Near(i))[0], start)[0]
        return message, method.export(method.update(server, message, alone))

    messages, models = jax.vmap(of_client)(jnp.arange(len(CENTERS)))
    mean = jax.tree.map(lambda x: x.mean(0), messages)
    return messages, models, method.update(server, mean, everyone)


FRANK_WOLFE = fs.FedFW(fs.geometry.NuclearBall(9.0))


@pytest.mark.parametrize("average", [*AVERAGES, "rank-one atoms"])
def test_what_an_average_misses_of_the_mean_of_the_clients_models(average):
    """Averaged factors: s times the covariance of dB and dA. The others, and rank-one atoms of FedFW: nothing.

    A client's model is what the server has after a round with that client alone.
    """
    with jax.enable_x64(True):
        inner = fs.FedAvg(0.05, weighting="uniform")
        method = fs.LowRank(inner, WIDE, average, alpha=ALPHA) if average in AVERAGES else FRANK_WOLFE
        server: Any = method.init({"w": jnp.asarray(CENTERS[0] / 9)})
        for t in range(2):  # B is 0 in the first
            before, (messages, models, server) = server, a_round(method, server, np.int32(t))
        models = np.array(models["w"])
        error = np.array(method.export(server)["w"]) - models.mean(0)
        spread = np.linalg.norm(models[0] - models[1])
    assert spread > 0.1
    if average != "both":
        assert np.linalg.norm(error) < 1e-14 * spread
        return
    assert before.inner.params["w"].b.any()
    update = client_update_of(messages)["w"]
    b, a = np.array(update.b), np.array(update.a)
    covariance = np.einsum("imr,irn->mn", b - b.mean(0), a - a.mean(0)) / len(CENTERS)
    np.testing.assert_allclose(error, -ALPHA / WIDE * covariance, rtol=0, atol=1e-14)
    assert np.linalg.norm(error) > 0.01 * spread


def test_gradients_of_factors():
    """G is what the whole model has: s G A' of B and s B' G of A; a leaf without factors has its own."""
    rng = np.random.default_rng(0)
    b, a = rng.standard_normal((ROWS, WIDE)), rng.standard_normal((WIDE, COLUMNS))
    with jax.enable_x64(True):
        method = fs.LowRank(fs.FedAvg(), WIDE, "exact", alpha=ALPHA)
        base = {"w": jnp.asarray(CENTERS[1])}
        oracle = FactorOracle(Near(2), lambda factors: method._whole(base, factors))
        params = {"w": Factors(jnp.asarray(b), jnp.asarray(a))}
        s, found = ALPHA / WIDE, [oracle(params, 0), oracle.full(params)]
        loss = oracle.loss(params, 0)
    g = CENTERS[1] + s * b @ a - CENTERS[2]
    for value, gradient in found:
        np.testing.assert_allclose([float(value), float(loss)], np.sum(g**2) / 2, rtol=1e-14)
        np.testing.assert_allclose(gradient["w"].b, s * g @ a.T, rtol=1e-12)
        np.testing.assert_allclose(gradient["w"].a, s * b.T @ g, rtol=1e-12)


def same(ours, theirs, sampling=SOME):
    a, b = (play(method, make_task(make_clients()), sampling, ROUNDS).iterates for method in (ours, theirs))
    return displacement_error(a[1:], b[1:], b[0]) < CLOSE


def test_limits():
    """With factors larger than the matrix it is the inner method; with one client a round, `exact` is `both`."""
    for average in ("both", "stack"):
        assert same(method(average, rank=3), method(average, rank=3).inner)
    one = Trace(availability([[t % 5] for t in range(ROUNDS)]), 1)  # pyright: ignore[reportArgumentType]
    assert same(method("exact"), method("both"), one)
    assert not same(method("exact"), method("both"))
    assert not same(method("both"), method("A"), one)


def test_around_control_variates():
    """SCAFFOLD of factors: c and c_i have their shapes, and the clients' mean drift is 0."""
    run = play(fs.LowRank(fs.SCAFFOLD(RATE), 1), make_task(make_clients()), FULL, ROUNDS)
    control = run.state.server.inner.control
    assert control.weight.b.shape == (FEATURES, 1)
    of_clients = jax.tree.map(lambda x: x.mean(0), run.state.clients.control)
    for c, c_i in zip(jax.tree.leaves(control), jax.tree.leaves(of_clients), strict=True):
        np.testing.assert_allclose(c, c_i, atol=1e-12)
