"""The keys of secure sums: a client's identity, coin and one-time pre-keys, and the roster of all clients.

The coin is a random number that a client commits itself to before it sees the others' keys. The identity is an
Ed25519 key in a file of mode 0600, of a node for all experiments. Pre-keys are X25519 keys, each signed with
experiment, client and number, as in Signal's X3DH.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.secret_keys import new_secret
from fedsolve.deploy.secure.primitives import (
    KEY,
    LARGEST_LIST,
    SIGNATURE,
    ProtocolError,
    Reader,
    check_point,
    check_signature,
    digest,
    number,
    public_key,
    sign,
    verifying_key,
)
from fedsolve.folders.untrusted import read_user_toml

_LARGEST = 2**31
_STALE = 16  # pre-keys that are so much older than one in use were sent in orders that never came
BUNDLE = 64
"""Pre-keys of a client that the server has in stock at most."""


class Owner(NamedTuple):
    """Whose keys these are, bound into every signature of set-up: the experiment's digest, the client, its identity."""

    experiment: bytes
    client: int
    identity: bytes

    @property
    def name(self) -> bytes:
        return self.experiment + number(self.client, 4)


class PreKey(NamedTuple):
    """A public one-time key of a client, signed by it: 100 bytes."""

    number: int
    public: bytes
    signature: bytes

    @classmethod
    def of(cls, owner: Owner, signing: bytes, index: int, private: bytes) -> PreKey:
        public = public_key(private)
        return cls(index, public, sign(signing, "pre-key", owner.name, number(index, 4), public))

    @classmethod
    def read(cls, reader: Reader) -> PreKey:
        """The next fields of a message; the signature is not checked yet."""
        index = reader.number(4)
        if index > _LARGEST:
            raise ProtocolError(f"pre-key {index} has a number above {_LARGEST}")
        return cls(index, reader.take(KEY), reader.take(SIGNATURE))

    def to_bytes(self) -> bytes:
        return number(self.number, 4) + self.public + self.signature

    def check(self, owner: Owner) -> None:
        what = f"pre-key {self.number} of client {owner.client}"
        check_signature(
            owner.identity, self.signature, what, "pre-key", owner.name, number(self.number, 4), self.public
        )


class PrivatePreKeys:
    """A client's own pre-keys that were not used yet, by number; numbers only go up."""

    def __init__(self, following: int = 0, keys: dict[int, bytes] | None = None) -> None:
        self._following, self._keys = following, keys or {}

    def clear(self) -> None:
        self._keys.clear()

    def top_up(self, owner: Owner, signing: bytes) -> list[PreKey]:
        """Make new ones until there are 64, and return their public halves."""
        # Numbers are used once: an old signature never vouches for a new key.
        fresh = range(self._following, self._following + BUNDLE - len(self._keys))
        self._keys |= {index: new_secret() for index in fresh}
        self._following = fresh.stop
        return [PreKey.of(owner, signing, index, self._keys[index]) for index in fresh]

    def use(self, index: int, public: bytes) -> bytes:
        if index not in self._keys:
            known = "was used before" if index < self._following else "was never made"
            raise ProtocolError(f"pre-key {index} of this client {known}")
        if public_key(self._keys[index]) != public:
            raise ProtocolError(f"pre-key {index} of this client is another key")
        # Gone before it is used: who reads the disk later opens no round of before.
        private = self._keys.pop(index)
        for old in [old for old in self._keys if old < index - _STALE]:
            del self._keys[old]
        return private

    def to_bytes(self) -> bytes:
        keys = b"".join(number(index, 4) + private for index, private in self._keys.items())
        return number(self._following, 4) + number(len(self._keys), 2) + keys

    @classmethod
    def read(cls, reader: Reader) -> PrivatePreKeys:
        following, count = reader.number(4), reader.number(2)
        pairs = [(reader.number(4), reader.take(KEY)) for _ in range(count)]
        return cls(following, dict(pairs))


def read_bundle(reader: Reader, what: str) -> list[PreKey]:
    count = reader.number(2)
    if count > BUNDLE:
        raise ProtocolError(f"{what} has {count} pre-keys, more than {BUNDLE}")
    keys = [PreKey.read(reader) for _ in range(count)]
    if any(a.number >= b.number for a, b in pairwise(keys)):
        raise ProtocolError(f"the pre-keys of {what} do not ascend")
    return keys


def bundle_bytes(keys: list[PreKey]) -> bytes:
    return number(len(keys), 2) + b"".join(key.to_bytes() for key in keys)


def commitment(experiment: bytes, client: int, coin: bytes) -> bytes:
    return digest("coin", experiment, number(client, 4), coin)


