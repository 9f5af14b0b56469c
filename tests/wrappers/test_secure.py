"""fs.Secure: the plain mean up to rounding for every method of sums; scales, rounding, bytes and refusals."""

import math
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core import introspect, trees, wire
from fedsolve.core.algorithm import Cohort
from fedsolve.core.types import module, reductions
from fedsolve.deploy.communication import MODEL, STEPS, examples
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
from fedsolve.methods.wrappers.wrapper import Wrapper
from harness import crossed

# Every method whose messages are sums, under fs.Secure: what the server decodes is the plain mean, up to rounding.

BOUND, CLIENTS, SIZES = 3.0, 8, (5, 16, 2)
METHODS = examples() | {"DeComFL": fs.DeComFL(down="model", most_steps=STEPS)}
"""Clients of DeComFL cannot rebuild the model inside a wrapper."""
_STEP, _LINEAR = (
    "`vertex` is not a sum, .* set sends='step'",
    "`(inner.)?delta` is not a sum, .* take a linear compressor",
)
REFUSED = {
    "FedFW": _STEP,
    "FedFWPlus": _STEP,
    "FedFWSto": _STEP,
    "FedLiLS, max": "the maximum of measured.step is not a sum; set server='one'",
    "SCALLION": _LINEAR,
    "SCAFCOM": _LINEAR,
    "SparseLoCo": _LINEAR,
    "EF21Muon": _LINEAR,
    "FedComLoc": "`params` is not a sum",
    "FedKSeed": "`candidate` is not a sum",
    "IFCA": "`delta` is not a sum",
    "FedBuff": "the clients of a buffer begin at different times",
    "FedAsync": "the clients of a buffer begin at different times",
    "Robust+FedAdam": "a robust reduction looks at each message",
    "DP+FedAdam": "give DP at='distributed'",
    "DP+FedAdam, at = client": "give DP at='distributed'",
    "DP+FedAdam, at = client, adaptive": "give DP at='distributed'",
}


@module
class Replayed(Wrapper):
    """A method whose clients send given messages."""

    title = "Replayed"
    around_all = True
    inner: fs.Algorithm
    messages: Any

    def train(self, broadcast: Any, client: Any, oracle: Any) -> tuple[Any, Any]:
        return self.messages[oracle.client], client

    def enrol(self, broadcast: Any, params: Any) -> Any:
        return self.inner.enrol(broadcast, params)


@dataclass
class Client:
    """What an oracle says of a client."""

    client: int
    num_examples: int
    key: Any = None


def broadcast_of(algorithm: fs.Algorithm, model: Any) -> tuple[Any, Any]:
    broadcast = algorithm.broadcast(algorithm.init(model), introspect.first_cohort(4))
    return broadcast, jax.eval_shape(algorithm.enrol, broadcast, model)


def added_as_bytes(messages: list[Any]) -> Any:
    """The sum of messages as a server makes it of the clients' bytes: word by word, modulo 2^32 or 2^64."""
    data, start, sums = [wire.encode(message) for message in messages], 0, []
    for part in jax.tree.leaves(messages[0], is_leaf=lambda x: isinstance(x, wire.Ring)):
        stop = start + wire.size(part)
        words = [np.frombuffer(x[start:stop], f"<u{part.bits // 8}") for x in data]
        sums.append(np.add.reduce(words, dtype=words[0].dtype).tobytes())  # unsigned words wrap around
        start = stop
    assert start == len(data[0])
    return wire.decode(b"".join(sums), messages[0])


GATE = [
    "FedAvg",
    "FedExP",
    "FedNova",
    "SCAFFOLD",
    "FedAdamW",
    "FedDR",
    "FedLiLS",
    "DeComFL",
    "FedPer",
    "FedFW, step",
]
GATE += ["FedExProx, StoPS", "FedDualAvg, averaged", "FastFedDA", "SCALLION, RandomK", "LocalDP+FedAdam"]
"""Messages of other fields; what is like one of them waits for `make test-all`."""


