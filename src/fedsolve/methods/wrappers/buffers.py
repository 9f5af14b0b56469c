"""Buffers, such as BatchNorm's statistics, around any method: their plain mean, outside the method's formulas."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort, name_of
from fedsolve.core.buffers import Buffers, Memory, WithBuffers
from fedsolve.core.errors import InvalidInput
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Scalar, module, reduced
from fedsolve.methods.robust.reductions import Median
from fedsolve.methods.robust.wrapper import fewest_messages
from fedsolve.methods.wrappers.wrapper import Wrapper


@module
class BesideServer:
    """What the server keeps: the inner server, and the buffers."""

    inner: Any
    buffers: Buffers


@module
class BesideBroadcast:
    """What travels down: the inner broadcast, and the buffers."""

    inner: Any
    buffers: Buffers


@module
class BesideMessage:
    """What travels up: the inner message, and the client's buffers after its local work."""

    inner: Any
    buffers: Buffers = reduced("average")


@module
class Apart:
    """A robust reduction of the inner message; the median of each number of the buffers."""

    inner: Any

    @property
    def fewest(self) -> Scalar:
        """As of the inner reduction: buffers stay where the model does."""
        return getattr(self.inner, "fewest", 1)

    def __call__(self, messages: BesideMessage, weight: Any, used: Any) -> BesideMessage:
        buffers = Median()(messages.buffers, weight, used)
        return BesideMessage(self.inner(messages.inner, weight, used), buffers)


@module
class KeepsBuffers(Wrapper):
    """The method of a task with buffers; the engine puts it around all else.

        down:    b beside what `inner` sends
        client:  b_i <- b; each minibatch gradient of `inner`'s local work replaces b_i by what the loss returns
        server:  b <- (1/|S|) sum_i b_i, integers rounded; around a robust method the median of each number

    Losses alone (trials of a line search) and passes over all examples read b_i and leave it. Parameters, weights and
    steps are `inner`'s: nothing of b enters them but through the loss.
    """

    title: ClassVar[str] = "buffers"
    mutates_buffers: ClassVar[bool] = True
    around_all: ClassVar[bool] = True
    parts: ClassVar[tuple[type, ...]] = (BesideServer, BesideBroadcast, BesideMessage)
    inner: Algorithm
    initial: Buffers

    def __post_init__(self) -> None:
        if self.inner.traits.privacy or self.inner.traits.secure_sums:
            raise InvalidInput(
                f"{name_of(self.inner)} protects the parameters, not the buffers: take GroupNorm in place of "
                "BatchNorm, and in a module that runs in PyTorch attributes in place of buffers that stay the same"
            )
        super().__post_init__()

    @property
    def name(self) -> str:
        return name_of(self.inner)

    @property
    def reduction(self) -> Any:
        """The inner method's, beside the median of buffers; None if that has none."""
        inner = self.inner.traits.reduction
        return None if inner is None else Apart(inner)

    def init(self, params: Params) -> BesideServer:
        values = jax.tree.map(jnp.asarray, self.initial)
        return BesideServer(self.inner.init(params), values)

    def broadcast(self, server: BesideServer, cohort: Cohort) -> BesideBroadcast:
        return BesideBroadcast(self.inner.broadcast(server.inner, cohort), server.buffers)

    def enrol(self, broadcast: BesideBroadcast, params: Params) -> Any:
        return self.inner.enrol(broadcast.inner, params)

    def own_model(self, model: WithBuffers, client: Any) -> WithBuffers:
        return WithBuffers(self.inner.own_model(model.params, client), model.buffers)

    def train(self, broadcast: BesideBroadcast, client: Any, oracle: Oracle) -> tuple[BesideMessage, Any]:
        memory = Memory(broadcast.buffers)
        message, client = self.inner.train(broadcast.inner, client, oracle.remembering(memory))
        return BesideMessage(message, memory.read()), client

    def update(self, server: BesideServer, message: BesideMessage, cohort: Cohort) -> BesideServer:
        # the inner update, and the mean of the buffers that came
        came = trees.where(
            cohort.size >= fewest_messages(self.inner), message.buffers.rounded(), server.buffers
        )
        return BesideServer(self.inner.update(server.inner, message.inner, cohort), came)

    def export(self, server: BesideServer) -> WithBuffers:
        return WithBuffers(self.inner.export(server.inner), server.buffers)


@module
class BesideClient:
    """The inner client, and its buffers."""

    inner: Any
    buffers: Buffers


@module
class KeepsLocalBuffers(KeepsBuffers):
    """Buffers of methods with `local_buffers`, such as FedBN: each client's are its own and are never sent.

        client:  each minibatch gradient of `inner`'s local work replaces b_i by what the loss returns; b_i is kept

    All b_i begin as the task's. The server's model has those, too: what a client that never trained is measured with.
    """

    parts: ClassVar[tuple[type, ...]] = (BesideServer, BesideClient)

    def broadcast(self, server: BesideServer, cohort: Cohort) -> Any:
        return self.inner.broadcast(server.inner, cohort)

    def enrol(self, broadcast: Any, params: Params) -> BesideClient:
        dtype = trees.dtype_of(params)
        first = jax.tree.map(lambda x: jnp.asarray(x, dtype), self.initial)
        return BesideClient(self.inner.enrol(broadcast, params), first)

    def own_model(self, model: WithBuffers, client: BesideClient) -> WithBuffers:
        return WithBuffers(self.inner.own_model(model.params, client.inner), client.buffers.rounded())

    def train(self, broadcast: Any, client: BesideClient, oracle: Oracle) -> tuple[Any, BesideClient]:
        memory = Memory(client.buffers)
        message, inner = self.inner.train(broadcast, client.inner, oracle.remembering(memory))
        return message, BesideClient(inner, memory.read())

    def update(self, server: BesideServer, message: Any, cohort: Cohort) -> BesideServer:
        # the inner update
        return BesideServer(self.inner.update(server.inner, message, cohort), server.buffers)


def keeps_buffers(algorithm: Algorithm, buffers: Any) -> Algorithm:
    """The method, with what keeps buffers around it where a task has some (None: it has none)."""
    if buffers is None:
        return algorithm
    kind = KeepsLocalBuffers if getattr(algorithm, "local_buffers", False) else KeepsBuffers
    return kind(algorithm, Buffers.of(buffers))
