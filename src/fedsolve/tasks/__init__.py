"""Federated tasks: models, losses, metrics and the catalogue of ready problems."""

from fedsolve.tasks.catalogue import TASKS, TaskEntry, build
from fedsolve.tasks.digits import digits
from fedsolve.tasks.losses import Accuracy, CrossEntropy, SquaredError, TopK, check_labels
from fedsolve.tasks.mnist import mnist_by_writer
from fedsolve.tasks.models import CNN, MLP, Affine, Linear, Softmax
from fedsolve.tasks.regression import anisotropic_regression
from fedsolve.tasks.synthetic import synthetic
from fedsolve.tasks.task import Examples, Task

__all__ = [
    "CNN",
    "MLP",
    "TASKS",
    "Accuracy",
    "Affine",
    "CrossEntropy",
    "Examples",
    "Linear",
    "Softmax",
    "SquaredError",
    "Task",
    "TaskEntry",
    "TopK",
    "anisotropic_regression",
    "build",
    "check_labels",
    "digits",
    "mnist_by_writer",
    "synthetic",
]
