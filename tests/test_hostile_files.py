"""Every place that reads a file of others: a pipe, a device, a folder, a link or nonsense there is refused at once."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import shutil
import signal
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.cli.configuration.config import load as load_config
from fedsolve.cli.federation.credentials import check_credentials
from fedsolve.core.errors import InvalidInput
from fedsolve.data.sources import read_idx, read_npz
from fedsolve.deploy.registry import NodeBindings
from fedsolve.deploy.secret_keys import load_or_create_secret
from fedsolve.deploy.secure.keys import read_peers
from fedsolve.deploy.statistics_job import read_statistics, statistics_json
from fedsolve.deploy.status import read_status
from fedsolve.engine.running_page import run_status
from fedsolve.folders.files import is_locked, locked
from fedsolve.folders.logs import AppendLog, RowFile, append_line
from fedsolve.folders.run_folder import load_tree, read_manifest, save_tree
from fedsolve.folders.sealed import checksum, unsealed
from fedsolve.folders.untrusted import loads, npz_arrays
from fedsolve.results.clients import read_client_metrics
from fedsolve.results.history import History
from fedsolve.results.record_files import read_failure, write_failure, write_record
from fedsolve.studies.experiment import read_part, write_part

DEEP = "[" * 100_000


class TooLong(BaseException):
    """Which nothing takes for an error of a file."""


@pytest.fixture(autouse=True)
def no_hanging():
    """Nothing waits: only so that a fault ends the test."""

    def end(*_: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def history(folder: Path, rounds: int = 2) -> History:
    at = np.arange(3)
    return History("FedAvg", "t", {}, {"round": at, "seconds": at * 1.0, "train_loss": at * 1.0},
                   {"round": np.arange(rounds)}, 1.0)  # fmt: skip


def run(folder: Path) -> None:
    write_record(folder, history(folder), {"w": np.ones(2)})


def long_run(folder: Path) -> None:
    write_record(folder, history(folder, 10_001), {"w": np.ones(2)})


def diverged(folder: Path) -> None:
    write_failure(folder, history(folder), "it diverged")


def compared(folder: Path) -> None:
    run(folder / "A")
    (folder / "config.toml").write_text('[[method]]\nname = "A"\n')


def data(folder: Path) -> None:
    client = fs.Examples(np.ones((3, 2), np.float32), np.zeros(3, np.int32))
    fs.data.write([client, client], folder, names=["a", "b"])


def write(name: str, text: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    return make


def tree(folder: Path) -> None:
    save_tree(folder / "c.safetensors", {"x": np.ones(3)}, {"round": 1})


class Place(NamedTuple):
    """A reader: who makes what it reads, the file, and how it is called.

    Attributes:
        named: whether the user names the file itself, which may then be a link.
        any_content: whether it says nothing of what the file holds.
        any_text: whether any text is one.
    """

    make: Callable[[Path], None]
    file: str
    read: Callable[[Path], Any]
    named: bool = False
    any_content: bool = False
    any_text: bool = False


CONFIG = 'task = "digits"\n[run]\nrounds = 1\n[[method]]\nname = "FedAvg"\n'
BINDINGS = '{"experiment": "e", "keys": {"0": "a"}}'
TABLE = 'target = "y"\n[columns.a]\n'
PEERS = f'0 = "{"ab" * 32}"\n'


def read_table(folder: Path) -> Any:
    (folder.parent / "s.toml").write_text(TABLE)
    return fs.data.Schema.read(folder.parent / "s.toml").read_csv(folder / "t.csv")


def read_log(folder: Path) -> bytes:
    return AppendLog(folder / "r.bin", 2, int(checksum(b"ab"), 16)).read("it")


def secret(folder: Path) -> None:
    folder.mkdir()
    (folder / "cohorts.key").write_bytes(b"a" * 32)


def an_npz(folder: Path) -> None:
    folder.mkdir()
    np.savez(folder / "a.npz", x=np.ones(3))


def an_idx(folder: Path) -> None:
    folder.mkdir()
    (folder / "a.idx").write_bytes(b"\0\0\x08\x01\0\0\0\x02ab")


PLACES = {
    "record": Place(run, "history.json", fs.load),
    "model": Place(run, "model.safetensors", fs.load),
    "evaluations": Place(run, "metrics.jsonl", fs.load),
    "rounds": Place(long_run, "rounds.npz", fs.load),
    "failure": Place(diverged, "diverged.txt", fs.load, any_text=True),
    "why it failed": Place(diverged, "diverged.txt", read_failure, any_text=True),
    "methods": Place(compared, "config.toml", fs.load),
    "clients": Place(write("client-metrics.jsonl", ""), "client-metrics.jsonl", read_client_metrics,
                     any_content=True),
    "statistics": Place(write("s.json", '{"columns": {}, "unreported": {}, "notes": []}'), "s.json",
                        lambda f: read_statistics(f / "s.json")),
    "description": Place(data, "fedsolve-data.json", fs.data.open),
    "examples": Place(data, "examples-0.npy", fs.data.open),
    "counts": Place(data, "counts.npy", fs.data.open),
    "names": Place(data, "names.txt", fs.data.open),
    "manifest": Place(tree, "c.safetensors", lambda f: read_manifest(f / "c.safetensors")),
    "checkpoint": Place(tree, "c.safetensors", lambda f: load_tree(f / "c.safetensors", {"x": np.ones(3)})),
    "log": Place(write("r.bin", "ab"), "r.bin", read_log),
    "appended": Place(write("r.jsonl", "{}\n"), "r.jsonl", lambda f: append_line(f / "r.jsonl", "{}"),
                      any_content=True),
    "lock": Place(write(".lock", ""), ".lock", lambda f: locked(f).__enter__(), any_content=True),
    "part": Place(lambda f: write_part(f, "a.npz", {"x": np.ones(2)}), "parts/a.npz", lambda f: read_part(f, "a.npz")),
    "secret": Place(secret, "cohorts.key", load_or_create_secret),
    "bindings": Place(write("b.json", BINDINGS), "b.json", lambda f: NodeBindings(f / "b.json", "e")),
    "schema": Place(write("s.toml", TABLE), "s.toml", lambda f: fs.data.Schema.read(f / "s.toml"), named=True),
    "table": Place(write("t.csv", "a,y\n1,2\n"), "t.csv", read_table, named=True),
    "peers": Place(write("p.toml", PEERS), "p.toml", lambda f: read_peers(f / "p.toml"), named=True),
    "configuration": Place(write("c.toml", CONFIG), "c.toml",
                           lambda f: load_config(f / "c.toml"), named=True),
    "configuration of a run": Place(write("config.toml", CONFIG),
                                    "config.toml", load_config),
    "npz": Place(an_npz, "a.npz", lambda f: read_npz(f / "a.npz", ["x"]), named=True),
    "idx": Place(an_idx, "a.idx", lambda f: read_idx(f / "a.idx"), named=True),
}  # fmt: skip


def pipe(path: Path, _: bytes) -> None:
    os.mkfifo(path)


def device(path: Path, _: bytes) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path, _: bytes) -> None:
    path.mkdir()


def link(path: Path, content: bytes) -> None:
    other = path.parent.parent / "secret"
    other.write_bytes(content)
    path.symlink_to(other)


def deep(path: Path, _: bytes) -> None:
    path.write_text(DEEP)


def no_text(path: Path, _: bytes) -> None:
    path.write_bytes(b"\xff\xfe\x00" * 50)


PLACES |= {
    "status": Place(write("clients.json", ""), "clients.json", lambda f: read_status(f / "clients.json")),
    "certificate": Place(write("ca.pem", ""), "ca.pem", lambda f: check_credentials(f / "ca.pem")),
}
NOT_MADE = {"status", "certificate"}
"""Whose files are not made here: that they are read is tested elsewhere."""


@pytest.mark.parametrize("planted", [pipe, device, folder, link, deep, no_text])
@pytest.mark.parametrize("name", PLACES)
def test_what_is_no_such_file_is_refused_in_one_line(tmp_path, name, planted):
    place, where = PLACES[name], tmp_path / "given"
    place.make(where)
    if planted is pipe and name not in NOT_MADE:
        shutil.copytree(where, tmp_path / "whole")
        place.read(tmp_path / "whole")  # as it is, it is read
    content = (where / place.file).read_bytes()
    (where / place.file).unlink()
    planted(where / place.file, content)
    is_taken = (planted is link and place.named) or (planted in (deep, no_text) and place.any_content)
    if is_taken or (planted is deep and place.any_text):
        place.read(where)
        return
    with pytest.raises(InvalidInput) as refused:
        place.read(where)
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) < 600
    assert (where / place.file).is_symlink() or planted is not link


def test_what_is_written_to_is_no_link_and_no_pipe(tmp_path):
    """A file of rows that is begun would empty the file that a link leads to."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "rows.bin").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe.bin")
    for name in ("rows.bin", "pipe.bin"):
        rows = RowFile(tmp_path / name, np.zeros(4, np.uint8), 2, None)
        for use in (rows.begin, lambda rows=rows: rows.restore(rows.known)):
            with pytest.raises(InvalidInput, match=r"it is a symbolic link|it is no regular file"):
                use()
        with pytest.raises(InvalidInput, match=r"it is a symbolic link|it is no regular file"):
            AppendLog(tmp_path / name).append(b"x")
    assert (tmp_path / "secret").read_text() == "secret"


