"""Local differential privacy of any method: each client clips its message and adds Gaussian noise.

The Gaussian mechanism is counted exactly (Balle and Wang 2018, "Improving the Gaussian Mechanism", Theorem 8). With
mu = sensitivity / standard deviation it is (epsilon, delta)-private if and only if

    delta >= Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu),

also for epsilon above 1, where the classic sqrt(2 ln(1.25/delta)) / epsilon does not hold. Mechanisms in a row are one:
mu_1^2 + ... + mu_t^2 is the square of its mu.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import lax
from jax.scipy.special import log_ndtr
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.building.build_record import class_by_name
from fedsolve.core.checks import check_range
from fedsolve.core.errors import InvalidInput
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Privacy, Scalar, Traced, module, reported, static
from fedsolve.methods.privacy.protected_parts import (
    Bounds,
    as_bounds,
    bounds_of,
    check_inner,
    check_stateless,
    clip,
    gaussian,
    join,
    released,
    split,
)
from fedsolve.methods.wrappers.wrapper import Wrapper


def gaussian_delta(mu: Scalar, epsilon: Scalar) -> Array:
    """The least delta at epsilon; shapes broadcast."""
    above, below = log_ndtr(mu / 2 - epsilon / mu), log_ndtr(-mu / 2 - epsilon / mu)
    # Phi(a) - exp(epsilon) Phi(b) as Phi(a) (1 - exp(...)): both terms may underflow, their quotient does not
    return -jnp.exp(above) * jnp.expm1(jnp.minimum(epsilon + below - above, 0))


def gaussian_epsilon(mu: Scalar, delta: Scalar) -> Array:
    """The least epsilon at delta, by bisection to the last bits of its type; inside compiled programs too."""
    mu = jnp.asarray(mu, jnp.result_type(float))

    def halve(_: Scalar, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        private = gaussian_delta(mu, middle) <= delta
        return jnp.where(private, low, middle), jnp.where(private, middle, high)

    # the privacy loss is N(mu^2/2, mu^2): its Chernoff bound is an epsilon that suffices
    most = mu**2 / 2 + mu * jnp.sqrt(-2 * jnp.log(delta))
    epsilon = lax.fori_loop(0, 64, halve, (jnp.zeros_like(mu), most))[1]
    return jnp.where(gaussian_delta(mu, 0.0) <= delta, 0, epsilon)


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """The least standard deviation for (epsilon, delta), in units of the sensitivity: 1/mu, by bisection.

    >>> round(gaussian_multiplier(1.0, 1e-5), 3)  # the classic bound asks for 4.845
    3.731
    """
    low, high = 0.0, 1.0
    while _delta(high, epsilon) > delta:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(middle, epsilon) > delta else (low, middle)
    return high


def epsilon_of(mu: float, delta: float) -> float:
    """The least epsilon at delta, of plain numbers in 64 bits whatever JAX is set to; infinite if mu is."""
    if not math.isfinite(mu):
        return math.inf
    if mu == 0:
        return 0.0
    low, high = 0.0, mu**2 / 2 + mu * math.sqrt(-2 * math.log(delta))  # as in `gaussian_epsilon`
    if _delta(1 / mu, low) <= delta:
        return 0.0
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (low, middle) if _delta(1 / mu, middle) <= delta else (middle, high)
    return high


def _delta(multiplier: float, epsilon: float) -> float:
    """`gaussian_delta` in 64 bits whatever JAX is set to."""
    from scipy.special import log_ndtr as log_phi

    mu = 1 / multiplier if multiplier else math.inf
    above, below = float(log_phi(mu / 2 - epsilon / mu)), float(log_phi(-mu / 2 - epsilon / mu))
    return -math.exp(above) * math.expm1(min(epsilon + below - above, 0.0))


@module
class LocallyPrivateServer:
    """The inner server, epsilon of one message, and of a client that took part in every round so far."""

    inner: Any
    epsilon_round: Traced = reported()
    epsilon: Traced = reported()


@class_by_name("LocalDP")
@module
class LocalDifferentialPrivacy(Wrapper):
    """Local differential privacy: (epsilon, delta) for each message, also against the server.

        client i:  D_i <- D_i min(1, C / |D_i|) + z_D C N(0, I)
                   s_ij <- min(max(s_ij, 0), b_j) + z_s (b_j / 2) N(0, 1) for each scalar it reports
        server:    the inner update

    Neighbours: all of the client's data replaced, so that two messages differ by 2C. z is the least that the exact
    condition for Gaussian noise allows (Balle and Wang 2018, Theorem 8), 1/z^2 = 1/z_D^2 + k/z_s^2 for k scalars,
    which together take `share`. t messages of one client are one Gaussian mechanism with z / sqrt(t), again exactly:
    the log has epsilon of a message (`epsilon_round`) and of a client that took part in all rounds (`epsilon`), both
    at delta; no sampling of clients lowers them, since the server sees who sends.

    Up and down: what `inner` sends, a loss that no update uses as 0. Kept: nothing. Scalars are as in
    `DifferentialPrivacy`; their mean is not brought back into its bounds.

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
    clip_norm: Scalar
    epsilon: Scalar | None = None
    _: KW_ONLY
    delta: Scalar
    noise_multiplier: Scalar | None = None
    scalars: Mapping[str, float] | Bounds | None = static(default=None)
    share: Scalar = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("clip_norm", self.clip_norm, above=0)
        check_range("epsilon", self.epsilon, above=0, optional=True)
        check_range("delta", self.delta, above=0, below=1)
        check_range("noise_multiplier", self.noise_multiplier, above=0, optional=True)
        check_range("share", self.share, above=0, below=1)
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
        """The inner server's state, and epsilon = 0."""
        inner = self.inner.init(params)
        check_stateless(self.inner, inner)
        zero = jnp.zeros((), trees.dtype_of(params))
        return LocallyPrivateServer(inner, zero, zero)

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        """Run the inner local work, clip the message and add noise."""
        if oracle.key is None:
            raise InvalidInput("the noise of LocalDP needs randomness: give the oracle a key")
        message, client = self.inner.train(broadcast, client, oracle)
        bounds = bounds_of(self.inner, message, self.clip_norm, self.scalars)
        delta, sent = split(clip(message, self.clip_norm, bounds)[0])
        some, z = released(bounds), jnp.asarray(self.noise_multiplier)
        normal, normals = gaussian(oracle.key, (delta, {s: sent[s] for s in some}))
        noise = z / jnp.sqrt(1 - self.share) if some else z
        each = z * jnp.sqrt(len(some) / self.share)
        noisy = {s: sent[s] + each * bounds[s] / 2 * normals[s] for s in some}
        return join(message, trees.axpy(noise * self.clip_norm, normal, delta), sent | noisy), client

    def update(self, server: LocallyPrivateServer, message: Any, cohort: Cohort) -> LocallyPrivateServer:
        """Apply the inner update and account for epsilon."""
        inner = self.inner.update(server.inner, message, cohort)
        dtype, rounds = server.epsilon.dtype, jnp.asarray(cohort.round + 1, server.epsilon.dtype)
        mu = 2 / jnp.asarray(self.noise_multiplier, dtype)
        spent = [gaussian_epsilon(m, self.delta).astype(dtype) for m in (mu, mu * jnp.sqrt(rounds))]
        return LocallyPrivateServer(inner, *spent)

    def receive(self, broadcast: Any, message: Any, client: Any) -> tuple[Any, Any]:
        """Return the message unchanged."""
        return message, client
