"""What must not work: lists, orders, keys and shares that do not belong together; each is refused in one line."""

import re

import pytest

from fedsolve.deploy.secure import masking as masked_reply
from fedsolve.deploy.secure import primitives
from fedsolve.deploy.secure.attempt import Attempt, Words
from fedsolve.deploy.secure.client import NodeSecrets
from fedsolve.deploy.secure.keys import Member, PreKey, Roster, experiment_digest, hello_bytes, read_hello
from fedsolve.deploy.secure.primitives import ProtocolError, SumNotOpened, client_list, number
from secure_small import ASKED, N32, N64, Small, many, message, plain_sum, words

ALL = range(5)


@pytest.fixture
def small(tmp_path):
    return Small(tmp_path, 5)


def refused(small, words_of_it, ask, *given):
    """Nothing comes back, the client's own log has one line, and its files are as they were."""
    before = {path: path.read_bytes() for path in small.folder.rglob("*.bin")}
    lines = len(small.log)
    with pytest.raises(ProtocolError, match=re.escape(words_of_it)):
        ask(*given)
    assert len(small.log) == lines + 1
    assert words_of_it in small.log[-1]
    assert {path: path.read_bytes() for path in small.folder.rglob("*.bin")} == before


def request(small, sums, member, arrived, missing, sealed=None):
    """A request as a server that does not keep the rules makes it."""
    seat = sums.committee.index(member)
    wanted = [i for i, other in enumerate(sums.attempt.cohort) if other in missing]
    sealed = sealed or {client: shares[seat] for client, shares in sums._sealed.items()}
    size = masked_reply.sealed_size(sums.attempt, sums.attempt.cohort[0]) + 16 * (1 + len(wanted))
    parts = {}
    for client, both in sealed.items():
        places = [0, *(1 + i - (sums.attempt.cohort[i] > client) for i in wanted)]
        parts[client] = b"".join(both.given(places))
    listed = b"".join(parts.get(client, b"").ljust(size, b"\0")[:size] for client in arrived)
    return b"fsu2" + sums.attempt.to_bytes() + client_list(arrived) + client_list(missing) + listed


def complains(small, member, asked, clients):
    """The member gives no shares of anybody, says of whom it has none, and has opened nothing."""
    before = small.secrets(member).read_bytes()
    answer = small.node(member).unmask(asked)
    assert answer[72:-64] == client_list(clients) + client_list(())
    assert small.secrets(member).read_bytes() == before


@pytest.mark.parametrize(
    ("arrived", "missing", "why"),
    [
        ((0, 1, 2, 3), (3, 4), "clients 3 are listed as arrived and as missing"),
        ((0, 1, 2), (4,), "are not the cohort"),
        ((0, 1, 2, 3, 4), (5,), "are not the cohort"),
        ((0, 1), (2, 3, 4), "2 clients arrived, fewer than min_sum = 3"),
        ((), (0, 1, 2, 3, 4), "0 clients arrived, fewer than min_sum = 3"),
        ((0, 2, 1, 3), (4,), "does not ascend"),
        ((0, 1, 1, 2), (3, 4), "does not ascend"),
    ],
)
def test_lists_that_do_not_fit(small, arrived, missing, why):
    sums = small.gather(small.begin(), [0, 1, 2, 3])
    refused(small, why, small.node(1).unmask, request(small, sums, 1, arrived, missing))
    sums.add_shares(1, small.answer(sums, 1))  # it has not answered yet


def test_a_second_list_and_the_same_again(small):
    """One list per attempt; whether the members are asked for the same or for another one."""
    sums = small.gather(small.begin(), [0, 1, 2, 3])
    small.answer(sums, 1)
    why = "this member has answered attempt 0 of this round already"
    refused(small, why, small.answer, sums, 1)
    refused(small, why, small.node(1).unmask, request(small, sums, 1, (0, 1, 2), (3, 4)))


def test_a_list_is_of_the_cohort_that_was_masked(small):
    """Another cohort under the same number: members can read nothing, and say so."""
    sums = small.gather(small.begin(cohort=[0, 1, 2, 3]), [0, 1, 2, 3])
    sums.attempt = Attempt(sums.attempt.roster, "train", 0, 0, range(5), N32, N64, ASKED)
    for member in (4, 1):
        complains(small, member, request(small, sums, member, (0, 1, 2, 3), (4,)), (0, 1, 2, 3))


