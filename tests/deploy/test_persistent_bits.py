"""Real federations with persistent workers have the bits and the record of fresh processes, whatever ends a worker."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from test_federation import finished, rows, wait

from fedsolve.cli.federation.local import LocalFederation
from fedsolve.cli.federation.new import write_app
from fedsolve.deploy.persistent.node_folder import WORKER, workers_in

pytestmark = [pytest.mark.slow, pytest.mark.alone]
METHODS = {"FedDuAdam": 0.1, "SCAFFOLD": 0.1, "FedAvg": 0.1}
ROUNDS = 22
MEASURED = ("seconds", "phases")  # columns of times


@contextlib.contextmanager
def federation(folder: Path, framework: str, fresh: bool = False):
    """Three nodes, and an app of `federate new`."""
    app = folder / "app" / f"bits{framework}"
    if not app.exists():
        write_app(app, "digits", framework, 3)
    cache = {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(folder / "cache")}
    cache["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    with LocalFederation(folder / f"flower-{fresh}", 3, environment=cache, fresh=fresh) as running:
        running.app = app
        yield running
    assert not workers_in(running.folder / "states")


def train(running, out: Path, method: str, rounds: int = 3, **more):
    """The model's bytes and the record of a run, without what was measured in seconds."""
    given = {"method": method, "client-lr": METHODS[method], "rounds": rounds, "out": str(out), "seed": 3}
    running.submit(running.app, given | more)
    wait(running, out, lambda: finished(out), 600)
    return record(out)


def record(out: Path):
    """What a run has found, without times."""
    document = json.loads((out / "history.json").read_text())
    for table in ("rounds", "evaluations"):
        columns = document.get(table, {})
        document[table] = {k: v for k, v in columns.items() if k not in MEASURED and "seconds" not in k}
    model = {name: value.tobytes() for name, value in load_file(out / "model.safetensors").items()}
    return model, document["rounds"], document["evaluations"]


def worker_pids(running) -> list[int]:
    """The workers themselves, without shims."""
    pids = workers_in(running.folder / "states")
    return [pid for pid in pids if WORKER.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.parametrize(
    "framework",
    ["torch", pytest.param("jax", marks=pytest.mark.full), pytest.param("sklearn", marks=pytest.mark.full)],
)
def test_the_bits_of_fresh_processes(framework, tmp_path):
    """Methods with and without client states; then the app is rebuilt, and a new bundle has a new process."""
    pytest.importorskip({"sklearn": "sklearn"}.get(framework, framework))
    with federation(tmp_path, framework) as running:
        warm = {m: train(running, tmp_path / "warm" / m, m) for m in METHODS}
        assert len(worker_pids(running)) == 3
        for module in (running.app).rglob("problem.py"):
            module.write_text(module.read_text() + "\nREBUILT = True\n")
        rebuilt = train(running, tmp_path / "rebuilt", "FedAvg")
        before = worker_pids(running)
        said = [(running.folder / f"client-{i}.log").read_text() for i in range(3)]
    assert len(before) == 3
    assert all("Traceback" not in log for log in said)
    with federation(tmp_path, framework, fresh=True) as running:
        fresh = {m: train(running, tmp_path / "fresh" / m, m) for m in METHODS}
        assert worker_pids(running) == []
    for method in METHODS:
        assert warm[method] == fresh[method], method
    assert rebuilt == fresh["FedAvg"]


@contextlib.contextmanager
def killer(running, out: Path, kills: int):
    """Kill a worker at a random moment of each round after the first; the moments in seconds after a round's end."""
    random_, over, moments = random.Random(1), threading.Event(), []

    def kill():
        for number in range(1, kills + 1):
            while len(rows(out)) < number:
                if over.wait(0.1):
                    return
            moment = random_.uniform(0.0, 5.0)
            over.wait(moment)
            with contextlib.suppress(OSError):
                if pids := worker_pids(running):
                    os.kill(random_.choice(pids), signal.SIGKILL)
                    moments.append(round(moment, 1))

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield moments
    finally:
        over.set()
        thread.join()


@pytest.mark.full
def test_workers_killed_at_random_moments(tmp_path):
    """Twenty kills in a run of SCAFFOLD: a round that lost a reply says so and asks again; the bits are the same."""
    pytest.importorskip("torch")
    with federation(tmp_path, "torch") as running:
        config = {"min-replies": 3, "round-seconds": 150.0, "connect-seconds": 400.0}
        undisturbed = train(running, tmp_path / "undisturbed", "SCAFFOLD", ROUNDS)
        with killer(running, tmp_path / "killed", 20) as killed:
            disturbed = train(running, tmp_path / "killed", "SCAFFOLD", ROUNDS, **config)
    told = [
        (row["round"], row["replies"], row["reasons"]) for row in rows(tmp_path / "killed") if row["reasons"]
    ]
    print(f"{len(killed)} kills; rounds that say why a reply was missing: {told}")
    assert len(killed) == 20
    assert disturbed[0] == undisturbed[0]
    assert [row["round"] for row in rows(tmp_path / "killed")] == list(range(1, ROUNDS + 1))
