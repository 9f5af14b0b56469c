"""`fedsolve federate node`: it becomes Flower's SuperNode, with a worker's program first on its PATH or without."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
from pathlib import Path

import pytest

from fedsolve.cli.federation import node
from fedsolve.deploy.oracles.node_oracle import STATE_FOLDER

FLOWERS = [
    "--insecure",
    "--superlink",
    "127.0.0.1:8000",
    "--node-config",
    "client-id=0 state-dir='my states'",
]


class Became(BaseException):
    """What the process became: a program, its arguments, its environment."""


@pytest.fixture
def became(call, monkeypatch):
    def become(*given):
        raise Became(*given)

    monkeypatch.setattr(node.os, "execve", become)
    monkeypatch.setattr(node, "start_worker", lambda folder, environment: None)

    def run(*arguments):
        with pytest.raises(Became) as ended:
            call("federate", "node", *arguments)
        program, words, environment = ended.value.args
        assert program == words[0]
        assert Path(program).name == "flower-supernode"
        return words[1:], environment

    return run


@pytest.mark.full
def test_all_options_of_flower_are_passed_on(became, tmp_path, monkeypatch):
    monkeypatch.setenv(node.POLL, "0.5")
    words, environment = became("--worker-messages", "3", *FLOWERS, "--worker-megabytes=9")
    assert words == FLOWERS
    first = Path(environment["PATH"].split(os.pathsep)[0])
    assert first.parent.parent == tmp_path / "my states"
    assert environment[node.POLL] == "0.5"  # the owner's
    program = first / "flwr-clientapp"
    said = subprocess.run([program, "--help"], capture_output=True, text=True, check=True)
    assert (
        "--runtime-api-address" in said.stdout
    )  # Flower's own program, for an argument that is not a message's
    assert "--help of flwr-clientapp is not known" in said.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--fresh"], ""),
        (["--isolation", "process"], "with --isolation process"),
        (["--isolation=process"], "with --isolation process"),
        (["--allow-runtime-dependency-installation"], "an environment of its own"),
    ],
)
def test_where_each_message_has_its_own_process(became, arguments, why, capsys, tmp_path):
    words, environment = became(*FLOWERS, *arguments)
    assert words == [*FLOWERS, *(word for word in arguments if word != "--fresh")]
    assert environment == dict(os.environ)
    assert why in capsys.readouterr().err
    assert not (tmp_path / "my states").exists()


def test_another_version_of_flower(became, monkeypatch, capsys):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.42.0")
    assert became(*FLOWERS)[1] == dict(os.environ)
    assert capsys.readouterr().err == (
        "each message runs in a process of its own: the persistent worker was tried with Flower 1.41, 1.42.0 is "
        "installed\n"
    )


def test_where_states_are(tmp_path):
    (tmp_path / "node.toml").write_text('client-id = 0\nstate-dir = "/far"\n')
    assert node.state_folder(["--node-config", str(tmp_path / "node.toml")]) == Path("/far")
    assert node.state_folder(['--node-config=client-id=0 state-dir="here"']) == Path("here")
    assert node.state_folder(["--node-config", "client-id="]) == Path(STATE_FOLDER)


def test_a_state_folder_that_cannot_be_made(call, tmp_path):
    (tmp_path / "my states").write_text("a file")
    ended = call("federate", "node", *FLOWERS)
    assert ended.code == 2
    assert "cannot make the worker's folder in my states" in ended.err
