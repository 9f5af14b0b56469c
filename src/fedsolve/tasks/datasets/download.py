"""Public data sets: source, licence and size of each, fetching with a limit, checks, and the forms that tasks read."""

from __future__ import annotations

import gzip
import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import numpy as np

from fedsolve.core.building import Registry
from fedsolve.core.errors import InvalidInput
from fedsolve.data.sources import read_bytes, read_idx
from fedsolve.folders.files import write_atomically
from fedsolve.tasks.datasets import originals as leaf
from fedsolve.tasks.datasets.originals import find, refuse, unzipped, write_noted, write_npz
from fedsolve.tasks.ready import cifar, newsgroups, voxels
from fedsolve.tasks.ready.characters import FILE as FEMNIST_SAMPLE
from fedsolve.tasks.ready.idx_images import CONTENT as FASHION
from fedsolve.tasks.ready.idx_images import FOLDER, SHA256
from fedsolve.tasks.ready.idx_images import SHA256 as MNIST
from fedsolve.tasks.ready.libsvm import SHA256 as LIBSVM
from fedsolve.tasks.ready.texts import FILE as SHAKESPEARE
from fedsolve.tasks.ready.texts import LEAF as SHAKESPEARE_LEAF

_BLOCK = 1 << 20
SECONDS = 30.0
"""How long a server may be silent."""
Report = Callable[[int, int | None], None]
"""Told the bytes so far and in all (None if the server does not say)."""


