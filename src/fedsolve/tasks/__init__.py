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
    "tasks.catalogue": "build TaskEntry TASKS",
    "tasks.losses.losses": "BinaryCrossEntropy check_labels CrossEntropy Logistic Ridge SquaredError",
    "tasks.losses.sequences": "Accuracy BinaryAccuracy BitsPerToken LikeliestSet NextToken NextTokenAccuracy RecallAt "
    "ReconstructionError TopK",
    "tasks.losses.weights": "OfSums Whole",
    "tasks.models.models": "Affine CNN Linear MatrixLinear MLP Softmax SparseLinear",
    "tasks.models.pictures": "Augmented Factors ResNet18 Updated",
    "tasks.models.recurrent": "Autoencoder GRU LSTM",
    "tasks.models.transformers": "CausalTransformer Encoder ViT",
    "tasks.ready.characters": "femnist femnist_autoencoder handwriting",
    "tasks.ready.cifar": "cifar10 cifar100",
    "tasks.ready.digits": "digits",
    "tasks.ready.idx_images": "fashion_mnist mnist_by_writer",
    "tasks.ready.libsvm": "libsvm",
    "tasks.ready.newsgroups": "news newsgroups_minilm",
    "tasks.ready.simulated": "anisotropic_regression lasso lowrank synthetic",
    "tasks.ready.texts": "next_word shakespeare WordAccuracy",
    "tasks.ready.voxels": "voxels",
    "tasks.trained_task": "from_training",
    "tasks.shared": "check_sequences windows",
    "tasks.task": "Task",
    "tasks.torch_modules.from_torch": "from_torch",
    "tasks.torch_modules.hugging_face": "from_hugging_face",
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
