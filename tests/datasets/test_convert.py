"""Converting originals: small files of the authors' own formats become what the tasks read, and nothing else does."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import json
import struct
import tarfile

import numpy as np
import pytest

from fedsolve import tasks
from fedsolve.core.errors import InvalidInput
from fedsolve.tasks.datasets import download as checked_files
from fedsolve.tasks.datasets import originals
from fedsolve.tasks.models.recurrent import LSTM
from fedsolve.tasks.ready import cifar, newsgroups, voxels
from fedsolve.tasks.ready.cifar import decode
from tasks.small_files import DATA, needs

rng = np.random.default_rng(0)
play_roles = importlib.import_module("fedsolve.tasks.ready.texts")._roles


def idx(array, code):
    """An idx file."""
    head = struct.pack(">BBBB", 0, 0, code, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def digits(folder, monkeypatch):
    """MNIST's six files of 30 and 20 digits, the idx files unzipped, and their writers."""
    y = {"train": np.arange(30, dtype=np.uint8) % 10, "t10k": np.arange(20, dtype=np.uint8) % 10}
    x = {split: rng.integers(0, 256, (len(labels), 28, 28), dtype=np.uint8) for split, labels in y.items()}
    for split in y:
        (folder / f"{split}-images-idx3-ubyte").write_bytes(idx(x[split], 8))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(idx(y[split], 8))
    sums = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in checked_files.IDX_SHA256
    }
    monkeypatch.setattr(checked_files, "IDX_SHA256", sums)
    monkeypatch.setattr(checked_files, "COUNTS", {"train": 30, "test": 20})
    for split, name in (("train", "train"), ("test", "t10k")):
        table = np.zeros((len(y[name]) + (5 if split == "test" else 0), 8), np.int32)
        table[: len(y[name]), 0] = y[name]
        table[:, 2] = np.arange(len(table)) // 10
        (folder / f"qmnist-{split}-labels-idx2-int.gz").write_bytes(gzip.compress(idx(table, 0x0C)))
    return x, y


