"""Penalties that are sums over entries, or see a whole vector: l1, elastic net, squared l2, l-infinity."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.core.building import number
from fedsolve.core.errors import InvalidInput, is_integer
from fedsolve.core.types import Scalar, module, static
from fedsolve.core.xla.products import singular_values, svd
from fedsolve.geometry.regularizer import Penalty

_MAX_NEWTON = 200


@module
class L1(Penalty):
    """L1 penalty, weight |w|_1: sparse solutions (the lasso).

    Attributes:
        weight: lambda >= 0, in units of the loss per unit of |w|_1.

    Raises:
        InvalidInput: a weight that is negative or not finite.
    """

    weight: Scalar = number(at_least=0, name="weight of L1")
    separable = True

    def value(self, w: Array) -> Scalar:
        return self.weight * jnp.sum(jnp.abs(w))

    def subgradient(self, w: Array) -> Array:
        return (self.weight * jnp.sign(w)).astype(w.dtype)

    def prox(self, w: Array, step: Scalar) -> Array:
        # soft thresholding by step weight
        return soft_threshold(w, step * self.weight)


@module
class SquaredL2(Penalty):
    """Squared L2 penalty, (weight / 2) |w|_2^2: ridge regression, also called weight decay.

    Attributes:
        weight: lambda >= 0, in units of the loss per unit of |w|_2^2 / 2.

    Raises:
        InvalidInput: a weight that is negative or not finite.

    >>> SquaredL2(1.0).prox(jnp.array([2.0, -4.0]), 1.0).tolist()
    [1.0, -2.0]
    """

    weight: Scalar = number(at_least=0, name="weight of SquaredL2")
    separable = True

    def value(self, w: Array) -> Scalar:
        return 0.5 * self.weight * jnp.sum(w * w)

    def subgradient(self, w: Array) -> Array:
        return (self.weight * w).astype(w.dtype)

    def prox(self, w: Array, step: Scalar) -> Array:
        return (w / (1 + step * self.weight)).astype(w.dtype)


@module
class ElasticNet(Penalty):
    """Elastic net, weight |w|_1 + (l2 / 2) |w|_2^2 (Zou and Hastie 2005): sparse, with correlated entries grouped.

    Attributes:
        weight: of the l1 norm, at least 0.
        l2: of half the squared l2 norm, at least 0.

    Raises:
        InvalidInput: a weight or l2 that is negative or not finite.

    >>> ElasticNet(1.0, l2=1.0).prox(jnp.array([3.0, -0.5]), 1.0).tolist()
    [1.0, 0.0]
    """

    weight: Scalar = number(at_least=0, name="weight of ElasticNet")
    l2: Scalar = number(at_least=0, name="l2 of ElasticNet")
    separable = True

    def value(self, w: Array) -> Scalar:
        return self.weight * jnp.sum(jnp.abs(w)) + 0.5 * self.l2 * jnp.sum(w * w)

    def subgradient(self, w: Array) -> Array:
        return (self.weight * jnp.sign(w) + self.l2 * w).astype(w.dtype)

    def prox(self, w: Array, step: Scalar) -> Array:
        # soft thresholding by step weight, then division by 1 + step l2
        return (soft_threshold(w, step * self.weight) / (1 + step * self.l2)).astype(w.dtype)


@module
class LInf(Penalty):
    """L-infinity penalty, weight max |w_j|: the largest entries get the same size.

    Attributes:
        weight: lambda >= 0, in units of the loss per unit of the largest entry.

    Raises:
        InvalidInput: a weight that is negative or not finite.

    >>> LInf(1.0).prox(jnp.array([3.0, -3.0, 1.0]), 2.0).tolist()
    [2.0, -2.0, 1.0]
    """

    weight: Scalar = number(at_least=0, name="weight of LInf")

    def value(self, w: Array) -> Scalar:
        return self.weight * jnp.max(jnp.abs(w))

    def subgradient(self, w: Array) -> Array:
        # weight sign(w_j) on the largest |w_j|, shared evenly by those that tie; 0 at 0
        size = jnp.abs(w)
        largest = size == jnp.max(size)  # jax.grad would take the derivative of |.| at 0 for 1
        return (self.weight * jnp.sign(w) * largest / jnp.sum(largest)).astype(w.dtype)

    def prox(self, w: Array, step: Scalar) -> Array:
        # w cut off at the level above which |w| has the mass step weight; 0 if all of it is less. This is w
        # minus its projection on the l1 ball of radius step weight (Moreau), without the subtraction: entries
        # that end at the level tie exactly.
        level = excess_level(w, step * self.weight)
        return jnp.clip(w, -level, level).astype(w.dtype)


def soft_threshold(w: Array, threshold: Scalar) -> Array:
    """sign(w) max(|w| - threshold, 0), as w minus its part within the threshold: one clip, no sign."""
    return (w - jnp.clip(w, -threshold, threshold)).astype(w.dtype)


def excess_level(w: Array, mass: Scalar) -> Array:
    """The t >= 0 with sum max(|w_j| - t, 0) = mass, shape (); 0 if |w|_1 <= mass, max |w_j| if mass is 0."""
    # Soft thresholding by it projects on the l1 ball of radius `mass`. Newton's method from below (Michelot 1986):
    # the sum is convex and piecewise linear in t, so that the steps only go up and end exactly; each halves the sum
    # or the number of entries above t, so they are few. `optax.projections.projection_l1_ball` sorts, which costs
    # many such passes, and is NaN at radius 0.
    # Derivatives are those of the last, exact step, forward and backward.
    size = jnp.abs(w).ravel()
    mass = jnp.asarray(mass).astype(w.dtype)
    fixed, fixed_mass = lax.stop_gradient(size), lax.stop_gradient(mass)

    def newton(size: Array, mass: Array, t: Array) -> Array:
        active = fixed > t
        count = jnp.maximum(jnp.sum(active, dtype=w.dtype), 1)
        return jnp.maximum(t + (jnp.sum(jnp.where(active, size - t, 0)) - mass) / count, 0)

    def climb(s: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        _, t, k = s
        return t, newton(fixed, fixed_mass, t), k + 1

    # at most the root: one entry's excess is <= mass
    start = jnp.maximum(jnp.max(fixed) - fixed_mass, 0)
    first = (start, newton(fixed, fixed_mass, start), jnp.int32(0))
    below, _, _ = lax.while_loop(lambda s: (s[1] > s[0]) & (s[2] < _MAX_NEWTON), climb, first)
    return newton(size, mass, below)


# Group sparsity: the l2,1 norm, which sets whole rows, columns or channels to zero.


@module
class GroupL1(Penalty):
    """Group lasso (Yuan and Lin 2006): weight times the sum over groups of their l2 norms.

    A group is the entries along `axis`: with -1 each row of a matrix, with 0 each column, with (0, 1) each
    output channel's kernel of a convolution stored as height x width x channels.

    Attributes:
        weight: lambda >= 0.
        axis: the axis, or axes, within a group; at least one axis must be left.

    Raises:
        InvalidInput: a weight that is negative or not finite, an axis that is no integer and no tuple of them.

    >>> GroupL1(1.0).prox(jnp.array([[3.0, 4.0], [0.3, 0.4]]), 1.0).round(3).tolist()
    [[2.4000000953674316, 3.200000047683716], [0.0, 0.0]]
    """

    weight: Scalar = number(at_least=0, name="weight of GroupL1")
    axis: int | tuple[int, ...] = static(default=-1)

    def __post_init__(self) -> None:
        axes = _axes(self.axis)
        if not axes or not all(map(is_integer, axes)):
            raise InvalidInput(f"axis of GroupL1 = {self.axis!r} must be an integer or a tuple of integers")

    def check(self, shape: tuple[int, ...], where: str) -> None:
        # raise `InvalidInput` unless there are two axes or more, of which `axis` names some but not all
        if len(shape) < 2:
            raise InvalidInput(
                f"GroupL1 needs two axes or more, {where} has shape {shape}: put it on matrices, such as "
                "GroupL1(0.1).on('weight')"
            )
        axes = _axes(self.axis)
        if not all(-len(shape) <= a < len(shape) for a in axes):
            raise InvalidInput(f"GroupL1 has axis {self.axis}, {where} has shape {shape}: no such axis")
        distinct = {a % len(shape) for a in axes}
        if len(distinct) < len(axes) or len(distinct) == len(shape):
            raise InvalidInput(
                f"GroupL1 has axis {self.axis}, {where} has shape {shape}: name different axes, and leave one"
            )

    def value(self, w: Array) -> Scalar:
        # weight sum_g |w_g|_2; its derivative is 0 in groups that are 0
        return self.weight * jnp.sum(self._norms(w))

    def subgradient(self, w: Array) -> Array:
        # weight w_g / |w_g|_2, 0 in groups that are 0
        norms = self._norms(w)
        return (self.weight * w / jnp.where(norms > 0, norms, 1)).astype(w.dtype)

    def prox(self, w: Array, step: Scalar) -> Array:
        # each group shortened by step weight: w_g max(1 - step weight / |w_g|_2, 0)
        norms, threshold = self._norms(w), step * self.weight
        long = norms > threshold
        return (w * jnp.where(long, 1 - threshold / jnp.where(long, norms, 1), 0)).astype(w.dtype)

    def _norms(self, w: Array) -> Array:
        """The groups' l2 norms, with the axes kept; the inner `where` keeps derivatives finite at 0."""
        square = jnp.sum(w * w, axis=self.axis, keepdims=True)
        return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)


