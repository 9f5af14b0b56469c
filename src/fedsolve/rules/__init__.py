"""Server rules: how the server turns the cohort's mean displacement into a step."""

from fedsolve.rules.adaptive import Adaptive
from fedsolve.rules.dfw import DeepFrankWolfe
from fedsolve.rules.dua import DoublyAdaptive
from fedsolve.rules.lengths import GradientDiversity, LargestStep
from fedsolve.rules.mirror import MirrorDescent
from fedsolve.rules.optax import Optax, OptaxRule
from fedsolve.rules.polyak import EnvelopePolyak, Polyak
from fedsolve.rules.rule import Rule
from fedsolve.rules.sgd import ServerSGD

__all__ = [
    "Adaptive",
    "DeepFrankWolfe",
    "DoublyAdaptive",
    "EnvelopePolyak",
    "GradientDiversity",
    "LargestStep",
    "MirrorDescent",
    "Optax",
    "OptaxRule",
    "Polyak",
    "Rule",
    "ServerSGD",
]
