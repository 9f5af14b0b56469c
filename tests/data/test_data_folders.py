"""Federated data on disk: written in one pass, opened without being read, refused where a byte is another."""

import itertools
import json
import os

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.data import stored
from fedsolve.data.federated import FederatedData
from fedsolve.data.stored import Column
from fedsolve.data.writing import _BETWEEN


def client(i):
    rng = np.random.default_rng(i)
    n = 1 + i % 4
    return fs.Examples(rng.random((n, 3), np.float32), rng.integers(0, 5, n))


CLIENTS = [client(i) for i in range(20)]


def same(data, clients=CLIENTS):
    assert data.num_clients == len(clients)
    for i, c in enumerate(clients):
        assert type(data.client(i)) is type(c)
        assert all(
            np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(data.client(i), c, strict=True)
        )


def test_a_generator_is_written_and_mapped(tmp_path):
    data = fs.data.write(
        (client(i) for i in range(20)), tmp_path / "d", names=(f"phone {i}é" for i in range(20))
    )
    same(data)
    assert isinstance(data, FederatedData)
    assert list(data.names[3:5]) == ["phone 3é", "phone 4é"]
    assert np.load(tmp_path / "d" / "examples-0.npy").shape == data.examples.x.shape  # NumPy's own format
    packed = FederatedData.from_clients(CLIENTS)
    chosen = np.array([7, 2, 19])
    for a, b in zip(data.take(chosen), packed.take(chosen), strict=True):
        assert np.array_equal(a, b)
        assert np.array_equal(a, np.concatenate([np.asarray(CLIENTS[i][b.ndim == 1]) for i in chosen]))
    assert np.array_equal(data.sample(9).examples.x, packed.sample(9).examples.x)
    assert fs.data.open(tmp_path / "d", verify=True).digest == data.digest


@pytest.mark.parametrize(
    "examples", [np.ones((2, 3)), {"a": np.ones(2), "b": (np.ones((2, 1), bool), [np.ones(2, np.int8)])}]
)
def test_containers_come_back(tmp_path, examples):
    found = fs.data.write([examples], tmp_path / "d").examples
    assert repr(found) == repr(examples)


def test_a_copy_of_federated_data_has_its_names(tmp_path):
    data = FederatedData.from_groups(np.arange(4.0), np.array([7, 3, 7, 7]))
    assert tuple(fs.data.write(data, tmp_path / "d").names) == ("3", "7")
    unnamed = fs.data.write(FederatedData.from_clients(CLIENTS), tmp_path / "unnamed")
    assert unnamed.names[3] == "client 3"
    assert unnamed.digest == fs.data.write(CLIENTS, tmp_path / "list").digest


@pytest.mark.parametrize("given", [list, iter], ids=["a list", "one by one"])
def test_two_clients_of_one_name(given, tmp_path):
    """Of names that are drawn one by one it is seen when all were written; then the folder is not finished."""
    names = [f"phone {i % 19}é" for i in range(20)]
    with pytest.raises(fs.InvalidInput, match="clients 0 and 19 are both called 'phone 0é'"):
        fs.data.write(CLIENTS, tmp_path / "d", names=given(names))
    with pytest.raises(fs.InvalidInput, match="holds no data"):
        fs.data.open(tmp_path / "d")


class Stopped(Exception):
    pass


@pytest.mark.parametrize("stop", [0, 1, 7])
def test_an_interrupted_writing_goes_on(tmp_path, stop, monkeypatch):
    """Whatever was noted of it: every client, or the last whole one before what is cut off.

    `FederatedData`, which is written many clients at once, gives the same folder.
    """
    whole = fs.data.write(CLIENTS, tmp_path / "whole", names=map(str, range(20)))
    monkeypatch.setattr("fedsolve.data.writing._BETWEEN", 100)

    def some():
        yield from CLIENTS[:stop]
        raise Stopped

    with pytest.raises(Stopped):
        fs.data.write(some(), tmp_path / "d", names=map(str, range(20)))
    with pytest.raises(fs.InvalidInput, match=r"no data: there is no fedsolve-data.json"):
        fs.data.open(tmp_path / "d")
    if stop > 2:
        with pytest.raises(fs.InvalidInput, match="resume=True"):
            fs.data.write(CLIENTS, tmp_path / "d", names=map(str, range(20)))
        other = [client(i + 1) for i in range(20)]
        with pytest.raises(fs.InvalidInput, match="is not the one that"):
            fs.data.write(other, tmp_path / "d", names=map(str, range(20)), resume=True)
    given = iter(CLIENTS) if stop == 1 else FederatedData.from_clients(CLIENTS)
    data = fs.data.write(given, tmp_path / "d", names=map(str, range(20)), resume=True)
    same(data)
    assert data.digest == whole.digest
    assert _BETWEEN == 2**26
    assert sorted(os.listdir(tmp_path / "d")) == sorted(os.listdir(tmp_path / "whole"))


