"""Both ends of a mask: a client masks its reply and shares what opens it, and the committee opens the sum.

With w a client's words, b_u a new random secret and s_uv = s_vu the secret of a pair, a client u sends

    y_u = w_u + PRG(b_u) + sum over v > u of PRG(s_uv) - sum over v < u of PRG(s_uv)    modulo 2^32 or 2^64

with Shamir shares of b_u and of each s_uv, one of each for every member of the committee, encrypted to it, and a
digest of every share: so a member sees before it answers whether it has what the client says, and the server sees
whether the member gives what it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fedsolve.deploy.secure import primitives as p
from fedsolve.deploy.secure.attempt import Attempt
from fedsolve.deploy.secure.keys import SMALLEST, PreKey, Roster, bundle_bytes, read_bundle
from fedsolve.deploy.secure.primitives import ProtocolError, Reader, SumNotOpened, client_list, names, number

_ORDER, _REPLY = b"fso2", b"fsm2"


class Order(NamedTuple):
    """What a client is asked for: the attempt, its own pre-key (number and public key), and those of its neighbours."""

    attempt: Attempt
    own: tuple[int, bytes]
    neighbours: dict[int, PreKey]


def order_bytes(attempt: Attempt, client: int, keys: Mapping[int, PreKey]) -> bytes:
    neighbours = attempt.graph.neighbours(client)
    listed = b"".join(number(other, 4) + keys[other].to_bytes() for other in neighbours)
    own = number(keys[client].number, 4) + keys[client].public
    return _ORDER + attempt.to_bytes() + own + number(len(neighbours), 4) + listed


def read_order(order: bytes, roster: Roster, client: int, min_sum: int) -> Order:
    """An order after every check that needs no memory."""
    reader = Reader(order, _ORDER, "the order")
    attempt = Attempt.read(reader, roster, "the order")
    own, count = (reader.number(4), reader.take(p.KEY)), reader.number(4)
    if client not in attempt.cohort:
        raise ProtocolError(f"the order of {attempt} is for a cohort without client {client}")
    if len(attempt.cohort) < min_sum:
        raise ProtocolError(
            f"{attempt}: a cohort of {len(attempt.cohort)} is below min_sum = {min_sum} of this client's owner"
        )
    neighbours = attempt.graph.neighbours(client)
    # The client computes its neighbours itself: a server that chose them could give it accomplices
    # alone, whose masks it knows.
    if count != len(neighbours):
        raise ProtocolError(f"{attempt}: the graph gives {len(neighbours)} neighbours, the order {count}")
    keys = {}
    for expected in neighbours:
        other = reader.number(4)
        if other != expected:
            raise ProtocolError(f"{attempt}: the order has client {other} where the graph has {expected}")
        keys[other] = PreKey.read(reader)
    reader.end()
    for other, key in keys.items():
        key.check(roster.members[other].owner(roster.experiment))
    return Order(attempt, own, keys)


def pair_secret(
    attempt: Attempt, client: int, own: tuple[p.X25519PrivateKey, bytes], other: int, public: bytes
) -> bytes:
    # In the order of their numbers: both derive it from the same bytes.
    low, high = sorted(((client, own[1]), (other, public)))
    pair = number(low[0], 4) + number(high[0], 4) + low[1] + high[1]
    return p.derive(p.agree(own[0], public), "pair", attempt.context, pair)


def share_digests(context: bytes, client: int, member: int, shares: bytes) -> bytes:
    digests = p.digests("share", (context, number(client, 4), number(member, 4)), shares, p.SHARE)
    return b"".join(digest[: p.TAG] for digest in digests)


def mask_key(context: bytes, secret: bytes) -> bytes:
    return p.derive(secret, "mask", context)


def seal_key(context: bytes, private: p.X25519PrivateKey, public: bytes, sender: int, member: int) -> bytes:
    return p.derive(p.agree(private, public), "shares", context, number(sender, 4), number(member, 4))


def words_key(context: bytes, private: bytes | p.X25519PrivateKey, public: bytes, client: int) -> bytes:
    return p.derive(p.agree(private, public), "words", context, number(client, 4))


def secrets_of(attempt: Attempt, client: int) -> tuple[int, ...]:
    """Whom a client has secrets with, in the order in which it shares them: itself, then its neighbours."""
    return (client, *attempt.graph.neighbours(client))


LEAST = 4
"""Bytes of the number before a client's shares: of the clients whose sum its owner lets be opened, at least."""


