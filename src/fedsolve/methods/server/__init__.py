"""Server optimisers: the server's step, computed from the cohort's mean client update."""

from fedsolve.methods.server.adaptive import Adaptive
from fedsolve.methods.server.dfw import DeepFrankWolfe
from fedsolve.methods.server.diloco import PrimalAveraging
from fedsolve.methods.server.distance import DAdaptation, DoG, Prodigy
from fedsolve.methods.server.dua import DoublyAdaptive, Extrapolated, GradientDiversity, LargestStep
from fedsolve.methods.server.fednova import NormalizedAveraging
from fedsolve.methods.server.mirror import MirrorDescent
from fedsolve.methods.server.muon import ServerLMO as LMO
from fedsolve.methods.server.muon import ServerMuon as Muon
from fedsolve.methods.server.optax import Optax, OptaxRule
from fedsolve.methods.server.polyak import EnvelopePolyak, Polyak
from fedsolve.methods.server.server_optimizer import ServerOptimizer
from fedsolve.methods.server.sgd import ServerSGD

__all__ = [
    "LMO",
    "Adaptive",
    "DAdaptation",
    "DeepFrankWolfe",
    "DoG",
    "DoublyAdaptive",
    "EnvelopePolyak",
    "Extrapolated",
    "GradientDiversity",
    "LargestStep",
    "MirrorDescent",
    "Muon",
    "NormalizedAveraging",
    "Optax",
    "OptaxRule",
    "Polyak",
    "PrimalAveraging",
    "Prodigy",
    "ServerOptimizer",
    "ServerSGD",
]
