"""Differential privacy of any method by noise on the sum: clip what each client sends, add noise once, or in shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort, name_of
from fedsolve.core.building import class_by_name, number
from fedsolve.core.errors import InvalidInput, check_integer, check_range, is_plain_number
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import (
    MessageBounds,
    Params,
    Privacy,
    Scalar,
    Traced,
    Weighting,
    bounded,
    module,
    replace,
    reported,
    static,
)
from fedsolve.methods.compression.compressors import blocks, hadamard, random_signs, row_size
from fedsolve.methods.privacy.accounting import (
    ENTRIES,
    NORM,
    STEPS,
    Sampling,
    check_setting,
    constant_table,
    gaussian_table,
    norm_of,
    renyi,
    renyi_epsilon,
    round_within,
    simulated_noise,
    skellam_renyi,
    tabled_epsilon,
)
from fedsolve.methods.privacy.local import (
    SQUARED_NORM,
    Bounds,
    as_bounds,
    bounds_of,
    check_inner,
    check_stateless,
    clip,
    compares_clients,
    first_disagreement,
    gaussian,
    join,
    judged,
    released,
    split,
)
from fedsolve.methods.secure.fixed_point import Coder
from fedsolve.methods.wrappers.wrapper import Wrapper

# What the server keeps and what is sent where noise is added to a sum.


@module
class PrivateServer:
    """The inner server, epsilon of all rounds so far, also by Renyi's bound, and the clip norm if it adapts."""

    inner: Any
    epsilon: Traced = reported()
    epsilon_renyi: Traced = reported()
    clipping: Any = ()
    disagreement: Any = ()


@module
class ClipNorm:
    """The clip norm C of the next round."""

    clip_norm: Traced = reported()


@module
class PrivateBroadcast:
    """The inner broadcast and the clip norm C of the round."""

    inner: Any
    clip_norm: Scalar


@module
class PrivateMessage:
    """The clipped inner message, and with adaptive clipping 1 if the client update was within C, else 0."""

    inner: Any
    within: Any = bounded(MessageBounds(at_least=0, at_most=1, whole=True))


# Client updates as whole numbers with a share of the noise: what `fs.Secure` sends for `fs.DP(at="distributed")`.

_MOST = 32 * STEPS
_TAIL = 10.0  # standard deviations of a share that `_MOST` leaves room for
_SEED, _ROUNDING, _NOISE = 0x5CE1, 1, 0x4015E


@module
class SkellamCoder(Coder):
    """Rotation, clipping, scaling, conditional rounding, and a Skellam share (Agarwal et al. 2021, Algorithm 1).

        client:  x = (s/C) H R D_i min(1, C / |D_i|),   q_i = round(x) with |q_i| <= 1.01 s,   q_i + Sk(v)
        sum:     D = R H (C/s) sum of q_i

    H is the orthonormal Hadamard transform of rows of 1,024 numbers, R random signs that follow from the round,
    s = 2^15. With a `share` S, |D_i|^2 is one number more, in a row of its own: x becomes
    (sqrt(1 - S) x, sqrt(S) |x|^2 / s), whose norm is at most s too, so that the noise covers both.
    """

    clip_norm: Scalar  # C > 0
    variance: Scalar  # v > 0, of one client's noise
    share: Scalar | None = None  # S of the budget for |D_i|^2, in (0, 1), or None where it is not sent
    most: float = static(default=_MOST)

    @property
    def beside(self) -> tuple[str, ...]:
        return () if self.share is None else (SQUARED_NORM,)

    def encode(self, update: Params, round: Scalar, client: Scalar) -> list[Array]:
        # one array of whole numbers, shape (rows, entries of a row)
        flat = ravel_pytree(update)[0]
        rows = blocks(flat, row_size(flat.size))
        if rows.size > ENTRIES:
            raise InvalidInput(
                f"DP(at='distributed') is for at most {ENTRIES:,} parameters, and the model has {flat.size:,}: "
                "train fewer"
            )
        rotated = hadamard(rows * self._signs(rows, round))
        norm = norm_of(rotated)
        x = rotated * (STEPS / jnp.maximum(norm, self.clip_norm))
        if self.share is not None:
            squared = jnp.sqrt(self.share) * norm_of(x) ** 2 / STEPS
            row = jnp.zeros_like(x[:1]).at[0, 0].set(squared.astype(x.dtype))
            x = jnp.concatenate([jnp.sqrt(1 - self.share).astype(x.dtype) * x, row])
        key = jax.random.fold_in(jax.random.fold_in(_key(round), _ROUNDING), client)
        return [round_within(x, NORM / 1.0001, key)]

    def noise(self, numbers: list[Array], key: Any) -> list[Array]:
        # a simulation's share of the noise
        return [simulated_noise(jax.random.fold_in(key, _NOISE), x, self.variance) for x in numbers]

    def decode(self, sums: list[Array], clients: Scalar, like: Params, round: Scalar) -> list[Array]:
        # the leaves of the mean client update, with the mean of the noise, and mean |D_i|^2 where it is sent
        (rows,) = sums
        flat, structure = ravel_pytree(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like))
        scale, beside = self.clip_norm / STEPS / clients, []
        if self.share is not None:
            beside = [rows[-1, 0] * (scale * self.clip_norm / jnp.sqrt(self.share))]
            rows, scale = rows[:-1], scale / jnp.sqrt(1 - self.share)
        plain = hadamard(rows) * self._signs(rows, round) * scale
        return [*jax.tree.leaves(structure(plain.ravel()[: flat.size].astype(flat.dtype))), *beside]

    def _signs(self, rows: Array, round: Scalar) -> Array:
        return random_signs(_key(round), rows.shape, rows.dtype)


