"""Local solvers: the optimisers that clients run between two messages."""

from fedsolve.methods.client.armijo import Armijo
from fedsolve.methods.client.conjugate import ConjugateGradient
from fedsolve.methods.client.optax import Optax, OptaxSolver
from fedsolve.methods.client.sgd import SGD
from fedsolve.methods.client.solver import LocalSolver, Solution
from fedsolve.methods.muon.on_clients import Muon

__all__ = ["SGD", "Armijo", "ConjugateGradient", "LocalSolver", "Muon", "Optax", "OptaxSolver", "Solution"]
