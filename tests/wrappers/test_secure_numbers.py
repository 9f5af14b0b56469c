"""fs.Secure: scales that leave no room for an overflow, ring elements, rounding, clipping, bytes and refusals."""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve import wire
from fedsolve.core import introspect, trees
from fedsolve.engine.compute.train import reduce_stacked
from fedsolve.methods.secure.fixed_point import (
    MOST_CLIENTS,
    Number,
    encode_leaf,
    from_ring,
    round_at_random,
    scale_exponent,
    single,
    to_ring,
)
from fedsolve.methods.secure.secure import SecureMessage
from harness import crossed

TASK = fs.tasks.digits(num_clients=4, model="softmax")
SECURE: dict[str, Any] = {"bound": 2.0, "max_clients": 4, "max_examples": 1000}


@pytest.mark.parametrize(
    ("clients", "bits", "exponent"), [(10, 32, 27), (100, 32, 24), (1000, 32, 21), (1000, 64, 53)]
)
def test_the_scale_is_the_largest_whose_sum_fits(clients, bits, exponent):
    assert scale_exponent(bits, clients, 1.0) == exponent
    assert clients * 2**exponent < 2 ** (bits - 1) <= clients * 2 ** (exponent + 1)


BOUNDS, FIRST = [1 - 2**-31, 0.1, 127.99999999, 1e-12, 1e12, 3.0], 1 - 2**-31


@pytest.mark.parametrize(
    ("dtype", "bits", "bound"),
    crossed(
        product(["float32", "float64"], [32, 64], BOUNDS),
        [
            *(("float32", 32, bound) for bound in BOUNDS),
            ("float32", 64, FIRST),
            ("float64", 32, FIRST),
            ("float64", 64, FIRST),
        ],
    ),
)
def test_no_sum_can_overflow(bound, bits, dtype):
    """As many clients as may be, all beyond the bound on one side: their exact sum is what the ring says."""
    clients, within = MOST_CLIENTS if bits == 64 else 2**7, single(bound)
    number = Number("x", "mean", bits, within, scale_exponent(bits, clients, within))
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray([2 * bound, -2 * bound], dtype)
        ring, clipped = encode_leaf(x, number, 1.0, jax.random.key(0), jnp.zeros((), x.dtype))
        one, count = np.asarray(from_ring(ring, "float32"), float), int(clipped)
        total = wire.Ring(ring.value * jnp.uint32(clients), ring.fine, bits)
        found = np.asarray(from_ring(total, "float32"), float)
    assert count == 2
    assert within <= bound
    assert math.ceil(math.ldexp(within, number.exponent)) * clients < 2 ** (bits - 1)
    np.testing.assert_allclose(found, clients * one, rtol=1e-6)
    largest = math.ldexp(within, number.exponent)
    np.testing.assert_allclose(one, [largest, -largest], rtol=1e-6)


def test_elements_of_64_bits_are_those_of_python():
    """Sums of negative and positive whole numbers, of which single precision knows 24 digits: modulo 2^64."""
    rng = np.random.default_rng(0)
    numbers = np.asarray(rng.standard_normal(200) * 2.0 ** rng.integers(0, 40, 200), "float32").round()
    rings = to_ring(jnp.asarray(numbers), jnp.zeros(()), 64)
    exact = [int(x) for x in numbers.tolist()]
    words = np.frombuffer(wire.encode(rings), "<u8")
    assert [int(w) for w in words] == [x % 2**64 for x in exact]
    total = wire.Ring(rings.value.sum(0, dtype=jnp.uint32), rings.fine, 64)
    assert int(np.frombuffer(wire.encode(total), "<u8")[0]) == sum(exact) % 2**64
    assert float(from_ring(total, "float32")) == pytest.approx(sum(exact), rel=1e-6)


def test_rounding_is_unbiased():
    """At random between both neighbours: the mean of 2^16 roundings is the number itself."""
    found = round_at_random(jnp.full(2**16, -2.3), jax.random.key(1))
    assert set(np.unique(found)) == {-3.0, -2.0}
    assert abs(float(found.mean()) + 2.3) < 5 * math.sqrt(0.21 / 2**16)


@pytest.mark.full
def test_what_is_clipped_is_counted():
    """In the record of every round; a run without any has no warning."""
    few = fs.run(fs.Secure(fs.FedAvg(0.1), **{**SECURE, "bound": 0.01}), TASK, rounds=2)
    none = fs.run(fs.Secure(fs.FedAvg(0.1), **SECURE), TASK, rounds=2)
    assert (few.history.rounds["clipped"] > 0).all()
    assert not none.history.rounds["clipped"].any()
    assert any("exceeded their bounds" in note for note in few.notes)
    assert not any("exceeded their bounds" in note for note in none.notes)
    # the update, and the loss, the number of examples and that of numbers clipped
    size = 4 * trees.size(TASK.init(jax.random.key(0))) + 3 * 8
    assert (none.history.rounds["bytes_up"] == 4 * size).all()


