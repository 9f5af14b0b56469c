"""The job `statistics`: all nodes are asked about their columns once, plainly or under secure sums."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedsolve.core.errors import InvalidInput, Unavailable, check_integer, check_known, of_type, shown
from fedsolve.data.column_replies import Refused, Replies, Request, join_bins, replies_to
from fedsolve.data.column_statistics import (
    MOST_CLIENTS,
    CategoryStatistics,
    Minimum,
    NumberStatistics,
    Statistics,
    check_summable,
    from_numbers,
    from_replies,
    from_sums,
    to_numbers,
    width,
)
from fedsolve.data.schema import Schema
from fedsolve.deploy.client.secure_sums import LEAST_SUM, SecureSums, SumOrder
from fedsolve.deploy.client.state import PrivacyBudget
from fedsolve.deploy.codec import Expected, record_to_reply, record_to_request, to_record
from fedsolve.deploy.column_records import (
    ACTION,
    REPLY_BYTES,
    ColumnsReply,
    ColumnsRequest,
    MaskedColumns,
    asked_digest,
    columns_json,
)
from fedsolve.deploy.evaluation_job import Job
from fedsolve.deploy.exchange import ask, countdown, missing_clients_advice, polls
from fedsolve.deploy.message import Payload
from fedsolve.deploy.registry import ClientRegistry
from fedsolve.deploy.run_log import say
from fedsolve.deploy.sanitize import about_request, without_folders
from fedsolve.deploy.secure.primitives import RoundIsOver, SumNotOpened
from fedsolve.deploy.secure.rounds import SecureSession
from fedsolve.deploy.secure.sums import Counts
from fedsolve.deploy.server.settings import Settings
from fedsolve.deploy.site_names import SiteNames
from fedsolve.deploy.status import ClientStatuses
from fedsolve.folders.files import locked, write_atomically
from fedsolve.folders.sealed import LARGEST, sealed, unsealed_values
from fedsolve.folders.untrusted import MALFORMED, loads, read_bytes
from fedsolve.results.columns import dumps
from fedsolve.stats.estimates import Summary, number_text
from fedsolve.stats.questions import from_fields

T = TypeVar("T")
Log = Callable[[str], None]

# Statistics as a file of a run's folder, and in words.


SCHEMA_FILE = "schema.toml"
"""The constants of the columns, in the folder of their run."""
QUARTILES = (0.25, 0.5, 0.75)
_SHOWN = 8  # categories in a line
_REFUSED = "refused: "  # how a client's refusal begins
NAMELESS = "a node: "
"""How the reason begins of a node that does not say who it is."""


def statistics_document(found: Statistics) -> dict[str, Any]:
    columns = {name: vars(column) for name, column in found.columns.items()}
    return {"columns": columns, "unreported": dict(found.unreported), "notes": found.notes}


def statistics_json(found: Statistics) -> str:
    return sealed(dumps(statistics_document(found), 1))


def read_statistics(path: Path) -> Statistics:
    try:
        data, _ = unsealed_values(path, read_bytes(path, LARGEST, follow=False))
        columns = {
            name: from_fields(CategoryStatistics if "other" in values else NumberStatistics, values)
            for name, values in data["columns"].items()
        }
        return Statistics(columns, dict(data["unreported"]), tuple(data["notes"]))
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    except InvalidInput:
        raise
    except MALFORMED as error:
        raise InvalidInput(f"{path} is not a file of statistics, or is damaged: {error!r}") from None


def statistics_lines(found: Statistics) -> list[str]:
    """A table of the columns of numbers, and a line for each other column and for each reply that does not count."""
    has_quartiles = any(getattr(column, "edges", ()) for column in found.columns.values())
    heads = ["column", "clients", "rows", "missing", "mean", "standard deviation", "from", "to"]
    heads += ["25 %", "median", "75 %", "±"] if has_quartiles else []
    rows, lines = [], list[str]()
    for name, column in found.columns.items():
        if isinstance(column, NumberStatistics):
            counts = (column.clients, column.rows, column.missing)
            numbers = (column.mean, column.standard_deviation, column.minimum, column.maximum)
            quartiles = _quartiles(column) if has_quartiles else []
            rows.append([name, *(f"{n:,}" for n in counts), *map(number_text, numbers), *quartiles])
        else:
            of = f"{name}: {column.rows:,} rows of {column.clients} clients, {column.missing:,} missing; "
            shown = [f"{text} {n:,}" for text, n in list(column.counts.items())[:_SHOWN]]
            shown += [f"{left} more categories"] if (left := len(column.counts) - len(shown)) > 0 else []
            lines.append(of + ", ".join([*shown, *([f"others {column.other:,}"] if column.other else [])]))
    lines += [f"{name} is not reported: {why}" for name, why in found.unreported.items()]
    lines += [f"note: {note}" for note in found.notes]
    return [*(repr(Summary("", heads, rows)).strip("\n").splitlines() if rows else ()), *lines]


def _quartiles(column: NumberStatistics) -> list[str]:
    # the three and how far they can be off; '-' where no range was given
    if not column.edges:
        return ["-"] * 4
    texts, errors = list[str](), list[float]()
    for low, high, (value, error) in ((*column.quantile_bounds(p), column.quantile(p)) for p in QUARTILES):
        ends = [f"below {high:g}"] * math.isfinite(high) + [f"above {low:g}"] * math.isfinite(low)
        texts.append(number_text(value) if len(ends) == 2 else "".join(ends) or "anywhere")
        errors.append(error)
    return [*texts, number_text(max(filter(math.isfinite, errors), default=math.inf))]


# The columns that a client's owner allows to be asked about.


ANALYSES = ("glm", "cox", "kaplan_meier")
"""Kinds of analyses that a client's owner can allow."""
_ASKED, _ROUNDS = "questions.json", "rounds.json"
_ROUNDS_OF_A_QUESTION = 50  # of sums over rows, for a model or a curve
_LARGEST = 2**22  # bytes of it


