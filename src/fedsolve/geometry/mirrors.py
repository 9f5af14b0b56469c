"""Mirror maps: a strictly convex psi by its gradient and the inverse of that gradient.

`forward` is grad psi, from the model to the dual variable; `inverse` is grad psi* = (grad psi)^-1.
All act on the whole parameter vector.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from fedsolve.core import trees
from fedsolve.core.building import number
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Params, Scalar, module
from fedsolve.geometry.blocks import Blocks
from fedsolve.geometry.regularizer import Penalty, require


class Mirror(ABC):
    """Base class of mirror maps on the parameters."""

    @abstractmethod
    def forward(self, w: Params) -> Params:
        """The dual variable theta = grad psi(w).

        Args:
            w: a model, inside the domain of psi.

        Returns:
            The dual model, of the structure of w.
        """

    @abstractmethod
    def inverse(self, theta: Params) -> Params:
        """The model w = grad psi*(theta).

        Args:
            theta: a dual model.

        Returns:
            The model, of the structure of theta.
        """

    def check(self, w: Params) -> None:
        """Raise `InvalidInput` if a concrete w has the wrong shape or lies outside the domain of psi.

        Args:
            w: a model; a traced one is not looked at.

        Raises:
            InvalidInput: the shape, or the first value outside the domain.
        """
        return

    def composite(self, psi: Blocks, theta: Params, step: Scalar) -> Params:
        """The composite map grad (h + step psi)*(theta), with h this mirror map.

        It is argmin_u h(u) + step psi(u) - <theta, u>.

        Args:
            psi: penalties or sets on the model's leaves.
            theta: a dual model.
            step: at least 0.

        Returns:
            The model, of the structure of theta.
        """
        raise NotImplementedError

    def composes(self) -> tuple[str, ...]:
        """The names of the penalties and sets for which `composite` has a closed form.

        Returns:
            Names of classes of `fedsolve.geometry`; `()` for none.
        """
        return ()

    def check_composite(self, who: str, psi: Blocks) -> None:
        """Raise `InvalidInput` unless a method can use this mirror map with psi.

        Args:
            who: the method's name, for the error.
            psi: penalties or sets on the model's leaves.

        Raises:
            InvalidInput: there is no closed form; names those there are.
        """
        for part in psi.parts:
            kind = type(part.psi).__name__
            if kind not in self.composes():
                known = ", ".join(self.composes()) or "no penalty or set"
                raise InvalidInput(
                    f"{who}: the mirror map {type(self).__name__} has no closed form with {kind} (it has one "
                    f"with {known}); the default mirror map Euclidean() works with any that has a prox"
                )


@module
class Euclidean(Mirror):
    """Euclidean geometry, h(w) = (1/2) |w|^2: the composite map is the proximal operator."""

    def forward(self, w: Params) -> Params:
        return w

    def inverse(self, theta: Params) -> Params:
        return theta

    def composite(self, psi: Blocks, theta: Params, step: Scalar) -> Params:
        return psi.prox(theta, step)

    def check_composite(self, who: str, psi: Blocks) -> None:
        require(who, psi, "prox", "one with a prox, such as L1(0.1) or L1Ball(10.0)")


@module
class DiagonalQuadratic(Mirror):
    """Diagonal quadratic, psi(w) = (1/2) w' diag(g) w, with g > 0 a tree of the model's shapes or one number.

    Attributes:
        diagonal: g, finite and above 0: a tree of the model's shapes, or one number.

    Raises:
        InvalidInput: a diagonal that is not finite and above 0 everywhere; when a run begins, one of other
            shapes than the model's.
    """

    diagonal: Params

    def __post_init__(self) -> None:
        for leaf in filter(trees.is_not_traced, jax.tree.leaves(self.diagonal)):
            if not (np.isfinite(np.asarray(leaf)).all() and (np.asarray(leaf) > 0).all()):
                raise InvalidInput("diagonal of the quadratic mirror map must be finite and > 0 everywhere")

    def forward(self, w: Params) -> Params:
        return jax.tree.map(lambda g, x: g * x, self._like(w), w)

    def inverse(self, theta: Params) -> Params:
        return jax.tree.map(lambda g, x: x / g, self._like(theta), theta)

    def check(self, w: Params) -> None:
        shapes = jax.tree.map(jnp.shape, self._like(w))
        if shapes != jax.tree.map(jnp.shape, w):
            raise InvalidInput(f"diagonal has shapes {shapes}, the model {jax.tree.map(jnp.shape, w)}")

    def composes(self) -> tuple[str, ...]:
        return ("L1", "Box", "LInfBall")

    def composite(self, psi: Blocks, theta: Params, step: Scalar) -> Params:
        # coordinate by coordinate: soft threshold of theta, then theta / g, then clipped
        thresholded = psi.map(lambda p, x: p.prox(x, step) if isinstance(p, Penalty) else x, theta)
        return psi.map(lambda p, x: x if isinstance(p, Penalty) else p.project(x), self.inverse(thresholded))

    def _like(self, w: Params) -> Params:
        if jax.tree.structure(self.diagonal) == jax.tree.structure(0) and jnp.ndim(self.diagonal) == 0:
            return jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(self.diagonal, x.dtype), x.shape), w)
        return self.diagonal


@module
class Quadratic(Mirror):
    """Quadratic, psi(w) = (1/2) w' A w on the ravelled model, with A symmetric positive definite.

    The mirror map stores the Cholesky factor of A.

    Attributes:
        matrix: A, shape (d, d).
        factor: lower Cholesky factor of A; computed when left out.

    Raises:
        InvalidInput: A is not square, not symmetric or not positive definite.
    """

    matrix: Float[Array, "d d"]
    factor: Any = None

    def __post_init__(self) -> None:
        if self.factor is not None or not trees.is_not_traced(self.matrix):
            return
        a = np.asarray(self.matrix)
        if a.ndim != 2 or a.shape[0] != a.shape[1]:
            raise InvalidInput(f"matrix of the quadratic mirror map has shape {a.shape}: it must be square")
        if not np.allclose(a, a.T, rtol=1e-6, atol=0):
            raise InvalidInput("matrix of the quadratic mirror map is not symmetric: use (A + A') / 2")
        try:
            factor = np.linalg.cholesky(a)
        except np.linalg.LinAlgError:
            low = float(np.linalg.eigvalsh(a).min())
            raise InvalidInput(
                f"matrix of the quadratic mirror map is not positive definite (smallest eigenvalue {low:.3g})"
            ) from None
        object.__setattr__(self, "factor", factor)  # kept as NumPy: a float64 run then has all its digits

    def forward(self, w: Params) -> Params:
        flat, unravel = ravel_pytree(w)
        return unravel((self.matrix @ flat).astype(flat.dtype))

    def inverse(self, theta: Params) -> Params:
        # A^-1 theta
        flat, unravel = ravel_pytree(theta)
        return unravel(cho_solve((self.factor, True), flat).astype(flat.dtype))

    def check(self, w: Params) -> None:
        if trees.size(w) != self.matrix.shape[0]:
            raise InvalidInput(
                f"matrix of size {self.matrix.shape[0]} for a model of {trees.size(w)} parameters"
            )


@module
class PNorm(Mirror):
    """p-norm, psi(w) = (1/2) |w|_p^2 with p > 1: the geometry of online p-norm methods (near l1 for p close to 1).

    Attributes:
        p: above 1; near 1 for sparse models.

    Raises:
        InvalidInput: a p that is not above 1.
    """

    p: Scalar = number(above=1)

    def forward(self, w: Params) -> Params:
        # sign(w) |w|^(p-1) |w|_p^(2-p)
        return _p_map(w, self.p)

    def inverse(self, theta: Params) -> Params:
        # the model: the forward map with the conjugate exponent q = p / (p - 1)
        return _p_map(theta, self.p / (self.p - 1))

    def composes(self) -> tuple[str, ...]:
        return ("L1",)

    def composite(self, psi: Blocks, theta: Params, step: Scalar) -> Params:
        # the inverse map of the soft threshold: grad h keeps signs and zeros
        return self.inverse(psi.prox(theta, step))


def _p_map(w: Params, p: Scalar) -> Params:
    top = jnp.max(jnp.stack([jnp.max(jnp.abs(x)) for x in jax.tree.leaves(w)]))
    # the map is homogeneous of degree 1: scaling avoids over- and underflow
    safe = jnp.where(top > 0, top, 1)
    total = sum(jnp.sum((jnp.abs(x) / safe) ** p) for x in jax.tree.leaves(w))
    size = jnp.where(top > 0, total, 1) ** ((2 - p) / p)

    def leaf(x: Array) -> Array:
        # |x|^(p-1) has an infinite slope at 0 for p < 2; the guard keeps derivatives finite there
        a = jnp.abs(x) / safe
        power = jnp.where(a > 0, jnp.where(a > 0, a, 1) ** (p - 1), 0)
        return (safe * size * jnp.sign(x) * power).astype(x.dtype)

    return jax.tree.map(leaf, w)


@module
class Entropy(Mirror):
    """Entropy, psi(w) = sum w log w - w on the positive orthant: multiplicative updates.

    The model must be positive everywhere; it then stays positive.
    """

    def forward(self, w: Params) -> Params:
        return jax.tree.map(jnp.log, w)

    def inverse(self, theta: Params) -> Params:
        return jax.tree.map(jnp.exp, theta)

    def composes(self) -> tuple[str, ...]:
        # L1 (linear on positive models), coordinatewise sets and the simplex
        return ("L1", "Box", "Simplex")

    def composite(self, psi: Blocks, theta: Params, step: Scalar) -> Params:
        # exp(theta - step weight) for L1, clipped exp(theta) in a box, radius softmax(theta) on a simplex
        def of(p: Any, x: Array) -> Array:
            kind = type(p).__name__
            if kind == "L1":
                return jnp.exp(x - step * p.weight)
            if kind == "Simplex":
                return p.radius * jax.nn.softmax(x.ravel()).reshape(x.shape)
            return p.project(jnp.exp(x))

        return psi.map(of, theta, free=jnp.exp)

    def check(self, w: Params) -> None:
        for path, leaf in jax.tree_util.tree_leaves_with_path(w):
            if trees.is_not_traced(leaf) and not (np.asarray(leaf) > 0).all():
                low = float(np.asarray(leaf).min())
                where = jax.tree_util.keystr(path) or "the model"
                raise InvalidInput(
                    f"the entropy mirror map needs positive parameters: {where} has {low:.3g}; "
                    "start from a positive model, or use PNorm(p) near 1"
                )
