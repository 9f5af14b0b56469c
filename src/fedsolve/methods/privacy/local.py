"""Local differential privacy of any method: each client clips its message and adds Gaussian noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort, name_of
from fedsolve.core.building import class_by_name, number
from fedsolve.core.errors import InvalidInput, check_range, is_plain_number
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Privacy, Scalar, Traced, module, reductions, replace, reported, static
from fedsolve.methods.privacy.accounting import gaussian_epsilon, gaussian_multiplier
from fedsolve.methods.wrappers.wrapper import Wrapper

# The parts of a message that the Gaussian mechanism protects: the update, clipped in norm, and clipped scalars.
#
# A message is a module with the field `delta`, the client update, and scalars beside it, named by their path: `loss`,
# `measured.squared_norm`, `rate_sum`. Each scalar needs a bound b; three kinds have one by themselves:
#
#     measured.squared_norm   |D_i|^2, at most C^2 as |D_i| is at most C
#     loss                    that of local work, which no update uses: 0, it is left out
#     what is given as 0      left out in the same way

Bounds = tuple[tuple[str, float], ...]
"""Bounds of scalars by their path, as a static field keeps them."""

SQUARED_NORM, _LOSS = "measured.squared_norm", "loss"
_RENAMED = {"elapsed": "rate_sum"}
"""What scalars were called in settings that may be stored."""


def as_bounds(scalars: Mapping[str, float] | Bounds | None) -> Bounds:
    """Bounds as pairs in the order of their names."""
    if not isinstance(scalars, Mapping | tuple | None):
        raise InvalidInput(f"scalars = {scalars!r} must be bounds by name, such as {{'measured.loss': 5.0}}")
    pairs = tuple(sorted(dict(scalars or ()).items()))
    for name, bound in pairs:
        if not is_plain_number(bound):
            raise InvalidInput(
                f"scalars: the bound of {name} is {bound!r}: it must be a number of at least 0"
            )
        check_range(f"scalars: the bound of {name}", bound, at_least=0)
    return tuple((name, float(bound)) for name, bound in pairs)


def split(message: Any) -> tuple[Params, dict[str, Any]]:
    """The client update of a message, and its other leaves by their path."""
    leaves = jax.tree_util.tree_leaves_with_path(message)
    return message.delta, {_name(path): x for path, x in leaves if not _in_delta(path)}


def join(message: Any, delta: Params, scalars: Mapping[str, Any]) -> Any:
    """`message` with another client update and other scalars, in the types it had."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(message)
    displaced = iter(jax.tree.leaves(delta))
    new = [next(displaced) if _in_delta(path) else scalars[_name(path)] for path, _ in leaves]
    return structure.unflatten([jnp.asarray(x, old.dtype) for x, (_, old) in zip(new, leaves, strict=True)])


def bounds_of(method: Algorithm, message: Any, clip_norm: Scalar, given: Any) -> dict[str, Any]:
    """The bound of each scalar of a message (arrays or their shapes) of `method`; 0 where it is left out."""
    name = name_of(method)
    if trees.has_codes(message) or not hasattr(message, "delta"):
        raise InvalidInput(
            f"{name} sends no client update that could be clipped and noised: it has no private form"
        )
    scalars, known = split(message)[1], dict(given)
    _, how = split(reductions(message))
    for scalar in known:
        if scalar not in scalars and (now := _RENAMED.get(scalar)) in scalars:
            raise InvalidInput(f"scalars: {scalar} is now {now}: bound that instead")
        if scalar not in scalars:
            raise InvalidInput(f"scalars: {name} sends no {scalar}; it sends {', '.join(scalars) or 'none'}")
    bounds = {}
    for scalar, value in scalars.items():
        bound: Any = known.get(scalar, 0.0 if scalar == _LOSS else None)
        if bound is None and scalar == SQUARED_NORM:
            bound = clip_norm**2
        if jnp.shape(value) != ():
            raise InvalidInput(
                f"{name} sends {scalar} of shape {jnp.shape(value)} beside its update: only scalars can be "
                "protected beside it"
            )
        if bound is None:
            raise InvalidInput(
                f"{name} sends {scalar} beside its update, which would reveal information about the client's data: "
                f"give its largest value, scalars={{'{scalar}': 10.0}}; it is clipped to [0, 10] and noised"
            )
        if how[scalar] == "max" and not (is_plain_number(bound) and bound == 0):
            raise InvalidInput(
                f"{name} sends {scalar}, whose maximum the server uses: noise on a sum does not protect it"
                f"; if it is only logged, leave it out by scalars={{'{scalar}': 0}}"
            )
        bounds[scalar] = bound
    return bounds


