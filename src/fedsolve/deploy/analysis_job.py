"""The job `analysis`: sums over the rows of all nodes, round after round, for a model or a curve with its errors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedsolve.config.signatures import fits
from fedsolve.core.errors import InvalidInput, Unavailable
from fedsolve.data.column_replies import Describe
from fedsolve.data.column_statistics import Minimum
from fedsolve.data.schema import Schema
from fedsolve.deploy.client.secure_sums import SumOrder
from fedsolve.deploy.codec import Expected, record_to_reply, record_to_request, to_record
from fedsolve.deploy.column_records import REPLY_BYTES, MaskedColumns
from fedsolve.deploy.evaluation_job import ANALYSIS_FILE, job_folder
from fedsolve.deploy.exchange import ask, watched_engine
from fedsolve.deploy.message import Fact, Part, Payload
from fedsolve.deploy.run_log import say
from fedsolve.deploy.sanitize import about_request
from fedsolve.deploy.secure.sums import Counts
from fedsolve.deploy.server.settings import Settings
from fedsolve.deploy.site_names import SiteNames, check_site
from fedsolve.deploy.statistics_job import (
    AllowedColumns,
    OpenedSums,
    plain_statistics,
    refusals,
    wait_for_quorum,
)
from fedsolve.folders.files import write_atomically
from fedsolve.folders.sealed import sealed
from fedsolve.folders.untrusted import loads
from fedsolve.results.columns import dumps
from fedsolve.stats.hazards import CoxRequest
from fedsolve.stats.linear_models import GlmRequest
from fedsolve.stats.questions import (
    Question,
    SitesChanged,
    SiteTable,
    Sums,
    added,
    check_sums,
    found_levels,
    left_words,
    who_takes_part,
)
from fedsolve.stats.survival import SurvivalRequest

ACTION = "analysis"
"""By which Flower calls the client app's handler: messages are of the type `query.analysis`."""
REQUESTS: dict[str, Any] = {"glm": GlmRequest, "cox": CoxRequest, "kaplan_meier": SurvivalRequest}
_REFUSED = "refused: "  # how a client's refusal begins
_DIGIT = 50  # bits of a word of a sum
_POINT = 80  # bits after the point
_WORDS = 3


def request_json(kind: str, request: Any) -> str:
    """An analysis as the text of a run's configuration, without apostrophes, between which Flower is given it."""
    words = {f.name: getattr(request, f.name) for f in fields(request)}
    return json.dumps({kind: words}).replace("'", "\\u0027")


def read_request(text: str) -> tuple[str, Any]:
    """The kind of an analysis and what is asked; `InvalidInput` for text that is none."""
    said = loads(text)
    if not isinstance(said, dict) or len(said) != 1 or (kind := next(iter(said))) not in REQUESTS:
        raise InvalidInput(f"analysis = {text[:80]!r} must be one of {', '.join(REQUESTS)}, with its words")
    hints, words = get_type_hints(REQUESTS[kind]), said[kind]
    if not isinstance(words, dict) or set(words) - set(hints):
        raise InvalidInput(f"analysis = {text[:80]!r} has words that {kind} does not know")
    held = {name: tuple(word) if isinstance(word, list) else word for name, word in words.items()}
    for name, word in held.items():
        if not fits(
            word, hints[name], lambda x, cls: cls is Any or type(x) in (cls, int if cls is float else cls)
        ):
            raise InvalidInput(f"analysis: {name} = {str(word)[:80]!r} is of another type")
    return kind, REQUESTS[kind](**held)


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


def _joined(question: Question, sums: Sums) -> np.ndarray:
    return np.concatenate([sums[name].ravel() for name in question.shapes()])