def share_of(noise_multiplier: Scalar, min_sum: int, corrupt: float) -> Scalar:
    """The variance of one client's noise, in whole numbers: (z s)^2 / (n - ceil(corrupt n)), n the smallest sum."""
    steps = float(STEPS)  # no integer, whose product with another one could wrap around
    return (noise_multiplier * steps) ** 2 / honest(min_sum, corrupt)


def honest(min_sum: int, corrupt: float) -> int:
    """Clients of the smallest sum that add their noise."""
    return min_sum - math.ceil(corrupt * min_sum)


def check_shared(method: Any) -> None:
    """Raise `InvalidInput` unless `DP(at="distributed")` has what it needs, and others none of it."""
    z, min_sum, corrupt = method.noise_multiplier, method.min_sum, method.corrupt
    if method.at != "distributed":
        if min_sum is not None or corrupt:
            raise InvalidInput("min_sum and corrupt are of DP(at='distributed') alone")
        return
    if min_sum is None:
        raise InvalidInput(
            "DP(at='distributed') needs min_sum, the messages of the smallest sum that is opened"
        )
    check_integer("min_sum", min_sum, 1)
    check_range("min_sum", min_sum, at_most=method.cohort)
    check_range("corrupt", corrupt, at_least=0, below=1)
    if method.clipping != "fixed":
        raise InvalidInput(
            "DP(at='distributed') needs clipping='fixed': the bits that adapt it would have no noise"
        )
    if method.sampling == "poisson":
        raise InvalidInput(
            "DP(at='distributed') needs sampling='fixed' or 'none': a Poisson cohort may have fewer than "
            "min_sum clients, and whether a sum is opened would depend on one of them"
        )
    if honest(min_sum, corrupt) < 1:
        raise InvalidInput(f"corrupt = {corrupt} of min_sum = {min_sum} leaves nobody to add noise")
    largest = (_MOST - NORM) / STEPS / _TAIL * math.sqrt(honest(min_sum, corrupt))
    if trees.is_not_traced(z) and float(z) > largest:
        raise InvalidInput(
            f"noise_multiplier = {float(z):g} is more than {largest:.3g}, the most that "
            f"{honest(min_sum, corrupt)} clients can share: raise min_sum"
        )


def check_left_out(method: Algorithm, bounds: Mapping[str, Any], coder: SkellamCoder) -> None:
    """Raise `InvalidInput` if a scalar beside the client update is neither left out nor sent with it."""
    if some := [name for name in released(bounds) if name not in coder.beside]:
        raise InvalidInput(
            f"DP(at='distributed') sends nothing but the client update and the squared norm that the step goes by, "
            f"and {name_of(method)} sends {some[0]}: leave it out by scalars={{'{some[0]}': 0}} if it is only logged; "
            "else take another method, or at='client'"
        )


def _key(round: Scalar) -> Any:
    return jax.random.fold_in(jax.random.key(_SEED), round)


