"""The server's side of a round: who is asked what, which replies count, and what becomes of them. No Flower here.

It holds what the compiled engine holds and calls the same methods, compiled, in the same order: cohorts follow from
the seed, replies are checked one by one and reduced in the order of client numbers, so that a run repeats bit for bit.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core import wire
from fedsolve.core.algorithm import Algorithm, check_shares
from fedsolve.core.errors import Diverged, InvalidInput
from fedsolve.core.sampling import Sampling
from fedsolve.core.types import Params, is_module, reports
from fedsolve.deploy.host import Buffers, all_finite, cap_weights, mean_buffers, norm, stays_finite
from fedsolve.deploy.message import EvaluateRequest, TrainReply, TrainRequest
from fedsolve.deploy.method_spec import to_spec
from fedsolve.deploy.reply_checks import (
    check_buffer_values,
    check_buffers,
    check_message,
    check_train_reply,
    decode_reply,
    protects,
)
from fedsolve.deploy.secret_keys import new_secret, round_key
from fedsolve.deploy.server.server_method import ServerMethod
from fedsolve.deploy.signature import signature
from fedsolve.deploy.site_names import numbered
from fedsolve.engine.compute.casting import cast, run_key
from fedsolve.engine.feedback_schedules import has_feedback, with_current_rates, with_reacting
from fedsolve.folders.logs import bytes_of, read_all, write_all
from fedsolve.methods.robust.reductions import FACTOR, parts_of, usual_norm
from fedsolve.methods.trained import support
from fedsolve.results.columns import Columns

# The clients of a run, and who of them takes part in a round.


@dataclass(frozen=True)
class Federation:
    """The clients of a run, and how cohorts of them are drawn."""

    population: int  # number of clients, numbered from 0
    sampling: Sampling
    seed: int
    experiment: str  # name of the experiment, part of every message and of the clients' state files
    # what cohorts follow from in place of the seed where the method's guarantee needs it (32 bytes); None for a new one
    secret: bytes | None = None

    def check(self, algorithm: Algorithm) -> None:
        """Raise `InvalidInput` unless cohorts can be drawn so, and for a method."""
        self.sampling.check(self.population)
        check_shares(algorithm.traits)
        algorithm.check(self.sampling, self.population)


class Cohorts:
    """The cohorts of a method's rounds on a federation: the same whenever they are asked for."""

    def __init__(self, federation: Federation, algorithm: Algorithm, dtype: Any) -> None:
        self._population = federation.population
        self._sampling, self._key = cast(federation.sampling, dtype), run_key(federation.seed)
        self._secret = (federation.secret or new_secret()) if algorithm.traits.secret_cohorts else None

    def key(self, round: int) -> jax.Array:
        return jax.random.fold_in(self._key, round)

    def draw(self, round: int) -> np.ndarray:
        # requests carry its key: where nobody may know the cohort it follows from the secret instead
        key = self.key(round) if self._secret is None else round_key(self._secret, round)
        ids, present = self._sampling.draw(key, jnp.int32(round), self._population)
        return np.sort(np.asarray(ids)[np.asarray(present)])


# What the server of a deployment carries from round to round.


@dataclass(frozen=True)
class Accepted:
    """A reply that counts; its message waits in the reply store."""

    weight: float  # the client's number of examples, or 1 where the method weights clients alike
    norm: float
    parts: Mapping[str, float]  # norms of its fields and of what is averaged beside the model, by name
    buffers: Buffers  # what is averaged beside the model, by name
    tells_loss: bool = True  # whether the loss of its message says something


@dataclass(frozen=True)
class ServerState:
    """Everything that a server carries from round to round, and what a checkpoint holds."""

    server: Any
    buffers: Buffers  # what is averaged beside the model, by name
    # the last round in which each client's update was used, -1 for none, shape (clients,)
    last_used_round: np.ndarray
    # the clients' states as the server tracks them from messages, leaves of shape (clients, ...); `()` where the
    # method's server need not
    tracked: Any
    round: int
    # the norms that are usual so far, by field of a message
    usual: Mapping[str, float] = field(default_factory=dict)

    def tracked_state(self, client: int) -> Any:
        return jax.tree.map(lambda x: x[client], self.tracked)


def repeated(state: Any, population: int) -> Any:
    """The tracked states at the start: every client's is this one."""
    return jax.tree.map(lambda x: np.stack([np.asarray(x)] * population), state)


def store_row(stacked: Any, client: int, state: Any) -> None:
    for rows, row in zip(jax.tree.leaves(stacked), jax.tree.leaves(state), strict=True):
        rows[client] = row


