"""DeComFL (Li et al. 2025): local steps along directions that all clients share, and slopes in both ways."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import lax

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.building import class_by_name
from fedsolve.core.errors import check_integer
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import rate_at
from fedsolve.core.types import Params, Scalar, Traced, module, reported, static
from fedsolve.core.wire import Initial
from fedsolve.methods.client.solver import local_loop
from fedsolve.methods.zeroth_order.directions import first_steps, gaussian, key_of, slope, walk
from fedsolve.methods.zeroth_order.rebuilt import RebuiltModel

_LOST = (
    "clients that missed more than `history` rounds could not rebuild the model and sent nothing from then on: set "
    "history to the rounds of the run, or down='model'"
)


@module
class DeComServer:
    """The model w, the initial one (`()` where the model is sent), how often it has moved, the last steps (history,
    steps x directions; `()` where the model is sent), and the share of the last cohort that could not follow.
    """

    params: Params
    start: Params
    version: Traced
    history: Any
    lost: Traced = reported(_LOST)


@module
class DeComBroadcast:
    """The last steps and the leaves of the initial model, or the model; how often the model has moved and the number of
    the round.
    """

    params: Params
    start: Any
    history: Any
    version: Traced
    round: Scalar


@module
class DeComClient:
    """The last model that the client has rebuilt, and how often it had moved."""

    params: Params
    version: Traced


@module
class DeComMessage:
    """The slopes g, (steps, directions), and 1, or 0 of a client that cannot follow (`()` where the model is sent)."""

    slope: Traced
    follows: Any


@class_by_name("DeComFL")
@module
class DeComFL(RebuiltModel):
    """DeComFL (Li et al. 2025): zeroth-order local steps along directions z that all clients of a round share.

        client:  y = w;  for local steps k = 1 .. K and directions p = 1 .. P:
                 g = (f_i(y + mu z) - f_i(y - mu z)) / (2 mu),   after each k:  y <- y - (eta / P) sum_p g z
                 sends the K P slopes g
        server:  g <- sum_i p_i g of client i,   w <- w - (eta / P) sum_k sum_p g z

    z is standard normal and follows from how often the model has moved, from k and from p. Up: K P numbers. Down: the
    steps eta g / P of the last `history` rounds, from which a client goes on from the model that it had when it last
    took part, and 8 bytes for each leaf of the initial model, of which clients have copies; with down='model', w (d
    numbers). Kept: that model on clients, the initial one on the server, with down='model' nothing. Only losses are
    evaluated, 2 K P a round. With one direction, one client and one step it is SGD with a two-point estimate.

    The authors' server sends each client the rounds that it has missed. A broadcast is the same for all clients here:
    a client that misses more rounds than `history` sends nothing from then on, and the run says so. Whoever follows
    draws the directions of all rounds; in a simulation down='model' gives the same iterates, up to rounding, and saves
    that. Clients that take fewer steps than others send 0 for the missing ones. On other hardware or with another
    version of JAX directions may differ in their last bits. The paper takes the difference to one loss at y; here it is
    between both sides of y, as in the authors' code.

    Args:
        client_lr: eta > 0, a number or a schedule by round. 0.001 is where to begin: the paper tunes it.
        directions: P, at least 1; 1 (the authors' code). P = 10 is P losses more.
        mu: smoothing, > 0, in units of the parameters; 0.001 (the authors' code).
        most_steps: K, local steps of a client at most; later ones are left out. None: `fs.run` finds out where all
            clients take as many; a deployment must be told.
        down: what clients are sent, `scalars` or the `model`.
        history: rounds that a broadcast of scalars tells of, at least 1. 100 is where to begin.
        weighting: p_i, `uniform` (the paper's) or by `examples`.

    Raises:
        InvalidInput: a number out of its range. When a run begins: unknown `most_steps`, or more steps than these. On a
            client: another initial model than the server's.

    Reference: Li, Ying, Liu, Dong and Yang, "Achieving Dimension-Free Communication in Federated Learning via
    Zeroth-Order Optimization", ICLR 2025.
    """

    name: ClassVar[str] = "DeComFL"

    _: KW_ONLY
    directions: int = static(default=1)
    history: int = static(default=100)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("directions", self.directions, 1, bits=31)
        check_integer("history", self.history, 1, bits=31)

    def first_state(self, broadcast: DeComBroadcast) -> DeComClient:
        """The initial model, which has not moved."""
        return DeComClient(Initial.values_of(broadcast.start), jnp.int32(0))

    def init(self, params: Params) -> DeComServer:
        """The initial model, which has not moved."""
        zero = jnp.zeros((), trees.dtype_of(params))
        noted = jnp.zeros((self.history, self.steps_sent * self.directions), zero.dtype)
        start, history = (params, noted) if self.rebuilds else ((), ())
        return DeComServer(params, start, jnp.int32(0), history, zero)

    def broadcast(self, server: DeComServer, cohort: Cohort) -> DeComBroadcast:
        """The last steps, or the model."""
        params, start = ((), Initial.leaves_of(server.start)) if self.rebuilds else (server.params, ())
        return DeComBroadcast(params, start, server.history, server.version, cohort.round)

    def train(self, broadcast: DeComBroadcast, client: Any, oracle: Oracle) -> tuple[DeComMessage, Any]:
        """Follow the server's model, and take zeroth-order steps from it."""
        if not self.rebuilds:
            return DeComMessage(self._slopes(broadcast.params, broadcast, oracle), ()), client
        now, last = broadcast.version, client.version
        follows = now - last <= self.history

        def go_on(version: Any, w: Params) -> Params:
            return self._moved(w, broadcast.history[version % self.history], version)

        w = lax.fori_loop(jnp.where(follows, last, now), now, go_on, client.params)
        slopes = self._slopes(w, broadcast, oracle)
        one = jnp.asarray(follows, slopes.dtype)
        after = trees.where(follows, DeComClient(w, now), client)
        return DeComMessage(jnp.where(follows, slopes, 0), one), after

    def update(self, server: DeComServer, message: DeComMessage, cohort: Cohort) -> DeComServer:
        """Step along all directions of the round, and note the lengths of the steps."""
        share, mean = 1.0, message.slope
        if self.rebuilds:
            share = message.follows
            mean = jnp.where(share > 0, mean / jnp.where(share > 0, share, 1), 0)
        rate = rate_at(self.client_lr, cohort.round) / self.directions
        lengths = (rate * mean).astype(mean.dtype).ravel()
        params, history = self._moved(server.params, lengths, server.version), server.history
        if self.rebuilds:
            history = history.at[server.version % self.history].set(lengths)
        lost = jnp.asarray(1 - share, mean.dtype)
        return DeComServer(params, server.start, server.version + 1, history, lost)

    def _moved(self, w: Params, lengths: Any, version: Any) -> Params:
        """w after the steps of a round."""
        return walk(w, lengths, lambda j: key_of(2, version, j // self.directions, j % self.directions))

    def _slopes(self, w: Params, broadcast: DeComBroadcast, oracle: Oracle) -> Traced:
        """The slopes along a client's local steps from w, 0 where it takes fewer."""
        most = self.steps_sent
        rate = rate_at(self.client_lr, broadcast.round) / self.directions

        def step(k: Scalar, carry: Any) -> Any:
            y, slopes = carry

            def along(p: Any, carry: Any) -> Any:
                total, slopes = carry
                z = gaussian(key_of(2, broadcast.version, k, p), y)
                g = slope(oracle, y, k, z, self.mu)
                return trees.axpy(g, z, total), slopes.at[k, p].set(g)

            total, slopes = lax.fori_loop(0, self.directions, along, (trees.zeros_like(y), slopes))
            return trees.axpy(-rate, total, y), slopes

        none = jnp.zeros((most, self.directions), trees.dtype_of(w))
        return local_loop(first_steps(oracle, most), step, (w, none))[1]
