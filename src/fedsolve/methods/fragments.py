"""Streaming DiLoCo (Douillard et al. 2025): one fragment of the model travels in a round, while clients continue."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.building import by_name, integer, number
from fedsolve.core.errors import InvalidInput
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Params, Scalar, Weighting, module, replace
from fedsolve.methods.client.solver import LocalSolver, StepWindow, check_local
from fedsolve.methods.server.diloco import DiLoCo
from fedsolve.methods.server.fedopt import FedOptBroadcast, FedOptMessage, FedOptServer
from fedsolve.methods.server.sgd import ServerSGD


@module
class FragmentClient:
    """The client's own model y, the fragments of w as it last received them, and what its solver keeps."""

    params: Params
    received: Array
    local: Any


@module
class FragmentedAveraging(Algorithm):
    """Streaming DiLoCo: see `StreamingDiLoCo`, also for what each argument is.

    Fragments are rows, shape (fragments, entries); one travels as the only entry of a dict, in place of a model.
    """

    name: ClassVar[str] = "StreamingDiLoCo"
    weighting: ClassVar[Weighting] = "uniform"

    local: LocalSolver
    server_optimizer: ServerSGD
    fragments: int = integer()
    overlap: int = integer(at_least=0)
    mixing: Scalar = number(at_least=0, below=1)

    def _rows(self, params: Params) -> Array:
        flat = ravel_pytree(params)[0]
        entries = -(-flat.size // self.fragments)
        return jnp.pad(flat, (0, entries * self.fragments - flat.size)).reshape(self.fragments, entries)

    def _whole(self, rows: Array, like: Params) -> Params:
        return ravel_pytree(like)[1](rows.ravel()[: trees.size(like)])

    def init(self, params: Params) -> FedOptServer:
        outer = replace(self.server_optimizer.init(params), momentum=0 * self._rows(params))
        return FedOptServer(params, outer)

    def broadcast(self, server: FedOptServer, cohort: Cohort) -> FedOptBroadcast:
        changed = self._rows(server.params)[(cohort.round - 1) % self.fragments]
        return FedOptBroadcast({"fragment": changed}, cohort.round)

    def enrol(self, broadcast: FedOptBroadcast, params: Params) -> FragmentClient:
        return FragmentClient(params, self._rows(params), self.local.init_state(params))

    def init_client(self, broadcast: FedOptBroadcast) -> NoReturn:
        raise InvalidInput(
            f"{self.name} sends fragments: of wrappers only fs.Compressed(memory=None) goes around it; take DiLoCo"
        )

    def train(self, broadcast: FedOptBroadcast, client: FragmentClient, oracle: Oracle) -> tuple[Any, Any]:
        # the first steps from where the client was, the others with the fragment that has arrived meanwhile
        total, after, round = 0.0, oracle, broadcast.round
        if self.overlap:
            # a number that all clients have stays one of the program: their loops need no mask
            least = lambda x: min(self.overlap, x) if isinstance(x, int) else jnp.minimum(self.overlap, x)  # noqa: E731
            early, most = least(oracle.steps), least(oracle.bound)
            after = StepWindow(oracle, early, oracle.steps - early, oracle.bound - most)
            client, total = self._solved(client, StepWindow(oracle, 0, early, most), round)
        client, late = self._solved(self._mixed(client, broadcast), after, round)
        due = round % self.fragments
        moved = self._rows(client.params)[due] - client.received[due]
        loss = (total + late) / jnp.maximum(oracle.steps, 1)
        return FedOptMessage({"fragment": moved}, loss, ()), client

    def _solved(self, client: FragmentClient, oracle: Oracle, round: Scalar) -> tuple[FragmentClient, Scalar]:
        solution, local = self.local.go_on(client.local, client.params, oracle, round)
        return replace(client, params=solution.params, local=local), solution.loss * oracle.steps

    def _mixed(self, client: FragmentClient, broadcast: FedOptBroadcast) -> FragmentClient:
        arrived, new = (broadcast.round - 1) % self.fragments, broadcast.params["fragment"]
        rows = self._rows(client.params)
        # before the first average there is nothing to mix with
        weight = jnp.where(broadcast.round > 0, self.mixing, 1)
        rows = rows.at[arrived].set((weight * rows[arrived] + (1 - weight) * new).astype(rows.dtype))
        received = client.received.at[arrived].set(new)
        return replace(client, params=self._whole(rows, client.params), received=received)

    def is_finite(self, message: Any, client: Any) -> Array:
        # what is not sent in this round is kept for later ones
        return trees.all_finite((message, client))

    def update(self, server: FedOptServer, message: FedOptMessage, cohort: Cohort) -> FedOptServer:
        # Nesterov's step, of the fragment that was due alone
        due, rows, outer = cohort.round % self.fragments, self._rows(server.params), server.server_optimizer
        before = replace(outer, momentum=outer.momentum[due])
        new, after = self.server_optimizer.step(rows[due], before, message.delta["fragment"], (), cohort)
        kept = replace(after, momentum=outer.momentum.at[due].set(after.momentum))
        return FedOptServer(self._whole(rows.at[due].set(new), server.params), kept)

    def export(self, server: FedOptServer) -> Params:
        return server.params


@by_name("StreamingDiLoCo")
def StreamingDiLoCo(
    client_lr: Rate = 4e-4,
    *,
    local: LocalSolver | None = None,
    fragments: int = 3,
    overlap: int = 1,
    mixing: Scalar = 0.5,
    server_lr: Rate = 0.7,
    momentum: Scalar = 0.9,
) -> FragmentedAveraging:
    """Streaming DiLoCo (Douillard et al. 2025): each round averages one of P fragments, while clients continue.

        client i in S:  `overlap` steps of AdamW from its own y;   y_q <- alpha y_q + (1 - alpha) w_q,   r_q <- w_q
                        its other steps of AdamW;   D_i = y_p - r_p,   p = t mod P in round t, q = (t - 1) mod P
        server:         D = mean over S of D_i,   m_p <- beta m_p + D,   w_p <- w_p + eta_g (D + beta m_p)

    The entries of all leaves, in their order, are cut into P fragments of equal size (the paper has whole layers): H
    local steps between two averages of one are `local_steps=H/P`. With `systems`, messages take time only beyond
    `overlap` steps. An absent client keeps all it has: fragments that it misses stay old in r until their next turn.
    With P = 1, overlap = 0 and alpha = 0 it is `DiLoCo`. The paper's 4 bits are, by another code,
    `fs.Compressed(fs.StreamingDiLoCo(), fs.compression.EDEN(4))`.

    Up: D_i (d / P numbers) and the mean local loss. Down: w_q. Kept: y, r, AdamW's moments and count on each client
    (4 d numbers), m on the server. Clients have a copy of the initial model.

    Args:
        client_lr: eta_l > 0 of AdamW, a number or a schedule by round; its weight decay is 0.1.
        local: a solver in place of AdamW at client_lr, such as `client.Optax(...)` with a schedule by local steps.
        fragments: P, at least 1.
        overlap: local steps before a fragment arrives, at least 0; at most a client's steps count.
        mixing: alpha in [0, 1), of the client's own fragment; 0.5 as in a public code, MaxText has 0.
        server_lr: eta_g > 0, a number or a schedule by round.
        momentum: beta in [0, 1).

    Returns:
        The method, with the local solver of `DiLoCo`.

    Raises:
        InvalidInput: a number out of its range, no solver.

    Reference: Douillard et al., "Streaming DiLoCo with overlapping communication: Towards a Distributed Free Lunch",
    arXiv:2501.18512, 2025; update and mixing as MaxText has them, the paper's text was not available.
    """
    whole = DiLoCo(client_lr, server_lr=server_lr, momentum=momentum)
    rule, local = whole.server_optimizer, whole.local if local is None else local
    check_local(local)
    return FragmentedAveraging(local, rule, fragments, overlap, mixing)  # pyright: ignore[reportArgumentType]
