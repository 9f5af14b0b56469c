"""How a sum is opened: each member of the committee decrypts its shares, once, and the server puts secrets together.

Of a client that arrived the members give their shares of its own secret; of one that is missing, those of the secrets
that it shares with clients that arrived. Nobody gives both of one client, so that one message alone stays masked.

A member that cannot read a client's shares, or has others than the client says, or whose owner allows no sum of so few,
gives none of anybody, and names it: the sum can then be asked for without that client. Shares that a member gives are
compared with what clients say, so that any threshold of answers opens the sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from fedsolve.deploy.secure import primitives as p
from fedsolve.deploy.secure import shamir
from fedsolve.deploy.secure.attempt import Attempt
from fedsolve.deploy.secure.byte_reader import ProtocolError, Reader, SumNotOpened, client_list, names, number
from fedsolve.deploy.secure.masked_reply import LEAST, seal_key, sealed_size, secrets_of, share_digests
from fedsolve.deploy.secure.roster import SMALLEST, Roster

_REQUEST, _ANSWER = b"fsu2", b"fsa3"


class Lists:
    """Which clients of a cohort arrived and which are missing.

    Raises:
        ProtocolError: the lists overlap, or are not the cohort, or too few arrived.
    """

    def __init__(self, attempt: Attempt, arrived: Sequence[int], missing: Sequence[int]) -> None:
        if both := set(arrived) & set(missing):
            raise ProtocolError(
                f"{attempt}: clients {names(sorted(both))} are listed as arrived and as missing"
            )
        if set(arrived) | set(missing) != set(attempt.cohort):
            raise ProtocolError(
                f"{attempt}: the clients that arrived and those that are missing are not the cohort"
            )
        if len(arrived) < SMALLEST:
            raise ProtocolError(f"{attempt}: {len(arrived)} clients arrived, fewer than min_sum = {SMALLEST}")
        self.attempt, self.arrived, self.missing = attempt, tuple(arrived), tuple(missing)
        attempt.graph.check_arrived(set(arrived))

    def to_bytes(self) -> bytes:
        """The lists as a message has them."""
        return client_list(self.arrived) + client_list(self.missing)

    @cached_property
    def digest(self) -> bytes:
        """What an answer is bound to."""
        return p.digest("lists", self.attempt.context, self.to_bytes())

    @cached_property
    def opened(self) -> dict[int, tuple[int, ...]]:
        """Of each client that arrived the secrets that open the sum, as places in `secrets_of`."""
        gone = set(self.missing)
        return {
            client: tuple(
                i for i, other in enumerate(secrets_of(self.attempt, client)) if i == 0 or other in gone
            )
            for client in self.arrived
        }


class Sealed(NamedTuple):
    """What a client has for one member: its encrypted shares, and digests of them; on the way of those to be given."""

    shares: bytes
    digests: bytes

    def given(self, wanted: Sequence[int]) -> Sealed:
        """With the digests at some places alone."""
        return Sealed(self.shares, _at(wanted, self.digests, p.TAG))


def _at(places: Sequence[int], parts: bytes, size: int) -> bytes:
    """The parts of so many bytes at some places."""
    return b"".join(parts[size * i : size * (i + 1)] for i in places)


def request_bytes(lists: Lists, sealed: Mapping[int, Sealed]) -> bytes:
    """The request to one member, with what the clients that arrived have for it."""
    parts = [part for client, wanted in lists.opened.items() for part in sealed[client].given(wanted)]
    return _REQUEST + lists.attempt.to_bytes() + lists.to_bytes() + b"".join(parts)


def read_request(request: bytes, roster: Roster, member: int) -> tuple[Lists, dict[int, Sealed]]:
    """The lists of a request, checked, and what each client has for the member.

    Raises:
        ProtocolError: another roster, lists that overlap, that are not the cohort or too short, or no member is asked.
    """
    reader = Reader(request, _REQUEST, "the unmask request")
    attempt = Attempt.read(reader, roster, "the unmask request")
    if member not in roster.committee:
        raise ProtocolError(f"client {member} is no member of the committee")
    lists = Lists(attempt, reader.clients(), reader.clients())
    sealed = {}
    for client, wanted in lists.opened.items():
        shares = reader.take(sealed_size(attempt, client))
        sealed[client] = Sealed(shares, reader.take(p.TAG * len(wanted)))
    reader.end()
    return lists, sealed


class Answer(NamedTuple):
    """What a member says: its shares that open the sum, or the clients for whose sake it gives none.

    Attributes:
        unreadable: clients whose shares it does not have.
        unwilling: clients whose owners allow no sum of so few.
        least: the largest `min_sum` of the clients' owners, which is not sent.
    """

    shares: bytes
    unreadable: tuple[int, ...] = ()
    unwilling: tuple[int, ...] = ()
    least: int = 0


def open_shares(
    lists: Lists, sealed: Mapping[int, Sealed], member: int, share_key: p.X25519PrivateKey
) -> Answer:
    """A member's shares of the secrets that open the sum, or the clients for whose sake there are none."""
    attempt, context = lists.attempt, lists.attempt.context
    parts, unreadable, unwilling, most = [], [], [], 0
    for client, wanted in lists.opened.items():
        key = seal_key(context, share_key, attempt.roster.members[client].share_key, client, member)
        content = p.unseal(key, sealed[client].shares, context + number(client, 4) + number(member, 4)) or b""
        least, shares = int.from_bytes(content[:LEAST], "little"), _at(wanted, content[LEAST:], shamir.SHARE)
        is_read = share_digests(context, client, member, shares) == sealed[client].digests
        if not is_read or least > len(attempt.cohort):  # such an order it would have refused
            unreadable.append(client)
        elif least > len(lists.arrived):
            unwilling.append(client)
        parts.append(shares)
        most = max(most, least)
    shares = b"" if unreadable or unwilling else b"".join(parts)
    return Answer(shares, tuple(unreadable), tuple(unwilling), most)