def sealed_size(attempt: Attempt, client: int) -> int:
    """Bytes of what a client seals for one member: its owner's `min_sum`, and its shares."""
    return LEAST + len(secrets_of(attempt, client)) * p.SHARE + p.SEAL


class PrivateKeys(NamedTuple):
    """What a client uses of its own: its identity, its share key, the pre-key of this attempt, and its `min_sum`."""

    identity: bytes
    share_key: p.X25519PrivateKey
    pre_key: p.X25519PrivateKey
    min_sum: int


def masked_reply(order: Order, client: int, private: PrivateKeys, words: bytes, fresh: list[PreKey]) -> bytes:
    """A client's reply: masked words, shares for every member with their digests, and new pre-keys."""
    # Source: Bell et al. (2020), algorithm 2, with pre-keys and a committee in the place of its first two rounds.
    attempt, roster = order.attempt, order.attempt.roster
    context, own = attempt.context, (private.pre_key, order.own[1])
    # b_u, the client's own: without it a message that arrives after its pairs were opened would be readable.
    secrets = {client: p.new_secret()}
    for other, key in order.neighbours.items():
        secrets[other] = pair_secret(attempt, client, own, other, key.public)
    # Masks are added in place: the words are the largest thing here, and there is one copy of them.
    masked, stream = bytearray(words), p.MaskStream()
    n32 = attempt.n32
    arrays = np.frombuffer(masked, "<u4", n32), np.frombuffer(masked, "<u8", attempt.n64, 4 * n32)
    # The client's own mask is added, as those shared with later clients.
    for other, secret in secrets.items():
        stream.add(arrays, mask_key(context, secret), 1 if other >= client else -1)
    # the masked numbers stay readable
    tag = p.seal(words_key(context, private.share_key, roster.server_key, client), b"", masked)
    head = _REPLY + context + number(client, 4) + tag + _sealed_shares(attempt, client, private, secrets)
    head += bundle_bytes(fresh)
    # The tag in the head authenticates the words, so that the signature need not hash them again.
    return head + p.sign(private.identity, "reply", head) + masked


def _sealed_shares(
    attempt: Attempt, client: int, private: PrivateKeys, secrets: Mapping[int, bytes]
) -> bytes:
    # For every member of the committee its shares of all secrets, encrypted, and then the digests of all shares.
    roster, context = attempt.roster, attempt.context
    sealed, digests = [], []
    # A row for each seat of the committee: that member's shares of all secrets, one after the other.
    rows = p.share(b"".join(secrets.values()), roster.threshold, len(roster.committee))
    for member, shares in zip(roster.committee, rows, strict=True):
        public = roster.members[member].share_key
        key = seal_key(context, private.share_key, public, client, member)
        content = number(private.min_sum, LEAST) + shares
        sealed.append(p.seal(key, content, context + number(client, 4) + number(member, 4)))
        digests.append(share_digests(context, client, member, shares))
    return b"".join(sealed + digests)


class MaskedReply(NamedTuple):
    """A reply as the server reads it, with shares (`sealed`) for each member of the committee, in its order.

    Signatures of `fresh` pre-keys are checked when they are used.
    """

    sealed: list[bytes]
    digests: list[bytes]
    fresh: list[PreKey]
    words: memoryview


