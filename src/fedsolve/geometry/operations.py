"""The operations that a convex psi supports: all that a model's blocks ask of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from jaxtyping import Array

from fedsolve.core.types import Scalar

OPERATIONS = ("value", "subgradient", "prox", "project", "lmo", "contains", "gap")
"""Everything a penalty or a set may show."""


class ArrayFunction(ABC):
    """A convex psi on arrays.

    Attributes:
        separable: psi is a sum over entries, so that a whole vector is treated leaf by leaf.
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
