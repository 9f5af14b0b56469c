"""Clients that attack together once they know what all others send, for simulations."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Scalar, Traced, module, reduced
from fedsolve.methods.attacks.collusion import Collusion
from fedsolve.methods.robust.means import Mean
from fedsolve.methods.robust.reduction import column, joined, split, vector_of
from fedsolve.methods.wrappers.wrapper import Wrapper


@module
class Marked:
    """A message, and whether it comes from an attacker (1) or not (0)."""

    message: Any
    attacks: Traced = reduced("max")


@module
class Colluding(Wrapper):
    """The method `inner` with some clients that attack together once they know what all others send.

    What changes is the message's vector (`reduction.vector_of`: the client update, if it has one);
    the rest is honest. Goes around `Robust`. A message carries one number more, whether it is an attacker's, by
    which the simulation knows them; the inner reduction does not see it. In a round without an honest client
    everybody is honest.

    Attributes:
        inner: the method.
        attack: what attackers send.
        attackers: numbers of the clients that attack, shape (attackers,); -1 is nobody.

    Raises:
        InvalidInput: attackers that are no integers from -1.
    """

    title: ClassVar[str] = "Colluding"
    inner: Algorithm
    attack: Collusion
    attackers: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "attackers", client_numbers(self.attackers))

    @property
    def reduction(self) -> Any:
        """The inner method's, on what the cohort sends once attackers have had their way."""
        return _Collude(self.attack, self.inner.traits.reduction or Mean())

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        """The inner local work; the message is marked."""
        message, client = self.inner.train(broadcast, client, oracle)
        attacks = jnp.any(jnp.asarray(self.attackers) == oracle.client)
        return Marked(message, attacks.astype(jnp.float32)), client

    def receive(self, broadcast: Any, message: Any, client: Any) -> tuple[Any, Any]:
        """What the inner method makes of a message; its mark stays."""
        received, client = self.inner.receive(broadcast, message.message, client)
        return Marked(received, message.attacks), client


@module
class _Collude:
    """A reduction of marked messages: the attackers' vectors are made of the others', then `then` reduces all."""

    attack: Collusion
    then: Any

    @property
    def fewest(self) -> Scalar:
        """As of `then`."""
        return self.then.fewest

    def __call__(self, messages: Any, weight: Array, used: Array) -> Any:
        attacks = messages.attacks > 0
        honest = used & ~attacks
        leaves, structure = jax.tree.flatten(messages.message)
        marks = jax.tree.leaves(vector_of(messages.message))
        own = [jnp.where(column(used, x), x, 0) for x, mark in zip(leaves, marks, strict=True) if mark]
        vector = self.attack.vector(joined(own), honest, jnp.sum(used & attacks))
        parts = iter(split(vector, own))
        change = attacks & jnp.any(honest)
        sent = [
            jnp.where(column(change, x), next(parts).astype(x.dtype), x) if mark else x
            for x, mark in zip(leaves, marks, strict=True)
        ]
        return self.then(structure.unflatten(sent), weight, used)


def client_numbers(given: Any) -> np.ndarray:
    """Numbers of clients as an array; `InvalidInput` unless they are integers from -1, which is nobody."""
    numbers = np.asarray(given)
    numbers = numbers.astype(np.int32) if numbers.size == 0 else numbers
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or (numbers < -1).any():
        raise InvalidInput(f"attackers = {given!r} must be the numbers of clients, such as (0, 3)")
    return numbers.astype(np.int32)
