"""Handwriting by writer: on small files of the same format, and on the real ones where they are."""

import jax
import numpy as np
import pytest

from fedsolve.core.errors import InvalidInput
from fedsolve.tasks import Softmax, build, handwriting
from tasks.small_files import DATA, SUFFIXES, module_of, needs, write


@pytest.fixture
def characters(tmp_path, monkeypatch):
    """40 characters of 4 writers: writer 3 wrote no digit, writer 2 digits only in the test set."""
    rng = np.random.default_rng(0)
    writer = np.repeat(np.arange(4, dtype=np.int16), 10)
    is_test = np.tile(np.arange(10) < 2, 4)
    y = rng.integers(0, 10, 40).astype(np.uint8)
    y[writer == 3] = 40
    y[(writer == 2) & ~is_test] = 61
    x = rng.integers(0, 256, (40, 28, 28), dtype=np.uint8)
    return write(monkeypatch, tmp_path, "handwriting", x=x, y=y, writer=writer, is_test=is_test)


def test_handwriting_has_a_client_for_each_writer(characters):
    task = handwriting(characters)
    z = np.load(characters / "unipen62_by_writer.npz")
    assert task.data.names == ("writer 0", "writer 1", "writer 2", "writer 3")
    assert task.data.counts.tolist() == [8, 8, 8, 8]
    rows = (z["writer"] == 2) & ~z["is_test"]
    np.testing.assert_array_equal(np.rint(task.data.client(2).x[..., 0] * 255), z["x"][rows])
    np.testing.assert_array_equal(task.data.client(2).y, z["y"][rows])
    np.testing.assert_array_equal(task.test.y, z["y"][z["is_test"]])
    assert task.data.examples.x.dtype == np.float32
    assert task.data.examples.x.shape == (32, 28, 28, 1)
    assert (task.batch_size, task.epochs, task.eval_examples) == (10, 1, 5000)


@pytest.mark.full
def test_handwriting_of_digits_drops_writers_without_any(characters):
    task = handwriting(characters, classes=10, model="mlp")
    assert task.data.names == ("writer 0", "writer 1")
    assert len(task.test.y) == 6
    assert task.data.examples.y.max() < 10
    assert [w.weight.shape for w in task.init(jax.random.key(0))] == [(200, 784), (200, 200), (10, 200)]


def test_handwriting_can_be_flipped_and_sampled(characters):
    task, flipped = handwriting(characters), handwriting(characters, flip=True)
    np.testing.assert_array_equal(flipped.data.examples.x, 1 - task.data.examples.x)
    np.testing.assert_array_equal(flipped.test.x, 1 - task.test.x)
    some = handwriting(characters, num_clients=2, seed=5)
    assert some.data.num_clients == 2
    assert some.data.names == handwriting(characters, num_clients=2, seed=5).data.names
    np.testing.assert_array_equal(some.test.x, task.test.x)
    i = task.data.names.index(some.data.names[1])
    np.testing.assert_array_equal(some.data.client(1).x, task.data.client(i).x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 26}, "classes = 26 must be 62, or 10"),
        ({"model": "mpl"}, "did you mean 'mlp'"),
        ({"model": Softmax(784, 10)}, r"the task needs \(62,\)"),
        ({"num_clients": 5}, "num_clients = 5 of 4 groups"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_handwriting_refuses_in_one_line(characters, options, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        build("handwriting", data_dir=characters, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["voxels", "handwriting", "femnist", "news"])
def test_missing_and_changed_files_are_named(name, tmp_path, monkeypatch):
    file = getattr(module_of(name), f"FILE{SUFFIXES.get(name, '')}")
    with pytest.raises(InvalidInput, match=f"{file} does not exist"):
        build(name, data_dir=tmp_path)
    np.savez(tmp_path / file, x=np.zeros(3))
    with pytest.raises(InvalidInput, match=f"{file} has SHA-256 .* damaged or another version"):
        build(name, data_dir=tmp_path)
    monkeypatch.delenv("FEDSOLVE_DATA", raising=False)
    with pytest.raises(InvalidInput, match=r"give data_dir .* or set the environment variable FEDSOLVE_DATA"):
        build(name)


@needs("unipen62_by_writer.npz")
def test_the_real_handwriting_has_its_writers():
    task = handwriting(DATA, classes=10)
    assert (task.data.num_clients, task.data.num_examples, len(task.test.y)) == (267, 7357, 1900)
    task = handwriting(DATA)
    assert (task.data.num_clients, task.data.num_examples, len(task.test.y)) == (315, 43_655, 10_903)
    assert len(np.unique(task.data.examples.y)) == 62
