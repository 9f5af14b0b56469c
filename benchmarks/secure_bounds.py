"""How safe secure sums are against a server with some of the clients, and when a round stays closed.

    python benchmarks/secure_bounds.py                  the table of docs/security-model.md, by exact probabilities

Who opens sums, and who shares masks, is drawn once for an experiment, by coins that each client is bound to before
the first honest one is shown. A party that tries 2^60 coins, keys, cohorts or requests learns nothing from that: to
know a draw before, it must guess a coin of 256 bits of an honest client, which succeeds with probability 2^-196. What
it can do is to begin again, with all honest clients: 2^k beginnings add k to the exponents of the table.
"""

from __future__ import annotations

import argparse
from math import ceil, comb, log2

from fedsolve.deploy.secure.attempt import COMPLETE, ways, width
from fedsolve.deploy.secure.keys import COMMITTEE, threshold

CERTAIN = 999.0
"""In the place of infinity: nothing is left to chance."""


def exponent(favourable: int, possible: int) -> float:
    """k of a probability 2^-k."""
    return CERTAIN if favourable == 0 else max(0.0, log2(possible) - log2(favourable))


def committee_fails(clients: int, corrupt: float) -> float:
    """k, where 2^-k is the probability that so many members are corrupt that two lists of one attempt can be opened."""
    members = min(clients, COMMITTEE)
    needed = 2 * threshold(members) - members
    bad = ceil(corrupt * clients)
    return exponent(ways(clients, bad, members, needed), comb(clients, members))


def ring_fails(clients: int, corrupt: float) -> float:
    """k, where 2^-k bounds the probability that some honest clients share masks with corrupt ones alone."""
    found = width(clients, clients) if clients > COMPLETE else None
    if found is None:
        return CERTAIN
    pairs, drawn = clients * (clients - 1) // 2, 2 * found.reach
    bad = ceil(corrupt * clients)
    return exponent(pairs * ways(clients, bad, drawn, 2 * found.arrived), comb(clients, drawn))


def round_stays_closed(clients: int, lost: float) -> float:
    """k, where 2^-k bounds the probability that a round is not opened if so many are lost at random before they reply.

    Those that are lost do not answer for the committee either.
    """
    gone, members = ceil(lost * clients), min(clients, COMMITTEE)
    too_many = ways(clients, gone, members, members - threshold(members) + 1) / comb(clients, members)
    found = width(clients, clients) if clients > COMPLETE else None
    if found is not None:
        reach, arrived = found
        too_many += clients * ways(clients, gone, reach, reach - arrived + 1) / comb(clients, reach)
    return CERTAIN if too_many == 0 else max(0.0, -log2(too_many))


def shown(k: float) -> str:
    """A probability in a table."""
    return "0" if k == CERTAIN else "1" if k < 1 else f"$2^{{-{int(k)}}}$"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 30, 64, 100, 200, 500, 1000])
    parser.add_argument("--corrupt", type=float, nargs="+", default=[0.05, 0.1, 0.2])
    parser.add_argument("--lost", type=float, default=0.3)
    given = parser.parse_args()
    shares = " | ".join(f"{share:.0%} corrupt" for share in given.corrupt)
    print(f"| clients | committee | masks of a client | {shares} | closed, {given.lost:.0%} lost |")
    print("|---" * (4 + len(given.corrupt)) + "|")
    for clients in given.clients:
        found = width(clients, clients) if clients > COMPLETE else None
        masks = clients - 1 if found is None else 2 * found.reach
        fails = [
            shown(min(committee_fails(clients, share), ring_fails(clients, share))) for share in given.corrupt
        ]
        closed = shown(round_stays_closed(clients, given.lost))
        print(f"| {clients:,} | {min(clients, COMMITTEE)} | {masks} | {' | '.join(fails)} | {closed} |")


if __name__ == "__main__":
    main()
