"""Fashion-MNIST: on small files of the same format, and on the real ones where they are."""

import gzip
import hashlib
import importlib
import struct

import numpy as np
import pytest

from fedsolve.core.errors import InvalidInput
from fedsolve.tasks import build, fashion_mnist

MODULE = importlib.import_module("fedsolve.tasks.ready.idx_images")


@pytest.fixture
def clothes(tmp_path, monkeypatch):
    """30 and 10 pictures in idx files; their arrays, too."""
    rng, arrays, sums = np.random.default_rng(0), {}, {}
    folder = tmp_path / MODULE.FOLDER
    folder.mkdir()
    for name in MODULE.CONTENT:
        n = 30 if name.startswith("train") else 10
        shape = (n, 28, 28) if "images" in name else (n,)
        a = (
            rng.integers(0, 256, shape, dtype=np.uint8)
            if "images" in name
            else np.arange(n, dtype=np.uint8) % 10
        )
        head = struct.pack(">BBBB", 0, 0, 8, a.ndim) + struct.pack(f">{a.ndim}I", *shape)
        (folder / name).write_bytes(gzip.compress(head + a.tobytes()))
        arrays[name], sums[name] = a, hashlib.sha256(a.tobytes()).hexdigest()
    monkeypatch.setattr(MODULE, "CONTENT", sums)
    return tmp_path, arrays


def test_pictures_stay_bytes_and_are_dealt(clothes, monkeypatch):
    folder, arrays = clothes
    task = fashion_mnist(folder, 3, "iid")
    assert task.data.counts.tolist() == [10] * 3
    seen = sorted(x.tobytes() for x in task.data.examples.x)
    assert seen == sorted(x.tobytes() for x in arrays["train-images-idx3-ubyte.gz"])
    np.testing.assert_array_equal(task.test.x[..., 0], arrays["t10k-images-idx3-ubyte.gz"])
    assert (task.data.examples.x.dtype, task.batch_size) == (np.uint8, 20)
    monkeypatch.setattr(MODULE, "DEBIAN", folder / "nowhere")
    monkeypatch.setenv("FEDSOLVE_DATA", str(folder))
    np.testing.assert_array_equal(fashion_mnist(num_clients=3, partition="iid").test.y, task.test.y)


def test_missing_and_changed_files_are_named(clothes, monkeypatch, tmp_path):
    folder, _ = clothes
    name = "t10k-labels-idx1-ubyte.gz"
    content = bytearray(gzip.decompress((folder / MODULE.FOLDER / name).read_bytes()))
    content[-1] ^= 1
    (folder / MODULE.FOLDER / name).write_bytes(gzip.compress(bytes(content)))
    with pytest.raises(InvalidInput, match=f"{name} has content of SHA-256 .* damaged or another data set"):
        build("fashion-mnist", data_dir=folder, num_clients=3)
    with pytest.raises(InvalidInput, match="does not exist"):
        build("fashion-mnist", data_dir=folder / MODULE.FOLDER)
    monkeypatch.delenv("FEDSOLVE_DATA", raising=False)
    monkeypatch.setattr(MODULE, "DEBIAN", tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="no Debian package dataset-fashion-mnist"):
        build("fashion-mnist")


@pytest.mark.full
@pytest.mark.skipif(not MODULE.DEBIAN.is_dir(), reason="no Debian package dataset-fashion-mnist")
def test_the_real_files(monkeypatch):
    monkeypatch.delenv("FEDSOLVE_DATA", raising=False)
    task = fashion_mnist()
    assert (task.data.num_clients, task.data.num_examples, task.test.x.shape) == (
        100,
        60_000,
        (10_000, 28, 28, 1),
    )
    assert np.bincount(task.data.examples.y).tolist() == [6000] * 10