def test_mnist(tmp_path, monkeypatch):
    source, to = tmp_path / "from", tmp_path / "to"
    source.mkdir()
    x, y = digits(source, monkeypatch)
    written = checked_files.mnist(source, to)
    assert len(written) == 5
    task = tasks.mnist_by_writer(to, model="softmax")  # reads them by the sums that were noted
    assert task.data.names == ("writer 0", "writer 1", "writer 2")
    np.testing.assert_array_equal(task.data.client(1).x[..., 0], x["train"][10:20] / np.float32(255))
    np.testing.assert_array_equal(task.test.y, y["t10k"])
    written[0].write_bytes(gzip.compress(b"other"))
    with pytest.raises(InvalidInput, match="SHA-256"):
        tasks.mnist_by_writer(to)
    (source / "t10k-labels-idx1-ubyte").write_bytes(b"other")
    with pytest.raises(InvalidInput, match=r"t10k-labels.*another check sum"):
        checked_files.mnist(source, to)
    (source / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(InvalidInput, match=r"lacks t10k-labels-idx1-ubyte.gz or "):
        checked_files.mnist(source, to)


@needs("mnist")
def test_mnist_as_it_is_gives_the_known_files(tmp_path):
    """From the true files, with QMNIST's tables rebuilt, come the bytes whose sums the task has."""
    source, to = tmp_path / "from", tmp_path / "to"
    source.mkdir()
    z = np.load(DATA / "mnist" / "mnist_writers.npz")
    for split, name in (("train", "train"), ("test", "t10k")):
        labels = gzip.decompress((DATA / "mnist" / f"{name}-labels-idx1-ubyte.gz").read_bytes())[8:]
        table = np.zeros((len(labels), 8), np.int32)
        table[:, 0] = np.frombuffer(labels, np.uint8)
        table[:, 1], table[:, 2] = z[f"{split}_hsf"], z[f"{split}_writer"]
        (source / f"qmnist-{split}-labels-idx2-int.gz").write_bytes(gzip.compress(idx(table, 0x0C), 1))
    for path in (DATA / "mnist").glob("*.gz"):
        (source / path.name).symlink_to(path)
    checked_files.mnist(source, to)
    got = np.load(to / "mnist" / "mnist_writers.npz")
    assert all((got[name] == z[name]).all() and got[name].dtype == z[name].dtype for name in z.files)
    assert not list(to.glob("mnist/*.gz.sha256"))


def test_fashion(tmp_path, monkeypatch):
    """The four idx files, zipped or not, as they are; others are refused."""
    source, to, sums = tmp_path / "from", tmp_path / "to", {}
    source.mkdir()
    for name in checked_files.FASHION:
        a = rng.integers(0, 10, (12, 28, 28) if "images" in name else (12,), dtype=np.uint8)
        (source / name.removesuffix(".gz")).write_bytes(idx(a, 8))
        sums[name] = hashlib.sha256(a.tobytes()).hexdigest()
    monkeypatch.setattr(checked_files, "FASHION", sums)
    monkeypatch.setattr(importlib.import_module("fedsolve.tasks.ready.idx_images"), "CONTENT", sums)
    checked_files.fashion_mnist(source, to)
    assert tasks.fashion_mnist(to, 2, "iid").data.counts.tolist() == [6, 6]
    (source / "t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(12, np.uint8), 8))
    with pytest.raises(InvalidInput, match="its content has another check sum"):
        checked_files.fashion_mnist(source, to)


def test_cifar(tmp_path):
    """From an archive or from loose files, of whole records and balanced labels alone; no pickle is opened."""
    source, to = tmp_path / "from", tmp_path / "to"
    source.mkdir()
    names = [*cifar.PARTS["train"], *cifar.PARTS["test"]]
    records = rng.integers(0, 256, (6, 20, 3073), dtype=np.uint8)
    records[:, :, 0] = np.arange(20) % 10
    with tarfile.open(source / cifar.ARCHIVE, "w:gz") as archive:
        for name, part in zip(names, records, strict=True):
            entry = tarfile.TarInfo(f"../../{name}")  # wherever it says it lies: nothing is unpacked
            entry.size = part.nbytes
            archive.addfile(entry, io.BytesIO(part.tobytes()))
    cifar.convert(source, to, (4, 2), 20)
    z = np.load(to / cifar.FILE)
    assert np.bincount(z["y_train"]).tolist() == [4] * 10
    pictures = {record[1:].tobytes(): record[0] for part in records for record in part}
    assert [pictures[x.tobytes()] for x in decode(z["d_train"])] == z["y_train"].tolist()
    assert len({x.tobytes() for x in decode(z["d_train"])}) == 40
    task = tasks.cifar10(to, 2, "iid")
    assert task.data.counts.tolist() == [20, 20]
    assert task.test.x.shape == (20, 32, 32, 3)
    (source / cifar.ARCHIVE).unlink()
    for name, part in zip(names, records, strict=True):
        (source / name).write_bytes(part.tobytes())
    before = (to / cifar.FILE).read_bytes()
    cifar.convert(source, to, (4, 2), 20)
    assert (to / cifar.FILE).read_bytes() == before
    (source / names[0]).write_bytes(records[0, :, :-1].tobytes())
    with pytest.raises(InvalidInput, match="it has 61440 bytes, not 20 x 3073"):
        cifar.convert(source, to, (4, 2), 20)
    records[1, 0, 0] = 9
    (source / names[0]).write_bytes(records[1].tobytes())
    with pytest.raises(InvalidInput, match="its labels are"):
        cifar.convert(source, to, (4, 2), 20)
    (source / "data_batch_1").write_bytes(b"\x80")
    with pytest.raises(InvalidInput, match="pickles that can run code"):
        cifar.convert(source, to, (4, 2), 20)


def test_cifar100(tmp_path):
    """Records have a superclass, a class and the pixels; the superclass of each class is what the task reads."""
    source, to = tmp_path / "from", tmp_path / "to"
    source.mkdir()
    train, test = (rng.integers(0, 256, (n, 3074), dtype=np.uint8) for n in (300, 100))
    for part in (train, test):
        part[:, 1] = np.arange(len(part)) % 100
        part[:, 0] = part[:, 1] // 5
    (source / "train.bin").write_bytes(train.tobytes())
    (source / "test.bin").write_bytes(test.tobytes())
    cifar.convert_100(source, to, (2, 1), (300, 100))
    z = np.load(to / cifar.FILE_100)
    assert z["coarse_of"].tolist() == [i // 5 for i in range(100)]
    pictures = {record[2:].tobytes(): record[1] for record in train}
    assert [pictures[x.tobytes()] for x in decode(z["d_train"])] == z["y_train"].tolist()
    task = tasks.cifar100(to, num_clients=4)
    assert task.data.counts.tolist() == [50] * 4
    train[0, 0] = 7
    (source / "train.bin").write_bytes(train.tobytes())
    with pytest.raises(InvalidInput, match="a class has two superclasses"):
        cifar.convert_100(source, to, (2, 1), (300, 100))


def nifti(array, code, order="<"):
    """A NIfTI-1 file."""
    head = bytearray(352)
    struct.pack_into(f"{order}i", head, 0, 348)
    struct.pack_into(f"{order}8h", head, 40, array.ndim, *array.shape, *[1] * (7 - array.ndim))
    struct.pack_into(f"{order}h", head, 70, code)
    struct.pack_into(f"{order}f", head, 108, 352.0)
    return bytes(head) + array.astype(array.dtype.newbyteorder(order)).tobytes(order="F")


@pytest.mark.parametrize("order", ["<", ">"])
def test_voxels(tmp_path, order):
    source, to = tmp_path / "from", tmp_path / "to"
    source.mkdir()
    bold = rng.integers(-500, 500, (4, 3, 1, 24), dtype=np.int16)
    mask = np.zeros((4, 3, 1), np.uint8)
    mask[1, 2], mask[1, 0], mask[3, 1] = 1, 1, 1
    (source / "bold.nii.gz").write_bytes(gzip.compress(nifti(bold, 4, order)))
    (source / "mask.nii").write_bytes(nifti(mask, 2, order))
    words = ["face 0", "house 0", "rest 0"] * 4 + ["face 1", "house 1", "rest 1"] * 4
    (source / "attributes_literal.txt").write_text("\n".join(words) + "\n")
    voxels.convert(source, to)
    z = np.load(to / voxels.FILE)
    assert z["voxel_ij"].tolist() == [[1, 0], [1, 2], [3, 1]]
    np.testing.assert_array_equal(z["bold"], np.stack([bold[1, 0, 0], bold[1, 2, 0], bold[3, 1, 0]], 1))
    task = tasks.voxels(to, test_runs=1)
    assert task.data.counts.tolist() == [8]
    for name, content, expected in [
        ("attributes_literal.txt", b"face 0\n", "it has 1 lines for 24 volumes"),
        (
            "attributes_literal.txt",
            "\n".join(["cow 0", *words[1:]]).encode(),
            "line 1 is not a class and a run",
        ),
        ("mask.nii", nifti(mask[:2], 2, order), "its shape is"),
        ("mask.nii", nifti(mask, 2, order)[:-1], "it holds 363 bytes, its header 364"),
        ("mask.nii", nifti(mask, 1, order), "unknown type 1"),
        ("mask.nii", b"no header at all" * 30, "it has no NIfTI header"),
    ]:
        good = (source / name).read_bytes()
        (source / name).write_bytes(content)
        with pytest.raises(InvalidInput, match=expected):
            voxels.convert(source, to)
        (source / name).write_bytes(good)


@needs(voxels.FILE)
def test_voxels_as_they_are_give_the_known_file(tmp_path):
    """The known table, put back into images, comes out as the bytes whose sum the task has."""
    z = np.load(DATA / voxels.FILE)
    bold, mask = np.zeros((40, 20, 1, 1452), np.int16), np.zeros((40, 20, 1), np.uint8)
    i, j = z["voxel_ij"].T
    bold[i, j, 0], mask[i, j] = z["bold"].T, 1
    (tmp_path / "bold.nii").write_bytes(nifti(bold, 4))
    (tmp_path / "mask.nii").write_bytes(nifti(mask, 2))
    lines = [f"{z['classes'][label]} {run}\n" for label, run in zip(z["label"], z["run"], strict=True)]
    (tmp_path / "attributes_literal.txt").write_text("".join(lines))
    voxels.convert(tmp_path, tmp_path / "to")
    got = np.load(tmp_path / "to" / voxels.FILE)
    assert all((got[name] == z[name]).all() and got[name].dtype == z[name].dtype for name in z.files)


@needs("libsvm")
def test_libsvm(tmp_path):
    written = checked_files.libsvm(DATA / "libsvm", tmp_path)
    assert [path.name for path in written] == ["a9a", "a9a.t", "w8a", "mushrooms"]
    assert len(tasks.libsvm(tmp_path, dataset="mushrooms", num_clients=2).test.y) == 1625
    (tmp_path / "libsvm" / "w8a").write_text("+1 1:1\n")
    with pytest.raises(InvalidInput, match="w8a: its text has another check sum"):
        checked_files.libsvm(tmp_path / "libsvm", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_femnist(tmp_path):
    """LEAF's JSON: users in any file, white paper turned, the split as it stands."""
    ink = rng.integers(0, 90, (2, 6, 784))
    for split, number, size in (("train", 0, 6), ("train", 1, 4), ("test", 0, 2)):
        users = {f"f{k}_0{k}": {"x": ((255 - ink[k][:size]) / 255).tolist(), "y": [61, 1, 10, 9, 36, 0][:size]}
                 for k in ((number,) if split == "train" else (0, 1))}  # fmt: skip
        (tmp_path / split).mkdir(exist_ok=True)
        text = json.dumps({"users": list(users), "num_samples": [], "user_data": users})
        (tmp_path / split / f"all_{number}.json").write_text(text)
    originals.femnist(tmp_path, tmp_path)
    task = tasks.handwriting(tmp_path, dataset="femnist")
    assert (task.name, task.citation, task.data.counts.tolist()) == ("femnist-62", "caldas2018leaf", [6, 4])
    np.testing.assert_array_equal(np.rint(task.data.client(1).x[..., 0] * 255), ink[1][:4].reshape(4, 28, 28))
    assert task.test.y.tolist() == [61, 1, 61, 1]
    for text, expected in [
        ("{", "is not LEAF's JSON"),
        ('{"user_data": {"a": {"x": [[1, 2]], "y": [1]}}}', "its user a has shapes"),
        (json.dumps({"user_data": {"a": {"x": [[0.5] * 784], "y": [62]}}}), "labels outside 0 to 61"),
        (json.dumps({"user_data": {"a": {"x": [[7.0] * 784], "y": [6]}}}), "pixels outside 0 to 1"),
    ]:
        (tmp_path / "test" / "all_0.json").write_text(text)
        with pytest.raises(InvalidInput, match=expected):
            originals.femnist(tmp_path, tmp_path)
    with pytest.raises(InvalidInput, match=r"lacks train/\*.json"):
        originals.femnist(tmp_path / "train", tmp_path)


def test_shakespeare_of_leaf(tmp_path):
    """LEAF's windows, as its script makes them of a role's lines, give the lines again; the task cuts them itself."""
    lines = {
        "HAMLET": ["To be, or not to be\n", "  ay\n", "x" * 100 + "\n", "words"],
        "GHOST": ["Mark me.\n", "I am\n"],
    }
    users = {}
    for name, said in lines.items():
        behind = [" " * 80 + line for line in said]
        places = [(text, i) for text in behind for i in range(len(text) - 80)]
        users[name] = {
            "x": [text[i : i + 80] for text, i in places],
            "y": [text[i + 80] for text, i in places],
        }
    (tmp_path / "all_data").mkdir()
    file = tmp_path / "all_data" / "all_data.json"
    file.write_text(json.dumps({"users": list(users), "num_samples": [], "user_data": users}))
    originals.shakespeare(tmp_path, tmp_path)
    roles = play_roles(tmp_path / "shakespeare_leaf.jsonl.gz", "")
    assert dict(roles) == {
        f"LEAF: {name}": [line.rstrip("\n") for line in said] for name, said in lines.items()
    }
    task = tasks.shakespeare(tmp_path, LSTM(90, 4, 8, 1), min_characters=100, dataset="leaf")
    assert (task.name, task.data.names) == ("shakespeare-leaf", ("LEAF: HAMLET",))
    gap = {"x": users["GHOST"]["x"][::2], "y": users["GHOST"]["y"][::2]}
    for data, expected in [
        ({"a": {"x": ["short"], "y": ["a"]}}, "its user a has samples that are not 80 characters and one"),
        ({"a": {"x": [" " * 80], "y": []}}, "its user a has 1 windows and 0 next characters"),
        ({"a": gap}, "its user a has windows that do not follow one another"),
        ([], r"is not LEAF's JSON \(AttributeError\)"),
    ]:
        file.write_text(json.dumps({"user_data": data}))
        with pytest.raises(InvalidInput, match=expected):
            originals.shakespeare(tmp_path, tmp_path)
    with pytest.raises(InvalidInput, match=r"lacks all_data/\*.json"):
        originals.shakespeare(tmp_path / "all_data", tmp_path)


def test_news(tmp_path):
    """Headers, quotes and addresses are no words; authors are numbered by their posts; an archive is as its folders."""
    post = "From: {} (Ann)\nSubject: secret\n\nIn article <1@x> bob writes:\n> quoted\nHello {} cc@dd.ee hello a 12\n"
    files = {
        "20news-bydate-train/sci.med/1": post.format("b@x", "body"),
        "20news-bydate-train/sci.med/2": post.format("a@x", "soul"),
        "20news-bydate-train/sci.space/3": post.format("a@x", "star"),
        "20news-bydate-test/sci.space/4": post.format("b@x", "star"),
        "20news-bydate-test/sci.space/5": post.format("a@x", "unseen"),
    }
    loose, packed = tmp_path / "loose", tmp_path / "packed"
    packed.mkdir()
    with tarfile.open(packed / newsgroups.ARCHIVE, "w:gz") as archive:
        for name, text in files.items():
            (loose / name).parent.mkdir(parents=True, exist_ok=True)
            (loose / name).write_text(text)
            archive.add(loose / name, name)
    newsgroups.convert(loose, tmp_path / "a")
    newsgroups.convert(packed, tmp_path / "b")
    assert (tmp_path / "a" / newsgroups.FILE).read_bytes() == (tmp_path / "b" / newsgroups.FILE).read_bytes()
    z = np.load(tmp_path / "a" / newsgroups.FILE)
    assert z["vocab"].tolist() == ["body", "hello", "soul", "star"]
    assert z["author"].tolist() == [1, 0, 1, 0, 0]  # test posts first, by name
    assert z["counts"].tolist() == [2, 1, 2, 1, 2, 2, 1, 2, 1]
    task = tasks.news(tmp_path / "a", min_posts=1, vocabulary=4)
    assert task.data.counts.tolist() == [2, 1]
    with pytest.raises(InvalidInput, match=r"lacks 20news-bydate.tar.gz"):
        newsgroups.convert(tmp_path, tmp_path)
    (packed / newsgroups.ARCHIVE).write_bytes((packed / newsgroups.ARCHIVE).read_bytes()[:60])
    with pytest.raises(InvalidInput, match="damaged archive"):
        newsgroups.convert(packed, tmp_path)
