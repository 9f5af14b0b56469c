"""What the server knows of its clients and shows in a file: last heard, failures, versions; and the seconds of a round.

It is kept in memory while a run goes on, and in a file of the run's folder (`status_file.py`). Clients have their
numbers here; keys and numbers of nodes are in no status.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, RecordDict
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedsolve.core import __version__
from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.codec import facts_of
from fedsolve.deploy.sanitize import sanitize
from fedsolve.deploy.site_names import LONGEST, SiteNames
from fedsolve.folders.files import write_atomically
from fedsolve.folders.untrusted import read_text

_WORDS = 2000  # characters of a reason
_SHOWN_REFUSALS = 20


class Cause(StrEnum):
    """Why a reply does not count: the categories that metrics have; the reason itself is in words."""

    NOT_CONNECTED = "not_connected"
    NOT_ASKED = "not_asked"  # it left an earlier order without an answer
    NOT_SENT = "not_sent"
    NO_ANSWER = "no_answer"
    FAILED = "failed"  # its process, or Flower on the way
    REFUSED = "refused"  # by the client
    STATE_LOST = "state_lost"
    TOO_LARGE = "too_large"  # not finite, or beyond a bound
    OUTLIER = "outlier"
    INVALID = "invalid"


class Checked(BaseModel):
    """Plain data of exactly these fields and types."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class ClientStatus(Checked):
    """One client."""

    client: int = Field(ge=0)
    site: str = Field(default="", max_length=LONGEST)  # the name that its node gives, '' if none
    # of `fedsolve`, `flwr`, `python` and `framework`, as it reported them; {} before it is heard
    versions: dict[str, str] = Field(default={}, max_length=8)
    connected: bool = False  # whether it was when clients were last looked for
    # when a message of it last came, in seconds since 1970; None for never
    last_heard: float | None = Field(default=None, ge=0)
    # requests that it was sent or due to be sent without a reply that counts
    failures: int = Field(default=0, ge=0)
    consecutive_failures: int = Field(default=0, ge=0)  # of these, those since the last reply that counts
    # last_cause, last_reason: of the last failure; None and '' without one
    last_cause: Cause | None = None
    last_reason: str = Field(default="", max_length=_WORDS)
    # the last round, from 1, in which its update was used; 0 for none. Its state, where the method keeps one on
    # clients, is that after this round.
    last_used_round: int = Field(default=0, ge=0)

    def changed(self, **facts: Any) -> ClientStatus:
        return self.model_copy(update=facts)


class ClientStatuses:
    """The clients of a run while it goes on. Another thread may read them at any time, and waits for nothing.

    Args:
        earlier: what was known of them before the run was resumed.
    """

    hides_cohorts = False  # whether nothing is noted by which somebody could know who took part in a round
    changed: Callable[[], None] = staticmethod(lambda: None)  # called when others are connected or refused

    def __init__(self, population: int, earlier: Iterable[ClientStatus] = ()) -> None:
        self.names, self.refused = SiteNames(), list[str]()
        self.hello_callbacks: list[Callable[[int], None]] = []
        self._clients = {client: ClientStatus(client=client) for client in range(population)}
        for status in earlier:
            if status.client < population:
                self._clients[status.client] = status.changed(connected=False)

    def all(self) -> list[ClientStatus]:
        return list(self._clients.values())

    def on_hello(self, client: int, versions: Mapping[str, str]) -> None:
        self._change(client, versions=dict(versions), last_heard=time.time())
        for told in self.hello_callbacks:
            told(client)

    def on_poll(self, connected: Iterable[int], refused: Iterable[str]) -> None:
        now, before, sites = set(connected), (self.all(), self.refused), self.names.given
        for client, status in self._clients.items():
            site = sites.get(client, "") if client in now else status.site
            if (client in now, site) != (status.connected, status.site):
                self._change(client, connected=client in now, site=site)
        self.refused = sorted(set(refused))[:_SHOWN_REFUSALS]
        if (self.all(), self.refused) != before:
            self.changed()

    def on_message(self, client: int) -> None:
        if not self.hides_cohorts:
            self._change(client, last_heard=time.time())

    def failed(self, client: int, cause: Cause, reason: str) -> None:
        """A reply that was due does not count; who was not asked has not failed once more."""
        # Where cohorts are secret, who failed would tell who was asked.
        if cause is not Cause.NOT_ASKED and not self.hides_cohorts:
            status = self._clients[client]
            self._change(
                client,
                failures=status.failures + 1,
                consecutive_failures=status.consecutive_failures + 1,
                last_cause=cause,
                last_reason=sanitize(reason, _WORDS - len("...")),
            )

    def succeeded(self, clients: Iterable[int]) -> None:
        for client in clients:
            self._change(client, consecutive_failures=0)

    def _change(self, client: int, **facts: Any) -> None:
        self._clients[client] = self._clients[client].changed(**facts)


# The status of a run's clients in a file of its folder, which `fedsolve federate status` reads.


STATUS = "client-status.json"
"""The file, replaced after every round."""
_LARGEST = 2**26  # bytes of it that are read


class FederationStatus(Checked):
    """All clients of one run."""

    experiment: str
    label: str
    keeps_states: bool  # whether the method keeps a state on each client
    round: int = Field(ge=0)
    rounds: int = Field(ge=0)
    time: float = Field(ge=0)  # when this was written, in seconds since 1970
    clients: list[ClientStatus]
    refused: list[str]  # why nodes that are connected are refused, each reason once


