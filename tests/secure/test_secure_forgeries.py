"""Hundreds of damaged, forged, repeated and misdirected messages: none opens a sum, none stops server or client."""

import contextlib
import itertools
import random

import pytest

from fedsolve.deploy.secure import primitives
from fedsolve.deploy.secure.primitives import ProtocolError, SumNotOpened
from fedsolve.deploy.secure.server import SecureServer
from secure_small import ASKED, N32, N64, Small, plain_sum, words
from secure_small import message as message_of

ALL = range(4)
KINDS = ("hello", "roster", "order", "reply", "request", "answer")
PER_KIND = 60


def forgeries(name, messages):
    """What may come in the place of a message: cut, with a bit flipped, longer, twice, another one, noise, with fields
    of another."""
    message, rng = messages[name], random.Random(name)
    size = len(message)
    for at in rng.sample(range(4, size), 28):
        yield f"bit {at}", message[:at] + bytes([message[at] ^ (1 << rng.randrange(8))]) + message[at + 1 :]
    for end in (0, 1, 3, 4, 5, *rng.sample(range(6, size - 1), 8), size - 1):
        yield f"cut at {end}", message[:end]
    yield "longer", message + b"\0"
    yield "twice", message + message
    yield "another tag", b"fsz1" + message[4:]
    yield "huge counts", message[:4] + b"\xff" * (size - 4)
    yield "zeros", message[:4] + bytes(size - 4)
    yield "noise", message[:4] + rng.randbytes(size - 4)
    yield "noise without a tag", rng.randbytes(size)
    yield "no bytes", None
    yield "a list", [1, 2]
    yield "text", message.hex()
    yield "backwards", message[::-1]
    for other, content in messages.items():
        if other != name:
            yield other, content
    yield "of before", messages["old"].get(name, b"")


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A round up to its last answer, with every message of it and of the round before; and the files at that time."""
    small = Small(tmp_path_factory.mktemp("secure"), 4)
    messages, old = {}, {}
    for round, into in enumerate((old, messages)):
        sums = small.begin(round)
        into["order"] = sums.order(0)
        files = small.secrets(0).read_bytes()
        before = sums.to_bytes()
        for client in ALL[1:]:
            sums.add(client, small.reply(sums, client))
        without = sums.to_bytes()
        into["reply"] = small.reply(sums, 0)
        sums.add(0, into["reply"])
        sums.close()
        masked = small.secrets(0).read_bytes()
        closed = sums.to_bytes()
        into["request"] = sums.unmask_request(0)
        into["answer"] = small.node(0).unmask(into["request"])
        others = {member: small.answer(sums, member) for member in (1, 2)}
    messages |= {"hello": small.node(0).hello(), "roster": small.roster}
    last = small.secrets(0).read_bytes()  # with the keys of its hello
    states = {
        "files": files,
        "masked": masked,
        "before": before,
        "without": without,
        "closed": closed,
        "last": last,
    }
    return small, messages | {"old": old}, states, others


def deliver(name, forged, small, states, others):
    """Give a message to whom it is for; the sum that follows from it, or None if it was refused."""
    server = SecureServer.from_bytes(small.server.to_bytes())
    small.secrets(0).write_bytes(states[{"order": "files", "request": "masked"}.get(name, "last")])
    if name == "hello":
        server.refresh(forged)
        key = server.begin("train", 9, [1, 2, 3], N32, N64, ASKED) and server._next_key(0)
        assert (
            key is None
            or primitives.public_key(small.node(0)._load().pre_keys._keys[key.number]) == key.public
        )
    elif name == "roster":
        small.node(0).enrol(forged)
    elif name == "order":
        sums = server.restore(states["without"])
        sums.add(0, small.node(0).mask(forged, message_of(sums, words(0))))
    elif name == "reply":
        server.restore(states["without"]).add(0, forged)
    elif name == "request":
        return small.node(0).unmask(forged)
    else:
        sums = server.restore(states["closed"])
        sums.add_shares(0, forged)
        return sums
    return None


@pytest.mark.parametrize("name", KINDS)
def test_no_forgery_counts(played, name):
    small, messages, states, others = played
    tried = list(
        forgeries(name, {k: v for k, v in messages.items() if k in KINDS} | {"old": messages["old"]})
    )
    assert len(tried) >= 50
    for what, message in tried:
        if message == messages[name]:
            continue
        try:
            deliver(name, message, small, states, others)
        except ProtocolError:
            continue
        assert_harmless(name, what, message, small, states, others)
    deliver(name, messages[name], small, states, others)  # the true one still counts


def assert_harmless(name, what, message, small, states, others):
    """Only these are not refused at once: keys in a hello that are never used, shares in a request that one member
    cannot read; the sum is then the plain one."""
    assert name in ("hello", "request"), what
    if name == "request":
        small.secrets(0).write_bytes(states["masked"])
        sums = small.server.restore(states["closed"])
        try:
            sums.add_shares(0, small.node(0).unmask(message))
        except ProtocolError:
            return
        for member, answer in others.items():
            sums.add_shares(member, answer)
        assert not sums.is_open or sums.result().words == plain_sum([words(i) for i in ALL])


def test_messages_in_any_order_or_twice(tmp_path):
    """Replies and answers in every order, and 200 random sequences with some of them early, late or repeated."""
    small, rng = Small(tmp_path, 3), random.Random(0)
    sums = small.begin()
    fresh = sums.to_bytes()
    add = [("add", i, small.reply(sums, i)) for i in range(3)]
    for _, *given in add:
        sums.add(*given)
    sums.close()
    answer = [("add_shares", i, small.answer(sums, i)) for i in range(3)]
    orders = [
        [*first, ("close",), *second]
        for first, second in zip(itertools.permutations(add), itertools.permutations(answer), strict=True)
    ]
    mixed = [
        [*rng.choices(add, k=6), ("close",), *rng.choices([*answer, *add, ("close",)], k=9)]
        for _ in range(200)
    ]
    opened = 0
    for order in orders + mixed:
        sums = small.server.restore(fresh)
        for what, *given in order:
            with contextlib.suppress(ProtocolError, SumNotOpened):
                getattr(sums, what)(*given)
        if sums.is_open:
            opened += 1
            assert sums.result().words == plain_sum([words(i) for i in range(3)])
        else:
            assert order in mixed
    assert opened > len(orders)
