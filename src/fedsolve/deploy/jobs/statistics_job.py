"""The job `statistics`: all nodes are asked about their columns, once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedsolve.core.errors import InvalidInput, Unavailable
from fedsolve.data.column_statistics.pooled import from_replies
from fedsolve.data.column_statistics.replies import Replies
from fedsolve.data.column_statistics.report import Statistics
from fedsolve.deploy.jobs.column_questions import ask_columns
from fedsolve.deploy.jobs.column_records import read_reply, request_record
from fedsolve.deploy.jobs.job import STATISTICS_FILE, Job, job_folder
from fedsolve.deploy.jobs.secure_statistics import summed_statistics
from fedsolve.deploy.jobs.statistics_file import SCHEMA_FILE, statistics_json, summary_lines
from fedsolve.deploy.nodes.transport import Polling, missing_clients_advice, watched_engine
from fedsolve.deploy.run_log import say
from fedsolve.deploy.server.settings import Settings
from fedsolve.deploy.site_names import SiteNames
from fedsolve.folders.files import write_atomically


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
        found = (
            summed_statistics(grid, settings, job, run_config or {})
            if job.secure
            else _read_statistics(grid, settings, job)
        )
        for line in summary_lines(found):
            say(line)
        write_atomically(folder / SCHEMA_FILE, found.schema())
        write_atomically(folder / STATISTICS_FILE, statistics_json(found))
        return found


def _read_statistics(grid: Grid, settings: Settings, job: Job) -> Statistics:
    """Statistics from each client's replies; a node says in its reply which client it is."""
    names = SiteNames()
    replies: dict[int, Replies] = {}

    def take(node: int, answer: RecordDict) -> bool:
        reply = read_reply(answer, settings.population)
        if reply.client in replies:
            raise InvalidInput(f"another node is client {reply.client}: give each node its own client-id")
        replies[reply.client] = reply.columns
        if conflict := names.assign(reply.client, reply.site):
            say(f"client {reply.client} keeps its number: {conflict}")
        return len(replies) == settings.population

    records = {node: request_record(job.columns) for node in _wait_for_quorum(grid, settings)}
    notes = []
    for reason in ask_columns(grid, records, settings.round_seconds, take).values():
        notes.append(f"a node: {reason}")
        say(f"a node does not count: {reason}")
    if not replies:
        raise Unavailable(f"no client replies about its columns; {notes[-1]}")
    return from_replies(job.columns, replies, job.minimum, notes, names)


def _wait_for_quorum(grid: Grid, settings: Settings) -> list[int]:
    """The nodes that are connected, once they are enough."""
    quorum, deadline = settings.quorum or settings.population, time.monotonic() + settings.connect_seconds
    polling = Polling()
    while len(nodes := list(grid.get_node_ids())) < quorum:
        if time.monotonic() >= deadline:
            advice = missing_clients_advice(grid, settings.population)
            raise Unavailable(
                f"{len(nodes)} of {quorum} clients connected within {settings.connect_seconds:g} s: {advice}"
            )
        polling.pause(deadline - time.monotonic())
    return sorted(nodes)
