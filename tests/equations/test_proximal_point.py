"""S-DANE, its accelerated form, FedRed and SPPM-AS against their papers and public code in NumPy, and their limits."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from equations.cases import CLOSE, EVERY, ROUNDS, SOME, displacement_error, federation, flat
from equations.transcript import LocalSGD, shares
from harness import engine, make_clients, make_task, squares
from verbs_harness import play

RATE, LAM, MU, D = 0.3, 0.7, 0.2, 6


def mean(p, vectors):
    return sum(q * v for q, v in zip(p, vectors, strict=True))


def sgd(fed, t, i, center, correction):
    """Local SGD on f_i - <h_i, .> + (lam / 2) |. - center|^2."""
    return LocalSGD(RATE, mu=LAM)(fed, t, i, center, correction)


def doubly_regularized(p):
    """The authors' step: (h - g + y / lr + lam x) / (1 / lr + lam), as often as a coin of probability p allows."""

    def local(fed, t, i, center, correction):
        bits = int(jax.random.bits(jax.random.fold_in(jax.random.key(0), t), dtype="uint32")) // 2**16
        u, tosses, y = (bits + 0.5) / 2**16, 1, center
        while u < (1 - p) ** tosses:  # the first success is later
            tosses += 1
        for rows in fed.minibatches(t, i)[:tosses]:
            top = -correction - fed.gradient(i, y, rows) + y / RATE + LAM * center
            y = top / (1 / RATE + LAM)
        return y

    return local


class Alternating:
    """Both exchanges of a round of the paper, each with the cohort of its own: first gradients, then local work."""

    def __init__(self, local, weighting, accelerated=None):
        self.local, self.weighting, self.accelerated = local, weighting, accelerated
        self.A, self.B, self.known = 0.0, 1.0, None

    def step(self):
        root = self.B**2 / (4 * LAM**2) + self.A * self.B / LAM
        return self.B / (2 * LAM) + math.sqrt(root) if self.accelerated else 1 / LAM

    def center(self, x):
        if self.accelerated is None:
            return x
        return (self.A * x + self.step() * self.v) / (self.A + self.step()) if self.accelerated else self.v

    def run(self, fed, x):
        self.v, iterates = x, [x]
        for t, cohort in enumerate(fed.cohorts):
            p, c = shares(fed, cohort, self.weighting) if cohort else None, self.center(x)
            if cohort and self.known is None:
                self.known = mean(p, [fed.gradient(i, c) for i in cohort])
            elif cohort:
                ends = [self.local(fed, t, i, c, self.known - fed.gradient(i, c)) for i in cohort]
                x = mean(p, ends)
                if self.accelerated is not None:
                    self.move(x, mean(p, [fed.gradient(i, y) for i, y in zip(cohort, ends, strict=True)]))
                self.known = None
            iterates.append(x)
        return np.stack(iterates)

    def move(self, x, gradient):
        a = self.step()
        if self.accelerated:
            self.v = (MU * a * x + self.B * self.v - a * gradient) / (MU * a + self.B)
            self.A, self.B = self.A + a, self.B + MU * a
        else:
            self.v = (MU * x + LAM * self.v - gradient) / (MU + LAM)


def sppm(fed, x, gamma, local_rounds):
    """FedAvg of rate 0.9 on proximal objectives around a centre that moves after so many rounds with a cohort."""
    iterates, center, k = [x], x, 0
    for t, cohort in enumerate(fed.cohorts):
        if cohort:
            ends = []
            for i in cohort:
                y = x
                for rows in fed.minibatches(t, i):
                    y = y - RATE * (fed.gradient(i, y, rows) + (y - center) / gamma)
                ends.append(y - x)
            x, k = x + 0.9 * np.mean(ends, axis=0), k + 1
            if k == local_rounds:
                center, k = x, 0
        iterates.append(x)
    return np.stack(iterates)


CASES = {
    "SDANE": (lambda: fs.SDANE(RATE, lam=LAM, mu=MU), lambda: Alternating(sgd, "uniform", False)),
    "AccSDANE": (
        lambda: fs.AccSDANE(RATE, lam=LAM, mu=MU, weighting="examples"),
        lambda: Alternating(sgd, "examples", True),
    ),
    "FedRed": (
        lambda: fs.FedRed(RATE, lam=LAM, p=0.4),
        lambda: Alternating(doubly_regularized(0.4), "uniform"),
    ),
}


