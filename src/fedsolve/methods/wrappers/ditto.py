"""Ditto (Li et al. 2021): beside any method, a model of each client's own that is drawn to the global one."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar

from fedsolve.core.algorithm import Algorithm, round_of
from fedsolve.core.building.build_record import class_by_name
from fedsolve.core.checks import check_range
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
    """`inner` as it is, and on each client that takes part local steps on a model of its own:

        client:  what `inner` does, from w;   v_i <- v_i - eta_v (g_i(v_i) + lam (v_i - w)), on the same minibatches
        server:  what `inner` does

    Down and up: what `inner` sends. Kept: v_i on each client (d numbers), besides what `inner` keeps there; all begin
    as w of the first round. A client is measured with v_i, the server's model is `inner`'s: what a client that never
    trained is measured with. lam = 0 is training alone. A private `inner` protects what is sent, and v_i is not.

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
        """The inner client, and the model of the first round."""
        return DittoClient(self.inner.init_client(broadcast), self.inner.model(broadcast))

    def train(self, broadcast: Any, client: DittoClient, oracle: Oracle) -> tuple[Any, DittoClient]:
        """The inner local work, and that on the client's own model."""
        message, inner = self.inner.train(broadcast, client.inner, oracle)
        drawn = ProximalOracle(oracle, self.inner.model(broadcast), self.lam)
        personal = SGD(self.personal_lr).solve(client.personal, drawn, round_of(broadcast)).params
        return message, DittoClient(inner, personal)

    def own_model(self, model: Params, client: DittoClient) -> Params:
        """v_i."""
        return client.personal
