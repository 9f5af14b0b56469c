"""The roster: the long-lived keys of all clients of an experiment; its digest is in every signature and key.

The committee opens the sums: all clients up to 64, else 64 that nobody chooses. Any threshold of its c members,
floor(2 c / 3) + 1, open a sum. Two different lists of one attempt could only be opened if more than a third of them,
2 threshold - c, answered twice: an honest one answers once.

Beyond 64 clients the committee, and the order of all clients from which the graph of masks follows, are drawn by the
coins of all: each client is bound to its coin by the roster, and shows it when it has accepted the roster for good.
Whoever chooses keys, roster or coins does so before it knows the coin of the last honest client, and can try nothing
afterwards; it can only begin another experiment, with every honest client. `benchmarks/secure_bounds.py` has what
such a draw then gives.

A client checks it against its owner's file of peers; without one it pins the first roster that it sees, and then trusts
the server to have shown everybody the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.secure.byte_reader import LARGEST_LIST, ProtocolError, Reader, names, number
from fedsolve.deploy.secure.identity import Member, commitment, read_hello
from fedsolve.deploy.secure.primitives import KEY, digest
from fedsolve.folders.untrusted import read_user_toml

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
    """What stands for an experiment's name in messages."""
    return digest("experiment", experiment.encode())


class Roster:
    """The long-lived keys of all clients.

    Attributes:
        experiment: the digest of its name.
        server_key: the server's X25519 key, with which clients authenticate masked words.
        members: each client's keys, by number.
        coins: those of all clients in the order of their numbers; b"" before they are revealed, and where nothing is
            drawn.

    Source: Bonawitz et al. (2017), "Practical secure aggregation for privacy-preserving machine learning", round 0;
    kept for all rounds as in Ma et al. (2023), "Flamingo".
    """

    def __init__(self, experiment: bytes, server_key: bytes, members: Iterable[Member]) -> None:
        listed = sorted(members)
        if not SMALLEST <= len(listed) <= LARGEST_LIST:
            raise ProtocolError(
                f"the roster has {len(listed)} clients: secure sums need {SMALLEST} at least, {LARGEST_LIST} at most"
            )
        self.experiment, self.server_key = experiment, server_key
        self.members = {member.client: member for member in listed}
        self.coins = b""
        for what, keys in (
            ("number", {m.client for m in listed}),
            ("identity", {m.identity for m in listed}),
            ("share key", {m.share_key for m in listed}),
        ):
            if len(keys) != len(listed):
                raise ProtocolError(f"two clients of the roster have the same {what}")

    @classmethod
    def of(cls, hellos: Iterable[bytes], server_key: bytes) -> Roster:
        """The roster of the clients that said hello.

        Raises:
            ProtocolError: a hello is damaged or forged, or of another experiment, or fewer than 3 came.
        """
        read = [read_hello(hello) for hello in hellos]
        if len({experiment for experiment, _, _ in read}) > 1:
            raise ProtocolError("the hellos are of different experiments")
        return cls(read[0][0] if read else b"", server_key, (member for _, member, _ in read))

    def to_bytes(self) -> bytes:
        """The roster as it is sent to every client."""
        entries = b"".join(member.to_bytes() for member in self.members.values())
        return _ROSTER + self.experiment + self.server_key + number(len(self.members), 4) + entries

    @classmethod
    def read(cls, data: bytes, *, verify: bool = True) -> Roster:
        """The roster from bytes; `verify` its signatures unless they were verified before.

        Raises:
            ProtocolError: it is damaged, its clients do not ascend, or a signature is wrong.
        """
        reader = Reader(data, _ROSTER, "the roster")
        experiment, server_key, count = reader.take(KEY), reader.take(KEY), reader.number(4)
        if count > LARGEST_LIST:
            raise ProtocolError(f"the roster has {count} clients, more than {LARGEST_LIST}")
        members = [Member.read(reader) for _ in range(count)]
        reader.end()
        roster = cls(experiment, server_key, members)
        if [m.client for m in members] != list(roster.members):
            raise ProtocolError("the clients of the roster do not ascend")
        for member in members if verify else ():
            member.check(experiment)
        return roster

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the roster."""
        return digest("roster", self.to_bytes())

    @property
    def is_drawn(self) -> bool:
        """Whether committee and graph are drawn by coins."""
        return len(self.members) > COMMITTEE

    def reveal(self, coins: bytes) -> None:
        """Take the coins of all clients, 32 bytes each.

        Raises:
            ProtocolError: a coin is not the one that its client committed itself to.
        """
        if len(coins) != KEY * len(self.members):
            raise ProtocolError(f"{len(coins)} bytes are not the coins of {len(self.members)} clients")
        for i, member in enumerate(self.members.values()):
            coin = coins[KEY * i : KEY * (i + 1)]
            if commitment(self.experiment, member.client, coin) != member.commitment:
                raise ProtocolError(f"the coin of client {member.client} is not the one of the roster")
        self.coins = coins

    def _drawn(self, label: str) -> list[int]:
        """All clients in an order that follows from the coins."""
        if not self.coins:
            raise ProtocolError("the coins of the clients have not been revealed yet")
        seed = digest("draw", self.digest, self.coins)
        return sorted(self.members, key=lambda client: digest(label, seed, number(client, 4)))

    @cached_property
    def committee(self) -> tuple[int, ...]:
        """The clients that open the sums, ascending."""
        return tuple(sorted(self._drawn("seat")[:COMMITTEE])) if self.is_drawn else tuple(self.members)

    @cached_property
    def ring(self) -> tuple[int, ...]:
        """All clients in the order in which the graph of masks has them."""
        return tuple(self._drawn("place") if self.is_drawn else self.members)

    def bits(self, clients: Iterable[int]) -> int:
        """A set of clients as a number: its bit i stands for the i-th client of the roster."""
        chosen = set(clients)
        return sum(1 << i for i, client in enumerate(self.members) if client in chosen)

    @property
    def threshold(self) -> int:
        """How many of the committee must answer."""
        return threshold(len(self.committee))

    def member(self, client: int, what: str) -> Member:
        """The keys of a client; `ProtocolError` if it is none of the roster."""
        if client not in self.members:
            raise ProtocolError(f"{what}: client {client} is not in the roster")
        return self.members[client]


def check_peers(roster: Roster, peers: Mapping[int, bytes]) -> None:
    """Raise `ProtocolError` unless every client of the roster has the identity that the owner's file says."""
    wrong = [m.client for m in roster.members.values() if peers.get(m.client) != m.identity]
    if wrong:
        raise ProtocolError(f"the identity of clients {names(wrong)} is not that of the file of peers")


def read_peers(path: str | Path) -> dict[int, bytes]:
    """Each client's public Ed25519 key, from a TOML file with lines such as `3 = "d75a98..."`.

    Raises:
        InvalidInput: the file cannot be read, or a line is no client's number with 64 hexadecimal digits.
    """
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
