"""How a sum is opened: each member of the committee decrypts its shares, once, and the server puts secrets together.

Of a client that arrived the members give their shares of its own secret; of one that is missing, those of the secrets
that it shares with clients that arrived. Nobody gives both of one client, so that one message alone stays masked.
"""

from __future__ import annotations

import secrets as system
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import combinations
from math import comb

from fedsolve.deploy.secure import primitives as p
from fedsolve.deploy.secure import shamir
from fedsolve.deploy.secure.attempt import Attempt
from fedsolve.deploy.secure.byte_reader import ProtocolError, Reader, SumNotOpened, client_list, names, number
from fedsolve.deploy.secure.masked_reply import seal_key, sealed_size, secret_digest
from fedsolve.deploy.secure.roster import Roster

_REQUEST, _ANSWER = b"fsu1", b"fsa1"
_TRIES = 2000  # sets of shares that are tried for one secret


class Lists:
    """Which clients of a cohort arrived and which are missing.

    Raises:
        ProtocolError: the lists overlap, or are not the cohort, or too few arrived.
    """

    def __init__(
        self, attempt: Attempt, arrived: Sequence[int], missing: Sequence[int], min_sum: int
    ) -> None:
        if both := set(arrived) & set(missing):
            raise ProtocolError(
                f"{attempt}: clients {names(sorted(both))} are listed as arrived and as missing"
            )
        if set(arrived) | set(missing) != set(attempt.cohort):
            raise ProtocolError(
                f"{attempt}: the clients that arrived and those that are missing are not the cohort"
            )
        self.attempt, self.arrived, self.missing, self.min_sum = (
            attempt,
            tuple(arrived),
            tuple(missing),
            min_sum,
        )
        self.check_enough(len(arrived), "arrived")
        attempt.graph.check_arrived(set(arrived))

    def check_enough(self, count: int, what: str) -> None:
        """Raise `ProtocolError` if a sum of so many clients tells too much of each."""
        if count < self.min_sum:
            raise ProtocolError(
                f"{self.attempt}: {count} clients {what}, fewer than min_sum = {self.min_sum}"
            )

    def to_bytes(self) -> bytes:
        """The lists as a message has them."""
        return client_list(self.arrived) + client_list(self.missing)

    @cached_property
    def digest(self) -> bytes:
        """What an answer is bound to."""
        return p.digest("lists", self.attempt.context, self.to_bytes())

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """The secrets that open the sum, in order: (u, u) is that of u alone, (u, v) that of u with a missing v."""
        gone, graph = set(self.missing), self.attempt.graph
        return [
            (client, other)
            for client in self.arrived
            for other in (client, *(v for v in graph.neighbours(client) if v in gone))
        ]


def request_bytes(lists: Lists, sealed: Mapping[int, bytes]) -> bytes:
    """The request to one member, with the shares that the clients that arrived have encrypted to it."""
    return _REQUEST + lists.attempt.to_bytes() + lists.to_bytes() + b"".join(sealed[u] for u in lists.arrived)


def read_request(request: bytes, roster: Roster, member: int, min_sum: int) -> tuple[Lists, dict[int, bytes]]:
    """The lists of a request, checked, and each client's encrypted shares.

    Raises:
        ProtocolError: another roster, lists that overlap, that are not the cohort or too short, or no member is asked.
    """
    reader = Reader(request, _REQUEST, "the unmask request")
    attempt = Attempt.read(reader, roster, "the unmask request")
    if member not in roster.committee:
        raise ProtocolError(f"client {member} is no member of the committee")
    lists = Lists(attempt, reader.clients(), reader.clients(), min_sum)
    sealed = {client: reader.take(sealed_size(attempt)) for client in lists.arrived}
    reader.end()
    return lists, sealed


def member_answer(
    lists: Lists, sealed: Mapping[int, bytes], member: int, identity: bytes, share_key: bytes
) -> bytes:
    """A member's shares of the secrets that open the sum; of clients whose shares it cannot read it gives none.

    Raises:
        ProtocolError: fewer than min_sum clients have sent it shares of this attempt.
    """
    attempt, context = lists.attempt, lists.attempt.context
    gone, parts, readable = set(lists.missing), [], 0
    for client in lists.arrived:
        neighbours = attempt.graph.neighbours(client)
        wanted = [0, *(1 + i for i, other in enumerate(neighbours) if other in gone)]
        key = seal_key(context, share_key, attempt.roster.members[client].share_key, client, member)
        shares = p.unseal(key, sealed[client], context + number(client, 4) + number(member, 4))
        if shares is None:
            parts.append(bytes(1 + shamir.SHARE * len(wanted)))
            continue
        readable += 1
        listed = (shares[shamir.SHARE * i : shamir.SHARE * (i + 1)] for i in wanted)
        parts.append(b"\1" + b"".join(listed))
    lists.check_enough(readable, "have sent shares that this member can read")
    head = _ANSWER + context + lists.digest + number(member, 4) + b"".join(parts)
    return head + p.sign(identity, "answer", head)


