"""Disks that are full or may only be read: a line that says so, and the same bits once there is room."""

import subprocess

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedsolve as fs
from fedsolve.engine import streaming as stream
from fedsolve.folders import run_folder
from fedsolve.tasks import CrossEntropy, Softmax

MODEL = Softmax(1000, 10)  # a client's state has 40 kB


def clients(number=24, rows=2):
    rng = np.random.default_rng(0)
    return [
        fs.Examples(rng.random((rows, 1000), np.float32), rng.integers(0, 10, rows, np.int32))
        for _ in range(number)
    ]


@pytest.fixture
def disk(tmp_path):
    """A disk of 400 kB, and how to mount it anew; those who may not mount one skip the test."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options):
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(place)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("only root mounts a disk")

    mount("size=400k")
    yield place, lambda options: mount(f"remount,{options}")
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_population_goes_on_where_its_disk_was_full(disk, tmp_path, monkeypatch):
    place, again = disk
    monkeypatch.setattr("fedsolve.data.writing._BETWEEN", 2**16)
    whole = fs.data.write(clients(80), tmp_path / "whole")
    with pytest.raises(fs.InvalidInput, match="No space left on device; written data are kept"):
        fs.data.write(clients(80), place / "d")
    with pytest.raises(fs.InvalidInput, match="holds no data"):
        fs.data.open(place / "d")
    again("size=4m")
    assert fs.data.write(clients(80), place / "d", resume=True).digest == whole.digest
    again("ro")
    assert fs.data.open(place / "d", verify=True).num_clients == 80
    with pytest.raises(fs.InvalidInput, match="Read-only file system"):
        fs.data.write(clients(2), place / "other")


def test_rows_to_group_that_do_not_fit_are_refused_before_they_are_written(disk, tmp_path):
    """Into mapped files they would kill the process."""
    place, _ = disk
    rows = {"user": np.arange(200) % 7, "x": list(np.ones((200, 1000), np.float32))}
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    with pytest.raises(fs.InvalidInput, match="No space left on device: free space"):
        fs.data.from_table(tmp_path / "t.parquet", client="user", x="x", folder=place / "d")
    assert not list(place.iterdir())


@pytest.mark.full
def test_a_run_goes_on_where_the_disk_of_its_states_was_full(disk, tmp_path, monkeypatch):
    place, again = disk
    monkeypatch.setattr(run_folder.RunFolder, "due", property(lambda self: True))
    monkeypatch.setattr("fedsolve.engine.loop._CALL_SECONDS", 1e-9)
    monkeypatch.setattr(stream, "WINDOW_BYTES", 2**16)
    task = fs.Task("disks", MODEL.init, CrossEntropy(MODEL), fs.FederatedData.from_clients(clients()))
    options = {"clients_per_round": 2, "eval_every": 4, "residency": "stream"}

    def run(out, resume=False, rounds=3):
        return fs.run(fs.SCAFFOLD(0.1), task, rounds=rounds, out=out, resume=resume, **options)

    with pytest.raises(fs.InvalidInput, match=r"disk at least .* for the states of clients that take part"):
        run(place / "long", rounds=8)
    with pytest.raises(fs.InvalidInput, match="No space left on device") as error:
        run(place / "run")
    assert "\n" not in str(error.value)
    assert (place / "run" / "checkpoint.safetensors").exists()
    again("ro")
    with pytest.raises(fs.InvalidInput, match="Read-only file system"):
        run(place / "run", resume=True)
    again("rw,size=4m")
    resumed, whole = run(place / "run", resume=True), run(None)
    for a, b in zip(jax.tree.leaves(resumed.params), jax.tree.leaves(whole.params), strict=True):
        np.testing.assert_array_equal(a, b)