def released(bounds: Mapping[str, Any]) -> list[str]:
    """Scalars that are not left out."""
    return [name for name, bound in bounds.items() if not (is_plain_number(bound) and bound == 0)]


def clip(message: Any, clip_norm: Scalar, bounds: Mapping[str, Any]) -> tuple[Any, Array]:
    """The message within its bounds, and 1 if its update was within C already, else 0.

        D <- D min(1, C / |D|),     s <- min(max(s, 0), b)

    A message that is not finite becomes NaN throughout, so that clipping hides no failure.
    """
    delta, scalars = split(message)
    norm = trees.norm(delta)
    valid = jnp.where(trees.all_finite(message), 1, jnp.nan).astype(norm.dtype)
    factor = valid * jnp.minimum(1, clip_norm / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
    inside = {name: valid * jnp.clip(x, 0, bounds[name]) for name, x in scalars.items()}
    return join(message, trees.scale(factor, delta), inside), valid * (norm <= clip_norm)


def gaussian(key: Any, like: Params) -> Params:
    """Independent standard normal numbers with the shapes and types of `like`, leaf j from fold_in(key, j)."""
    leaves, structure = jax.tree.flatten(like)
    keys = [jax.random.fold_in(key, j) for j in range(len(leaves))]
    return structure.unflatten(
        [jax.random.normal(k, jnp.shape(x), x.dtype) for k, x in zip(keys, leaves, strict=True)]
    )


def check_inner(method: Algorithm, title: str) -> None:
    """Raise `InvalidInput` if a method is already private, counts clients unlike or takes no mean."""
    name = name_of(method)
    if method.traits.privacy:
        raise InvalidInput(f"{title} around {name}: its messages are private already, choose one of the two")
    if method.traits.factors == "multiplied":
        raise InvalidInput(
            f"{title} around {name}: its server multiplies what clients send, of which no norm is bounded; take "
            "average = 'both' or 'A'"
        )
    if method.traits.weighting != "uniform":
        raise InvalidInput(
            f"{title} needs equal client weights: {name} weighs clients by their examples, which would reveal their "
            "numbers and leave the sensitivity of the sum unknown; give it weighting='uniform'"
        )
    if method.traits.reduction is not None:
        raise InvalidInput(
            f"{title} around {name}: the noise is calibrated for a mean of clipped messages, not for another reduction"
        )


def check_stateless(method: Algorithm, server: Any) -> None:
    """Raise `InvalidInput` if clients of `method` keep a state: clipping, noise and accounting know none."""
    first = Cohort(jnp.int32(0), jnp.int32(1), 1)
    own = jax.eval_shape(lambda s: method.init_client(method.broadcast(s, first)), server)
    if jax.tree.leaves(own):
        raise InvalidInput(
            f"{name_of(method)} keeps a state on each client, which clipping and noise may invalidate and the "
            "accounting does not cover: take a method without client state, and optimisers without keep=True"
        )


def _in_delta(path: Any) -> bool:
    return getattr(path[0], "name", None) == "delta"


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


_DOMINATED = (
    "in some rounds the noise in the mean update was larger than the clients' updates, so that their disagreement said "
    "nothing: the step was that of plain averaging (noise_dominates in the log)"
)


@module
class Disagreement:
    """Whether |D_i|^2 said nothing in a round, 1 or 0, of a method that steps by it."""

    noise_dominates: Traced = reported(_DOMINATED)


def compares_clients(method: Any) -> bool:
    """Whether the step of a method goes by mean |D_i|^2."""
    while isinstance(method, Wrapper):
        method = method.inner
    return getattr(getattr(method, "server_optimizer", None), "compares_clients", False)


def first_disagreement(method: Any, dtype: Any) -> Any:
    """The state before the first round: nothing where a method does not step by it."""
    return Disagreement(jnp.zeros((), dtype)) if compares_clients(method) else ()


def judged(state: Any, noise: Scalar, mean_squared_norm: Scalar) -> Any:
    """The state after a round whose noise on the mean update has this expected squared norm."""
    if not jax.tree.leaves(state):
        return state
    dominates = jnp.asarray(noise >= mean_squared_norm, state.noise_dominates.dtype)
    return Disagreement(dominates)


@module
class LocallyPrivateServer:
    """The inner server, epsilon of one message, and of a client that took part in every round so far."""

    inner: Any
    epsilon_round: Traced = reported()
    epsilon: Traced = reported()
    disagreement: Any = ()


@class_by_name("LocalDP")
@module
class LocalDifferentialPrivacy(Wrapper):
    """Local differential privacy: (epsilon, delta) for each message, also against the server.

        client i:  D_i <- D_i min(1, C / |D_i|) + z_D C N(0, I)
                   s_ij <- min(max(s_ij, 0), b_j) + z_s (b_j / 2) N(0, 1) for each scalar it reports
        server:    the inner update

    Of a method that steps by mean |D_i|^2, such as FedExP, a client reports |D_i|^2 of the update with its noise, which
    costs no privacy, and the server subtracts the noise's part: the expectation of (mean |D_i|^2) - d (z_D C)^2 is the
    mean of the clipped |D_i|^2 (d parameters). See `DifferentialPrivacy` on the step under noise.

    Neighbours: all of the client's data replaced, so that two messages differ by 2C. z is the least that the exact
    condition for Gaussian noise allows (Balle and Wang 2018, Theorem 8), 1/z^2 = 1/z_D^2 + k/z_s^2 for k scalars,
    which together take `share`. t messages of one client are one Gaussian mechanism with z / sqrt(t), again exactly:
    the log has epsilon of a message (`epsilon_round`) and of a client that took part in all rounds (`epsilon`), both
    at delta; no sampling of clients lowers them, since the server sees who sends.

    Up and down: what `inner` sends, a loss that no update uses as 0. Kept: nothing. Other scalars are as in
    `DifferentialPrivacy`; their mean is not brought back into its bounds. The log's `noise_dominates` is 1 in rounds in
    which d s^2/m or, for d below 2m, the estimate's own deviation s^2 sqrt(2d/m) exceeds it (s = z_D C, m clients); the
    step is then that of plain averaging.

    Attributes:
        inner: the method, without client state and weighting clients alike.
        clip_norm: C > 0, in units of the client update.
        epsilon: of one message, > 0; or give noise_multiplier.
        delta: in (0, 1).
        noise_multiplier: z, standard deviation of a message's noise in units of C; from epsilon if not given; > 0.
        scalars: bounds b_j by name; 0 leaves one out (see `wrappers.parts`).
        share: part of the budget that all scalars together take, in (0, 1).

    Raises:
        InvalidInput: a number out of its range, both or neither of epsilon and noise_multiplier, weights by
            examples, a method with client state or a message that cannot be protected.
    """

    title: ClassVar[str] = "LocalDP"
    parts: ClassVar[tuple[type, ...]] = (LocallyPrivateServer,)

    inner: Algorithm
    clip_norm: Scalar = number(above=0)
    epsilon: Scalar | None = number(default=None, above=0)
    _: KW_ONLY
    delta: Scalar = number(above=0, below=1)
    noise_multiplier: Scalar | None = number(default=None, above=0)
    scalars: Mapping[str, float] | Bounds | None = static(default=None)
    share: Scalar = number(default=0.1, above=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "scalars", as_bounds(self.scalars))
        check_inner(self.inner, self.title)
        if self.epsilon is None and self.noise_multiplier is None:
            raise InvalidInput("LocalDP needs epsilon of one message, or noise_multiplier")
        if trees.is_not_traced(self.epsilon) and trees.is_not_traced(self.delta):
            z = 2 * gaussian_multiplier(float(self.epsilon), float(self.delta))  # pyright: ignore[reportArgumentType]
            if self.noise_multiplier not in (None, z):
                raise InvalidInput("give LocalDP epsilon or noise_multiplier, not both")
            object.__setattr__(self, "noise_multiplier", z)

    @property
    def privacy(self) -> Privacy:
        """The kind of privacy: "local"."""
        return "local"

    @property
    def gdp_mu(self) -> Any:
        """The parameter mu = 2 / z: two messages within C differ by at most 2C, and the noise is z C."""
        z: Any = self.noise_multiplier
        return 2 / (float(z) if trees.is_not_traced(z) else z)  # traced where a sweep varies it

    def init(self, params: Params) -> LocallyPrivateServer:
        inner = self.inner.init(params)
        check_stateless(self.inner, inner)
        zero = jnp.zeros((), trees.dtype_of(params))
        return LocallyPrivateServer(inner, zero, zero, first_disagreement(self.inner, zero.dtype))

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        if oracle.key is None:
            raise InvalidInput("the noise of LocalDP needs randomness: give the oracle a key")
        message, client = self.inner.train(broadcast, client, oracle)
        bounds = bounds_of(self.inner, message, self.clip_norm, self.scalars)
        delta, sent = split(clip(message, self.clip_norm, bounds)[0])
        some = self._released(bounds)
        normal, normals = gaussian(oracle.key, (delta, {s: sent[s] for s in some}))
        each = jnp.asarray(self.noise_multiplier) * jnp.sqrt(len(some) / self.share)
        noisy = {s: sent[s] + each * bounds[s] / 2 * normals[s] for s in some}
        delta = trees.axpy(self._deviation(some), normal, delta)
        if SQUARED_NORM in sent:
            noisy[SQUARED_NORM] = trees.squared_norm(delta)
        return join(message, delta, sent | noisy), client

    def _released(self, bounds: Mapping[str, Any]) -> list[str]:
        # scalars with noise of their own: |D_i|^2 follows from the noisy update
        if any(name == SQUARED_NORM for name, _ in self.scalars):  # pyright: ignore
            raise InvalidInput(
                f"LocalDP: {SQUARED_NORM} follows from the noisy update and needs no bound: leave it out of scalars"
            )
        return [name for name in released(bounds) if name != SQUARED_NORM]

    def _deviation(self, some: list[str]) -> Any:
        # standard deviation of the noise on each coordinate of a message's update
        z = jnp.asarray(self.noise_multiplier)
        return (z / jnp.sqrt(1 - self.share) if some else z) * self.clip_norm

    def update(self, server: LocallyPrivateServer, message: Any, cohort: Cohort) -> LocallyPrivateServer:
        delta, sent = split(message)
        disagreement = server.disagreement
        if SQUARED_NORM in sent:
            bounds = bounds_of(self.inner, message, self.clip_norm, self.scalars)
            variance, d = self._deviation(self._released(bounds)) ** 2, trees.size(delta)
            m = jnp.maximum(cohort.size, 1)
            found = sent[SQUARED_NORM] - d * variance
            least = jnp.maximum(d / m, jnp.sqrt(2 * d / m)) * variance
            disagreement = judged(disagreement, least, found)
            # an estimate that may be noise alone lengthens no step: it is that of plain averaging
            found = jnp.where(found > least, found, 0).astype(found.dtype)
            message = join(message, delta, sent | {SQUARED_NORM: found})
            cohort = replace(cohort, noise=d * variance / m)
        inner = self.inner.update(server.inner, message, cohort)
        dtype, rounds = server.epsilon.dtype, jnp.asarray(cohort.round + 1, server.epsilon.dtype)
        mu = 2 / jnp.asarray(self.noise_multiplier, dtype)
        once, so_far = (gaussian_epsilon(m, self.delta).astype(dtype) for m in (mu, mu * jnp.sqrt(rounds)))
        return LocallyPrivateServer(inner, once, so_far, disagreement)

    def receive(self, broadcast: Any, message: Any, client: Any) -> tuple[Any, Any]:
        return message, client
