"""Which client sits at which node: asked of every node that appears, by fedsolve's own numbers, not Flower's.

A node that was started again, or that was refused, is asked again: what it said before may no longer be so.
Each number belongs to the first node that claimed it, remembered for as long as the run's folder.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from flwr.app import ConfigRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from fedsolve.core.errors import InvalidInput, Unavailable
from fedsolve.deploy.exchange import Mailbox, countdown, missing_clients_advice, polls
from fedsolve.deploy.sanitize import reading, sanitize
from fedsolve.deploy.server.settings import Settings
from fedsolve.deploy.signature import check_constants, compare_signatures, other_constant, usual_constants
from fedsolve.deploy.site_names import check_site
from fedsolve.deploy.status import ClientStatuses, read_versions
from fedsolve.folders.files import write_atomically
from fedsolve.folders.sealed import LARGEST
from fedsolve.folders.untrusted import MALFORMED, loads, read_bytes

# Which node each client number is bound to, in a file of the run's folder that outlives the server.


BINDINGS = "clients.json"
"""The file in a run's folder: experiment, and each client's number with the digest of its node's key."""


def key_digest(node: NodeInfo) -> str:
    """What identifies a node: a digest of its public key, which a SuperNode without one of its own makes at each start.

    >>> key_digest(NodeInfo(node_id=7))
    'node-7'
    """
    return hashlib.sha256(node.public_key).hexdigest()[:32] if node.public_key else f"node-{node.node_id}"


class NodeBindings:
    """Client numbers and the nodes that they are bound to, of one experiment, in a file that outlives the server."""

    # Bindings of another experiment in it are ignored.

    def __init__(self, path: Path, experiment: str) -> None:
        self._path, self._experiment = path, experiment
        self._keys: dict[int, str] = {}
        self._saved: dict[int, str] = {}
        try:
            content = loads(read_bytes(path, LARGEST, follow=False))
            if content["experiment"] == experiment:
                self._keys = {int(client): str(key) for client, key in content["keys"].items()}
        except FileNotFoundError:
            return
        except (OSError, *MALFORMED) as error:
            raise InvalidInput(
                f"{path} cannot be read ({type(error).__name__}): restore it, or delete it, and each client number "
                "belongs to the next node that claims it"
            ) from None
        self._saved = dict(self._keys)

    def key_of(self, client: int) -> str | None:
        return self._keys.get(client)

    def clients_of(self, key: str) -> list[int]:
        return [client for client, bound in self._keys.items() if bound == key]

    def bind(self, client: int, key: str) -> None:
        # A key has one number: a node whose client-id was mended frees the one before.
        for other in self.clients_of(key):
            del self._keys[other]
        self._keys[client] = key

    def save(self) -> None:
        if self._keys != self._saved:
            keys = {str(client): self._keys[client] for client in sorted(self._keys)}
            content = json.dumps({"experiment": self._experiment, "keys": keys}, indent=1)
            write_atomically(self._path, content + "\n")
            self._saved = dict(self._keys)


_QUERY_SECONDS = 120.0
_MOST_NOTES = 16  # in a run's record, whatever clients send
_ASK_AGAIN = 60.0
"""Seconds after which a node that was refused is asked again: its site may have been repaired."""
_OTHERS = 30.0  # seconds for the answers of other nodes once those that were refused are too many
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


class _Refusal(NamedTuple):
    """Why a node does not count, and the client that is missing for that: None where another node may be it."""

    reason: str
    client: int | None


class _Rejected(InvalidInput):
    """An answer that does not count, of a node that said which client it is."""

    def __init__(self, client: int, reason: str) -> None:
        super().__init__(reason)
        self.client = client


