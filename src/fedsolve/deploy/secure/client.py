"""What a client keeps for secure sums, in files of mode 0600, and the four things that it does with them.

A pre-key is deleted, and the attempt noted, before anything that follows from it is sent: a client that is started
again goes on, and answers nothing twice. What opens a sum is kept nowhere.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedsolve.core.errors import InvalidInput, check_integer
from fedsolve.deploy.secret_keys import load_or_create_identity, new_secret
from fedsolve.deploy.secure import primitives as p
from fedsolve.deploy.secure.attempt import AttemptLog, Words
from fedsolve.deploy.secure.keys import (
    SMALLEST,
    Member,
    Owner,
    PreKey,
    PrivatePreKeys,
    Roster,
    experiment_digest,
    hello_bytes,
    read_peers,
)
from fedsolve.deploy.secure.masking import (
    PrivateKeys,
    answer_bytes,
    masked_reply,
    open_shares,
    read_order,
    read_request,
)
from fedsolve.deploy.secure.primitives import ProtocolError, Reader, names
from fedsolve.folders.files import locked, slug, write_atomically
from fedsolve.folders.untrusted import read_if_there

_FILE, _SECRETS, _ROSTER, _COINS = b"fsn2", "secrets.bin", "roster.bin", "coins.bin"
_OUT = "this client takes no part in secure sums of this experiment any more; begin another"
_LARGEST = 2**28


@dataclass
class _State:
    """A client's own secrets in one experiment, and what it answered."""

    share_key: bytes
    coin: bytes
    pre_keys: PrivatePreKeys = field(default_factory=PrivatePreKeys)
    log: AttemptLog = field(default_factory=AttemptLog)

    def to_bytes(self) -> bytes:
        return self.share_key + self.coin + self.pre_keys.to_bytes() + self.log.to_bytes()

    @classmethod
    def read(cls, reader: Reader) -> _State:
        return cls(
            reader.take(p.KEY), reader.take(p.KEY), PrivatePreKeys.read(reader), AttemptLog.read(reader)
        )


