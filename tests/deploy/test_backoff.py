"""How long a round stays open: grace, clients that are left alone, more clients than are needed, late answers."""

import json
import math
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flwr.app import RecordDict

import fedsolve as fs
from deploy_small import POPULATION
from deploy_small import deploy_quick as deploy
from fedsolve.deploy import exchange
from fedsolve.deploy import exchange as transport
from fedsolve.deploy.client.state import ClientState
from fedsolve.deploy.exchange import Backoff
from fedsolve.deploy.run_log import ROUNDS
from fedsolve.deploy.status import ClientStatuses

METHOD = fs.SCAFFOLD(0.3)
EVER = [(102, t) for t in range(20)]
GRACE = "client 1: no answer within 0.1 s of grace after enough others"
ASKED_NOT = "client 1: not asked: it left an earlier round without an answer"


def reasons(folder):
    return [json.loads(line)["reasons"] for line in (folder / "server" / ROUNDS).read_text().splitlines()]


def asked(grid, node):
    return [n for n, what in grid.asked if what == "train"].count(node)


def test_a_dead_client_does_not_stall_rounds(tmp_path):
    """Client 1 never answers: rounds of a minute close a grace time after the others; it rests 1, 2 rounds."""
    began = time.monotonic()
    _, history, grid = deploy(METHOD, tmp_path, deaf=EVER, rounds=6, round_seconds=60.0, grace=0.1)
    assert time.monotonic() - began < 30
    assert reasons(tmp_path) == [[GRACE], [ASKED_NOT], [GRACE], [ASKED_NOT], [ASKED_NOT], [GRACE]]
    assert asked(grid, 102) == 3
    assert history.rounds["dropped"].tolist() == [1] * 6


@pytest.fixture
def rarely(monkeypatch):
    """Replies are looked for at once and at the end of the wait, so that one may be late by a number of looks."""
    monkeypatch.setattr(transport, "_SHORTEST", 1.0)


def test_a_silent_client_is_asked_if_it_is_needed(tmp_path, rarely):
    """All six must count: client 1, silent in round 1, is asked again at once, and in round 2 too."""
    _, history, grid = deploy(METHOD, tmp_path, slow={(102, 0): 2}, rounds=2, min_replies=6)
    assert history.rounds["dropped"].tolist() == [0, 0]
    assert asked(grid, 102) == 3


