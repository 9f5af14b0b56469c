"""Control variates that are sent compressed: what SCALLION and SCAFCOM (Huang et al. 2024) have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort, client_update_of, round_of
from fedsolve.core.errors import check_integer
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Claim, Params, Traced, Weighting, module, reduced
from fedsolve.methods.compression.compressor import Compressor
from fedsolve.methods.compression.encoding import (
    adds_codes,
    check_compressor,
    decode_leaves,
    encode_leaves,
    round_key,
    with_field,
)
from fedsolve.methods.wrappers.control_variates import ControlVariates, ScaffoldBroadcast, ScaffoldServer
from fedsolve.methods.wrappers.corrected_oracle import CorrectedOracle
from fedsolve.methods.wrappers.wrapper import Wrapper


@module
class ControlledClient:
    """The inner client, c_i, and what else it keeps for the next change of c_i (shapes of the model, or `()`)."""

    inner: Any
    control: Params
    memory: Params = ()


@module
class ControlledMessage:
    """The inner message with q_i, the compressed change of c_i, in place of its client update; and K eta_l."""

    inner: Any
    rate_sum: Traced = reduced("average", Claim(at_least=0))


class Controlled(Wrapper):
    """A method with control variates whose clients send nothing but their compressed changes.

        client:  h_i = c_i - c - D_i / (K eta_l), the mean of its own gradients along its steps
                 q_i = Q(a change of c_i towards h_i),   c_i <- c_i + q_i
        server:  q = mean over S of q_i,   D = -K eta_l (c + q),   inner update along D,   c <- c + (|S|/N) q

    Where clients take different numbers of steps, the server's K eta_l is their mean.
    """

    parts: ClassVar[tuple[type, ...]] = (
        ScaffoldServer,
        ScaffoldBroadcast,
        ControlledClient,
        ControlledMessage,
    )
    weighting: ClassVar[Weighting] = "uniform"
    only_mean: ClassVar[str] = "c must stay the mean of all clients' c_i"
    of_model_shape: ClassVar[bool] = True
    shrinks: ClassVar[bool]
    inner: Algorithm
    compressor: Compressor
    smallest: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_compressor(self.title, self.compressor)
        check_integer("smallest", self.smallest, 1, bits=31)
        ControlVariates(self.inner)  # refuses what control variates cannot go around

    @abstractmethod
    def change(self, own: Params, client: ControlledClient) -> tuple[Params, Params]:
        """The change of c_i that is compressed, and the client's next memory, from h_i."""

    def init(self, params: Params) -> ScaffoldServer:
        """The inner server's state, and c = 0."""
        return ScaffoldServer(self.inner.init(params), trees.zeros_like(params))

    def broadcast(self, server: ScaffoldServer, cohort: Cohort) -> ScaffoldBroadcast:
        """The inner broadcast and c."""
        return ScaffoldBroadcast(self.inner.broadcast(server.inner, cohort), server.control)

    def init_client(self, broadcast: ScaffoldBroadcast) -> ControlledClient:
        """The inner client's state, and c_i = 0."""
        return ControlledClient(self.inner.init_client(broadcast.inner), trees.zeros_like(broadcast.control))

    def train(
        self, broadcast: ScaffoldBroadcast, client: ControlledClient, oracle: Oracle
    ) -> tuple[ControlledMessage, ControlledClient]:
        """Run the inner local work with corrected gradients, and compress the change of c_i."""
        correction = trees.sub(broadcast.control, client.control)
        corrected = CorrectedOracle(oracle, correction, self.model(broadcast))
        message, inner = self.inner.train(broadcast.inner, client.inner, corrected)
        round = round_of(broadcast)
        rate_sum: Any = self.local.rate_sum(oracle.steps, round)
        along = jax.tree.map(lambda d: (-d / rate_sum).astype(d.dtype), client_update_of(message))
        wanted, memory = self.change(trees.sub(along, correction), client)
        given = {"smallest": self.smallest, "title": self.name, "shrinks": self.shrinks}
        sent = encode_leaves(self.compressor, wanted, round_key(round), oracle.client, **given)
        control = trees.add(client.control, decode_leaves(sent, round_key(round)))
        rate_sum = jnp.asarray(rate_sum, trees.dtype_of(control))
        return ControlledMessage(with_field(message, "delta", sent), rate_sum), ControlledClient(
            inner, control, memory
        )

    def receive(
        self, broadcast: ScaffoldBroadcast, message: ControlledMessage, client: ControlledClient
    ) -> tuple[ControlledMessage, ControlledClient]:
        """Decode the change of c_i, unless the sum of codes is enough: then `update` does."""
        if adds_codes(self.compressor, self.inner):
            return message, client
        change = decode_leaves(client_update_of(message), round_key(round_of(broadcast)))
        plain = with_field(message.inner, "delta", change)
        received, followed = self.inner.receive(broadcast.inner, plain, client.inner)
        control = trees.add(client.control, change)
        return ControlledMessage(received, message.rate_sum), ControlledClient(
            followed, control, client.memory
        )

    def update(self, server: ScaffoldServer, message: ControlledMessage, cohort: Cohort) -> ScaffoldServer:
        """Apply the inner update along -K eta_l (c + q), and move c by |S|/N of q."""
        change = decode_leaves(client_update_of(message), round_key(cohort.round))
        along = trees.scale(-message.rate_sum, trees.add(server.control, change))
        inner = self.inner.update(server.inner, with_field(message.inner, "delta", along), cohort)
        return ScaffoldServer(inner, trees.axpy(cohort.size / cohort.population, change, server.control))