def answer_bytes(lists: Lists, answer: Answer, member: int, identity: bytes) -> bytes:
    """A member's answer as it is sent."""
    head = _ANSWER + lists.attempt.context + lists.digest + number(member, 4)
    head += client_list(answer.unreadable) + client_list(answer.unwilling) + answer.shares
    return head + p.sign(identity, "answer", head)


def read_answer(answer: bytes, lists: Lists, member: int) -> Answer:
    """A member's answer after every check of its bytes.

    Raises:
        ProtocolError: it is cut or too long, of another attempt or other lists, or not what that member signed.
    """
    what, attempt = f"the answer of member {member}", lists.attempt
    reader = Reader(answer, _ANSWER, what)
    if reader.take(p.KEY) != attempt.context or reader.take(p.KEY) != lists.digest:
        raise ProtocolError(f"{what} is of another attempt or other lists than {attempt}")
    if (said := reader.number(4)) != member or member not in attempt.roster.committee:
        raise ProtocolError(f"{what} says that it is of client {said}, or that is no member")
    unreadable, unwilling = reader.clients(), reader.clients()
    if not {*unreadable, *unwilling} <= set(lists.arrived):
        raise ProtocolError(f"{what} is about clients that did not arrive")
    count = 0 if unreadable or unwilling else sum(map(len, lists.opened.values()))
    shares = reader.take(count * shamir.SHARE)
    head = answer[: reader.at]
    p.check_signature(attempt.roster.members[member].identity, reader.take(p.SIGNATURE), what, "answer", head)
    reader.end()
    return Answer(shares, unreadable, unwilling)


