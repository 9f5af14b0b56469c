"""The shim and the worker of a node, without Flower: what a message's caller sees, and what a worker's end costs."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsolve.deploy.persistent import node_folder, shim
from fedsolve.deploy.persistent.node_folder import (
    BIN,
    PROGRAM,
    WorkerLimits,
    hold,
    make_folder,
    start_worker,
    workers_in,
)

NONE = WorkerLimits()
SMALL = Path(__file__).parent / "small_worker.py"


def until(true, seconds=10.0):
    end = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return value


class Node:
    """A node's folder, and messages as Flower's SuperExec, here this process, sends them."""

    def __init__(self, states: Path, limits: WorkerLimits) -> None:
        states.mkdir(parents=True)
        own = states / "own"
        own.write_text('#!/bin/sh\necho own "$@"\n')
        own.chmod(0o700)
        self.states, self.notes = states, states / "notes"
        self.folder = make_folder(states, limits, str(own))
        settings = json.loads((self.folder / shim.SETTINGS).read_text())
        settings["worker"] = [sys.executable, "-P", str(SMALL)]
        (self.folder / shim.SETTINGS).write_text(json.dumps(settings))
        self.environment = {**os.environ, "NOTES": str(self.notes)}

    def start(self, what: str, *more: str) -> subprocess.Popen[str]:
        words = [str(self.folder / BIN / PROGRAM), "--insecure", "--token", what, *more]
        return subprocess.Popen(
            words, env=self.environment, cwd=self.states, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip

    def ask(self, what: str, *more: str):
        """The exit code of a message, the number of its worker, and what was said."""
        process = self.start(what, *more)
        out, err = process.communicate(timeout=20)
        number = out.split()[0] if out else "0"
        return process.returncode, int(number) if number.isdigit() else 0, out, err

    def noted(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    def stop(self) -> None:
        for pid in workers_in(self.states):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def new_node(tmp_path):
    """Makes a node; its folder's path is longer than that of a socket may be."""
    nodes = []

    def make(limits=NONE):
        nodes.append(Node(tmp_path / ("long-" * 25) / str(len(nodes)), limits))
        return nodes[-1]

    yield make
    for node in nodes:
        node.stop()


def test_messages_run_in_one_process_as_if_each_had_its_own(new_node):
    node = new_node()
    code, first, out, err = node.ask("a:hello")
    assert (code, out.split()[1:], err) == (0, ["a", "0"], "")
    assert node.ask("a:again")[:2] == (0, first)
    assert node.noted() == ["begin hello", "end hello", "begin again", "end again"]
    modes = [path.stat().st_mode & 0o777 for path in (node.folder, node.folder / shim.SOCKET)]
    assert modes == [0o700, 0o600]
    two = [node.start("a:both"), node.start("a:both")]  # one at a time
    assert [process.wait(10) for process in two] == [0, 0]
    assert node.noted()[4:] == ["begin both", "end both"] * 2


def test_a_message_that_fails_ends_its_worker(new_node):
    node = new_node()
    workers = {node.ask("a:fine")[1]}
    for what, code, said in (("exit3", 3, ""), ("error", 1, "ValueError: of the app"), ("exit0", 0, "")):
        ended = node.ask(f"a:{what}")
        assert ended[0] == code
        assert said in ended[3]
        workers.add(node.ask("a:fine")[1])
    assert len(workers) == 4


def test_a_message_sees_that_the_next_one_waits(new_node):
    node = new_node()
    lost = node.start("a:lost")
    until(lambda: "ready" in node.noted())
    assert node.ask("a:fine")[0] == 0
    assert "the next one waits" in lost.communicate(timeout=10)[1]
    assert node.noted() == ["begin lost", "ready", "begin fine", "end fine"]


def test_another_bundle_has_another_process_and_runs_once(new_node):
    """The number stays, as the process is replaced; what it had imported is gone."""
    node = new_node()
    workers = [node.ask(what) for what in ("a:one", "b:two", "b:three")]
    assert [(code, out.split()[1]) for code, _, out, _ in workers] == [(0, "a"), (0, "b"), (0, "b")]
    assert len({number for _, number, _, _ in workers}) == 1
    assert node.noted()[::2] == ["begin one", "begin two", "begin three"]


@pytest.mark.parametrize("limits", [WorkerLimits(messages=1), WorkerLimits(megabytes=1)])
def test_a_worker_leaves_at_its_limits(new_node, limits):
    node = new_node(limits)
    assert len({node.ask("a:x")[1] for _ in range(3)}) == 3
    assert node.noted() == ["begin x", "end x"] * 3


def test_what_a_caller_learns_of_a_killed_worker(new_node):
    """A message that had begun is lost, and its caller is told; one that had not is run by Flower's own program."""
    node = new_node()
    lost = node.start("a:wait")
    until(lambda: "ready" in node.noted())
    for pid in workers_in(node.states):
        if pid != lost.pid:
            os.kill(pid, signal.SIGKILL)
    _, err = lost.communicate(timeout=20)
    assert (lost.returncode, "ended while it ran a message" in err) == (1, True)
    assert node.ask("a:next")[0] == 0
    settings = node.folder / shim.SETTINGS
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"worker": ["/bin/false"]}))
    node.stop()
    code, _, out, err = node.ask("a:never")  # its worker ends before it listens
    assert (code, out.split()[0], "runs this message" in err) == (0, "own", True)
    assert not [line for line in node.noted() if "never" in line]


