"""Gradients with a constant correction, as control variates and dynamic regularisers make."""

from __future__ import annotations

from dataclasses import dataclass

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput
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


def uncorrected(delta: Params, rate_sum: Scalar | None, oracle: Oracle) -> Params:
    """A client update without the corrections that its gradients had: minus rate_sum times its own mean gradient.

    Args:
        delta: the update, of the model's shapes.
        rate_sum: sum of the rates that its steps applied; None if the solver does not tell it.
        oracle: what the steps saw, with all wrappers. Where none corrects, `delta` is returned.

    Raises:
        InvalidInput: gradients were corrected, and the solver does not tell its rates.
    """
    while isinstance(oracle, WrappedOracle):
        if isinstance(oracle, CorrectedOracle):
            if rate_sum is None:
                raise InvalidInput(
                    "uncorrected updates need clients whose steps add up gradients, such as client.SGD(0.1)"
                )
            delta = trees.axpy(rate_sum, oracle.correction, delta)
        oracle = oracle.inner
    return delta
