"""Folders that anybody may have written: none takes the page from the others, leads out of itself, or holds it up."""

from __future__ import annotations

import json
import os
import socket
import time
import zlib

import numpy as np
import pytest
from watch_made_up import finish, write_run

import fedsolve as fs
from fedsolve.cli.configuration.config import read_toml
from fedsolve.cli.watch import server as watch_server
from fedsolve.cli.watch.runs import Folder
from fedsolve.cli.watch.watch_page import View, state
from fedsolve.folders.sealed_arrays import write_arrays

DEEP = 100_000
GOOD = {
    "label": "FedAvg", "task": "t", "settings": {}, "seconds": 1.0, "compile_seconds": 0.0, "notes": [],
    "evaluations": {"round": [0], "seconds": [0.0], "train_loss": [1.0]}, "rounds": {"round": []},
}  # fmt: skip
HOSTILE = {
    "lists": ("history.json", "[" * DEEP),
    "tables": ("history.json", '{"a":' * DEEP),
    "deep but whole": (
        "history.json",
        json.dumps(GOOD | {"settings": {"a": 0}}).replace("0}", "[" * 80 + "]" * 80 + "}"),
    ),
    "progress": ("progress.json", '{"a":' * 50_000),
    "large progress": ("progress.json", " " * 2**17 + "{}"),
    "dotted key": ("config.toml", "a" + ".a" * 20_000 + " = 1"),
    "dotted table": ("config.toml", "[1" + ".1" * 20_000 + "]"),
    "quoted key": ("config.toml", '""' + '.""' * 20_000 + " = 1"),
    "nested list": ("config.toml", "a = " + "[" * DEEP),
    "nested whole list": ("config.toml", "task = 'digits'\nmethod = " + "[" * 80 + "]" * 80),
    "large number": ("history.json", json.dumps(GOOD | {"rounds": {"round": [10**400]}})),
    "label": ("history.json", json.dumps(GOOD | {"label": {"a": 1}})),
    "task": ("history.json", json.dumps(GOOD | {"task": ["a"]})),
    "notes": ("history.json", json.dumps(GOOD | {"notes": [1, {}]})),
    "seconds": ("history.json", json.dumps(GOOD | {"seconds": [1]})),
    "no table": ("history.json", "[1, 2]"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_one_folder_takes_the_page_from_no_other(tmp_path, kind):
    name, text = HOSTILE[kind]
    finish(tmp_path / "good", "FedAvg", [0.9, 0.1])
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / name).write_text(text)
    began = time.process_time()
    folder = Folder(tmp_path)
    runs = folder.look()
    assert [runs["good"].status, runs["bad"].status] == ["finished", "unreadable"]
    assert "good" in state(folder, View())["table"]
    assert time.process_time() - began < 5
    assert len(runs["bad"].message.splitlines()) == 1
    assert kind not in ("dotted key", "dotted table", "quoted key") or "100 dots" in runs["bad"].message


@pytest.mark.parametrize("kind", [kind for kind, (name, _) in HOSTILE.items() if name == "history.json"])
def test_what_is_loaded_is_refused_in_one_line(tmp_path, kind):
    (tmp_path / "history.json").write_text(HOSTILE[kind][1])
    with pytest.raises(fs.InvalidInput) as error:
        fs.load(tmp_path)
    assert "history.json" in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 500


def test_strange_settings_are_shown(tmp_path):
    """Which a record may have: they are text on the page."""
    strange = {"a": {"b": [1, "<script>"]}, "c": None, "d": 10**30}
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "history.json").write_text(json.dumps(GOOD | {"settings": strange}))
    assert "<script>" not in state(Folder(tmp_path), View())["details"]


