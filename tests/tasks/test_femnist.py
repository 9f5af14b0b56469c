"""FEMNIST by writer, with unseen writers: on a small file of the same format, and on the real one where it is."""

import importlib

import jax
import numpy as np
import pytest

from fedsolve.core.errors import InvalidInput
from fedsolve.tasks import Softmax, build, femnist, femnist_autoencoder
from tasks.small_files import DATA, needs, write

MODULE = importlib.import_module("fedsolve.tasks.ready.characters")


@pytest.fixture
def characters(tmp_path, monkeypatch):
    """Five writers of six images: 1 and 4 have test images alone, the others two each."""
    rng = np.random.default_rng(0)
    writer = np.repeat(np.arange(5, dtype=np.int16), 6)
    return write(
        monkeypatch, tmp_path, "femnist",
        x=rng.integers(0, 256, (30, 28, 28), dtype=np.uint8), y=rng.integers(0, 62, 30).astype(np.uint8),
        writer=writer, is_test=np.tile(np.arange(6) < 2, 5) | np.isin(writer, [1, 4]),
        writers=np.array([f"f{i:04}_00" for i in range(5)]),
    )  # fmt: skip


def test_writers_train_are_tested_and_others_are_unseen(characters):
    task, z = femnist(characters), np.load(characters / MODULE.FILE)
    assert task.data.names == ("writer f0000_00", "writer f0002_00", "writer f0003_00")
    assert task.unseen.names == ("writer f0001_00", "writer f0004_00")
    assert (task.data.counts.tolist(), task.unseen.counts.tolist()) == ([4, 4, 4], [6, 6])
    np.testing.assert_array_equal(task.data.client(1).x[..., 0], 255 - z["x"][12:18][2:])
    np.testing.assert_array_equal(task.unseen.client(1).y, z["y"][24:])
    np.testing.assert_array_equal(task.test.y, z["y"][[0, 1, 12, 13, 18, 19]])
    assert task.data.examples.x.dtype == np.uint8
    assert task.data.examples.x.shape == (12, 28, 28, 1)
    assert (task.batch_size, task.epochs) == (20, 1)
    some = femnist(characters, num_clients=2, seed=1)
    assert some.data.num_clients == 2
    np.testing.assert_array_equal(some.test.y, task.test.y)


def test_paper_is_white_unless_told_otherwise(characters):
    """The papers' background of 1: the file's 0, where there is no ink, is 255, which models take as 1."""
    white, black = femnist(characters), femnist(characters, flip=False)
    x = np.load(characters / MODULE.FILE)["x"]
    np.testing.assert_array_equal(black.data.client(0).x[..., 0], x[2:6])
    for one, other in ((white.data, black.data), (white.unseen, black.unseen)):
        np.testing.assert_array_equal(one.examples.x, 255 - other.examples.x)
    np.testing.assert_array_equal(white.test.x, 255 - black.test.x)


def test_the_autoencoder_is_judged_by_the_mean_square_of_a_pixel(characters):
    task = femnist_autoencoder(characters, model="small")
    assert task.unseen.counts.tolist() == [6, 6]
    params = task.init(jax.random.key(0))
    x = task.unseen.examples.x / 255
    outputs = np.asarray(task.loss.model(params, task.unseen.examples.x))
    assert outputs.shape == x.shape
    found = float(task.loss(params, task.unseen.examples))
    assert found == pytest.approx(np.mean((outputs - x) ** 2), rel=1e-5)
    with pytest.raises(InvalidInput, match=r"the task needs \(28, 28, 1\)"):
        femnist_autoencoder(characters, model=Softmax(784, 784))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "mpl"}, "did you mean 'mlp'"),
        ({"model": Softmax(784, 10)}, r"the task needs \(62,\)"),
        ({"num_clients": 4}, "num_clients = 4 of 3 groups"),
        ({"dataset": "leav"}, "did you mean 'leaf'"),
        ({"dataset": "leaf"}, "femnist.npz does not exist"),
    ],
)
def test_refusals_in_one_line(characters, options, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        build("femnist", data_dir=characters, **options)
    assert "\n" not in str(caught.value)


@needs("femnist_leaf_sample.npz")
def test_the_real_sample_has_its_writers():
    task = femnist(DATA)
    assert (task.data.num_clients, task.data.num_examples, len(task.test.y)) == (300, 43_552, 5_050)
    assert (task.unseen.num_clients, task.unseen.num_examples) == (240, 7_348)
    assert (task.data.counts.min(), int(np.median(task.data.counts)), task.data.counts.max()) == (1, 150, 326)
    digits = [(part.y < 10).mean() for part in (task.data.examples, task.unseen.examples)]
    assert np.round(digits, 2).tolist() == [0.71, 0.34]  # what the docstring says of them
    assert not set(task.data.names) & set(task.unseen.names)
    y = np.concatenate([task.data.examples.y, task.test.y, task.unseen.examples.y])
    groups = [(y < 10).sum(), ((y >= 10) & (y < 36)).sum(), (y >= 36).sum()]
    assert groups == [36_844, 9_891, 9_215]