def test_fewer_messages_than_min_sum_behind_a_long_list(small):
    """The server lists as arrived who has sent nothing, to open the sum of two."""
    sums = small.gather(small.begin(), [0, 1, 2])
    sealed = {client: sums._sealed[client][3] for client in (0, 1)}
    complains(small, 3, request(small, sums, 3, (0, 1, 2, 3), (4,), sealed), (2, 3))


def test_orders_that_do_not_fit(small):
    sums = small.begin()
    order = sums.order(0)
    node, given = small.node(0), (message(sums, words(0)),)
    others = small.begin(1, cohort=[1, 2, 3]).order(1)
    refused(small, "is for a cohort without client 0", node.mask, others, *given)
    refused(
        small,
        "the order is for 5 + 2 words, this client has 4 + 2",
        node.mask,
        order,
        message(sums, words(0)[4:], 4),
    )
    for wrong, why in (
        ({"kind": "evaluate"}, "the words of evaluate, round 0"),
        ({"round": 1}, "the words of train, round 1"),
        ({"request": ASKED[::-1]}, "the sum is of answers to another request than this client was sent"),
    ):
        refused(small, why, node.mask, order, given[0]._replace(**wrong))
    demanding = NodeSecrets(small.folder, "e", 0, 6, log=small.log.append)
    refused(small, "a cohort of 5 is below min_sum = 6", demanding.mask, order, *given)
    entry = number(1, 4) + sums._keys[1].to_bytes()
    refused(
        small,
        "the order has client 2 where the graph has 1",
        node.mask,
        order.replace(entry, number(2, 4) + entry[4:]),
        *given,
    )
    swapped = number(1, 4) + sums._keys[2].to_bytes()
    refused(
        small, "pre-key 0 of client 1 has a wrong signature", node.mask, order.replace(entry, swapped), *given
    )
    forged = PreKey(0, primitives.public_key(primitives.new_secret()), sums._keys[1].signature)
    refused(
        small,
        "pre-key 0 of client 1 has a wrong signature",
        node.mask,
        order.replace(entry, number(1, 4) + forged.to_bytes()),
        *given,
    )
    small.reply(sums, 0)
    refused(small, "pre-key 0 of this client was used before", node.mask, order, *given)


def test_a_second_order_of_one_attempt(small):
    """With a fresh pre-key, the same cohort or another."""
    first, server = small.begin(), small.server
    small.reply(first, 0)
    for cohort in (ALL, [0, 1, 2]):
        server._attempts.clear()
        second = server.begin("train", 0, cohort, N32, N64, ASKED)
        refused(small, "this client has masked attempt 0 of this round already", small.reply, second, 0)
    other = server.begin("evaluate", 0, ALL, N32, N64, ASKED)
    small.reply(other, 0)


def test_an_order_of_another_graph(tmp_path, drawn):
    """Forty clients of whom the server gives one other neighbours, or too few."""
    small = many(tmp_path, 40)
    sums = small.server.begin("train", 0, small.clients, N32, N64, ASKED)
    neighbours, order = sums.attempt.graph.neighbours(0), sums.order(0)
    count, at = len(neighbours), len(order) - 104 * len(neighbours)
    assert order[at - 4 : at] == number(count, 4)
    fewer = order[: at - 4] + number(count - 1, 4) + order[at + 104 :]
    given = (message(sums, words(0)),)
    why = f"the graph gives {count} neighbours, the order {count - 1}"
    refused(small, why, small.node(0).mask, fewer, *given)
    stranger = next(i for i in range(1, 40) if i not in neighbours)
    wrong = order[:at] + number(stranger, 4) + sums._keys[stranger].to_bytes() + order[at + 104 :]
    refused(small, f"the order has client {stranger} where the graph has", small.node(0).mask, wrong, *given)


@pytest.mark.parametrize("cohort", [[0], [0, 1], [0, 0, 0], [0, 1, 9]])
def test_cohorts_that_are_none(small, cohort):
    with pytest.raises(ProtocolError):
        small.begin(cohort=cohort)


