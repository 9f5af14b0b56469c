"""Secure sums of any method whose server needs sums alone: messages become whole numbers that are added up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, fields
from math import ceil, floor, ldexp
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedsolve.core import introspect, trees
from fedsolve.core.algorithm import Algorithm, Cohort, name_of, round_of
from fedsolve.core.building import class_by_name, integer
from fedsolve.core.errors import InvalidInput, check_integer, is_plain_number
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import (
    Params,
    Traced,
    Weighting,
    is_module,
    module,
    reduced,
    replace,
    reported,
    static,
)
from fedsolve.core.wire import Ring, ring_words
from fedsolve.methods.compression.compressors import Encoded
from fedsolve.methods.secure.fixed_point import (
    MOST_CLIENTS,
    Coder,
    Number,
    decode_leaf,
    encode_leaf,
    from_ring,
    scale_exponent,
    single,
    to_ring,
)
from fedsolve.methods.wrappers.wrapper import Wrapper

# Which messages are sums, by their types, and how each of their numbers is sent as a whole number.

SCALAR_BOUND = 2.0**20
"""Largest size of a scalar that no bound is given for."""
_UPDATE, _SQUARED_NORM = "delta", "squared_norm"


def ways(message: Any, inherited: str = "mean") -> Any:
    """How each leaf of a message is reduced in sums, in its structure: a maximum that is only logged by a mean."""
    if not is_module(message):
        return jax.tree.map(lambda _: inherited, message)
    parts = {}
    for f in fields(message):
        if not f.metadata.get("static"):
            by = f.metadata.get("reduce", inherited)
            by = "average" if by == "max" and f.metadata.get("logged") else by
            parts[f.name] = ways(getattr(message, f.name), by)
    return replace(message, **parts)


def why_not_a_sum(algorithm: Algorithm, as_sent: bool, message: Any) -> str:
    """Why a server needs more than sums of messages, '' if they will do; `as_sent`: messages are reduced as sent."""
    if algorithm.traits.reduction is not None:
        return "a robust reduction looks at each message"
    if not as_sent:
        return "the server changes each message before it adds them up"
    largest = [
        name for name, by in zip(_names(message), jax.tree.leaves(ways(message)), strict=True) if by == "max"
    ]
    return f"the maximum of {largest[0]} is not a sum" if largest else ""


def check_inner(algorithm: Algorithm) -> None:
    """Raise `InvalidInput` if a method asks for more than a sum over one cohort, by its traits."""
    traits = algorithm.traits
    if traits.reduction is not None:
        reason = f"{why_not_a_sum(algorithm, True, ())}, and a sum hides them: leave the reduction out"
    elif traits.buffer:
        reason = (
            "the clients of a buffer begin at different times, and a sum has one cohort: take a method with "
            "synchronous rounds"
        )
    elif traits.privacy == "central":
        reason = (
            "rounding to whole numbers may exceed the norm that the server's noise is made for: give DP "
            "at='distributed'"
        )
    else:
        return
    raise InvalidInput(f"Secure cannot wrap {name_of(algorithm)}: {reason}")


def check_sum(algorithm: Algorithm, broadcast: Any, message: Any, client: Any) -> None:
    """Raise `InvalidInput` unless the server of a method needs sums of messages alone."""
    as_sent = introspect.is_forwarded(algorithm, broadcast, message, client)
    reason = why_not_a_sum(algorithm, as_sent, message)
    if not reason:
        return
    name, has_codes = name_of(algorithm), any(map(_is_code, jax.tree.leaves(message, is_leaf=_is_code)))
    remedy = next((words for of, words in _REMEDIES.items() if of in name), "take another method")
    if has_codes:
        remedy = "take a linear compressor, such as fs.compression.RandomK"
    path = _names(message)[0].split(".")
    last = next(i for i, part in enumerate(path) if part != "inner")
    field = "" if as_sent else f"`{'.'.join(path[: last + 1])}` is not a sum, since "
    raise InvalidInput(f"Secure cannot wrap {name}: {field}{reason}; {remedy}")


_REMEDIES = {"FedFW": "set sends='step'", "FedLiLS": "set server='one'"}


class Limits(NamedTuple):
    """What numbers of messages are sent within: bound and bits of arrays, bounds of other fields, clients at most."""

    bound: float
    bits: int
    bounds: Mapping[str, float]
    clients: int


def layout(
    structure: Any, shapes: list[tuple[int, ...] | None], entries: int, limits: Limits
) -> list[Number]:
    """How each leaf of a message is sent; shapes are None of those sent otherwise, `entries` those of the model."""
    numbered = structure.unflatten(range(structure.num_leaves))
    names, bounds, found = _names(numbered), limits.bounds, []
    by_name = [{name, *name.split(".")} for name in names]
    if unused := sorted(set(bounds) - set().union(*by_name)):
        raise InvalidInput(f"bounds has {unused[0]!r}: the message has {', '.join(names)}")
    scalars, gains = set(_single_leaves(numbered)), _gains(numbered)
    for i, (name, by) in enumerate(zip(names, jax.tree.leaves(ways(numbered)), strict=True)):
        is_scalar = i in scalars and shapes[i] == () and _UPDATE not in by_name[i]
        usual = SCALAR_BOUND if is_scalar else gains.get(i, 1.0) * limits.bound
        if name.endswith(_SQUARED_NORM):
            usual = entries * limits.bound**2
        own = single(
            next((bounds[part] for part in (name, *reversed(name.split("."))) if part in bounds), usual)
        )
        bits = 64 if is_scalar else limits.bits
        found.append(Number(name, by, bits, own, scale_exponent(bits, limits.clients, own)))
    return found


def _single_leaves(message: Any) -> Iterator[int]:
    """The leaves that are whole fields of a module, of a message of their numbers."""
    if is_module(message):
        for f in fields(message):
            value = getattr(message, f.name)
            if type(value) is int and not f.metadata.get("static"):
                yield value
            yield from _single_leaves(value)
    elif isinstance(message, tuple | list):
        for part in message:
            yield from _single_leaves(part)


def _gains(message: Any) -> dict[int, float]:
    """1 + omega, by which entries of linear codes exceed those of the array; of a message of the leaves' numbers."""
    codes = [x for x in jax.tree.leaves(message, is_leaf=_is_code) if _is_code(x) and x.compressor.is_linear]
    return {i: 1 + x.compressor.error(math.prod(x.shape)) for x in codes for i in jax.tree.leaves(x)}


