"""What methods share that adapt the global model to each client: the client keeps its adapted model."""

from __future__ import annotations

from typing import Any, ClassVar

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.types import Params, module
from fedsolve.methods.wrappers.wrapper import OwnModels


@module
class AdaptedClient:
    """The inner client, and the client's adapted model (the shapes of the model)."""

    inner: Any
    personal: Params


class Adapts(OwnModels):
    """Base class: clients keep a model of their own, at first that of the first round.

    Raises:
        InvalidInput: an `inner` that is no method, has models of its clients' own already or begins with older models.
    """

    parts: ClassVar[tuple[type, ...]] = (AdaptedClient,)
    inner: Algorithm

    def init_client(self, broadcast: Any) -> AdaptedClient:
        """The inner client's state, and the model of the first round."""
        return AdaptedClient(self.inner.init_client(broadcast), self.inner.model(broadcast))

    def own_model(self, model: Params, client: AdaptedClient) -> Params:
        """The client's adapted model."""
        return client.personal
