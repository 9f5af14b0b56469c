"""A real SuperLink and three SuperNodes on loopback: equal to the simulation, and what is lost is found again.

The gate runs the first, which shows that the whole chain works, beside its other tests: most of its time is waiting.
Faults have deadlines, so they are tried alone.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import real_app
from safetensors.numpy import load_file

import fedsolve as fs
from fedsolve.cli.federation.local import LocalFederation
from fedsolve.deploy.run_log import FAILED, ROUNDS
from fedsolve.deploy.status import STATUS, read_status
from fedsolve.folders.run_folder import read_manifest
from fedsolve.results.clients import read_client_metrics
from fedsolve.results.history import History

RATE = 0.1
SHARED = 64 * 64 + 64
"""Numbers of the model's first layer."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory, request):
    """One federation for all tests of the module, and the app that they run."""
    folder = tmp_path_factory.mktemp("federation")
    app = real_app.write(folder)
    with LocalFederation(folder / "flower", 3, environment={"JAX_PLATFORMS": "cpu"}) as running:
        running.app = app
        yield running
    assert all(process.poll() is not None for process in [running.superlink, *running.nodes.values()])


def submit(federation, out: Path, method: str, rounds: int, **config) -> int:
    given = {"method": method, "client-lr": RATE, "rounds": rounds, "out": str(out), **config}
    return federation.submit(federation.app, given)


