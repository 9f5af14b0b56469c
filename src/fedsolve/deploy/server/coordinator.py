"""The server's side of a round: who is asked what, which replies count, and what becomes of them. No Flower here.

It holds what the compiled engine holds and calls the same methods, compiled, in the same order: cohorts follow from
the seed, replies are checked one by one and reduced in the order of client numbers, so that a run repeats bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import jax
import numpy as np

from fedsolve.core import wire
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import Diverged
from fedsolve.core.types import Params, is_module, reports
from fedsolve.deploy.host_arrays import Buffers, all_finite, cap_weights, mean_buffers, stays_finite
from fedsolve.deploy.messages.fact_checks import check_buffers, check_train_reply, protects
from fedsolve.deploy.messages.message import EvaluateRequest, TrainReply, TrainRequest
from fedsolve.deploy.messages.signature import signature
from fedsolve.deploy.messages.spec import to_spec
from fedsolve.deploy.messages.validation import check_buffer_values, check_message, decode_reply
from fedsolve.deploy.server.federation import Cohorts, Federation
from fedsolve.deploy.server.outliers import find_outliers, norm_columns, part_norms, usual_after
from fedsolve.deploy.server.reply_store import ReplyStore
from fedsolve.deploy.server.server_method import ServerMethod
from fedsolve.deploy.server.server_state import Accepted, ServerState, repeated
from fedsolve.deploy.site_names import numbered
from fedsolve.engine.reacting import reacted, reacts, with_reacting
from fedsolve.results.columns import Columns


class Coordinator:
    """One method on one federation, round after round.

    Args:
        algorithm: the method.
        params: the initial model; its floating-point type is the run's.
        federation: its clients, and how cohorts of them are drawn.
        buffers: what is averaged beside the model, such as BatchNorm's statistics.
        norm_bound: largest norm of a message that is believed, None for a bound by what is usual.
        max_share: largest share of a round's weights that one client may have, in (0, 1]; None for any.
        reply_store: where a round's messages wait for its end.

    Attributes:
        state: what is carried from round to round; a checkpoint replaces it.
        method: the method, and the shapes of its messages.
        signature: shapes and types of the model's leaves.
        names: what a client is called.
        declared: the examples of each client by which it last counted, where the method weighs by examples.

    Raises:
        InvalidInput: a method that cannot be told to clients, or a sampling that does not fit.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        params: Params,
        federation: Federation,
        *,
        buffers: Buffers | None = None,
        norm_bound: float | None = None,
        max_share: float | None = None,
        reply_store: ReplyStore | None = None,
    ) -> None:
        federation.check(algorithm)
        check_buffers(algorithm, buffers)
        self.population, self.experiment = federation.population, federation.experiment
        self.norm_bound = None if norm_bound == math.inf else norm_bound  # a configuration has no None
        self._max_share, self._reply_store = max_share, reply_store or ReplyStore()
        self._round: Any = None  # key, broadcast, encoded broadcast
        self._lost: set[int] = set()
        self.names: Callable[[int], str] = numbered
        self.declared: dict[int, int] = {}
        self.method, server = ServerMethod.prepare(algorithm, params, self.population)
        self._given, self._first = algorithm, self.method.algorithm
        self._method_spec, self.signature = to_spec(algorithm), signature(params)
        with self.precision():
            self._cohorts = Cohorts(federation, algorithm, self.method.dtype)
            tracked = (
                repeated(self.method.initial_state, self.population) if self.method.tracks_clients else ()
            )
        unused = np.full(self.population, -1, np.int32)
        self.state = ServerState(server, dict(buffers or {}), unused, tracked, 0)

    def precision(self) -> Any:
        """The context in which the run's floating-point type exists."""
        return self.method.precision()

    @property
    def algorithm(self) -> Algorithm:
        """The method, its numbers of the run's type."""
        return self.method.algorithm

    @property
    def model(self) -> Params:
        """The current model, in main memory."""
        with self.precision():
            return jax.device_get(self.algorithm.export(self.state.server))

    @property
    def reacts(self) -> bool:
        """Whether a rate of the next round follows from the evaluations so far."""
        return reacts(self._given)

    def react(self, evaluations: Columns) -> None:
        """Go on at the rates that follow from all evaluations so far, and tell the clients of the next rounds.

        Raises:
            InvalidInput: a rate reacts to a metric that is not measured.
        """
        if not self.reacts:
            return
        with self.precision():
            now = reacted(self._first, evaluations)
        self.method = replace(self.method, algorithm=now)
        self._method_spec = to_spec(with_reacting(self._given, now))

    def draw_cohort(self) -> list[int]:
        """The clients of the current round, in order; the same whenever it is asked for."""
        round = self.state.round
        with self.precision():
            clients = self._cohorts.draw(round)
            broadcast = self.method.broadcast(self.state.server, round, len(clients))
            self._round = (self._cohorts.key(round), broadcast, wire.encode(broadcast))
        return [int(client) for client in clients]

    def _request_facts(self, client: int, key: Any) -> dict[str, Any]:
        """What requests of both kinds to a client have in common."""
        return {
            "experiment": self.experiment,
            "round": self.state.round,
            "client": client,
            "population": self.population,
            "last_used_round": int(self.state.last_used_round[client]),
            "key": tuple(int(word) for word in np.asarray(jax.random.key_data(key))),
            "method": self._method_spec,
            "signature": self.signature,
            "buffers": self.state.buffers,
        }

    def train_request(self, client: int) -> TrainRequest:
        """What a client of the cohort that was drawn is asked to do."""
        key, _, broadcast = self._round
        state = self.state
        is_new = state.last_used_round[client] < 0 and state.round > 0 and self.method.is_stateful
        return TrainRequest(
            **self._request_facts(client, key),
            broadcast=broadcast,
            first_broadcast=wire.encode(self.method.first_broadcast) if is_new else None,
            tracked_state=wire.encode(state.tracked_state(client)) if client in self._lost else None,
        )

    def evaluate_requests(
        self, metrics: tuple[str, ...], steps: int, solver: Any
    ) -> Callable[[int], EvaluateRequest]:
        """What each client is asked to measure the present model by, after so many local steps; it is encoded once.

        Raises:
            InvalidInput: a solver that cannot be told to clients.
        """
        state = self.state
        with self.precision():
            model = wire.encode(self.algorithm.export(state.server))
            key = self._cohorts.key(state.round)
            first = wire.encode(self.method.first_broadcast) if self.algorithm.traits.personal else None
        solver_spec = to_spec(solver) if steps else None

        def request(client: int) -> EvaluateRequest:
            return EvaluateRequest(
                **self._request_facts(client, key),
                metrics=metrics,
                model=model,
                first_broadcast=first if state.last_used_round[client] < 0 else None,
                steps=steps,
                solver=solver_spec,
            )

        return request

    def begin_attempt(self, clients: Sequence[int]) -> None:
        """These clients are about to be asked for the current round, in this order."""

    @property
    def max_message_bytes(self) -> int:
        """Bytes of the longest message that a client of this round may send."""
        return self.method.max_message_bytes

    def version_of(self, client: int) -> int:
        """The round whose broadcast a client's order has: the current one."""
        return self.state.round

    def broadcast_of(self, version: int) -> Any:
        """The broadcast of a round that a client's order may have."""
        return self._round[1]

    def message_of(self, client: int) -> Any:
        """A client's message, as it is reduced over the cohort."""
        return self._reply_store.get(client)[0]

    def report_lost_state(self, client: int) -> None:
        """A client has lost its state: where the server tracks it, its next orders bring it."""
        if self.method.tracks_clients:
            self._lost.add(client)

    def validate_reply(self, client: int, reply: TrainReply) -> Accepted:
        """Check a reply of a client of this round; one that passes waits in the reply store.

        Raises:
            InvalidInput: why it does not count.
        """
        version = self.version_of(client)
        check_train_reply(reply, self.experiment, version, client)
        by_examples = self.algorithm.traits.weighting == "examples"
        weight = float(reply.examples) if by_examples else 1.0
        with self.precision():
            sent = decode_reply(reply, self.method.zero_message)
            received = self.method.receive(self.broadcast_of(version), sent, self.state.tracked_state(client))
            norm = check_message(
                sent,
                received,
                weight,
                norm_bound=self.norm_bound,
                cohort=self.population,
                dtype=self.method.dtype,
                is_noisy=self.algorithm.traits.privacy == "local",
            )
        check_buffer_values(self.returned_buffers, reply.buffers)
        self._reply_store.put(client, received)
        if by_examples:
            self.declared[client] = reply.examples
        parts = part_norms(received[0], reply.buffers) if self._compares_norms else {}
        return Accepted(weight, norm, parts, reply.buffers)

    @property
    def written_last_used(self) -> np.ndarray:
        """`last_used_round` as files have it: -1, where what is guaranteed needs secret cohorts."""
        used = self.state.last_used_round
        return np.full_like(used, -1) if self.algorithm.traits.secret_cohorts else used

    @property
    def returned_buffers(self) -> Buffers:
        """Those that clients send back: none beside what a method protects, where they are constants."""
        return {} if protects(self.algorithm) else self.state.buffers

    @property
    def _compares_norms(self) -> bool:
        """Whether norms are compared between clients: under central privacy nothing may follow from one client's."""
        return self.algorithm.traits.privacy != "central"

    def exclude_outliers(self, accepted: dict[int, Accepted]) -> dict[int, str]:
        """Take out of a round's replies those with a norm far beyond the usual; the clients, each with the reason."""
        if self.norm_bound is not None or not self._compares_norms:
            return {}
        outliers = find_outliers(accepted, self.state.usual)
        for client in outliers:
            del accepted[client]
        return outliers

    def finish_round(self, accepted: Mapping[int, Accepted], drawn: int) -> dict[str, float]:
        """End the round with the replies that count (perhaps none); what is recorded of it.

        Raises:
            Diverged: the server's state would not be finite; it is as it was, and the round has not ended.
        """
        state, clients = self.state, sorted(accepted)
        server, used, buffers = state.server, state.last_used_round.copy(), state.buffers
        reduced: Any = None
        if clients or self.algorithm.traits.updates_when_empty:
            with self.precision():
                reduced = self._reduced(accepted)
                server = self.method.update(server, reduced, state.round, len(clients))
        if clients:
            used[clients] = [self.version_of(i) for i in clients]
        if clients and self.returned_buffers:
            buffers = mean_buffers([accepted[i].buffers for i in clients])
        self._check_finite(server, buffers, accepted)
        self._lost -= set(clients)
        if self.method.tracks_clients:
            for client in clients:
                state.store_tracked(client, self._reply_store.get(client)[1])
        self._reply_store.clear()
        usual = usual_after(accepted, state.usual) if self._compares_norms else state.usual
        self.state = ServerState(server, buffers, used, state.tracked, state.round + 1, usual)
        entry: dict[str, float] = {"participants": drawn, "dropped": drawn - len(clients)}
        entry |= norm_columns(accepted) if self._compares_norms else {}
        # a private method's own loss is left out or not yet noisy
        loss = _reported_loss(reduced) if clients and not self.algorithm.traits.privacy else None
        entry |= {} if loss is None else {"client_loss": loss}
        return entry | {name: float(value) for name, (value, _) in reports(server).items()}

    def _reduced(self, accepted: Mapping[int, Accepted]) -> Any:
        """The messages of the replies that count, reduced to one."""
        clients = sorted(accepted)
        weights = cap_weights([accepted[i].weight for i in clients], self._max_share)
        return self.method.reduce(map(self.message_of, clients), weights)  # one at a time

    def _check_finite(self, server: Any, buffers: Buffers, accepted: Mapping[int, Accepted]) -> None:
        with self.precision():
            shown = self.algorithm.export(server), buffers
            if stays_finite(self.state.server, server) and all_finite(shown):
                return
        detail = ""
        if accepted and self._compares_norms:
            largest = max(accepted, key=lambda i: accepted[i].norm)
            detail = f"; the largest norm is {self.names(largest)}'s, {accepted[largest].norm:.6g}"
        raise Diverged(f"round {self.state.round + 1}: the model would not be finite after it{detail}")


def _reported_loss(message: Any) -> float | None:
    """The mean loss over local steps that a reduced message reports; None where a method reports none."""
    if not is_module(message):
        return None
    if hasattr(message, "loss"):
        return float(message.loss)
    losses = (_reported_loss(getattr(message, field.name)) for field in fields(message))
    return next((loss for loss in losses if loss is not None), None)
