"""Low-rank updates around any method: LoRA, averaged in four ways."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core import introspect, trees
from fedsolve.core.algorithm import Algorithm, Cohort, client_update_of, name_of, round_of
from fedsolve.core.building import checked, choice, class_by_name, integer, number
from fedsolve.core.errors import InvalidInput
from fedsolve.core.oracle import Oracle, WrappedOracle
from fedsolve.core.types import Params, Scalar, module
from fedsolve.core.wire import Initial
from fedsolve.methods.compression.compressed import Compressed
from fedsolve.methods.compression.compressors import is_compressed, updated_squared_norm, with_field
from fedsolve.methods.server.fedopt import FedOpt
from fedsolve.methods.server.server_optimizer import ServerOptimizer
from fedsolve.methods.wrappers.wrapper import Wrapper

# What a low-rank wrapper accepts: its options, and which methods it can go around.


def check_inner(inner: Algorithm, title: str, average: str) -> None:
    """Raise `InvalidInput` if the factors of a method cannot be averaged so."""
    traits, name = inner.traits, f"{title} cannot wrap {name_of(inner)}"
    if traits.factors:
        raise InvalidInput(f"{name}, which has factors already: one of the two is enough")
    if traits.buffer:
        raise InvalidInput(f"{name}: its clients start from models of different age; take synchronous rounds")
    if average not in ("exact", "stack"):
        return
    if not _sends_updates(inner):
        raise InvalidInput(
            f"{name}: it sends no plain client updates to multiply; use average = 'both' or 'A'"
        )
    if traits.privacy in ("central", "distributed"):
        raise InvalidInput(
            f"{name}: products of factors exceed its bound on updates; use average = 'both' or 'A'"
        )
    if average == "exact" and traits.reduction is not None:
        raise InvalidInput(f"{name}: the residual is of means; use average = 'both', 'A' or 'stack'")


def _sends_updates(method: Algorithm) -> bool:
    """Whether the field `delta` of messages is each client's own update."""
    while not isinstance(method, FedOpt):
        if isinstance(method, Compressed) and method.memory == "ef21":
            return False
        if not isinstance(inner := getattr(method, "inner", None), Algorithm):
            return False
        method = inner
    return type(method.server_optimizer).direction is ServerOptimizer.direction


def check_stacking(inner: Algorithm, params: Params) -> None:
    """Raise `InvalidInput` if a method broadcasts more than the model, or its clients keep a state."""
    entries: Callable[[Any], int] = lambda tree: sum(x.size for x in jax.tree.leaves(tree) if jnp.ndim(x))  # noqa: E731
    broadcast = introspect.broadcast_shape(inner, params, 1)
    kept = jax.tree.leaves(jax.eval_shape(inner.init_client, broadcast))
    if kept or entries(broadcast) != entries(params):
        name = name_of(inner)
        more = f"the clients of {name} keep a state" if kept else f"{name} sends more than the model"
        raise InvalidInput(
            f"average = 'stack' begins each round with new factors, and {more}: use average = 'exact'"
        )


def check_decoded(inner: Algorithm, update: Any) -> None:
    """Raise `InvalidInput` if a client update is still a code, of which the server adds up all."""
    if is_compressed(update):
        raise InvalidInput(
            f"average = 'exact' or 'stack' needs each client's factors, and {name_of(inner)} decodes their mean alone: "
            "take a compressor that is not linear, such as EDEN, or average = 'both'"
        )


# Factors of low rank: which leaves of a model have them, how they begin, and a client's oracle seen from them.
#
# Trees of factors have the model's structure with `Factors` in the place of the chosen leaves; the chosen leaves alone
# have the model's structure with None for all others, so that paths stay what they are.

_SEED = 0x10A4  # of random numbers that nobody need hide: the same in simulation and deployment
_NAMED = 3  # paths that an error names


@module
class Factors:
    """What is trained in place of a matrix: B, shape (rows, rank), and A, shape (rank, columns) or None where fixed."""

    b: Array
    a: Any


