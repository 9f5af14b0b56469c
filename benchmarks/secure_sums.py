"""What secure sums cost: processor time of server and client, and bytes, with real cryptography in one process.

    python benchmarks/secure_sums.py                      10, 100 and 1,000 clients, a million parameters, 5 % lost
    python benchmarks/secure_sums.py --clients 100 --parameters 10_000 --lost 0.2

Clients answer one after the other, each read from its files, so that memory is that of one message and of all shares.
Times are processor times of one thread; training is not in them. Each sum is compared with the plain one.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.deploy.secure.attempt import Words
from fedsolve.deploy.secure.client import NodeSecrets
from fedsolve.deploy.secure.server import SecureServer

ASKED = bytes(32)
HEAD = (
    "| clients | masks of a client | lost | server | client | member of the committee | more bytes up "
    "| to and from the committee | memory |\n|---|---|---|---|---|---|---|---|---|"
)


class Clock:
    """Adds up the processor time of what it calls."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, work: Callable[..., Any], *given: Any) -> Any:
        """The result of a call."""
        start = time.process_time()
        result = work(*given)
        self.seconds.append(time.process_time() - start)
        return result


def measure(clients: int, parameters: int, lost: float, folder: str) -> str:
    """One row of the table."""

    def node(client: int) -> NodeSecrets:
        return NodeSecrets(folder, "secure-sums", client)

    def mask(client: int, order: bytes) -> bytes:
        return node(client).mask(order, Words(plain, parameters, 1, "train", 0, ASKED))

    def unmask(member: int, request: bytes) -> bytes:
        return node(member).unmask(request)

    server = SecureServer.of(node(i).hello() for i in range(clients))
    roster = server.roster.to_bytes()
    coins = node(0).enrol(roster)
    for i in range(1, clients):  # all would verify the same signatures
        (Path(folder) / "secure-sums" / f"client-{i}-secure" / "roster.bin").write_bytes(roster)
        coins += node(i)._load().coin
    if server.roster.is_drawn:
        server.roster.reveal(coins)
        for i in range(clients):
            (Path(folder) / "secure-sums" / f"client-{i}-secure" / "coins.bin").write_bytes(coins)
    rng = np.random.default_rng(0)
    gone = set(rng.choice(clients, round(lost * clients), replace=False).tolist())
    words = rng.integers(0, 2**32, parameters, dtype=np.uint32)
    plain = words.tobytes() + bytes(8)
    serving, masking, opening = Clock(), Clock(), Clock()
    sums = serving(server.begin, "train", 0, range(clients), parameters, 1, ASKED)
    sizes = []
    for i in range(clients):
        order = serving(sums.order, i)
        if i in gone:
            continue
        reply = masking(mask, i, order)
        sizes.append(len(reply) - len(plain))
        serving(sums.add, i, reply)
    serving(sums.close)
    traffic = 0
    for member in sums.committee:
        request = serving(sums.unmask_request, member)
        answer = opening(unmask, member, request)
        traffic += len(request) + len(answer)
        serving(sums.add_shares, member, answer)
    opened = serving(sums.result)
    count = clients - len(gone)
    if not np.array_equal(np.frombuffer(opened.words, "<u4", parameters), words * np.uint32(count)):
        raise SystemExit("the sum is not the plain one")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    more = np.mean(sizes) / len(plain)
    return (
        f"| {clients:,} | {len(sums.attempt.graph.neighbours(0)) + 1} | {len(gone)} | {sum(serving.seconds):.2f} s "
        f"| {1e3 * np.median(masking.seconds):.0f} ms | {1e3 * np.median(opening.seconds):.0f} ms "
        f"| {np.mean(sizes) / 1e3:.0f} kB ({more:.1%}) | {traffic / 1e6:.1f} MB | {peak:,.0f} MB |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--lost", type=float, default=0.05)
    given = parser.parse_args()
    print(HEAD)
    for clients in given.clients:
        with tempfile.TemporaryDirectory() as folder:
            print(measure(clients, given.parameters, given.lost, folder), flush=True)


if __name__ == "__main__":
    main()
