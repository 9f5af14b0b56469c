"""A client's part of a round: it checks the order, adds its masks, and shares what opens them among the committee.

With w a client's words, b_u a new random secret and s_uv = s_vu the secret of a pair, a client u sends

    y_u = w_u + PRG(b_u) + sum over v > u of PRG(s_uv) - sum over v < u of PRG(s_uv)    modulo 2^32 or 2^64

with Shamir shares of b_u and of each s_uv, one of each for every member of the committee, encrypted to it, and a
digest of every share: so a member sees before it answers whether it has what the client says, and the server sees
whether the member gives what it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedsolve.deploy.secure import primitives as p
from fedsolve.deploy.secure import shamir
from fedsolve.deploy.secure.attempt import Attempt
from fedsolve.deploy.secure.byte_reader import ProtocolError, Reader, number
from fedsolve.deploy.secure.identity import PreKey, bundle_bytes, read_bundle
from fedsolve.deploy.secure.roster import Roster

_ORDER, _REPLY = b"fso2", b"fsm2"


class Order(NamedTuple):
    """What a client is asked for: the attempt, its own pre-key (number and public key), and those of its neighbours."""

    attempt: Attempt
    own: tuple[int, bytes]
    neighbours: dict[int, PreKey]


def order_bytes(attempt: Attempt, client: int, keys: Mapping[int, PreKey]) -> bytes:
    """The order for a client, from the pre-keys of the cohort."""
    neighbours = attempt.graph.neighbours(client)
    listed = b"".join(number(other, 4) + keys[other].to_bytes() for other in neighbours)
    own = number(keys[client].number, 4) + keys[client].public
    return _ORDER + attempt.to_bytes() + own + number(len(neighbours), 4) + listed


def read_order(order: bytes, roster: Roster, client: int, min_sum: int) -> Order:
    """An order after every check that needs no memory.

    Raises:
        ProtocolError: another roster, a cohort below `min_sum` or without the client, neighbours that are not those of
            the graph, or a pre-key that its owner did not sign.
    """
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
    """The secret of two clients for one attempt; `own` is the private and the public pre-key of `client`."""
    low, high = sorted(((client, own[1]), (other, public)))
    pair = number(low[0], 4) + number(high[0], 4) + low[1] + high[1]
    return p.derive(p.agree(own[0], public), "pair", attempt.context, pair)


def share_digests(context: bytes, client: int, member: int, shares: bytes) -> bytes:
    """16 bytes for each share of a client's that a member has, by which it is recognised, and not guessed."""
    digests = p.digests("share", (context, number(client, 4), number(member, 4)), shares, shamir.SHARE)
    return b"".join(digest[: p.TAG] for digest in digests)


def mask_key(context: bytes, secret: bytes) -> bytes:
    """The key that a secret's mask is made from."""
    return p.derive(secret, "mask", context)


def seal_key(context: bytes, private: p.X25519PrivateKey, public: bytes, sender: int, member: int) -> bytes:
    """The key of a sender's shares for a member, from the private key of one and the public key of the other."""
    return p.derive(p.agree(private, public), "shares", context, number(sender, 4), number(member, 4))


def words_key(context: bytes, private: bytes | p.X25519PrivateKey, public: bytes, client: int) -> bytes:
    """The key that authenticates a client's words to the server."""
    return p.derive(p.agree(private, public), "words", context, number(client, 4))


def word_arrays(words: bytes | bytearray | memoryview, n32: int, n64: int) -> tuple[np.ndarray, np.ndarray]:
    """Words of 32 bits, then of 64, as arrays on the same bytes."""
    return np.frombuffer(words, "<u4", n32), np.frombuffer(words, "<u8", n64, 4 * n32)


def secrets_of(attempt: Attempt, client: int) -> tuple[int, ...]:
    """Whom a client has secrets with, in the order in which it shares them: itself, then its neighbours."""
    return (client, *attempt.graph.neighbours(client))


