"""MNIST dealt anew and in part, on small files of the same format."""

import gzip
import importlib
import struct

import numpy as np
import pytest

from fedsolve.core.errors import InvalidInput
from fedsolve.data import IID, LabelsPerClient
from fedsolve.tasks import build, mnist_by_writer
from tasks.small_files import sha256


def idx(path, array):
    """An idx file of bytes, gzipped."""
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


@pytest.fixture
def small_mnist(tmp_path, monkeypatch):
    """120 training digits of 12 writers and 10 test digits, each image its own number in its first pixels."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    for split, n in (("train", 120), ("t10k", 10)):
        x = np.zeros((n, 28, 28), np.uint8)
        x[:, 0, 0] = np.arange(n)
        idx(folder / f"{split}-images-idx3-ubyte.gz", x)
        idx(folder / f"{split}-labels-idx1-ubyte.gz", (np.arange(n) * 7 % 10).astype(np.uint8))
    np.savez(folder / "mnist_writers.npz", train_writer=np.arange(120, dtype=np.int16) % 12 + 100)
    module = importlib.import_module("fedsolve.tasks.ready.idx_images")
    monkeypatch.setattr(module, "SHA256", {name: sha256(folder / name) for name in module.SHA256})
    return tmp_path


def numbers(task):
    """The number of each training image in its file."""
    return np.rint(task.data.examples.x[:, 0, 0, 0] * 255).astype(int)


def test_mnist_is_by_writer_unless_a_partition_is_given(small_mnist):
    task = mnist_by_writer(small_mnist, "softmax")
    assert task.data.names == tuple(f"writer {100 + i}" for i in range(12))
    assert numbers(task)[:10].tolist() == list(range(0, 120, 12))
    named = mnist_by_writer(small_mnist, "softmax", partition="natural")
    assert named.data.names == task.data.names
    np.testing.assert_array_equal(named.data.examples.x, task.data.examples.x)


def test_mnist_in_a_partition_deals_every_digit_once(small_mnist):
    task = mnist_by_writer(small_mnist, "softmax", 10, seed=1, partition=IID())
    assert task.data.counts.tolist() == [12] * 10
    assert sorted(numbers(task)) == list(range(120))
    assert task.data.examples.y.tolist() == (numbers(task) * 7 % 10).tolist()
    assert task.data.names[3] == "client 3"
    assert len(task.test.y) == 10
    table = {"name": "labels", "k": 3}
    by_table = build("mnist", data_dir=small_mnist, model="softmax", num_clients=10, partition=table)
    assert all(len(np.unique(by_table.data.client(i).y)) <= 3 for i in range(10))
    by_object = mnist_by_writer(small_mnist, "softmax", 10, partition=LabelsPerClient(3))
    np.testing.assert_array_equal(by_object.data.examples.x, by_table.data.examples.x)


def test_mnist_draws_examples_first(small_mnist):
    task = mnist_by_writer(small_mnist, "softmax", 4, partition="iid", examples=30, seed=1)
    assert task.data.counts.tolist() == [8, 8, 7, 7]
    drawn = numbers(task)
    assert len(set(drawn)) == 30
    assert task.data.examples.y.tolist() == (drawn * 7 % 10).tolist()
    again = mnist_by_writer(small_mnist, "softmax", 4, partition="iid", examples=30, seed=1)
    other = mnist_by_writer(small_mnist, "softmax", 4, partition="iid", examples=30, seed=2)
    assert drawn.tolist() == numbers(again).tolist() != numbers(other).tolist()
    writers = mnist_by_writer(small_mnist, "softmax", examples=30, seed=1)
    assert sorted(numbers(writers)) == sorted(drawn)
    for i, name in enumerate(writers.data.names):
        first = int(writers.data.offsets[i])
        assert int(name.removeprefix("writer ")) == numbers(writers)[first] % 12 + 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": "iid"}, "partition iid needs num_clients"),
        ({"partition": "iidd", "num_clients": 2}, "did you mean 'iid'"),
        ({"examples": 0}, "examples = 0"),
        ({"examples": 121}, "examples = 121 is more than the 120 training digits"),
        ({"examples": 5, "seed": -1}, "seed = -1"),
        ({"partition": "iid", "examples": 5, "num_clients": 6}, "more than the 5 examples"),
    ],
)
def test_mnist_refuses_in_one_line(small_mnist, options, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        build("mnist", data_dir=small_mnist, **options)
    assert "\n" not in str(caught.value)
