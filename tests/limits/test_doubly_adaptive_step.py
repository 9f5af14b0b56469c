"""Identities of the doubly adaptive step, on the rule alone: its length, invariances, and 0/0."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsolve.core.algorithm import Cohort
from fedsolve.geometry import DiagonalQuadratic, Entropy, PNorm
from fedsolve.methods.server import Adaptive, DoublyAdaptive, MirrorDescent
from fedsolve.methods.server.dua import Spread

COHORT = Cohort(0, 3, 5)
RNG = np.random.default_rng(2)
W = RNG.standard_normal(6)
DELTAS = [RNG.standard_normal((3, 6)) for _ in range(8)]


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


@jax.jit
def one_step(rule, w, state, delta, spread):
    return rule.step(w, state, delta, Spread(spread), COHORT)


def steps(rule, w=W, deltas=DELTAS):
    """(w before, w after, D, mean |D_i|^2, state) of every step along the mean of three displacements."""
    w, state, found = jnp.asarray(w), rule.init(jnp.asarray(w)), []
    for each in deltas:
        D, spread = jnp.asarray(each.mean(axis=0)), (each**2).sum(axis=1).mean()
        new, state = one_step(rule, w, state, D, jnp.asarray(spread))
        found.append((np.asarray(w), np.asarray(new), np.asarray(D), spread, state))
        w = new
    return found


RULES = {
    "FedExP": DoublyAdaptive(),
    "FedExPM": DoublyAdaptive(beta1=0.9),
    "FedDuAdagrad": DoublyAdaptive(preconditioner="adagrad"),
    "FedDuAdam": DoublyAdaptive(beta1=0.9, preconditioner="adam"),
    "FedDuAdam eps=0": DoublyAdaptive(beta1=0.9, eps=0.0, preconditioner="adam"),
    "p-norm": MirrorDescent(PNorm(1.3), beta1=0.9),
    "diagonal": MirrorDescent(DiagonalQuadratic(3.0)),
}


@pytest.mark.parametrize("name", RULES)
def test_length_along_the_momentum(name):
    """<w_{t+1} - w_t, v> = eta v'G^-1 v = m if eps_g = 0; in any geometry it is h(eta) = m itself.

    m_0 = 0, m = (b1/2) m + ((1 - b1)/2) mean |D_i|^2 (b1 = 0: half the mean), v likewise.
    """
    rule = RULES[name]
    b1 = 0.0 if rule.beta1 is None else 0.9
    v, m = np.zeros(6), 0.0
    for before, after, D, spread, _ in steps(rule):
        v, m = b1 * v + (1 - b1) * D, b1 / 2 * m + (1 - b1) / 2 * spread
        assert (after - before) @ v == pytest.approx(m, rel=1e-10)


def test_entropy_has_it_too():
    """On the positive orthant: w exp(eta v) - w along v has length m as well."""
    for before, after, D, spread, state in steps(MirrorDescent(Entropy()), np.abs(W) + 0.2):
        assert (after - before) @ D == pytest.approx(spread / 2, rel=1e-10)
        np.testing.assert_allclose(after, before * np.exp(float(state.server_lr) * D), rtol=1e-12)


def test_eps_g_shortens_the_step():
    """eta = m / (v'G^-1 v + eps_g): with eps_g = v'G^-1 v the step is half as long."""
    _, full, D, *_ = steps(DoublyAdaptive(), deltas=DELTAS[:1])[0]
    _, half, *_ = steps(DoublyAdaptive(eps_g=float(D @ D)), deltas=DELTAS[:1])[0]
    np.testing.assert_allclose(half - W, (full - W) / 2, rtol=1e-12)


def test_bias_correction_would_change_nothing():
    """eps = eps_g = 0: s / (1 - b2^t) scales G by a constant, which eta undoes; v and m share 1 / (1 - b1^t).

    With s' = s/a, v' = v/b, m' = m/b: eta' G'^-1 v' = (m/b) (sqrt(a) G^-1 v/b) / (sqrt(a) v'G^-1 v / b^2).
    """
    rule = DoublyAdaptive(beta1=0.9, beta2=0.99, eps=0.0, preconditioner="adam")
    s, v, m = np.zeros(6), np.zeros(6), 0.0
    for t, (before, after, D, spread, _) in enumerate(steps(rule), start=1):
        s, v = 0.99 * s + 0.01 * D**2, 0.9 * v + 0.1 * D
        m = 0.45 * m + 0.05 * spread
        corrected_s, corrected_v, corrected_m = s / (1 - 0.99**t), v / (1 - 0.9**t), m / (1 - 0.9**t)
        direction = corrected_v / np.sqrt(corrected_s)
        want = corrected_m / (corrected_v @ direction) * direction
        np.testing.assert_allclose(after - before, want, rtol=1e-11)


@pytest.mark.parametrize("preconditioner", ["adagrad", "adam"])
def test_a_coordinate_that_never_moved_stays(preconditioner):
    """eps = 0 and D = 0 in coordinate 2 always: s = v = 0 there, 0/0 is read as 0, and the others are
    finite.
    """
    still = [d * np.array([1, 1, 0, 1, 1, 1]) for d in DELTAS]
    rule = DoublyAdaptive(beta1=0.9, eps=0.0, preconditioner=preconditioner)
    last = steps(rule, deltas=still)[-1][1]
    assert last[2] == W[2]
    assert np.isfinite(last).all()
    assert (last[[0, 1, 3, 4, 5]] != W[[0, 1, 3, 4, 5]]).all()


ZERO = [np.zeros((3, 6))] * 2
EVERY_RULE = RULES | {
    "FedAdam v0=0": Adaptive(0.1, tau=0.0, initial=0.0),
    "entropy": MirrorDescent(Entropy()),
}


@pytest.mark.parametrize("name", EVERY_RULE)
def test_no_displacement_no_step(name):
    """D_i = 0 for all: m = 0 and v = 0, every quotient is 0/0: the step is 0 and the state stays finite."""
    start = np.abs(W) + 0.1
    for before, after, *_, state in steps(EVERY_RULE[name], start, ZERO):
        np.testing.assert_allclose(after, before, rtol=1e-15)
        assert all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(state))
        assert float(state.server_lr) in (0.0, 0.1)


def test_opposite_displacements():
    """D_1 = -D_2: v = 0 but m > 0: eta v is 0/0 and the model must stay finite (it stays)."""
    opposite = [np.stack([d[0], -d[0], 0 * d[0]]) for d in DELTAS[:2]]
    for name in ("FedExP", "FedDuAdagrad", "p-norm", "diagonal"):
        for before, after, *_ in steps(RULES[name], deltas=opposite):
            np.testing.assert_array_equal(after, before)
