"""DoG, Prodigy and D-Adaptation on the server against their papers in NumPy, and what optax makes of them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedsolve as fs
from equations.cases import EVERY, ROUNDS, SOME, check_fedopt
from equations.transcript import LocalSGD
from harness import make_clients, make_task
from verbs_harness import play

RATE, FIRST = 0.3, 0.05
B1, B2 = 0.8, 0.9


class DoG:
    """Equations 1 and 2 of Ivgi et al. 2023, with the gradient -D."""

    def __init__(self):
        self.start, self.squares, self.distances = None, [], []

    def __call__(self, w, D, spread, size, t):
        if self.start is None:
            self.start, self.distances = w, [FIRST * (1 + np.linalg.norm(w))]
        self.squares.append(D @ D)
        self.distances.append(np.linalg.norm(w - self.start))
        eta = max(self.distances) / np.sqrt(sum(self.squares))
        return w + eta * D, eta


class Prodigy:
    """Algorithm 4 of Mishchenko and Defazio 2024, with the paper's own scaling of r and s."""

    def __init__(self):
        self.start, self.d, self.m, self.v, self.r, self.s = None, FIRST, 0.0, 0.0, 0.0, 0.0

    def __call__(self, w, D, spread, size, t):
        self.start = w if self.start is None else self.start
        g, d, c = -D, self.d, np.sqrt(B2)
        self.m = B1 * self.m + (1 - B1) * d * g
        self.v = B2 * self.v + (1 - B2) * d**2 * g**2
        self.r = c * self.r + (1 - c) * d**2 * (g @ (self.start - w))
        self.s = c * self.s + (1 - c) * d**2 * g
        self.d = max(d, self.r / np.abs(self.s).sum())
        return w - d * self.m / (np.sqrt(self.v) + self.d * 1e-8), d


class DAdaptation:
    """The Adam variant of Defazio and Mishchenko 2023."""

    def __init__(self):
        self.d, self.m, self.v, self.r, self.s = FIRST, 0.0, 0.0, 0.0, 0.0

    def __call__(self, w, D, spread, size, t):
        g, d, c = -D, self.d, np.sqrt(B2)
        self.r = c * self.r + (1 - c) * d * (g @ (self.s / (np.sqrt(self.v) + 1e-8) * np.ones_like(g)))
        self.m = B1 * self.m + (1 - B1) * d * g
        self.v = B2 * self.v + (1 - B2) * g**2
        self.s = c * self.s + (1 - c) * d * g
        self.d = max(d, self.r / ((1 - c) * np.abs(self.s).sum()))
        return w - self.m / (np.sqrt(self.v) + 1e-8), d


MOMENTS = {"beta1": B1, "beta2": B2}
CASES = {
    "FedDoG": (lambda **how: fs.FedDoG(RATE, initial_distance=FIRST, **how), DoG),
    "FedProdigy": (lambda **how: fs.FedProdigy(RATE, initial_distance=FIRST, **MOMENTS, **how), Prodigy),
    "FedDAdaptation": (
        lambda **how: fs.FedDAdaptation(RATE, initial_distance=FIRST, **MOMENTS, **how),
        DAdaptation,
    ),
}


@EVERY
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("name", CASES)
def test_rounds(name, weighting, sampling):
    """Every iterate and rate; the estimate grows, or the test would prove nothing; round 7 is empty."""
    build, rule = CASES[name]
    run = check_fedopt(build(weighting=weighting), rule, LocalSGD(RATE), weighting, sampling)
    distances = run.logs["distance"]
    assert np.all(np.diff(distances) >= 0)
    assert distances[-1] > 1.2 * distances[0]


def uncorrected(count):
    """The schedule that takes optax's bias correction back."""
    k = count + 1
    return (1 - B1**k) / jnp.sqrt(1 - B2**k)


OPTAX = {
    "FedDoG": (optax.contrib.dog, {"init_step": ("heuristic", FIRST), "eps": 0.0}),
    "FedProdigy": (
        optax.contrib.prodigy,
        {"betas": (B1, B2), "learning_rate": uncorrected, "estim_lr0": FIRST},
    ),
    "FedDAdaptation": (
        optax.contrib.dadapt_adamw,
        {"betas": (B1, B2), "learning_rate": uncorrected, "estim_lr0": FIRST},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_optax_is_the_same_where_it_corrects_nothing(name):
    factory, arguments = OPTAX[name]
    task = make_task(make_clients())
    theirs = fs.FedOpt(fs.client.SGD(RATE), fs.server.Optax(factory, **arguments))
    ours = play(CASES[name][0](), task, SOME, ROUNDS).iterates
    np.testing.assert_allclose(play(theirs, task, SOME, ROUNDS).iterates, ours, rtol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_the_scale_of_the_client_updates_does_not_matter(name):
    """One local step: D is proportional to the client rate."""
    task = make_task(make_clients(), epochs=None, local_steps=1)

    def iterates(rate):
        exact = {} if name == "FedDoG" else {"eps": 0.0}
        method = fs.build(name, {"client_lr": rate, "initial_distance": FIRST} | exact)
        return play(method, task, SOME, 4).iterates

    np.testing.assert_allclose(iterates(8.0), iterates(0.5), rtol=1e-10)


def test_bad_numbers():
    for build in (fs.FedDoG, fs.FedProdigy, fs.FedDAdaptation):
        with pytest.raises(fs.InvalidInput, match="initial_distance = 0"):
            build(0.1, initial_distance=0.0)
    with pytest.raises(fs.InvalidInput, match=r"beta2 = 1"):
        fs.FedProdigy(beta2=1.0)