LEAST = 4
"""Bytes of the number before a client's shares: of the clients whose sum its owner lets be opened, at least."""


def sealed_size(attempt: Attempt, client: int) -> int:
    """Bytes of what a client seals for one member: its owner's `min_sum`, and its shares."""
    return LEAST + len(secrets_of(attempt, client)) * shamir.SHARE + p.SEAL


class PrivateKeys(NamedTuple):
    """What a client uses of its own: its identity, its share key, the pre-key of this attempt, and its `min_sum`."""

    identity: bytes
    share_key: p.X25519PrivateKey
    pre_key: p.X25519PrivateKey
    min_sum: int


def masked_reply(order: Order, client: int, private: PrivateKeys, words: bytes, fresh: list[PreKey]) -> bytes:
    """A client's reply: masked words, shares for every member with their digests, and new pre-keys.

    Source: Bell et al. (2020), algorithm 2, with pre-keys and a committee in the place of its first two rounds.
    """
    attempt, roster = order.attempt, order.attempt.roster
    context, own = attempt.context, (private.pre_key, order.own[1])
    secrets = {client: p.new_secret()}
    for other, key in order.neighbours.items():
        secrets[other] = pair_secret(attempt, client, own, other, key.public)
    masked, stream = bytearray(words), p.MaskStream()
    arrays = word_arrays(masked, attempt.n32, attempt.n64)
    for (
        other,
        secret,
    ) in secrets.items():  # the client's own mask is added, as those shared with later clients
        stream.add(arrays, mask_key(context, secret), 1 if other >= client else -1)
    # the masked numbers stay readable
    tag = p.seal(words_key(context, private.share_key, roster.server_key, client), b"", masked)
    head = _REPLY + context + number(client, 4) + tag + _sealed_shares(attempt, client, private, secrets)
    head += bundle_bytes(fresh)
    return head + p.sign(private.identity, "reply", head) + masked


def _sealed_shares(
    attempt: Attempt, client: int, private: PrivateKeys, secrets: Mapping[int, bytes]
) -> bytes:
    """For every member of the committee its shares of all secrets, encrypted, and then the digests of all shares."""
    roster, context = attempt.roster, attempt.context
    sealed, digests = [], []
    rows = shamir.share(b"".join(secrets.values()), roster.threshold, len(roster.committee))
    for member, shares in zip(roster.committee, rows, strict=True):
        public = roster.members[member].share_key
        key = seal_key(context, private.share_key, public, client, member)
        content = number(private.min_sum, LEAST) + shares
        sealed.append(p.seal(key, content, context + number(client, 4) + number(member, 4)))
        digests.append(share_digests(context, client, member, shares))
    return b"".join(sealed + digests)


class MaskedReply(NamedTuple):
    """A reply as the server reads it.

    Attributes:
        sealed: the shares for each member of the committee, in its order.
        digests: of these shares, for each member.
        fresh: new pre-keys, whose signatures are checked when they are used.
        words: the masked words.
    """

    sealed: list[bytes]
    digests: list[bytes]
    fresh: list[PreKey]
    words: memoryview


def read_reply(reply: bytes, attempt: Attempt, client: int, server_private: bytes) -> MaskedReply:
    """A reply after every check of its bytes.

    Raises:
        ProtocolError: it is cut or too long, of another attempt or client, or not what that client signed.
    """
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
    head = reply[: reader.at]
    p.check_signature(member.identity, reader.take(p.SIGNATURE), what, "reply", head)
    words = reader.rest()
    if len(words) != attempt.num_bytes:
        raise ProtocolError(f"{what} has {len(words)} bytes of words, not {attempt.num_bytes}")
    if p.unseal(words_key(attempt.context, server_private, member.share_key, client), tag, words) is None:
        raise ProtocolError(f"the words of client {client} are not those that it sent")
    return MaskedReply(sealed, digests, fresh, words)
