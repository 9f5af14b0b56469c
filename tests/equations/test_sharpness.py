"""FedSAM, MoFedSAM, FedSpeed, FedSMOO and FedLESAM against their papers and public code in NumPy, and their limits."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

import fedsolve as fs
from equations.cases import (
    CLOSE,
    EVERY,
    FULL,
    ROUNDS,
    SOME,
    check_scaffold,
    compare,
    displacement_error,
    federation,
)
from equations.server_rules import Average
from equations.transcript import LocalSGD, shares
from fedsolve.methods.sharpness import SharpnessOracle
from harness import crossed, engine, make_clients, make_task
from verbs_harness import play

RATE, RHO, ALPHA, SERVER = 0.3, 0.4, 0.3, 0.8


def along(v):
    """rho v / |v|, 0 for 0."""
    length = np.linalg.norm(v)
    return RHO * v / length if length > 0 else 0 * v


class Method:
    """FedAvg whose clients take gradients at moved models; what further methods add is below."""

    weighting = "uniform"

    def __init__(self):
        self.server = {}

    def run(self, fed, w):
        iterates = [w]
        for t, cohort in enumerate(fed.cohorts):
            if cohort:
                deltas = []
                for i in cohort:
                    y = w
                    for rows in fed.minibatches(t, i):
                        y = self.step(fed, i, y, w, rows)
                    deltas.append(y - w)
                    self.after(i, y, w)
                p = shares(fed, cohort, self.weighting)
                steps = sum(q * len(fed.minibatches(t, i)) for q, i in zip(p, cohort, strict=True))
                mean = sum(q * d for q, d in zip(p, deltas, strict=True))
                w = self.serve(w, mean, steps, cohort, len(fed.clients))
            iterates.append(w)
        return np.stack(iterates)

    def step(self, fed, i, y, w, rows):
        return y - RATE * fed.gradient(i, y + along(fed.gradient(i, y, rows)), rows)

    def after(self, i, y, w):
        pass

    def serve(self, w, mean, steps, cohort, population):
        return w + SERVER * mean


class Examples(Method):
    weighting = "examples"


class Momentum(Method):
    """alpha g(y + e) + (1 - alpha) m, m the last mean update per step and rate."""

    momentum = 0.0

    def step(self, fed, i, y, w, rows):
        gradient = fed.gradient(i, y + along(fed.gradient(i, y, rows)), rows)
        return y - RATE * (ALPHA * gradient + (1 - ALPHA) * self.momentum)

    def serve(self, w, mean, steps, cohort, population):
        self.momentum = -mean / (steps * RATE)
        return w + SERVER * mean


class Speed(Method):
    """As the authors' code has it: duals h_i of all clients, of which absent ones keep theirs."""

    def __init__(self):
        self.h = defaultdict(float)

    def moved(self, fed, i, y, rows):
        return fed.gradient(i, y + along(fed.gradient(i, y, rows)), rows)

    def step(self, fed, i, y, w, rows):
        return y - RATE * (self.moved(fed, i, y, rows) + ALPHA * (y + self.h[i] - w))

    def after(self, i, y, w):
        self.h[i] = self.h[i] + y - w

    def serve(self, w, mean, steps, cohort, population):
        return w + mean + sum(self.h.values()) / population


class Agreed(Speed):
    """The dynamic dual mu_i of each client, and the server's move s."""

    def __init__(self):
        super().__init__()
        self.mu, self.s = defaultdict(float), 0.0

    def moved(self, fed, i, y, rows):
        e = along(fed.gradient(i, y, rows) - self.mu[i] - self.s)
        self.mu[i] = self.mu[i] + e - self.s
        return fed.gradient(i, y + e, rows)

    def serve(self, w, mean, steps, cohort, population):
        self.s = along(np.mean([self.mu[i] for i in cohort], axis=0))
        return super().serve(w, mean, steps, cohort, population)


class Estimated(Method):
    """e from the model that a client was sent last, the initial one at first."""

    def run(self, fed, w):
        self.sent = [w] * len(fed.clients)
        return super().run(fed, w)

    def step(self, fed, i, y, w, rows):
        return y - RATE * fed.gradient(i, y + along(self.sent[i] - w), rows)

    def after(self, i, y, w):
        self.sent[i] = w


CASES = {
    "FedSAM": (lambda: fs.FedSAM(RATE, rho=RHO, server_lr=SERVER), Method),
    "FedSAM, examples": (lambda: fs.FedSAM(RATE, rho=RHO, server_lr=SERVER, weighting="examples"), Examples),
    "MoFedSAM": (lambda: fs.MoFedSAM(RATE, rho=RHO, alpha=ALPHA, server_lr=SERVER), Momentum),
    "FedSpeed": (lambda: fs.FedSpeed(RATE, rho=RHO, alpha=ALPHA), Speed),
    "FedSMOO": (lambda: fs.FedSMOO(RATE, rho=RHO, alpha=ALPHA), Agreed),
    "FedLESAM": (lambda: fs.FedLESAM(RATE, rho=RHO, server_lr=SERVER), Estimated),
}