def _separate(question: Question, numbers: np.ndarray) -> Sums:
    shapes = question.shapes()
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    if len(numbers) != ends[-1]:
        raise InvalidInput(f"it has {len(numbers)} numbers where {ends[-1]} are asked for")
    parts = np.split(numbers, ends[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


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
    allowed: AllowedColumns, node: Any, folder: Path, record: RecordDict, log: Callable[[str], None]
) -> RecordDict:
    """Sums over the rows of a node's columns, masked where the request is for a sum of all clients."""
    with about_request():
        request = record_to_request(SumsRequest, record)
        question, masks = request.question, request.masks
        if allowed.columns_of is None or request.kind not in allowed.analyses:
            raise InvalidInput(
                f"no analysis {request.kind!r} is allowed here: its owner may add it to analyses= of client_app"
            )
        if masks is None and allowed.sums.min_sum is not None:
            raise InvalidInput(
                f"this client allows sums of at least {allowed.sums.min_sum} clients alone (min_sum): ask with "
                "--secure"
            )
        if question.ANALYSIS not in ("", request.kind):
            raise InvalidInput(f"the question is none of the analysis {request.kind!r}")
        order = None
        if masks is not None:
            digest = question_digest(question, node.run_config)
            order = SumOrder(request.experiment, node.client, "statistics", None, digest, masks)
            allowed.sums.check_order(folder, order, log)
        is_new = allowed.count_round(folder / f"client-{node.client}-asked", question.columns)
    if is_new:
        log(f"sums for {request.kind} are asked of {', '.join(question.columns)}")
    columns = allowed.columns_of(node)
    if not isinstance(columns, Mapping):
        raise InvalidInput("statistics gave no mapping from names to columns")
    table = SiteTable(node.site, columns, allowed.min_rows)
    numbers = _joined(question, check_sums(question, question.sums(table)))
    if order is None:
        return to_record(SumsReply(node.client, numbers.astype("<f8").tobytes(), node.site))
    words = to_words(numbers)
    masked = allowed.sums.mask(folder, order, words.astype("<i8").tobytes(), Counts(0, len(words)), log)
    return to_record(MaskedColumns(node.client, masked))


def question_digest(question: Question, run_config: Mapping[str, Any]) -> bytes:
    """What every client of a sum is asked about its rows, in 32 bytes."""
    asked = [question.to_json(), json.dumps(dict(run_config), sort_keys=True)]
    return hashlib.sha256(json.dumps(asked).encode()).digest()


# The sites of a federation, as an analysis asks them.


class PlainSites:
    """Nodes whose sums the server reads one by one. Those that answer the first question take part."""

    def __init__(self, grid: Grid, settings: Settings, kind: str, minimum: Minimum) -> None:
        self._grid, self._settings, self._kind, self._minimum = grid, settings, kind, minimum
        self._site_names, self._nodes = SiteNames(), dict[int, int]()  # client -> node
        self.names, self.notes = list[str](), list[str]()

    def levels(self, columns: Mapping[str, bool]) -> dict[str, tuple[str, ...]]:
        """As of `Sites`, from a question about the columns."""
        asked = {name: Describe(is_categorical) for name, is_categorical in columns.items()}
        return found_levels(plain_statistics(self._grid, self._settings, asked, self._minimum), self.notes)

    def sums(self, question: Question) -> Sums:
        """As of `Sites`; a reply that cannot be believed does not count."""
        begun, replies = bool(self._nodes), dict[int, Sums]()
        nodes = list(self._nodes.values()) if begun else wait_for_quorum(self._grid, self._settings)
        clients = dict[int, int]()

        def take(node: int, answer: RecordDict) -> bool:
            reply = record_to_reply(SumsReply, answer, Expected(REPLY_BYTES, facts_bytes=0))
            if not 0 <= reply.client < self._settings.population or reply.client in replies:
                raise InvalidInput(f"client {reply.client} is no client, or another node is it")
            if begun and self._nodes.get(reply.client) != node:
                raise InvalidInput(f"it was another client than {reply.client} before")
            numbers = np.frombuffer(reply.numbers, "<f8")
            replies[reply.client] = check_sums(question, _separate(question, numbers))
            clients[reply.client] = node
            self._site_names.assign(reply.client, reply.site)
            return len(replies) == (len(nodes) if begun else self._settings.population)

        request = SumsRequest(self._kind, question)
        records = {node: to_record(request) for node in nodes}
        found = ask(self._grid, f"query.{ACTION}", records, self._settings.round_seconds, take)
        failed = refusals(found)
        said = {reason.partition(": ")[0]: reason.partition(": ")[2] for reason in failed}
        refused = sum(reason.startswith(_REFUSED) for reason in found.values())
        if begun and len(replies) + refused < len(nodes):
            gone = next(client for client in self._nodes if client not in replies)
            raise Unavailable(left_words(self._site_names(gone), failed[0] if failed else "no answer"))
        if not begun or len(replies) < len(nodes):
            self._nodes = dict(sorted(clients.items()))
            self.names = [self._site_names(client) for client in self._nodes]
            self.notes += who_takes_part(len(replies), said, self._minimum)
            if begun:
                raise SitesChanged
        return added(question, (replies[client] for client in sorted(replies)))


class SecureSites:
    """Nodes of which the server sees sums alone; all that are connected take part."""

    def __init__(
        self,
        grid: Grid,
        settings: Settings,
        kind: str,
        minimum: Minimum,
        schema: Schema | None,
        run_config: Mapping[str, Any],
    ) -> None:
        self._sums, self._kind, self._minimum = OpenedSums(grid, settings), kind, minimum
        self._schema, self._run_config, self._clients = schema, run_config, list[int]()
        self.names = list[str]()

    @property
    def notes(self) -> list[str]:
        """Replies that do not count."""
        return self._sums.notes

    def levels(self, columns: Mapping[str, bool]) -> dict[str, tuple[str, ...]]:
        """As of `Sites`, from the app's schema: categories cannot be added up."""
        schema = self._schema
        known = {} if schema is None else {c.name: c.categories for c in schema.columns if c.categories}
        if schema is not None and schema.classes and isinstance(schema.classes[0], str):
            known[schema.target] = tuple(map(str, schema.classes))
        for name, is_categorical in columns.items():
            if is_categorical and name not in known:
                raise InvalidInput(
                    f"column {name}: under secure sums its categories must be in the app's schema (server_app schema=)"
                )
        return {name: known[name] for name in columns if name in known}

    def sums(self, question: Question) -> Sums:
        """As of `Sites`, to 2^-80."""
        width = _WORDS * sum(int(np.prod(shape)) for shape in question.shapes().values())

        def request(client: int, attempt: Any) -> RecordDict:
            return to_record(SumsRequest(self._kind, question, self._sums.experiment, attempt.order(client)))

        words = self._sums.open(ACTION, width, question_digest(question, self._run_config), request)
        clients = self._sums.clients
        if self._clients and clients != self._clients:
            gone = next(iter(set(self._clients) ^ set(clients)))
            raise Unavailable(left_words(self._sums.names(gone), "it is in one sum and not in another"))
        if not self._clients:
            self._clients, self.names = clients, [self._sums.names(client) for client in clients]
            who_takes_part(len(clients), {}, self._minimum)
        return check_sums(question, _separate(question, from_words(words)))


def analyse(grid: Grid, settings: Settings, job: Any, run_config: Mapping[str, Any] | None = None) -> Any:
    """A model or a curve over the clients' rows, also in the run's folder.

    Args:
        grid: Flower's grid.
        settings: number of clients, folder, how long is waited for whom.
        job: with the analysis, the minimum of clients, and whether its sums are secure.
        run_config: the configuration of Flower's run, which clients of a sum compare; None for nothing.

    Raises:
        InvalidInput: the model has no finite estimate, or a column cannot be used.
        Unavailable: too few clients take part, or one leaves in the middle.
    """
    folder, (kind, request) = Path(settings.out), read_request(job.analysis)
    with job_folder(folder), watched_engine(grid):
        if job.secure:
            sites: Any = SecureSites(grid, settings, kind, job.minimum, settings.schema, run_config or {})
        else:
            sites = PlainSites(grid, settings, kind, job.minimum)
        result = request.fit(sites)
        for line in str(result).splitlines():
            say(line)
        write_atomically(folder / ANALYSIS_FILE, sealed(dumps(result.as_plain())))
        return result