@class_by_name("DP")
@module
class DifferentialPrivacy(Wrapper):
    """Differential privacy (McMahan et al. 2018): (epsilon, delta) for each client's data, with noise on the sum.

        client i:  D_i <- D_i min(1, C / |D_i|),   s_ij <- min(max(s_ij, 0), b_j) for each scalar it reports
        server:    D = (sum over S of D_i + z_D C N(0, I)) / m
                   s_j = (sum over S of s_ij + z_s r_j N(0, 1)) / m, brought back into [0, b_j]
                   then the inner update on D and s
        adaptive:  b = (sum over S of (1[|D_i| <= C] - 1/2) + sigma_b N(0, 1)) / m + 1/2
                   C <- C exp(-eta_C (b - gamma))                       (Andrew et al. 2021, Algorithm 1)
        shared:    client i adds Skellam noise of variance (z C)^2 / n to whole numbers for D_i; the server, none

    Of a method that steps by mean |D_i|^2, such as FedExP, s is the clipped |D_i|^2 with its own noise and part of the
    budget, b = C^2; the noise in D is subtracted nowhere, since |D|^2 is the squared length of the step that is taken.
    Where the noise makes |D|^2 larger than what the disagreement allows, the step is that of plain averaging, and the
    log's `noise_dominates` is 1 where the noise alone does so: d (z_D C/m)^2 at least mean |D_i|^2. As FedExP under
    central noise of Takakura, Liew and Hasegawa ("Accelerating Differentially Private Federated Learning via Adaptive
    Extrapolation", 2025), as far as it could be read; for FedDuA's preconditioners the rule is ours.

    m is the cohort's (expected) size and not what came, which would leak through the denominator. Noise multipliers
    are split so that the whole release is one Gaussian mechanism of multiplier z:
    1/z^2 = 1/z_D^2 + k/z_s^2 + 1/(2 sigma_b)^2 for k scalars, which together take `share` of what sigma_b leaves;
    sigma_b = m/20 as in the paper, at least z. r_j is b_j, half of it where a client is replaced (`fixed`, `none`).

    Down, adaptively: C besides what `inner` sends. Up: what `inner` sends, its own loss as 0 where clients clip
    themselves, and then adaptively one number more. Kept by clients: nothing. In a round without clients the server
    updates on noise alone, as the accounting assumes. The log has epsilon (and C) of every round.

    With `at=distributed`, under `fs.Secure`, nobody sees a sum without noise (Agarwal, Kairouz and Liu 2021; see
    `privacy.shares`). n are the honest clients of the smallest sum that is opened; a round with fewer than `min_sum`
    messages leaves the model as it is. The noise covers |D_i|^2 with D_i; other scalars are left out. The server sees
    who takes part: against it, `sampling` is `none`.

    Attributes:
        inner: the method, without client state and weighting clients alike.
        noise_multiplier: z, standard deviation of the noise on the sum in units of C, at least 0.
        clip_norm: C > 0, in units of the client update; with adaptive clipping its first value.
        cohort: clients of a round m; on average under `poisson`; in (0, N].
        population: clients N, at least 1.
        delta: in (0, 1), well below 1/N.
        sampling: how cohorts are drawn: see `fedsolve.methods.privacy.accounting`, also for who are neighbours.
        clipping: `fixed`, or `adaptive`: C follows the quantile gamma of the client updates' norms.
        at: whether the `server` clips what it receives, or each `client` what it sends; `distributed`: clients clip
            and add the noise, in shares.
        scalars: bounds b_j by name, such as {"measured.excess": 5.0}; 0 leaves one out (see `wrappers.parts`).
        share: part of the budget that all scalars together take, in (0, 1).
        quantile: gamma, in [0, 1].
        quantile_lr: eta_C > 0.
        min_sum: with `distributed`, messages of the smallest sum that is opened, in [1, m].
        corrupt: with `distributed`, the share of clients that may leave out their noise, in [0, 1).
        renyi: Renyi divergences of a round, filled in.
        losses: what stands for the privacy loss distributions of rounds, filled in.

    Raises:
        InvalidInput: a number out of its range, weights by examples, a method with client state or a message that
            cannot be protected, a run that is not the accounted one, `dp-accounting` is missing.
    """

    title: ClassVar[str] = "DP"
    parts: ClassVar[tuple[type, ...]] = (PrivateServer, PrivateBroadcast, PrivateMessage)

    inner: Algorithm
    noise_multiplier: Scalar
    clip_norm: Scalar = number(above=0)
    _: KW_ONLY
    cohort: float = static()
    population: int = static()
    delta: Scalar
    sampling: Sampling = static(default="fixed")
    clipping: Literal["fixed", "adaptive"] = static(default="fixed")
    at: Literal["server", "client", "distributed"] = static(default="server")
    scalars: Mapping[str, float] | Bounds | None = static(default=None)
    share: Scalar = number(default=0.1, above=0, below=1)
    quantile: Scalar = number(default=0.5, at_least=0, at_most=1)
    quantile_lr: Scalar = number(default=0.2, above=0)
    min_sum: int | None = static(default=None, later=True)
    corrupt: float = static(default=0.0, later=True)
    renyi: Any = None
    losses: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_setting(self.noise_multiplier, self.population, self.cohort, self.delta, self.sampling)
        check_given(self)
        object.__setattr__(self, "scalars", as_bounds(self.scalars))
        check_inner(self.inner, self.title)
        check_shared(self)
        for name, value in account(self).items():
            object.__setattr__(self, name, value)

    @property
    def weighting(self) -> Weighting:
        """The weighting "uniform": with other weights the sensitivity of the sum is not known."""
        return "uniform"

    @property
    def privacy(self) -> Privacy:
        """The kind of privacy: "central", or "distributed" where clients add the noise."""
        return "distributed" if self.at == "distributed" else "central"

    @property
    def update_coder(self) -> SkellamCoder | None:
        """How `fs.Secure` sends client updates: as whole numbers with a share of the noise."""
        if self.min_sum is None:
            return None
        steps_by_norm = compares_clients(self.inner) and SQUARED_NORM not in dict(self.scalars or ())
        share = self.share if steps_by_norm else None
        return SkellamCoder(
            self.clip_norm, share_of(self.noise_multiplier, self.min_sum, self.corrupt), share
        )

    @property
    def secret_cohorts(self) -> bool:
        """Whether cohorts must be secret: amplification by sampling assumes that nobody knows who takes part."""
        return self.sampling != "none" and self.cohort < self.population

    @property
    def updates_when_empty(self) -> bool:
        """True: an unchanged model would reveal that a cohort was empty. Where clients add the noise, there is none."""
        return self.at != "distributed"

    @property
    def only_mean(self) -> str:
        """The reason why only means are allowed: the noise is calibrated for a mean."""
        return "its noise is made for the mean of clipped messages and would not cover another reduction"

    def check(self, sampling: Any, population: int) -> None:
        self.inner.check(sampling, population)
        check_plan(self, sampling, population)

    def init(self, params: Params) -> PrivateServer:
        inner = self.inner.init(params)
        check_stateless(self.inner, inner)
        dtype = trees.dtype_of(params)
        adaptive = ClipNorm(jnp.asarray(self.clip_norm, dtype)) if self.clipping == "adaptive" else ()
        zero = jnp.zeros((), dtype)
        return PrivateServer(inner, zero, zero, adaptive, first_disagreement(self.inner, dtype))

    def broadcast(self, server: PrivateServer, cohort: Cohort) -> Any:
        # the inner broadcast, and the clip norm C if it adapts
        check_population(self, cohort.population)
        inner = self.inner.broadcast(server.inner, cohort)
        return inner if self.clipping == "fixed" else PrivateBroadcast(inner, server.clipping.clip_norm)

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        message, client = self.inner.train(self.inner_part(broadcast), client, oracle)
        bounds = bounds_of(self.inner, message, 1.0, self.scalars)  # refuses what cannot be protected
        if (coder := self.update_coder) is not None:
            check_left_out(self.inner, bounds, coder)
        return (message if self.at == "server" else self._clipped(broadcast, message)), client

    def receive(self, broadcast: Any, message: Any, client: Any) -> tuple[PrivateMessage, Any]:
        # clip the message, unless the client did
        return (self._clipped(broadcast, message) if self.at == "server" else message), client

    def update(self, server: PrivateServer, message: PrivateMessage, cohort: Cohort) -> PrivateServer:
        # add noise to the sum, unless clients did, apply the inner update, adapt C and account for epsilon
        check_population(self, cohort.population)
        if self.min_sum is not None:
            return self._opened(server, message, cohort)
        if cohort.key is None:
            raise InvalidInput("the noise of DP needs randomness: give Cohort a key")
        check_size(self, cohort.size)
        adaptive = self.clipping == "adaptive"
        clip_norm = server.clipping.clip_norm if adaptive else self.clip_norm
        bounds = bounds_of(self.inner, message.inner, clip_norm, self.scalars)
        some = released(bounds)
        # the releases of update, scalars and count share one budget
        noise, each, count = multipliers(self.noise_multiplier, self.cohort, len(some), self.share, adaptive)
        part = cohort.size / self.cohort  # means over those who came become sums over m
        delta, reported = split(message.inner)
        normal, normals, bit = gaussian(cohort.key, (delta, {s: reported[s] for s in some}, server.epsilon))
        delta = trees.axpy(noise * clip_norm / self.cohort, normal, trees.scale(part, delta))
        for s in some:
            bound = bounds[s]
            # what one client adds: b where clients join or leave, b / 2 about the centre where one is replaced
            radius = bound if self.sampling == "poisson" else bound / 2
            noisy = part * reported[s] + each * radius / self.cohort * normals[s]
            reported[s] = jnp.clip(noisy, 0, bound)
        # expected squared norm of the noise on the mean update
        energy = trees.size(delta) * (noise * clip_norm / self.cohort) ** 2
        disagreement = judged(server.disagreement, energy, reported.get(SQUARED_NORM, 0))
        if SQUARED_NORM in reported:
            cohort = replace(cohort, noise=energy)
        inner = self.inner.update(server.inner, join(message.inner, delta, reported), cohort)
        clipping = server.clipping
        if adaptive:
            # b is the noisy share of updates within C; bits are centred, so that one changes the sum by 1/2
            b = part * (message.within - 0.5) + count / self.cohort * bit + 0.5
            new = clip_norm * jnp.exp(-self.quantile_lr * (b - self.quantile))
            clipping = ClipNorm(new.astype(jnp.asarray(clip_norm).dtype))
        return PrivateServer(inner, *self._spent(server, cohort), clipping, disagreement)

    def _opened(self, server: PrivateServer, message: PrivateMessage, cohort: Cohort) -> PrivateServer:
        """The state after a round whose clients added the noise; as it was where the sum has too few of them."""
        check_size(self, cohort.size)
        delta, reported = split(message.inner)
        part, coder, disagreement = cohort.size / self.cohort, self.update_coder, server.disagreement
        delta = trees.scale(part, delta)
        if coder is not None and coder.share is not None:
            # of the noise that the clients who came have added
            spread = cohort.size * coder.variance * (self.clip_norm / STEPS / self.cohort) ** 2
            energy = trees.size(delta) * spread / (1 - coder.share)
            reported[SQUARED_NORM] = jnp.clip(part * reported[SQUARED_NORM], 0, self.clip_norm**2)
            disagreement = judged(disagreement, energy, reported[SQUARED_NORM])
            cohort = replace(cohort, noise=energy)
        inner = self.inner.update(server.inner, join(message.inner, delta, reported), cohort)
        # a sum of fewer clients has too little noise: it is never opened, and the model stays
        inner, disagreement = trees.where(
            cohort.size >= jnp.asarray(self.min_sum),
            (inner, disagreement),
            (server.inner, server.disagreement),
        )
        return PrivateServer(inner, *self._spent(server, cohort), server.clipping, disagreement)

    def _spent(self, server: PrivateServer, cohort: Cohort) -> tuple[Any, Any]:
        """Epsilon after the round, and Renyi's bound of it."""
        epsilon, bound = self.epsilon_after(cohort.round + 1), self._renyi_after(cohort.round + 1)
        return epsilon.astype(server.epsilon.dtype), bound.astype(server.epsilon.dtype)

    def epsilon_after(self, rounds: Scalar) -> Any:
        """The epsilon of a number of rounds at delta.

        Args:
            rounds: at least 0; it may be traced.

        Returns:
            A scalar, from privacy loss distributions where they are known, else by Renyi divergences.
        """
        bound = self._renyi_after(rounds)
        return jnp.minimum(tabled_epsilon(self.losses, rounds, self.delta), bound)

    def _renyi_after(self, rounds: Scalar) -> Any:
        """`epsilon_after` by Renyi divergences alone: an upper bound."""
        return renyi_epsilon(self.renyi, rounds, self.delta)

    def _clipped(self, broadcast: Any, message: Any) -> PrivateMessage:
        clip_norm = self.clip_norm if self.clipping == "fixed" else broadcast.clip_norm
        clipped, within = clip(message, clip_norm, bounds_of(self.inner, message, clip_norm, self.scalars))
        return PrivateMessage(clipped, () if self.clipping == "fixed" else within)