class Opening:
    """The secrets of a sum, put together from any threshold of the members' shares.

    Args:
        lists: who arrived and who is missing.
        sealed: what each client that arrived has for each member.

    Source: Bonawitz et al. (2017), round 4; Ma et al. (2023) for the committee.
    """

    def __init__(self, lists: Lists, sealed: Mapping[int, Sequence[Sealed]]) -> None:
        self._lists, self._sealed = lists, sealed
        roster = lists.attempt.roster
        self._threshold = roster.threshold
        self._seat = {member: i for i, member in enumerate(roster.committee)}
        self._shares: dict[int, bytes] = {}
        self._complaints: dict[int, Answer] = {}
        self._liars: set[int] = set()

    def add(self, member: int, answer: bytes) -> None:
        """Note a member's answer.

        Raises:
            ProtocolError: it is not one, or the member's second, a complaint, or has shares that are not those that
                the clients gave the member, who is at fault then.
        """
        if member in self._shares or member in self._complaints:
            raise ProtocolError(f"member {member} has answered {self._lists.attempt} already")
        found = read_answer(answer, self._lists, member)
        if found.unreadable or found.unwilling:
            self._complaints[member] = found
        if found.unreadable:
            raise ProtocolError(
                f"member {member} does not have the shares that clients {names(found.unreadable)} say they have sent it"
            )
        if found.unwilling:
            raise ProtocolError(
                f"{len(self._lists.arrived)} clients arrived, fewer than min_sum of clients {names(found.unwilling)}"
            )
        at = 0
        for client, wanted in self._lists.opened.items():
            size, told = shamir.SHARE * len(wanted), self._sealed[client][self._seat[member]].given(wanted)
            own, at = found.shares[at : at + size], at + size
            if share_digests(self._lists.attempt.context, client, member, own) != told.digests:
                self._liars.add(member)
                raise ProtocolError(f"member {member} gives other shares than client {client} has sent it")
        self._shares[member] = found.shares

    @property
    def is_enough(self) -> bool:
        """Whether the answers open the sum."""
        return len(self._shares) >= self._threshold

    def secrets(self) -> dict[tuple[int, int], bytes]:
        """Every secret that opens the sum: (u, u) is that of u alone, (u, v) that of u with a missing v.

        Raises:
            SumNotOpened: too few members answered; who is at fault, as far as that is known.
        """
        if not self.is_enough:
            raise self._why_closed()
        members = tuple(self._shares)[: self._threshold]
        points = tuple(self._seat[member] + 1 for member in members)
        found = shamir.combine(points, [self._shares[member] for member in members])
        pairs = [
            (client, secrets_of(self._lists.attempt, client)[i])
            for client, wanted in self._lists.opened.items()
            for i in wanted
        ]
        return {pair: found[p.KEY * i : p.KEY * (i + 1)] for i, pair in enumerate(pairs)}

    def _why_closed(self) -> SumNotOpened:
        """Who did not answer, who is at fault, and whose owners allow no sum of so few.

        Of more members than may be dishonest one is honest: what so many say of a client is true, and so is that it is
        at fault where so many others have its shares. A member that names so many other clients is at fault, too. Of
        the rest nobody can say who lies, the member or the client.
        """
        most = len(self._seat) - self._threshold
        said = self._complaints
        unread = Counter(client for answer in said.values() for client in answer.unreadable)
        named = Counter(client for a in said.values() for client in {*a.unreadable, *a.unwilling})
        agreed = {client for client, count in named.items() if count > most}
        is_read = len(self._shares) > most
        guilty = {client for client in agreed if is_read or unread[client] > most} | self._liars
        unwilling = agreed - guilty
        open_ = {
            m: {*a.unreadable, *a.unwilling} - guilty - unwilling for m, a in said.items() if m not in guilty
        }
        guilty |= {member for member, listed in open_.items() if len(listed) > most}
        pairs = [(m, client) for m, listed in open_.items() if m not in guilty for client in sorted(listed)]
        silent = [m for m in self._seat if m not in self._shares and m not in self._complaints]
        words = (
            f"{self._lists.attempt}: {len(self._shares)} of {len(self._seat)} members of the committee answered, "
            f"{self._threshold} are needed; without answer: {names(silent)}; clients missing: "
            f"{names(self._lists.missing)}"
        )
        if guilty:
            words += f"; at fault, and left out from now on: {names(sorted(guilty))}"
        if unwilling:
            words += (
                f"; fewer than min_sum of {names(sorted(unwilling))}: attempts are without, until all arrive"
            )
        for member, client in pairs:
            words += f"; client {client} and member {member} disagree about shares: the next attempt is without both"
        return SumNotOpened(words, silent, guilty, pairs, unwilling)
