"""Which client sits at which node: asked once of every node that appears, by fedsolve's own numbers, not Flower's.

Each number belongs to the first node that claimed it, remembered for as long as the run's folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsolve.core.errors import InvalidInput, Unavailable
from fedsolve.deploy.messages.sanitize import reading, sanitize
from fedsolve.deploy.messages.signature import (
    check_constants,
    compare_signatures,
    other_constant,
    usual_constants,
)
from fedsolve.deploy.monitoring.client_status import ClientStatuses
from fedsolve.deploy.monitoring.versions import read_versions
from fedsolve.deploy.nodes.node_bindings import NodeBindings, key_digest
from fedsolve.deploy.nodes.transport import Mailbox, Polling, missing_clients_advice
from fedsolve.deploy.site_names import check_site

_QUERY_SECONDS = 120.0
_MOST_NOTES = 16  # in a run's record, whatever clients send
_SHOWN = 3  # of the reasons why all have refused
_OTHER_CONSTANT = (
    "client {} has another '{}' than most clients, which decides results: give all clients the same"
)


class _Claim(NamedTuple):
    """What a node says of itself: its client's number, its site's name ('' if it does not say), its versions, digests
    of what all clients must share, and what it notes of its problem.
    """

    client: int
    site: str
    versions: dict[str, str]
    constants: list[str]
    notes: list[str]


class ClientRegistry:
    """The clients that are connected, by number.

    A number belongs to the first node that claims it. Another node that claims it is refused as long as that one is on
    Flower's list, and for good where `takeover` is False. Each refusal is logged once.

    Args:
        grid: Flower's grid.
        population: number of clients; a number outside 0 .. population - 1 is refused.
        signature: of the server's model; a client with another model is refused.
        bindings, takeover: which node each number belongs to, and whether it may go to another once that is gone.
        clients: told who is connected, with which versions, and why nodes are refused.
        log: told in one line what happens.

    Attributes:
        clients: as it was given.
        names: what each client is called.
        notes: what clients have noted of their problems, each once, by the first that did.
    """

    def __init__(
        self,
        grid: Grid,
        population: int,
        signature: str,
        bindings: NodeBindings,
        takeover: bool,
        clients: ClientStatuses,
        log: Callable[[str], None],
    ) -> None:
        self._grid, self._population, self._signature, self._log = grid, population, signature, log
        self._bindings, self._takeover = bindings, takeover
        self._claimed: dict[int, _Claim | None] = {}  # by node; None for one that was refused
        self._connected: dict[int, int] = {}  # client -> node
        self._refusals: dict[int, str] = {}
        self.notes: dict[str, int] = {}
        self._mailbox, self.clients, self.names = Mailbox(grid), clients, clients.names

    def poll(self) -> dict[int, int]:
        """Clients that are connected now, each with its node; nodes that are new are asked who they are.

        Nobody is waited for: a node that died lately is still on Flower's list, and would not answer.
        """
        keys = {node.node_id: key_digest(node) for node in self._grid.get_nodes()}
        self._forget_all_but(keys)
        for node, answer in self._query(sorted(set(keys) - set(self._claimed) - set(self._mailbox.waiting))):
            if isinstance(answer, str):  # it said nothing, perhaps its process died: it is asked again
                self._refuse(node, answer)
                continue
            try:
                with reading("its answer who it is"):
                    self._claimed[node] = self._read_claim(answer)
            except InvalidInput as error:
                self._claimed[node] = None
                self._refuse(node, str(error))
        self._connected = self._resolve_claims(keys)
        self.clients.looked_for(self._connected, self._refusals.values())
        return dict(self._connected)

    def wait(self, clients: Iterable[int] | int, seconds: float) -> dict[int, int]:
        """Wait for these clients, or for so many, until the deadline; then return who is connected.

        It ends too once so many nodes as there are clients have refused and nobody else is there.
        """
        deadline, polling = time.monotonic() + seconds, Polling()
        while True:
            connected = self.poll()
            is_enough = (
                len(connected) >= clients if isinstance(clients, int) else set(clients) <= set(connected)
            )
            if is_enough or time.monotonic() >= deadline or (not connected and self._all_refused):
                return connected
            polling.pause(deadline - time.monotonic())

    def wait_for_quorum(self, quorum: int, seconds: float) -> None:
        """Wait for a quorum before the first round.

        Raises:
            InvalidInput: all that are there have refused, and none that is asked again can change that.
            Unavailable: fewer clients than the quorum at the deadline; who is missing, who was refused and why.
        """
        connected = self.wait(quorum, seconds)
        if len(connected) >= quorum:
            return
        if not connected and self._all_refused:
            reasons = sorted(set(self._refusals.values()))
            more = f"; and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
            raise InvalidInput(
                f"all {self._population} clients have refused: {'; '.join(reasons[:_SHOWN])}{more}: fix this and "
                "start again"
            )
        missing = sorted(set(range(self._population)) - set(connected))
        details = "".join(f"; refused: {reason}" for reason in sorted(set(self._refusals.values())))
        if waiting := len(self._mailbox.waiting):
            details += f"; {waiting} nodes have not said yet who they are"
        raise Unavailable(
            f"{len(connected)} of {quorum} clients connected within {seconds:g} s (missing: "
            f"{', '.join(map(str, missing))}){details}: {missing_clients_advice(self._grid, self._population)}"
        )

    @property
    def _all_refused(self) -> bool:
        """Whether so many nodes as there are clients have refused: they are not asked again."""
        refused = [claim for claim in self._claimed.values() if claim is None]
        return len(refused) >= self._population and not self._mailbox.waiting

    def _forget_all_but(self, nodes: Iterable[int]) -> None:
        for gone in (set(self._claimed) | set(self._refusals)) - set(nodes):
            self._claimed.pop(gone, None)
            self._refusals.pop(gone, None)
        for gone in set(self._mailbox.waiting) - set(nodes):
            self._mailbox.give_up(gone)

    def _query(self, nodes: Iterable[int]) -> list[tuple[int, RecordDict | str]]:
        """Ask new nodes who they are; the answers that have come, also of nodes that were asked before."""
        queries = {
            node: Message(RecordDict({"who": ConfigRecord({})}), node, "query", ttl=_QUERY_SECONDS)
            for node in nodes
        }
        unsent = [(node, "the question who it is could not be sent") for node in self._mailbox.send(queries)]
        return [*unsent, *sorted(self._mailbox.collect(), key=lambda pair: pair[0])]

    def _resolve_claims(self, keys: Mapping[int, str]) -> dict[int, int]:
        """Which client is at which node, after every claim was compared with the bindings."""
        connected: dict[int, int] = {}
        online, usual = set(keys.values()), self._usual_constants(keys)
        for node, claim in self._claimed.items():
            if claim is None:
                continue
            client = claim.client
            key, bound = keys[node], self._bindings.key_of(client)
            others = [n for n in self._bindings.clients_of(key) if n != client]
            if bound != key and (reason := self._conflict(client, bound, bound in online, others)):
                self._refuse(node, reason)
                continue
            if bound != key:
                self._bindings.bind(client, key)
                if bound is not None:
                    self._log(f"client {client} is at another node now: the one that had it is gone")
            if (name := other_constant(claim.constants, usual)) is not None:
                self._refuse(node, _OTHER_CONSTANT.format(client, name))
                continue
            connected[client] = node
            self._refusals.pop(node, None)
            if self._connected.get(client) != node:
                self.clients.introduced(client, claim.versions)
                conflict = self.names.assign(client, claim.site)
                self._log(
                    f"client {client} is connected{f': {claim.site}' * bool(claim.site and not conflict)}"
                )
                for note in claim.notes[: _MOST_NOTES - len(self.notes)]:
                    if note not in self.notes:
                        self.notes[note] = client
                        self._log(f"client {client}: {note}")
                if conflict:
                    self._log(f"client {client} keeps its number: {conflict}")
        self._bindings.save()
        return connected

    def _usual_constants(self, keys: Mapping[int, str]) -> dict[str, str]:
        """What most clients have of what all must share, of as many the one with the lowest number."""
        claims = [(node, claim) for node, claim in self._claimed.items() if claim is not None]
        own = {
            c.client: c.constants
            for node, c in claims
            if self._bindings.key_of(c.client) in (None, keys[node])
        }
        return usual_constants([own[client] for client in sorted(own)])

    def _conflict(self, client: int, bound: str | None, is_online: bool, others: list[int]) -> str:
        """Why a number does not go to a node that it is not bound to; "" if it does."""
        if others and not self._takeover:
            return f"it claims to be client {client}, its key is bound to client {others[0]}"
        if bound is None or (self._takeover and not is_online):
            return ""
        until = ", unless that one goes" if self._takeover else ""
        return (
            f"client {client} belongs to another node, which claimed it first: this one does not count{until}"
        )

    def _read_claim(self, answer: RecordDict) -> _Claim:
        """What a node answers, if its model is the server's."""
        if "refused" in answer:
            raise InvalidInput(str(answer.config_records["refused"]["why"]))
        versions = read_versions(answer)
        facts: dict[str, Any] = dict(answer.config_records["client"])
        client, signature = facts["client"], facts["signature"]
        if type(client) is not int or not 0 <= client < self._population:
            raise InvalidInput(
                f"client {client!r:.40} is none of the {self._population} clients, numbered from 0: fix its client-id"
            )
        if not isinstance(signature, str):
            raise InvalidInput(f"client {client} does not say which model it has")
        compare_signatures(signature, self._signature, client)
        constants = check_constants(facts.get("constants", []))
        notes = facts.get("notes", [])
        if not isinstance(notes, list):
            raise InvalidInput(f"the notes of client {client} are no list: another version of fedsolve?")
        site = check_site(facts["site"]) if "site" in facts else ""
        return _Claim(client, site, versions, constants, [sanitize(note) for note in notes])

    def _refuse(self, node: int, reason: str) -> None:
        reason = sanitize(reason)
        if self._refusals.get(node) != reason:
            self._refusals[node] = reason
            self._log(f"node {node} is refused: {reason}")