def multipliers(z: Scalar, m: float, scalars: int, share: Scalar, adaptive: bool) -> tuple[Any, Any, Any]:
    """z_D of the client update, z_s of each scalar and sigma_b of the count, together worth z.

        1/z^2 = 1/z_D^2 + k/z_s^2 + 1/(2 sigma_b)^2

    Independent Gaussian releases of parts with multipliers z_j are one release with the inverse squares added up; the
    count's part is 2 sigma_b because centred bits change it by 1/2 (Andrew et al. 2021, Theorem 1).
    """
    count = jnp.where(z > 0, jnp.maximum(m / 20, z), 0)
    rest = z / jnp.sqrt(1 - (z / jnp.where(z > 0, 2 * count, 1)) ** 2) if adaptive else z
    if not scalars:
        return rest, 0.0, count
    return rest / jnp.sqrt(1 - share), rest * jnp.sqrt(scalars / share), count


_UNKNOWN = {"losses": constant_table(math.inf)}


def account(method: Any) -> dict[str, Any]:
    """`renyi` and `losses` of a private method, of numbers that were just given; a run's arrays bring theirs along."""
    z, delta, found = method.noise_multiplier, method.delta, {}
    if not trees.is_not_traced(delta):  # the table is that of another delta
        found |= _UNKNOWN
    if not trees.is_not_traced(z):
        return found
    setting: Any = {"population": method.population, "cohort": method.cohort, "sampling": method.sampling}
    new = is_plain_number(z) or method.renyi is None
    if method.at == "distributed":
        # no privacy loss distribution is known in many dimensions
        return found | ({"renyi": np.array(skellam_renyi(float(z), **setting))} if new else {}) | _UNKNOWN
    if new:
        found["renyi"] = renyi(float(z), **setting)
    if trees.is_not_traced(delta) and (new or method.losses is None or is_plain_number(delta)):
        found["losses"] = gaussian_table(float(z), delta=float(delta), **setting)
    return found


