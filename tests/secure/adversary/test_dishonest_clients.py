"""What one dishonest client may send to stop a run, to spoil it, or to have others rejected; one attack a function.

The property: the run goes on without the client that is at fault, no honest client is left out for good, and nothing
that no sum can be is recorded. All clients run in this process: a dishonest one has its own versions of the protocol's
functions.
"""

from contextlib import suppress

import numpy as np
import pytest
from flwr.app import Context, RecordDict

import fedsolve as fs
from deploy_small import QUICK, QUICK_START, clients_of
from deploy_small import deploy_quick as deploy
from fake_grid import FakeGrid
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.client.secure_sums import SecureSums
from fedsolve.deploy.secure import client as node_secrets
from fedsolve.deploy.secure import masking as masked_reply
from fedsolve.deploy.secure import masking as unmasking
from fedsolve.deploy.secure import primitives
from fedsolve.deploy.secure.keys import PrivatePreKeys
from fedsolve.deploy.secure.primitives import ProtocolError, SumNotOpened
from fedsolve.deploy.secure.sums import Measured, SummedMetrics
from fedsolve.deploy.server.server import server_app
from secure_small import N32, N64, Small, message, plain_sum, words

LIAR, NODE = 2, 103
METHOD = fs.Secure(fs.FedAvg(0.1), bound=4.0, max_clients=6, max_examples=16)


def dishonest_shares(monkeypatch, to, change=lambda content, cohort: bytes(len(content))):
    """The liar seals other shares to these members, with digests of those that it should have sent."""
    seal, current = primitives.seal, {}
    sealed_shares = masked_reply._sealed_shares

    def noted(attempt, client, private, secrets):
        current.update(client=client, cohort=len(attempt.cohort))
        try:
            return sealed_shares(attempt, client, private, secrets)
        finally:
            current.clear()

    def lying(key, plaintext, associated):
        member = int.from_bytes(bytes(associated)[-4:], "little") if current else None
        lies = current.get("client") == LIAR and member in to
        return seal(key, change(plaintext, current["cohort"]) if lies else plaintext, associated)

    monkeypatch.setattr(masked_reply, "_sealed_shares", noted)
    monkeypatch.setattr(primitives, "seal", lying)


def demanding_all(content, cohort):
    return cohort.to_bytes(4, "little") + content[4:]


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """The model of three rounds in which the liar takes no part."""
    deaf = {(NODE, round) for round in range(3)}
    found, _, _ = deploy(
        METHOD, tmp_path_factory.mktemp("without"), deaf=deaf, grace=0.0, min_replies=5, shortfall="skip"
    )
    return found["w"]


def test_wrong_shares_for_all_members(tmp_path, monkeypatch, capsys, without):
    """Nobody opens anything: the next attempt of the same round is without the liar."""
    dishonest_shares(monkeypatch, range(6))
    found, history, _ = deploy(METHOD, tmp_path)
    assert history.rounds["dropped"].tolist() == [1, 1, 1]
    assert np.array_equal(found["w"], without)
    said = capsys.readouterr().out
    assert said.count("at fault, and left out from now on: 2") >= 1
    assert "at fault, and left out from now on: 2," not in said


def test_an_owner_that_allows_no_sum_at_all(tmp_path, monkeypatch, capsys):
    """A client cannot demand more clients than were asked: it would have refused the order."""
    dishonest_shares(monkeypatch, range(6), lambda content, cohort: b"\xff" * 4 + content[4:])
    _, history, _ = deploy(METHOD, tmp_path, rounds=1)
    assert history.rounds["dropped"].tolist() == [1]
    assert "at fault, and left out from now on: 2" in capsys.readouterr().out


def test_an_owner_that_allows_no_sum_while_somebody_is_lost(tmp_path, monkeypatch, capsys):
    """Node 101 is deaf for two rounds: these are summed without the client that demands all that are asked. When all
    that are asked have arrived it takes part again."""
    dishonest_shares(monkeypatch, range(6), demanding_all)
    deaf = {(101, 0), (101, 1)}
    _, history, _ = deploy(METHOD, tmp_path, rounds=4, deaf=deaf, grace=0.0, min_replies=4, repeats=2)
    assert history.rounds["dropped"].tolist() == [2, 2, 1, 0]
    said = capsys.readouterr().out
    assert said.count("fewer than min_sum of 2: attempts are without, until all arrive") == 1
    assert "left out" not in said