@pytest.mark.parametrize("kills", [8, pytest.param(40, marks=pytest.mark.full)])
def test_a_worker_killed_at_random_moments(new_node, kills):
    """Whenever it is killed, its caller learns what became of the message: it ended, once; or it was lost; or nobody
    began it, since the worker that was started for it was killed as well, and Flower's own program ran it.
    """
    node, random_ = new_node(), random.Random(0)
    node.ask("a:first")
    for number in range(kills):
        process = node.start(f"a:{number}.")
        time.sleep(random_.uniform(0, 0.12))
        for pid in workers_in(node.states):
            if pid != process.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        out, err = process.communicate(timeout=20)
        told = process.returncode, "ended while it ran a message" in err, out.startswith("own")
        happened = tuple(node.noted().count(f"{what} {number}.") for what in ("begin", "end"))
        truths = {
            (0, False, False): {(1, 1)},
            (1, True, False): {(0, 0), (1, 0), (1, 1)},
            (0, False, True): {(0, 0)},
        }
        assert happened in truths.get(told, ()), (told, happened, out, err)
    assert node.ask("a:last")[0] == 0


def test_a_removed_socket(new_node):
    node = new_node()
    first = node.ask("a:x")[1]
    (node.folder / shim.SOCKET).unlink()
    second = node.ask("a:x")[1]
    assert second != first
    until(lambda: workers_in(node.states) == [second])


def test_signals_go_to_the_message_and_a_killed_shim_takes_it_along(new_node):
    node = new_node()
    process = node.start("a:stop")
    until(lambda: "ready" in node.noted())
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 1  # as the message's own handler says
    process = node.start("a:wait")
    until(lambda: node.noted().count("ready") == 2)
    process.kill()
    until(lambda: not workers_in(node.states))
    assert "end wait" not in node.noted()


@pytest.mark.gate("fine-")
@pytest.mark.parametrize(("what", "slow"), [("fine", ""), ("fine", "1"), ("wait", "")])
def test_a_worker_ends_with_its_parent_and_takes_the_folder_along(new_node, what, slow):
    node = new_node()
    node.environment["SLOW_REMOVAL"] = slow
    parent = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, sys, time; subprocess.run(sys.argv[1:]); time.sleep(60)",
         str(node.folder / BIN / PROGRAM), "--token", f"a:{what}"],
        env=node.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    lock = hold(node.folder)
    until(lambda: ("ready" if what == "wait" else "end fine") in node.noted())
    os.close(lock)  # its node has ended
    parent.kill()
    parent.wait()
    until(lambda: not workers_in(node.states))
    until(lambda: not node.folder.exists())


def test_a_worker_waits_for_its_first_message_and_ends_if_its_node_does(new_node):
    node = new_node()
    lock = hold(node.folder)
    start_worker(node.folder, node.environment)
    waiting = until(lambda: workers_in(node.states))  # the system shows no arguments of one that just begins
    assert [node.ask("a:x")[1]] == waiting
    other = new_node()
    lock_of_other = hold(other.folder)
    start_worker(other.folder, other.environment)
    os.close(lock_of_other)
    until(lambda: not workers_in(other.states))
    assert not other.folder.exists()
    os.close(lock)


def test_where_flowers_own_program_runs(new_node):
    node = new_node()
    _, _, out, err = node.ask("a:x", "--new-option")
    assert out == "own --insecure --token a:x --new-option\n"
    assert "--new-option of flwr-clientapp is not known" in err
    node.folder.chmod(0o755)
    assert "can be opened by others" in node.ask("a:x")[3]
    node.folder.chmod(0o700)
    node.environment["UNKNOWN"] = "1"
    said = [node.ask("a:x")[2:] for _ in range(2)]
    assert said[0] == (
        "own --insecure --token a:x\n",
        "fedsolve: it knows no Flower: Flower's own program runs this node's messages\n",
    )
    assert said[1] == ("own --insecure --token a:x\n", "")  # said once
    assert node.noted() == []


def test_what_is_no_request_is_refused(new_node):
    node = new_node()
    first = node.ask("a:x")[1]
    for data in (b"nonsense\n", b'{"arguments": 1}\n', b"[" * 70000, b""):
        with socket.socket(socket.AF_UNIX) as other:
            folder = os.open(node.folder, os.O_RDONLY)
            other.connect(f"/proc/self/fd/{folder}/{shim.SOCKET}")
            os.close(folder)
            if data:
                socket.send_fds(other, [data], [1, 2])
                assert b"asked wrongly" in other.recv(1000)
    assert node.ask("a:x")[1] == first


def test_folders_of_nodes_that_have_ended_are_removed(tmp_path):
    running = make_folder(tmp_path, WorkerLimits(), "own")
    lock = hold(running)
    ended = make_folder(tmp_path, WorkerLimits(), "own")
    os.close(hold(ended))
    assert not node_folder.remove_if_over(running)
    make_folder(tmp_path, WorkerLimits(), "own")
    assert (running.exists(), ended.exists()) == (True, False)
    os.close(lock)
