"""What the server knows of each client: when it was last heard, how often it failed and why, and its versions.

It is kept in memory while a run goes on, and in a file of the run's folder (`status_file.py`). Clients have their
numbers here; keys and numbers of nodes are in no status.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from fedsolve.deploy.messages.sanitize import sanitize
from fedsolve.deploy.site_names import LONGEST, SiteNames

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
    """One client.

    Attributes:
        client: its number.
        site: the name that its node gives, '' if none.
        versions: of `fedsolve`, `flwr`, `python` and `framework`, as it reported them; {} before it is heard.
        connected: whether it was when clients were last looked for.
        last_heard: when a message of it last came, in seconds since 1970; None for never.
        failures: requests that it was sent or due to be sent without a reply that counts.
        consecutive_failures: of these, those since the last reply that counts.
        last_cause, last_reason: of the last failure; None and '' without one.
        last_used_round: the last round, from 1, in which its update was used; 0 for none. Its state, where the method
            keeps one on clients, is that after this round.
    """

    client: int = Field(ge=0)
    site: str = Field(default="", max_length=LONGEST)
    versions: dict[str, str] = Field(default={}, max_length=8)
    connected: bool = False
    last_heard: float | None = Field(default=None, ge=0)
    failures: int = Field(default=0, ge=0)
    consecutive_failures: int = Field(default=0, ge=0)
    last_cause: Cause | None = None
    last_reason: str = Field(default="", max_length=_WORDS)
    last_used_round: int = Field(default=0, ge=0)

    def changed(self, **facts: Any) -> ClientStatus:
        """With some facts changed."""
        return self.model_copy(update=facts)


class ClientStatuses:
    """The clients of a run while it goes on. Another thread may read them at any time, and waits for nothing.

    Args:
        population: number of clients.
        earlier: what was known of them before the run was resumed.

    Attributes:
        names: what each client is called.
        refused: why nodes are refused.
        hides_cohorts: whether nothing is noted by which somebody could know who took part in a round.
        changed: called when others are connected or refused than before.
        when_introduced: called with each client that connects.
    """

    hides_cohorts = False
    changed: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, population: int, earlier: Iterable[ClientStatus] = ()) -> None:
        self.names, self.refused = SiteNames(), list[str]()
        self.when_introduced: list[Callable[[int], None]] = []
        self._clients = {client: ClientStatus(client=client) for client in range(population)}
        for status in earlier:
            if status.client < population:
                self._clients[status.client] = status.changed(connected=False)

    def all(self) -> list[ClientStatus]:
        """All clients, in the order of their numbers."""
        return list(self._clients.values())

    def introduced(self, client: int, versions: Mapping[str, str]) -> None:
        """A node said that it is this client, and that it has these versions."""
        self._change(client, versions=dict(versions), last_heard=time.time())
        for told in self.when_introduced:
            told(client)

    def looked_for(self, connected: Iterable[int], refused: Iterable[str]) -> None:
        """These clients are connected, and nodes are refused for these reasons."""
        now, before, sites = set(connected), (self.all(), self.refused), self.names.given
        for client, status in self._clients.items():
            site = sites.get(client, "") if client in now else status.site
            if (client in now, site) != (status.connected, status.site):
                self._change(client, connected=client in now, site=site)
        self.refused = sorted(set(refused))[:_SHOWN_REFUSALS]
        if (self.all(), self.refused) != before:
            self.changed()

    def heard(self, client: int) -> None:
        """A message of a client came, whatever it says."""
        if not self.hides_cohorts:
            self._change(client, last_heard=time.time())

    def failed(self, client: int, cause: Cause, reason: str) -> None:
        """A reply that was due does not count; who was not asked has not failed once more."""
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
        """The replies of these clients count."""
        for client in clients:
            self._change(client, consecutive_failures=0)

    def _change(self, client: int, **facts: Any) -> None:
        self._clients[client] = self._clients[client].changed(**facts)