def fetch(
    url: str, path: Path, most: int, sha256: str | None = None, report: Report = lambda done, total: None
) -> Path:
    # what came before an interruption is kept beside the file and continued; `most` bytes are allowed; sha256
    # None: no check sum is known
    if path.is_file():
        _check(path, url, sha256)
        return path
    part = path.with_name(f"{path.name}.part")
    try:
        total = _append(url, part, most, report)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # what is there is no beginning of the file
            part.unlink(missing_ok=True)
        raise _failed(url, part, f"the server says {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise _failed(url, part, str(error.reason)) from None
    except (OSError, HTTPException, ValueError) as error:
        raise _failed(url, part, getattr(error, "strerror", None) or str(error) or "no answer") from None
    size = part.stat().st_size
    if total is not None and size < total:
        raise _failed(url, part, f"it ended after {size} of {total} bytes")
    try:
        _check(part, url, sha256)
    except InvalidInput:
        part.unlink()
        raise
    os.replace(part, path)
    return path


def _append(url: str, part: Path, most: int, report: Report) -> int | None:
    # returns the whole size, if the server says
    have = part.stat().st_size if part.is_file() and url.startswith("http") else 0
    headers = {"User-Agent": "fedsolve"} | ({"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=SECONDS) as answer:
        if have and answer.status != 206:  # a server that always sends the whole file
            have = 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else have + int(length)
        part.parent.mkdir(parents=True, exist_ok=True)  # once there is something to put there
        with open(part, "ab" if have else "wb") as file:
            done = have
            while block := answer.read(_BLOCK):
                done += len(block)
                if done > most:
                    file.close()
                    part.unlink()
                    raise InvalidInput(
                        f"{url} is larger than the {most} bytes it may have: it is not the file"
                    )
                file.write(block)
                report(done, total)
            file.flush()
            os.fsync(file.fileno())
    return total


def _check(path: Path, url: str, sha256: str | None) -> None:
    if sha256 is None:
        return
    with open(path, "rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != sha256:
        raise InvalidInput(
            f"{path} from {url} has SHA-256 {actual[:12]}, expected {sha256[:12]}: another version or damaged; "
            "remove it and fetch it again, or give the original files with --from"
        )


def _failed(url: str, part: Path, reason: str) -> InvalidInput:
    size = part.stat().st_size if part.is_file() else 0
    again = f"the {size} bytes so far are kept, the same command goes on" if size else "try again"
    return InvalidInput(
        f"cannot fetch {url}: {reason}; {again}, or fetch it elsewhere and give its folder with --from"
    )


# MNIST, Fashion-MNIST and LIBSVM's sets: their files are checked, and zipped as tasks read them.

IDX_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""SHA-256 of MNIST's idx files, unzipped."""
COUNTS = {"train": 60_000, "test": 10_000}
"""Digits of each split; QMNIST has 60,000 test digits, whose first 10,000 are MNIST's."""
_MOST = 60_000_000


def mnist(folder: Path, to: Path) -> list[Path]:
    # the idx files into `mnist/`, and `mnist_writers.npz` from QMNIST's label files
    written = []
    for name, sha256 in IDX_SHA256.items():
        path = find(folder, [f"{name}.gz", name, name.replace("-idx", ".idx")])
        content = unzipped(path, _MOST)
        refuse(_sum(content) != sha256, path, "its content has another check sum")
        raw = read_bytes(path)
        zipped = raw if raw[:2] == b"\x1f\x8b" else gzip.compress(content, mtime=0)
        written.append(write_noted(to / "mnist" / f"{name}.gz", zipped, SHA256[f"{name}.gz"]))
    arrays = {}
    for split, count in COUNTS.items():
        path = find(folder, [f"qmnist-{split}-labels-idx2-int.gz", f"qmnist-{split}-labels-idx2-int"])
        unzipped(path, _MOST)
        table = read_idx(path)
        refuse(
            table.ndim != 2 or table.shape[1] != 8 or len(table) < count, path, f"its shape is {table.shape}"
        )
        labels = read_idx(to / "mnist" / f"{split.replace('test', 't10k')}-labels-idx1-ubyte.gz")
        table = table[:count]
        refuse(bool((table[:, 0] != labels).any()), path, "its digits are not MNIST's")
        arrays[f"{split}_writer"] = table[:, 2].astype("<i2")
        arrays[f"{split}_hsf"] = table[:, 1].astype(np.uint8)
    order = ("train_writer", "test_writer", "train_hsf", "test_hsf")
    file = to / "mnist" / "mnist_writers.npz"
    return [*written, write_npz(file, {name: arrays[name] for name in order}, SHA256[file.name])]


def fashion_mnist(folder: Path, to: Path) -> list[Path]:
    contents = {}
    for name, sha256 in FASHION.items():
        path = find(folder, [name, name.removesuffix(".gz")])
        contents[name] = unzipped(path, _MOST)
        refuse(_sum(read_idx(path).tobytes()) != sha256, path, "its content has another check sum")
    return [
        write_atomically(to / FOLDER / name, gzip.compress(content, mtime=0))
        for name, content in contents.items()
    ]


def libsvm(folder: Path, to: Path) -> list[Path]:
    texts = {}
    for name, sha256 in LIBSVM.items():
        path = find(folder, [name, f"{name}.gz"])
        texts[name] = unzipped(path, 20_000_000)
        refuse(_sum(texts[name]) != sha256, path, "its text has another check sum")
    return [write_atomically(to / "libsvm" / name, text) for name, text in texts.items()]


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# Every public data set that a task reads: source, licence, size, and what makes its originals the task's files.


@dataclass(frozen=True)
class Original:
    """One file of a data set's authors."""

    url: str  # where it is published
    most: int  # bytes it may have at most; a limit, not its size
    # its check sum, None where none is known: the conversion then checks shapes and labels
    sha256: str | None = None

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set."""

    title: str  # what it is
    home: str  # the page of its authors
    licence: str  # as far as it is stated
    megabytes: float = 0  # about what is fetched
    run: str  # a command that uses it, without the data folder
    files: tuple[str, ...] = ()  # what the task reads, under the data folder; empty where a package brings it
    originals: tuple[Original, ...] = ()  # what is fetched; empty where it cannot be fetched as a file
    # (folder of the originals, data folder) -> files written; None where there is no way
    convert: Callable[[Path, Path], list[Path]] | None = None
    remark: str  # what one should know of the result

    @property
    def task(self) -> str:
        return self.run.split()[2]


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_QMNIST = "https://github.com/facebookresearch/qmnist/raw/94061367ec2e099ea18c553c75727ecf849ddb9b/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
_PYMVPA = "https://github.com/PyMVPA/PyMVPA/raw/20f0335f98bbb59a0e11bc0b7a469edf8681a9a1/mvpa2/data/"
_ANOTHER = "not the very file behind the results in experiments/, which no public copy holds"

_DATASETS = {
    "mnist": DataSet(
        title="MNIST, 70,000 handwritten digits, and the writer of each from QMNIST",
        home="http://yann.lecun.com/exdb/mnist/ and https://github.com/facebookresearch/qmnist",
        licence="MNIST: commonly given as CC BY-SA 3.0; QMNIST: BSD 3-clause",
        megabytes=12,
        run="fedsolve run mnist FedAvg",
        files=tuple(f"mnist/{name}" for name in MNIST),
        originals=(
            *(
                Original(_MNIST + name, 12_000_000, sum_)
                for name, sum_ in MNIST.items()
                if name.endswith(".gz")
            ),
            *(
                Original(f"{_QMNIST}qmnist-{split}-labels-idx2-int.gz", 4_000_000)
                for split in ("train", "test")
            ),
        ),
        convert=mnist,
        remark="the same bytes as those behind the results in experiments/",
    ),
    "libsvm": DataSet(
        title="a9a, w8a and mushrooms in LIBSVM's format",
        home=_LIBSVM[: -len("binary/")],
        licence="none stated there; a9a (Adult) and mushrooms are CC BY 4.0 at UCI",
        megabytes=8,
        run="fedsolve run libsvm FedAvg",
        files=tuple(f"libsvm/{name}" for name in LIBSVM),
        originals=tuple(Original(_LIBSVM + name, 20_000_000, sum_) for name, sum_ in LIBSVM.items()),
        convert=libsvm,
        remark="the same bytes as those behind the results in experiments/",
    ),
    "cifar10": DataSet(
        title="CIFAR-10, 60,000 small colour images; 20,000 and 4,000 of them are drawn",
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated (cite Krizhevsky 2009)",
        megabytes=170,
        run="fedsolve run cifar10 FedAvg",
        files=(cifar.FILE,),
        originals=(Original(f"https://www.cs.toronto.edu/~kriz/{cifar.ARCHIVE}", 200_000_000),),
        convert=cifar.convert,
        remark=f"another draw of as many images: {_ANOTHER}",
    ),
    "cifar100": DataSet(
        title="CIFAR-100, 60,000 small colour images; 20,000 and 4,000 of them are drawn",
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated (cite Krizhevsky 2009)",
        megabytes=169,
        run="fedsolve run cifar100 FedAvg",
        files=(cifar.FILE_100,),
        originals=(Original(f"https://www.cs.toronto.edu/~kriz/{cifar.ARCHIVE_100}", 200_000_000),),
        convert=cifar.convert_100,
        remark=f"another draw of as many images: {_ANOTHER}",
    ),
    "fashion-mnist": DataSet(
        title="Fashion-MNIST, 70,000 images of clothes; Debian has it as the package dataset-fashion-mnist",
        home="https://github.com/zalandoresearch/fashion-mnist",
        licence="MIT",
        megabytes=31,
        run="fedsolve run fashion-mnist FedAvg",
        files=tuple(f"{FOLDER}/{name}" for name in FASHION),
        originals=tuple(Original(_FASHION + name, 30_000_000) for name in FASHION),
        convert=fashion_mnist,
        remark="the same images as those behind Debian's package, zipped anew",
    ),
    "voxels": DataSet(
        title="fMRI of one subject who looked at images, 530 voxels of one slice",
        home="https://github.com/PyMVPA/PyMVPA",
        licence="CC BY-SA 3.0 (study), MIT (package)",
        megabytes=2,
        run="fedsolve run voxels FedAvg",
        files=(voxels.FILE,),
        originals=tuple(
            Original(_PYMVPA + name, 50_000_000)
            for name in ("bold.nii.gz", "mask.nii.gz", "attributes_literal.txt")
        ),
        convert=voxels.convert,
        remark="the same numbers as those behind the results in experiments/ if its check sum is the known one",
    ),
    "news": DataSet(
        title="20 Newsgroups by date, 18,846 posts with their authors",
        home="http://qwone.com/~jason/20Newsgroups/",
        licence="none stated (cite Lang 1995)",
        megabytes=14,
        run="fedsolve run news FedAdam",
        files=(newsgroups.FILE,),
        originals=(Original(f"http://qwone.com/~jason/20Newsgroups/{newsgroups.ARCHIVE}", 30_000_000),),
        convert=newsgroups.convert,
        remark=f"made by the same description, word by word it may differ: {_ANOTHER}",
    ),
    "femnist": DataSet(
        title="FEMNIST, 62 handwritten characters by writer, in LEAF's split",
        home="https://leaf.cmu.edu and https://github.com/TalwalkarLab/leaf",
        licence="the images are NIST Special Database 19",
        run="fedsolve run femnist FedAvg --task-set dataset=leaf",
        files=(leaf.FEMNIST,),
        convert=leaf.femnist,
        remark="LEAF's script data/femnist/preprocess.sh -s niid --sf 1.0 -k 0 -t sample makes the folder for --from",
    ),
    "femnist-sample": DataSet(
        title="FEMNIST sample, 300 + 240 writers, of LEAF's 3,550",
        home="https://leaf.cmu.edu and https://github.com/TalwalkarLab/leaf",
        licence="the images are NIST Special Database 19",
        run="fedsolve run femnist FedAvg",
        files=(FEMNIST_SAMPLE,),
        remark="it joins three public samples of LEAF and no converter is here: take femnist, with dataset=leaf",
    ),
    "shakespeare": DataSet(
        title="Shakespeare's plays by role, Moby's edition, 1,353 roles",
        home="https://github.com/okfn/shakespeare-material",
        licence="public domain",
        run="fedsolve run shakespeare FedAvg",
        files=(SHAKESPEARE,),
        remark="made from the XML files texts/moby/*_moby.xml there; no converter is here",
    ),
    "shakespeare-leaf": DataSet(
        title="Shakespeare's plays by role, LEAF's, 1,129 roles",
        home="https://leaf.cmu.edu and https://github.com/TalwalkarLab/leaf",
        licence="public domain (Project Gutenberg)",
        run="fedsolve run shakespeare FedAvg --task-set dataset=leaf",
        files=(SHAKESPEARE_LEAF,),
        convert=leaf.shakespeare,
        remark="LEAF's script data/shakespeare/preprocess.sh -s niid --sf 1.0 -k 0 makes the folder data for --from",
    ),
    "chitchat": DataSet(
        title="ChitChat, 258,145 messages of 1,315 senders, in the Python package chitchat-dataset",
        home="https://github.com/BYU-PCCL/chitchat-dataset",
        licence="MIT",
        megabytes=8,
        run="fedsolve run next-word FedAvg",
        remark="pip install chitchat-dataset: the task next-word finds it there",
    ),
    "handwriting": DataSet(
        title="UNIPEN, handwritten characters by writer, drawn from pen strokes",
        home="https://doi.org/10.5281/zenodo.1195803",
        licence="CC BY 4.0",
        run="fedsolve run handwriting FedAvg",
        files=("unipen62_by_writer.npz",),
        remark="the drawing cannot be repeated to the pixel and no converter is here: femnist is read instead",
    ),
}

DATASETS = Registry("data set", _DATASETS)