def test_owners_that_allow_no_sum_but_of_all(tmp_path, capsys):
    """Rounds without one client are skipped; it is not asked in the second. That of all is not."""
    app = clients_of(QUICK, min_sum=6)
    _, history, _ = deploy(
        METHOD, tmp_path, app=app, rounds=3, deaf={(101, 0)}, min_replies=4, shortfall="skip"
    )
    assert history.rounds["dropped"].tolist() == [6, 6, 0]
    assert "fewer than min_sum of 1, 2, 3, 4, 5: attempts are without" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("members", "silent", "outcome"),
    [
        ((0, 1), (), ((2,), (), ())),  # four others have its shares: an owner demands one number
        ((0,), (4,), ((), ((0, 2),), ())),  # it, or the member that says so
        ((0, 1, 3, 4), (5,), ((), (), (2,))),
    ],
)
def test_an_owner_that_tells_members_different_numbers(members, silent, outcome, tmp_path, monkeypatch):
    """Of six members one may be dishonest: what two say is so."""
    dishonest_shares(monkeypatch, members, demanding_all)
    small = Small(tmp_path, 6)
    sums = small.gather(small.begin(), range(5))
    for member in set(small.clients) - set(silent):
        with suppress(ProtocolError):
            sums.add_shares(member, small.answer(sums, member))
    with pytest.raises(SumNotOpened) as error:
        sums.result()
    assert (error.value.at_fault, error.value.disputes, error.value.unwilling) == outcome


def test_a_member_that_says_that_all_owners_are_unwilling(tmp_path, monkeypatch):
    """Whom one names that may be dishonest, no one need believe: it is at fault itself."""
    lying_member(monkeypatch, lambda answer, lists: unmasking.Answer(b"", unwilling=lists.arrived))
    small = Small(tmp_path, 6)
    sums = small.gather(small.begin(), range(6))
    for member in range(5):
        with suppress(ProtocolError):
            sums.add_shares(member, small.answer(sums, member))
    with pytest.raises(SumNotOpened, match="without answer: 5") as error:
        sums.result()
    assert (error.value.at_fault, error.value.disputes, error.value.unwilling) == ((LIAR,), (), ())


def test_wrong_shares_for_some_members(tmp_path, monkeypatch, capsys):
    """The others have answered, and open no second sum of this round: it is skipped, and the run goes on."""
    dishonest_shares(monkeypatch, (0, 5))
    found, history, _ = deploy(METHOD, tmp_path)
    assert history.rounds["dropped"].tolist() == [6, 1, 1]
    assert not np.array_equal(found["w"], QUICK_START["w"])
    assert "at fault, and left out from now on: 2" in capsys.readouterr().out


def lying_member(monkeypatch, answer_of):
    """The liar answers for the committee by its own rule."""
    honest = node_secrets.open_shares

    def opened(lists, sealed, member, share_key):
        answer = honest(lists, sealed, member, share_key)
        return answer_of(answer, lists) if member == LIAR else answer

    monkeypatch.setattr(node_secrets, "open_shares", opened)


def flipped(answer, lists):
    return answer._replace(shares=bytes(b ^ 1 for b in answer.shares))


def accusing(*clients):
    return lambda answer, lists: unmasking.Answer(b"", tuple(c for c in clients if c in lists.arrived))