def check(run, iterates):
    assert np.abs(iterates[1:] - iterates[0]).max() > 1e-3, "nothing moved: the test would prove nothing"
    still = [t for t in range(1, len(iterates)) if (iterates[t] == iterates[0]).all()]
    moved = [t for t in range(1, len(iterates)) if t not in still]
    assert displacement_error(run.iterates[moved], iterates[moved], iterates[0]) < CLOSE
    np.testing.assert_array_equal(run.iterates[still], iterates[still])


@EVERY
@pytest.mark.parametrize("case", CASES)
def test_two_exchanges(case, sampling):
    """Every x, also of the rounds in which gradients are sent; v of S-DANE at the end."""
    build, transcript = CASES[case]
    clients, reference = make_clients(), transcript()
    run = play(build(), make_task(clients), sampling, ROUNDS)
    check(run, reference.run(federation(run, clients), run.iterates[0]))
    if reference.accelerated is not None:
        center = flat(run.state.server.center)
        assert displacement_error(center[None], reference.v[None], run.iterates[0]) < CLOSE


@pytest.mark.full
def test_a_round_without_clients_waits():
    """Whole rounds of the engine: the gradient of round 6 is used in round 8, as nobody is there in round 7."""
    clients = make_clients()
    run = engine(fs.AccSDANE(RATE, lam=LAM, mu=MU), make_task(clients), SOME, ROUNDS)
    check(run, Alternating(sgd, "uniform", True).run(federation(run, clients), run.iterates[0]))


@EVERY
def test_sppm(sampling):
    """Every y; the centre moves after three rounds that had clients."""
    clients = make_clients()
    run = play(
        fs.SPPMAS(RATE, gamma=0.5, local_rounds=3, server_lr=0.9), make_task(clients), sampling, ROUNDS
    )
    check(run, sppm(federation(run, clients), run.iterates[0], 0.5, 3))


def test_one_local_round_is_fedprox():
    """With mu = 1 / gamma, whoever takes part."""
    ours = play(fs.SPPMAS(RATE, gamma=0.5, local_rounds=1), make_task(make_clients()), SOME, ROUNDS)
    plain = play(fs.FedProx(RATE, mu=2.0, weighting="uniform"), make_task(make_clients()), SOME, ROUNDS)
    check(ours, plain.iterates)


def alike(method, rounds):
    """Iterates of a method whose clients all have the same rows of a regression."""
    rng = np.random.default_rng(3)
    client = fs.Examples(rng.standard_normal((7, D)) + 0.2, rng.standard_normal(7))
    task = fs.Task.from_arrays(squares, np.linspace(-1, 1, D), [client] * 5, batch_size=7)
    everyone = fs.sampling.Trace(jnp.ones((1, 5), bool), 5)
    return play(method, task, everyone, rounds).iterates


@pytest.mark.gate("AccSDANE")
@pytest.mark.parametrize("method", ["SDANE", "AccSDANE"])
def test_exact_proximal_points_of_clients_alike(method):
    """Without control variates in effect v = x, and x is FedExProx's; the accelerated form begins so."""
    ours = alike(fs.build(method, {"lam": 0.7, "solver": "exact"}), 6)[::2]
    plain = alike(fs.FedExProx(gamma=1 / 0.7, alpha=1.0, solver="exact"), 3)
    last = 2 if method == "AccSDANE" else 4
    assert displacement_error(ours[1:last], plain[1:last], plain[0]) < CLOSE
    assert (np.abs(ours[-1] - plain[-1]).max() > 1e-3) == (method == "AccSDANE")


def test_one_step_of_fedred_is_gradient_descent():
    """p = 1: a step of rate 1 / (1 / lr + lam) along the mean gradient."""
    rate = 1 / (1 / RATE + LAM)
    ours = alike(fs.FedRed(RATE, lam=LAM, p=1.0), 6)[::2]
    plain = alike(fs.FedAvg(rate), 3)
    assert displacement_error(ours[1:], plain[1:], plain[0]) < CLOSE


def test_refusals():
    """What would be computed wrongly is refused in a line."""
    with pytest.raises(fs.InvalidInput, match="FedRed takes eta from the rate of local SGD, not from Armijo"):
        type(fs.FedRed())(fs.client.Armijo())
    with pytest.raises(fs.InvalidInput, match="needs the clients' updates, which SDANE does not send"):
        fs.ControlVariates(fs.SDANE())
    with pytest.raises(fs.InvalidInput, match="lam = 0"):
        fs.SDANE(lam=0.0)
    with pytest.raises(fs.InvalidInput, match="local_rounds = 0 must be an integer of at least 1"):
        fs.SPPMAS(local_rounds=0)
