"""Flower's own program in a worker: what is replaced in it, and that another Flower is noticed."""

import importlib
import re
import time
from types import SimpleNamespace

import pytest

from fedsolve.cli.federation.local import LocalFederation
from fedsolve.deploy.persistent import flower_program
from fedsolve.deploy.persistent.flower_program import (
    FlowerProgram,
    UnknownFlower,
    _check_insides,
    without_parent,
)

INSIDES = "flwr.supernode.runtime.run_clientapp"
REPLACED = ("flwr_exit", "pull_and_inflate_object_from_tree", "RuntimeHttpClient")


@pytest.fixture
def insides(monkeypatch):
    """The insides of Flower's program, which are as they were afterwards."""
    module = importlib.import_module(INSIDES)
    for name in REPLACED:
        monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr(module, "event", lambda *_: None)
    return module


def restarted(pulled):
    raise RuntimeError(f"restarted with {len(pulled)} bytes")


def test_a_message_that_succeeds_does_not_end_the_process(insides, monkeypatch):
    """What Flower does at an exit is done, but no thread is left that ends the process five seconds later."""
    from flwr.supercore.exit import add_exit_handler, exit_handler

    monkeypatch.setattr(exit_handler, "registered_exit_handlers", [])
    program, done = FlowerProgram(), []
    add_exit_handler(lambda: done.append("late"))
    add_exit_handler(lambda: done.append("early"), run_before_force_exit=True)
    assert insides.flwr_exit(code=0, event_type=None) is None
    assert done == ["early", "late"]
    monkeypatch.setattr(program, "_exit", lambda code, *_: done.append(code))
    insides.flwr_exit(code=800)
    assert done[2] == 800


def test_an_early_message_is_waited_for_and_objects_are_asked_for_soon(insides, monkeypatch):
    calls = []

    class Early:
        def PullMessages(self, request):
            calls.append(request)
            return SimpleNamespace(messages_list=["message"] if len(calls) == 5 else [])

    monkeypatch.setattr(flower_program.time, "sleep", calls.append)
    client = flower_program._client_class(Early, None)()
    assert client.PullMessages("?").messages_list == ["message"]
    assert calls == ["?", 0.02, "?", 0.04, "?"]
    FlowerProgram()
    given = insides.pull_and_inflate_object_from_tree.keywords
    assert given == {"initial_backoff": 0.02, "backoff_cap": 1.0, "max_tries_per_object": None}


def test_a_message_that_does_not_come_makes_way_for_the_next(insides, monkeypatch):
    """The SuperLink crashed while its objects were fetched: they never come, and Flower would ask for hours."""
    from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError

    tries, waiting, now = [], [], iter(range(0, 100, 2))

    def pull_object(object_id):
        tries.append(object_id)
        assert len(tries) < 8
        waiting.extend(["next"] if len(tries) == 5 else [])
        raise ObjectUnavailableError(object_id)

    FlowerProgram(lambda: bool(waiting))
    monkeypatch.setattr(flower_program, "time", SimpleNamespace(monotonic=lambda: next(now)))
    tree = SimpleNamespace(object_id="a", children=[])
    with pytest.raises(RuntimeError, match="the next one waits"):
        insides.pull_and_inflate_object_from_tree(tree, pull_object, None)
    assert tries == ["a"] * 5


def test_another_bundle_is_not_run_in_this_process(insides, monkeypatch):
    from flwr.proto.fab_pb2 import Fab
    from flwr.proto.runtime_pb2 import PullTaskInputResponse

    program, pulled = FlowerProgram(), {}
    answers = {name: PullTaskInputResponse(fab=Fab(hash_str=name), task_id=7) for name in ("one", "two")}

    def main():
        pulled["answer"] = program._take_input(lambda: answers[pulled["next"]], PullTaskInputResponse)

    monkeypatch.setattr(program, "_main", main)
    for name in ("one", "one"):
        pulled["next"] = name
        program.run(["--token", "x"], restarted, b"")
    pulled["next"] = "two"
    with pytest.raises(RuntimeError, match=f"restarted with {answers['two'].ByteSize()} bytes"):
        program.run(["--token", "x"], restarted, b"")
    other = FlowerProgram()
    monkeypatch.setattr(
        other, "_main", lambda: pulled.update(answer=other._take_input(restarted, PullTaskInputResponse))
    )
    other.run([], restarted, answers["two"].SerializeToString())
    assert pulled["answer"] == answers["two"]