def test_digests_of_another_roster_round_or_kind(small, tmp_path):
    other = Small(tmp_path / "other", 5)
    refused(
        small,
        "the order has the digest of another roster",
        small.node(0).mask,
        other.begin().order(0),
        Words(words(0), N32, N64, "train", 0, ASKED),
    )
    sums, later = small.begin(0), small.begin(1)
    kind = small.begin(0, "evaluate")
    reply = small.reply(sums, 0)
    for wrong in (later, kind):
        with pytest.raises(ProtocolError, match="has the digest of another attempt, cohort or roster"):
            wrong.add(0, reply)
    with pytest.raises(ProtocolError, match="says that it is of client 0"):
        sums.add(1, reply)
    sums.add(0, reply)
    with pytest.raises(ProtocolError, match="client 0 has answered train, round 1, attempt 0 already"):
        sums.add(0, reply)


def test_shares_of_another_round_are_not_readable(small):
    """The server sends a member what client 0 sealed in the round before: it complains, the others open the sum."""
    before, sums = small.gather(small.begin(0), ALL), small.gather(small.begin(1), ALL)
    sums._sealed[0][0] = before._sealed[0][0]
    with pytest.raises(
        ProtocolError, match="member 0 does not have the shares that clients 0 say they have sent"
    ):
        sums.add_shares(0, small.answer(sums, 0))
    for member in (1, 2, 3):
        sums.add_shares(member, small.answer(sums, member))
    assert not sums.is_open
    with pytest.raises(SumNotOpened, match="client 0 and member 0 disagree about shares") as error:
        sums.result()
    assert (error.value.at_fault, error.value.disputes) == ((), ((0, 0),))
    sums.add_shares(4, small.answer(sums, 4))
    assert sums.result().words == plain_sum([words(i) for i in ALL])


def forged_answer(small, sums, member, change):
    """An answer with another share that is signed as it should be."""
    answer = bytearray(small.answer(sums, member)[:-64])
    answer[80 + change] ^= 1
    signing = (small.folder / f"client-{member}-identity.key").read_bytes()
    return bytes(answer) + primitives.sign(signing, "answer", bytes(answer))


@pytest.mark.parametrize("change", [0, 35, 36 * 5 - 1])
def test_a_members_bad_shares_are_found_and_it_is_named(small, change):
    """Any byte of any share; the others open the sum."""
    sums = small.gather(small.begin(), ALL)
    with pytest.raises(
        ProtocolError, match=f"member 2 gives other shares than client {change // 36} has sent it"
    ):
        sums.add_shares(2, forged_answer(small, sums, 2, change))
    for member in (0, 3, 1):
        sums.add_shares(member, small.answer(sums, member))
    with pytest.raises(SumNotOpened, match="at fault, and left out from now on: 2") as error:
        small.again(sums).result()
    assert error.value.at_fault == (2,)
    sums.add_shares(4, small.answer(sums, 4))
    assert small.again(sums).result().words == plain_sum([words(i) for i in ALL])


def test_a_client_that_shares_nonsense_is_named(small, monkeypatch):
    """Nobody opens anything, and everybody says why."""
    sums = small.begin()
    real = masked_reply.share_digests
    for client in ALL:
        if client == 3:
            monkeypatch.setattr(masked_reply, "share_digests", lambda *given: bytes(len(real(*given))))
        sums.add(client, small.reply(sums, client))
        monkeypatch.setattr(masked_reply, "share_digests", real)
    sums.close()
    for member in ALL:
        with pytest.raises(ProtocolError, match="does not have the shares that clients 3 say"):
            sums.add_shares(member, small.answer(sums, member))
    with pytest.raises(SumNotOpened, match="at fault, and left out from now on: 3") as error:
        sums.result()
    assert error.value.at_fault == (3,)
    rest = small.gather(small.begin(cohort=[0, 1, 2, 4]), [0, 1, 2, 4])
    for member in ALL[:4]:
        rest.add_shares(member, small.answer(rest, member))
    assert rest.result().words == plain_sum([words(i) for i in (0, 1, 2, 4)])