# Replies that count, stored until their round ends: on disk, so that memory holds one of them at a time.
#
# A mean is summed in the order of client numbers, whatever order replies come in, and a repeated round brings the
# first of them last. Small replies never reach the disk; where it is full, they stay in memory.


_IN_MEMORY = 32 * 1024**2


class _Entry(NamedTuple):
    structure: Any
    leaves: list[Any]  # arrays, or their shapes and types where they lie in the file
    start: int | None  # where in the file


class ReplyStore:
    """Pytrees of arrays by a number.

    Args:
        folder: where a file without a name is made, which is gone with the process however it ends; None for the
            system's folder of temporary files.
        memory: bytes that stay in memory; what is beyond them goes into the file.
    """

    def __init__(self, folder: Path | None = None, memory: int = _IN_MEMORY) -> None:
        self._folder, self._memory = folder, memory
        self._file: IO[bytes] | None = None
        self._entries: dict[int, _Entry] = {}
        self._in_memory = self._end = 0

    def put(self, number: int, tree: Any) -> None:
        leaves, structure = jax.tree.flatten(tree)
        arrays = [np.asarray(x) for x in leaves]
        size = sum(x.nbytes for x in arrays)
        if self._in_memory + size > self._memory and self._write(arrays):
            # On disk without a header: shapes and types stay in memory.
            shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
            self._entries[number] = _Entry(structure, shapes, self._end)
            self._end += size
        else:
            # Copies: views would keep the whole record in memory.
            self._entries[number] = _Entry(structure, [np.array(x) for x in arrays], None)
            self._in_memory += size

    def get(self, number: int) -> Any:
        structure, leaves, start = self._entries[number]
        if start is not None and self._file is not None:
            leaves = [np.empty(x.shape, x.dtype) for x in leaves]
            for x in leaves:
                read_all(self._file.fileno(), bytes_of(x), start)
                start += x.nbytes
        return structure.unflatten(leaves)

    def clear(self) -> None:
        self._entries, self._in_memory, self._end = {}, 0, 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, arrays: list[np.ndarray]) -> bool:
        # Append to the file; False if the disk would not take it.
        try:
            if self._file is None:  # unbuffered: what cannot be written is known now, not when it is read
                self._file = tempfile.TemporaryFile(buffering=0, dir=self._folder)  # noqa: SIM115 - closed by clear
            self._file.seek(self._end)
            for x in arrays:
                write_all(self._file, bytes_of(np.ascontiguousarray(x)))
        except OSError:
            return False
        return True


# Which replies are far beyond what is usual, and whose update was the largest. No Flower here.
#
# The rule is `fedsolve.methods.robust.reductions`; here the usual norms are carried from round to round.


LARGEST, WHOSE, MEDIAN = "largest_norm", "largest_norm_client", "median_norm"
"""Columns of the record: of the replies of a round that count, the largest norm, its client, and the median norm."""
SITE = "largest_norm_site"
"""Beside them in the log of rounds: the name of that client's site, if it has one."""
_WHOLE = "message"  # all fields together
_MOST = float(np.finfo(np.float64).max)


def part_norms(message: Any, buffers: Buffers) -> dict[str, float]:
    """The norms of a reply that are compared: of each field, of all together, of what is averaged beside the model."""
    norms = {name: norm(leaves) for name, leaves in parts_of(message).items()}
    norms[_WHOLE] = math.hypot(*norms.values())
    floats = {x for x, value in buffers.items() if value.dtype.kind == "f"}
    for name, some in (("buffers", floats), ("counters", set(buffers) - floats)):
        if some:
            # 0 counts as 1: one value where all others are 0 is no usual one, and no field is compared beside these
            norms[name] = norm([buffers[x].astype(np.float64) for x in sorted(some)]) or 1.0
    return {name: min(x, _MOST) for name, x in norms.items()}  # squares may overflow where no number does


def find_outliers(accepted: Mapping[int, Accepted], usual: Mapping[str, float]) -> dict[int, str]:
    """The clients of a round with a norm far beyond what was usual after the round before, each with the reason."""
    # Medians of this round count as well: in the first one nothing is known of earlier ones.
    now, outliers = usual_after(accepted, usual), {}
    for client in sorted(accepted):
        ratios = {name: x / now[name] for name, x in accepted[client].parts.items() if now[name] > 0}
        name = max(ratios, key=lambda n: ratios[n], default="")
        if name and ratios[name] > FACTOR:
            what = "its norm" if name == _WHOLE else f"the norm of its {name}"
            outliers[client] = (
                f"{what} is {accepted[client].parts[name]:.6g}, more than {FACTOR:,.0f} times the {now[name]:.6g} "
                "that is usual in this round and in earlier ones; set norm_bound to go by a fixed bound instead"
            )
    return outliers