class StatusFile:
    """The status of a run's clients in its folder; that it cannot be read or written is told in a line, and no more."""

    def __init__(
        self,
        folder: Path,
        experiment: str,
        label: str,
        rounds: int,
        keeps_states: bool,
        log: Callable[[str], None],
    ) -> None:
        self._path, self._log = folder / STATUS, log
        self._about = {
            "experiment": experiment,
            "label": label,
            "rounds": rounds,
            "keeps_states": keeps_states,
        }

    def restore(self, population: int) -> ClientStatuses:
        """What is known of the run's clients: nothing of them if the file is damaged or of another experiment."""
        try:
            status = read_status(self._path) if self._path.exists() else None
        except InvalidInput as error:
            self._log(f"note: {error}")
            status = None
        # A folder may hold the status of a run before.
        is_same = status is not None and status.experiment == self._about["experiment"]
        return ClientStatuses(population, status.clients if status is not None and is_same else ())

    def save(self, statuses: ClientStatuses, round: int, last_used_round: Iterable[int]) -> None:
        """Replace the file; last used rounds are by client, from 0, -1 for none."""
        clients = [
            status.changed(last_used_round=int(used) + 1)
            for status, used in zip(statuses.all(), last_used_round, strict=True)
        ]
        status = FederationStatus(
            **self._about, round=round, time=time.time(), clients=clients, refused=statuses.refused
        )
        if not self._path.parent.is_dir():  # it was removed during the run, which says so
            return
        try:
            write_atomically(self._path, status.model_dump_json(indent=1) + "\n")
        except InvalidInput as error:
            self._log(f"note: {error}")


def read_status(path: Path) -> FederationStatus:
    try:
        status = FederationStatus.model_validate_json(read_text(path, _LARGEST, follow=False))
        if [one.client for one in status.clients] == list(range(len(status.clients))):
            return status
        what = "clients: their numbers are not 0, 1, ..."
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        what = f"{where}: {first['msg']}" if where else first["msg"]
    except UnicodeDecodeError:
        what = "it is no text"
    except OSError as error:
        what = error.strerror or str(error)
    raise InvalidInput(
        f"{path} is damaged ({sanitize(what)}): remove it, and a run writes it anew after its next round"
    )


# What the seconds of a round are spent on.


PHASES: tuple[str, ...] = ("wait", "orders", "training", "replies", "update", "evaluation", "checkpoint")
"""Waiting for nodes; encoding and sending orders; waiting for replies; checking them; updating the model, and all that
belongs to no other phase; evaluating the model; saving the state."""


class PhaseClock:
    """The seconds of a round by phase. Each moment belongs to one phase, so that they add up to the round's."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self.begin()

    def begin(self) -> None:
        self._seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self._phase, self._since = "update", self._now()

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """What happens within it belongs to this phase, but for phases that begin and end inside."""
        before = self._switch(phase)
        try:
            yield
        finally:
            self._switch(before)

    def seconds(self) -> dict[str, float]:
        self._switch(self._phase)
        return dict(self._seconds)

    def _switch(self, phase: str) -> str:
        now, before = self._now(), self._phase
        self._seconds[before] += now - self._since
        self._phase, self._since = phase, now
        return before


# Which versions a client runs, and whether the server's fedsolve works with its one.


RECORD = "versions"
"""The record of an answer to `who`."""
_NAMES = ("fedsolve", "flwr", "python", "framework")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9 .+!_-]{0,63}")


def own_versions(framework: str) -> ConfigRecord:
    """The versions of this process, for the server, with that of the framework that the client's own code runs on."""
    return ConfigRecord(
        {
            "fedsolve": __version__,
            "flwr": _installed("flwr"),
            "python": platform.python_version(),
            "framework": f"{framework} {_installed(framework)}",
        }
    )


def _installed(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def read_versions(answer: RecordDict) -> dict[str, str]:
    record = answer.get(RECORD)
    fedsolve = record.get("fedsolve") if isinstance(record, ConfigRecord) else None
    if record is None:
        raise InvalidInput(
            f"it reports no version of fedsolve, so its one is older than 0.2, and the server has {__version__}: "
            f"{_remedy()}"
        )
    if isinstance(fedsolve, str) and not is_compatible(fedsolve, __version__):
        raise InvalidInput(
            f"it has fedsolve {sanitize(fedsolve, 40)}, and the server {__version__}: {_remedy()}"
        )
    versions: dict[str, Any] = facts_of(answer, RECORD, dict.fromkeys(_NAMES, str))
    for name, version in versions.items():
        if not _VERSION.fullmatch(version):
            raise InvalidInput(f"its version of {name} is {sanitize(repr(version), 80)}, which is no version")
    return versions


def is_compatible(one: str, other: str) -> bool:
    """Whether two versions of fedsolve understand each other's messages: of 0.x those of the same x, else of a major.

    >>> is_compatible("0.2.0", "0.2.7"), is_compatible("0.2.0", "0.3.0"), is_compatible("1.0.2", "1.4.0")
    (True, False, True)
    """
    return _series(one) == _series(other) != ""


def _series(version: str) -> str:
    match = re.match(r"(\d{1,9})\.(\d{1,9})(?![\d])", version)
    return "" if match is None else f"0.{int(match[2])}" if int(match[1]) == 0 else str(int(match[1]))


def _remedy() -> str:
    return f"install fedsolve {_series(__version__)} there, or the same version here and there"