@pytest.mark.full
def test_a_late_reply_spoils_nothing(tmp_path, capsys, rarely):
    """Client 1's answer of round 1 comes in round 2, where it rests: the run is the one without that answer."""
    late, _, grid = deploy(METHOD, tmp_path / "a", slow={(102, 0): 2}, rounds=4, round_seconds=5.0, grace=0.1)
    assert "client 1 answers, too late" in capsys.readouterr().out
    assert asked(grid, 102) == 3
    never, *_ = deploy(METHOD, tmp_path / "b", deaf=[(102, 0)], rounds=4, round_seconds=5.0, grace=0.1)
    for x, y in zip(jax.tree.leaves(late), jax.tree.leaves(never), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_missing_client_is_waited_for_once(tmp_path):
    """Client 5 connects in round 3: round 1 waits for it, round 2 does not, round 3 has it."""
    arrived = []

    def arrive(node, what, content):
        if what == "train" and content["reply"]["round"] == 1 and not arrived:
            arrived.append(node)
            grids[0].nodes[109] = {"client-id": 5}
        return content

    grids = []
    import deploy_small

    class Watched(deploy_small.FakeGrid):
        def __init__(self, *given):
            super().__init__(*given)
            grids.append(self)

    patch = pytest.MonkeyPatch()
    patch.setattr(deploy_small, "FakeGrid", Watched)
    try:
        _, history, _ = deploy(METHOD, tmp_path, clients=[0, 1, 2, 3, 4], quorum=5, tamper=arrive)
    finally:
        patch.undo()
    assert reasons(tmp_path) == [
        ["client 5: not connected within 0.2 s"],
        ["client 5: not asked: it left an earlier round without an answer"],
        [],
    ]
    assert history.rounds["dropped"].tolist() == [1, 1, 0]


def test_more_are_asked_than_are_needed(tmp_path):
    """Three of six a round and half as many again: five are asked, three count, though client 1 never answers."""
    _, history, grid = deploy(
        fs.FedAvg(0.1),
        tmp_path,
        deaf=EVER,
        rounds=4,
        round_seconds=60.0,
        clients_per_round=3,
        over_select=0.5,
    )
    assert sum(asked(grid, node) for node in range(101, 107)) == 20
    assert asked(grid, 102) > 0
    assert history.rounds["participants"].tolist() == [3] * 4
    assert history.rounds["dropped"].tolist() == [0] * 4
    assert reasons(tmp_path) == [[]] * 4


def test_backoff():
    """1, 2, 4, ... at most 64 rounds; an answer or another node ends a rest; who is away rests."""
    backoff, at = Backoff(), 1
    for pause in (1, 2, 4, 8, 16, 32, 64, 64):
        backoff.record_miss(3, 7, at)
        assert all(backoff.is_backing_off(3, 7, at + i) for i in range(1, pause + 1))
        at += pause + 1
        assert not backoff.is_backing_off(3, 7, at)
    backoff.record_miss(3, 7, at)
    assert not backoff.is_backing_off(3, 8, at + 1)  # another node
    assert not backoff.is_backing_off(4, 7, at + 1)  # another client
    backoff.record_answer(3)
    assert not backoff.is_backing_off(3, 7, at + 1)
    backoff.record_miss(3, None, at)
    assert backoff.is_backing_off(3, None, at + 10**6)
    assert not backoff.is_backing_off(3, 7, at + 1)


REFUSED = [
    ({"grace": -1.0}, "grace = -1.0 must be finite and >= 0"),
    ({"grace": "soon"}, "grace = 'soon' must be a number"),
    ({"quorum": "all"}, "quorum = 'all' must be an integer of at least 1 or None for all"),
    ({"quorum": True}, "quorum = True must be an integer"),
    (
        {"min_replies": 2.0},
        "min_replies = 2.0 must be an integer of at least 1 or None for half of a cohort",
    ),
    ({"min_replies": 7}, "min_replies = 7 but the federation has 6 clients"),
    ({"repeats": None}, "repeats = None must be an integer of at least 0"),
    ({"round_seconds": float("nan")}, "round_seconds = nan must be finite and > 0"),
    ({"connect_seconds": "120"}, "connect_seconds = '120' must be a number"),
    ({"norm_bound": -1}, "norm_bound = -1 must be finite and > 0"),
    ({"norm_bound": "big"}, "norm_bound = 'big' must be a number"),
    ({"shortfall": "wait"}, "shortfall = 'wait' must be 'repeat' or 'skip'"),
    ({"takeover": 1}, "takeover = 1 must be true or false"),
    ({"out": 5}, "out = 5 must be the name of a folder"),
    (
        {"clients_per_round": 2.5},
        "clients_per_round = 2.5 must be an integer of at least 1 or None for all",
    ),
    ({"over_select": -0.1, "clients_per_round": 2}, "over_select = -0.1 must be finite and >= 0"),
    ({"over_select": 0.5}, "over_select = 0.5 needs clients_per_round, to which it adds clients: give it"),
]


@pytest.mark.parametrize(("given", "said"), REFUSED)
def test_what_a_policy_cannot_be(given, said, tmp_path):
    with pytest.raises(fs.InvalidInput) as error:
        deploy(fs.FedAvg(0.1), tmp_path, **given)
    assert said in str(error.value)
    assert not list(tmp_path.iterdir())


def test_the_first_to_answer_are_no_random_cohort(tmp_path):
    method = fs.privacy.DifferentialPrivacy(
        fs.FedDuAdam(0.1), 1.0, 0.5, cohort=2, at="server", population=6, delta=1e-5, sampling="none"
    )
    with pytest.raises(
        fs.InvalidInput, match="accounts for cohorts drawn at random, not for the clients that answer first"
    ):
        deploy(method, tmp_path, over_select=0.5, clients_per_round=2)


def test_infinity_is_no_bound(tmp_path):
    """TOML has no null: a configuration says inf."""
    _, history, _ = deploy(
        fs.FedAvg(0.1),
        tmp_path,
        rounds=1,
        norm_bound=float("inf"),
        grace=float("inf"),
        clients_per_round=POPULATION,
    )
    assert history.total("dropped") == 0
    json.loads((tmp_path / "server" / "history.json").read_text(), parse_constant=pytest.fail)


def test_work_for_a_round_that_is_over_takes_no_state_away(tmp_path):
    """Round 5's order was slow: it ends after round 6's, whose state is the one that the server goes on from."""
    kept, state = ClientState(tmp_path, "one", 3), np.arange(3.0)
    kept.save(2, state, -1)
    kept.save(5, state + 6, 2)
    kept.save(4, state + 5, 2)
    np.testing.assert_array_equal(kept.load(5, state), state + 6)
    kept.save(7, state + 8, 5)
    assert not kept.path(4).exists()
    assert not kept.path(2).exists()


def test_pauses_between_polls_grow_while_nothing_comes(monkeypatch):
    """By a twentieth of the time waited, 0.05 s to 1 s; a poll of 0.4 s is followed by a pause as long."""
    now, pauses = [100.0], []

    def sleep(seconds):
        pauses.append(round(seconds, 6))
        now[0] += seconds

    monkeypatch.setattr(transport.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(transport.time, "sleep", sleep)
    polling = transport.Polling()
    while now[0] < 103:
        polling.pause()
    assert pauses[:20] == [0.05] * 20  # 1 s = 20 * 0.05 s
    assert pauses[-1] == pytest.approx(0.15, rel=0.05)
    while now[0] < 140:
        polling.pause()
    assert pauses[-1] == 1.0
    assert sum(seconds < 1 for seconds in pauses) < 100
    polling.reset()
    polling.pause()
    now[0] += 0.4  # what the poll takes
    polling.pause()
    polling.pause(0.02)
    assert pauses[-3:] == [0.05, 0.4, 0.02]


def test_a_grace_time_is_that_of_the_first_reply_that_makes_enough(monkeypatch):
    """Enough at second 3: replies at 4 and 7 leave the end at 3 + 5, however many come."""
    now = iter([3.0, 4.0, 7.0])
    monkeypatch.setattr(exchange.time, "monotonic", lambda: next(now))
    monkeypatch.setattr(exchange.codec, "record_bytes", lambda answer: 0)
    asked = exchange.Exchange(None, "train", 60.0, 5.0, lambda *given: object(), ClientStatuses(4), print)
    replies = exchange.Replies("round 1", needed=2, wanted=6)
    ends = []
    for client in range(4):
        asked.take(SimpleNamespace(client=client), {}, replies)
        ends.append(asked._closes)
    assert ends == [math.inf, 8.0, 8.0, 8.0]


def test_a_round_that_is_repeated_asks_those_again_who_were_silent(tmp_path, rarely):
    """Two must count. At first client 1 is silent and the others' answers are no replies; then all six are asked."""
    seen = set()

    def refused_at_first(node, what, content):
        if what == "train" and node not in seen:
            seen.add(node)
            return RecordDict()
        return content

    settings = {"rounds": 1, "min_replies": 2, "repeats": 1}
    _, history, grid = deploy(METHOD, tmp_path, slow={(102, 0): 2}, tamper=refused_at_first, **settings)
    assert asked(grid, 102) == 2
    assert [asked(grid, node) for node in (101, 103, 104, 105, 106)] == [2] * 5
    assert history.rounds["participants"].tolist() == [6]
