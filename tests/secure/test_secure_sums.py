"""Sums under masks equal the plain ones exactly, whoever is lost and in whatever order messages come."""

import random
import stat
from itertools import product

import numpy as np
import pytest

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.secure import primitives as p
from fedsolve.deploy.secure.attempt import KINDS, Attempt, AttemptLog, Step
from fedsolve.deploy.secure.client import NodeSecrets
from fedsolve.deploy.secure.keys import Member, Roster, commitment, threshold
from fedsolve.deploy.secure.masking import mask_key, pair_secret, seal_key, share_digests, words_key
from fedsolve.deploy.secure.primitives import ProtocolError, Reader, SumNotOpened, client_list
from fedsolve.deploy.secure.server import SecureServer
from secure_small import ASKED, N32, N64, Small, many, message, plain_sum, words


@pytest.mark.gate("3")
@pytest.mark.parametrize("clients", [3, 4, 6])
def test_every_sum_that_opens_is_the_plain_one(tmp_path, clients):
    """Twelve rounds, at random: cohort, who is lost before the reply, who answers for the committee, all orders; the
    server is read from its bytes after every step, every client from its files."""
    small, rng = Small(tmp_path, clients), random.Random(clients)
    opened = 0
    for round in range(12):
        cohort = rng.sample(small.clients, rng.randint(3, clients))
        sums = small.begin(round, rng.choice(["train", "evaluate"]), cohort)
        arrived = rng.sample(cohort, rng.randint(3, len(cohort)))
        sums = small.again(small.gather(small.again(sums), arrived))
        assert sums.arrived == tuple(sorted(arrived))
        assert sums.missing == tuple(sorted(set(cohort) - set(arrived)))
        members = rng.sample(small.clients, rng.randint(threshold(clients) - 1, clients))
        for count, member in enumerate(members):
            assert sums.is_open == (count >= threshold(clients))
            sums.add_shares(member, small.answer(sums, member))
            sums = small.again(sums)
        if len(members) < threshold(clients):
            with pytest.raises(SumNotOpened, match="are needed") as error:
                sums.result()
            assert set(error.value.missing) == set(small.clients) - set(members)
            continue
        opened += 1
        result = sums.result()
        assert result == sums.result()
        assert result.clients == sums.arrived
        assert result.words == plain_sum([words(i) for i in arrived])
    assert opened >= 3
    assert small.log == []


def test_sums_over_a_ring_of_masks(tmp_path, drawn):
    """Forty clients, a committee of eight, of whom some may not be in the cohort of 38; six are lost."""
    small = many(tmp_path, 40)
    sums = small.begin(cohort=range(38))
    assert len(sums.committee) == 8
    assert 15 <= len(sums.attempt.graph.neighbours(0)) < 37
    lost = random.Random(0).sample(range(38), 6)
    small.gather(sums, [i for i in range(38) if i not in lost])
    for member in sums.committee[-6:]:
        sums.add_shares(member, small.answer(sums, member))
    assert sums.result().words == plain_sum([words(i) for i in sums.arrived])


def test_a_ring_with_too_many_missing_side_by_side_stays_closed(tmp_path, drawn):
    """Neither the server nor a member that is shown such lists opens the sum."""
    small = many(tmp_path, 40)
    sums = small.begin()
    graph = sums.attempt.graph
    reach, least = graph.width
    lost = set(graph._ring[1 : 1 + reach])  # all that follow the first
    graph.check_arrived(set(small.clients) - set(graph._ring[1 : 1 + reach - least]))
    arrived = sorted(set(small.clients) - lost)
    with pytest.raises(ProtocolError, match=f"fewer than {least} arrived"):
        graph.check_arrived(set(arrived))
    request = b"fsu2" + sums.attempt.to_bytes() + client_list(arrived) + client_list(sorted(lost))
    with pytest.raises(ProtocolError, match=f"fewer than {least} arrived"):
        small.node(sums.committee[0]).unmask(request)


def test_a_masked_message_is_uniform_whatever_it_says(tmp_path):
    """What the server has of a client, of zeros and of ones: bytes by chi-square; they differ by their masks alone."""
    small = Small(tmp_path, 3)
    sizes = 4 * 8192
    for round, byte in enumerate((b"\0", b"\xff")):
        sums = small.server.begin("train", round, small.clients, 8192, 0, ASKED)
        reply = small.node(0).mask(sums.order(0), message(sums, byte * sizes, 8192, 0))
        counts = np.bincount(np.frombuffer(reply[-sizes:], np.uint8), minlength=256)
        assert ((counts - sizes / 256) ** 2 / (sizes / 256)).sum() < 255 + 8 * np.sqrt(2 * 255)
        assert byte * 16 not in reply


