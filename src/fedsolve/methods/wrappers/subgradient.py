"""Any method on local objectives with a subgradient of psi added: the baseline of Yuan et al. 2021."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.building import class_by_name
from fedsolve.core.oracle import Oracle, WrappedOracle
from fedsolve.core.types import Params, Scalar, Weighting, check_weighting, given, module, static
from fedsolve.geometry.blocks import Blocks, Geometry
from fedsolve.geometry.diagnostics import measures_of
from fedsolve.geometry.regularizer import require, with_subgradient
from fedsolve.methods.wrappers.wrapper import Wrapper


@dataclass(frozen=True)
class SubgradientOracle(WrappedOracle):
    """Adds psi to losses, a subgradient of it to gradients."""

    psi: Blocks

    def change(self, params: Params, gradient: Params) -> Params:
        """g + v, v in the subdifferential of psi at y."""
        return trees.add(gradient, self.psi.subgradient(params))

    def extra(self, params: Params) -> Scalar:
        """psi(y)."""
        return self.psi.value(params)


@class_by_name("Subgradient")
@module
class Subgradient(Wrapper):
    """Adds a subgradient of psi to the local steps of any method: the baseline of Yuan et al. 2021.

        client:  y <- y - eta_l (g_i(y) + v),   v in the subdifferential of psi at y (0 at a kink at 0)

    Losses that `inner` searches along or reports include psi. Its iterates are not sparse: no step sets a
    coordinate to 0. It is here to be compared with.

    Args:
        inner: the method, such as `FedAvg`.
        psi: a penalty (a set has no useful subgradient).
        weighting: how clients count, in place of the weighting that `inner` was given: `uniform` (the paper's, and
            that of the methods it is compared with) or by `examples`.

    Raises:
        InvalidInput: an `inner` that is no method, a psi without a subgradient, an unknown weighting.

    Reference: Yuan, Zaheer and Reddi, "Federated Composite Optimization", ICML 2021, section 2.
    """

    title: ClassVar[str] = "Subgradient"
    inner: Algorithm
    psi: Annotated[Any, Geometry] = given(converter=with_subgradient)
    _: KW_ONLY
    weighting: Weighting = static(default="uniform")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weighting(self.weighting)
        instead = "a penalty such as L1(0.1)"
        object.__setattr__(self, "psi", require("Subgradient", self.psi, "subgradient", instead))

    def init(self, params: Params) -> Any:
        """The inner server's state."""
        self.psi.check(params)
        return self.inner.init(params)

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        """Run the inner local work with subgradients."""
        return self.inner.train(broadcast, client, SubgradientOracle(oracle, self.psi))

    def diagnostics(self) -> tuple[Any, ...]:
        """The diagnostics of psi."""
        return measures_of(self.psi)
