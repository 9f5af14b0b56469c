"""Federated tasks: models, losses, metrics and the catalogue of ready problems.

A model is an object with two functions: `init(key)` makes its parameters, a pytree of arrays, from a random key,
and `model(params, x)` gives the outputs of n inputs, shape (n, ...). One that drops or changes inputs at random takes
`key=` too: a random key in training, None in evaluation.
"""

from fedsolve.data.examples import Examples
from fedsolve.tasks.catalogue import TASKS, TaskEntry, build
from fedsolve.tasks.convex.composite import lasso, lowrank
from fedsolve.tasks.convex.libsvm import libsvm
from fedsolve.tasks.convex.regression import anisotropic_regression
from fedsolve.tasks.convex.synthetic import synthetic
from fedsolve.tasks.images.cifar import cifar10, cifar100
from fedsolve.tasks.images.digits import digits
from fedsolve.tasks.images.fashion import fashion_mnist
from fedsolve.tasks.images.femnist import femnist
from fedsolve.tasks.images.femnist_autoencoder import femnist_autoencoder
from fedsolve.tasks.images.handwriting import handwriting
from fedsolve.tasks.images.mnist import mnist_by_writer
from fedsolve.tasks.images.voxels import voxels
from fedsolve.tasks.losses.accuracies import Accuracy, BinaryAccuracy, LikeliestSet, RecallAt, TopK
from fedsolve.tasks.losses.dataset_metrics import Whole
from fedsolve.tasks.losses.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    Logistic,
    Ridge,
    SquaredError,
    check_labels,
)
from fedsolve.tasks.losses.reconstruction import ReconstructionError
from fedsolve.tasks.losses.sequence_losses import BitsPerToken, NextToken, NextTokenAccuracy
from fedsolve.tasks.losses.sums import OfSums
from fedsolve.tasks.models.models import CNN, MLP, Affine, Linear, MatrixLinear, Softmax
from fedsolve.tasks.models.pictures import Augmented
from fedsolve.tasks.models.sparse import SparseLinear
from fedsolve.tasks.models.updates import Factors, Updated
from fedsolve.tasks.networks.autoencoder import Autoencoder
from fedsolve.tasks.networks.causal import CausalTransformer
from fedsolve.tasks.networks.encoder import Encoder
from fedsolve.tasks.networks.recurrent import GRU, LSTM
from fedsolve.tasks.networks.resnet import ResNet18
from fedsolve.tasks.networks.vit import ViT
from fedsolve.tasks.task import Task
from fedsolve.tasks.text.news import news
from fedsolve.tasks.text.newsgroups_minilm import newsgroups_minilm
from fedsolve.tasks.text.next_word import WordAccuracy, next_word
from fedsolve.tasks.text.sequences import check_sequences, windows
from fedsolve.tasks.text.shakespeare import shakespeare
from fedsolve.tasks.torch_modules.from_torch import from_torch

__all__ = [
    "CNN",
    "GRU",
    "LSTM",
    "MLP",
    "TASKS",
    "Accuracy",
    "Affine",
    "Augmented",
    "Autoencoder",
    "BinaryAccuracy",
    "BinaryCrossEntropy",
    "BitsPerToken",
    "CausalTransformer",
    "CrossEntropy",
    "Encoder",
    "Examples",
    "Factors",
    "LikeliestSet",
    "Linear",
    "Logistic",
    "MatrixLinear",
    "NextToken",
    "NextTokenAccuracy",
    "OfSums",
    "RecallAt",
    "ReconstructionError",
    "ResNet18",
    "Ridge",
    "Softmax",
    "SparseLinear",
    "SquaredError",
    "Task",
    "TaskEntry",
    "TopK",
    "Updated",
    "ViT",
    "Whole",
    "WordAccuracy",
    "anisotropic_regression",
    "build",
    "check_labels",
    "check_sequences",
    "cifar10",
    "cifar100",
    "digits",
    "fashion_mnist",
    "femnist",
    "femnist_autoencoder",
    "from_torch",
    "handwriting",
    "lasso",
    "libsvm",
    "lowrank",
    "mnist_by_writer",
    "news",
    "newsgroups_minilm",
    "next_word",
    "shakespeare",
    "synthetic",
    "voxels",
    "windows",
]


def __dir__() -> list[str]:
    return sorted(__all__)
