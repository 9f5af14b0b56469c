"""The common part of FedMiD and FedDualAvg: F + psi in the geometry of a mirror map (Yuan, Zaheer and Reddi 2021)."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated, Any, ClassVar

import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate, as_rate
from fedsolve.core.types import Params, Scalar, Traced, Weighting, check_weighting, given, module, static
from fedsolve.geometry.blocks import Geometry, as_blocks
from fedsolve.geometry.diagnostics import measures_of
from fedsolve.geometry.mirrors import Euclidean, Mirror
from fedsolve.geometry.regularizer import with_prox

EUCLIDEAN = Euclidean()


@module
class MirroredMethod(Algorithm):
    """The hyper-parameters of both methods, their checks, and what does not depend on where clients average.

    Args:
        psi: penalty or set of `fedsolve.geometry` with a prox.
        client_lr: eta_c > 0, a number or a schedule by round.
        server_lr: eta_s > 0, a number or a schedule by round.
        mirror: h.
        weighting: p_i, `uniform` or by `examples`.
        server_only: the OSP form: the clients' steps do without psi.

    Raises:
        InvalidInput: psi has no prox, or no closed form with the mirror map; a rate that is not positive;
            a start outside the mirror map's domain.
    """

    title: ClassVar[str] = ""

    psi: Annotated[Any, Geometry] = given(converter=with_prox)
    client_lr: Rate = 0.1
    _: KW_ONLY
    server_lr: Rate = 1.0
    mirror: Mirror = EUCLIDEAN
    weighting: Weighting = static(default="uniform")
    server_only: bool = static(default=False)

    def __post_init__(self) -> None:
        check_weighting(self.weighting)
        object.__setattr__(self, "psi", as_blocks(self.psi))
        if not isinstance(self.mirror, Mirror):
            raise InvalidInput(f"mirror = {shown(self.mirror)} must be a mirror map such as PNorm(1.5)")
        self.mirror.check_composite(self.name, self.psi)
        for field in ("client_lr", "server_lr"):
            object.__setattr__(self, field, as_rate(field, getattr(self, field)))

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"{self.title}OSP" if self.server_only else self.title

    def check_start(self, params: Params) -> None:
        """Raise `InvalidInput` where psi has no meaning on the model, or the mirror map none at its values."""
        self.psi.check(params)
        self.mirror.check(params)

    def init_client(self, broadcast: Any) -> tuple[()]:
        """Clients keep nothing."""
        return ()

    def diagnostics(self) -> tuple[Any, ...]:
        """What psi gives reason to measure."""
        return measures_of(self.psi)


def sum_of_rates(lr: Scalar, oracle: Oracle, like: Params) -> Traced:
    """K eta_c of a client's steps, in the type of the model."""
    return jnp.asarray(lr * oracle.steps, trees.dtype_of(like))