class Member(NamedTuple):
    """What a client says of itself for a whole experiment, signed by its identity, an Ed25519 key.

    Shares are encrypted to `share_key`, an X25519 key.
    """

    client: int
    identity: bytes
    share_key: bytes
    commitment: bytes
    signature: bytes

    @classmethod
    def of(cls, experiment: bytes, client: int, signing: bytes, share_private: bytes, coin: bytes) -> Member:
        identity, share_key = verifying_key(signing), public_key(share_private)
        hidden, owner = commitment(experiment, client, coin), Owner(experiment, client, identity)
        return cls(
            client, identity, share_key, hidden,
            sign(signing, "member", owner.name, identity, share_key, hidden),
        )  # fmt: skip

    @classmethod
    def read(cls, reader: Reader) -> Member:
        """The next fields of a message; the signature is not checked yet."""
        client, keys = reader.number(4), [reader.take(KEY) for _ in range(3)]
        return cls(client, keys[0], keys[1], keys[2], reader.take(SIGNATURE))

    def to_bytes(self) -> bytes:
        return number(self.client, 4) + self.identity + self.share_key + self.commitment + self.signature

    def owner(self, experiment: bytes) -> Owner:
        return Owner(experiment, self.client, self.identity)

    def check(self, experiment: bytes) -> None:
        """Raise `ProtocolError` unless the owner of the identity signed it, and its share key can be used."""
        what = f"the share key of client {self.client}"
        # A point of small order would give every pair the same secret.
        check_point(self.share_key, what)
        signed = self.owner(experiment).name, self.identity, self.share_key, self.commitment
        check_signature(self.identity, self.signature, what, "member", *signed)


_HELLO = b"fsh2"


def hello_bytes(experiment: bytes, member: Member, keys: list[PreKey]) -> bytes:
    """The first message of a client: its long-lived keys and its pre-keys in stock."""
    return _HELLO + experiment + member.to_bytes() + bundle_bytes(keys)


def read_hello(hello: bytes) -> tuple[bytes, Member, list[PreKey]]:
    """The experiment's digest, the client's long-lived keys, whose signature is checked, and its pre-keys."""
    reader = Reader(hello, _HELLO, "a hello")
    experiment, member = reader.take(KEY), Member.read(reader)
    keys = read_bundle(reader, f"the hello of client {member.client}")
    reader.end()
    member.check(experiment)
    return experiment, member, keys


# The roster: the long-lived keys of all clients of an experiment; its digest is in every signature and key.
#
# The committee opens the sums: all clients up to 64, else 64 that nobody chooses. Any threshold of its c members,
# floor(2 c / 3) + 1, open a sum. Two different lists of one attempt could only be opened if more than a third of them,
# 2 threshold - c, answered twice: an honest one answers once.
#
# Beyond 64 clients the committee, and the order of all clients from which the graph of masks follows, are drawn by the
# coins of all: each client is bound to its coin by the roster, and shows it when it has accepted the roster for good.
# Whoever chooses keys, roster or coins does so before it knows the coin of the last honest client, and can try nothing
# afterwards; it can only begin another experiment, with every honest client. `benchmarks/secure_bounds.py` has what
# such a draw then gives.
#
# A client checks it against its owner's file of peers; without one it pins the first roster that it sees, and then
# trusts the server to have shown everybody the same.

_ROSTER = b"fsr2"
SMALLEST = 3
"""Clients that an experiment with secure sums has at least."""
COMMITTEE = 64
"""Members of a committee at most; up to so many clients nothing is drawn."""


def threshold(members: int) -> int:
    """How many of the members must answer.

    >>> [threshold(c) for c in (3, 4, 10, 64)]
    [3, 3, 7, 43]
    """
    return 2 * members // 3 + 1


def experiment_digest(experiment: str) -> bytes:
    return digest("experiment", experiment.encode())