def chosen_leaves(params: Params, patterns: Sequence[str], rank: int) -> Params:
    """The leaves that have factors: matrices that a pattern matches, and that are larger than their factors."""
    # A leaf is the matrix of its first axis and all others.
    paths, leaves = trees.named_leaves(params)
    matched = trees.all_matching("leaves", paths, patterns)
    if all(jnp.ndim(leaves[i]) < 2 for i in matched):
        names = ", ".join(paths[i] for i in sorted(matched)[:_NAMED])
        raise InvalidInput(f"leaves: {names} are no matrices, and LowRank has factors of matrices alone")
    has = [i in matched and _is_larger(leaf.shape, rank) for i, leaf in enumerate(leaves)]
    return jax.tree.structure(params).unflatten(
        [x if here else None for x, here in zip(leaves, has, strict=True)]
    )


def _is_larger(shape: tuple[int, ...], rank: int) -> bool:
    """Whether a leaf is a matrix with more entries than its factors."""
    rows, columns = shape[0] if shape else 0, math.prod(shape[1:])
    return len(shape) > 1 and rank * (rows + columns) < rows * columns


def random_factors(chosen: Params, rank: int, *numbers: Any) -> Params:
    """First factors of the chosen leaves: B = 0, and A uniform in [-1, 1] / sqrt(columns), as in LoRA's public code.

    Other `numbers`, of a round and a client, say, are other draws.
    """
    leaves, structure = jax.tree.flatten(chosen)
    key = jax.random.key(_SEED)
    for folded in numbers:
        key = jax.random.fold_in(key, jnp.asarray(folded, jnp.uint32))
    factors = []
    for i, w in enumerate(leaves):
        rows, columns = w.shape[0], math.prod(w.shape[1:])
        bound = 1 / math.sqrt(columns)
        bits = jax.random.bits(jax.random.fold_in(key, i), (rank, columns), jnp.uint32) >> 8
        a = (2.0**-23 * bits.astype(w.dtype) - 1) * bound  # of the same 24 bits in every type
        factors.append(Factors(jnp.zeros((rows, rank), w.dtype), a.astype(w.dtype)))
    return structure.unflatten(factors)


def at_chosen(function: Callable[..., Any], chosen: Params, tree: Params, *others: Params) -> Params:
    """`function(leaf, part, *parts)` of each chosen leaf, the part of `tree` in its place and those of `others`."""
    # Where no leaf is chosen the result is the part of `tree` itself.
    return jax.tree.map(
        lambda w, part, *parts: part if w is None else function(w, part, *parts),
        chosen,
        tree,
        *others,
        is_leaf=lambda x: x is None,
    )


def of_chosen(function: Callable[..., Any], chosen: Params, tree: Params) -> Params:
    """`function(leaf, part)` of each chosen leaf and the part of `tree` in its place; None elsewhere."""
    return jax.tree.map(
        lambda w, part: None if w is None else function(w, part), chosen, tree, is_leaf=lambda x: x is None
    )


@dataclass(frozen=True)
class FactorOracle(WrappedOracle):
    """A client's loss as a function of factors."""

    adds: ClassVar[str] = "the gradient of factors of low rank"
    whole: Callable[[Params], Params]

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        return self._back(params, lambda model: self.inner(model, step))

    def loss(self, params: Params, step: Scalar) -> Scalar:
        return self.inner.loss(self.whole(params), step)

    def full(self, params: Params) -> tuple[Scalar, Params]:
        return self._back(params, self.inner.full)

    def _back(
        self, params: Params, of_model: Callable[[Params], tuple[Scalar, Params]]
    ) -> tuple[Scalar, Params]:
        """The chain rule: from the gradient G of W, s G A' of B and s B' G of A."""
        model, pull = jax.vjp(self.whole, params)
        loss, gradient = of_model(model)
        return loss, pull(gradient)[0]


# What a wrapper with factors in place of matrices is made of, however it averages them.

Average = Literal["both", "A", "exact", "stack"]
_NAMES = {"both": "LoRA", "A": "FFA-LoRA", "exact": "FedEx-LoRA", "stack": "FLoRA"}


