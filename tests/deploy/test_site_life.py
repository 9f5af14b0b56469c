"""A site's life: it refuses, is repaired, is started again, returns; nobody waits for one that has refused."""

import pytest
from flwr.app import ConfigRecord, RecordDict
from test_backoff import reasons
from test_registry import SIGNATURE, VERSIONS, Meeting, says

import fedsolve as fs
from deploy_small import QUICK, ask
from deploy_small import deploy_quick as deploy
from fake_grid import FakeGrid
from fedsolve.core.errors import Unavailable
from fedsolve.deploy import registry as client_registry
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.evaluation_job import Job
from fedsolve.deploy.exchange import Exchange, Polling
from fedsolve.deploy.secure.rounds import SecureSession
from fedsolve.deploy.server.settings import Settings
from fedsolve.deploy.statistics_job import summed_statistics


def refuses(why="no rows", client=1):
    return RecordDict({"refused": ConfigRecord({"why": why, "lost": False, "client": client})})


@pytest.fixture
def impatient(monkeypatch):
    """Nobody may be waited for, and who was refused is asked again at each look."""

    def pause(*_):
        raise AssertionError("somebody is waited for")

    monkeypatch.setattr(Polling, "pause", pause)
    monkeypatch.setattr(client_registry, "_ASK_AGAIN", 0.0)


class Sites(Meeting):
    """Three sites, of which client 1 answers what `answer` says; None for its own answer."""

    def __init__(self, folder, answer=None, **options):
        self.answer = answer
        keys = {101: b"a", 102: b"b", 103: b"c"}
        super().__init__(folder, [0, 1, 2], keys, tamper=self.tampered, **options)

    def tampered(self, node, _, content):
        return content if node != 102 or self.answer is None else self.answer


