"""CIFAR-10 and CIFAR-100: on small files of the same format, and on the real ones where they are."""

import hashlib
import importlib

import jax
import numpy as np
import pytest

from fedsolve.core.errors import InvalidInput
from fedsolve.data import Dirichlet, LabelsPerClient
from fedsolve.tasks import Linear, build, cifar10, cifar100
from tasks.small_files import DATA, needs, write

MODULE = importlib.import_module("fedsolve.tasks.ready.cifar")


def encode(x):
    """What the files hold of pixels (n, 3, 32, 32): differences modulo 256."""
    x = x.copy()
    x[:, 0] -= x[:, 1]
    x[:, 2] -= x[:, 1]
    for axis in (3, 2):
        first = np.take(x, [0], axis)
        x = np.concatenate([first, np.diff(x, axis=axis)], axis)
    return x


@pytest.fixture
def images(tmp_path, monkeypatch):
    """60 training and 20 test images of noise; the pixels, too."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (80, 3, 32, 32), dtype=np.uint8)
    y = np.tile(np.arange(10, dtype=np.uint8), 8)
    fields = {"d_train": encode(x[:60]), "y_train": y[:60], "d_test": encode(x[60:]), "y_test": y[60:]}
    fine = {**fields, "coarse_of": np.arange(100, dtype=np.uint8) // 2}
    write(monkeypatch, tmp_path, "cifar", "_100", **fine)
    return write(monkeypatch, tmp_path, "cifar", **fields), x


@pytest.mark.full
def test_the_differences_are_undone_exactly_and_stay_bytes(images):
    folder, x = images
    task = cifar10(folder, num_clients=1)
    np.testing.assert_array_equal(task.data.examples.x.transpose(0, 3, 1, 2), x[:60])
    np.testing.assert_array_equal(task.test.x.transpose(0, 3, 1, 2), x[60:])
    np.testing.assert_array_equal(task.test.y, np.tile(np.arange(10), 2))
    assert task.data.examples.x.dtype == np.uint8
    assert task.data.examples.x.flags.c_contiguous
    assert (task.batch_size, task.epochs) == (20, 1)


def test_any_partition_and_capped_clients(images):
    folder, _ = images
    assert cifar10(folder, 10, "iid").data.counts.tolist() == [6] * 10
    by_table = build("cifar10", data_dir=folder, num_clients=10, partition={"name": "labels", "k": 3})
    assert all(len(np.unique(by_table.data.client(i).y)) <= 3 for i in range(10))
    capped = cifar10(folder, 3, Dirichlet(0.5), examples_per_client=7, seed=2)
    whole = cifar10(folder, 3, Dirichlet(0.5), seed=2)
    assert capped.data.counts.tolist() == np.minimum(whole.data.counts, 7).tolist()
    for i in range(3):
        mine, all_ = (t.data.client(i).x.reshape(-1, 3072).tolist() for t in (capped, whole))
        assert all(image in all_ for image in mine)
    again = cifar10(folder, 3, Dirichlet(0.5), examples_per_client=7, seed=2)
    np.testing.assert_array_equal(again.data.examples.x, capped.data.examples.x)


@pytest.mark.full
def test_pachinko_gives_clients_few_superclasses(images):
    """Labels 2 c and 2 c + 1 are of superclass c: p ~ Dirichlet(0.1) over five of them leaves one or two."""
    task = cifar100(images[0], num_clients=6)
    assert task.data.counts.tolist() == [10] * 6
    few = cifar100(images[0], 1, {"name": "pachinko", "per_client": 6, "coarse_alpha": 0.001}, seed=1)
    assert len(np.unique(few.data.client(0).y // 2)) == 1
    assert set(task.metrics) == {"accuracy", "top5_accuracy"}


@pytest.mark.full
def test_a_cnn_of_three_colours(images):
    task = cifar10(images[0], 10, model="cnn", examples_per_client=1, augment=False)
    params = task.init(jax.random.key(0))
    assert params.conv1.weight.shape == (3, 3, 3, 32)
    assert params.hidden.weight.shape == (128, 64 * 14 * 14)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_clients": 61}, "more than the 60 examples"),
        ({"examples_per_client": 0}, "examples_per_client = 0"),
        ({"partition": "dirichlet"}, "partition dirichlet needs alpha"),
        ({"num_clients": 3, "partition": "pachinko"}, "pachinko needs the coarse labels"),
        ({"num_clients": 3, "model": Linear(1728)}, "the task needs"),
    ],
)
def test_refusals_in_one_line(images, options, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        build("cifar10", data_dir=images[0], **options)
    assert "\n" not in str(caught.value)


def test_the_former_name_says_what_to_give():
    with pytest.raises(InvalidInput, match="cifar was renamed: give cifar10, with model = 'softmax'"):
        build("cifar")


@pytest.mark.parametrize(("name", "file"), [("cifar10", MODULE.FILE), ("cifar100", MODULE.FILE_100)])
def test_missing_and_changed_files_are_named(name, file, tmp_path):
    with pytest.raises(InvalidInput, match=f"{file} does not exist"):
        build(name, data_dir=tmp_path)
    np.savez(tmp_path / file, x=np.zeros(3))
    with pytest.raises(InvalidInput, match=f"{file} has SHA-256 .* damaged or another version"):
        build(name, data_dir=tmp_path)


@pytest.mark.full
@needs("cifar10_20k4k.npz")
def test_the_real_cifar10_is_decoded_to_the_last_bit():
    task = cifar10(DATA, 100, LabelsPerClient(3), examples_per_client=20)
    assert task.data.counts.tolist() == [20] * 100
    expected = "44743a0b04eed866e12b50dd7f4789cd3c81a007f1afdb0811801593198a30f2"
    pixels = np.ascontiguousarray(task.test.x.transpose(0, 3, 1, 2))
    assert hashlib.sha256(pixels.tobytes()).hexdigest() == expected


@pytest.mark.full
@needs("cifar10_20k4k.npz")
def test_the_real_cifar10_s_training_images_too():
    pixels = np.ascontiguousarray(MODULE.decode(np.load(DATA / MODULE.FILE)["d_train"]))
    expected = "d75b59ae473844f6d8f239048eb7f29c1b6d8525edd7964602c83c0ea541a928"
    assert hashlib.sha256(pixels.tobytes()).hexdigest() == expected


@pytest.mark.full
@needs("cifar100_20k4k.npz")
def test_the_real_cifar100_is_decoded_and_dealt_by_superclass():
    """200 images of each class in all; Dirichlet(0.1) over 20 superclasses crowds a client's 100 on a few of them."""
    task = cifar100(DATA)
    assert task.data.counts.tolist() == [100] * 200
    assert np.bincount(task.data.examples.y).tolist() == [200] * 100
    expected = "d814e414de68638ec709b421710edfdd27db832c793b5f0129fa346a8d5cb441"
    pixels = np.ascontiguousarray(task.test.x.transpose(0, 3, 1, 2))
    assert hashlib.sha256(pixels.tobytes()).hexdigest() == expected
    coarse = np.load(DATA / MODULE.FILE_100)["coarse_of"]
    largest = [np.bincount(coarse[task.data.client(i).y]).max() for i in range(100)]
    assert np.mean(largest) > 40  # 5 if dealt at random would be the mean, 11 or so the largest