@dataclass(frozen=True)
class AllowedColumns:
    """What a client replies about its columns."""

    # node -> the columns, by name; None where statistics are not allowed
    columns_of: Callable[[Any], Mapping[str, Any]] | None
    min_rows: int  # rows with a value that a column must have, at least 1
    budget: PrivacyBudget  # the noise that the owner demands, which statistics have none of
    sums: SecureSums  # the client's part in secure sums
    # about a column that are answered, at least 1, counted over all experiments in a file of the node
    max_questions: int
    analyses: Collection[str] = ()  # kinds of models and curves that sums over the columns' rows may be for

    def __post_init__(self) -> None:
        check_integer("min_rows", self.min_rows, 1)
        check_integer("max_questions", self.max_questions, 1)
        if not isinstance(self.analyses, list | tuple | set | frozenset):
            raise InvalidInput(f"analyses = {shown(self.analyses)} must be a list, such as ('glm', 'cox')")
        for name in self.analyses:
            check_known("analysis", name, ANALYSES)
        if self.analyses and self.columns_of is None:
            raise InvalidInput("analyses are of the columns that statistics gives: give statistics, too")
        if self.columns_of is not None and (bound := self.budget.bound):
            raise InvalidInput(f"give statistics or {bound}, not both: statistics have no noise")
        if self.columns_of is not None and not callable(self.columns_of):
            raise InvalidInput(f"statistics = {shown(self.columns_of)} must be a function of the node")

    def reply(self, node: Any, folder: Path, record: RecordDict, log: Log) -> RecordDict:
        """Sums and counts over the rows of a node's columns, masked where the request is for a sum of all clients."""
        with about_request():
            if self.columns_of is None:
                raise InvalidInput("no statistics are allowed here: its client_app has no statistics=")
            request = record_to_request(ColumnsRequest, record)
            requests, is_masked = request.columns, request.masks is not None
            summed = check_summable(requests) if is_masked else {}
            order = self.order(node, folder, request, columns_json(requests), log)
        log(f"sums and counts are asked of {', '.join(requests) or 'all columns'}")
        columns = self.columns(node)
        replies = {  # of a refusal files are named, and no folders
            name: Refused(without_folders(r.reason)) if isinstance(r, Refused) else r
            for name, r in replies_to(requests, columns, self.min_rows, log).items()
        }
        # Columns that there are not are not counted: what nobody has tells nothing.
        known = set(map(str, columns)) & replies.keys()
        with about_request():
            over = self._asked_too_often(folder / f"client-{node.client}-asked", known)
            if over and is_masked:
                raise InvalidInput(f"column {min(over)}: {self._refused.reason}")
        replies |= dict.fromkeys(over, self._refused)
        if order is not None:
            return self.masked(node, folder, order, to_numbers(summed, replies), log)
        return to_record(ColumnsReply(node.client, join_bins(replies, self.min_rows), node.site))

    def order(self, node: Any, folder: Path, request: Any, asked: str, log: Log) -> SumOrder | None:
        # what the reply to a request that asks this is masked by, None where it is read
        if request.masks is None:
            if self.sums.min_sum is not None:
                least = f"it allows sums of at least {self.sums.min_sum} clients alone (min_sum)"
                raise InvalidInput(f"{least}: ask with --secure")
            return None
        digest = asked_digest(asked, node.run_config)
        order = SumOrder(request.experiment, node.client, "statistics", None, digest, request.masks)
        self.sums.check_order(folder, order, log)
        return order

    def columns(self, node: Any) -> Mapping[str, Any]:
        assert self.columns_of is not None
        columns = self.columns_of(node)
        if not isinstance(columns, Mapping):
            raise InvalidInput(f"statistics gave {of_type(columns)}: give a mapping from names to columns")
        return columns

    def masked(self, node: Any, folder: Path, order: SumOrder, numbers: np.ndarray, log: Log) -> RecordDict:
        words = numbers.astype("<i8").tobytes()
        masked = self.sums.mask(folder, order, words, Counts(0, len(numbers)), log)
        return to_record(MaskedColumns(node.client, masked))

    @property
    def _refused(self) -> Refused:
        often = f"{self.max_questions} times, as often as its owner allows (max_questions)"
        return Refused(f"it was asked about {often}")

    def _asked_too_often(self, folder: Path, names: Collection[str]) -> set[str]:
        # Count a question about each column before it is answered; those with too many before.
        with locked(folder):
            asked = _counts(folder / _ASKED)
            over = {name for name in names if asked.get(name, 0) >= self.max_questions}
            # Counted before it is answered: a client that is killed in between has answered.
            asked |= {name: asked.get(name, 0) + 1 for name in names if name not in over}
            write_atomically(folder / _ASKED, json.dumps(asked), private=True)
        return over

    def count_round(self, folder: Path, columns: Collection[str]) -> bool:
        # of sums over these columns; whether a question pays for it, `InvalidInput` if it is one too many
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            rounds, key = _counts(folder / _ROUNDS), ", ".join(sorted(columns))
            is_first = rounds.get(key, 0) % _ROUNDS_OF_A_QUESTION == 0
            rounds[key] = rounds.get(key, 0) + 1
            write_atomically(folder / _ROUNDS, json.dumps(rounds), private=True)
        if is_first and (over := self._asked_too_often(folder, columns)):
            raise InvalidInput(f"column {min(over)}: {self._refused.reason}")
        return is_first


