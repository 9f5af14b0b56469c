"""Terms added to clients' objectives: FedProx (Li et al. 2020), Ditto (Li et al. 2021) and a subgradient of psi."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar, Unpack

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, round_of
from fedsolve.core.building import by_name, checked, choice, class_by_name, number
from fedsolve.core.oracle import Oracle, ProximalOracle, WrappedOracle
from fedsolve.core.schedules import Rate, as_rate
from fedsolve.core.types import Params, Scalar, Weighting, converted, module
from fedsolve.geometry.blocks import Blocks, Geometry
from fedsolve.geometry.diagnostics import measures_of
from fedsolve.geometry.regularizer import require, with_subgradient
from fedsolve.methods.client.sgd import SGD, ClientOptions
from fedsolve.methods.server.sgd import FedAvg
from fedsolve.methods.wrappers.wrapper import OwnModels, Wrapper


@class_by_name("FedProx")
@module
class Proximal(Wrapper):
    """FedProx (Li et al. 2020) around any method: the proximal term (mu/2) |y - w|^2 is added to local objectives.

        client:  y <- y - eta_l (g_i(y) + mu (y - w))

    Travels and is kept: what `inner` sends and keeps; clients are weighted as `inner` weights them. mu = 0 is
    `inner`. Whatever `inner` does with gradients and losses (momentum, clipping, a line search, a reported loss) it
    does with those of the proximal objective, whose value at w is f_i(w).

    Args:
        inner: the method that runs on the proximal objectives.
        mu: weight of the proximal term, at least 0, in units of the loss per squared parameter.

    Raises:
        InvalidInput: an `inner` that is no method, a negative mu.
    """

    title: ClassVar[str] = "FedProx"
    inner: Algorithm
    mu: Scalar = number(default=0.1, at_least=0)

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        anchor = self.inner.model(broadcast)
        return self.inner.train(broadcast, client, ProximalOracle(oracle, anchor, self.mu))


@by_name("FedProx")
def FedProx(
    client_lr: Rate = 0.1,
    *,
    mu: Scalar = 0.1,
    server_lr: Rate = 1.0,
    weighting: Weighting = "examples",
    **client: Unpack[ClientOptions],
) -> Proximal:
    """FedProx (Li et al. 2020): FedAvg with a proximal term that keeps clients close to the global model.

        client:  y <- y - eta_l (g_i(y) + mu (y - w)), K times from w;   D_i = y - w
        server:  w <- w + eta_g sum_i p_i D_i

    Up: D_i (d numbers) and the mean local loss. Down: w. Kept: nothing. It is `Proximal(FedAvg(...), mu)`; mu = 0 is
    FedAvg. The paper asks for an inexact minimiser of each proximal objective; here it is the run's local steps.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        mu: weight of the proximal term, at least 0, in units of the loss per squared parameter. 0.1 is where to
            begin: the paper tunes it for each data set.
        server_lr: eta_g > 0, a number or a schedule by round (1, the paper's).
        weighting: p_i by `examples` or `uniform`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        `Proximal(FedAvg(...), mu)`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Algorithm 2.
    """
    return Proximal(FedAvg(client_lr, server_lr=server_lr, weighting=weighting, **client), mu)


# Ditto (Li et al. 2021): a personal model on each client, beside any method.


@module
class DittoClient:
    """The inner client, and the client's own model v_i."""

    inner: Any
    personal: Params


@class_by_name("Ditto")
@module
class Ditto(OwnModels):
    """Ditto (Li et al. 2021) keeps a personal model on each client, trained towards the global model.

        client:  as `inner`, from w;   v_i <- v_i - eta_v (g_i(v_i) + lam (v_i - w)), on the same minibatches
        server:  as `inner`

    Down and up: the messages of `inner`. Kept: v_i on each client (d numbers), besides the state of `inner`; every
    v_i starts as w of the first round. The global model is that of `inner`, unchanged. A client is evaluated with its
    v_i, and with the global model if it never trained. lam = 0 is purely local training. A private `inner` protects
    what is sent; v_i is never sent.

    Args:
        inner: the method of the global model.
        lam: weight of (lam/2) |v - w|^2, at least 0, in units of the loss per squared parameter. 0.1 is where to
            begin: the paper tunes it.
        personal_lr: eta_v > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.

    Raises:
        InvalidInput: an `inner` that is no method or has models of its clients' own already, a number out of its
            range.

    Reference: Li, Hu, Beirami and Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML
    2021, Algorithm 1.
    """

    title: ClassVar[str] = "Ditto"
    parts: ClassVar[tuple[type, ...]] = (DittoClient,)
    inner: Algorithm
    _: KW_ONLY
    lam: Scalar = number(default=0.1, at_least=0)
    personal_lr: Rate = checked(as_rate, default=0.1)

    def init_client(self, broadcast: Any) -> DittoClient:
        return DittoClient(self.inner.init_client(broadcast), self.inner.model(broadcast))

    def train(self, broadcast: Any, client: DittoClient, oracle: Oracle) -> tuple[Any, DittoClient]:
        message, inner = self.inner.train(broadcast, client.inner, oracle)
        drawn = ProximalOracle(oracle, self.inner.model(broadcast), self.lam)
        personal = SGD(self.personal_lr).solve(client.personal, drawn, round_of(broadcast)).params
        return message, DittoClient(inner, personal)

    def own_model(self, model: Params, client: DittoClient) -> Params:
        return client.personal


# Any method on local objectives with a subgradient of psi added: the baseline of Yuan et al. 2021.


@dataclass(frozen=True)
class SubgradientOracle(WrappedOracle):
    """Adds psi to losses, a subgradient of it to gradients."""

    adds: ClassVar[str] = "a subgradient of its penalty"
    psi: Blocks

    def change(self, params: Params, gradient: Params) -> Params:
        # g + v, v in the subdifferential of psi at y
        return trees.add(gradient, self.psi.subgradient(params))

    def extra(self, params: Params) -> Scalar:
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
    psi: Annotated[Any, Geometry] = converted(converter=with_subgradient)
    _: KW_ONLY
    weighting: Weighting = choice("uniform", "examples", default="uniform")

    def __post_init__(self) -> None:
        super().__post_init__()
        instead = "a penalty such as L1(0.1)"
        object.__setattr__(self, "psi", require("Subgradient", self.psi, "subgradient", instead))

    def init(self, params: Params) -> Any:
        self.psi.check(params)
        return self.inner.init(params)

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        return self.inner.train(broadcast, client, SubgradientOracle(oracle, self.psi))

    def diagnostics(self) -> tuple[Any, ...]:
        return measures_of(self.psi)