def usual_after(accepted: Mapping[int, Accepted], usual: Mapping[str, float]) -> dict[str, float]:
    """The usual norms after a round, by field; those before it if nobody's reply counts."""
    names = next(iter(accepted.values())).parts if accepted else ()
    rows = {name: np.array([reply.parts[name] for reply in accepted.values()]) for name in names}
    with np.errstate(over="ignore"):
        return {**usual, **{n: float(usual_norm(x, usual.get(n, 0.0), np)) for n, x in rows.items()}}


def check_usual(given: Any) -> dict[str, float]:
    """The usual norms of a checkpoint; none where it has none, as earlier versions wrote it."""
    usual = {} if given is None else given
    if not isinstance(usual, dict) or not all(
        isinstance(x, float) and 0 <= x < math.inf for x in usual.values()
    ):
        raise InvalidInput("its usual norms are not numbers by field: restore a copy, or start a new run")
    return usual


def norm_columns(accepted: Mapping[int, Accepted]) -> dict[str, float]:
    """The largest norm of the replies that count, whose it is, and their median; nothing if none counts."""
    if not accepted:
        return {}
    # Of as many the lowest number, so that the record repeats.
    client = max(sorted(accepted), key=lambda i: accepted[i].norm)
    median = float(np.median([reply.norm for reply in accepted.values()]))
    return {LARGEST: accepted[client].norm, WHOSE: client, MEDIAN: median}


def largest_update(
    rounds: Mapping[str, Any], names: Callable[[int], str] = numbered
) -> tuple[int, str] | None:
    norms = np.asarray(rounds.get(LARGEST, ()), np.float64)
    if not np.isfinite(norms).any():
        return None
    at = int(np.argmax(np.where(np.isfinite(norms), norms, -1.0)))
    number, client = int(rounds["round"][at]), int(rounds[WHOSE][at])
    return (
        number,
        f"the update with the largest norm, {norms[at]:.6g}, is of {names(client)} in round {number}",
    )


