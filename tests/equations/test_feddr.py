"""FedDR against Algorithm 1 of Tran Dinh et al. 2021: inexact by local SGD, exact on least squares; float64."""

from __future__ import annotations

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from conformance.properties import HandOracle
from equations.cases import CLOSE, EVERY, FULL, ROUNDS, SOME, displacement_error, federation
from equations.composite_transcript import ALL, WEIGHT, Psi, feddr
from fedsolve.core.oracle import ProximalOracle
from fedsolve.geometry import L1, L1Ball, L2Ball
from harness import SIZES, crossed, default_start, make_clients, make_task, squares
from verbs_harness import play

ETA = 0.7
PSI = {
    "l1": (L1(0.05), Psi([(ALL, "l1", 0.05)])),
    "l1 on weight": (L1(0.05).on("weight"), Psi([(WEIGHT, "l1", 0.05)])),
    "l1 ball": (L1Ball(2.5), Psi([(ALL, "l1ball", 2.5)])),
}
ALPHAS = (1.0, 1.95)


def compare(run, want, columns):
    """xbar after every round; xtilde, x_i, y_i, xhat_i at the end."""
    assert run.iterates.dtype == np.float64
    assert np.abs(want.mean[1] - want.mean[0]).max() > 1e-3, "nothing moved: the test would prove nothing"
    assert displacement_error(run.iterates[1:], want.mean[1:], want.mean[0]) < CLOSE
    state = run.state.clients
    for tree, values in ((state.params, want.x), (state.anchor, want.y), (state.reflected, want.reflected)):
        got = np.concatenate([np.reshape(x, (5, -1)) for x in columns(tree)], axis=1)
        assert np.abs(got - values).max() < CLOSE * np.abs(values).max()
    raw = np.concatenate([np.ravel(x) for x in columns(run.state.server.mean)])
    assert np.abs(raw - want.raw).max() < CLOSE * np.abs(want.raw).max()


@EVERY
@pytest.mark.parametrize(
    ("psi", "alpha"),
    crossed(product(PSI, ALPHAS), [("l1", 1.95), ("l1 on weight", 1.0), ("l1 ball", 1.95)]),
)
def test_inexact(psi, alpha, sampling):
    """x <- x - lr (grad f_i(x; batch) + (x - y_i) / eta) from the client's last x_i, on the run's minibatches.

    xtilde is the mean of all clients' xhat_i, absent ones included, and is not replaced by its prox.
    """
    ours, parts = PSI[psi]
    clients = make_clients()
    run = play(fs.FedDR(ours, 0.3, eta=ETA, alpha=alpha), make_task(clients), sampling, ROUNDS)
    fed = federation(run, clients)

    def solve(t, i, x, y):
        for rows in fed.minibatches(t, i):
            x = x - 0.3 * (fed.gradient(i, x, rows) + (x - y) / ETA)
        return x

    compare(run, feddr(5, run.cohorts, default_start(), parts, solve, ETA, alpha), lambda tree: tree)


D = 6


def least_squares(seed=3):
    """Five uneven clients; those of 3 and 5 examples have a singular Hessian."""
    rng = np.random.default_rng(seed)
    return [fs.Examples(rng.standard_normal((n, D)) + 0.2, rng.standard_normal(n)) for n in SIZES]


def quadratic(client):
    """H and c of f = w'Hw / 2 - c'w + constant."""
    return 2 * client.x.T @ client.x / len(client.y), 2 * client.x.T @ client.y / len(client.y)


@EVERY
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("kind", ["penalty", "set"])
def test_exact_on_quadratics(kind, alpha, sampling):
    """prox_{eta f_i}(y) = (H_i + I / eta)^-1 (c_i + y / eta), by elimination."""
    clients, start = least_squares(), np.linspace(-1, 1, D)
    task = fs.Task.from_arrays(squares, start, clients, batch_size=4)
    where = slice(0, D)
    ours = L1(0.3) if kind == "penalty" else L2Ball(0.4)
    parts = Psi([(where, "l1", 0.3) if kind == "penalty" else (where, "l2ball", 0.4)])
    run = play(fs.FedDR(ours, eta=ETA, alpha=alpha, solver="exact"), task, sampling, ROUNDS)
    systems = [quadratic(c) for c in clients]

    def solve(t, i, x, y):
        H, c = systems[i]
        return np.linalg.solve(H + np.eye(D) / ETA, c + y / ETA)

    compare(run, feddr(5, run.cohorts, start, parts, solve, ETA, alpha), lambda tree: [tree])


class Squares(HandOracle):
    """All of a least-squares client."""

    def full(self, params):
        return jax.value_and_grad(squares)(params, jax.tree.map(jnp.asarray, self.rows))


@jax.jit
def proximal_point(client, y, mu):
    oracle = ProximalOracle(Squares(client, [], 0), y, mu)
    return fs.client.ConjugateGradient().solve(jnp.zeros(D), oracle, 0).params


@pytest.mark.parametrize("eta", [0.1, 1.0, 100.0])
def test_conjugate_gradients_reach_the_prox(eta):
    """Six iterations in exact arithmetic; those after them add no error: 1e-14, 1e-11 where eta = 100 (cond 1e3)."""
    ys = np.random.default_rng(0).standard_normal((100, D))
    for client in least_squares():
        H, c = quadratic(client)
        want = np.linalg.solve(H + np.eye(D) / eta, (c + ys / eta).T).T
        with jax.enable_x64(True):
            got = np.stack([proximal_point(client, y, 1 / eta) for y in jnp.asarray(ys)])
        errors = np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)
        assert errors.max() < (1e-14 if eta <= 1 else 1e-11)


def test_conjugate_gradients_at_the_minimiser():
    """A start with gradient 0 has no direction: nothing is divided by 0 and the start stays."""
    client = least_squares()[2]
    H, c = quadratic(client)
    best = np.linalg.solve(H, c)
    with jax.enable_x64(True):
        found = fs.client.ConjugateGradient().solve(jnp.asarray(best), Squares(client, [], 0), 0)
        np.testing.assert_allclose(found.params, best, rtol=1e-10)
        still = fs.Examples(np.eye(D), np.zeros(D))
        zero = fs.client.ConjugateGradient().solve(jnp.zeros(D), Squares(still, [], 0), 0)
        np.testing.assert_array_equal(zero.params, 0.0)


def test_absent_clients_keep_what_they_have():
    """Client 2 is away in rounds 0 and 1 of the partial trace: its state is still the start."""
    run = play(fs.FedDR(L1(0.05), 0.3, eta=ETA), make_task(make_clients()), SOME, 2)
    assert all(2 not in cohort for cohort in run.cohorts)
    for tree in (run.state.clients.params, run.state.clients.anchor, run.state.clients.reflected):
        flat = np.concatenate([np.ravel(x[2]) for x in tree])
        np.testing.assert_array_equal(flat, default_start())


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_order_of_y_and_x(alpha):
    """Round 1 from x^0: y_i = x^0 whatever alpha, as xbar = x_i; round 2 feels alpha."""
    runs = [
        play(fs.FedDR(L1(0.05), 0.3, eta=ETA, alpha=a), make_task(make_clients()), FULL, 2)
        for a in (0.5, alpha)
    ]
    assert displacement_error(runs[0].iterates[1:2], runs[1].iterates[1:2], runs[1].iterates[0]) < 1e-13
    assert displacement_error(runs[0].iterates[2:], runs[1].iterates[2:], runs[1].iterates[0]) > 1e-3
