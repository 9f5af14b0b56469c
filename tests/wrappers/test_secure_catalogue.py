"""Every method whose messages are sums, under fs.Secure: what the server decodes is the plain mean, up to rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core import introspect, wire
from fedsolve.core.algorithm import Cohort
from fedsolve.core.types import module, reductions
from fedsolve.deploy.communication import MODEL, STEPS, examples
from fedsolve.engine.compute.train import reduce_stacked
from fedsolve.methods.secure.fixed_point import scale_exponent, single
from fedsolve.methods.wrappers.wrapper import Wrapper
from harness import crossed

BOUND, CLIENTS, SIZES = 3.0, 8, (5, 16, 2)
METHODS = examples() | {"DeComFL": fs.DeComFL(down="model", most_steps=STEPS)}
"""Clients of DeComFL cannot rebuild the model inside a wrapper."""
_STEP, _LINEAR = (
    "`vertex` is not a sum, .* set sends='step'",
    "`inner.delta` is not a sum, .* take a linear compressor",
)
REFUSED = {
    "FedFW": _STEP,
    "FedFWPlus": _STEP,
    "FedFWSto": _STEP,
    "FedLiLS, max": "the maximum of measured.step is not a sum; set server='one'",
    "SCALLION": _LINEAR,
    "SCAFCOM": _LINEAR,
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
GATE += ["FedExProx, StoPS", "FedDualAvg, averaged", "SCALLION, RandomK", "LocalDP+FedAdam"]
"""Messages of other fields; what is like one of them waits for `make test-all`."""


@pytest.mark.full_rows("FedAvg", "SCALLION, RandomK", "FedAdamW", "FedNova", "FedDualAvg, averaged")
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
        rings = [outer.train(broadcast, client, oracle)[0] for oracle in oracles]
        ones = jnp.ones(3)
        total = reduce_stacked(outer, jax.tree.map(lambda *x: jnp.stack(x), *rings), ones, ones > 0)
        found, again = (
            outer.decode(outer.init(model), x, Cohort(0, 3, 4)) for x in (total, added_as_bytes(rings))
        )
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