def test_rosters_that_do_not_fit(small, tmp_path):
    node = small.node(0)
    without = Roster.of([small.node(i).hello() for i in (1, 2, 3)], bytes(32)).to_bytes()
    refused(small, "the roster does not have the keys of client 0", node.enrol, without)
    second = Roster.of([small.node(i).hello() for i in (0, 1, 2)], bytes(32)).to_bytes()
    refused(small, "the roster is another than this experiment began with", node.enrol, second)
    elsewhere = Small(tmp_path / "other", 3)
    refused(small, "the roster does not have the keys of client 0", node.enrol, elsewhere.roster)
    other = experiment_digest("f")
    signing = (small.folder / "client-0-identity.key").read_bytes()
    members = [
        Member.of(other, i, primitives.new_secret() if i else signing, primitives.new_secret(), bytes(32))
        for i in ALL
    ]
    refused(
        small, "the roster is of another experiment", node.enrol, Roster(other, bytes(32), members).to_bytes()
    )
    members = list(small.server.roster.members.values())
    twice = members[1]._replace(share_key=members[2].share_key)
    with pytest.raises(ProtocolError, match="two clients of the roster have the same share key"):
        Roster(small.server.roster.experiment, bytes(32), [members[0], twice, *members[2:]])
    for given in (members[:2], []):
        with pytest.raises(ProtocolError, match="secure sums need 3 at least"):
            Roster(small.server.roster.experiment, bytes(32), given)


def test_peers_that_the_owner_knows(tmp_path):
    small = Small(tmp_path, 3, enrol=False)
    lines = [small.node(i).peer_line for i in small.clients]
    peers = tmp_path / "peers.toml"
    peers.write_text("\n".join(lines))
    NodeSecrets(tmp_path, "e", 0, peers=peers).enrol(small.roster)
    peers.write_text("\n".join([*lines[:2], '2 = "' + "ab" * 32 + '"']))
    careful = NodeSecrets(tmp_path, "e", 1, peers=peers, log=small.log.append)
    refused(small, "the identity of clients 2 is not that of the file of peers", careful.enrol, small.roster)
    peers.write_text("\n".join(lines[:2]))
    for client, ask in (
        (1, "enrol"),
        (0, "unmask"),
    ):  # the second had accepted the roster before the file was changed
        careful = NodeSecrets(tmp_path, "e", client, peers=peers, log=small.log.append)
        refused(small, "the identity of clients 2 is not", getattr(careful, ask), small.roster)
    refused(small, "no roster was accepted yet", small.node(1).unmask, b"fsu2")


def test_keys_that_the_server_makes_up(small):
    """A hello with another's number, or with pre-keys that the client did not sign: they are never used."""
    experiment, member, keys = read_hello(small.node(0).hello())
    signing, share_key = primitives.new_secret(), primitives.new_secret()
    with pytest.raises(ProtocolError, match="client 0 does not have the keys of the roster"):
        small.server.refresh(
            hello_bytes(experiment, Member.of(experiment, 0, signing, share_key, bytes(32)), [])
        )
    with pytest.raises(ProtocolError, match="the share key of client 1 has a wrong signature"):
        small.server.refresh(hello_bytes(experiment, member._replace(client=1), []))
    forged = keys[0]._replace(public=keys[1].public)
    small.server.refresh(hello_bytes(experiment, member, [forged, *keys[1:]]))
    assert small.begin()._keys[0] == keys[1]
    small.server.refresh(hello_bytes(experiment, member, [forged]))
    with pytest.raises(ProtocolError, match="clients 0 have no pre-keys in stock"):
        small.begin()


def test_too_late_too_early_and_nobody(small):
    sums = small.begin()
    late = small.reply(sums, 4)
    for ask in (sums.result, lambda: sums.unmask_request(0), lambda: sums.add_shares(0, b"")):
        with pytest.raises(ProtocolError, match="is not closed yet"):
            ask()
    assert not sums.is_open
    small.gather(sums, [0, 1, 2])
    with pytest.raises(ProtocolError, match="client 4 came too late"):
        sums.add(4, late)
    answer = small.answer(sums, 0)
    sums.add_shares(0, answer)
    for member, why in (
        (0, "member 0 has answered"),
        (1, "says that it is of client 0"),
        (7, "no member of the comm"),
    ):
        with pytest.raises(ProtocolError, match=why):
            sums.add_shares(member, answer)
    for member in (1, 2):
        sums.add_shares(member, small.answer(sums, member))
    with pytest.raises(
        SumNotOpened, match="3 of 5 members of the committee answered, 4 are needed; without answer: 3, 4"
    ):
        sums.result()
    few = small.begin(1)
    few.add(0, small.reply(few, 0))
    with pytest.raises(
        SumNotOpened, match="1 clients arrived, fewer than min_sum = 3; missing: 1, 2, 3, 4"
    ) as error:
        few.close()
    assert error.value.missing == (1, 2, 3, 4)
