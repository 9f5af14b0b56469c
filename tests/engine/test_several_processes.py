"""Several processes share a run: bits and logs are those of one process with as many devices."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.cli.processes import free_port
from fedsolve.engine.compute import sharding
from harness import make_clients, make_task

CODE = """
import json, sys
tests, address, count, index = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
sys.path.insert(0, tests)
import jax
if count > 1:
    jax.distributed.initialize(address, count, index, cluster_detection_method="deactivate")
import numpy as np
import fedsolve as fs
from fedsolve.engine import streaming
from harness import Listed, make_clients, make_task
assert len(jax.devices()) == 4
task = make_task(make_clients())
many = make_task(make_clients(tuple(np.random.default_rng(0).integers(1, 9, 40))))
streaming.WINDOW_BYTES, read = 2**9, []
class Counting(streaming.Packer):
    def pack(self, clients):
        read.append(len(clients))
        return super().pack(clients)
streaming.Packer = Counting
enter, streams = streaming.Stream.enter, []
streaming.Stream.enter = lambda self, state: streams.append(self) or enter(self, state)
rate = fs.schedules.ReduceOnPlateau(3.0, "train_loss", 1)
some = {"clients_per_round": 17, "chunk": 2, "batch_size": 2}
cases = {
    "SCAFFOLD, Bernoulli": (fs.SCAFFOLD(0.3), {"sampling": fs.sampling.Bernoulli(0.5)}),
    "SCAFFOLD+FedDuAdam, 3 of 5, one at a time": (
        fs.build("SCAFFOLD+FedDuAdam", {"client_lr": 0.3}), {"clients_per_round": 3, "chunk": 1}),
    "FedAvg, 0 to 4 of 5": (fs.FedAvg(0.3), {"sampling": Listed.of([[0], [1, 2, 3, 4], [], [4, 2, 0]])}),
    "a median": (fs.robust.Robust(fs.FedAvg(0.3), fs.robust.Median()), {}),
    "streamed": (fs.FedAvg(0.3), {"clients_per_round": 3, "residency": "stream"}),
    "17 of 40": (fs.FedAvg(rate), some),
    "17 of 40, streamed": (fs.FedAvg(rate), some | {"residency": "stream"}),
}
if count < 4:
    cases["in parts"] = (fs.FedAdam(0.3), {"mesh": {"clients": 2, "model": 2}})
if count > 1:
    del cases["17 of 40"]  # the streamed one is compared to it
stop = [lambda at: "enough" if at.round == 6 else None] if index == 0 else []
for name, (algorithm, options) in cases.items():
    work = many if "of 40" in name else task
    options |= {} if "mesh" in options else {"devices": 4}
    found = fs.run(algorithm, work, rounds=9, eval_every=3, callbacks=stop, **options)
    arrays = {str(i): x for i, x in enumerate(jax.tree.leaves(found.params))}
    arrays |= dict(found.rounds) | dict(found.metrics)
    arrays.pop("seconds")
    if streams and streams[-1]._next is not None:
        streams[-1]._next.result()  # which is read ahead
    arrays["read"] = np.array(sum(read))
    read.clear()
    print(json.dumps([name, {k: np.asarray(x).tobytes().hex() for k, x in arrays.items()}]))
"""


def outcomes(count: int, env: dict[str, str]) -> list[dict[str, dict[str, str]]]:
    """What each of so many processes, of four devices together, has found."""
    here, address = str(Path(__file__).parent.parent), f"127.0.0.1:{free_port()}"
    env = env | {"JAX_NUM_CPU_DEVICES": str(4 // count)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", CODE, here, address, str(count), str(index)],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for index in range(count)
    ]  # fmt: skip
    said = [process.communicate(timeout=600) for process in started]
    for process, (_, errors) in zip(started, said, strict=True):
        assert process.returncode == 0, errors[-2000:]
    return [dict(json.loads(line) for line in out.splitlines() if line.startswith('["')) for out, _ in said]


@pytest.mark.full
def test_however_many_processes_the_bits_are_the_same(subprocess_env):
    """Model, logs and metrics of four devices in one, two and four processes; a callback of the first ends them all.

    A model may lie in parts on the devices of one process. Where clients are streamed, the processes together read what
    one alone reads, each about as much: bits are those of resident clients, at a rate that reacts to evaluations.
    """
    (alone,) = outcomes(1, subprocess_env)
    assert len(alone) == 8
    assert all(len(np.frombuffer(bytes.fromhex(found["round"]))) == 3 for found in alone.values())
    in_all = reads(alone)
    assert alone.pop("17 of 40") == alone["17 of 40, streamed"]
    for count in (2, 4):
        parts = outcomes(count, subprocess_env)
        read = [reads(found) for found in parts]
        if count == 4:
            del alone["in parts"]
        assert all(found == alone for found in parts)
        for name in alone:
            assert sum(own[name] for own in read) == in_all[name]
        streamed = [own["17 of 40, streamed"] for own in read]
        assert 0 < max(streamed) < 1.3 * min(streamed)


def reads(found: dict[str, dict[str, str]]) -> dict[str, int]:
    """The clients that a process has read for its rounds, by case; taken out of what it found."""
    return {name: int(np.frombuffer(bytes.fromhex(x.pop("read")), int)[0]) for name, x in found.items()}


def test_what_runs_in_one_process(monkeypatch):
    """Sweeps, comparisons and several seeds are refused, with what can be shared; so is a model on two of them."""
    task = make_task(make_clients())
    monkeypatch.setattr("jax.process_count", lambda: 2)
    calls = {
        "a sweep": lambda: fs.sweep("FedAvg", task, {"client_lr": [0.1]}, rounds=1),
        "a comparison": lambda: fs.compare([fs.FedAvg(), fs.FedAdam()], task, rounds=1),
        "a run with several seeds": lambda: fs.run(fs.FedAvg(), task, rounds=1, seeds=2),
    }
    for what, call in calls.items():
        with pytest.raises(fs.InvalidInput, match=f"{what} runs in one process, and there are 2"):
            call()
    with pytest.raises(
        fs.InvalidInput, match="devices = 3: 2 processes share a run on all of their 1 devices"
    ):
        fs.run(fs.FedAvg(), task, rounds=1, devices=3)
    with pytest.raises(fs.InvalidInput, match=r"mesh.model = 2 and a process has 1 devices"):
        fs.run(fs.FedAvg(), task, rounds=1, mesh={"clients": 1, "model": 2})


def test_processes_of_different_runs_do_not_meet(monkeypatch):
    """Who has another configuration or other data is named."""
    monkeypatch.setattr(sharding, "process_allgather", lambda *numbers: np.array([[1], [1], [2]]))
    with pytest.raises(
        fs.InvalidInput, match="process 2 and process 0 differ in their configuration or data"
    ):
        sharding.check_same("configuration or data", {})
