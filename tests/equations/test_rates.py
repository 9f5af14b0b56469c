"""Rates of optax's schedules, and of a user's, against NumPy: in a float64 run they have float64's digits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedsolve as fs
from fedsolve.core.optax_bridge import transformation
from fedsolve.core.schedules import Schedule, as_rate, rate_at
from fedsolve.core.types import module
from fedsolve.methods.client import SGD, Optax
from fedsolve.methods.server import Optax as ServerOptax

T = 10
COUNTS = np.arange(T + 3)


def cosine(t, first, last, steps):
    return last + (first - last) * (1 + np.cos(np.pi * np.minimum(t, steps) / steps)) / 2


def warm(t, first, peak, steps, then):
    return np.where(t < steps, first + (peak - first) * t / steps, then(t - steps))


SCHEDULES = {
    "linear": (optax.linear_schedule(0.4, 0.1, T), 0.4 - 0.3 * np.minimum(COUNTS, T) / T),
    "polynomial": (
        optax.polynomial_schedule(0.4, 0.1, 2, T),
        0.3 * (1 - np.minimum(COUNTS, T) / T) ** 2 + 0.1,
    ),
    "exponential": (optax.exponential_decay(0.3, 7, 0.9), 0.3 * 0.9 ** (COUNTS / 7)),
    "cosine": (optax.cosine_decay_schedule(0.3, T, 0.1), cosine(COUNTS, 0.3, 0.03, T)),
    "warm-up": (
        optax.warmup_cosine_decay_schedule(0.0, 0.3, 3, T, 0.1),
        warm(COUNTS, 0.0, 0.3, 3, lambda t: cosine(t, 0.3, 0.1, T - 3)),
    ),
    "joined": (
        optax.join_schedules([optax.constant_schedule(0.1), optax.linear_schedule(0.3, 0.1, 5)], [4]),
        np.where(COUNTS < 4, 0.1, 0.3 - 0.2 * np.clip(COUNTS - 4, 0, 5) / 5),
    ),
    "a user's": (lambda t: 0.3 / (1 + t / 7), 0.3 / (1 + COUNTS / 7)),
}


@module
class Harmonic(Schedule):
    """A user's schedule: initial / (1 + t / 7)."""

    initial: float

    def __call__(self, round):
        return self.initial / (1 + round / 7)


pytestmark = pytest.mark.usefixtures("x64")


def of_counts(tx):
    """What each step on a gradient of 1 subtracts, from a new state on."""

    def step(state, _):
        change, state = tx.update(jnp.ones(()), state, jnp.ones(()))
        return state, -change

    return jax.jit(lambda: jax.lax.scan(step, tx.init(jnp.ones(())), length=len(COUNTS))[1])()


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_has_the_digits_of_float64(name):
    """As a rate by round, as an argument of an optax function on either side, and inside a factory of one's own."""
    schedule, want = SCHEDULES[name]
    by_round = jax.jit(jax.vmap(lambda t: rate_at(as_rate("client_lr", schedule), t)))
    found = {
        "by round": by_round(COUNTS.astype(np.int32)),
        "client": of_counts(Optax(optax.sgd, learning_rate=schedule).transformation.at(0)),
        "server": of_counts(ServerOptax(optax.sgd, learning_rate=schedule).transformation.at(0)),
        "inside": of_counts(transformation(lambda: optax.chain(optax.sgd(schedule))).at(0)),
    }
    for rates in found.values():
        assert rates.dtype == np.float64
        np.testing.assert_allclose(rates, want, rtol=1e-15, atol=1e-17)


def test_a_schedule_of_ones_own_has_them_too():
    rates = jax.jit(jax.vmap(lambda t: rate_at(Harmonic(0.3), t)))(COUNTS.astype(np.int32))
    np.testing.assert_allclose(rates, 0.3 / (1 + COUNTS / 7), rtol=1e-15)


def test_a_counter_that_an_update_narrows():
    """A transformation that makes int32 of its counter in every step: it goes on with int32, a loop keeps its types."""

    def narrow():
        def update(updates, state, params=None):
            return jax.tree.map(lambda g: -g / (1 + state), updates), (state + 1).astype(jnp.int32)

        return optax.GradientTransformation(lambda params: jnp.int32(0), update)

    np.testing.assert_allclose(of_counts(transformation(narrow).at(0)), 1 / (1 + COUNTS), rtol=1e-15)


def test_what_follows_from_a_counter_is_of_the_type_that_an_update_leaves():
    """`inject_hyperparams` keeps the rate in its state: a loop over steps keeps its types there, too."""
    schedule, want = SCHEDULES["linear"]
    injected = transformation(lambda: optax.inject_hyperparams(optax.sgd)(learning_rate=schedule))
    np.testing.assert_allclose(of_counts(injected.at(0)), want, rtol=1e-15)


WARM_UP = optax.linear_schedule(0.0, 0.1, 10)


@pytest.mark.parametrize(
    ("local", "steps", "words"),
    [
        (
            Optax(optax.adam, learning_rate=WARM_UP),
            1,
            "starts anew in every round and moves nothing in its first 1 ",
        ),
        (
            Optax(
                optax.sgd, learning_rate=optax.join_schedules([optax.constant_schedule(0.0), WARM_UP], [4])
            ),
            5,
            "5 steps",
        ),
        (Optax(lambda: optax.chain(optax.adam(WARM_UP))), 1, "starts anew"),
        (Optax(lambda: optax.apply_every(3)), 2, "starts anew"),
        (Optax(optax.sgd, learning_rate=0.0), 3, "moves nothing, whatever the gradients"),
        (Optax(optax.adam, learning_rate=WARM_UP), 2, ""),
        (Optax(optax.adam, keep=True, learning_rate=WARM_UP), 1, ""),
        (Optax(optax.adam, learning_rate=as_rate("x", WARM_UP)), 1, ""),
        (Optax(lambda: optax.apply_every(3)), 3, ""),
        (SGD(0.1), 1, ""),
    ],
)
def test_a_client_that_cannot_move_is_told(local, steps, words):
    """An optimiser that begins anew in each round and is at rate 0 in all its steps; by trying, not by its name."""
    found = local.why_it_stands_still({"w": jnp.ones(2), "b": jnp.ones(())}, steps, 20)
    assert words in found
    assert bool(words) == bool(found)


def test_a_run_that_cannot_move_says_so():
    method = fs.FedOpt(Optax(optax.sgd, learning_rate=WARM_UP), fs.server.ServerSGD())
    task = fs.Task.from_arrays(
        lambda w, x: jnp.mean((x - w) ** 2), np.zeros(2), [np.ones((2, 2))] * 2, batch_size="full"
    )
    result = fs.run(method, task, rounds=2)
    assert any("the clients' solver starts anew" in note for note in result.history.notes)
    np.testing.assert_array_equal(result.params, 0.0)
