"""Appendix A of Dadras et al. 2024: averaging Frank-Wolfe steps is wrong, keeping every client's own x_i is not.

f_1 = (x - 3)^2 and f_2 = (x + 1)^2 over D = [-1, 1], the l1 ball of radius 1 in one dimension. F = (f_1 + f_2)/2
= (x - 1)^2 + 4, whose minimiser over D is 1, with F = 4. Linear minimisation gives s_i = -sign(g_i).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from experiments.fedfw.public_code import OverwrittenFrankWolfe
from fedsolve.core.sampling import Uniform
from fedsolve.geometry import L1Ball
from harness import prepare


def squared_distance(w, batch):
    """(w - c)^2 on clients of one example c."""
    return jnp.mean((w - batch) ** 2)


CLIENTS = [np.array([[3.0]]), np.array([[-1.0]])]
TASK = fs.Task.from_arrays(squared_distance, np.zeros(1), CLIENTS, local_steps=1, batch_size=None)


def walk(algorithm, rounds):
    """xbar after each of some numbers of rounds, with both clients in each."""
    with jax.enable_x64(True):
        setup = prepare(algorithm, TASK, Uniform(2), capacity=1000)
        state, found, done = setup.state, [], 0
        for t in rounds:
            state, _ = setup.advance(state, t - done)
            found.append(float(state.server.params[0]))
            done = t
        return np.array(found)


def test_naive_averaging_stays():
    """x <- (1 - eta) x + (eta/2)(s_1 + s_2): g_1 = 2(x - 3) < 0 and g_2 = 2(x + 1) > 0 inside, so s = 1, -1."""
    x = 0.0
    for t in range(1, 1001):
        s = [-np.sign(2 * (x - c)) for c in (3.0, -1.0)]
        x = (1 - 2 / (t + 1)) * x + 2 / (t + 1) * np.mean(s)
    assert x == 0.0


def test_fedfw_converges():
    """lam0 = 1: .691, .874 and .940 after 10, 200 and 1,000 rounds (reference facts 6.3), rate t^-1/2.

    F(xbar) - 4 = (xbar - 1)^2.
    """
    found = walk(fs.FedFW(L1Ball(1.0), steps=fs.frank_wolfe.Convex(1.0)), (10, 200, 1000))
    np.testing.assert_allclose(found, [0.691, 0.874, 0.940], atol=6e-4)


@pytest.mark.full
def test_fedfw_plus_is_faster():
    """lam0 = 1: .582 and .9957 after 10 and 200 rounds (reference facts 6.3)."""
    found = walk(fs.FedFWPlus(L1Ball(1.0), steps=fs.frank_wolfe.Convex(1.0)), (10, 200))
    np.testing.assert_allclose(found, [0.582, 0.9957], atol=6e-4)


def test_against_the_recursion():
    """The same three lines in NumPy: g_i = grad f_i / 2 + lam sqrt(t + 1) (x_i - xbar), s_i = -sign(g_i)."""
    x, c = np.zeros(2), np.array([3.0, -1.0])
    for t in range(1, 201):
        g = (x - c) + np.sqrt(t + 1) * (x - x.mean())
        x = x + 2 / (t + 1) * (-np.sign(g) - x)
    assert walk(fs.FedFW(L1Ball(1.0), steps=fs.frank_wolfe.Convex(1.0)), (200,))[0] == pytest.approx(
        x.mean(), abs=1e-12
    )


@pytest.mark.full
@pytest.mark.parametrize("variant", ["plain", "plus"])
def test_overwriting_clients_is_naive_averaging(variant):
    """x_i = xbar makes the penalty and y_i zero for ever: xbar stays at 0, as the tests above would notice."""
    found = walk(
        OverwrittenFrankWolfe(L1Ball(1.0), steps=fs.frank_wolfe.Convex(1.0), variant=variant), (10, 200)
    )
    np.testing.assert_array_equal(found, 0.0)