class NodeSecrets:
    """A client of secure sums; its folder has `client-0-identity.key`, and `EXPERIMENT/client-0-secure/`."""

    # The owner lets sums of at least `min_sum` clients (3 or more) be opened, with `second_sums` those of a round a
    # second time (`AttemptLog`). `peers` is a TOML file with the public identity of every client; without it the
    # first roster is trusted. `log` is told in one line why something is refused; nothing is sent then.
    # Source: Bonawitz et al. (2017); Bell et al. (2020); Ma et al. (2023), "Flamingo".

    def __init__(
        self,
        folder: str | Path,
        experiment: str,
        client: int,
        min_sum: int = 3,
        peers: str | Path | None = None,
        second_sums: bool = True,
        log: Callable[[str], None] = print,
    ) -> None:
        if not isinstance(experiment, str) or slug(experiment) != experiment:  # it becomes a path
            raise InvalidInput(
                f"{experiment!r:.60} is not a name of an experiment: use letters, digits and _.+- only"
            )
        self.client = check_integer("client", client, bits=32)
        self.min_sum = check_integer("min_sum", min_sum, SMALLEST)
        self._peers = None if peers is None else read_peers(peers)
        self._second_sums = second_sums
        self._experiment, self._log = experiment_digest(experiment), log
        self._folder = Path(folder) / experiment / f"client-{client}-secure"
        self._identity = load_or_create_identity(Path(folder) / f"client-{client}-identity.key")
        self._enrolled: Roster | None = None

    @property
    def peer_line(self) -> str:
        return f'{self.client} = "{p.verifying_key(self._identity).hex()}"'

    def hello(self) -> bytes:
        """The first message to the server, and the one when it has no pre-keys left: public keys, 64 new pre-keys."""
        # Those before are deleted: an order that is on its way with one of them is refused.
        with self._refusing("to say hello"):
            state = self._load()
            state.pre_keys.clear()
            fresh = self._fresh(state)
            self._save(state)
            return hello_bytes(self._experiment, self._member(state), fresh)

    def enrol(self, roster: bytes) -> bytes:
        """Accept the server's roster for this experiment; this client's coin, since nothing can change now."""
        with self._refusing("the roster"):
            offered, state = Roster.read(roster), self._load()
            if offered.experiment != self._experiment:
                raise ProtocolError("the roster is of another experiment")
            if offered.members.get(self.client) != self._member(state):
                raise ProtocolError(f"the roster does not have the keys of client {self.client}")
            self._check_peers(offered)
            before = self._read_roster()
            # Pinned: a server that shows others later could put clients of its own in the place of the owners'.
            if before is None:
                write_atomically(self._folder / _ROSTER, roster, private=True)
            elif before.digest != offered.digest:
                raise ProtocolError(
                    "the roster is another than this experiment began with: start a new experiment for other clients"
                )
            return state.coin

    def reveal(self, coins: bytes) -> None:
        """Accept the coins of all clients of the roster, from which committee and graph follow."""
        with self._refusing("the coins"):
            roster = self._roster()
            if roster.is_drawn:
                roster.reveal(coins)
                write_atomically(self._folder / _COINS, coins, private=True)

    def mask(self, order: bytes, words: Words) -> bytes:
        """The reply to an order: words under masks, shares for the committee, new pre-keys."""
        # Without the words' data it is b"", and nothing is noted: what of the order can be refused is refused before
        # words are made, since a refusal afterwards says that they could be.
        with self._refusing("an order"):
            roster, state = self._roster(), self._load()
            found = read_order(order, roster, self.client, self.min_sum)
            words.check(found.attempt)
            private = PrivateKeys(
                self._identity,
                p.agreement_key(state.share_key),
                p.agreement_key(state.pre_keys.use(*found.own)),
                self.min_sum,
            )
            state.log.mask(found.attempt.step)
            if words.data is None:
                return b""
            fresh = self._fresh(state)
            self._save(state)  # before anything is made of the pre-key: it is used now, whatever happens
            return masked_reply(found, self.client, private, words.data, fresh)

    def unmask(self, request: bytes) -> bytes:
        """A committee member's answer: its shares of what opens the sum."""
        with self._refusing("an unmask request"):
            roster, state = self._roster(), self._load()
            lists, sealed = read_request(request, roster, self.client)
            answer = open_shares(lists, sealed, self.client, p.agreement_key(state.share_key))
            if answer.unreadable:
                self._log(f"clients {names(answer.unreadable)} have sent no shares that this one can use")
            if answer.shares:  # otherwise nothing is opened, and another sum of the round may be
                clients = roster.bits(lists.arrived)
                least = max(self.min_sum, answer.least)
                state.log.answer(lists.attempt.step, clients, least, self._second_sums)
                self._save(state)  # before it is sent
            return answer_bytes(lists, answer, self.client, self._identity)

    @contextmanager
    def _refusing(self, what: str) -> Iterator[None]:
        # Hold the files meanwhile, and log why something is refused.
        try:
            with locked(self._folder):
                yield
        except InvalidInput as error:
            self._log(f"client {self.client} refuses {what}: {error}")
            raise

    def _member(self, state: _State) -> Member:
        return Member.of(self._experiment, self.client, self._identity, state.share_key, state.coin)

    def _fresh(self, state: _State) -> list[PreKey]:
        owner = Owner(self._experiment, self.client, p.verifying_key(self._identity))
        return state.pre_keys.top_up(owner, self._identity)

    def _roster(self) -> Roster:
        if (roster := self._enrolled) is None:
            roster = self._enrolled = self._read_roster()
            if roster is None:
                raise ProtocolError("no roster was accepted yet")
            self._check_peers(roster)
        if roster.is_drawn and not roster.coins and (coins := self._read(_COINS)) is not None:
            roster.reveal(coins)
        return roster

    def _check_peers(self, roster: Roster) -> None:
        # each client must have the identity that the owner's file says
        peers = self._peers
        if peers is None:
            return
        wrong = [m.client for m in roster.members.values() if peers.get(m.client) != m.identity]
        if wrong:
            raise ProtocolError(f"the identity of clients {names(wrong)} is not that of the file of peers")

    def _read_roster(self) -> Roster | None:
        data = self._read(_ROSTER)  # its signatures were verified before it was written
        return None if data is None else Roster.read(data, verify=False)

    def _read(self, name: str) -> bytes | None:
        return read_if_there(self._folder / name, _LARGEST)

    def _load(self) -> _State:
        path, data = self._folder / _SECRETS, self._read(_SECRETS)
        if data is None:
            if (self._folder / _ROSTER).exists():  # what it answered is not known any more
                raise InvalidInput(f"{path} is gone: {_OUT}")
            return _State(new_secret(), new_secret())
        # Against a disk that fails; who can write the file could write the digest as well.
        content, seal = data[:-32], data[-32:]
        if hashlib.sha256(content).digest() != seal:
            raise InvalidInput(f"{path} is damaged: {_OUT}")
        reader = Reader(content, _FILE, str(path))
        state = _State.read(reader)
        reader.end()
        return state

    def _save(self, state: _State) -> None:
        content = _FILE + state.to_bytes()
        write_atomically(self._folder / _SECRETS, content + hashlib.sha256(content).digest(), private=True)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)  # the old file must not come back when the power fails
        finally:
            os.close(folder)
