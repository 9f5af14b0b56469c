"""Ditto (Li et al. 2021): a personal model on each client, beside any method."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar

from fedsolve.core.algorithm import Algorithm, round_of
from fedsolve.core.building import class_by_name
from fedsolve.core.errors import check_range
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate, as_rate
from fedsolve.core.types import Params, Scalar, module
from fedsolve.methods.client.sgd import SGD
from fedsolve.methods.wrappers.proximal import ProximalOracle
from fedsolve.methods.wrappers.wrapper import OwnModels


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
    lam: Scalar = 0.1
    personal_lr: Rate = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("lam", self.lam, at_least=0)
        object.__setattr__(self, "personal_lr", as_rate("personal_lr", self.personal_lr))

    def init_client(self, broadcast: Any) -> DittoClient:
        """The inner client's state, and the model of the first round."""
        return DittoClient(self.inner.init_client(broadcast), self.inner.model(broadcast))

    def train(self, broadcast: Any, client: DittoClient, oracle: Oracle) -> tuple[Any, DittoClient]:
        """Run the inner local work, then local steps on the personal model."""
        message, inner = self.inner.train(broadcast, client.inner, oracle)
        drawn = ProximalOracle(oracle, self.inner.model(broadcast), self.lam)
        personal = SGD(self.personal_lr).solve(client.personal, drawn, round_of(broadcast)).params
        return message, DittoClient(inner, personal)

    def own_model(self, model: Params, client: DittoClient) -> Params:
        """The client's personal model v_i."""
        return client.personal
