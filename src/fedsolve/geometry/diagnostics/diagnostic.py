"""What a measure is: numbers from a model and from the full objective at it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from jaxtyping import Array

from fedsolve.core.types import Params, Scalar, module


@module
class Point:
    """A model, with F = sum_i p_i f_i at it over the training examples that are evaluated.

    Attributes:
        params: the model.
        loss: F, shape ().
        gradient: grad F, shapes of the model; None unless a measure `needs_gradient`.
    """

    params: Params
    loss: Scalar
    gradient: Params


class Diagnostic(ABC):
    """Base class of diagnostics, which compute named numbers at a point.

    Diagnostics are modules: their numbers are leaves."""

    needs_gradient: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, point: Point) -> dict[str, Array]:
        """Compute the diagnostic's values, each of shape ().

        Args:
            point: the model of an evaluation, its gradient and what else is known there.

        Returns:
            Name of a column -> value.
        """