@pytest.mark.parametrize("size", [10**18, 10**300, -1])
def test_a_part_is_no_larger_than_its_file(tmp_path, size):
    """As the manifest of a checkpoint says it, which is no reason to ask for as much memory."""
    (tmp_path / "r.bin").write_bytes(b"ab")
    with pytest.raises(InvalidInput, match="is corrupt"):
        AppendLog(tmp_path / "r.bin", size, 0).read("it")


def test_a_folder_whose_lock_is_a_pipe_is_held_by_nobody(tmp_path):
    os.mkfifo(tmp_path / ".lock")
    assert not is_locked(tmp_path)


@pytest.mark.parametrize("name", ["diverged.txt", ".lock", "history.json", "checkpoint.safetensors"])
def test_a_pipe_in_a_run_holds_nobody_up(tmp_path, name):
    diverged(tmp_path)
    (tmp_path / "history.json").unlink()
    (tmp_path / "diverged.txt").unlink()
    os.mkfifo(tmp_path / name)
    with contextlib.suppress(InvalidInput):
        assert run_status("FedAvg", "FedAvg", tmp_path, "digits", 1).status == "waiting"


SHAPES = [[3, 6148914691236517206], [2, *[1] * 71], [0, 2**62, 4], [10**400], [1e400], [-1], "x"]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape)[:20])
def test_a_shape_that_no_array_has_is_refused(tmp_path, shape):
    """Of an array of a data folder, sealed as it should be, and of a checkpoint."""
    data(tmp_path / "d")
    path = tmp_path / "d" / "fedsolve-data.json"
    facts = loads(loads(path.read_text())["data"])
    facts["leaves"][0]["shape"] = shape
    body = json.dumps(facts)
    path.write_text(json.dumps({"seal": checksum(body.encode()), "data": body}))
    with pytest.raises(InvalidInput) as refused:
        fs.data.open(tmp_path / "d")
    assert "\n" not in str(refused.value)
    tree(tmp_path)
    other_shape(tmp_path / "c.safetensors", shape)
    with pytest.raises(InvalidInput) as refused:
        load_tree(tmp_path / "c.safetensors", {"x": np.ones(3)})
    assert "\n" not in str(refused.value)