@pytest.mark.parametrize("lie", [flipped, accusing(0), accusing(0, 1, 3, 4, 5)])
def test_a_member_that_lies(lie, tmp_path, monkeypatch, capsys):
    """Five honest members open the sum, of all six messages: a member's lie costs nobody anything."""
    lying_member(monkeypatch, lie)
    _, history, _ = deploy(METHOD, tmp_path, rounds=2)
    assert history.rounds["dropped"].tolist() == [0, 0]
    assert "client 2 does not help to open a sum" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lie", "dropped"), [(flipped, [1, 1]), (accusing(0, 1, 3, 4, 5), [1, 1]), (accusing(4), [2, 0])]
)
def test_a_member_that_lies_where_each_is_needed(lie, dropped, tmp_path, monkeypatch, capsys):
    """The answer of another member is lost once. Who gives wrong shares, or accuses more clients than can be dishonest,
    is at fault; where one accuses one, the next attempt is without both, and then both take part again. The others
    have answered, so that the round itself is over."""
    lying_member(monkeypatch, lie)
    asked = []

    def silent(node, kind, content):
        """What opens the first sum does not reach the server from node 101."""
        data = content["data"]["bytes"].data if kind == "query.secure" and "data" in content else b""
        is_answer = bytes(data[:4]) == b"fsa3"
        if is_answer and node == 101 and not asked:
            asked.append(node)
            return None
        return content

    _, history, _ = deploy(METHOD, tmp_path, tamper=silent)
    assert history.rounds["dropped"].tolist() == [6, *dropped]
    said = capsys.readouterr().out
    if dropped[0] == 2:
        assert "client 4 and member 2 disagree about shares: the next attempt is without both" in said
    else:
        assert "at fault, and left out from now on: 2" in said


def test_a_pre_key_that_nobody_can_use(tmp_path, monkeypatch, capsys):
    """A point of small order, signed as it should be: not its neighbours fail, the client has no keys."""
    real = PrivatePreKeys.top_up
    owners = []

    def top_up(self, owner, signing):
        keys = real(self, owner, signing)
        if owner.client != LIAR:
            return keys
        owners.append(owner)
        small = bytes(32)
        return [
            k._replace(
                public=small,
                signature=primitives.sign(
                    signing, "pre-key", owner.name, k.number.to_bytes(4, "little"), small
                ),
            )
            for k in keys
        ]

    monkeypatch.setattr(PrivatePreKeys, "top_up", top_up)
    small = Small(tmp_path, 6)
    with pytest.raises(ProtocolError, match="clients 2 have no pre-keys in stock"):
        small.begin()
    sums = small.gather(small.begin(cohort=[0, 1, 3, 4, 5]), [0, 1, 3, 4, 5])
    for member in (0, 1, 3, 4, 5):
        sums.add_shares(member, small.answer(sums, member))
    assert sums.result().words == plain_sum([words(i) for i in (0, 1, 3, 4, 5)])


def test_secrets_that_the_others_do_not_have(tmp_path, monkeypatch):
    """A client that masks by other secrets than its neighbours spoils the sum, as by any words; no one is rejected."""
    small = Small(tmp_path, 6)
    sums = small.begin()
    real = masked_reply.pair_secret
    monkeypatch.setattr(
        masked_reply,
        "pair_secret",
        lambda attempt, client, *rest: bytes(32) if client == LIAR else real(attempt, client, *rest),
    )
    small.gather(sums, [LIAR, 0, 1, 3, 4, 5])
    for member in small.clients:
        sums.add_shares(member, small.answer(sums, member))
    assert sums.result().clients == (0, 1, 2, 3, 4, 5)


def with_words(monkeypatch, words_of):
    """The liar masks other words than its message's."""
    real = SecureSums.mask

    def mask(self, folder, order, own, counts, log):
        return real(self, folder, order, words_of(own) if order.client == LIAR else own, counts, log)

    monkeypatch.setattr(SecureSums, "mask", mask)


def test_random_words(tmp_path, monkeypatch, capsys):
    """A sum beyond what six clients can give is refused: the model stays, and no metric of it is recorded."""
    rng = np.random.default_rng(0)
    with_words(monkeypatch, lambda own: rng.bytes(len(own)))
    seen = []
    found, history, _ = deploy(
        METHOD,
        tmp_path,
        rounds=2,
        client_metrics=("loss",),
        callbacks=[lambda e: seen.append(e.metrics["train_loss"][-1])],
    )
    assert history.rounds["dropped"].tolist() == [6, 6]
    assert np.array_equal(found["w"], QUICK_START["w"])
    assert history.evaluations["clients_measured"].tolist() == [0, 0, 0]
    assert len(seen) == 3
    assert not np.isfinite(seen).any()
    said = capsys.readouterr().out
    assert said.count("the sum is refused: the sum of") == 2
    assert said.count("evaluation after round") >= 3
    assert "clients cannot have" in said


