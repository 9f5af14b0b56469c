"""Gradients with a constant correction, as control variates and dynamic regularisers make."""

from __future__ import annotations

from dataclasses import dataclass

from fedsolve.core import trees
from fedsolve.core.oracle import GradientMap, Oracle, WrappedOracle
from fedsolve.core.types import Params, Scalar


@dataclass(frozen=True)
class CorrectedOracle(WrappedOracle):
    """Adds <c - c_i, y - w> to losses, c - c_i to gradients, after raw ones were clipped or decayed."""

    correction: Params
    anchor: Params

    def change(self, params: Params, gradient: Params) -> Params:
        """g - c_i + c."""
        return trees.add(gradient, self.correction)

    def extra(self, params: Params) -> Scalar:
        """<c - c_i, y - w>."""
        return trees.dot(self.correction, trees.sub(params, self.anchor))

    def map_gradient(self, function: GradientMap) -> Oracle:
        """The function acts on the raw gradient: c_i must estimate what is corrected."""
        return CorrectedOracle(self.inner.map_gradient(function), self.correction, self.anchor)