def test_another_message_under_another_mask_gives_the_same_words(tmp_path, monkeypatch):
    """With a pad in the place of the generator: whatever the server sees, every message is behind it for some mask."""
    small = Small(tmp_path, 3)
    masked = []
    for round, (own, shift) in enumerate(((words(0), 0), (words(1), 1))):
        pads = [np.frombuffer(words(7), "<u4", N32), np.frombuffer(words(7), "<u8", N64, 4 * N32)]
        if shift:  # the mask that turns this message into the first one's words
            ours = [np.frombuffer(m, "<u4", N32) for m in (words(0), own)]
            longs = [np.frombuffer(m, "<u8", N64, 4 * N32) for m in (words(0), own)]
            pads = [pads[0] + ours[0] - ours[1], pads[1] + longs[0] - longs[1]]
        given = iter([pads])

        def add(self, parts, key, sign, given=given):
            for part, pad in zip(parts, next(given, ()), strict=False):
                np.add(part, pad, out=part)

        monkeypatch.setattr(p.MaskStream, "add", add)
        masked.append(small.reply(small.begin(round), 0, own)[-len(own) :])
    assert masked[0] == masked[1] != words(0)


def test_of_one_client_never_both_secrets_are_given(tmp_path):
    """Its own if it arrived, those with others if it is missing; nothing of pairs that both arrived or both miss."""
    small = Small(tmp_path, 5)
    sums = small.gather(small.begin(), [0, 2, 4])
    assert sums._lists.opened == {
        0: (0, 1, 3),
        2: (0, 2, 3),
        4: (0, 2, 4),
    }  # places among itself and the others


def test_every_key_is_bound_to_its_attempt(tmp_path):
    """With the same private keys, another round, kind, attempt, cohort, layout or roster gives other keys."""
    small, other = Small(tmp_path, 4), Small(tmp_path / "other", 4)
    names = ("roster", "kind", "round", "attempt", "cohort", "n32", "n64", "request")
    given = dict(zip(names, (small.server.roster, "train", 1, 1, (0, 1, 2), 3, 1, ASKED), strict=True))
    changes = dict(
        zip(names, (other.server.roster, "evaluate", 2, 2, (0, 1, 3), 4, 2, ASKED[::-1]), strict=True)
    )
    private, secret = p.new_secret(), p.new_secret()
    public, key = p.public_key(private), p.agreement_key(private)
    seen = set()
    for change in ({}, *({name: value} for name, value in changes.items())):
        attempt = Attempt(**given | change)
        context = attempt.context
        seen |= {
            pair_secret(attempt, 0, (key, public), 1, public),
            mask_key(context, secret),
            seal_key(context, key, public, 0, 1),
            seal_key(context, key, public, 1, 0),
            words_key(context, private, public, 0),
            share_digests(context, 0, 1, secret),
        }
    assert len(seen) == 6 * 9


def steps():
    """Events of a round: an order, or a request of attempt 0 or 1 with one or another digest."""
    return list(product(("mask", "answer"), (0, 1), (b"a" * 32, b"b" * 32)))


def again(log):
    """The log, read from its bytes."""
    reader = Reader(b"fsxx" + log.to_bytes(), b"fsxx", "the log")
    log = AttemptLog.read(reader)
    reader.end()
    return log


def note(log, what, step, clients=0b1111, min_sum=3, may_repeat=True):
    log.mask(step) if what == "mask" else log.answer(step, clients, min_sum, may_repeat)


def test_the_members_rule_by_enumeration():
    """All sequences of three events, against the rule in words; the log is read from its bytes before each."""
    for events in product(steps(), repeat=3):
        log, masked, answered = AttemptLog(), {}, {}
        for what, attempt, context in events:
            latest_masked, latest_answered = max(masked, default=-1), max(answered, default=-1)
            if what == "mask":
                allowed = attempt > latest_masked and attempt > latest_answered
            else:
                allowed = attempt > latest_answered and attempt >= latest_masked
                allowed = allowed and masked.get(attempt, context) == context
            log = again(log)
            try:
                note(log, what, Step(0, 7, attempt, context))
                assert allowed, events
                (masked if what == "mask" else answered)[attempt] = context
            except ProtocolError:
                assert not allowed, events
            # of another round or kind nothing is known
            note(again(log), what, Step(1, 7, 0, context))
            note(again(log), what, Step(0, 8, 0, context))


SIX = 0b111111


