"""Federated tasks: models, losses, metrics and the catalogue of ready problems.

A model is an object with two functions: `init(key)` makes its parameters, a pytree of arrays, from a random key,
and `model(params, x)` gives the outputs of n inputs, shape (n, ...). One that drops or changes inputs at random takes
`key=` too: a random key in training, None in evaluation.

Names are loaded when first used; for editors and type checkers `__init__.pyi` has them (`make generate` writes it).
"""

import importlib
from typing import Any

_NAMES = {
    "data.examples": "Examples",
    "tasks.catalogue": "TASKS TaskEntry build",
    "tasks.convex.libsvm": "libsvm",
    "tasks.convex.regression": "anisotropic_regression lasso lowrank",
    "tasks.convex.synthetic": "synthetic",
    "tasks.images.cifar": "cifar10 cifar100",
    "tasks.images.digits": "digits",
    "tasks.images.fashion": "fashion_mnist",
    "tasks.images.femnist": "femnist femnist_autoencoder",
    "tasks.images.handwriting": "handwriting",
    "tasks.images.mnist": "mnist_by_writer",
    "tasks.images.voxels": "voxels",
    "tasks.losses.accuracies": "Accuracy BinaryAccuracy LikeliestSet RecallAt TopK",
    "tasks.losses.losses": "BinaryCrossEntropy CrossEntropy Logistic Ridge SquaredError check_labels",
    "tasks.losses.reconstruction": "ReconstructionError",
    "tasks.losses.sequence_losses": "BitsPerToken NextToken NextTokenAccuracy",
    "tasks.losses.sums": "OfSums Whole",
    "tasks.models.models": "Affine CNN Linear MLP MatrixLinear Softmax SparseLinear",
    "tasks.models.pictures": "Augmented",
    "tasks.models.updates": "Factors Updated",
    "tasks.networks.autoencoder": "Autoencoder",
    "tasks.networks.encoder": "Encoder",
    "tasks.networks.recurrent": "GRU LSTM",
    "tasks.networks.resnet": "ResNet18",
    "tasks.networks.transformers": "CausalTransformer ViT",
    "tasks.task": "Task",
    "tasks.text.news": "news",
    "tasks.text.newsgroups_minilm": "newsgroups_minilm",
    "tasks.text.next_word": "WordAccuracy next_word",
    "tasks.shared": "check_sequences windows",
    "tasks.text.shakespeare": "shakespeare",
    "tasks.torch_modules.from_torch": "from_torch",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"fedsolve.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOMES)