@pytest.mark.full_rows(
    "FedAvg", "FedLiLS", "SCALLION, RandomK", "FedAdamW", "FedNova", "FedDualAvg, averaged"
)
@pytest.mark.parametrize(
    "name",
    crossed([name for name in METHODS if name not in REFUSED], GATE),
)
def test_the_mean_is_that_of_the_messages(name):
    """Random messages of three clients of 5, 16 and 2 examples: each number's error is below a unit a client.

    The engine's sum and that of the clients' bytes are the same to the bit.
    """
    algorithm, rng = METHODS[name], np.random.default_rng(0)
    with jax.enable_x64(True):
        model = jax.tree.map(lambda x: jnp.zeros(x.shape), MODEL)
        broadcast, client = broadcast_of(algorithm, model)
        shape = introspect.message_shape(algorithm, broadcast, client, STEPS)
        sent = [jax.tree.map(lambda s: jnp.asarray(rng.uniform(-1, 1, s.shape)), shape) for _ in SIZES]
        outer = fs.Secure(Replayed(algorithm, sent), bound=BOUND, max_clients=CLIENTS, max_examples=16)
        oracles: list[Any] = [Client(i, n) for i, n in enumerate(SIZES)]

        @jax.jit
        def summed():
            rings = [outer.train(broadcast, client, oracle)[0] for oracle in oracles]
            ones = jnp.ones(3)
            return rings, reduce_stacked(outer, jax.tree.map(lambda *x: jnp.stack(x), *rings), ones, ones > 0)

        start = outer.init(model)
        decode = jax.jit(lambda x: outer.decode(start, x, Cohort(0, 3, 4)))
        rings, total = summed()
        found, again = (decode(x) for x in (total, added_as_bytes(rings)))
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(again), strict=True):
        assert np.asarray(mine).tobytes() == np.asarray(theirs).tobytes()
    by_examples = algorithm.traits.weighting == "examples"
    share = np.array(SIZES) / sum(SIZES) if by_examples else np.full(3, 1 / 3)
    weight = sum(SIZES) / 16 if by_examples else 3
    units = {"mean": (share, 3 / weight), "average": (np.full(3, 1 / 3), 1), "max": (np.full(3, 1 / 3), 1)}
    unit = 2.0 ** -scale_exponent(32, CLIENTS, single(BOUND * 12))  # of codes, whose bound is larger

    def compare(by: str, got: Any, *numbers: Any) -> None:
        weights, rounding = units[by]
        want = np.tensordot(weights, np.stack(numbers), 1)
        assert np.abs(np.asarray(got) - want).max() < rounding * unit

    jax.tree.map(compare, reductions(found), found, *sent)


@pytest.mark.full_rows("FedFW", "SCALLION")
@pytest.mark.parametrize("name", [name for name in REFUSED if name in METHODS])
def test_what_is_no_sum_is_refused(name):
    """By the name of what is no sum, with what would make it one."""

    def begin() -> None:
        outer = fs.Secure(METHODS[name], bound=BOUND, max_clients=CLIENTS, max_examples=16)
        introspect.message_shape(outer, *broadcast_of(outer, MODEL), STEPS)

    with pytest.raises(fs.InvalidInput, match=f"Secure cannot wrap .*{REFUSED[name]}"):
        begin()


# fs.Secure: scales that leave no room for an overflow, ring elements, rounding, clipping, bytes and refusals.

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

    @jax.jit
    def summed(x: Any, key: Any) -> Any:
        ring, clipped = encode_leaf(x, number, 1.0, key, jnp.zeros((), x.dtype))
        total = wire.Ring(ring.value * jnp.uint32(clients), ring.fine, bits)
        return from_ring(ring, "float32"), from_ring(total, "float32"), clipped

    with jax.enable_x64(dtype == "float64"):
        given = np.array([2 * bound, -2 * bound], dtype), jax.random.key(0)
        one, found, count = (np.asarray(x, float) for x in summed(*given))
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
