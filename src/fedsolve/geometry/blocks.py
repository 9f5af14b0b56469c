"""The operations that a convex psi supports: all that a model's blocks ask of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput
from fedsolve.core.trees import matching, named_leaves
from fedsolve.core.types import Params, Scalar, module, static

OPERATIONS = ("value", "subgradient", "prox", "project", "lmo", "contains", "gap")
"""Everything a penalty or a set may show."""


class ArrayFunction(ABC):
    """A convex psi on arrays.

    `separable`: psi is a sum over entries, so that a whole vector is treated leaf by leaf.
    """

    separable: ClassVar[bool] = False

    @abstractmethod
    def value(self, w: Array) -> Scalar:
        """psi(w), shape ()."""

    def check(self, shape: tuple[int, ...], where: str) -> None:
        """Raise `InvalidInput` if psi has no meaning on an array of that shape; `where` names the leaf."""
        return

    @property
    def operations(self) -> tuple[str, ...]:
        """The names of the operations that it supports.

        >>> from fedsolve.geometry import L1, L1Ball
        >>> L1(0.1).operations, L1Ball(10.0).operations
        (('value', 'subgradient', 'prox'), ('value', 'prox', 'project', 'lmo', 'contains', 'gap'))
        """
        return tuple(operation for operation in OPERATIONS if hasattr(self, operation))


# Penalties and sets on the leaves of a model: the whole vector, each leaf apart, or leaves chosen by path.
#
#     L1Ball(10.0)                                       one ball for the whole parameter vector
#     L1Ball(10.0).each()                                a ball for each leaf
#     L1Ball(10.0).on("weight")                          a ball for each leaf whose path ends in `weight`; others free
#     L1(0.1).on("hidden.weight") + SquaredL2(0.01).on("output.*")
#
# A path is written with dots, such as `layers.0.weight`; a pattern matches a path or the end of one, and `*` stands
# for anything.


@module
class Block:
    """A penalty or set, and the leaves to which it applies: `together` as one vector, or each separately.

    Attributes:
        psi: the penalty or set.
        pattern: the end of the paths of its leaves, as `weight` or `layers.0.*`; `*` is all.
        together: the leaves are one vector to psi; False: each is one of its own.
    """

    psi: ArrayFunction
    pattern: str = static(default="*")
    together: bool = static(default=True)


@module
class Blocks:
    """Penalties and sets on leaves of a model; leaves that no pattern matches are free.

    Supports the operations that all of its parts support, on pytrees instead of arrays.

    Attributes:
        parts: the blocks; none for no penalty.
    """

    parts: tuple[Block, ...]

    def __add__(self, other: Any) -> Blocks:
        """Both together, on the leaves of each."""
        return Blocks(self.parts + as_blocks(other).parts)

    @property
    def operations(self) -> tuple[str, ...]:
        """The operations that all parts support."""
        return tuple(f for f in OPERATIONS if all(f in part.psi.operations for part in self.parts))

    @property
    def warm(self) -> bool:
        """Whether the search for a vertex starts from the code of an earlier one."""
        return any(getattr(part.psi, "warm", False) for part in self.parts)

    @property
    def propagates_nan(self) -> bool:
        """Whether a non-finite gradient always shows in the vertex."""
        return all(getattr(part.psi, "propagates_nan", True) for part in self.parts)

    @property
    def spreads_nan(self) -> bool:
        """Whether the vertex of a leaf with a non-finite gradient has no finite entry."""
        return all(getattr(part.psi, "spreads_nan", False) for part in self.parts)

    def check(self, params: Params) -> None:
        """Raise `InvalidInput` unless the parts fit a model.

        Args:
            params: the model.

        Raises:
            InvalidInput: a pattern that matches no leaf, a leaf matched twice, or a psi that has no meaning
                on a leaf's shape.
        """
        paths, leaves = named_leaves(params)
        seen: dict[int, str] = {}
        for part in self.parts:
            matched = matching(paths, part.pattern)
            kind = type(part.psi).__name__
            if not matched:
                raise InvalidInput(
                    f"{kind} on '{part.pattern}': no leaf of the model has this name; it has {', '.join(paths)}"
                )
            for i in matched:
                if i in seen:
                    raise InvalidInput(
                        f"leaf {paths[i]} is under {seen[i]} and {kind}: put one on it (L1 and squared l2 "
                        "together are ElasticNet)"
                    )
                seen[i] = kind
            if part.together and len(matched) > 1 and not part.psi.separable:
                total = sum(int(jnp.size(leaves[i])) for i in matched)
                part.psi.check((total,), "the whole parameter vector")
            else:
                for i in matched:
                    part.psi.check(jnp.shape(leaves[i]), f"leaf {paths[i]}" if paths[i] else "the model")

    def free(self, params: Params) -> list[str]:
        """The paths of the free leaves.

        Args:
            params: the model.

        Returns:
            Paths such as `layers.0.bias`, in the order of the leaves.
        """
        paths, _ = named_leaves(params)
        taken = {i for part in self.parts for i in matching(paths, part.pattern)}
        return [path for i, path in enumerate(paths) if i not in taken]

    def value(self, w: Params) -> Scalar:
        """The sum of the parts' psi.

        Args:
            w: a pytree of the model's structure.

        Returns:
            A scalar, infinite outside of a set.
        """
        return _total(self._each(lambda psi, x: psi.value(x), w), w)

    def finite_value(self, w: Params) -> Scalar:
        """The sum of the penalties' psi, without sets, whose values are 0 or infinite.

        Args:
            w: a pytree of the model's structure.

        Returns:
            A scalar.
        """
        return _total(self._each(lambda psi, x: 0.0 if hasattr(psi, "violation") else psi.value(x), w), w)

    def subgradient(self, w: Params) -> Params:
        """A subgradient of psi; 0 on free leaves.

        Args:
            w: a pytree of the model's structure.

        Returns:
            A pytree like w.
        """
        return self.map(lambda psi, x: psi.subgradient(x), w, free=jnp.zeros_like)  # type: ignore[attr-defined]

    def prox(self, w: Params, step: Scalar) -> Params:
        """The proximal operator argmin_u step psi(u) + (1/2) |u - w|^2; free leaves are unchanged.

        Args:
            w: a pytree of the model's structure.
            step: at least 0.

        Returns:
            A pytree like w.
        """
        return self.map(lambda psi, x: psi.prox(x, step), w)  # type: ignore[attr-defined]

    def project(self, w: Params) -> Params:
        """The nearest point of the set; free leaves are unchanged.

        Args:
            w: a pytree of the model's structure.

        Returns:
            A pytree like w.
        """
        return self.map(lambda psi, x: psi.project(x), w)  # type: ignore[attr-defined]

    def contains(self, w: Params, tolerance: float = 1e-6) -> Array:
        """Whether every part is satisfied to the tolerance.

        Args:
            w: a pytree of the model's structure.
            tolerance: the largest violation that counts as inside, at least 0.

        Returns:
            bool ().
        """
        return jnp.asarray(self.violation(w)) <= tolerance

    def violation(self, w: Params) -> Scalar:
        """The largest violation of the parts that are sets, 0 inside.

        Args:
            w: a pytree of the model's structure.

        Returns:
            A scalar, at least 0.
        """
        zero = jnp.zeros((), trees.dtype_of(w))
        outside = self._each(lambda psi, x: psi.violation(x) if hasattr(psi, "violation") else zero, w)
        return jnp.max(jnp.stack([zero, *outside]))

    def lmo(self, g: Params) -> Params:
        """The linear minimisation oracle: argmin over the set of <g, s>.

        Args:
            g: a gradient, of the model's structure.

        Returns:
            An extreme point, a pytree like g.
        """
        return self.point(self.vertex(g), g)

    def vertex(self, g: Params, warm: Sequence[Any] | None = None) -> tuple[Any, ...]:
        """The codes of a minimiser of <g, s>, one for each vector that a set acts on.

        Args:
            g: a gradient, of the model's structure.
            warm: codes of an earlier vertex, where searches begin; None for none.

        Returns:
            A code for each vector, as `point` takes them.
        """
        leaves, groups = jax.tree.leaves(g), self._groups(g)
        warm = [None] * len(groups) if warm is None else warm
        pairs = zip(groups, warm, strict=True)
        return tuple(group.vertex(leaves, earlier) for group, earlier in pairs)

    def point(self, codes: Sequence[Any], like: Params) -> Params:
        """The extreme point of these codes, with the shapes of `like`.

        Args:
            codes: what `vertex` gave.
            like: a pytree of the model's structure; its values do not matter.

        Returns:
            A pytree like it.
        """
        leaves, structure = jax.tree.flatten(like)
        new = list(leaves)
        for group, code in zip(self._groups(like), codes, strict=True):
            for i, part in zip(group.members, group.point(code, leaves), strict=True):
                new[i] = part
        return structure.unflatten(new)

    def gap(self, w: Params, g: Params) -> Scalar:
        """The Frank-Wolfe gap max over s of <g, w - s>.

        Args:
            w: a point of the set, of the model's structure.
            g: the gradient there.

        Returns:
            A scalar, at least 0 inside the set.
        """
        return trees.dot(g, trees.sub(w, self.lmo(g)))

    def _groups(self, tree: Params) -> list[_Group]:
        paths, _ = named_leaves(tree)
        groups: list[_Group] = []
        for part in self.parts:
            matched = matching(paths, part.pattern)
            apart = not part.together or (part.psi.separable and len(matched) > 1)
            groups += [_Group(part.psi, [i]) for i in matched] if apart else [_Group(part.psi, matched)]
        return groups

    def _each(self, function: Callable[[Any, Array], Any], tree: Params) -> list[Any]:
        """function(psi, vector) of every vector that a part acts on."""
        leaves = jax.tree.leaves(tree)
        return [function(group.psi, group.pack(leaves)) for group in self._groups(tree)]

    def map(
        self,
        function: Callable[[Any, Array], Array],
        tree: Params,
        free: Callable[[Array], Array] = lambda x: x,
    ) -> Params:
        """The tree in which function(psi, vector) replaces every vector to which a part applies.

        Args:
            function: (psi, vector) -> array of the vector's shape.
            tree: a pytree of the model's structure.
            free: what becomes of leaves that nothing acts on; they stay by default.

        Returns:
            A pytree like it.
        """
        leaves, structure = jax.tree.flatten(tree)
        new = [free(leaf) for leaf in leaves]
        for group in self._groups(tree):
            group.unpack(function(group.psi, group.pack(leaves)), leaves, new)
        return structure.unflatten(new)


class _Group(NamedTuple):
    """Leaves that one psi sees as one array: a single leaf as it is, several as one vector."""

    psi: Any
    members: list[int]

    def pack(self, leaves: list[Array]) -> Array:
        if len(self.members) == 1:
            return leaves[self.members[0]]
        return jnp.concatenate([jnp.ravel(leaves[i]) for i in self.members])

    def vertex(self, leaves: list[Array], warm: Any) -> Any:
        parts = [leaves[i] for i in self.members]
        return self.psi.vertex(parts[0], warm) if len(parts) == 1 else self.psi.vertex_of(parts, warm)

    def point(self, code: Any, leaves: list[Array]) -> list[Array]:
        parts = [leaves[i] for i in self.members]
        return [self.psi.point(code, parts[0])] if len(parts) == 1 else self.psi.point_of(code, parts)

    def unpack(self, vector: Array, leaves: list[Array], into: list[Array]) -> None:
        start = 0
        for i in self.members:
            old = leaves[i]
            part = vector if len(self.members) == 1 else vector[start : start + old.size]
            into[i] = part.reshape(old.shape).astype(old.dtype)
            start += old.size


Geometry = ArrayFunction | Blocks
"""A penalty or a set for the whole parameter vector, or several on chosen leaves."""


def as_blocks(psi: Any) -> Blocks:
    """Blocks from a penalty or set, which then applies to the whole parameter vector; blocks are returned as they are.

    Args:
        psi: a penalty or set of `fedsolve.geometry`, or blocks.

    Returns:
        The blocks themselves, or one block that acts on all leaves as one vector.

    Raises:
        InvalidInput: neither.
    """
    if isinstance(psi, Blocks):
        return psi
    if isinstance(psi, ArrayFunction):
        return Blocks((Block(psi),))
    raise InvalidInput(
        f"{psi!r} is not a penalty or a set: give one of fedsolve.geometry, such as L1Ball(10.0)"
    )


def _total(values: list[Any], like: Params) -> Scalar:
    return sum(values, jnp.zeros((), trees.dtype_of(like)))
