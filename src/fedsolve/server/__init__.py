"""Server optimisers: how the server turns the cohort's mean displacement into a step."""

from fedsolve.server.adaptive import Adaptive
from fedsolve.server.base import ServerOptimizer
from fedsolve.server.dfw import DeepFrankWolfe
from fedsolve.server.dua import DoublyAdaptive
from fedsolve.server.fednova import NormalizedAveraging
from fedsolve.server.lengths import GradientDiversity, LargestStep
from fedsolve.server.mirror import MirrorDescent
from fedsolve.server.optax import Optax, OptaxRule
from fedsolve.server.polyak import EnvelopePolyak, Polyak
from fedsolve.server.sgd import ServerSGD

__all__ = [
    "Adaptive",
    "DeepFrankWolfe",
    "DoublyAdaptive",
    "EnvelopePolyak",
    "GradientDiversity",
    "LargestStep",
    "MirrorDescent",
    "NormalizedAveraging",
    "Optax",
    "OptaxRule",
    "Polyak",
    "ServerOptimizer",
    "ServerSGD",
]


def __dir__() -> list[str]:
    return sorted(__all__)
