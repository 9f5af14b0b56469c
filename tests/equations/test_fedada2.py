"""FedAda2 and FedAda2++ against the authors' rules in NumPy, and the limits in which rules agree; float64."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from equations.cases import EVERY, SOME, check_fedopt
from equations.server_rules import FedOptRule
from harness import CLASSES, FEATURES, make_clients, make_task
from verbs_harness import play

RATE = 0.05


class LocalAdaptive:
    """y -= lr a / (sqrt(v) + eps) with a = g or its running mean, on a matrix and a vector of biases."""

    def __init__(self, rule, eps=1e-5, b1=0.9, b2=0.999, correct=False, every=1):
        self.rule, self.eps, self.b1, self.b2, self.correct, self.every = rule, eps, b1, b2, correct, every

    def __call__(self, fed, t, i, w):
        y, m = w.copy(), np.zeros_like(w)
        n = FEATURES * CLASSES
        rows, columns = np.zeros((FEATURES, 1)), np.zeros((1, CLASSES))
        full = np.zeros_like(w)
        for k, batch in enumerate(fed.minibatches(t, i)):
            g = fed.gradient(i, y, batch)
            m = self.b1 * m + (1 - self.b1) * g
            square = g**2
            matrix = square[:n].reshape(FEATURES, CLASSES)
            if self.rule == "sm3-ii":
                v = full.copy()
                v[:n] = np.minimum(rows, columns).ravel()
                if k % self.every == 0:
                    v = v + square
                    rows = v[:n].reshape(FEATURES, CLASSES).max(axis=1, keepdims=True)
                    columns = v[:n].reshape(FEATURES, CLASSES).max(axis=0, keepdims=True)
                    full = v
            else:
                old, new = (self.b2, 1 - self.b2) if "adam" in self.rule else (1, 1)
                if k % self.every == 0:
                    rows = old * rows + new * matrix.max(axis=1, keepdims=True)
                    columns = old * columns + new * matrix.max(axis=0, keepdims=True)
                    full = old * full + new * square
                v = full.copy()
                if "sm3" in self.rule:
                    v[:n] = np.minimum(rows, columns).ravel()
            a = m if "adam" in self.rule else g
            if self.correct:
                a, v = a / (1 - self.b1 ** (k + 1)), v / (1 - self.b2 ** (k // self.every + 1))
            y = y - RATE * a / (np.sqrt(v) + self.eps)
        return y


CASES = {
    "adagrad": (fs.FedAda2, {}),
    "adam": (fs.FedAda2, {"rule": "adam"}),
    "adam, corrected, every 3": (fs.FedAda2, {"rule": "adam", "bias_correction": True, "every": 3}),
    "sm3": (fs.FedAda2PlusPlus, {}),
    "sm3-ii": (fs.FedAda2PlusPlus, {"rule": "sm3-ii"}),
    "sm3-ii, every 2": (fs.FedAda2PlusPlus, {"rule": "sm3-ii", "every": 2}),
    "sm3-adam": (fs.FedAda2PlusPlus, {"rule": "sm3-adam", "every": 2}),
}


@EVERY
@pytest.mark.parametrize("name", CASES)
def test_methods(name, sampling):
    method, options = CASES[name]
    rule = {fs.FedAda2: "adagrad", fs.FedAda2PlusPlus: "sm3"}[method]
    theirs = LocalAdaptive(
        options.get("rule", rule),
        correct=options.get("bias_correction", False),
        every=options.get("every", 1),
    )
    server = lambda: FedOptRule("adam", 0.1, 1e-3, 0.9, 0.999, 0.0, False)  # noqa: E731
    check_fedopt(method(RATE, **options), server, theirs, "examples", sampling)


def test_a_server_with_adagrad():
    server = lambda: FedOptRule("adagrad", 0.3, 1e-2, 0.0, 0.999, 0.0, False)  # noqa: E731
    method = fs.FedAda2(RATE, server_lr=0.3, second="adagrad", tau=1e-2, weighting="uniform")
    check_fedopt(method, server, LocalAdaptive("adagrad"), "uniform", SOME)


def test_one_step_without_eps_is_a_sign():
    """K = 1, Adagrad, eps = 0: each coordinate moves by eta_l, against its gradient's sign."""
    method = fs.FedOpt(fs.client.AdaptiveSGD(RATE, eps=0.0), fs.server.ServerSGD(), weighting="uniform")
    run = play(method, make_task(make_clients(), local_steps=1), fs.sampling.Uniform(1), 1)
    moved = run.iterates[1] - run.iterates[0]
    np.testing.assert_allclose(np.abs(moved[moved != 0]), RATE, rtol=1e-12)


def test_where_rules_agree():
    """One row: the columns' cover is exact and below the row's, so SM3 is Adagrad; as for vectors."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 5)), rng.normal(size=12)

    def loss(params, batch):
        x, y = batch
        return jnp.mean((x @ params.ravel() - y) ** 2)

    ends = []
    for shape in ((1, 5), (5,)):
        task = fs.Task.from_arrays(loss, np.zeros(shape), [(x[:6], y[:6]), (x[6:], y[6:])], batch_size=3)
        for rule in ("adagrad", "sm3", "sm3-ii"):
            method = fs.FedOpt(fs.client.AdaptiveSGD(RATE, rule=rule), fs.server.ServerSGD())
            run = fs.run(method, task, rounds=3, dtype="float64")
            ends.append(np.ravel(run.params))
    for end in ends[1:]:
        np.testing.assert_allclose(end, ends[0], rtol=1e-12)


def test_corrections_are_of_rules_with_momentum():
    with pytest.raises(fs.InvalidInput, match="bias_correction = True is of adam and sm3-adam, not of sm3"):
        fs.FedAda2PlusPlus(bias_correction=True)
