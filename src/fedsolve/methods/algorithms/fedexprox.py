"""FedExProx: proximal clients, and extrapolation on the server (Li, Acharya and Richtarik 2024)."""

from __future__ import annotations

from typing import ClassVar, Literal, Unpack

from fedsolve.core.algorithm import name_of
from fedsolve.core.building import by_name
from fedsolve.core.errors import InvalidInput, check_known, check_range
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Scalar, Weighting, module
from fedsolve.methods.client.line_search import ConjugateGradient
from fedsolve.methods.client.sgd import ClientOptions, local_sgd
from fedsolve.methods.server.dua import GradientDiversity
from fedsolve.methods.server.fedopt import FedOpt
from fedsolve.methods.server.polyak import EnvelopePolyak
from fedsolve.methods.server.sgd import ServerSGD
from fedsolve.methods.wrappers.proximal import Proximal

Extrapolation = Literal["constant", "GraDS", "StoPS"]


@module
class ExtrapolatedProximal(Proximal):
    """`Proximal` under the name of the method it wraps: what `FedExProx` makes."""

    title: ClassVar[str] = "FedExProx"

    @property
    def name(self) -> str:
        return name_of(self.inner)


@by_name("FedExProx")
def FedExProx(
    client_lr: Rate = 0.1,
    *,
    gamma: Scalar = 1.0,
    alpha: Scalar | None = None,
    f_star: Scalar = 0.0,
    extrapolation: Extrapolation | None = None,
    solver: Literal["sgd", "exact"] = "sgd",
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> ExtrapolatedProximal:
    """FedExProx (Li, Acharya and Richtarik 2024): proximal clients, and a server that extrapolates beyond their mean.

        client:  p_i ~ prox_{gamma f_i}(w) = argmin_y f_i(y) + |y - w|^2 / (2 gamma),   D_i = p_i - w
        server:  w <- w + alpha D
        GraDS:   alpha = mean |D_i|^2 / |D|^2
        StoPS:   alpha = gamma mean (M_i(w) - f_star) / |D|^2,   M_i(w) = f_i(p_i) + |p_i - w|^2 / (2 gamma)

    Up: D and the local loss, for GraDS and StoPS one and two numbers more. Down: w. Kept: nothing. With gamma to
    infinity and few SGD steps it is FedAvg with server rate alpha. Compose `Proximal(FedOpt(...), 1 / gamma)`
    for another inner solver, such as `client.Armijo()`.

    Args:
        client_lr: > 0, of the SGD steps on the proximal objective, a number or a schedule by round; not used by
            `exact`.
        gamma: the proximal parameter, > 0, in units of a squared parameter per loss (1).
        alpha: the constant extrapolation, > 0; needed by `constant` alone.
        f_star: lower bound of every f_i, for StoPS, in units of the loss, finite (0).
        extrapolation: `constant`, `GraDS` (gradient diversity) or `StoPS` (stochastic Polyak); None is `constant`
            where alpha is given and otherwise GraDS.
        solver: the run's local steps of SGD, or `exact`, conjugate gradients, where losses are quadratic.
        weighting: of clients, `uniform` as in the paper or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD.

    Returns:
        A `Proximal` with mu = 1 / gamma around a `FedOpt`, of `client.SGD` or `client.ConjugateGradient` and
        `server.ServerSGD(alpha)`, `server.GradientDiversity` or `server.EnvelopePolyak`.

    Raises:
        InvalidInput: a number out of its range, an unknown extrapolation, solver or weighting, an alpha that is
            missing or would not be used.

    >>> FedExProx(solver="exact", gamma=0.5).mu
    2.0

    Reference: Li, Acharya and Richtarik, "The Power of Extrapolation in Federated Learning", NeurIPS 2024.
    """
    check_range("gamma", gamma, above=0)
    check_range("alpha", alpha, above=0, optional=True)
    check_known("solver", solver, ("sgd", "exact"))
    if extrapolation is None:
        extrapolation = "GraDS" if alpha is None else "constant"
    check_known("extrapolation", extrapolation, ("constant", "GraDS", "StoPS"))
    if (extrapolation == "constant") != (alpha is not None):
        said = (
            "needs an alpha such as 1.5" if alpha is None else f"sets alpha itself: leave out alpha = {alpha}"
        )
        raise InvalidInput(f"FedExProx with extrapolation='{extrapolation}' {said}")
    if extrapolation == "StoPS":
        server_optimizer = EnvelopePolyak(f_star, gamma=gamma)
    else:
        server_optimizer = GradientDiversity() if alpha is None else ServerSGD(alpha)
    local = local_sgd(client_lr, client) if solver == "sgd" else ConjugateGradient()
    inner = FedOpt(local, server_optimizer, weighting=weighting, name="FedExProx")
    return ExtrapolatedProximal(inner, 1 / gamma)