def rows(out: Path) -> list[dict]:
    path = out / ROUNDS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait(federation, out: Path, until, seconds: float = 240.0):
    """Look until something is there; if the run ended without it, say what it said."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = until()
        if found:
            return found
        if (out / FAILED).exists():
            pytest.fail((out / FAILED).read_text())
        time.sleep(0.3)
    pytest.fail(f"nothing after {seconds} s: {federation.last_words('superlink')}; rounds: {rows(out)}")


def finished(out: Path):
    path = out / "history.json"
    return History.from_json(path.read_text()) if path.exists() else None


def keep_tuned(kept: dict, at) -> None:
    kept[at.round] = at.clients(steps=2, solver=fs.client.SGD(0.1))


def simulated(method: str, rounds: int, callbacks=()):
    """The compiled engine on the same problem, clients one after another."""
    task = fs.tasks.digits(num_clients=3, partition="iid")
    settings = {"client_lr": RATE} | real_app.SETTINGS.get(method, {})
    return fs.run(
        fs.build(method, settings), task, rounds=rounds, chunk=1, eval_every=rounds, callbacks=callbacks
    )


def same_bits(out: Path, params) -> None:
    got = load_file(out / "model.safetensors")
    for layer, part in enumerate(params):
        for name in ("weight", "bias"):
            wanted = np.asarray(getattr(part, name))
            np.testing.assert_array_equal(got[f"model.{layer}.{name}"], wanted)


def test_the_simulation_to_the_last_bit(federation, tmp_path):
    """Two rounds of SCAFFOLD around FedDuAdam: the model is that of `fs.run`, bit for bit."""
    submit(federation, tmp_path, "SCAFFOLD+FedDuAdam", 2)
    history = wait(federation, tmp_path, lambda: finished(tmp_path))
    result = simulated("SCAFFOLD+FedDuAdam", 2)
    same_bits(tmp_path, result.params)
    assert history.final("test_accuracy") == pytest.approx(result.history.final("test_accuracy"))
    np.testing.assert_array_equal(history.rounds["server_lr"], result.history.rounds["server_lr"])
    assert history.total("rejected") == 0
    # the encoded messages are most of what is sent, and all of it is counted
    sent = result.history.total("bytes_up")
    assert sent < history.total("bytes_up") < 1.05 * sent
    clients = read_status(tmp_path / STATUS).clients
    assert [(c.last_used_round, c.failures, c.versions["fedsolve"]) for c in clients] == [
        (2, 0, fs.__version__)
    ] * 3


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "sent", "kept"),
    [
        ("Personal+SCAFFOLD+FedAdam", (2 * SHARED, SHARED), SHARED + 650),  # FedPer with control variates
        ("Ditto", (SHARED + 650, SHARED + 650), SHARED + 650),
    ],
)
def test_models_of_clients_own_stay_on_their_nodes(federation, tmp_path, method, sent, kept):
    """The bits of the simulation; the last layer, of 650 numbers, is in no message where it is personal.

    What lies on a node after two rounds are its own numbers, others than its neighbour's; the server's model, which
    unseen clients and the test set are measured with, is the simulation's, its last layer that of the start. Clients
    measure their own models, as they are and after two local steps, as in the simulation.
    """
    submit(federation, tmp_path, method, 2, **{"client-metrics": "loss, accuracy"})
    history = wait(federation, tmp_path, lambda: finished(tmp_path))
    tuned = {}
    result = simulated(method, 2, [lambda at: keep_tuned(tuned, at)])
    same_bits(tmp_path, result.params)
    assert history.final("test_accuracy") == pytest.approx(result.history.final("test_accuracy"))
    assert history.evaluations["clients_measured"].tolist() == [3, 3, 3]
    for name in (
        "train_loss",
        "train_accuracy",
        "client_loss_p10",
        "client_loss_worst",
        "client_accuracy_mean",
    ):
        for at in (0, -1):
            found, wanted = history.evaluations[name][at], result.metrics[name][at]
            assert found == pytest.approx(wanted, rel=1e-5), name
    after = read_client_metrics(tmp_path, steps=2)
    assert list(after) == [0, 1, 2]
    for name, column in tuned[2].metrics.items():
        np.testing.assert_allclose(after[2].column(name), column, rtol=1e-4, err_msg=name)
    experiment = read_manifest(tmp_path / "checkpoint.safetensors")["experiment"]
    files = [federation.folder / "states" / experiment / f"client-{i}-round-2.safetensors" for i in range(3)]
    own = [load_file(file) for file in files]
    assert [sum(x.size for x in one.values()) for one in own] == [kept] * 3
    assert not any(
        np.array_equal(a, b) for a, b in zip(own[0].values(), own[1].values(), strict=True) if a.ndim == 2
    )
    # 2 rounds of 3 clients, 4 bytes a number
    for way, numbers in zip(("bytes_down", "bytes_up"), sent, strict=True):
        assert 24 * numbers < history.total(way) < 24 * numbers * 1.15


@pytest.mark.alone
@pytest.mark.full
def test_bad_replies_and_dying_processes(federation, tmp_path):
    """In one run: NaN, a short message, a stale round, another experiment, an exception; then a process that dies.

    Each costs its round one of three replies, is told with its reason, and leaves the model finite.
    """
    faults = "1:0:nan,2:1:short,3:2:stale,4:0:foreign,5:1:raise,6:2:die"
    submit(federation, tmp_path, "SCAFFOLD", 6, fault=faults, **{"min-replies": 2, "round-seconds": 40.0})
    history = wait(federation, tmp_path, lambda: finished(tmp_path), 300)
    assert history.rounds["dropped"].tolist() == [1] * 6
    said = [row["reasons"][0] for row in rows(tmp_path)]
    expected = [
        ("client 0", "not finite"), ("client 1", "ends early"), ("client 2", "it is of round 1, not of 2"),
        ("client 0", "of experiment another-1"), ("client 1", "RuntimeError"), ("client 2", "no answer within"),
    ]  # fmt: skip
    for line, (who, why) in zip(said, expected, strict=True):
        assert line.startswith(f"{who}: ")
        assert why in line
    assert all(np.isfinite(x).all() for x in load_file(tmp_path / "model.safetensors").values())
    assert history.final("test_accuracy") > 0.5


@pytest.mark.alone
@pytest.mark.full
def test_late_replies_count(federation, tmp_path):
    """FedBuff: client 2 answers its first order after two updates, and the run comes to its end."""
    submit(federation, tmp_path, "FedBuff", 5, fault="1:2:wait")
    wait(federation, tmp_path, lambda: len(rows(tmp_path)) >= 2)
    (tmp_path / "go").touch()
    wait(federation, tmp_path, lambda: finished(tmp_path))
    assert len(rows(tmp_path)) == 5


@pytest.mark.alone
@pytest.mark.full
def test_fewer_nodes_than_the_quorum(federation, tmp_path):
    """Four clients are asked for, three are there: the run ends at the deadline and says who is missing."""
    config = {"quorum": 4, "population": 4, "connect-seconds": 30.0}
    run = submit(federation, tmp_path, "FedAvg", 1, **config)
    end = time.monotonic() + 150
    while not (tmp_path / FAILED).exists():
        assert time.monotonic() < end, federation.log(run)
        time.sleep(0.3)
    assert "3 of 4 clients connected within 30 s (missing: 3)" in (tmp_path / FAILED).read_text()


@pytest.mark.alone
@pytest.mark.full
def test_a_site_is_repaired_during_a_run(federation, tmp_path):
    """Client 2 refuses for want of its data: nobody waits for it, and once they are there it takes part again."""
    away = tmp_path / "away-2"
    away.touch()
    config = {"min-replies": 2, "quorum": 2, "connect-seconds": 200.0}
    submit(federation, tmp_path, "FedAvg", 30, **config)
    wait(federation, tmp_path, lambda: rows(tmp_path), 100)
    away.unlink()
    history = wait(federation, tmp_path, lambda: finished(tmp_path), 300)
    assert rows(tmp_path)[0]["reasons"] == ["client 2: refused: the data are away"]
    assert history.rounds["dropped"][-1] == 0


@pytest.mark.alone
@pytest.mark.full
def test_everything_dies_and_goes_on(federation, tmp_path):
    """Round 2 is under way when the SuperLink and a SuperNode are killed; restarted and resumed, the bits are those
    of an undisturbed run: client states lie on disk, the round that was lost is repeated, not applied twice.
    """
    submit(federation, tmp_path, "SCAFFOLD+FedDuAdam", 3, fault="2:1:wait")
    wait(federation, tmp_path, lambda: rows(tmp_path))
    states = federation.folder / "states"
    experiment = read_manifest(tmp_path / "checkpoint.safetensors")["experiment"]

    def trained():  # clients 0 and 2 have done round 2; client 1 waits
        files = [states / experiment / f"client-{i}-round-2.safetensors" for i in (0, 2)]
        return (tmp_path / "waiting").exists() and all(file.exists() for file in files)

    wait(federation, tmp_path, trained)
    federation.kill(federation.superlink)
    federation.kill(federation.nodes[0])
    (tmp_path / "go").touch()
    federation.start_superlink()
    federation.start_node(0)
    assert len(rows(tmp_path)) == 1
    submit(federation, tmp_path, "SCAFFOLD+FedDuAdam", 3, resume=True)
    history = wait(federation, tmp_path, lambda: finished(tmp_path), 300)
    assert history.rounds["round"].tolist() == [1, 2, 3]
    same_bits(tmp_path, simulated("SCAFFOLD+FedDuAdam", 3).params)


@pytest.mark.alone
@pytest.mark.full
def test_a_node_is_killed_in_a_round(federation, tmp_path):
    """Client 2's SuperNode dies while it trains: the round ends with the two others at its deadline."""
    config = {"min-replies": 2, "quorum": 2, "round-seconds": 30.0}
    submit(federation, tmp_path, "FedAvg", 2, fault="1:2:wait", **config)
    wait(federation, tmp_path, (tmp_path / "waiting").exists)
    federation.kill(federation.nodes[2])
    history = wait(federation, tmp_path, lambda: finished(tmp_path), 200)
    assert history.rounds["dropped"].tolist() == [1, 1]
    federation.start_node(2)  # its old node is on Flower's list for a minute more; the new one counts
    again = tmp_path / "again"
    submit(federation, again, "FedAvg", 1)
    assert wait(federation, again, lambda: finished(again)).total("dropped") == 0
