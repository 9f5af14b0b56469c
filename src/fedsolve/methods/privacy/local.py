"""Local differential privacy of any method: each client clips its message and adds Gaussian noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.building import class_by_name
from fedsolve.core.errors import InvalidInput, check_range
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Privacy, Scalar, Traced, module, reported, static
from fedsolve.methods.privacy.gaussian import gaussian_epsilon, gaussian_multiplier
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