class ClientRegistry:
    """The clients that are connected, by number.

    A number belongs to the first node that claims it. Another node that claims it is refused as long as that one is on
    Flower's list, and for good where `takeover` is False. Each refusal is logged once, and lasts until the node's
    answer is another one: a refused node is asked again every minute.

    Args:
        grid: Flower's grid.
        settings: a client number outside 0 .. population - 1 is refused.
        signature: of the server's model; a client with another model is refused. None where no model is needed: then
            clients do not even make their problem.
        clients: told who is connected, with which versions, and why nodes are refused.
    """

    def __init__(
        self,
        grid: Grid,
        settings: Settings,
        experiment: str,
        signature: str | None,
        clients: ClientStatuses,
        log: Callable[[str], None],
    ) -> None:
        self._grid, self._population, self._signature, self._log = grid, settings.population, signature, log
        self._bindings = NodeBindings(Path(settings.out) / BINDINGS, experiment)
        self._takeover = settings.takeover  # whether a number may go to another node once its own is gone
        self._claimed: dict[int, _Claim | None] = {}  # by node; None for one that was refused
        self._connected: dict[int, int] = {}  # client -> node
        self.notes: dict[str, int] = {}  # of clients on their problems, each once, by the first that had it
        # why the method cannot run on clients with a training loop of their own, which are then refused
        self.refuses_loops: Callable[[], str] = lambda: ""
        self.loops: set[int] = set()  # clients that have one
        self._refusals: dict[int, _Refusal] = {}
        self._starts: dict[int, str] = {}  # node -> when it was started last
        self._asked: dict[int, float] = {}  # node -> when it was asked last
        self._mailbox, self.clients, self.names = Mailbox(grid), clients, clients.names

    def poll(self) -> dict[int, int]:
        """Clients that are connected now, each with its node; nodes that are new or refused are asked who they are.

        Nobody is waited for: a node that died lately is still on Flower's list, and would not answer.
        """
        nodes = {node.node_id: node for node in self._grid.get_nodes()}
        keys = {number: key_digest(node) for number, node in nodes.items()}
        # First of all: a node that was started again is asked anew below.
        self._forget_all_but({number: node.last_activated_at for number, node in nodes.items()})
        for node, answer in self._query(self._to_ask(keys)):
            if isinstance(answer, str):  # it said nothing, perhaps its process died: it is asked again
                self._refuse(node, answer)
                continue
            try:
                with reading("its answer who it is"):
                    self._claimed[node] = self._read_claim(answer)
            except InvalidInput as error:
                self._claimed[node] = None
                client = error.client if isinstance(error, _Rejected) else None
                # Another node that refuses in a client's name says nothing of the node that the number belongs to.
                is_its_own = client is not None and self._bindings.key_of(client) in (None, keys[node])
                self._refuse(node, str(error), client if is_its_own else None)
        self._connected = self._resolve_claims(keys)
        self.clients.on_poll(self._connected, {refusal.reason for refusal in self._refusals.values()})
        return dict(self._connected)

    @property
    def refused(self) -> dict[int, str]:
        """Clients that are not connected since their own node was refused, each with the reason."""
        return {
            refusal.client: refusal.reason
            for refusal in self._refusals.values()
            if refusal.client is not None and refusal.client not in self._connected
        }

    def wait(self, clients: Iterable[int] | int, seconds: float) -> dict[int, int]:
        """Wait for these clients, or for so many, until the deadline; then return who is connected."""
        # Clients that were refused are not waited for: the wait ends once only they are missing, or once too few
        # would be left of them all and every other node has answered, or had 30 seconds to.
        connected: dict[int, int] = {}
        others_left: Callable[[], float] | None = None
        for look, _ in enumerate(polls(countdown(seconds))):
            connected = self.poll()
            if isinstance(clients, int):
                missing = f"{clients - len(connected)} more clients"
                is_over = len(connected) >= clients or (not connected and self._all_refused)
                if self._is_hopeless(clients):  # what the other nodes object to is reported with it
                    others_left = others_left or countdown(_OTHERS)
                    is_over |= not self._mailbox.waiting or others_left() <= 0
            else:
                others = sorted(set(clients) - {*connected, *self.refused})
                missing, is_over = ", ".join(map(self.names, others)), not others
            if is_over:
                break
            if look == 0:
                self._log(f"waiting at most {seconds:g} s for {missing}")
        return connected

    def wait_for_quorum(self, quorum: int, seconds: float) -> None:
        """Wait for a quorum before the first round."""
        # `Unavailable`, with who is missing, who was refused and why, if there are too few at the deadline, or too
        # few would be left without those that were refused.
        connected = self.wait(quorum, seconds)
        if len(connected) >= quorum:
            return
        if not connected and self._all_refused:
            reasons = sorted({refusal.reason for refusal in self._refusals.values()})
            more = f"; and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
            raise InvalidInput(
                f"all {self._population} clients have refused: {'; '.join(reasons[:_SHOWN])}{more}: fix this and "
                "start again"
            )
        missing = sorted(set(range(self._population)) - set(connected))
        reasons = {refusal.reason for refusal in self._refusals.values()}
        details = "".join(f"; refused: {reason}" for reason in sorted(reasons))
        if waiting := len(self._mailbox.waiting):
            details += f"; {waiting} nodes have not said yet who they are"
        within, advice = f" within {seconds:g} s", missing_clients_advice(self._grid, self._population)
        if self._is_hopeless(quorum):
            within, advice = "", "fix those that were refused and start again, or lower the quorum"
        raise Unavailable(
            f"{len(connected)} of {quorum} clients connected{within} (missing: "
            f"{', '.join(map(str, missing))}){details}: {advice}"
        )

    def _is_hopeless(self, quorum: int) -> bool:
        # Whether too few clients are left without those whose own answer is a refusal.
        #
        # Whose constants are not those of most may change with the next client.
        # Refused by their own answer, not by comparison with others, which may change.
        answered = {client for node, (_, client) in self._refusals.items() if self._claimed.get(node) is None}
        return self._population - len(answered & set(self.refused)) < quorum

    @property
    def _all_refused(self) -> bool:
        refused = [claim for claim in self._claimed.values() if claim is None]
        return len(refused) >= self._population and not self._mailbox.waiting

    def _forget_all_but(self, starts: dict[int, str]) -> None:
        # Forget nodes that are gone, and those that were started again under the same number, as one with a key is.
        # Under one number, since its key is the same.
        for gone in {node for node, start in self._starts.items() if starts.get(node) != start}:
            claim = self._claimed.pop(gone, None)
            if claim is not None and self._connected.get(claim.client) == gone:
                del self._connected[claim.client]
            self._refusals.pop(gone, None)
            self._asked.pop(gone, None)
            self._mailbox.give_up([gone])
        self._starts = starts

    def _to_ask(self, nodes: Iterable[int]) -> list[int]:
        # The nodes that are new, and those refused that were asked long enough ago.
        now, waiting = time.monotonic(), set(self._mailbox.waiting)
        due = [
            node
            for node in sorted(set(nodes) - waiting)
            if node not in self._claimed or (node in self._refusals and now >= self._asked[node] + _ASK_AGAIN)
        ]
        self._asked |= dict.fromkeys(due, now)
        return due

    def _query(self, nodes: Iterable[int]) -> list[tuple[int, RecordDict | str]]:
        # Ask nodes who they are; the answers that have come, also of nodes that were asked before.
        facts: dict[str, Any] = {} if self._signature is not None else {"model": False}
        queries = {node: RecordDict({"who": ConfigRecord(facts)}) for node in nodes}
        silent = self._mailbox.send(queries, "query", _QUERY_SECONDS)
        unsent = [(node, "the question who it is could not be sent") for node in silent]
        return [*unsent, *sorted(self._mailbox.collect(), key=lambda pair: pair[0])]

    def _resolve_claims(self, keys: Mapping[int, str]) -> dict[int, int]:
        # Which client is at which node, after every claim was compared with the bindings.
        connected: dict[int, int] = {}
        # All claims are compared at once, so that who answered first has no say in what is usual.
        online, usual = set(keys.values()), self._usual_constants(keys)
        for node, claim in self._claimed.items():
            if claim is None:
                continue
            client = claim.client
            key, bound = keys[node], self._bindings.key_of(client)
            # The key may be bound to another number, whose node now claims this one.
            others = [n for n in self._bindings.clients_of(key) if n != client]
            if bound != key and (reason := self._conflict(client, bound, bound in online, others)):
                self._refuse(node, reason)
                continue
            if bound != key:
                self._bindings.bind(client, key)
                if bound is not None:
                    self._log(f"client {client} is at another node now: the one that had it is gone")
            if (name := other_constant(claim.constants, usual)) is not None:
                self._refuse(node, _OTHER_CONSTANT.format(client, name), client)
                continue
            connected[client] = node
            self._refusals.pop(node, None)
            # Only when it connects: a poll of those that are here says nothing.
            if self._connected.get(client) != node:
                self.clients.on_hello(client, claim.versions)
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
        # What most clients have of what all must share, of as many the one with the lowest number.
        claims = [(node, claim) for node, claim in self._claimed.items() if claim is not None]
        own = {
            c.client: c.constants
            for node, c in claims
            if self._bindings.key_of(c.client) in (None, keys[node])
        }
        return usual_constants([own[client] for client in sorted(own)])

    def _conflict(self, client: int, bound: str | None, is_online: bool, others: list[int]) -> str:
        # Why a number does not go to a node that it is not bound to; "" if it does.
        if others and not self._takeover:
            return f"it claims to be client {client}, its key is bound to client {others[0]}"
        if bound is None or (self._takeover and not is_online):
            return ""
        until = ", unless that one goes" if self._takeover else ""
        return (
            f"client {client} belongs to another node, which claimed it first: this one does not count{until}"
        )

    def _read_claim(self, answer: RecordDict) -> _Claim:
        if "refused" in answer:
            refused = answer.config_records["refused"]
            if self._is_number(client := refused.get("client")):
                raise _Rejected(client, str(refused["why"]))
            raise InvalidInput(str(refused["why"]))
        facts: dict[str, Any] = dict(answer.config_records["client"])
        if not self._is_number(client := facts.get("client")):
            read_versions(answer)  # another version says best why its facts are others
            raise InvalidInput(
                f"client {client!r:.40} is none of the {self._population} clients, numbered from 0: fix its client-id"
            )
        try:
            with reading("its answer who it is"):
                return self._claim_of(client, facts, read_versions(answer))
        except InvalidInput as error:
            raise _Rejected(client, str(error)) from None

    def _is_number(self, client: Any) -> TypeGuard[int]:
        return type(client) is int and 0 <= client < self._population

    def _claim_of(self, client: int, facts: Mapping[str, Any], versions: dict[str, str]) -> _Claim:
        if self._signature is not None:
            signature = facts["signature"]
            if not isinstance(signature, str):
                raise InvalidInput(f"client {client} does not say which model it has")
            compare_signatures(signature, self._signature, client)
        constants = check_constants(facts.get("constants", []))
        notes = facts.get("notes", [])
        if not isinstance(notes, list):
            raise InvalidInput(f"the notes of client {client} are no list: another version of fedsolve?")
        if facts.get("loop") is True:
            if why := self.refuses_loops():
                raise InvalidInput(why)
            self.loops.add(client)
        site = check_site(facts["site"]) if "site" in facts else ""
        return _Claim(client, site, versions, constants, [sanitize(note) for note in notes])

    def _refuse(self, node: int, reason: str, client: int | None = None) -> None:
        before, now = self._refusals.get(node), _Refusal(sanitize(reason), client)
        self._refusals[node] = now
        if before is None or before.reason != now.reason:
            self._log(f"node {node} is refused: {now.reason}")
