"""The job `statistics`: all nodes are asked about their columns, round after round, until all is known."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsolve.core.errors import InvalidInput, Unavailable
from fedsolve.data.column_statistics.messages import Replies
from fedsolve.data.column_statistics.protocol import Rounds
from fedsolve.data.column_statistics.report import Statistics
from fedsolve.deploy.jobs.column_records import ACTION, ClientReply, read_reply, request_record
from fedsolve.deploy.jobs.job import STATISTICS_FILE, Job, job_folder
from fedsolve.deploy.jobs.secure_statistics import SummedColumns
from fedsolve.deploy.jobs.statistics_file import SCHEMA_FILE, statistics_json, summary_lines
from fedsolve.deploy.nodes.transport import MARGIN, Mailbox, Polling, missing_clients_advice, watched_engine
from fedsolve.deploy.run_log import say
from fedsolve.deploy.server.settings import Settings
from fedsolve.deploy.site_names import SiteNames
from fedsolve.folders.files import write_atomically

_FIRST_WAIT, _LONGEST_WAIT = (
    0.05,
    1.0,
)  # seconds between two looks for replies: short while they may all be there


def collect_statistics(
    grid: Grid, settings: Settings, job: Job, run_config: Mapping[str, Any] | None = None
) -> Statistics:
    """Statistics of the clients' columns, also in the run's folder, with the constants of a schema.

    Args:
        grid: Flower's grid.
        settings: number of clients, folder, how long is waited for whom.
        job: it names the columns and the minimums.
        run_config: the configuration of Flower's run, which clients of a sum compare; None for nothing.

    Raises:
        InvalidInput: the folder cannot be used.
        Unavailable: fewer nodes than the quorum, or no client that replies.
    """
    folder = Path(settings.out)
    with job_folder(folder), watched_engine(grid):
        found = _summed(grid, settings, job, run_config or {}) if job.secure else _asked(grid, settings, job)
        for line in summary_lines(found):
            say(line)
        write_atomically(folder / SCHEMA_FILE, found.schema())
        write_atomically(folder / STATISTICS_FILE, statistics_json(found))
        return found


def _summed(grid: Grid, settings: Settings, job: Job, run_config: Mapping[str, Any]) -> Statistics:
    """Statistics from sums, of which the server sees no client's part."""
    clients = SummedColumns(grid, settings, Path(settings.out), run_config)
    rounds = Rounds(job.columns, job.minimum, clients.names)
    while not rounds.are_over:
        rounds.add_sums(clients.ask(rounds))
    return rounds.result()


def _asked(grid: Grid, settings: Settings, job: Job) -> Statistics:
    """Statistics from each client's replies."""
    asked = NodesAsked(grid, settings)
    asked.wait_for_quorum()
    rounds = Rounds(job.columns, job.minimum, asked.names)
    while not rounds.are_over:
        replies = asked.ask(rounds)
        if not replies:
            raise Unavailable(f"no client replies about its columns; {asked.last_refusal}")
        rounds.add(replies)
    return rounds.result()


class NodesAsked:
    """The nodes that are asked in every round: those that have replied in each round so far.

    A node says in its reply which client it is; it needs no model for that.

    Args:
        grid: Flower's grid.
        settings: number of clients, and how long is waited for whom.

    Attributes:
        names: what each client is called.
        last_refusal: of whom no reply counts, and why.
    """

    last_refusal = ""

    def __init__(self, grid: Grid, settings: Settings) -> None:
        self._grid, self._settings = grid, settings
        self._mailbox, self.names = Mailbox(grid), SiteNames()
        self._nodes: dict[int, int | None] = {}  # node -> client, None before it has said so
        self._round = 0

    def wait_for_quorum(self) -> None:
        """Wait until enough nodes are connected.

        Raises:
            Unavailable: they are not by the deadline.
        """
        settings = self._settings
        quorum, deadline = settings.quorum or settings.population, time.monotonic() + settings.connect_seconds
        polling = Polling()
        while len(nodes := list(self._grid.get_node_ids())) < quorum:
            if time.monotonic() >= deadline:
                advice = missing_clients_advice(self._grid, settings.population)
                raise Unavailable(
                    f"{len(nodes)} of {quorum} clients connected within {settings.connect_seconds:g} s: {advice}"
                )
            polling.pause(deadline - time.monotonic())
        self._nodes = dict.fromkeys(sorted(nodes))

    def ask(self, rounds: Rounds) -> Mapping[int, Replies]:
        """The replies of a round, by client; nodes without one are not asked again, and noted."""
        self._round += 1
        seconds = self._settings.round_seconds
        group, ttl = str(self._round), seconds + MARGIN
        messages = {}
        for node in self._nodes:  # a record each: Flower may keep what it is given
            record = request_record(rounds.requests, rounds.all_columns)
            messages[node] = Message(record, node, f"query.{ACTION}", group_id=group, ttl=ttl)
        replies: dict[int, Replies] = {}
        for node in self._mailbox.send(messages):
            self._drop(node, "the request could not be sent", rounds)
        deadline, polling = time.monotonic() + seconds, Polling()
        while self._mailbox.waiting and len(replies) < self._settings.population:
            for node, answer in self._mailbox.collect():
                polling.has_arrived()
                self._take(node, answer, replies, rounds)
            if not self._mailbox.waiting or time.monotonic() >= deadline:
                break
            polling.pause(deadline - time.monotonic())
        for node in self._mailbox.waiting:
            if len(replies) < self._settings.population:
                self._drop(node, f"no reply within {seconds:g} s", rounds)
            else:  # a node that died lately, and is on Flower's list still
                del self._nodes[node]
        self._mailbox.close(ttl)
        return replies

    def _take(self, node: int, answer: RecordDict | str, replies: dict[int, Replies], rounds: Rounds) -> None:
        try:
            if isinstance(answer, str):
                raise InvalidInput(answer)
            reply = read_reply(answer, self._settings.population)
            self._check_client(node, reply)
            replies[reply.client] = reply.columns
        except InvalidInput as error:
            self._drop(node, str(error), rounds)

    def _check_client(self, node: int, reply: ClientReply) -> None:
        """Raise `InvalidInput` unless the node is the one client that it says, in every round."""
        known = self._nodes[node]
        if known is not None and known != reply.client:
            raise InvalidInput(f"it is client {reply.client} now, and was client {known} before")
        if reply.client in [client for other, client in self._nodes.items() if other != node]:
            raise InvalidInput(f"another node is client {reply.client}: give each node its own client-id")
        if known is None:
            self._nodes[node] = reply.client
            if conflict := self.names.assign(reply.client, reply.site):
                say(f"client {reply.client} keeps its number: {conflict}")

    def _drop(self, node: int, reason: str, rounds: Rounds) -> None:
        client = self._nodes.pop(node)
        who = "a node" if client is None else self.names(client)
        self.last_refusal = f"{who}: {reason}"
        rounds.note(self.last_refusal)
        say(f"{who} does not count: {reason}")
