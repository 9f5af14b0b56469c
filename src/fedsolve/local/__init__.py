"""Local solvers: what a client does between two messages."""

from fedsolve.local.armijo import Armijo
from fedsolve.local.conjugate import ConjugateGradient
from fedsolve.local.optax import Optax, OptaxSolver
from fedsolve.local.sgd import SGD
from fedsolve.local.solver import LocalSolver, Solution

__all__ = ["SGD", "Armijo", "ConjugateGradient", "LocalSolver", "Optax", "OptaxSolver", "Solution"]