def _counts(path: Path) -> dict[str, int]:
    try:
        asked = loads(read_bytes(path, _LARGEST)) if path.exists() else {}
        return {name: int(count) for name, count in asked.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        lost = "how often columns were asked about is not known: restore the file"
        raise InvalidInput(f"{path} is damaged, and {lost}") from None


# The job `statistics` under secure sums: clients enrol, and the sum of their replies is opened.


_ATTEMPTS = 4


class OpenedSums:
    """The server's side of secure sums of what clients reply to questions; `Unavailable` if one is missing."""

    def __init__(self, grid: Grid, settings: Settings) -> None:
        population = settings.population
        if not LEAST_SUM <= population <= MOST_CLIENTS:
            raise InvalidInput(f"sums are of {LEAST_SUM} to {MOST_CLIENTS:,} clients, not {population}")
        self._grid, self._settings = grid, settings
        self.experiment, self.notes = f"statistics-{secrets.token_hex(4)}", list[str]()
        statuses = ClientStatuses(population)
        self._registry = ClientRegistry(grid, settings, self.experiment, None, statuses, say)
        self._session = SecureSession(grid, settings, self._registry, self.experiment, say)
        self._session.load_or_enrol()
        self.clients: list[int] = []  # of the last sum
        self.names, self._sums = self._registry.names, 0

    def open(
        self, action: str, numbers: int, asked: bytes, request: Callable[[int, Any], RecordDict]
    ) -> np.ndarray:
        """A sum of int64, shape (numbers,), of all connected clients (`clients`); `Unavailable` if too few reply.

        `request` is (client, attempt) -> what it is sent. Clients that are asked something else than `asked`, a digest,
        have masks that cancel with nobody's.
        """
        for tries in range(1, _ATTEMPTS + 1):
            connected = self._registry.poll()
            clients = self._session.ready(sorted(connected))
            if len(clients) < LEAST_SUM:
                advice = missing_clients_advice(self._grid, LEAST_SUM)
                raise Unavailable(f"{len(clients)} clients are connected: {advice}")
            attempt = self._session.begin("statistics", self._sums, clients, 0, numbers, asked)
            at = {connected[client]: client for client in clients}
            records = {node: request(client, attempt) for node, client in at.items()}
            add, seconds = partial(_add_reply, attempt, at), self._settings.round_seconds
            failed = ask(self._grid, f"query.{action}", records, seconds, add)
            refused = []
            for node, reason in failed.items():
                who = self.names(at[node])
                refused.append(f"{who}: {reason.replace(f'{_REFUSED}{who}: ', _REFUSED)}")
                say(f"does not count: {refused[-1]}")
            self.notes += refused
            try:
                opened = self._session.open(attempt)
            except SumNotOpened as error:  # without those at fault it is tried again
                words = "; ".join([f"no sum of the columns: {error}", *refused[:1]])
                can_change = error.at_fault or error.disputes or error.unwilling
                if tries == _ATTEMPTS or not can_change or isinstance(error, RoundIsOver):
                    raise Unavailable(words) from None
                self.notes.append(words)
                say(f"{words}: the others are asked again")
                continue
            self._sums, self.clients = self._sums + 1, sorted(opened.clients)
            return np.frombuffer(opened.words, "<i8")
        raise AssertionError("the last attempt opens a sum or says why not")


def _add_reply(attempt: Any, clients: Mapping[int, int], node: int, answer: RecordDict) -> bool:
    # Add a client's masked reply to the sum; all that are asked are waited for.
    reply = record_to_reply(MaskedColumns, answer, Expected(REPLY_BYTES, facts_bytes=0))
    if reply.client != clients[node]:
        raise InvalidInput("it is of another client")
    attempt.add(reply.client, reply.masks)
    return False


def summed_statistics(grid: Grid, settings: Settings, job: Job, run_config: Mapping[str, Any]) -> Statistics:
    # from the sum of the clients' replies, of which the server sees no client's part
    requests, sums = check_summable(job.columns), OpenedSums(grid, settings)

    def request(client: int, attempt: Any) -> RecordDict:
        return to_record(ColumnsRequest(requests, sums.experiment, attempt.order(client)))

    numbers = sums.open(ACTION, width(requests), asked_digest(columns_json(requests), run_config), request)
    found = from_numbers(requests, numbers, len(sums.clients))
    return from_sums(requests, found, len(sums.clients), job.minimum, sums.notes)


def statistics(grid: Grid, settings: Settings, job: Job, run_config: Mapping[str, Any]) -> Statistics:
    """Statistics of the clients' columns, with notes on the app's schema; `Unavailable` if too few clients reply."""
    if job.secure:
        found = summed_statistics(grid, settings, job, run_config)
    else:
        found = plain_statistics(grid, settings, job.columns, job.minimum)
    return replace(found, notes=(*_notes_on_schema(settings.schema, found), *found.notes))


def _notes_on_schema(schema: Schema | None, found: Statistics) -> Iterator[str]:
    # what a table does not show: in which scale its numbers are, and categories that the sites have not agreed on
    for column in schema.columns if schema else ():
        result = found.columns.get(column.name)
        if isinstance(result, NumberStatistics) and column.log:
            yield f"column {column.name}: its numbers and its range are those after {column.log}"
        if isinstance(result, CategoryStatistics) and column.categories:
            new = [f"{text} ({n:,})" for text, n in result.counts.items() if text not in column.categories]
            if new:
                yield f"column {column.name}: categories not in the schema, or misspelt: {', '.join(new[:_SHOWN])}"


def plain_statistics(
    grid: Grid, settings: Settings, columns: Mapping[str, Request], minimum: Minimum
) -> Statistics:
    # a node says in its reply which client it is
    names = SiteNames()

    def read(node: int, reply: ColumnsReply) -> Replies:
        if conflict := names.assign(reply.client, reply.site):
            say(f"client {reply.client} keeps its number: {conflict}")
        return reply.columns

    found, notes = ask_clients(grid, settings, ACTION, ColumnsRequest(columns), (ColumnsReply, read))
    if not found:
        raise Unavailable(f"no client replies about its columns; {notes[-1]}")
    replies = {client: reply for client, (_, reply) in found.items()}
    return from_replies(columns, replies, minimum, notes, names)


def ask_clients(
    grid: Grid,
    settings: Settings,
    action: str,
    request: Payload,
    kind_and_read: tuple[type[Any], Callable[[int, Any], T]],
    nodes: Sequence[int] = (),
) -> tuple[dict[int, tuple[int, T]], list[str]]:
    """Of each client that replies, by number, its node and what its reply says, and why others' do not count."""
    # `kind_and_read` are the class of a reply, and (node, reply) -> what it says. All nodes are asked unless `nodes`
    # are given, once enough are connected (`Unavailable`).
    (kind, read), population, replies = kind_and_read, settings.population, dict[int, tuple[int, T]]()

    def take(node: int, answer: RecordDict) -> bool:
        reply = record_to_reply(kind, answer, Expected(REPLY_BYTES, facts_bytes=0))
        if not 0 <= reply.client < population:
            raise InvalidInput(f"client {reply.client} is none of the {population} clients, numbered from 0")
        if reply.client in replies:
            raise InvalidInput(f"another node is client {reply.client}: give each node its own client-id")
        replies[reply.client] = node, read(node, reply)
        return len(replies) == (len(nodes) or population)

    records = {node: to_record(request) for node in nodes or wait_for_quorum(grid, settings)}
    failed = ask(grid, f"query.{action}", records, settings.round_seconds, take)
    return dict(sorted(replies.items())), refusals(failed)


def refusals(failed: Mapping[int, str]) -> list[str]:
    """Why replies of nodes do not count, each said in the log: it begins with the name of the site, if it says one."""
    notes = []
    for reason in failed.values():
        own = reason.removeprefix(_REFUSED)
        notes.append(f"{'' if own != reason else NAMELESS}{own}")
        say(f"does not count: {notes[-1]}")
    return notes


def wait_for_quorum(grid: Grid, settings: Settings) -> list[int]:
    """The nodes that are connected, once they are enough; each says in its reply who it is."""
    quorum, nodes = settings.quorum or settings.population, list[int]()
    for _ in polls(countdown(settings.connect_seconds)):
        if len(nodes := list(grid.get_node_ids())) >= quorum:
            return sorted(nodes)
    raise Unavailable(
        f"{len(nodes)} of {quorum} clients connected within {settings.connect_seconds:g} s: "
        f"{missing_clients_advice(grid, settings.population)}"
    )