REFUSALS = {
    "its own": (refuses("south: the file is away"), "south: the file is away"),
    "another version": (says(VERSIONS | {"fedsolve": "0.9.0"}), "it has fedsolve 0.9.0"),
    "another schema": (says(signature=SIGNATURE.replace("2", "3")), "the model of client 1 has"),
    "other constants": (says(constants=["columns 1"]), "client 1 has another 'columns' than most"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_refusal_lasts_as_long_as_its_cause(kind, tmp_path, impatient):
    """It is said once, is nobody's wait, and ends with the next answer that is none."""
    answer, words = REFUSALS[kind]
    sites = Sites(tmp_path, answer)
    if kind == "other constants":
        sites.grid.tamper = lambda node, *_: (
            says(client=node - 101, constants=["columns 0"])
            if node != 102 or sites.answer is None
            else sites.answer
        )
    for _ in range(3):
        assert sites.registry.wait([0, 1, 2], 60.0) == {0: 101, 2: 103}
        assert list(sites.registry.refused) == [1]
        assert words in sites.registry.refused[1]
        assert any(words in reason for reason in sites.clients.refused)
    assert sum(words in line for line in sites.log) == 1
    sites.answer = None
    assert sites.registry.wait([0, 1, 2], 60.0) == {0: 101, 1: 102, 2: 103}
    assert sites.registry.refused == {}
    assert sites.clients.refused == []
    sites.answer = refuses("worse")
    assert sites.here() == {0: 101, 1: 102, 2: 103}  # who counts is not asked again
    assert sites.grid.asked.count((102, "query")) == 4


def test_a_refused_node_is_left_alone_for_a_while(tmp_path):
    sites = Sites(tmp_path, refuses())
    for _ in range(3):
        sites.here()
    assert sites.grid.asked.count((102, "query")) == 1


def test_a_node_that_was_started_again_is_asked_again(tmp_path):
    """With a key it has the same number: it refuses and was repaired, or was right and has another schema since."""
    sites = Sites(tmp_path, refuses())
    assert sites.here() == {0: 101, 2: 103}
    sites.answer, sites.grid.starts = None, {102: "noon"}
    assert sites.here() == {0: 101, 1: 102, 2: 103}
    assert sites.registry.refused == {}
    sites.answer, sites.grid.starts = says(signature="['w'] float32[3]"), {102: "one"}
    assert sites.here() == {0: 101, 2: 103}
    assert "the model of client 1" in sites.registry.refused[1]
    sites.answer, sites.grid.starts = None, {102: "two"}
    assert sites.here() == {0: 101, 1: 102, 2: 103}
    assert sites.log.count("client 1 is connected") == 2
    del sites.grid.nodes[102]
    assert sites.here() == {0: 101, 2: 103}
    assert sites.registry.refused == {}  # it left, and is waited for as one that left


def test_who_was_started_again_is_not_left_alone(tmp_path):
    """Client 1 left a round without an answer: it would rest in the next one."""
    sites = Sites(tmp_path)
    exchange = Exchange(sites.grid, "train", 1.0, None, lambda *_: None, sites.clients, sites.log.append)
    assert sites.here()[1] == 102
    exchange.backoff.record_miss(1, 102, 1)
    assert exchange.backoff.is_backing_off(1, 102, 2)
    sites.grid.starts = {102: "noon"}
    assert sites.here()[1] == 102
    assert not exchange.backoff.is_backing_off(1, 102, 2)


def test_a_quorum_without_those_that_refused(tmp_path, impatient):
    """Of three clients one has refused: two are not waited for when they are there, three not at all."""
    sites = Sites(tmp_path, refuses("south: no rows"), population=3)
    sites.registry.wait_for_quorum(2, 60.0)
    with pytest.raises(Unavailable) as ended:
        sites.registry.wait_for_quorum(3, 60.0)
    assert str(ended.value) == (
        "2 of 3 clients connected (missing: 1); refused: south: no rows: fix those that were refused and start again, "
        "or lower the quorum"
    )


def test_a_run_that_cannot_start_reports_what_every_site_refuses(tmp_path, monkeypatch):
    """Client 2 answers after client 1, whose refusal is enough; a node that never answers is not waited for long."""
    sites = Sites(tmp_path, refuses("south: no rows"), population=3)
    sites.grid.tamper = lambda node, *more: (
        refuses("west: no date", 2) if node == 103 else sites.tampered(node, *more)
    )
    sites.grid.slow = {(103, -1): 2}
    with pytest.raises(Unavailable, match="refused: south: no rows; refused: west: no date: fix"):
        sites.registry.wait_for_quorum(3, 60.0)
    silent = Sites(tmp_path / "silent", refuses("south: no rows"), population=3)
    silent.grid.slow = {(103, -1): 10**6}
    monkeypatch.setattr(client_registry, "_OTHERS", 0.0)
    with pytest.raises(Unavailable, match="refused: south: no rows; 1 nodes have not said yet"):
        silent.registry.wait_for_quorum(3, 60.0)


def test_another_node_may_be_the_client_that_one_refused(tmp_path):
    """Client 1 is bound to a key: that another node refuses in its name is no reason not to wait for it."""
    sites = Sites(tmp_path)
    assert sites.here() == {0: 101, 1: 102, 2: 103}
    sites.answer, sites.grid.keys[102], sites.grid.starts = refuses(), b"intruder", {102: "noon"}
    assert sites.here() == {0: 101, 2: 103}
    assert sites.registry.refused == {}
    assert sites.clients.refused == ["no rows"]


def test_a_run_with_a_site_that_is_repaired(tmp_path, monkeypatch):
    """Client 1 has no data at first: rounds go on without a wait, say why, and have it from round 2 on."""
    monkeypatch.setattr(client_registry, "_ASK_AGAIN", 0.0)
    read, tried = fs.flower.JaxOracle.of_task, []

    def oracle_for(node):
        if node.client == 1:
            tried.append(node)
            if len(tried) < 4:  # asked at the start and twice in a round
                raise fs.InvalidInput("the file is away")
        return read(QUICK, node.client)

    options = {"rounds": 2, "quorum": 5, "connect_seconds": 60.0}
    deploy(fs.FedAvg(0.1), tmp_path, app=client_app(oracle_for), **options)
    assert reasons(tmp_path) == [["client 1: refused: the file is away"], []]


def test_a_repaired_file_is_read_by_a_process_that_stays(tmp_path):
    """Who it is follows from the data as they are, each time that it is asked."""
    made = []

    def oracle_for(node):
        made.append(node)
        return fs.flower.JaxOracle.of_task(QUICK, node.client)

    app = client_app(oracle_for)
    for times in (1, 2):
        ask(app, RecordDict({"who": ConfigRecord({})}), tmp_path, kind="query")
        assert len(made) == times


def test_secure_sums_do_not_wait_for_one_that_refused(tmp_path, impatient):
    """They begin with all clients: the reason of the one that refuses is told, not the time that nobody waited."""
    sites = Sites(tmp_path, refuses("south: no rows"), population=3)
    settings = Settings(rounds=1, population=3, connect_seconds=60.0, out=str(tmp_path))
    session = SecureSession(sites.grid, settings, sites.registry, "one", sites.log.append)
    with pytest.raises(
        Unavailable, match="all 3 clients, and some were refused: south: no rows: fix them first"
    ):
        session.load_or_enrol()


def test_secure_statistics_without_a_client(tmp_path):
    grid = FakeGrid(client_app(lambda node: None), [0, 1], tmp_path)
    settings = Settings(rounds=1, population=3, connect_seconds=0.1, out=str(tmp_path))
    job = Job.of({"job": "statistics", "columns": "age=0:1", "secure": True})
    with pytest.raises(
        Unavailable, match="secure sums begin with all 3 clients, and clients 2 are not connected within"
    ):
        summed_statistics(grid, settings, job, {})
