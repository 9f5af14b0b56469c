"""Clients that attack, for simulations: what they send instead of their update, and labels they train on.

`Attacked` clients act each alone and stand inside `Robust`; `Colluding` ones know what all honest clients send and
stand around it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.errors import InvalidInput, check_integer, check_range
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Scalar, module
from fedsolve.data.federated import FederatedData
from fedsolve.methods.attacks.colluding import client_numbers
from fedsolve.methods.robust.reduction import vector_of
from fedsolve.methods.wrappers.wrapper import Wrapper

_TAG = 0x61747461


class _Task(Protocol):
    """What is needed of a task, which is a layer above."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def data(self) -> Any: ...


TaskT = TypeVar("TaskT", bound=_Task)


@module
class Attack:
    """Base attack on the update of one client: it sends factor D_i + std N(0, 1) in place of D_i.

    The rest of the message is honest.

    One class for all, so that a sweep runs them in one program; `SignFlip`, `Scaled` and `GaussianNoise` name them.

    Attributes:
        factor: times its update, finite.
        std: of the noise added to each coordinate, at least 0.

    Raises:
        InvalidInput: a factor or std that is not finite, a negative std.
    """

    factor: Scalar
    std: Scalar

    def __post_init__(self) -> None:
        check_range("factor", self.factor)
        check_range("std", self.std, at_least=0)


def SignFlip(scale: Scalar = 1.0) -> Attack:
    """Sign flipping: an attacker sends -scale D_i.

    Args:
        scale: times D_i, finite; 1 is as far uphill as the client went down.

    Returns:
        `Attack(-scale, 0.0)`, to be given to `Attacked`.

    Raises:
        InvalidInput: a scale that is not finite.
    """
    check_range("scale", scale)
    return Attack(-scale, 0.0)


def Scaled(factor: Scalar) -> Attack:
    """Scaling: an attacker sends factor D_i, to outweigh the other clients.

    Args:
        factor: times its update, finite; negative ones turn it round.

    Returns:
        `Attack(factor, 0.0)`, to be given to `Attacked`.

    Raises:
        InvalidInput: a factor that is not finite.
    """
    return Attack(factor, 0.0)


def GaussianNoise(std: Scalar) -> Attack:
    """Gaussian noise (Blanchard et al. 2017): an attacker sends std N(0, 1), new in each round, in place of D_i.

    Args:
        std: standard deviation of each coordinate, at least 0, in the units of the parameters.

    Returns:
        `Attack(0.0, std)`, to be given to `Attacked`.

    Raises:
        InvalidInput: a std that is negative or not finite.
    """
    return Attack(0.0, std)


@module
class Attacked(Wrapper):
    """Simulated attackers in any method: they do the local work, then change the update that they send.

    What changes is the message's vector (`fedsolve.methods.robust.reduction.vector_of`: the client update, if it has
    one); scalars stay honest. Goes inside `Robust`. The server cannot tell: everything else is as `inner`.

    Attributes:
        inner: the method.
        attack: what attackers send.
        attackers: numbers of the clients that attack, shape (attackers,); -1 is nobody, so that settings of a
            sweep can have equally many.

    Raises:
        InvalidInput: attackers that are no integers from -1; a message without a vector.
    """

    title: ClassVar[str] = "Attacked"
    inner: Algorithm
    attack: Attack
    attackers: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "attackers", client_numbers(self.attackers))

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        """Run the inner local work, and change the update of attackers."""
        message, client = self.inner.train(broadcast, client, oracle)
        attacks = jnp.any(jnp.asarray(self.attackers) == oracle.client)
        leaves, structure = jax.tree.flatten(message)
        marks = jax.tree.leaves(vector_of(message))
        if not any(
            mark and jnp.issubdtype(x.dtype, jnp.inexact) for x, mark in zip(leaves, marks, strict=True)
        ):
            raise InvalidInput(f"{name_of(self.inner)} sends no vector that an attack could change")
        # a key of its own: noise that a wrapper inside adds for privacy takes from the client's, too
        keys = jax.random.split(jax.random.fold_in(oracle.key, _TAG), len(leaves))

        def sent(x: Any, key: Any) -> Any:
            noise = jax.random.normal(key, x.shape, x.dtype)
            return jnp.where(attacks, self.attack.factor * x + self.attack.std * noise, x).astype(x.dtype)

        changed = [sent(x, k) if mark else x for x, mark, k in zip(leaves, marks, keys, strict=True)]
        return structure.unflatten(changed), client


def choose_attackers(population: int, share: float, seed: int = 0) -> tuple[int, ...]:
    """Draw attackers at random: a share of the clients, rounded to a whole number.

    With one seed, the attackers of a smaller share are among those of a larger one.

    Args:
        population: clients of the task, at least 1.
        share: of them that attack, in [0, 1].
        seed: of the draw, at least 0.

    Returns:
        round(share * population) numbers of clients, each in 0 .. population - 1, in the order of the draw.

    Raises:
        InvalidInput: a share outside [0, 1], no client, a negative seed.

    >>> choose_attackers(10, 0.2, seed=1)[:1] == choose_attackers(10, 0.1, seed=1)
    True
    """
    check_range("share", share, at_least=0, at_most=1)
    check_integer("population", population, 1)
    order = np.random.default_rng(check_integer("seed", seed)).permutation(population)
    return tuple(int(i) for i in order[: round(share * population)])


def flip_labels(task: TaskT, attackers: Sequence[int], classes: int) -> TaskT:
    """Flip the labels y of some clients to classes - 1 - y; test examples are unchanged.

    Args:
        task: a task whose examples have labels `y`, shape (n,), integers.
        attackers: numbers of the clients whose labels are flipped.
        classes: how many classes there are: labels are 0 to classes - 1.

    Returns:
        A copy with its own array of labels; the given task keeps its labels, and both share the inputs.

    Raises:
        InvalidInput: examples without labels `y` from 0 to classes - 1, or a client that is not there.
    """
    data = task.data
    labels = np.array(getattr(data.examples, "y", 0.5))
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= classes:
        raise InvalidInput(f"flip_labels needs examples with whole labels y from 0 to {classes - 1}")
    for client in attackers:
        if not 0 <= client < data.num_clients:
            raise InvalidInput(f"attacker {client}: the task has clients 0 to {data.num_clients - 1}")
        start = int(data.offsets[client])
        own = slice(start, start + int(data.counts[client]))
        labels[own] = classes - 1 - labels[own]
    examples = data.examples._replace(y=labels)
    return dataclasses.replace(task, data=FederatedData(examples, data.counts, data.names, data.columns))
