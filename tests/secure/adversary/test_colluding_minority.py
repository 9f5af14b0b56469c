"""What some clients can do together with the server; one attack a function.

The property: with fewer of them than `benchmarks/secure_bounds.py` says nothing is opened but one sum of all honest
clients that arrived, and none of them chooses who opens sums.
"""

import numpy as np
import pytest
from flwr.app import Context, RecordDict

import fedsolve as fs
from benchmarks.secure_bounds import committee_fails, ring_fails, round_stays_closed
from fake_grid import FakeGrid
from fedsolve.core.errors import Unavailable
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.evaluation_job import STATISTICS_FILE
from fedsolve.deploy.secure.attempt import AttemptLog
from fedsolve.deploy.secure.masking import Lists, Opening
from fedsolve.deploy.secure.primitives import ProtocolError
from fedsolve.deploy.server.server import server_app
from fedsolve.deploy.statistics_job import read_statistics
from secure_small import Small, many, plain_sum, words


@pytest.mark.parametrize(("clients", "colluding", "opened"), [(10, 3, 1), (10, 4, 2), (6, 2, 1), (7, 2, 1)])
def test_two_lists_of_one_attempt(clients, colluding, opened, tmp_path, monkeypatch):
    """The server asks some honest members for the sum of all, the others for that without client 0; those that collude
    answer both. One less than 2 threshold - committee open one list, so many both."""
    small = Small(tmp_path, clients)
    sums = small.gather(small.begin(), range(clients))
    other = Lists(sums.attempt, range(1, clients), (0,))
    openings = [Opening(sums._lists, sums._sealed), Opening(other, sums._sealed)]
    honest, threshold = clients - colluding, sums.attempt.roster.threshold
    split = threshold - colluding  # as many as the first list needs
    for member in range(clients):
        asked = [0, 1] if member >= honest else [0] if member < split else [1]
        for which in asked:
            sums._lists = [openings[0]._lists, other][which]
            with monkeypatch.context() as patch:
                if member >= honest:
                    patch.setattr(AttemptLog, "answer", lambda *given: None)
                openings[which].add(member, small.answer(sums, member))
            if member < honest:
                sums._lists = [other, openings[0]._lists][which]
                with pytest.raises(ProtocolError, match="has answered attempt 0"):
                    small.answer(sums, member)
    assert sum(opening.is_enough for opening in openings) == opened


def test_keys_of_the_colluding_tell_nothing_of_two_honest_clients(tmp_path):
    """Of five clients three give the server all that they have: what is left is the sum of the other two."""
    small = Small(tmp_path, 5)
    sums = small.gather(small.begin(), range(5))
    for member in range(4):
        sums.add_shares(member, small.answer(sums, member))
    mine = plain_sum([words(i) for i in (2, 3, 4)])
    rest = [
        (a - b) % 2**32
        for a, b in zip(
            *(np.frombuffer(x, "<u4", 5).astype(np.int64) for x in (sums.result().words, mine)), strict=True
        )
    ]
    both = np.frombuffer(plain_sum([words(i) for i in (0, 1)]), "<u4", 5)
    assert rest == both.tolist()
    gone = Lists(sums.attempt, range(1, 5), (0,))
    assert set(gone.opened) == {1, 2, 3, 4}
    assert 0 not in gone.opened  # of one that is missing its own secret is never given


def test_a_coin_that_is_chosen_late(tmp_path, drawn):
    """Whoever sees the coins of all others cannot give another one than it is bound to."""
    small = many(tmp_path, 12)
    for client in (0, 11):
        coins = bytearray(small.server.roster.coins)
        coins[32 * client] ^= 1
        with pytest.raises(ProtocolError, match=f"the coin of client {client} is not the one of the roster"):
            small.node(3).reveal(bytes(coins))


SITES = [{"age": np.arange(20.0) + i} for i in range(10)]


def collect(folder, tamper=None):
    """Statistics of ten sites under secure sums, of whom eight open them."""
    app = client_app(lambda node: None, statistics=lambda node: SITES[node.client], min_sum=8)
    server = server_app(fs.FedAvg(0.1), {"w": np.zeros(1)}, rounds=1, population=10)
    config = {"job": "statistics", "columns": "age=0:90", "secure": True, "out": str(folder / "run")}
    config |= {"connect-seconds": 0.2, "round-seconds": 0.2}
    grid = FakeGrid(app, list(range(10)), folder / "nodes", tamper, run_config=config)
    server(grid, Context(1, 1, {}, RecordDict(), config))
    return grid


def test_a_client_that_keeps_its_coin_stops_the_beginning_alone(tmp_path, monkeypatch, capsys):
    """It has seen the others' coins, and does not like the committee: nothing begins, and everybody has seen it."""
    monkeypatch.setattr("fedsolve.deploy.secure.keys.COMMITTEE", 8)

    def silent(node, kind, content):
        data = content["data"]["bytes"].data if kind == "query.secure" and "data" in content else b""
        return None if node == 101 and len(data) == 32 else content

    with pytest.raises(Unavailable, match="secure sums need every client; client 0: no answer within"):
        collect(tmp_path, silent)
    grid = collect(tmp_path / "again")
    assert "secure sums: 10 clients have each other's keys; 6 of 8 open a sum" in capsys.readouterr().out
    found = read_statistics(tmp_path / "again" / "run" / STATISTICS_FILE)["age"]
    assert (found.clients, found.rows) == (10, 200)
    kinds = [kind for _, kind in grid.asked]
    assert kinds.count("query") == 10  # who
    assert kinds.count("query.secure") >= 3 * 10 + 6  # hello, roster, coins


@pytest.mark.parametrize(
    ("clients", "share", "least"), [(10, 0.2, 999), (64, 0.2, 999), (100, 0.2, 40), (1000, 0.05, 40)]
)
def test_the_bounds_that_are_promised(clients, share, least):
    """Up to 64 clients a fifth may be corrupt, and nothing is left to chance; of 1,000 clients a twentieth."""
    assert committee_fails(clients, share) >= least
    if share == 0.05:
        assert ring_fails(clients, share) >= least
    assert round_stays_closed(clients, 0.0) >= 40
