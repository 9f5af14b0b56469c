"""Every public data set that a task reads: source, licence, size, and what makes its originals the task's files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedsolve.core.building import Registry
from fedsolve.tasks.convex.libsvm import SHA256 as LIBSVM
from fedsolve.tasks.datasets import checked_files, cifar, leaf, news, voxels
from fedsolve.tasks.images.fashion import CONTENT as FASHION
from fedsolve.tasks.images.fashion import FOLDER
from fedsolve.tasks.images.femnist import FILE as FEMNIST_SAMPLE
from fedsolve.tasks.images.mnist import SHA256 as MNIST
from fedsolve.tasks.text.shakespeare import FILE as SHAKESPEARE
from fedsolve.tasks.text.shakespeare import LEAF as SHAKESPEARE_LEAF


@dataclass(frozen=True)
class Original:
    """One file of a data set's authors.

    Attributes:
        url: where it is published.
        most: bytes it may have at most; a limit, not its size.
        sha256: its check sum, None where none is known: the conversion then checks shapes and labels.
    """

    url: str
    most: int
    sha256: str | None = None

    @property
    def name(self) -> str:
        """Its own name."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set.

    Attributes:
        title: what it is.
        home: the page of its authors.
        licence: as far as it is stated.
        megabytes: about what is fetched.
        run: a command that uses it, without the data folder.
        files: what the task reads, under the data folder; empty where a package brings it.
        originals: what is fetched; empty where it cannot be fetched as a file.
        convert: (folder of the originals, data folder) -> files written; None where there is no way.
        remark: what one should know of the result.
    """

    title: str
    home: str
    licence: str
    megabytes: float = 0
    run: str
    files: tuple[str, ...] = ()
    originals: tuple[Original, ...] = ()
    convert: Callable[[Path, Path], list[Path]] | None = None
    remark: str

    @property
    def task(self) -> str:
        """The task that reads it."""
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
        convert=checked_files.mnist,
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
        convert=checked_files.libsvm,
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
        convert=checked_files.fashion_mnist,
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
        files=(news.FILE,),
        originals=(Original(f"http://qwone.com/~jason/20Newsgroups/{news.ARCHIVE}", 30_000_000),),
        convert=news.convert,
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
"""Every data set by its name."""