@pytest.mark.parametrize(
    ("opened", "refused"),
    [
        ([SIX, SIX, SIX], []),  # the same clients tell nothing new
        ([SIX], [0b011111, 0b001111, 0b1011111]),  # one or two clients apart
        ([SIX, 0b000111, SIX, 0b000111], [0b111000, 0b1000000]),  # a third set, though far from the first
    ],
)
def test_a_round_opens_one_sum(opened, refused):
    log = AttemptLog()
    for attempt, clients in enumerate(opened):
        log = again(log)
        note(log, "answer", Step(0, 7, attempt, bytes(32)), clients)
    for clients in refused:
        with pytest.raises(ProtocolError, match="another sum of this round was opened"):
            note(log, "answer", Step(0, 7, 9, bytes(32)), clients)
    note(log, "answer", Step(0, 8, 0, bytes(32)), 0b011111)  # the next round's


def test_an_owner_allows_one_sum_and_statistics_are_one_round():
    log = AttemptLog()
    note(log, "answer", Step(0, 7, 0, bytes(32)), SIX)
    with pytest.raises(ProtocolError, match="was opened already"):
        note(log, "answer", Step(0, 7, 1, bytes(32)), SIX, may_repeat=False)
    statistics = KINDS.index("statistics")
    note(log, "answer", Step(statistics, 0, 0, bytes(32)), SIX, may_repeat=False)
    note(log, "answer", Step(statistics, 1, 0, bytes(32)), SIX, may_repeat=False)
    with pytest.raises(ProtocolError, match="was opened already"):
        note(again(log), "answer", Step(statistics, 1, 1, bytes(32)), SIX, may_repeat=False)
    with pytest.raises(ProtocolError, match="differs by 1 clients, fewer than min_sum = 3"):
        note(again(log), "answer", Step(statistics, 2, 0, bytes(32)), 0b011111)


def test_what_is_long_ago_is_refused_and_forgotten():
    log = AttemptLog()
    for round in (0, 5, 999):
        log.mask(Step(0, round, 0, bytes(32)))
    note(log, "answer", Step(1, 0, 0, bytes(32)))
    note(log, "answer", Step(0, 1004, 0, bytes(32)))
    note(log, "answer", Step(0, 5, 1, bytes(32)))
    for what in ("mask", "answer"):
        with pytest.raises(ProtocolError, match="it is 1000 rounds ago"):
            note(log, what, Step(0, 4, 7, bytes(32)))
    log.mask(Step(0, 1005, 1, bytes(32)))
    assert {step.round for step in log._masked.values()} == {999, 1005}
    assert {round for kind, round in log._opened if kind == 0} == {1004}
    log.mask(Step(1, 4, 0, bytes(32)))


def roster_of(count, change=None):
    """A roster without signatures, and the coins of its clients."""
    coins = [p.digest("test", bytes([i])) for i in range(count)]
    if change is not None:
        coins[change] = bytes(32)
    members = [
        Member(
            i, p.digest("id", bytes([i])), p.digest("key", bytes([i])), commitment(b"e" * 32, i, coin), b""
        )
        for i, coin in enumerate(coins)
    ]
    return Roster(b"e" * 32, bytes(32), members), b"".join(coins)


