"""`fedsolve federate status`: the clients of runs that go on, have ended, failed or were interrupted."""

import json
import os
import time

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.deploy.run_log import FAILED
from fedsolve.deploy.status import STATUS, Cause, ClientStatuses, StatusFile
from fedsolve.folders.files import locked
from fedsolve.results.record_files import HISTORY

VERSIONS = {"fedsolve": fs.__version__, "flwr": "1.41.0", "python": "3.11.9", "framework": "torch 2.13.0+cpu"}


def write(folder, label="SCAFFOLD", done=2, rounds=3):
    """North has replied twice, client 1 has failed twice, client 2 was never there; a fourth node is refused."""
    statuses = ClientStatuses(3)
    for client in (0, 1):
        statuses.on_hello(client, VERSIONS)
    statuses.names.assign(0, "north")
    statuses.on_poll([0, 1], ["it has fedsolve 0.1.0, and the server 0.2.0: install fedsolve 0.2 there"])
    statuses.failed(1, Cause.NO_ANSWER, "no answer within 600 s")
    statuses.failed(1, Cause.FAILED, "no memory\x1b[2J")
    folder.mkdir(parents=True, exist_ok=True)
    StatusFile(folder, "one", label, rounds, True, print).save(statuses, done, np.array([1, -1, -1]))


def test_the_table(call, tmp_path):
    write(tmp_path / "run")
    ended = call("federate", "status", "run")
    assert (ended.code, ended.err) == (0, "")
    title, heads, north, failing, absent, *lines = ended.out.splitlines()
    assert title == "SCAFFOLD in run: interrupted, 2 of 3 rounds, 2 of 3 clients connected"
    assert heads.split()[:3] == ["client", "site", "connected"]
    assert north.split() == [
        *("0", "north", "yes", *north.split()[3:6], "0", "0", "2"),
        *(fs.__version__, "1.41.0", "3.11.9", "torch", "2.13.0+cpu"),
    ]
    assert north.split()[5] == "ago"
    assert failing.split()[-8:-5] == ["2", "2", "none"]
    assert absent.split() == ["2", "no", "never", "0", "0", "none"]
    assert lines == [
        r"last failure of client 1: no memory\x1b[2J",
        "refused: it has fedsolve 0.1.0, and the server 0.2.0: install fedsolve 0.2 there",
        "each client keeps a state: that after its last used round",
    ]


def test_the_document(call, tmp_path):
    """Of all runs of a demo's folder, each with how it stands."""
    for name in ("failed", "finished", "gone-on", "running", "stopped-early"):
        write(tmp_path / "demo" / name, done=3 if name == "finished" else 2)
    (tmp_path / "demo" / "flower").mkdir()
    (tmp_path / "demo" / "failed" / FAILED).write_text("round 3: 1 of 3 replies count\n")
    earlier = time.time() - 60
    for name in ("gone-on", "stopped-early"):  # before it went on; by a callback
        (tmp_path / "demo" / name / HISTORY).write_text("{}")
    os.utime(tmp_path / "demo" / "gone-on" / HISTORY, (earlier, earlier))
    with locked(tmp_path / "demo" / "running"):
        ended = call("federate", "status", "demo", "--json")
        assert call("federate", "status", "demo").out.count("SCAFFOLD in demo/") == 5
    runs = ended.document["runs"]
    assert [run["status"] for run in runs] == ["failed", "finished", "interrupted", "running", "finished"]
    assert [run["error"] for run in runs] == ["round 3: 1 of 3 replies count", None, None, None, None]
    assert (runs[0]["round"], runs[0]["rounds"], runs[0]["label"], runs[0]["keeps_states"]) == (
        2,
        3,
        "SCAFFOLD",
        True,
    )
    north, failing, absent = runs[0]["clients"]
    assert (north["site"], north["versions"], north["last_used_round"]) == ("north", VERSIONS, 2)
    assert (failing["failures"], failing["last_cause"]) == (2, "failed")
    assert absent["last_heard"] is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "run holds no run of a federation: no client-status.json is in it or in a folder of it"),
        ('{"experiment": ', "run/client-status.json is damaged (Invalid JSON: EOF while parsing"),
        ("\0" * 40, "run/client-status.json is damaged (Invalid JSON: "),
    ],
)
def test_bad_folders(text, said, call, tmp_path):
    (tmp_path / "run").mkdir()
    if text is not None:
        (tmp_path / "run" / STATUS).write_text(text)
    ended = call("federate", "status", "run")
    assert ended.code == 2
    assert ended.err.startswith(f"error: {said}")
    assert ended.err.count("\n") == 1
    assert json.loads(call("federate", "status", "run", "--json").out)["exit_code"] == 2