def check(name, by, sampling):
    build, transcript = CASES[name]
    clients, reference = make_clients(), transcript()
    run = by(build(), make_task(clients), sampling, ROUNDS)
    iterates = reference.run(federation(run, clients), run.iterates[0])
    run.logs.setdefault("server_lr", np.full(ROUNDS, np.nan))
    compare(run, iterates, np.full(ROUNDS, SERVER))
    return run, reference


@EVERY
@pytest.mark.parametrize("name", crossed(CASES, [name for name in CASES if "examples" not in name]))
def test_rounds(name, sampling):
    """Every iterate; of FedSMOO every mu_i at the end."""
    run, reference = check(name, play, sampling)
    if isinstance(reference, Agreed):
        dual = np.concatenate([np.reshape(x, (5, -1)) for x in run.state.clients.dual], axis=1)
        wanted = np.stack([reference.mu[i] for i in range(5)])
        assert np.abs(dual - wanted).max() < CLOSE * np.abs(wanted).max()


@pytest.mark.full
def test_moves_wait_in_the_engine():
    """Whole rounds of the engine: absent clients keep their duals."""
    check("FedSMOO", engine, SOME)


@pytest.mark.parametrize(
    ("method", "plain"),
    [
        (fs.FedSAM(RATE, rho=0.0), fs.FedAvg(RATE, weighting="uniform")),
        (fs.MoFedSAM(RATE, rho=RHO, alpha=1.0), fs.FedSAM(RATE, rho=RHO)),
        (fs.FedSpeed(RATE, rho=0.0), fs.FedDyn(RATE, alpha=0.1)),
        (fs.FedSMOO(RATE, rho=0.0), fs.FedDyn(RATE, alpha=0.1)),
        (fs.FedLESAM(RATE, rho=0.0), fs.FedAvg(RATE, weighting="uniform")),
    ],
    ids=["FedSAM", "MoFedSAM", "FedSpeed", "FedSMOO", "FedLESAM"],
)
def test_limits(method, plain):
    """rho = 0 is the inner method, alpha = 1 FedSAM."""
    ours = play(method, make_task(make_clients()), SOME, ROUNDS)
    theirs = play(plain, make_task(make_clients()), SOME, ROUNDS)
    assert displacement_error(ours.iterates[1:], theirs.iterates[1:], theirs.iterates[0]) < CLOSE


class SharpSGD(LocalSGD):
    """Local SGD with the gradient at the moved model in its place."""

    def __call__(self, fed, t, i, w, correction=0.0):
        y = w
        for rows in fed.minibatches(t, i):
            y = y - RATE * (fed.gradient(i, y + along(fed.gradient(i, y, rows)), rows) + correction)
        return y


def test_around_scaffold():
    """The move follows the raw gradient, the control variate comes after it."""
    method = fs.Sharpness(fs.SCAFFOLD(RATE), RHO)
    assert method.name == "FedSAM+SCAFFOLD"
    check_scaffold(method, lambda: Average(1.0), SharpSGD(RATE), "II", FULL)


def test_losses_and_full_gradients_are_those_at_the_moved_model():
    """So that a line search compares what it should."""
    w = np.array([0.3, -0.7], np.float32)
    slope = lambda y: np.array([np.cos(y[0]), y[1] ** 3], np.float32)  # noqa: E731
    value = lambda y: np.sin(y[0]) + y[1] ** 4 / 4  # noqa: E731

    class Toy(fs.Oracle):
        steps = bound = num_examples = batch_size = 1

        def __call__(self, params, step):
            return value(params), slope(params)

        def loss(self, params, step):
            return value(params)

        def full(self, params):
            return value(params), slope(params)

    oracle, moved = SharpnessOracle(Toy(), RHO), w + along(slope(w))
    for loss, gradient in (oracle(w, 0), oracle.full(w)):
        np.testing.assert_allclose(loss, value(moved), rtol=1e-6)
        np.testing.assert_allclose(gradient, slope(moved), rtol=1e-5)
    np.testing.assert_allclose(oracle.loss(w, 0), value(moved), rtol=1e-6)


def test_refusals():
    """What would be computed wrongly is refused in a line."""
    with pytest.raises(fs.InvalidInput, match="MoFedSAM needs local SGD, not Armijo"):
        fs.SharpMomentum(fs.FedLiLS())
    with pytest.raises(fs.InvalidInput, match="FedSMOO goes around FedDyn"):
        type(fs.FedSMOO())(fs.FedAvg())
    with pytest.raises(fs.InvalidInput, match="rho = -1"):
        fs.FedLESAM(rho=-1.0)
    with pytest.raises(fs.InvalidInput, match="alpha = 0"):
        fs.MoFedSAM(alpha=0.0)
