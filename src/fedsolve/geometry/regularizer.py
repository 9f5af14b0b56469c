"""What a penalty or a set is: a convex psi of one array, and the operations that it supports.

psi is a penalty, or a set, whose psi is 0 inside and infinite outside. An algorithm asks for an operation
(`prox`, `project`, `lmo`) and refuses at construction what lacks it. Objects here see one array of any
shape; `fedsolve.geometry.blocks` puts them on the leaves of a model.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.types import Params, Scalar
from fedsolve.geometry.blocks import ArrayFunction, Block, Blocks, Geometry, as_blocks


class Regularizer(ArrayFunction):
    """Base class of penalties and sets, with the methods that apply them to leaves of a model."""

    def on(self, pattern: str) -> Blocks:
        """Apply it to each leaf whose path ends like `pattern`, such as `weight` or `hidden.*`, separately.

        Args:
            pattern: names and `*` with dots between them, not empty.

        Returns:
            Blocks, which `+` adds to others.

        Raises:
            InvalidInput: a pattern that is no text.
        """
        if not isinstance(pattern, str) or not pattern:
            raise InvalidInput(
                f"pattern = {shown(pattern)} must be the end of a path, such as 'weight' or 'hidden.*'"
            )
        return Blocks((Block(self, pattern, False),))

    def each(self) -> Blocks:
        """Apply it to every leaf separately, instead of to the whole parameter vector.

        Returns:
            Blocks, which `+` adds to others.
        """
        return self.on("*")

    def __add__(self, other: Any) -> Blocks:
        """The sum, on the leaves of each."""
        return as_blocks(self) + as_blocks(other)


class Penalty(Regularizer):
    """Base class of penalties: a finite psi with a proximal operator; `weight` is its factor lambda."""

    @abstractmethod
    def prox(self, w: Array, step: Scalar) -> Array:
        """The proximal operator argmin_u step psi(u) + (1/2) |u - w|^2, with the shape of w.

        Args:
            w: an array.
            step: at least 0.

        Returns:
            An array like w.
        """

    def subgradient(self, w: Array) -> Array:
        """A subgradient of psi at w, with the shape of w.

        Args:
            w: an array.

        Returns:
            An array like w.
        """
        return jax.grad(lambda u: jnp.asarray(self.value(u)))(w)


class ConvexSet(Regularizer):
    """Base class of compact convex sets with a linear minimisation oracle.

    A set knows its extreme points by a code: what has to travel for the other side, which knows the set,
    to rebuild the point exactly. `vertex` gives the code, `point` the point; the default code is the point.

    Attributes:
        warm: `vertex` is iterative and starts from the code of a nearby gradient's vertex.
        propagates_nan: a gradient that is not finite gives a code whose point is not finite.
        spreads_nan: that point is then not finite in any entry.
    """

    warm: ClassVar[bool] = False
    propagates_nan: ClassVar[bool] = True
    spreads_nan: ClassVar[bool] = False

    @abstractmethod
    def violation(self, w: Array) -> Scalar:
        """The amount by which w violates the set, in the units of its bound; 0 inside.

        Args:
            w: an array of any shape that the set allows.

        Returns:
            A scalar.
        """

    @abstractmethod
    def vertex(self, g: Array, warm: Any = None) -> Any:
        """The code of a minimiser of <g, s> over the set; `warm` is the code of an earlier minimiser.

        Args:
            g: a gradient, an array.
            warm: a code of an array of the same shape, or None.

        Returns:
            A pytree that `fedsolve.wire` can send.
        """

    def point(self, code: Any, like: Array) -> Array:
        """The extreme point of a code, with the shape and type of `like`.

        Args:
            code: what `vertex` gave.
            like: an array; its values do not matter.

        Returns:
            An array like it.
        """
        return code

    def vertex_of(self, parts: Sequence[Array], warm: Any = None) -> Any:
        """The code of a vertex for a vector in parts (a whole model, leaf after leaf).

        Args:
            parts: arrays of any shapes, one vector together.
            warm: a code of an earlier vertex, or None.

        Returns:
            A code as `point_of` takes it.
        """
        return self.vertex(jnp.concatenate([jnp.ravel(part) for part in parts]), warm)

    def point_of(self, code: Any, like: Sequence[Array]) -> list[Array]:
        """The extreme point of a code in parts, with the shapes and types of `like`.

        Args:
            code: what `vertex_of` gave.
            like: arrays; their values do not matter.

        Returns:
            Arrays like them.
        """
        sizes = [part.size for part in like]
        whole = self.point(code, jnp.zeros(sum(sizes), jnp.result_type(*like)))
        pieces = jnp.split(whole, np.cumsum(sizes)[:-1])
        return [p.reshape(x.shape).astype(x.dtype) for p, x in zip(pieces, like, strict=True)]

    def lmo(self, g: Array) -> Array:
        """The linear minimisation oracle: argmin over the set of <g, s>, with the shape of g.

        Args:
            g: a gradient, an array.

        Returns:
            An extreme point of the set.
        """
        return self.point(self.vertex(g), g)

    def contains(self, w: Array, tolerance: float = 1e-6) -> Array:
        """Whether w violates the set by at most `tolerance`.

        Args:
            w: an array.
            tolerance: at least 0, in the units of `violation`.

        Returns:
            bool ().
        """
        return jnp.asarray(self.violation(w)) <= tolerance

    def value(self, w: Array) -> Scalar:
        # 0 inside (to 1e-6), infinite outside
        return jnp.where(self.contains(w), 0.0, jnp.inf)

    def gap(self, w: Array, g: Array) -> Scalar:
        """The Frank-Wolfe gap max over s of <g, w - s>; >= 0 inside.

        Args:
            w: a point, an array.
            g: the gradient there, of its shape.

        Returns:
            A scalar.
        """
        return jnp.sum(g * (w - self.lmo(g)))


class ProjectableSet(ConvexSet):
    """Base class of sets with a cheap Euclidean projection, which is also their proximal operator."""

    @abstractmethod
    def project(self, w: Array) -> Array:
        """The point of the set nearest to w, with the shape of w.

        Args:
            w: an array.

        Returns:
            An array like w; w itself inside.
        """

    def prox(self, w: Array, step: Scalar) -> Array:
        """The projection, whatever the step (also at step 0).

        Args:
            w: an array.
            step: not used.

        Returns:
            An array like w.
        """
        return self.project(w)


# What a method asks of a penalty or a set: the operations that it needs, and a start that lies in the set.

if TYPE_CHECKING:  # a type checker cannot know the operations of blocks: those that all parts have

    class WithProx(Protocol):
        """A penalty or a set with a prox."""

        def prox(self, w: Any, step: Any, /) -> Any:
            """argmin_u step psi(u) + |u - w|^2 / 2."""

    class WithLmo(Protocol):
        """A set with a linear minimisation oracle."""

        def lmo(self, g: Any, /) -> Any:
            """A minimiser of <g, s> over the set."""

    class WithSubgradient(Protocol):
        """A penalty with a subgradient."""

        def subgradient(self, w: Any, /) -> Any:
            """One subgradient at w."""
else:
    WithProx = WithLmo = WithSubgradient = Geometry


# What fields take (`converted(converter=...)`): type checkers refuse other arguments, and know what is kept as `Any`.
def with_prox(psi: WithProx) -> Any:
    """A penalty or set with a prox, as it is."""
    return psi


def with_lmo(psi: WithLmo) -> Any:
    """A set with a linear minimisation oracle, as it is."""
    return psi


def with_subgradient(psi: WithSubgradient) -> Any:
    """A penalty with a subgradient, as it is."""
    return psi


def any_geometry(psi: Geometry | None) -> Any:
    """Any penalty or set, as it is."""
    return psi


def require(who: str, psi: Any, operation: str, instead: str) -> Blocks:
    """Blocks that support an operation."""
    blocks = as_blocks(psi)
    for part in blocks.parts:
        if operation not in part.psi.operations:
            raise InvalidInput(
                f"{who} needs the operation '{operation}', which {type(part.psi).__name__} lacks (it has "
                f"{', '.join(part.psi.operations)}): use {instead}"
            )
    return blocks


def check_start(who: str, constraint: Blocks, params: Params) -> None:
    """Whether a method can start from a model: it must lie in the set."""
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((params, constraint))):
        return
    outside = float(constraint.violation(params))
    if outside > 1e-6:
        remedy = (
            "start='projected' begins at the nearest point of the set"
            if "project" in constraint.operations
            else "begin at a point of it, such as constraint.lmo(params)"
        )
        raise InvalidInput(f"{who}: the initial model lies outside the set by {outside:.3g}: {remedy}")