def test_a_checkpoint_with_a_strange_header_is_unreadable(tmp_path):
    """Sealed as it should be: a seal is no signature."""
    (tmp_path / "odd").mkdir()
    finish(tmp_path / "good", "FedAvg", [0.9, 0.1])
    deep: list = []
    for _ in range(300):
        deep = [deep]
    for manifest in ({"record": deep}, {"record": {"bytes": "x"}}, {}, deep):
        write_arrays(tmp_path / "odd" / "checkpoint.safetensors", {"x": np.zeros(1)}, manifest)
        runs = Folder(tmp_path).look()
        assert (runs["odd"].status, runs["good"].status) == ("unreadable", "finished")
    junk = b"no rows of a record"
    (tmp_path / "odd" / "record.bin").write_bytes(junk)
    facts = {"bytes": len(junk), "checksum": zlib.crc32(junk), "evaluations": 1, "rounds": 1, "seconds": 1.0}
    write_arrays(
        tmp_path / "odd" / "checkpoint.safetensors", {"x": np.zeros(1)}, {"record": facts, "identity": {}}
    )
    assert "checkpoint.safetensors holds no record" in Folder(tmp_path).look()["odd"].message


def test_links_are_not_followed(tmp_path, follow):
    """Not to a page, and not to what tells of a run."""
    (tmp_path / "secret").write_text("root:x:0")
    finish(tmp_path / "runs" / "a", "FedAvg", [0.9, 0.1])
    finish(tmp_path / "other", "Elsewhere", [0.9, 0.1])
    page = tmp_path / "runs" / "a" / "page.html"
    _, client = follow(tmp_path / "runs")
    page.write_text("its own")
    assert client.get("page?run=a")[:2] == (200, "its own")
    page.unlink()
    page.symlink_to(tmp_path / "secret")
    assert client.get("page?run=a")[:2] == (404, "the run has no page\n")
    assert not Folder(tmp_path / "runs").look()["a"].page
    for name in ("history.json", "config.toml"):
        (tmp_path / "runs" / "a" / name).unlink()
        (tmp_path / "runs" / "a" / name).symlink_to(tmp_path / "other" / name)
        run = Folder(tmp_path / "runs").look()["a"]
        assert run.status == "unreadable"
        assert "is a symbolic link: only regular files are read" in run.message
        (tmp_path / "runs" / "a" / name).unlink()
        (tmp_path / "runs" / "a" / name).write_bytes((tmp_path / "other" / name).read_bytes())


def test_a_pipe_holds_nothing_up(tmp_path, follow):
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "history.json")
    os.mkfifo(tmp_path / "a" / "page.html")
    _, client = follow(tmp_path)
    assert Folder(tmp_path).look()["a"].status == "unreadable"
    assert client.get("page?run=a")[0] == 404


def test_a_closed_stream_frees_its_place_at_once(tmp_path, follow, monkeypatch):
    """Not at the next heartbeat, 15 seconds later; one whose reader says something stays."""
    monkeypatch.setattr(watch_server, "_MOST_AT_ONCE", 4)
    write_run(tmp_path / "a", 40, [0.9, 0.5])
    server, client = follow(tmp_path)
    path = client.address.split("/", 3)[3]
    request = f"GET /{path}events HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode()
    streams = [socket.create_connection(("127.0.0.1", server.server_port), timeout=20) for _ in range(4)]
    for stream in streams:
        stream.sendall(request)
        assert stream.recv(4096).startswith(b"HTTP/1.1 200")
    assert client.get()[0] == 503
    streams[0].sendall(b"more")
    for stream in streams[1:]:
        stream.close()
    until = time.monotonic() + 10
    while client.get()[0] == 503 and time.monotonic() < until:
        time.sleep(0.02)
    assert client.get()[0] == 200
    streams[0].close()


def test_long_lines_that_are_no_keys_are_read(tmp_path):
    """Dots of numbers and of remarks are not counted."""
    path = tmp_path / "c.toml"
    path.write_text(f"# {'.' * 119}\ngrid = [{', '.join(['0.1'] * 300)}]\ntitle = 'a. b. c.'\n")
    assert len(read_toml(path)["grid"]) == 300


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("fedsolve-data.json", fs.data.open),
        ("state.json", lambda folder: fs.data.from_table(folder, x=["a"], y="b", client="c")),
    ],
)
def test_data_of_others_are_refused_in_one_line(tmp_path, name, read):
    """A folder of data, and one of Hugging Face's datasets."""
    pytest.importorskip("pyarrow")
    (tmp_path / name).write_text('{"a":' * DEEP)
    with pytest.raises(fs.InvalidInput) as error:
        read(tmp_path)
    assert name in str(error.value)
    assert "\n" not in str(error.value)
