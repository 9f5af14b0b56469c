"""A small experiment with secure sums: every step on objects that are read from files or bytes again."""

from __future__ import annotations

import numpy as np

from fedsolve.deploy.secure.attempt import Words
from fedsolve.deploy.secure.client import NodeSecrets
from fedsolve.deploy.secure.server import SecureServer

N32, N64 = 5, 2
ASKED = bytes(range(32))
"""The digest of what all clients are asked."""


class Small:
    """Clients 0, ..., n - 1, their server, and what they have logged."""

    def __init__(self, folder, clients, enrol=True, **given):
        self.folder, self.given, self.log = folder, given, []
        self.clients = range(clients)
        self.server = SecureServer.of([self.node(i).hello() for i in self.clients])
        self.roster = self.server.roster.to_bytes()
        coins = [self.node(i).enrol(self.roster) for i in self.clients] if enrol else []
        if self.server.roster.is_drawn and coins:
            self.server.roster.reveal(b"".join(coins))
            for i in self.clients:
                self.node(i).reveal(self.server.roster.coins)

    def node(self, client):
        """A process that was just started."""
        return NodeSecrets(self.folder, "e", client, log=self.log.append, **self.given)

    def begin(self, round=0, kind="train", cohort=None):
        """An attempt of a server that was started again meanwhile."""
        self.server = SecureServer.from_bytes(self.server.to_bytes())
        return self.server.begin(kind, round, self.clients if cohort is None else cohort, N32, N64, ASKED)

    def again(self, sums):
        """The attempt, read from its bytes."""
        return self.server.restore(sums.to_bytes())

    def reply(self, sums, client, given=None):
        return self.node(client).mask(sums.order(client), message(sums, given or words(client)))

    def gather(self, sums, arrived):
        """Replies of these clients in this order, then the end of waiting."""
        for client in arrived:
            sums.add(client, self.reply(sums, client))
        sums.close()
        return sums

    def answer(self, sums, member):
        return self.node(member).unmask(sums.unmask_request(member))

    def secrets(self, client):
        return self.folder / "e" / f"client-{client}-secure" / "secrets.bin"


def many(tmp_path, count):
    """An experiment of so many clients; the first checks everybody's signatures, and the others have its files."""
    small = Small(tmp_path, count, enrol=False)
    coins = [small.node(0).enrol(small.roster)]
    for i in small.clients[1:]:
        folder = small.secrets(i).parent
        (folder / "roster.bin").write_bytes(small.roster)
        coins.append(small.node(i)._load().coin)
    small.server.roster.reveal(b"".join(coins))
    small.node(0).reveal(b"".join(coins))
    for i in small.clients[1:]:
        (small.secrets(i).parent / "coins.bin").write_bytes(b"".join(coins))
    return small


def message(sums, data, n32=N32, n64=N64):
    """A client's words, as they are for an attempt."""
    return Words(data, n32, n64, sums.attempt.kind, sums.attempt.round, ASKED)


def words(client, seed=0):
    """A client's message: all values occur, so that sums run over."""
    rng = np.random.default_rng([seed, client])
    short, long = rng.integers(0, 2**32, N32, np.uint32), rng.integers(0, 2**64, N64, np.uint64)
    return short.astype("<u4").tobytes() + long.astype("<u8").tobytes()


def plain_sum(messages):
    """Sums of integers of any size, then the remainder."""
    columns = zip(
        *([int.from_bytes(m[4 * i : 4 * i + 4], "little") for i in range(N32)] for m in messages), strict=True
    )
    short = b"".join((sum(c) % 2**32).to_bytes(4, "little") for c in columns)
    starts = [4 * N32 + 8 * i for i in range(N64)]
    columns = zip(
        *([int.from_bytes(m[at : at + 8], "little") for at in starts] for m in messages), strict=True
    )
    return short + b"".join((sum(c) % 2**64).to_bytes(8, "little") for c in columns)
