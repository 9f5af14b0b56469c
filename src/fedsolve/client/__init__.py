"""Local solvers: what a client does between two messages."""

from fedsolve.client.armijo import Armijo
from fedsolve.client.base import LocalSolver, Solution
from fedsolve.client.conjugate import ConjugateGradient
from fedsolve.client.optax import Optax, OptaxSolver
from fedsolve.client.sgd import SGD

__all__ = ["SGD", "Armijo", "ConjugateGradient", "LocalSolver", "Optax", "OptaxSolver", "Solution"]


def __dir__() -> list[str]:
    return sorted(__all__)
