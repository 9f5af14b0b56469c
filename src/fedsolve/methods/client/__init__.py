"""Local solvers: the optimisers that clients run between two messages."""

from fedsolve.methods.client.adaptive_sgd import AdaptiveSGD
from fedsolve.methods.client.line_search import Armijo, ConjugateGradient
from fedsolve.methods.client.muon import Muon
from fedsolve.methods.client.optax import Optax, OptaxSolver
from fedsolve.methods.client.sgd import SGD, DeltaSGD, Gradient
from fedsolve.methods.client.solver import LocalSolver, Solution

__all__ = [
    "SGD",
    "AdaptiveSGD",
    "Armijo",
    "ConjugateGradient",
    "DeltaSGD",
    "Gradient",
    "LocalSolver",
    "Muon",
    "Optax",
    "OptaxSolver",
    "Solution",
]