def _axes(axis: int | tuple[int, ...]) -> tuple[int, ...]:
    return axis if isinstance(axis, tuple) else (axis,)


# Low rank: the nuclear norm of a matrix.


@module
class NuclearNorm(Penalty):
    """Nuclear norm penalty, weight times the sum of the singular values of a matrix: low-rank solutions.

    The prox costs one singular value decomposition of the smaller side, O(m n min(m, n)). Its derivative
    in w, which JAX takes through that decomposition, is not finite where singular values coincide.

    Attributes:
        weight: lambda >= 0, in units of the loss per unit of the nuclear norm.

    Raises:
        InvalidInput: a weight that is negative or not finite.

    >>> NuclearNorm(1.0).value(jnp.array([[3.0, 0.0], [0.0, -4.0]])).item()
    7.0
    """

    weight: Scalar = number(at_least=0, name="weight of NuclearNorm")

    def check(self, shape: tuple[int, ...], where: str) -> None:
        check_matrix("NuclearNorm(0.1)", shape, where)

    def value(self, w: Array) -> Scalar:
        return self.weight * jnp.sum(singular_values(quiet(w)))

    def subgradient(self, w: Array) -> Array:
        # weight U V' over the singular values above rounding: the shortest subgradient, 0 at 0
        u, s, v = svd(quiet(w))
        nonzero = s > jnp.finfo(w.dtype).eps * max(w.shape) * jnp.max(s)
        return (self.weight * (u * nonzero) @ v).astype(w.dtype)

    def prox(self, w: Array, step: Scalar) -> Array:
        # U max(S - step weight, 0) V' (Cai, Candes and Shen 2010); w itself at step 0
        threshold = step * self.weight
        # the Gram matrix of the smaller side would be cheaper, but halves the digits of small singular values
        u, s, v = svd(quiet(w))
        shrunk = (u * jnp.maximum(s - threshold, 0)) @ v
        return jnp.where(threshold > 0, shrunk, w).astype(w.dtype)


def check_matrix(name: str, shape: tuple[int, ...], where: str, instead: str = "") -> None:
    """Raise `InvalidInput` unless a shape is that of a matrix; the line ends with `instead`."""
    if len(shape) != 2:
        kind = name.partition("(")[0]
        raise InvalidInput(
            f"{kind} needs a matrix, {where} has shape {tuple(shape)}: put it on matrices, such as "
            f"{name}.on('weight'){instead}"
        )


def quiet(w: Array) -> Array:
    """w, or NaN everywhere if it holds an infinity: of one LAPACK complains aloud, NaN it passes on."""
    return jnp.where(jnp.max(jnp.abs(w)) < jnp.inf, w, jnp.nan)