class Roster:
    """The long-lived keys of all clients, and the server's X25519 key, with which they authenticate masked words."""

    # `coins` are those of all clients by number; b"" before they are revealed, and where nothing is drawn.
    # Source: Bonawitz et al. (2017), "Practical secure aggregation for privacy-preserving machine learning", round 0;
    # kept for all rounds as in Ma et al. (2023), "Flamingo".

    def __init__(self, experiment: bytes, server_key: bytes, members: Iterable[Member]) -> None:
        listed = sorted(members)
        if not SMALLEST <= len(listed) <= LARGEST_LIST:
            raise ProtocolError(
                f"the roster has {len(listed)} clients: secure sums need {SMALLEST} at least, {LARGEST_LIST} at most"
            )
        self.experiment, self.server_key = experiment, server_key
        self.members = {member.client: member for member in listed}
        self.coins = b""
        # Under two numbers one client would count as two in `min_sum` and in the committee.
        for what, keys in (
            ("number", {m.client for m in listed}),
            ("identity", {m.identity for m in listed}),
            ("share key", {m.share_key for m in listed}),
        ):
            if len(keys) != len(listed):
                raise ProtocolError(f"two clients of the roster have the same {what}")

    @classmethod
    def of(cls, hellos: Iterable[bytes], server_key: bytes) -> Roster:
        read = [read_hello(hello) for hello in hellos]
        if len({experiment for experiment, _, _ in read}) > 1:
            raise ProtocolError("the hellos are of different experiments")
        return cls(read[0][0] if read else b"", server_key, (member for _, member, _ in read))

    def to_bytes(self) -> bytes:
        entries = b"".join(member.to_bytes() for member in self.members.values())
        return _ROSTER + self.experiment + self.server_key + number(len(self.members), 4) + entries

    @classmethod
    def read(cls, data: bytes, *, verify: bool = True) -> Roster:
        reader = Reader(data, _ROSTER, "the roster")
        experiment, server_key, count = reader.take(KEY), reader.take(KEY), reader.number(4)
        if count > LARGEST_LIST:
            raise ProtocolError(f"the roster has {count} clients, more than {LARGEST_LIST}")
        members = [Member.read(reader) for _ in range(count)]
        reader.end()
        roster = cls(experiment, server_key, members)
        # One set of clients has one order, so that all bytes with its digest are these.
        if [m.client for m in members] != list(roster.members):
            raise ProtocolError("the clients of the roster do not ascend")
        for member in members if verify else ():
            member.check(experiment)
        return roster

    @cached_property
    def digest(self) -> bytes:
        return digest("roster", self.to_bytes())

    @property
    def is_drawn(self) -> bool:
        return len(self.members) > COMMITTEE

    def reveal(self, coins: bytes) -> None:
        if len(coins) != KEY * len(self.members):
            raise ProtocolError(f"{len(coins)} bytes are not the coins of {len(self.members)} clients")
        # Commit, then reveal: nobody chose its coin after it had seen those of others.
        for i, member in enumerate(self.members.values()):
            coin = coins[KEY * i : KEY * (i + 1)]
            if commitment(self.experiment, member.client, coin) != member.commitment:
                raise ProtocolError(f"the coin of client {member.client} is not the one of the roster")
        self.coins = coins

    def _drawn(self, label: str) -> list[int]:
        if not self.coins:
            raise ProtocolError("the coins of the clients have not been revealed yet")
        # Ordered by a hash: whoever fixed the keys did not know the last honest coin, and can steer nothing.
        seed = digest("draw", self.digest, self.coins)
        return sorted(self.members, key=lambda client: digest(label, seed, number(client, 4)))

    @cached_property
    def committee(self) -> tuple[int, ...]:
        return tuple(sorted(self._drawn("seat")[:COMMITTEE])) if self.is_drawn else tuple(self.members)

    @cached_property
    def ring(self) -> tuple[int, ...]:
        return tuple(self._drawn("place") if self.is_drawn else self.members)

    def bits(self, clients: Iterable[int]) -> int:
        """A set of clients as a number: its bit i stands for the i-th client of the roster."""
        chosen = set(clients)
        return sum(1 << i for i, client in enumerate(self.members) if client in chosen)

    @property
    def threshold(self) -> int:
        return threshold(len(self.committee))

    def member(self, client: int, what: str) -> Member:
        if client not in self.members:
            raise ProtocolError(f"{what}: client {client} is not in the roster")
        return self.members[client]


def read_peers(path: str | Path) -> dict[int, bytes]:
    """Each client's public Ed25519 key, from a TOML file with lines such as `3 = "d75a98..."`."""
    try:
        table = read_user_toml(Path(path), 2**24)
    except OSError as error:
        raise InvalidInput(f"cannot read the peers in {path}: {error.strerror or error}") from None
    for name, key in table.items():
        if not re.fullmatch(r"0|[1-9]\d{0,8}", name, re.ASCII) or not (
            isinstance(key, str) and re.fullmatch(r"[0-9a-fA-F]{64}", key)
        ):
            raise InvalidInput(
                f"{path}: {name:.40} is no client's number with its public key of 64 hexadecimal digits: write "
                '3 = "d75a98...", as the node of client 3 shows it'
            )
    return {int(name): bytes.fromhex(key) for name, key in table.items()}