def test_a_full_disk_keeps_what_was_written(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("fedsolve.data.writing._BETWEEN", 100)
        room, fsync = itertools.count(), os.fsync

        def full(number):
            if next(room) > 12:
                raise OSError(28, "No space left on device")
            fsync(number)

        patch.setattr(os, "fsync", full)
        with pytest.raises(fs.InvalidInput, match=r"No space left.*resume=True"):
            fs.data.write(CLIENTS, tmp_path / "d")
    same(fs.data.write(CLIENTS, tmp_path / "d", resume=True))


BAD = {
    "no client": ([], "no clients"),
    "text": ("abc", "must be a list or a generator"),
    "another structure": ([client(0), (client(1).x, client(1).y)], "client 1 has fields unlike"),
    "another type": (
        [client(0), fs.Examples(client(1).x.astype(np.float64), client(1).y)],
        "float64, client 0",
    ),
    "another width": (
        [client(0), fs.Examples(np.ones((1, 2), np.float32), np.ones(1, int))],
        r"shape \(2,\)",
    ),
    "no example": ([(np.ones((0, 2)),)], "at least 1"),
    "lengths": ([(np.ones(2), np.ones(3))], r"lengths \[2, 3\]"),
    "not finite": ([(np.ones(2),), (np.array([1, np.nan]),)], r"field \[0\] of client 1 .*row 1"),
    "objects": ([(np.array([None]),)], "array of numbers"),
}


@pytest.mark.parametrize("case", BAD)
def test_clients_that_are_refused(tmp_path, case):
    clients, words = BAD[case]
    with pytest.raises(fs.InvalidInput, match=words) as error:
        fs.data.write(clients, tmp_path / "d")
    assert "\n" not in str(error.value)


def flipped(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def described(folder, **changes):
    """The description with other words and a seal that fits them: what an attacker would write."""
    import zlib

    path = folder / "fedsolve-data.json"
    body = json.loads(json.loads(path.read_text())["data"]) | changes
    text = json.dumps(body)
    path.write_text(json.dumps({"seal": f"{zlib.crc32(text.encode()):08x}", "data": text}))


def leaves(**changes):
    first = {"file": "examples-0.npy", "dtype": "<f4", "shape": [3], "start": 128, "rows": 50, "crc32": 0}
    second = {"file": "examples-1.npy", "dtype": "<i8", "shape": [], "start": 128, "rows": 50, "crc32": 0}
    return [first | changes, second]


def counted(folder, *first):
    """An index that begins with other numbers of examples, under the sum that fits it."""
    import zlib

    path = folder / "counts.npy"
    counts = np.load(path)
    counts[: len(first)] = first
    content = path.read_bytes()[: -counts.nbytes] + counts.tobytes()
    path.write_bytes(content)
    index = json.loads(json.loads((folder / "fedsolve-data.json").read_text())["data"])["index"]
    described(folder, index=[index[0] | {"crc32": zlib.crc32(counts.tobytes())}])


OVERLAP = "counts.npy is damaged .its clients overlap"
DAMAGE = {
    "clients that overlap": (lambda d: counted(d, 3, 2, 3, 4), OVERLAP),
    "a client that begins before the one before": (lambda d: counted(d, -3, 6), OVERLAP),
    "sizes whose sum is right in 64 bits": (
        lambda d: counted(d, 2**63 - 1, 2**63 - 1, 8),
        OVERLAP,
    ),
    "examples of nobody": (lambda d: counted(d, 1, 1), OVERLAP),
    "missing": (lambda d: (d / "examples-1.npy").unlink(), "examples-1.npy does not exist"),
    "truncated": (lambda d: os.truncate(d / "examples-0.npy", 700), "700 bytes, not 728"),
    "longer": (lambda d: (d / "examples-0.npy").open("ab").write(b"x"), "729 bytes, not 728"),
    "a flipped count": (lambda d: flipped(d / "counts.npy", 140), "counts.npy is damaged .its sum"),
    "a flipped description": (
        lambda d: flipped(d / "fedsolve-data.json", 60),
        "fedsolve-data.json is damaged",
    ),
    "no JSON": (lambda d: (d / "fedsolve-data.json").write_text("[" * 10**5), "is damaged"),
    "a file elsewhere": (lambda d: described(d, leaves=leaves(file="../x")), "no name of a file"),
    "objects": (lambda d: described(d, leaves=leaves(dtype="|O")), "is damaged"),
    "more rows": (lambda d: described(d, leaves=leaves(rows=51)), "another length"),
    "a negative place": (lambda d: described(d, structure=["Examples", 0, -1]), "is damaged"),
    "an array twice": (lambda d: described(d, structure=["Examples", 0, 0]), "do not fit"),
    "another class": (lambda d: described(d, structure=["Popen", 0, 1]), "Popen"),
    "fewer clients": (lambda d: described(d, clients=19), "is damaged"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named(tmp_path, case):
    fs.data.write(CLIENTS, tmp_path / "d")
    damage, words = DAMAGE[case]
    damage(tmp_path / "d")
    with pytest.raises(fs.InvalidInput, match=words) as error:
        fs.data.open(tmp_path / "d")
    assert "\n" not in str(error.value)


def test_a_flipped_number_is_found_where_it_is_asked_for(tmp_path):
    fs.data.write(CLIENTS, tmp_path / "d")
    flipped(tmp_path / "d" / "examples-0.npy", 300)
    assert fs.data.open(tmp_path / "d").num_clients == 20
    with pytest.raises(fs.InvalidInput, match=r"examples-0.npy is damaged .its sum"):
        fs.data.open(tmp_path / "d", verify=True)


def test_a_folder_that_is_taken_or_only_for_reading(tmp_path):
    fs.data.write(CLIENTS, tmp_path / "d")
    with pytest.raises(fs.InvalidInput, match="holds data already"):
        fs.data.write(CLIENTS, tmp_path / "d", resume=True)
    for path in (tmp_path / "d").iterdir():
        path.chmod(0o444)
    (tmp_path / "d").chmod(0o555)
    same(fs.data.open(tmp_path / "d"))
    (tmp_path / "file").write_text("x")
    with pytest.raises(fs.InvalidInput, match="cannot write"):
        fs.data.write(CLIENTS, tmp_path / "file" / "d")


# Rows of a file that lie here and there: the same through a map and by calls, whatever is in memory.

ROWS = np.random.default_rng(0).random((500, 3)).astype(np.float32)
STARTS = np.array([3, 0, 100, 101, 499, 250])
COUNTS = np.array([2, 1, 1, 40, 1, 7])


def column(folder):
    (folder / "rows").write_bytes(b"before" + ROWS.tobytes())
    return Column("rows", "<f4", (3,), 6, 500, 0)


@pytest.mark.parametrize("way", ["map", "map in parts", "calls", "calls, half of it in memory"])
def test_rows_are_those_of_the_file(tmp_path, monkeypatch, way):
    here = column(tmp_path)
    if way == "map in parts":
        monkeypatch.setattr(stored, "_PART", 1000)
    if way.startswith("calls"):
        monkeypatch.setattr(stored, "_DENSE", 0)
    if way.endswith("in memory"):
        preadv, limit = os.preadv, 1300

        def partly(file, buffers, offset, flags=0):
            if flags and offset >= limit:
                raise BlockingIOError
            return preadv(file, [buffers[0][: limit - offset] if flags else buffers[0]], offset)

        monkeypatch.setattr(stored, "_IF_IN_MEMORY", 1)
        monkeypatch.setattr(os, "preadv", partly)
    into = np.zeros((60, 3), np.float32)
    stored.gather(tmp_path / "rows", here, STARTS, COUNTS, into)
    wanted = np.concatenate([ROWS[a : a + n] for a, n in zip(STARTS, COUNTS, strict=True)])
    np.testing.assert_array_equal(into[: len(wanted)], wanted)
    assert not into[len(wanted) :].any()


@pytest.mark.parametrize("dense", [0, 2**16])
def test_a_file_that_has_become_shorter_is_refused(tmp_path, monkeypatch, dense):
    monkeypatch.setattr(stored, "_DENSE", dense)
    here = column(tmp_path)
    os.truncate(tmp_path / "rows", 100)
    with pytest.raises(OSError, match="shorter"):
        stored.gather(tmp_path / "rows", here, STARTS, COUNTS, np.zeros((60, 3), np.float32))