def read_reply(reply: bytes, attempt: Attempt, client: int, server_private: bytes) -> MaskedReply:
    what = f"the reply of client {client}"
    reader = Reader(reply, _REPLY, what)
    if reader.take(p.KEY) != attempt.context:
        raise ProtocolError(f"{what} has the digest of another attempt, cohort or roster than {attempt}")
    if (said := reader.number(4)) != client:
        raise ProtocolError(f"{what} says that it is of client {said}")
    tag, member = reader.take(p.SEAL), attempt.roster.members[client]
    size, count = sealed_size(attempt, client), len(secrets_of(attempt, client))
    sealed = [reader.take(size) for _ in attempt.roster.committee]
    digests = [reader.take(p.TAG * count) for _ in attempt.roster.committee]
    fresh = read_bundle(reader, what)
    # Signed is all but the words, which the tag in it covers.
    head = reply[: reader.at]
    p.check_signature(member.identity, reader.take(p.SIGNATURE), what, "reply", head)
    words = reader.rest()
    if len(words) != attempt.num_bytes:
        raise ProtocolError(f"{what} has {len(words)} bytes of words, not {attempt.num_bytes}")
    if p.unseal(words_key(attempt.context, server_private, member.share_key, client), tag, words) is None:
        raise ProtocolError(f"the words of client {client} are not those that it sent")
    return MaskedReply(sealed, digests, fresh, words)


# How a sum is opened: each member of the committee decrypts its shares, once, and the server puts secrets together.
#
# Of a client that arrived the members give their shares of its own secret; of one that is missing, those of the
# secrets that it shares with clients that arrived. Nobody gives both of one client, so that one message alone stays
# masked.
#
# A member that cannot read a client's shares, or has others than the client says, or whose owner allows no sum of so
# few, gives none of anybody, and names it: the sum can then be asked for without that client. Shares that a member
# gives are compared with what clients say, so that any threshold of answers opens the sum.

_REQUEST, _ANSWER = b"fsu2", b"fsa3"


