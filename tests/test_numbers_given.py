"""Numbers that a user gives: one finite number within its range, as an array too; a rate may be a schedule."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedsolve as fs
from fedsolve.core.errors import check_range
from fedsolve.core.schedules import as_rate
from fedsolve.geometry import L1, L1Ball

BAD = {
    "negative": -0.1,
    "negative array": np.array(-0.1),
    "negative on the device": jnp.float32(-0.1),
    "two elements": np.array([0.1, 0.2]),
    "one element": np.array([0.1]),
    "a list": [0.1],
    "text": "0.1",
    "nothing": None,
    "a truth": True,
    "a truth of NumPy": np.bool_(True),
    "not a number": np.array(np.nan),
    "infinite": jnp.inf,
    "complex": 1j,
    "hundreds of digits": 10**400,
    "an object": object(),
}
TAKERS = {
    "rate": lambda x: fs.FedAvg(x),
    "server rate": lambda x: fs.FedAvg(0.1, server_lr=x),
    "radius": lambda x: L1Ball(x),
    "weight": lambda x: L1(x),
    "probability": lambda x: fs.sampling.Bernoulli(x),
    "schedule": lambda x: fs.schedules.Exponential(x, 0.9),
    "wrapper": lambda x: fs.Proximal(fs.FedAvg(), x),
    "Frank-Wolfe": lambda x: fs.frank_wolfe.Convex(x, 0.5),
}


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("bad", BAD)
def test_refused_where_it_is_given(taker, bad):
    """In one line, at construction."""
    with pytest.raises(fs.InvalidInput, match=r"^[^\n]{1,200}$"):
        TAKERS[taker](BAD[bad])


@pytest.mark.parametrize("good", [0.1, np.float32(0.1), np.array(0.1), jnp.float32(0.1), 1])
def test_one_number_in_any_form_is_taken(good):
    for taker in TAKERS.values():
        taker(good)


def test_what_stands_for_a_number_inside_a_program_is_not_looked_at():
    """Traced values pass; stacked ones, as a sweep keeps them, are made by transformations and never checked."""
    jax.make_jaxpr(lambda x: check_range("rate", fs.FedAvg(x).server_optimizer.lr, above=0))(0.1)
    many = jax.tree.map(lambda *x: jnp.stack(x), fs.FedAvg(0.1), fs.FedAvg(0.2))
    assert many.local.lr.shape == (2,)
    jax.vmap(lambda a: a.local.lr)(many)


@pytest.mark.parametrize(
    "bad", [float, lambda r: jnp.ones(3), lambda r: [0.1], lambda r: 1, lambda: 0.1, fs.FedAvg]
)
def test_a_function_that_is_no_schedule(bad):
    with pytest.raises(fs.InvalidInput, match="client_lr"):
        as_rate("client_lr", bad)


def test_functions_that_are_schedules():
    for good in (optax.exponential_decay(0.1, 10, 0.9), lambda r: 0.1, lambda r: 0.1 / (r + 1)):
        assert float(as_rate("client_lr", good)(0)) == pytest.approx(0.1)
