"""What the server knows of its clients: who was heard, who failed and why, and which versions work together."""

import json
import re
import time

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from test_registry import VERSIONS, Meeting, says

import fedsolve as fs
from deploy_small import deploy_quick as deploy
from fedsolve.core.errors import Unavailable
from fedsolve.deploy import status as versions
from fedsolve.deploy.status import STATUS, Cause, ClientStatuses, StatusFile, read_status

SITES = [{"client-id": 0, "site": "north"}, 1, 2, 3, 4, 5]


def spoiled(node, kind, content):
    """Client 1 (node 102) answers another round, client 2 says that its process died, in training alone."""
    if kind == "train" and node == 102:
        content["reply"] = ConfigRecord(dict(content["reply"]) | {"round": 7})
    if kind == "train" and node == 103:
        raise OSError("no memory")
    return content


def test_a_run_writes_down_who_failed_and_why(tmp_path):
    """Of two rounds: client 3 is silent in the first, 1 and 2 fail in both; the rest count."""
    before = time.time()
    settings = {"rounds": 2, "min_replies": 1, "clients": SITES, "tamper": spoiled, "deaf": [(104, 0)]}
    deploy(fs.SCAFFOLD(0.1), tmp_path, **settings)
    text = (tmp_path / "server" / STATUS).read_text()
    assert not re.search(r"(?<![\d.])10[1-6](?!\d)", text)  # whole numbers, not parts of times
    assert "node" not in text
    status = read_status(tmp_path / "server" / STATUS)
    assert (status.label, status.round, status.rounds, status.keeps_states) == ("SCAFFOLD", 2, 2, True)
    north, wrong, dead, silent, *others = status.clients
    assert (north.site, wrong.site) == ("north", "")
    assert all(c.versions["fedsolve"] == fs.__version__ for c in status.clients)
    assert all(c.versions["framework"].startswith("jax ") for c in status.clients)
    assert all(c.connected and before <= c.last_heard <= time.time() for c in status.clients)
    assert [(c.failures, c.consecutive_failures) for c in (wrong, dead)] == [(2, 2)] * 2
    assert (wrong.last_cause, dead.last_cause) == (Cause.INVALID, Cause.FAILED)
    assert wrong.last_reason == "it is of round 7, not of 1"
    assert dead.last_reason.startswith("no memory")
    # left alone in round 2, which is no second failure
    assert (silent.failures, silent.consecutive_failures, silent.last_cause) == (1, 1, Cause.NO_ANSWER)
    assert silent.last_used_round == 0
    assert [(c.failures, c.last_used_round, c.last_cause) for c in (north, *others)] == [(0, 2, None)] * 3
    first, second = map(json.loads, (tmp_path / "server" / "rounds.jsonl").read_text().splitlines())
    assert (first["asked"], first["causes"]) == (6, {"failed": 1, "invalid": 1, "no_answer": 1})
    assert (second["asked"], second["causes"]) == (5, {"failed": 1, "invalid": 1, "not_asked": 1})


def test_what_is_known_outlives_the_server(tmp_path):
    """Also of a run that ended early; another experiment begins anew, and a damaged file stops no training."""
    with pytest.raises(Unavailable, match="0 of 6 replies count"):
        deploy(fs.FedAvg(0.1), tmp_path, rounds=1, repeats=1, deaf=[(n, 0) for n in range(101, 107)])
    path = tmp_path / "server" / STATUS
    assert [c.consecutive_failures for c in read_status(path).clients] == [2] * 6
    deploy(fs.FedAvg(0.1), tmp_path, rounds=1)
    known = read_status(path)
    assert [(c.failures, c.last_used_round) for c in known.clients] == [(0, 1)] * 6
    lines = []
    about = (path.parent, known.experiment, "FedAvg", 2, False, lines.append)
    statuses = StatusFile(*about).restore(4)
    assert [(c.client, c.connected, c.versions) for c in statuses.all()] == [
        (c.client, False, c.versions) for c in known.clients[:4]
    ]
    path.write_text(path.read_text()[:-40])
    assert StatusFile(*about).restore(4).all() == ClientStatuses(4).all()
    assert len(lines) == 1
    assert f"{path} is damaged (" in lines[0]


def test_failures_in_a_row_end_with_a_reply_that_counts():
    statuses = ClientStatuses(2)
    for _ in range(3):
        statuses.failed(1, Cause.OUTLIER, "\udc80" + "x" * 9999)
    statuses.failed(1, Cause.NOT_ASKED, "left alone")
    assert (statuses.all()[1].failures, statuses.all()[1].consecutive_failures) == (3, 3)
    assert statuses.all()[1].last_reason == r"\udc80" + "x" * 1991 + "..."
    statuses.succeeded([1])
    assert (statuses.all()[1].failures, statuses.all()[1].consecutive_failures) == (3, 0)
    assert statuses.all()[1].last_cause is Cause.OUTLIER
    assert statuses.all()[0] == ClientStatuses(1).all()[0]