class Lists:
    """Which clients of a cohort arrived and which are missing."""

    def __init__(self, attempt: Attempt, arrived: Sequence[int], missing: Sequence[int]) -> None:
        # Of a client in both lists the committee would give b_u and its pairs: its message alone were open.
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
        return client_list(self.arrived) + client_list(self.missing)

    @cached_property
    def digest(self) -> bytes:
        return p.digest("lists", self.attempt.context, self.to_bytes())

    @cached_property
    def opened(self) -> dict[int, tuple[int, ...]]:
        """Of each client that arrived the secrets that open the sum, as places in `secrets_of`."""
        gone = set(self.missing)
        return {
            # Place 0 is b_u. The others are secrets with missing clients, whose masks cancel with nobody's.
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
        return Sealed(self.shares, _at(wanted, self.digests, p.TAG))


def _at(places: Sequence[int], parts: bytes, size: int) -> bytes:
    return b"".join(parts[size * i : size * (i + 1)] for i in places)


def request_bytes(lists: Lists, sealed: Mapping[int, Sealed]) -> bytes:
    parts = [part for client, wanted in lists.opened.items() for part in sealed[client].given(wanted)]
    return _REQUEST + lists.attempt.to_bytes() + lists.to_bytes() + b"".join(parts)


def read_request(request: bytes, roster: Roster, member: int) -> tuple[Lists, dict[int, Sealed]]:
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

    Owners of `unwilling` clients allow no sum of so few; `least`, the largest `min_sum` of the owners, is not sent.
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
        least, shares = int.from_bytes(content[:LEAST], "little"), _at(wanted, content[LEAST:], p.SHARE)
        # What cannot be decrypted is b"" here, and has other digests.
        is_read = share_digests(context, client, member, shares) == sealed[client].digests
        if not is_read or least > len(attempt.cohort):  # such an order it would have refused
            unreadable.append(client)
        elif least > len(lists.arrived):
            unwilling.append(client)
        parts.append(shares)
        most = max(most, least)
    # All or nothing: the shares of some clients alone would open the sum of fewer.
    shares = b"" if unreadable or unwilling else b"".join(parts)
    return Answer(shares, tuple(unreadable), tuple(unwilling), most)


def answer_bytes(lists: Lists, answer: Answer, member: int, identity: bytes) -> bytes:
    head = _ANSWER + lists.attempt.context + lists.digest + number(member, 4)
    head += client_list(answer.unreadable) + client_list(answer.unwilling) + answer.shares
    return head + p.sign(identity, "answer", head)


def read_answer(answer: bytes, lists: Lists, member: int) -> Answer:
    what, attempt = f"the answer of member {member}", lists.attempt
    reader = Reader(answer, _ANSWER, what)
    if reader.take(p.KEY) != attempt.context or reader.take(p.KEY) != lists.digest:
        raise ProtocolError(f"{what} is of another attempt or other lists than {attempt}")
    if (said := reader.number(4)) != member or member not in attempt.roster.committee:
        raise ProtocolError(f"{what} says that it is of client {said}, or that is no member")
    unreadable, unwilling = reader.clients(), reader.clients()
    if not {*unreadable, *unwilling} <= set(lists.arrived):
        raise ProtocolError(f"{what} is about clients that did not arrive")
    # A member gives its shares of all lists, or says why of whom and gives none.
    count = 0 if unreadable or unwilling else sum(map(len, lists.opened.values()))
    shares = reader.take(count * p.SHARE)
    head = answer[: reader.at]
    p.check_signature(attempt.roster.members[member].identity, reader.take(p.SIGNATURE), what, "answer", head)
    reader.end()
    return Answer(shares, unreadable, unwilling)


class Opening:
    """The secrets of a sum, put together from any threshold of the members' shares."""

    # Source: Bonawitz et al. (2017), round 4; Ma et al. (2023) for the committee.

    def __init__(self, lists: Lists, sealed: Mapping[int, Sequence[Sealed]]) -> None:
        self._lists, self._sealed = lists, sealed
        roster = lists.attempt.roster
        self._threshold = roster.threshold
        self._seat = {member: i for i, member in enumerate(roster.committee)}
        self._shares: dict[int, bytes] = {}
        self._complaints: dict[int, Answer] = {}
        self._liars: set[int] = set()

    def add(self, member: int, answer: bytes) -> None:
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
            # Compared now: later nobody could say which of the members made the interpolation fail.
            size, told = p.SHARE * len(wanted), self._sealed[client][self._seat[member]].given(wanted)
            own, at = found.shares[at : at + size], at + size
            if share_digests(self._lists.attempt.context, client, member, own) != told.digests:
                self._liars.add(member)
                raise ProtocolError(f"member {member} gives other shares than client {client} has sent it")
        self._shares[member] = found.shares

    @property
    def is_enough(self) -> bool:
        return len(self._shares) >= self._threshold

    def secrets(self) -> dict[tuple[int, int], bytes]:
        """Every secret that opens the sum: (u, u) is that of u alone, (u, v) that of u with a missing v."""
        # `SumNotOpened` if too few members answered, with who is at fault, as far as that is known.
        if not self.is_enough:
            raise self._why_closed()
        # Any threshold of them will do: each share was compared when it came.
        members = tuple(self._shares)[: self._threshold]
        points = tuple(self._seat[member] + 1 for member in members)
        found = p.combine(points, [self._shares[member] for member in members])
        pairs = [
            (client, secrets_of(self._lists.attempt, client)[i])
            for client, wanted in self._lists.opened.items()
            for i in wanted
        ]
        return {pair: found[p.KEY * i : p.KEY * (i + 1)] for i, pair in enumerate(pairs)}

    def _why_closed(self) -> SumNotOpened:
        # Who did not answer, who is at fault, and whose owners allow no sum of so few.
        #
        # Of more members than may be dishonest one is honest: what so many say of a client is true, and so is that it
        # is at fault where so many others have its shares. A member that names so many other clients is at fault, too.
        # Of the rest nobody can say who lies, the member or the client.
        # So many members may be dishonest.
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