def check_given(method: Any) -> None:
    """Raise `InvalidInput` unless it is known how `DP` clips and where it adds noise."""
    for name, value, known in (
        ("clipping", method.clipping, ("fixed", "adaptive")),
        ("at", method.at, ("server", "client", "distributed")),
    ):
        if value not in known:
            raise InvalidInput(f"{name} = {value!r} must be one of {', '.join(known)}")


def check_plan(method: Any, sampling: Any, population: int) -> None:
    """Raise `InvalidInput` unless a run draws cohorts as a private method accounts for them."""
    check_population(method, population)
    scheme, drawn = getattr(sampling, "scheme", "other"), type(sampling).__name__
    if method.sampling not in ("none", scheme):
        raise InvalidInput(
            f"DP accounts for sampling = {method.sampling!r} but the run draws cohorts by {drawn}, which is "
            f"{scheme!r}: give sampling = {(scheme if scheme != 'other' else 'none')!r}"
        )
    expected = sampling.expected(population)
    if expected is not None and abs(expected - method.cohort) > 1e-6 * method.cohort:
        raise InvalidInput(f"DP accounts for cohort = {method.cohort} but the run draws {expected:g} clients")


def check_population(method: Any, population: Any) -> None:
    """Raise `InvalidInput` unless a run has the clients that a private method accounts for, where that is known."""
    if trees.is_not_traced(population) and int(population) != method.population:
        raise InvalidInput(
            f"DP accounts for population = {method.population} but the run has {int(population)} clients"
        )


def check_size(method: Any, size: Any) -> None:
    """Raise `InvalidInput` if more clients took part than a private method accounts for, where that is known."""
    if method.sampling == "fixed" and trees.is_not_traced(size) and int(size) > method.cohort:
        raise InvalidInput(f"DP accounts for cohort = {method.cohort} but {int(size)} clients took part")