def test_committees():
    assert [threshold(c) for c in range(3, 65)] == [2 * c // 3 + 1 for c in range(3, 65)]
    assert all(2 * threshold(c) - c > c / 3 - 1 and threshold(c) <= c for c in range(3, 65))
    for c in range(3, 65):  # two lists, to which honest members answer once, and d others twice
        t = threshold(c)
        assert all(
            any(a + d >= t and c - a >= t for a in range(c - d + 1)) == (d >= 2 * t - c) for d in range(c + 1)
        )
    assert roster_of(64)[0].committee == tuple(range(64))


def test_committee_and_ring_are_drawn_by_the_coins_of_all():
    """Nothing is known of them before all are revealed; any client's coin changes both."""
    roster, coins = roster_of(90)
    for ask in (lambda: roster.committee, lambda: roster.ring):
        with pytest.raises(ProtocolError, match="have not been revealed yet"):
            ask()
    with pytest.raises(ProtocolError, match="the coin of client 7 is not the one of the roster"):
        roster.reveal(coins[: 7 * 32] + bytes(32) + coins[8 * 32 :])
    with pytest.raises(ProtocolError, match="are not the coins of 90 clients"):
        roster.reveal(coins[32:])
    roster.reveal(coins)
    assert len(set(roster.committee)) == 64
    assert sorted(roster.ring) == list(range(90))
    forged, _ = roster_of(90)
    forged.coins = bytes(len(coins))  # whatever the roster says, both follow from these
    assert forged.committee != roster.committee
    assert forged.ring != roster.ring
    for client in (0, 89):
        other, changed = roster_of(90, client)
        other.reveal(changed)
        assert other.committee != roster.committee
        assert other.ring != roster.ring


def test_files_are_private_and_a_used_pre_key_is_gone(tmp_path, monkeypatch):
    small = Small(tmp_path, 3)
    kept = []
    real = NodeSecrets._save
    monkeypatch.setattr(
        NodeSecrets, "_save", lambda self, state: (kept.append(dict(state.pre_keys._keys)), real(self, state))
    )
    before = small.node(0)._load().pre_keys._keys
    small.reply(small.begin(), 0)
    after = small.secrets(0).read_bytes()
    assert set(before) - set(kept[-1]) == {0}
    assert before[0] not in after
    assert before[1] in after
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"]
    assert len(files) == 3 * 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_pre_keys_are_made_anew_as_they_are_used(tmp_path):
    """Of 64 rounds a third of the orders never comes: the stock lasts; those who got none say hello again."""
    small = Small(tmp_path, 3)
    for round in range(64):
        assert small.server.without_keys([0]) == []
        sums = small.server.begin("train", round, small.clients, N32, N64, ASKED)
        if round % 3:
            sums.add(0, small.reply(sums, 0))
    assert small.server.without_keys(small.clients) == [1, 2]  # they got no order at all
    with pytest.raises(ProtocolError, match="clients 1, 2 have no pre-keys in stock"):
        small.begin(64)
    for client in (1, 2):
        assert small.server.refresh(small.node(client).hello()) == client
    sums = small.gather(small.begin(64), small.clients)
    assert sums.missing == ()


def test_a_server_that_went_back_is_refused_until_it_goes_on(tmp_path):
    """Its file of before the last round: pre-key and attempt are used; another hello and attempt mend it."""
    small = Small(tmp_path, 3)
    old = small.server.to_bytes()
    sums = small.gather(small.begin(), small.clients)
    small.server = SecureServer.from_bytes(old)
    sums = small.begin()
    for i in small.clients:
        with pytest.raises(ProtocolError, match="pre-key 0 of this client was used before"):
            small.reply(sums, i)
    for i in small.clients:
        small.server.refresh(small.node(i).hello())
    sums = small.gather(small.begin(), small.clients)
    assert sums.attempt.attempt == 1
    for member in small.clients:
        sums.add_shares(member, small.answer(sums, member))
    assert sums.result().words == plain_sum([words(i) for i in small.clients])


def test_what_an_owner_gives_is_checked(tmp_path):
    for given in ({"client": -1}, {"client": "0"}, {"min_sum": 2}, {"experiment": "../e"}, {"experiment": 3}):
        with pytest.raises(InvalidInput):
            NodeSecrets(**({"folder": tmp_path, "experiment": "e", "client": 0} | given))
    node = NodeSecrets(tmp_path, "e", 0)
    assert node.peer_line == NodeSecrets(tmp_path, "other", 0).peer_line
    key = tmp_path / "client-0-identity.key"
    key.chmod(0o640)
    with pytest.raises(InvalidInput, match="can be read by others: chmod 600"):
        NodeSecrets(tmp_path, "e", 0)
    key.chmod(0o600)
    key.write_bytes(b"short")
    with pytest.raises(InvalidInput, match="has 5 bytes, not 32"):
        NodeSecrets(tmp_path, "e", 0)
    for text in ("0 = 1", '0 = "ab"', '-1 = "' + "ab" * 32 + '"', "0 ="):
        (tmp_path / "peers.toml").write_text(text)
        with pytest.raises(InvalidInput, match="peers"):
            NodeSecrets(tmp_path, "e", 1, peers=tmp_path / "peers.toml")


def test_damaged_secrets_are_not_used(tmp_path):
    small = Small(tmp_path, 3)
    sums = small.begin()
    data = bytearray(small.secrets(0).read_bytes())
    data[20] ^= 1
    small.secrets(0).write_bytes(data)
    with pytest.raises(InvalidInput, match="is damaged: this client takes no part"):
        small.reply(sums, 0)
    assert "client 0 refuses an order" in small.log[-1]
    small.secrets(0).unlink()
    for ask in (small.node(0).hello, lambda: small.reply(sums, 0), lambda: small.node(0).unmask(b"")):
        with pytest.raises(InvalidInput, match="is gone: this client takes no part"):
            ask()