def read_answer(answer: bytes, lists: Lists, member: int) -> dict[tuple[int, int], int]:
    """A member's shares by secret.

    Raises:
        ProtocolError: it is cut or too long, of another attempt or other lists, or not what that member signed.
    """
    what, attempt = f"the answer of member {member}", lists.attempt
    reader = Reader(answer, _ANSWER, what)
    if reader.take(p.KEY) != attempt.context or reader.take(p.KEY) != lists.digest:
        raise ProtocolError(f"{what} is of another attempt or other lists than {attempt}")
    if (said := reader.number(4)) != member or member not in attempt.roster.committee:
        raise ProtocolError(f"{what} says that it is of client {said}, or that is no member")
    shares, given = {}, False
    for client, other in lists.pairs:
        if client == other:
            given = reader.number(1) == 1
        value = reader.number(shamir.SHARE)
        if given and value < shamir.PRIME:
            shares[client, other] = value
    head = answer[: reader.at]
    p.check_signature(attempt.roster.members[member].identity, reader.take(p.SIGNATURE), what, "answer", head)
    reader.end()
    return shares


@lru_cache(maxsize=64)
def _weights(seats: tuple[int, ...]) -> list[int]:
    """Lagrange's weights, with their inverses once for each set of members."""
    return shamir.weights(seats)


class Opening:
    """The secrets of a sum, put together from any threshold of the members' shares.

    Args:
        lists: who arrived and who is missing.
        digests: of every secret, as the clients that arrived have sent them.

    Attributes:
        suspects: members whose shares do not fit the others'.

    Source: Bonawitz et al. (2017), round 4; Ma et al. (2023) for the committee.
    """

    def __init__(self, lists: Lists, digests: Mapping[tuple[int, int], bytes]) -> None:
        self._lists, self._digests, self._pairs = lists, digests, lists.pairs
        roster = lists.attempt.roster
        self._threshold = roster.threshold
        self._seat = {member: i for i, member in enumerate(roster.committee, 1)}
        self._shares: dict[int, dict[tuple[int, int], int]] = {}
        self.suspects: set[int] = set()

    def add(self, member: int, answer: bytes) -> None:
        """Note a member's answer; `ProtocolError` if it is not one, or the member's second."""
        if member in self._shares:
            raise ProtocolError(f"member {member} has answered {self._lists.attempt} already")
        self._shares[member] = read_answer(answer, self._lists, member)

    @property
    def silent(self) -> list[int]:
        """Members that have not answered."""
        return [member for member in self._seat if member not in self._shares]

    def secrets(self) -> dict[tuple[int, int], bytes]:
        """Every secret that opens the sum.

        Raises:
            SumNotOpened: too few members answered, or no set of shares gives what a client's digest says.
        """
        if len(self._shares) < self._threshold:
            raise SumNotOpened(
                f"{self._lists.attempt}: {len(self._shares)} of {len(self._seat)} members of the committee answered, "
                f"{self._threshold} are needed; without answer: {names(self.silent)}; clients missing: "
                f"{names(self._lists.missing)}",
                missing=self.silent,
            )
        return {pair: self._secret(pair) for pair in self._pairs}

    def _secret(self, pair: tuple[int, int]) -> bytes:
        """One secret: from the first members, or if its digest is another, from the first set of them that fits."""
        members = [m for m in self._shares if pair in self._shares[m]]
        members.sort(key=lambda m: m in self.suspects)
        for chosen in self._choices(members):
            secret = self._combined(pair, chosen)
            if secret is not None:
                if chosen != tuple(members[: self._threshold]):
                    self._find_suspects(pair, chosen, members)
                return secret
        raise SumNotOpened(
            f"{self._lists.attempt}: the shares that client {pair[0]} has sent do not give its secret: leave it out of "
            "the next attempt",
            missing=self.silent,
            at_fault=pair[:1],
        )

    def _choices(self, members: list[int]) -> Iterator[tuple[int, ...]]:
        """Sets of members that may give a secret: the first ones, then all others, or many at random."""
        if len(members) < self._threshold:
            return
        yield tuple(members[: self._threshold])
        if comb(len(members), self._threshold) <= _TRIES:
            yield from combinations(members, self._threshold)
        else:
            draw = system.SystemRandom()
            yield from (tuple(draw.sample(members, self._threshold)) for _ in range(_TRIES))

    def _combined(self, pair: tuple[int, int], chosen: tuple[int, ...]) -> bytes | None:
        """The secret that these members' shares give; None if its digest is another."""
        value = shamir.combine(
            _weights(tuple(self._seat[m] for m in chosen)), [self._shares[m][pair] for m in chosen]
        )
        if value >= 2**256:
            return None
        secret = value.to_bytes(p.KEY, "little")
        fits = secret_digest(self._lists.attempt.context, *pair, secret) == self._digests[pair]
        return secret if fits else None

    def _find_suspects(self, pair: tuple[int, int], chosen: tuple[int, ...], members: list[int]) -> None:
        """Note the members whose shares are not on the polynomial of those that fit."""
        seats, shares = tuple(self._seat[m] for m in chosen), [self._shares[m][pair] for m in chosen]
        for member in set(members) - set(chosen):
            expected = shamir.combine(shamir.weights(seats, self._seat[member]), shares)
            if expected != self._shares[member][pair]:
                self.suspects.add(member)
