"""Balls of the matrix norms: the nuclear norm (sum of singular values) and the spectral norm (the largest)."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedsolve.core.checks import check_range
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Scalar, module, static
from fedsolve.core.xla.decompositions import singular_values, svd
from fedsolve.geometry.numerics.polar import polar_factor
from fedsolve.geometry.numerics.singular import leading_pair
from fedsolve.geometry.penalties.matrices import quiet
from fedsolve.geometry.regularizer import ProjectableSet
from fedsolve.geometry.sets.simplex import onto_simplex


@module
class RankOne:
    """Two unit vectors: the matrix -u v', up to the radius. 4 (m + n) bytes in float32 instead of 4 m n."""

    u: Float[Array, " m"]
    v: Float[Array, " n"]


@module
class NuclearBall(ProjectableSet):
    """Nuclear norm ball, sum of singular values <= radius: low-rank matrices. A vertex is -radius u v'.

    The vertex needs the leading singular pair only (`singular.leading_pair`): some tens of products with G
    and none of its decompositions; `project` and `violation` take all singular values.

    Attributes:
        radius: the bound, > 0.
        tolerance: the pair's residual |G'u - sigma v| / sigma, at least four roundings of the type (4.8e-7
            in float32). <G, vertex> is then within that share of its minimum -radius sigma_1, also where
            singular values cluster and the vectors themselves are undetermined.
        max_products: products with G'G after which the pair is taken as it is; at least 1.

    Raises:
        InvalidInput: a radius that is not positive, a tolerance outside (0, 1), max_products below 1.
    """

    radius: Scalar
    tolerance: Scalar = 1e-6
    max_products: int = static(default=1000)
    warm: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range("radius of NuclearBall", self.radius, above=0)
        check_range("tolerance of NuclearBall", self.tolerance, above=0, below=1)
        check_range("max_products of NuclearBall", self.max_products, at_least=1)

    def check(self, shape: tuple[int, ...], where: str) -> None:
        """Raise `InvalidInput` unless it is a matrix."""
        _check_matrix(f"NuclearBall({self.radius})", shape, where)

    def violation(self, w: Array) -> Scalar:
        """max(sum of singular values - radius, 0)."""
        return jnp.maximum(jnp.sum(singular_values(quiet(w))) - self.radius, 0)

    def vertex(self, g: Array, warm: RankOne | None = None) -> RankOne:
        """The leading singular pair of g, searched from an earlier one; some unit vectors if g is 0."""
        start = None if warm is None else (warm.u, warm.v)
        pair = leading_pair(g, start, self.tolerance, self.max_products)
        return RankOne(pair.u, pair.v)

    def point(self, code: RankOne, like: Array) -> Array:
        """-radius u v'."""
        return (-self.radius * code.u[:, None] * code.v).astype(like.dtype)

    def project(self, w: Array) -> Array:
        """Singular values projected on the simplex of that radius; w itself inside."""
        u, s, v = svd(quiet(w))
        outer = (u * onto_simplex(s, self.radius)) @ v
        return jnp.where(jnp.sum(s) <= self.radius, w, outer).astype(w.dtype)


@module
class SpectralBall(ProjectableSet):
    """Spectral norm ball, largest singular value <= radius. Its extreme points are scaled orthogonal matrices, dense.

    Attributes:
        radius: the bound on the largest singular value, above 0.

    Raises:
        InvalidInput: a radius that is not positive and finite.
    """

    radius: Scalar

    def __post_init__(self) -> None:
        check_range("radius of SpectralBall", self.radius, above=0)

    def check(self, shape: tuple[int, ...], where: str) -> None:
        """Raise `InvalidInput` unless it is a matrix."""
        _check_matrix(f"SpectralBall({self.radius})", shape, where)

    def violation(self, w: Array) -> Scalar:
        """max(sigma_1 - radius, 0)."""
        return jnp.maximum(jnp.max(singular_values(quiet(w))) - self.radius, 0)

    def vertex(self, g: Array, warm: Any = None) -> Array:
        """-radius U V' of the decomposition g = U S V'."""
        return (-self.radius * polar_factor(quiet(g), complete=True)).astype(g.dtype)

    def project(self, w: Array) -> Array:
        """Singular values clipped at the radius; w itself inside."""
        u, s, v = svd(quiet(w))
        outer = (u * jnp.minimum(s, self.radius)) @ v
        return jnp.where(jnp.max(s) <= self.radius, w, outer).astype(w.dtype)


def _check_matrix(name: str, shape: tuple[int, ...], where: str) -> None:
    if len(shape) != 2:
        kind = name.partition("(")[0]
        raise InvalidInput(
            f"{kind} needs a matrix, {where} has shape {tuple(shape)}: put it on matrices, such as "
            f"{name}.on('weight')"
        )