def test_the_worker_watches_its_parent_itself():
    words = ["--token", "x", "--parent-pid", "7", "--insecure"]
    assert without_parent(words) == ["--token", "x", "--insecure"]
    assert without_parent(words[:2]) == words[:2]


@pytest.mark.parametrize("name", REPLACED)
def test_other_insides_are_noticed(insides, name):
    there = {key: getattr(insides, key) for key in (*REPLACED, "event")}
    _check_insides(SimpleNamespace(**there))
    for other in ({k: v for k, v in there.items() if k != name}, {**there, name: lambda new: None}):
        with pytest.raises(UnknownFlower, match="does not know"):
            _check_insides(SimpleNamespace(**other))


def test_a_flower_without_the_program(monkeypatch):
    monkeypatch.setattr(flower_program.importlib.metadata, "entry_points", lambda **_: [])
    with pytest.raises(UnknownFlower, match="no program flwr-clientapp"):
        FlowerProgram()


# An app of Flower alone, which does not import fedsolve, behind `fedsolve federate node`.

CLIENT = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
READINGS = np.random.default_rng(0).normal(3.0, 1.0, 100)  # made once, not once a message


@app.train()
def train(message, context):
    mean = message.content["arrays"]["mean"].numpy()
    arrays = ArrayRecord({"mean": Array(mean + 0.5 * (READINGS.mean() - mean))})
    metrics = MetricRecord({"num-examples": len(READINGS)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
"""
PROJECT = """
[project]
name = "plain"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr"]
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.hatch.build.targets.wheel]
packages = ["plain"]
[tool.flwr.app]
publisher = "plain"
fab-include = ["plain/*.py"]
[tool.flwr.app.components]
serverapp = "plain.server_app:app"
clientapp = "plain.client_app:app"
[tool.flwr.app.config]
out = ""
"""
SERVER = """
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    result = strategy.start(grid, ArrayRecord({"mean": Array(np.zeros(1))}), num_rounds=3)
    Path(context.run_config["out"]).write_text(repr(float(result.arrays["mean"].numpy()[0])))
"""
MORE = """
import os

print("worker", os.getpid(), "fedsolve" in __import__("sys").modules and "with", flush=True)
"""


@pytest.mark.alone
@pytest.mark.full
def test_an_app_of_flower_stays_loaded(tmp_path):
    """Three rounds halve the distance to the mean thrice; each node imports the app once."""
    assert "fedsolve" not in CLIENT
    app = tmp_path / "plain"
    (app / "plain").mkdir(parents=True)
    for name, text in (("__init__", ""), ("server_app", SERVER), ("client_app", CLIENT + MORE)):
        (app / "plain" / f"{name}.py").write_text(text)
    (app / "pyproject.toml").write_text(PROJECT)
    out = tmp_path / "mean"
    with LocalFederation(tmp_path / "flower", 2) as federation:
        run = federation.submit(app, {"out": str(out)})
        end = time.monotonic() + 200
        while not out.exists():
            assert time.monotonic() < end, federation.log(run)
            time.sleep(0.3)
    readings = {}
    exec(CLIENT, readings)
    assert float(out.read_text()) == pytest.approx((1 - 0.5**3) * readings["READINGS"].mean())
    for node in range(2):
        log = (federation.folder / f"client-{node}.log").read_text()
        assert len(re.findall(r"^worker \d+", log, re.MULTILINE)) == 1
        assert log.count("Sent successfully") >= 3