def other_shape(path: Path, shape: Any) -> None:
    """A checkpoint with another shape for its array, sealed as it should be."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:end])
    entries[next(name for name in entries if name != "__metadata__")]["shape"] = shape
    entries["__metadata__"]["seal"] = "0" * 8
    text = json.dumps(entries, separators=(",", ":")).encode()
    header = len(text).to_bytes(8, "little") + text
    seal = b'"seal":"%s"' % checksum(header).encode()
    path.write_bytes(header.replace(b'"seal":"00000000"', seal) + content[end:])


NUMBERS = [
    "1e400",
    "-1",
    "9" * 30,
    "9" * 400,
    "9" * 5000,
    "NaN",
    "true",
    "[[]]",
    "null",
    '"x"',
    "[" * 70 + "]" * 70,
]
METRICS = (
    '{"round": 1, "part": "train", "steps": 0, "names": ["a"], "examples": [3], "metrics": {"loss": [0.5]}}\n'
)


def statistics() -> str:
    found = fs.stats.describe([{"a": np.arange(20.0)}] * 3)
    return unsealed("it", statistics_json(found).encode())[0]


TEXTS = {
    "record": ("history.json", lambda: history(Path()).to_json(), fs.load),
    "clients": ("client-metrics.jsonl", lambda: METRICS, read_client_metrics),
    "statistics": ("s.json", statistics, lambda f: read_statistics(f / "s.json")),
    "bindings": (
        "b.json",
        lambda: BINDINGS,
        lambda f: NodeBindings(f / "b.json", "e"),
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_number_of_another_kind_is_no_error_of_pythons(tmp_path, name):
    """Each number of each file becomes one beyond its type, or none: taken, or refused in one line."""
    file, make, read = TEXTS[name]
    run(tmp_path)
    text = make()
    (tmp_path / file).write_text(text)
    read(tmp_path)
    for at in itertools.islice(re.finditer(r"-?\d+(\.\d+)?", text), 60):
        for number in NUMBERS:
            (tmp_path / file).write_text(text[: at.start()] + number + text[at.end() :])
            with contextlib.suppress(InvalidInput):
                read(tmp_path)


def test_a_number_of_a_data_folder_of_another_kind_is_no_error_of_pythons(tmp_path):
    """As it is sealed: a seal is no signature."""
    data(tmp_path)
    path = tmp_path / "fedsolve-data.json"
    body = loads(path.read_text())["data"]
    for at in re.finditer(r"(?<=[ \[])\d+", body):
        for number in NUMBERS:
            other = body[: at.start()] + number + body[at.end() :]
            path.write_text(json.dumps({"seal": checksum(other.encode()), "data": other}))
            with contextlib.suppress(InvalidInput):
                fs.data.open(tmp_path)


@pytest.mark.parametrize(
    "header", ["(" * 5000, "{'descr': '<f8', 'fortran_order': False, 'shape': (10**9,", "[" * 9000, "\0"]
)
def test_an_array_with_nonsense_for_a_header_is_refused(header):
    """NumPy leaves what its parser raises as it is."""
    member = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("x.npy", member)
    with pytest.raises(ValueError, match=r"."):
        npz_arrays(content)


def test_a_number_that_is_no_float_is_in_no_file(tmp_path):
    """Whoever divides by it would meet an error of Python's, long after the file was read."""
    (tmp_path / "s.json").write_text(statistics().replace("3", "9" * 400, 1))
    with pytest.raises(InvalidInput, match="an integer of 400 digits"):
        read_statistics(tmp_path / "s.json")


def test_a_damaged_file_has_one_remedy(tmp_path):
    """And not that of the error that was met inside another error's brackets."""
    data(tmp_path / "d")
    (tmp_path / "d" / "counts.npy").write_bytes(b"short")
    (tmp_path / "s.json").write_text('{"checksum": "00000000", "files": {},"columns": {}}')
    for read in (lambda: fs.data.open(tmp_path / "d"), lambda: read_statistics(tmp_path / "s.json")):
        with pytest.raises(InvalidInput) as refused:
            read()
        assert str(refused.value).count("is damaged (") == 1
        assert "check the file" not in str(refused.value)
        assert "InvalidInput" not in str(refused.value)