def _is_code(x: Any) -> bool:
    return isinstance(x, Encoded)


def _names(message: Any) -> list[str]:
    return trees.named_leaves(message)[0]


# What the server keeps and what is sent where messages are added up as whole numbers.


@module
class SecureServer:
    """The inner server, and how many numbers of the last round's messages were clipped; 0 where noise protects them."""

    inner: Any
    clipped: Traced = reported(
        "numbers of messages exceeded their bounds and were clipped: raise bound, bounds or max_examples"
    )


@module
class SecureMessage:
    """A message as ring elements that are added up, by leaf of the inner message, whose structure it has.

    `weight` is the number of examples, `()` where clients count alike; `clipped` counts the numbers of this client
    that were clipped, `()` where noise protects the message.
    """

    sums: tuple[Ring, ...] = reduced("sum")
    weight: Any = reduced("sum")
    clipped: Any = reduced("sum")
    structure: Any = static()


_SEED = 0x5EC5  # of the rounding, which nobody need hide: the same in simulation and deployment


@class_by_name("Secure")
@module
class Secure(Wrapper):
    """Secure sums (Bonawitz et al. 2017; Bell et al. 2020): the server learns the sum of a cohort's messages alone.

        client i:  q_i <- R(2^f w_i clip(m_i, -B, B)),   w_i = n_i / N
        server:    m <- 2^(-f) sum over S of q_i / sum over S of w_i

    Each number m_i of the inner message is clipped to its bound B and rounded at random (R), so that its mean is
    exact. Sums are modulo 2^bits, and the inner update takes m. N is `max_examples`, and w_i = 1 where clients count
    alike. f is the largest for which the sum of `max_clients` numbers fits, so that it cannot overflow. Numbers of
    examples are summed too. A deployment adds masks that cancel (`docs/privacy.md`): its sums have at least 3 clients,
    and not one bit of the result differs from the simulation.

    The server follows the protocol or not, but does not ship the clients' app, which could leave the masks out; how
    many clients may help it is in `docs/security-model.md`. The sum itself is not hidden, nor is who took part: `DP`
    with `at=distributed` inside adds noise to the sum.

    Up: 4 bytes for each number of the inner message (8 with 64 bits), 8 for each scalar. Down and kept: as `inner`.

    Attributes:
        inner: the method; its messages must be reduced by means.
        bound: B, largest size of a number of the client update and of other arrays, > 0.
        bits: 32 or 64, of such a number; scalars have 64.
        max_clients: largest number of clients in a round, 1 .. 65,535.
        max_examples: largest number of examples of a client, >= 1, where `inner` weighs by examples.
        bounds: B of other fields by name, such as {"loss": 100.0}, from 1e-12 to 1e12 each. Without one, B is 2^20 for
            a scalar, d B^2 for the squared norm of a client update of d numbers, and (1 + omega) times `bound` for
            the code of a linear compressor.

    Raises:
        InvalidInput: a number out of its range; max_examples missing; an inner method with a reduction of its own, a
            buffer or noise that its server adds. When a run begins: a cohort above max_clients, a message that is no
            sum, a bound for a field that the message does not have.
    """

    title: ClassVar[str] = "Secure"
    parts: ClassVar[tuple[type, ...]] = (SecureServer,)
    around_all: ClassVar[bool] = True
    secure_sums: ClassVar[bool] = True

    inner: Algorithm
    _: KW_ONLY
    bound: float = static()
    bits: Literal[32, 64] = static(default=32)
    max_clients: int = integer(bits=None)
    max_examples: int | None = static(default=None)
    bounds: Mapping[str, float] | tuple[tuple[str, float], ...] | None = static(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bound("bound", self.bound)
        object.__setattr__(self, "bound", float(self.bound))
        if self.bits not in (32, 64) or not isinstance(self.bits, int):
            raise InvalidInput(f"bits = {self.bits!r} must be 32 or 64")
        if self.max_clients > MOST_CLIENTS:
            raise InvalidInput(
                f"max_clients = {self.max_clients}: at most {MOST_CLIENTS:,} messages fit into a sum"
            )
        object.__setattr__(self, "bounds", as_pairs(self.bounds))
        check_inner(self.inner)
        if self._by_examples and self.max_examples is None:
            raise InvalidInput(
                f"{name_of(self.inner)} weighs clients by examples: give Secure max_examples, the most that a "
                "client has, or give the method weighting='uniform'"
            )
        if self.max_examples is not None:
            check_integer("max_examples", self.max_examples, 1)
        if (coder := self._coder) is not None and self.max_clients * coder.most >= 2 ** (self.bits - 1):
            raise InvalidInput(
                f"max_clients = {self.max_clients}: sums of so many messages with noise may exceed {self.bits} bits: "
                "give Secure bits=64, or fewer clients"
            )

    @property
    def weighting(self) -> Weighting:
        """The weighting "uniform": weights are part of the sums."""
        return "uniform"

    @property
    def only_mean(self) -> str:
        """Why no other reduction will do."""
        return "its messages are whole numbers, of which only the sum says something"

    def check(self, sampling: Any, population: int) -> None:
        # check that no round has more messages than fit into a sum
        super().check(sampling, population)
        expected = sampling.expected(population)
        most = population if expected is None or sampling.scheme == "poisson" else expected
        if most > self.max_clients:
            raise InvalidInput(
                f"max_clients = {self.max_clients} but a round may have {most:g} clients: give Secure at least as many"
            )

    def with_steps(self, steps: int | None) -> Algorithm:
        # Itself: its numbers are those of a deployment, whose server does not know the clients' steps
        self.inner.with_steps(steps)
        return self

    def init(self, params: Params) -> SecureServer:
        return SecureServer(self.inner.init(params), jnp.zeros((), trees.dtype_of(params)))

    def enrol(self, broadcast: Any, params: Params) -> Any:
        return self.inner.enrol(broadcast, params)

    def own_model(self, model: Params, client: Any) -> Params:
        return self.inner.own_model(model, client)

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[SecureMessage, Any]:
        message, after = self.inner.train(broadcast, client, oracle)
        check_sum(self.inner, broadcast, message, client)
        model, round = self.inner.model(broadcast), round_of(broadcast)
        leaves, structure = jax.tree.flatten(message)
        coded = self.coded(structure)
        dtype = trees.dtype_of(model)
        # 0, or NaN for a message that is not finite: it spreads to every ring element, so that the round notices
        fine = jnp.where(trees.all_finite(message), 0, jnp.nan).astype(dtype)
        key = jax.random.fold_in(jax.random.key(_SEED), jnp.asarray(round, jnp.uint32))
        key = jax.random.fold_in(key, jnp.asarray(oracle.client, jnp.uint32))
        examples, share, clipped = jnp.asarray(oracle.num_examples, dtype), 1.0, jnp.zeros((), dtype)
        if self._by_examples:
            clipped += examples > self._most_examples
            examples = jnp.minimum(examples, self._most_examples)
            # weights in [0, 1] keep a weighted number within its bound
            share = examples / self._most_examples
        rings: list[Ring] = []
        for i, number in enumerate(self._layout(structure, [x.shape for x in leaves], model)):
            if i not in coded:
                weight = share if number.by == "mean" else 1.0
                ring, count = encode_leaf(leaves[i], number, weight, jax.random.fold_in(key, i), fine)
                rings.append(ring)
                clipped += count
        if coded:
            shape = jax.tree.structure(model)
            update = jax.tree.unflatten(shape, [leaves[i] for i in coded[: shape.num_leaves]])
            numbers = self._coder.encode(update, round, oracle.client)
            # in a deployment the client's own process adds the noise: there is no key here
            if oracle.key is not None:
                noise = self._coder.noise(numbers, oracle.key)
                numbers = [a + b for a, b in zip(numbers, noise, strict=True)]
            rings += [to_ring(x, fine, self.bits) for x in numbers]
        weight = to_ring(examples, fine, 64) if self._by_examples else ()
        count = () if self._hides_counts else to_ring(clipped, fine, 64)
        return SecureMessage(tuple(rings), weight, count, structure), after

    def receive(self, broadcast: Any, message: SecureMessage, client: Any) -> tuple[SecureMessage, Any]:
        return message, client

    def update(self, server: SecureServer, message: SecureMessage, cohort: Cohort) -> SecureServer:
        inner = self.inner.update(server.inner, self.decode(server, message, cohort), cohort)
        if self._hides_counts:
            return SecureServer(inner, server.clipped)
        return SecureServer(inner, from_ring(message.clipped, server.clipped.dtype))

    def decode(self, server: SecureServer, message: SecureMessage, cohort: Cohort) -> Any:
        """The inner message, reduced over the cohort, from its sums.

        Args:
            server: the server's state.
            message: the sums of the cohort's messages.
            cohort: of the round.

        Returns:
            A message of the inner method: means as its fields say.
        """
        dtype, structure = server.clipped.dtype, message.structure
        model = jax.eval_shape(lambda: self.inner.model(self.inner.broadcast(server.inner, cohort)))
        size = jnp.maximum(jnp.asarray(cohort.size, dtype), 1)
        weight = size
        if self._by_examples:
            weight = jnp.maximum(from_ring(message.weight, dtype), 1) / self._most_examples
        coded, sums = self.coded(structure), list(message.sums)
        own = self._own_leaves(message, model)
        leaves: list[Any] = [None] * structure.num_leaves
        # leaves in fixed point come first, in their order; the coder's arrays follow
        for (i, number), ring in zip(own.items(), sums, strict=False):
            leaves[i] = decode_leaf(ring, number, weight if number.by == "mean" else size, dtype)
        if coded:
            totals = [from_ring(ring, dtype) for ring in sums[len(own) :]]
            update = self._coder.decode(totals, size, model, cohort.round)
            for i, leaf in zip(coded, update, strict=True):
                leaves[i] = leaf
        return structure.unflatten(leaves)

    def check_sums(self, message: SecureMessage, clients: int, model: Params) -> None:
        """Raise `InvalidInput` if sums are beyond what the messages of so many clients can add up to.

        Args:
            message: the sums, as arrays in main memory.
            clients: how many, at least 1.
            model: the parameters, or arrays of their shapes.
        """
        own = self._own_leaves(message, model)
        ranges = [(number.name, ceil(ldexp(number.bound, number.exponent))) for number in own.values()]
        if (coder := self._coder) is not None:
            ranges += [("the client update", floor(coder.most))] * (len(message.sums) - len(own))
        for (name, most), ring in zip(ranges, message.sums, strict=True):
            _check_range(name, ring, -most * clients, most * clients)
        if self._by_examples:
            _check_range("the numbers of examples", message.weight, clients, clients * self._most_examples)
        if not self._hides_counts:
            entries = 1 + sum(ring_words(ring).size for ring in message.sums)
            _check_range("the counts of clipped numbers", message.clipped, 0, clients * entries)

    def _own_leaves(self, message: SecureMessage, model: Params) -> dict[int, Number]:
        structure, coded = message.structure, self.coded(message.structure)
        own = [i for i in range(structure.num_leaves) if i not in coded]
        shapes: list[Any] = [None] * structure.num_leaves
        for i, ring in zip(own, message.sums, strict=False):
            shapes[i] = ring.value.shape if ring.bits == 32 else ring.value.shape[:-1]
        numbers = self._layout(structure, shapes, model)
        return {i: numbers[i] for i in own}

    @property
    def _by_examples(self) -> bool:
        return self.inner.traits.weighting == "examples"

    @property
    def _most_examples(self) -> int:
        return self.max_examples or 1

    @property
    def _hides_counts(self) -> bool:
        """Whether how many numbers were clipped would say more than the noise allows."""
        return self.inner.traits.privacy == "distributed"

    @property
    def _coder(self) -> Coder:
        return getattr(self.inner, "update_coder", None)  # pyright: ignore[reportReturnType]

    def coded(self, structure: Any) -> list[int]:
        """The numbers of the leaves that the coder sends: those of the update, then what it sends with them.

        Args:
            structure: of the inner message.

        Returns:
            Places among its leaves; none where updates are sent in fixed point.
        """
        if self._coder is None:
            return []
        names = _names(structure.unflatten(range(structure.num_leaves)))
        update = [i for i, name in enumerate(names) if _UPDATE in name.split(".")]
        return update + [
            i for own in self._coder.beside for i, name in enumerate(names) if name.endswith(own)
        ]

    def _layout(self, structure: Any, shapes: list[Any], model: Params) -> list[Number]:
        limits = Limits(self.bound, self.bits, dict(self.bounds or ()), self.max_clients)
        return layout(structure, shapes, trees.size(model), limits)


def _check_range(name: str, ring: Ring, least: int, most: int) -> None:
    numbers = ring_words(ring).view(f"<i{ring.bits // 8}")
    low, high = int(numbers.min(initial=least)), int(numbers.max(initial=most))
    if not least <= low <= high <= most:
        raise InvalidInput(
            f"the sum of {name} has {low if low < least else high} where so many clients can give {least} to {most}: "
            "one of them sends numbers beyond its bound, or runs another version of fedsolve"
        )


SMALLEST, LARGEST = 1e-12, 1e12
"""Bounds that may be given: their scales, and what follows from them, are float32 numbers."""


def as_pairs(bounds: Any) -> tuple[tuple[str, float], ...]:
    """Bounds as pairs in the order of their names."""
    if not isinstance(bounds, Mapping | tuple | None):
        raise InvalidInput(f"bounds = {bounds!r} must be bounds by name, such as {{'loss': 100.0}}")
    pairs = tuple(sorted(dict(bounds or ()).items()))
    for name, bound in pairs:
        check_bound(f"bounds[{name!r}]", bound)
    return tuple((name, float(bound)) for name, bound in pairs)


def check_bound(name: str, bound: Any) -> None:
    """Raise `InvalidInput` unless a bound is a number that a scale can be chosen for."""
    if not is_plain_number(bound) or not SMALLEST <= bound <= LARGEST:
        raise InvalidInput(f"{name} = {bound!r} must be a number from {SMALLEST:g} to {LARGEST:g}")
