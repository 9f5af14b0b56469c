"""The job `analysis`: sums over the rows of all nodes, round after round, for a model or a curve with its errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedsolve.core.errors import InvalidInput, Unavailable
from fedsolve.data.column_replies import Describe
from fedsolve.data.column_statistics import Minimum
from fedsolve.deploy.codec import record_to_request, to_record
from fedsolve.deploy.column_records import asked_digest
from fedsolve.deploy.evaluation_job import ANALYSIS_FILE, STATISTICS, STATISTICS_FILE, Job, job_folder
from fedsolve.deploy.exchange import watched_engine
from fedsolve.deploy.message import Fact, Part, Payload
from fedsolve.deploy.run_log import say
from fedsolve.deploy.sanitize import about_request
from fedsolve.deploy.server.settings import Settings
from fedsolve.deploy.site_names import SiteNames, check_site
from fedsolve.deploy.statistics_job import (
    NAMELESS,
    SCHEMA_FILE,
    AllowedColumns,
    Log,
    OpenedSums,
    ask_clients,
    plain_statistics,
    statistics,
    statistics_json,
    statistics_lines,
)
from fedsolve.folders.files import write_atomically
from fedsolve.folders.sealed import sealed
from fedsolve.results.columns import dumps
from fedsolve.stats.questions import Question, Request, Sites, SiteTable, Sums, found_levels, who_takes_part

ACTION = "analysis"
"""By which Flower calls the client app's handler: messages are of the type `query.analysis`."""
_DIGIT = 50  # bits of a word of a sum
_POINT = 80  # bits after the point
_WORDS = 3


# Questions and their sums on the wire.


@dataclass(frozen=True)
class SumsRequest(Payload):
    """What is asked of every client; `experiment` and `masks` are of secure sums, '' and None without."""

    NAME = "request"
    kind: str = field(metadata={"travels": Fact(str)})
    question: Question = field(metadata={"travels": Fact(str, Question.to_json, Question.from_json)})
    experiment: str = field(default="", metadata={"travels": Fact(str, is_optional=True)})
    masks: bytes | None = field(default=None, metadata={"travels": Part.OPTIONAL_BYTES})


@dataclass(frozen=True)
class SumsReply(Payload):
    """A client's sums, float64 one behind another in the order of the question's shapes, and who it is."""

    NAME, LABEL = "sums", "reply"
    client: int = field(metadata={"travels": Fact(int)})
    numbers: bytes = field(metadata={"travels": Part.BYTES})
    site: str = field(default="", metadata={"travels": Fact(str, read=check_site, is_optional=True)})


def _separate(question: Question, numbers: np.ndarray) -> Sums:
    if len(numbers) != _width(question):
        raise InvalidInput(f"it has {len(numbers)} numbers where {_width(question)} are asked for")
    sums, start = Sums(), 0
    for name, shape in question.shapes.items():
        size = math.prod(shape)
        sums[name] = numbers[start : start + size].reshape(shape)
        start += size
    return question.check(sums)


def _width(question: Question) -> int:
    return sum(map(math.prod, question.shapes.values()))


def to_words(numbers: np.ndarray) -> np.ndarray:
    """Numbers below 2^70 in fixed point to 2^-80, as int64 words that add up, shape (3 numbers,)."""
    words = []
    for number in numbers.tolist():
        mantissa, scale = number.as_integer_ratio()
        whole = (mantissa << _POINT) // scale
        for _ in range(_WORDS - 1):
            whole, digit = divmod(whole, 1 << _DIGIT)
            words.append(digit)
        words.append(whole)
    return np.array(words, np.int64)


def from_words(words: np.ndarray) -> np.ndarray:
    """The numbers of sums of such words, float64, shape (words / 3,)."""
    values = []
    for digits in words.reshape(-1, _WORDS).tolist():
        whole = sum(digit << (_DIGIT * i) for i, digit in enumerate(digits))
        values.append(whole / (1 << _POINT))
    return np.array(values, np.float64)


# A client's reply.


def reply_to_question(
    allowed: AllowedColumns, node: Any, folder: Path, record: RecordDict, log: Log
) -> RecordDict:
    """Sums over the rows of a node's columns, masked where the request is for a sum of all clients."""
    with about_request():
        request = record_to_request(SumsRequest, record)
        question: Question = request.question
        if allowed.columns_of is None or request.kind not in allowed.analyses:
            raise InvalidInput(
                f"no analysis {request.kind!r} is allowed here: its owner may add it (analyses=)"
            )
        if question.ANALYSIS not in ("", request.kind):
            raise InvalidInput(f"the question is none of the analysis {request.kind!r}")
        order = allowed.order(node, folder, request, question.to_json(), log)
        is_new = allowed.count_round(folder / f"client-{node.client}-asked", question.columns)
    if is_new:
        log(f"sums for {request.kind} are asked of {', '.join(question.columns)}")
    table = SiteTable(node.site, allowed.columns(node), allowed.min_rows)
    sums = question.check(question.sums(table))
    numbers = np.concatenate([sums[name].ravel() for name in question.shapes])
    if order is not None:
        return allowed.masked(node, folder, order, to_words(numbers), log)
    return to_record(SumsReply(node.client, numbers.astype("<f8").tobytes(), node.site))


