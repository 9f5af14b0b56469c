"""Every method whose messages are sums, under fs.Secure: what the server decodes is the plain mean, up to rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core import introspect
from fedsolve.core.algorithm import Cohort
from fedsolve.core.types import module, reductions
from fedsolve.deploy.communication import MODEL, STEPS, examples
from fedsolve.methods.secure.fixed_point import scale_exponent, single
from fedsolve.methods.wrappers.wrapper import Wrapper

BOUND, CLIENTS, SIZES = 3.0, 8, (5, 16, 2)
METHODS = examples()
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


@pytest.mark.parametrize("name", [name for name in METHODS if name not in REFUSED])
def test_the_mean_is_that_of_the_messages(name):
    """Random messages of three clients of 5, 16 and 2 examples: each number's error is below a unit a client."""
    algorithm, rng = METHODS[name], np.random.default_rng(0)
    with jax.enable_x64(True):
        model = jax.tree.map(lambda x: jnp.zeros(x.shape), MODEL)
        broadcast, client = broadcast_of(algorithm, model)
        shape = introspect.message_shape(algorithm, broadcast, client, STEPS)
        sent = [jax.tree.map(lambda s: jnp.asarray(rng.uniform(-1, 1, s.shape)), shape) for _ in SIZES]
        outer = fs.Secure(Replayed(algorithm, sent), bound=BOUND, max_clients=CLIENTS, max_examples=16)
        rings = [outer.train(broadcast, client, Client(i, n))[0] for i, n in enumerate(SIZES)]
        total = jax.tree.map(lambda *x: sum(x[1:], x[0]), *rings)
        found = outer.decode(outer.init(model), total, Cohort(0, 3, 4))
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


@pytest.mark.parametrize("name", [name for name in REFUSED if name in METHODS])
def test_what_is_no_sum_is_refused(name):
    """By the name of what is no sum, with what would make it one."""
    with pytest.raises(fs.InvalidInput, match=f"Secure cannot wrap .*{REFUSED[name]}"):
        outer = fs.Secure(METHODS[name], bound=BOUND, max_clients=CLIENTS, max_examples=16)
        broadcast, client = broadcast_of(outer, MODEL)
        introspect.message_shape(outer, broadcast, client, STEPS)