class Coordinator:
    """One method on one federation, round after round.

    Args:
        params: the initial model; its floating-point type is the run's.
        federation: its clients, and how cohorts of them are drawn.
        buffers: what is averaged beside the model, such as BatchNorm's statistics.
        norm_bound: largest norm of a message that is believed, None for a bound by what is usual.
        max_share: largest share of a round's weights that one client may have, in (0, 1]; None for any.
        reply_store: where a round's messages wait for its end.
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
        self._round: Any = None  # key, broadcast, encoded broadcast; while its replies are waited for
        self._lost: set[int] = set()
        self.names: Callable[[int], str] = numbered
        # examples of each client by which it last counted, where the method weighs by examples
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
        # a checkpoint replaces it
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
        with self.precision():
            return jax.device_get(self.algorithm.export(self.state.server))

    @cached_property
    def refuses_loops(self) -> str:
        """Why clients cannot train by a loop of their own; '' if they can."""
        with self.precision():
            params = jax.eval_shape(self.algorithm.export, self.state.server)
            return support(self.algorithm, params).refused

    def why_not(self, before: int, trains: bool) -> str:
        """Why this many clients cannot go on from where there were `before`; '' if they can."""
        traits, now = self.algorithm.traits, self.population
        if before == now or (before < now and not trains):
            return ""
        with self.precision():
            counts = "its server counts them" * self.method.counts_clients(self.state.server)
        why = "its guarantees are for that number" if traits.privacy or traits.secure_sums else counts
        why = "it may only grow" if before > now else why
        return why and f"population = {before}, this run {now}, of {traits.name}: {why}"

    @property
    def reacts(self) -> bool:
        """Whether a rate of the next round follows from the evaluations so far."""
        return has_feedback(self._given)

    def react(self, evaluations: Columns) -> None:
        """Go on at the rates that follow from all evaluations so far, and tell the clients of the next rounds."""
        if not self.reacts:
            return
        with self.precision():
            now = with_current_rates(self._first, evaluations)
        self.method = replace(self.method, algorithm=now)
        self._method_spec = to_spec(with_reacting(self._given, now))

    def draw_cohort(self) -> list[int]:
        """The clients of the current round, in order; the same whenever it is asked for."""
        round = self.state.round
        with self.precision():
            clients = self._cohorts.draw(round)
            broadcast = self.method.broadcast(self.state.server, round, len(clients))
            # Encoded once for the whole cohort: of a large model it is the most expensive part of an order.
            self._round = (self._cohorts.key(round), broadcast, wire.encode(broadcast))
        return [int(client) for client in clients]

    def _request_facts(self, client: int, key: Any) -> dict[str, Any]:
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
        key, _, broadcast = self._round
        state = self.state
        # A client that joins late has a state from the first round's broadcast, as all others had.
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
        """What each client is asked to measure the present model by, after so many local steps; it is encoded once."""
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
                # Who has never taken part has no model of its own yet, and makes it from this.
                first_broadcast=first if state.last_used_round[client] < 0 else None,
                steps=steps,
                solver=solver_spec,
            )

        return request

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
        return self._reply_store.get(client)[0]

    def report_lost_state(self, client: int) -> None:
        """A client has lost its state: where the server tracks it, its next orders bring it."""
        if self.method.tracks_clients:
            self._lost.add(client)

    def validate_reply(self, client: int, reply: TrainReply) -> Accepted:
        """Check a reply of a client of this round; one that passes waits in the reply store."""
        version = self.version_of(client)
        check_train_reply(reply, self.experiment, version, client)
        by_examples = self.algorithm.traits.weighting == "examples"
        weight = float(reply.examples) if by_examples else 1.0
        with self.precision():
            sent = decode_reply(reply, self.method.zero_message)
            # (message as it is reduced, the client's next state as the server tracks it)
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
        # Only what passed every check waits for the end of the round.
        self._reply_store.put(client, received)
        if by_examples:
            self.declared[client] = reply.examples
        parts = part_norms(received[0], reply.buffers) if self._compares_norms else {}
        return Accepted(weight, norm, parts, reply.buffers, not reply.untold)

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
        # Whether norms are compared between clients: under central privacy nothing may follow from one client's.
        #
        # Under secure sums no message is seen.
        traits = self.algorithm.traits
        return traits.privacy != "central" and not traits.secure_sums

    def exclude_outliers(self, accepted: dict[int, Accepted]) -> dict[int, str]:
        """Take out of a round's replies those with a norm far beyond the usual; the clients, each with the reason."""
        if self.norm_bound is not None or not self._compares_norms:
            return {}
        outliers = find_outliers(accepted, self.state.usual)
        for client in outliers:
            del accepted[client]
        return outliers

    def finish_round(self, accepted: Mapping[int, Accepted], drawn: int) -> dict[str, float]:
        """End the round with the replies that count (perhaps none); what is recorded of it."""
        # `Diverged` if the server's state would not be finite; it is as it was, and the round has not ended.
        # In the order of their numbers, whatever order replies came in: sums repeat to the bit. The state is
        # replaced at the end, at once: a round that diverges leaves it as it was.
        state, clients = self.state, sorted(accepted)
        self._round = None  # its orders are over: room for the next state
        server, used, buffers = state.server, state.last_used_round.copy(), state.buffers
        reduced: Any = None
        if clients or self.algorithm.traits.updates_when_empty:
            with self.precision():
                reduced = self._reduced(accepted)
                server = self.method.update(server, reduced, state.round, len(clients))
        if clients:
            # By this the next order tells a client which of its states counts.
            used[clients] = [self.version_of(i) for i in clients]
        if clients and self.returned_buffers:
            buffers = mean_buffers([accepted[i].buffers for i in clients])
        self._check_finite(server, buffers, accepted)
        # They have a state again: the one that this round's reply was sent with.
        self._lost -= set(clients)
        if self.method.tracks_clients:
            for client in clients:
                store_row(state.tracked, client, self._reply_store.get(client)[1])
        self._reply_store.clear()
        # After the outliers were taken out: they are no measure of what is usual.
        usual = usual_after(accepted, state.usual) if self._compares_norms else state.usual
        self.state = ServerState(server, buffers, used, state.tracked, state.round + 1, usual)
        entry: dict[str, float] = {"participants": drawn, "dropped": drawn - len(clients)}
        entry |= norm_columns(accepted) if self._compares_norms else {}
        # a private method's own loss is left out or not yet noisy
        has_loss = clients and all(reply.tells_loss for reply in accepted.values())
        loss = _reported_loss(reduced) if has_loss and not self.algorithm.traits.privacy else None
        entry |= {} if loss is None else {"client_loss": loss}
        return entry | {name: float(value) for name, (value, _) in reports(server).items()}

    def _reduced(self, accepted: Mapping[int, Accepted]) -> Any:
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
    # The mean loss over local steps that a reduced message reports; None where a method reports none.
    if not is_module(message):
        return None
    if hasattr(message, "loss"):
        return float(message.loss)
    losses = (_reported_loss(getattr(message, field.name)) for field in fields(message))
    return next((loss for loss in losses if loss is not None), None)