DAMAGED = {
    "cut": (lambda d: json.dumps(d)[:-9], "EOF while parsing"),
    "another number": (lambda d: d["clients"][1].update(client=5), "their numbers are not 0, 1"),
    "a client twice": (lambda d: d["clients"][1].update(client=0), "their numbers are not 0, 1"),
    "failures in text": (lambda d: d["clients"][0].update(failures="3"), "clients.0.failures: "),
    "time NaN": (lambda d: d["clients"][0].update(last_heard=float("nan")), "clients.0.last_heard: "),
    "unknown cause": (lambda d: d["clients"][0].update(last_cause="fun"), "clients.0.last_cause: "),
    "unknown entry": (lambda d: d["clients"][0].update(key="ab"), "clients.0.key: Extra inputs"),
    "an experiment without a name": (
        lambda d: d.update(experiment=None),
        "experiment: Input should be a valid string",
    ),
    "an entry that forges a log": (
        lambda d: d["clients"][0].update({"x\n\x1b[2J": 1}),
        "clients.0.x \\x1b[2J: Extra",
    ),
    "a list": (lambda d: "[]", "Input should be an object"),
    "deep": (lambda d: "[" * 100_000, "recursion limit"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_is_refused_in_one_line(kind, tmp_path):
    StatusFile(tmp_path, "one", "FedAvg", 3, False, print).save(ClientStatuses(2), 1, np.array([0, -1]))
    document = json.loads((tmp_path / STATUS).read_text())
    change, said = DAMAGED[kind]
    changed = change(document)
    (tmp_path / STATUS).write_text(changed if isinstance(changed, str) else json.dumps(document))
    with pytest.raises(fs.InvalidInput) as refused:
        read_status(tmp_path / STATUS)
    assert str(refused.value).startswith(f"{tmp_path / STATUS} is damaged (")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("0.1.0", "it has fedsolve 0.1.0, and the server 0.2.3: install fedsolve 0.2 there"),
        ("0.3.0", "it has fedsolve 0.3.0, and the server 0.2.3"),
        ("0.20.0", "it has fedsolve 0.20.0, and the server 0.2.3"),
        ("1.2.0", "it has fedsolve 1.2.0, and the server 0.2.3"),
        (None, "it reports no version of fedsolve, so its one is older than 0.2, and the server has 0.2.3"),
        ("", "it has fedsolve , and the server 0.2.3"),
        ("0.2.0", ""),
        ("0.2.9.dev1+g12", ""),
    ],
)
def test_a_node_of_another_version_is_refused_until_it_goes(given, said, tmp_path, monkeypatch):
    """Both versions are named, once; it is not asked again, as one that fails is."""
    monkeypatch.setattr(versions, "__version__", "0.2.3")
    reported = None if given is None else VERSIONS | {"fedsolve": given}
    meeting = Meeting(
        tmp_path, [0, 1], tamper=lambda node, *_: says(reported, client=1) if node == 102 else says(client=0)
    )
    connected = meeting.here()
    assert connected == ({0: 101} if said else {0: 101, 1: 102})
    assert meeting.here() == connected
    assert [node for node, _ in meeting.grid.asked] == [101, 102]
    refusals = [line for line in meeting.log if "refused" in line]
    assert len(refusals) == bool(said)
    if said:
        assert refusals[0].startswith(f"node 102 is refused: {said}")
        assert [reason[: len(said)] for reason in meeting.clients.refused] == [said]
        assert not meeting.clients.all()[1].connected
    else:
        assert meeting.clients.all()[1].versions == reported
        del meeting.grid.nodes[102]
        meeting.here()
        assert [c.connected for c in meeting.clients.all()] == [True, False, False, False, False, False]


def test_a_new_minor_version_of_a_major_one_works_with_the_old():
    assert versions.is_compatible("1.4.0", "1.0.2")
    assert not versions.is_compatible("1.4.0", "2.0.0")
    assert not versions.is_compatible("nonsense", "nonsense")


def test_an_answer_without_versions_costs_its_node_alone(tmp_path):
    with pytest.raises(Unavailable, match=r"5 of 6 .*refused: it reports no version of fedsolve"):
        deploy(
            fs.FedAvg(0.1),
            tmp_path,
            tamper=lambda node, what, content: (
                RecordDict({"client": content["client"]}) if node == 106 else content
            ),
        )
    status = read_status(tmp_path / "server" / STATUS)
    assert [c.connected for c in status.clients] == [True] * 5 + [False]
    assert [reason[:20] for reason in status.refused] == ["it reports no versio"]


def test_clients_are_known_while_they_are_waited_for(tmp_path):
    """Before the first round, as soon as one connects or is refused: when somebody wants to know who is missing."""
    path, seen = tmp_path / "server" / STATUS, []

    def tells(node, what, content):
        if path.exists():
            seen.append(read_status(path))
        return says(None) if node == 106 and what == "query" else content

    with pytest.raises(Unavailable):
        deploy(fs.FedAvg(0.1), tmp_path, tamper=tells)
    assert [c.connected for c in seen[0].clients] == [False] * 6
    last = read_status(path)
    assert (last.round, [c.connected for c in last.clients]) == (0, [True] * 5 + [False])
    assert len(last.refused) == 1