@pytest.mark.parametrize(
    ("place", "value", "what"),
    [
        (-2, 7, "the numbers of examples"),
        (-2, 2**40, "the numbers of examples"),
        (-1, 2**40, "the counts of clipped numbers"),
        (-1, -1, "the counts of clipped numbers"),
    ],
)
def test_counts_that_cannot_be(place, value, what, tmp_path, monkeypatch, capsys):
    """Each of the last words, of 64 bits, has its own range: here of six clients with three examples."""

    def words_of(own):
        numbers = np.frombuffer(own, "<i8", 2, len(own) - 16).copy()
        numbers[place] = value if value != 7 else -13  # then the sum is 2, of six clients
        return own[:-16] + numbers.tobytes()

    with_words(monkeypatch, words_of)
    _, history, _ = deploy(METHOD, tmp_path, rounds=1)
    assert history.rounds["dropped"].tolist() == [6]
    assert f"the sum of {what} has" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (0, 5, "6 clients cannot have 5 train examples"),
        (0, 2**38, "6 clients cannot have 274877906944 train examples"),
        (2, 17, "train loss is a mean over 17 of 18 examples"),
        (2, -18, "train loss of 6 clients cannot be a mean over -18"),
        (3, -1, "the sums of train f1 have a sum of -"),
        (-1, -1, "6 clients cannot have clipped -1 numbers"),
        (-1, 1000, "6 clients cannot have clipped 1000 numbers"),
    ],
)
def test_metrics_that_cannot_be(place, value, words):
    """Of six clients with three examples each: the sum of each number has its own range."""
    measured = Measured((None, fs.metrics.F1()), ("train",), True)
    layout = SummedMetrics(("loss", "f1"), measured, 6)
    good = np.array([18, 9.0, 18, *[3.0] * (layout.width - 4), 0])
    parts, clipped = layout.from_words((good * 2**24).astype("<i8").tobytes(), 6)
    assert (parts["train"].examples, parts["train"].means["loss"], clipped) == (18, 0.5, 0)
    good[place] = value
    with pytest.raises(fs.InvalidInput, match=words):
        layout.from_words((good * 2**24).astype("<i8").tobytes(), 6)


def test_statistics_that_no_sites_can_have(tmp_path, monkeypatch):
    """One site adds random words: nothing is written."""
    sites = [{"age": np.arange(20.0) + i} for i in range(5)]
    app = client_app(lambda node: None, statistics=lambda node: sites[node.client], min_sum=3)
    server = server_app(fs.FedAvg(0.1), {"w": np.zeros(1)}, rounds=1, population=5)
    config = {"job": "statistics", "columns": "age=0:90", "secure": True, "out": str(tmp_path / "run")}
    config |= {"connect-seconds": 0.2, "round-seconds": 0.2}
    rng = np.random.default_rng(0)
    with_words(monkeypatch, lambda own: rng.bytes(len(own)))
    grid = FakeGrid(app, list(range(5)), tmp_path / "nodes", run_config=config)
    with pytest.raises(fs.InvalidInput, match="column age: 5 clients cannot have"):
        server(grid, Context(1, 1, {}, RecordDict(), config))


def test_words_that_are_changed_on_their_way(tmp_path):
    """Every byte of the masked words is under the client's tag; so is what comes before under its signature."""
    small = Small(tmp_path, 3)
    sums = small.begin()
    reply = small.reply(sums, 0)
    size = 4 * N32 + 8 * N64
    for at in range(len(reply) - size, len(reply)):
        with pytest.raises(ProtocolError, match="the words of client 0 are not those that it sent"):
            sums.add(0, reply[:at] + bytes([reply[at] ^ 1]) + reply[at + 1 :])
    sums.add(0, reply)


def test_nobody_is_at_fault_where_too_few_answer(tmp_path):
    """Silence is no lie: nobody is left out."""
    small = Small(tmp_path, 6)
    sums = small.gather(small.begin(), range(6))
    for member in range(4):
        sums.add_shares(member, small.answer(sums, member))
    with pytest.raises(SumNotOpened, match="without answer: 4, 5") as error:
        sums.result()
    assert (error.value.at_fault, error.value.disputes) == ((), ())
    assert message(sums, words(0)).round == 0