# The sites of a federation, as an analysis asks them.


class PlainSites(Sites):
    """Nodes whose sums the server reads one by one. Those that answer the first question take part."""

    def __init__(self, grid: Grid, settings: Settings, kind: str, minimum: Minimum) -> None:
        super().__init__(minimum)
        self._grid, self._settings, self._kind = grid, settings, kind
        self._site_names, self._nodes = SiteNames(), dict[int, int]()  # client -> node

    def levels(self, columns: Mapping[str, bool]) -> dict[str, tuple[str, ...]]:
        # from a question about the columns
        asked = {name: Describe(is_categorical) for name, is_categorical in columns.items()}
        return found_levels(plain_statistics(self._grid, self._settings, asked, self.minimum), self.notes)

    def ask(self, question: Question) -> tuple[dict[str, Sums], dict[str, str]]:
        # a reply that cannot be believed does not count
        def read(node: int, reply: SumsReply) -> Sums:
            if self._nodes and self._nodes.get(reply.client) != node:
                raise InvalidInput(f"it was another client than {reply.client} before")
            sums = _separate(question, np.frombuffer(reply.numbers, "<f8"))
            self._site_names.assign(reply.client, reply.site)
            return sums

        request, nodes = SumsRequest(self._kind, question), list(self._nodes.values())
        found, failed = ask_clients(self._grid, self._settings, ACTION, request, (SumsReply, read), nodes)
        refused = [reason for reason in failed if not reason.startswith(NAMELESS)]
        if nodes and len(found) + len(refused) < len(nodes):
            gone = next(client for client in self._nodes if client not in found)
            raise _has_left(self._site_names(gone), failed[0] if failed else "no answer")
        self._nodes = {client: node for client, (node, _) in found.items()}
        replies = {self._site_names(client): sums for client, (_, sums) in found.items()}
        return replies, {name: why for name, _, why in (reason.partition(": ") for reason in failed)}


class SecureSites(Sites):
    """Nodes of which the server sees sums alone; all that are connected take part."""

    def __init__(
        self, grid: Grid, settings: Settings, kind: str, minimum: Minimum, run_config: Mapping[str, Any]
    ) -> None:
        super().__init__(minimum)
        self._sums, self._kind, self._run_config = OpenedSums(grid, settings), kind, run_config
        self._schema, self._clients, self.notes = settings.schema, list[int](), self._sums.notes

    def levels(self, columns: Mapping[str, bool]) -> dict[str, tuple[str, ...]]:
        # from the app's schema: categories cannot be added up
        schema = self._schema
        known = {} if schema is None else {c.name: c.categories for c in schema.columns if c.categories}
        if schema is not None and schema.classes and isinstance(schema.classes[0], str):
            known[schema.target] = tuple(map(str, schema.classes))
        for name, is_categorical in columns.items():
            if is_categorical and name not in known:
                where = "must be in the app's schema (server_app schema=)"
                raise InvalidInput(f"column {name}: under secure sums its categories {where}")
        return {name: known[name] for name in columns if name in known}

    def sums(self, question: Question) -> Sums:
        # to 2^-80
        def request(client: int, attempt: Any) -> RecordDict:
            return to_record(SumsRequest(self._kind, question, self._sums.experiment, attempt.order(client)))

        digest = asked_digest(question.to_json(), self._run_config)
        words = self._sums.open(ACTION, _WORDS * _width(question), digest, request)
        clients = self._sums.clients
        if self._clients and clients != self._clients:
            gone = next(iter(set(self._clients) ^ set(clients)))
            raise _has_left(self._sums.names(gone), "it is in one sum and not in another")
        self._clients, self.names = clients, [self._sums.names(client) for client in clients]
        who_takes_part(len(clients), {}, self.minimum)
        return self.unchanged(_separate(question, from_words(words)))


def _has_left(name: str, why: str) -> Unavailable:
    rest = "sums without it are of another analysis: begin again"
    return Unavailable(f"{name} left in the middle of the analysis: {why}; {rest}")


def answer_questions(grid: Grid, settings: Settings, job: Job, run_config: Mapping[str, Any]) -> None:
    """Statistics of the clients' columns, or a model or a curve over their rows, into the run's folder."""
    # Clients of a sum compare the configuration of Flower's run, `run_config`. `Unavailable` if too few clients take
    # part, or one leaves in the middle; `InvalidInput` if there is no finite estimate, or a column cannot be used.
    folder = Path(settings.out)
    with job_folder(folder), watched_engine(grid):
        if job.name == STATISTICS:
            found, known = statistics(grid, settings, job, run_config), settings.schema
            lines = statistics_lines(found)
            files = {SCHEMA_FILE: found.schema(known), STATISTICS_FILE: statistics_json(found)}
        else:
            request = Request.from_json(job.analysis)
            about = grid, settings, request.ANALYSIS, job.minimum
            result = request.fit(SecureSites(*about, run_config) if job.secure else PlainSites(*about))
            lines, files = repr(result).splitlines(), {ANALYSIS_FILE: sealed(dumps(result.as_plain()))}
        for line in lines:
            say(line)
        for name, text in files.items():
            write_atomically(folder / name, text)
