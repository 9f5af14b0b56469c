"""The models of the last updates, kept for clients that began with them: what the engine puts around a late method."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from fedsolve.core.algorithm import Cohort, name_of
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Scalar, module, static
from fedsolve.methods.wrappers.wrapper import Wrapper


@module
class VersionsServer:
    """The inner server, and the last broadcasts: leaves of shape (depth, ...), that of update t in row t mod depth."""

    inner: Any
    sent: Any


@module
class Versions:
    """What a client's work begins from: the last broadcasts, the newest (`inner`), its update, and who began at which.

    `ids` and `versions` have shape (size,), as `Cohort.started`; a client finds its own version by its number.
    """

    sent: Any
    inner: Any
    round: Scalar
    ids: Any
    versions: Any


@module
class KeepsVersions(Wrapper):
    """A late method with the broadcasts that its clients began with; `Cohort.started` says which.

    Args:
        inner: the method.
        depth: broadcasts that are kept: more than the updates of which the latest message is late.
    """

    title: ClassVar[str] = "versions"
    parts: ClassVar[tuple[type, ...]] = (VersionsServer, Versions)
    inner: Any  # pyright: ignore[reportIncompatibleVariableOverride] (one with `train_from`)
    depth: int = static()

    @property
    def name(self) -> str:
        """The inner method's."""
        return name_of(self.inner)

    def init(self, params: Params) -> VersionsServer:
        """The inner server, and room for broadcasts."""
        server = self.inner.init(params)
        shapes = jax.eval_shape(lambda: self.inner.broadcast(server, Cohort(jnp.int32(0), jnp.int32(1), 1)))
        return VersionsServer(
            server, jax.tree.map(lambda s: jnp.zeros((self.depth, *s.shape), s.dtype), shapes)
        )

    def broadcast(self, server: VersionsServer, cohort: Cohort) -> Versions:
        """The last broadcasts with the newest among them."""
        newest = self.inner.broadcast(server.inner, cohort)
        ids, versions = cohort.started or ((), ())  # nobody has begun where clients are only enrolled
        return Versions(self._with(server.sent, newest, cohort.round), newest, cohort.round, ids, versions)

    def train(self, broadcast: Versions, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        """The inner local work from the broadcast that this client began with."""
        version = broadcast.versions[jnp.argmax(broadcast.ids == oracle.client)]
        then = jax.tree.map(
            lambda x: lax.dynamic_index_in_dim(x, version % self.depth, keepdims=False), broadcast.sent
        )
        return self.inner.train_from(then, broadcast.inner, broadcast.round - version, client, oracle)

    def update(self, server: VersionsServer, message: Any, cohort: Cohort) -> VersionsServer:
        """The inner update; this update's broadcast stays for those who are still at work with it."""
        newest = self.inner.broadcast(server.inner, cohort)
        sent = self._with(server.sent, newest, cohort.round)
        return VersionsServer(self.inner.update(server.inner, message, cohort), sent)

    def _with(self, sent: Any, newest: Any, round: Scalar) -> Any:
        """The last broadcasts, the newest in its row."""
        return jax.tree.map(
            lambda x, new: lax.dynamic_update_index_in_dim(x, new, round % self.depth, 0), sent, newest
        )