def test_a_message_that_is_not_finite_does_not_count():
    """It shows, although whole numbers cannot be NaN, and the sum is that of the others."""
    fine = jnp.asarray([0, jnp.nan, 0])
    rings = jax.vmap(partial(to_ring, bits=32))(jnp.asarray([[1.0], [jnp.nan], [-4.0]]), fine)
    assert not trees.all_finite(jax.tree.map(lambda x: x[1], rings))
    inner, used = fs.FedAvg(0.1, weighting="uniform"), jnp.asarray([True, False, True])
    outer, message = fs.Secure(inner, bound=1.0, max_clients=4), SecureMessage((rings,), (), rings, None)
    total = reduce_stacked(outer, message, jnp.ones(3), used)
    assert from_ring(total.sums[0], "float32").tolist() == [-3.0]
    assert trees.all_finite(total)


def test_no_count_goes_beside_noise():
    """How many numbers were clipped, and how many examples there are, would be known exactly."""
    pytest.importorskip("dp_accounting")
    inner = fs.privacy.DifferentialPrivacy(
        fs.FedAvg(0.1, weighting="uniform"), 0.3, 1.0, cohort=4, population=4, delta=1e-2, sampling="none",
        at="distributed", min_sum=4,
    )  # fmt: skip
    outer, model = fs.Secure(inner, bound=1.0, max_clients=4), {"w": jnp.zeros(3)}
    broadcast = introspect.broadcast_shape(outer, model, 4)
    message = introspect.message_shape(outer, broadcast, ())
    assert (message.clipped, message.weight) == ((), ())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bound": 0.0}, "bound = 0.0 must be a number from 1e-12 to 1e.12"),
        ({"bound": float("nan")}, "bound = nan must be"),
        ({"bits": 16}, "bits = 16 must be 32 or 64"),
        ({"max_clients": 0}, "max_clients = 0 must"),
        ({"max_clients": 10**6}, "at most 65,535 messages fit into a sum"),
        ({"max_examples": None}, "FedAvg weighs clients by examples: give Secure max_examples"),
        ({"bounds": {"loss": -1.0}}, "bounds..loss.. = -1.0 must be"),
        ({"bounds": 3.0}, "bounds = 3.0 must be bounds by name"),
    ],
)
def test_bad_numbers_are_refused_when_it_is_built(options, words):
    with pytest.raises(fs.InvalidInput, match=words):
        fs.Secure(fs.FedAvg(0.1), **(SECURE | options))


@pytest.mark.parametrize(
    ("options", "run", "words"),
    [
        ({"max_clients": 3}, {}, "max_clients = 3 but a round may have 4 clients"),
        ({"max_clients": 3}, {"sampling": fs.sampling.Bernoulli(0.5)}, "may have 4 clients"),
        ({"bounds": {"lost": 1.0}}, {}, "bounds has 'lost': the message has"),
    ],
)
def test_what_does_not_fit_a_run_is_refused_before_it(options, run, words):
    with pytest.raises(fs.InvalidInput, match=words):
        fs.run(fs.Secure(fs.FedAvg(0.1), **(SECURE | options)), TASK, rounds=1, **run)


def test_nothing_goes_around_it():
    """What another wrapper adds would be sent as it is."""
    inner = fs.Secure(fs.FedAvg(0.1, weighting="uniform"), bound=1.0, max_clients=4)
    for around in (fs.ControlVariates, fs.Ditto, lambda a: fs.Secure(a, bound=1.0, max_clients=4)):
        with pytest.raises(
            fs.InvalidInput, match="cannot wrap Secure, which hides what it sends: build Secure around"
        ):
            around(inner)


@pytest.mark.full
def test_personal_models_are_the_clients_own():
    """Ditto's personal models are measured under Secure as without it."""
    plain, secure = (
        fs.run(a, fs.tasks.digits(num_clients=4), rounds=2)
        for a in (fs.Ditto(fs.FedAvg(0.1)), fs.Secure(fs.Ditto(fs.FedAvg(0.1)), **SECURE))
    )
    for run in (plain, secure):
        assert run.metrics["train_loss"][-1] < run.metrics["test_loss"][-1] - 0.1
    np.testing.assert_allclose(secure.metrics["train_loss"], plain.metrics["train_loss"], rtol=1e-5)