@module
class Factored(Wrapper):
    """Base class of `LowRank`: its arguments, its factors and the model that they stand for.

    W = W0 + s B A,   s = alpha / rank,   B = 0 and A random at the start
    """

    inner: Algorithm
    rank: int = integer()
    average: Average = choice("both", "A", "exact", "stack", default="both")
    _: KW_ONLY
    leaves: str | tuple[str, ...] = checked(
        partial(trees.as_patterns, example="('*.query.weight', 'head.*')"), default="*", static=True
    )
    alpha: Scalar | None = number(default=None, above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_inner(self.inner, self.title, self.average)

    @property
    def title(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The name of the method, by how it averages."""
        return _NAMES.get(self.average, "LowRank")

    @property
    def factors(self) -> str:
        """How client updates differ from the model."""
        return "averaged" if self.average in ("both", "A") else "multiplied"

    @property
    def only_mean(self) -> str:
        """Why no other reduction will do."""
        return "the residual is of means" if self.average == "exact" else self.inner.traits.only_mean

    def diagnostics(self) -> tuple[Any, ...]:
        # None: those of `inner` are of factors
        return ()

    def _chosen(self, params: Params) -> Params:
        return chosen_leaves(params, tuple(self.leaves), self.rank)

    def _draw(self, base: Params, *numbers: Any) -> Params:
        return random_factors(base, self.rank, *numbers)

    def _trained(self, factors: Factors) -> Factors:
        """What is trained of factors."""
        return Factors(factors.b, None if self.average == "A" else factors.a)

    def _product(self, w: Any, factors: Factors) -> Any:
        """s B A, in the shape of a leaf."""
        s = 1.0 if self.alpha is None else self.alpha / self.rank
        return (s * (factors.b @ factors.a)).reshape(w.shape).astype(w.dtype)

    def _whole(self, base: Params, factors: Params) -> Params:
        """The model of factors."""
        if self.average == "A":
            # A is not part of the model: everybody draws it again from the fixed seed
            drawn = self._draw(base)
            factors = at_chosen(lambda w, p, q: Factors(p.b, q.a), base, factors, drawn)
        return at_chosen(lambda w, p: w + self._product(w, p), base, factors)


@module
class LowRankServer:
    """The inner server, of factors, and the chosen leaves W0 to which their products are added."""

    inner: Any
    base: Params


@module
class LowRankBroadcast:
    """The inner broadcast, of factors, and W0: where it never changes, as leaves of the initial model."""

    inner: Any
    base: Any


@module
class LowRankMessage:
    """The inner message, and s dB_i dA_i of each chosen leaf, which the server computes."""

    inner: Any
    product: Params


@class_by_name("LowRank")
@module
class LowRank(Factored):
    """LoRA (Hu et al. 2022): `inner` trains factors B A of low rank in place of the chosen matrices.

        W = W0 + s B A,   s = alpha / rank,   B = 0 and A random at the start
        client i:  as `inner`, from (B, A):   dB_i, dA_i

        both    server:  as `inner` on the mean of (dB_i, dA_i)          LoRA by FedAvg, the usual practice
        A       A never trains, B alone is sent                          FFA-LoRA (Sun et al. 2024)
        exact   as both;   W0 <- W0 + s (mean dB_i dA_i - mean dB_i mean dA_i)   FedEx-LoRA (Singhal et al. 2025)
        stack   client i begins with B = 0 and A of its own draw;   server:  as `inner` on D = s mean B_i A_i,
                which is the product of all factors side by side         FLoRA (Wang et al. 2024)

    The mean of (B_i, A_i) does not have the mean of B_i A_i as its product: `both` misses it by s times the covariance
    of dB and dA, which is what `exact` adds. `A` and `stack` have no such error.

    Up: factors, rank (m + n) numbers for a matrix of m n; with `A` m rank. Down: the same and, since W0 is part of the
    initial model, 8 bytes that say which; with `exact` W0 besides, with `stack` the model alone. (The papers send the
    residual or all factors, to clients that never miss a round.) Kept: what `inner` keeps. Other leaves train in full,
    unless the task freezes them, and so do matrices no larger than their factors: with a rank that large this is
    `inner`. A leaf is the matrix of its first axis and all others; in PyTorch's linear layers A reads the inputs.
    Options of `inner` (momentum, clipping, a proximal term) act on factors.

    Args:
        inner: the method of the factors, such as `FedAvg`; with `exact` and `stack` one that sends client updates.
        rank: >= 1; PEFT begins with 8.
        average: as above.
        leaves: which leaves have factors: a pattern of paths, or several, as in `fedsolve.geometry`; all matrices.
        alpha: > 0; None is the rank, for s = 1, as in the paper and PEFT.

    Raises:
        InvalidInput: an `inner` that is no method, or cannot be averaged so; a rank, patterns or an alpha out of range.
            When a run begins: a pattern that matches no leaf, or vectors alone; with `stack` clients that keep a state.

    As in public code A is uniform in [-1, 1] / sqrt(n), and FLoRA's clients draw their own; from one fixed seed.

    Reference: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022. Averages: Sun et al.,
    arXiv:2403.12313 (A), Singhal et al., arXiv:2410.09432 (exact), Wang et al., arXiv:2409.05976 (stack).
    """

    parts: ClassVar[tuple[type, ...]] = (LowRankServer, LowRankBroadcast, LowRankMessage)

    def init(self, params: Params) -> Any:
        # the inner server's state of the factors, and W0; with `stack` that of the model
        base = self._chosen(params)
        if self.average == "stack":
            check_stacking(self.inner, params)
            return self.inner.init(params)
        start = at_chosen(lambda w, p, factors: self._trained(factors), base, params, self._draw(base))
        return LowRankServer(self.inner.init(start), base)

    def broadcast(self, server: Any, cohort: Cohort) -> Any:
        if self.average == "stack":
            return self.inner.broadcast(server, cohort)
        base = server.base if self.average == "exact" else Initial.leaves_of(server.base)
        return LowRankBroadcast(self.inner.broadcast(server.inner, cohort), base)

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        # run the inner local work on factors; with `stack` the message has B_i and A_i themselves
        if self.average != "stack":
            base = Initial.values_of(broadcast.base)
            seen = FactorOracle(oracle, lambda factors: self._whole(base, factors))
            return self.inner.train(broadcast.inner, client, seen)
        # stack: each client draws A_i of its own and begins with B_i = 0, so that the product starts at 0
        model = self.inner.model(broadcast)
        base = self._chosen(model)
        drawn = self._draw(base, round_of(broadcast), oracle.client)
        start = at_chosen(lambda w, p, factors: factors, base, model, drawn)
        seen = FactorOracle(oracle, lambda factors: self._whole(base, factors))
        message, client = self.inner.train(with_field(broadcast, "params", start), client, seen)
        # factors themselves are sent, not how far they went: their product is the update
        update = client_update_of(message)
        return _with_update(message, at_chosen(lambda w, d, f: trees.add(d, f), base, update, drawn)), client

    def receive(self, broadcast: Any, message: Any, client: Any) -> tuple[Any, Any]:
        # decode the inner message; with `exact` and `stack` multiply its factors
        received, followed = self.inner.receive(self.inner_part(broadcast), message, client)
        if self.average in ("both", "A"):
            return received, followed
        update = client_update_of(received)
        check_decoded(self.inner, update)
        if self.average == "exact":
            return LowRankMessage(received, of_chosen(self._product, broadcast.base, update)), followed
        base = self._chosen(self.inner.model(broadcast))
        return _with_update(received, at_chosen(self._product, base, update)), followed

    def update(self, server: Any, message: Any, cohort: Cohort) -> Any:
        # the inner update; with `exact` W0 takes what the mean of factors misses
        updated = super().update(server, message, cohort)
        if self.average != "exact":
            return updated
        # s (mean dB_i dA_i - mean dB_i mean dA_i), the covariance that averaging factors misses
        of_means = of_chosen(self._product, server.base, client_update_of(message.inner))
        residual = trees.sub(message.product, of_means)
        return LowRankServer(updated.inner, trees.add(server.base, residual))

    def model(self, broadcast: Any) -> Params:
        # the model: W0 + s B A in the place of factors
        if self.average == "stack":
            return self.inner.model(broadcast)
        return self._whole(Initial.values_of(broadcast.base), self.inner.model(broadcast.inner))

    def export(self, server: Any) -> Params:
        if self.average == "stack":
            return self.inner.export(server)
        return self._whole(server.base, self.inner.export(server.inner))


def _with_update(message: Any, update: Params) -> Any:
    """A message with another client update, and its squared norm where the message has one."""
    changed = with_field(message, "delta", update)
    return updated_squared_norm(changed, trees.squared_norm(update))[0]
