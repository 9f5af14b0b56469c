"""Flower's own program in a worker: what is replaced in it, and that another Flower is noticed."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest

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
