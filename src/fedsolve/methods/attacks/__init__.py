"""Clients that attack, for simulations: alone (`Attacked`), together (`Colluding`), or by the labels they train on."""

from fedsolve.methods.attacks.attacked import (
    Attack,
    Attacked,
    GaussianNoise,
    Scaled,
    SignFlip,
    choose_attackers,
    flip_labels,
)
from fedsolve.methods.attacks.colluding import (
    ALittleIsEnough,
    Colluding,
    Collusion,
    InnerProductManipulation,
    MinMax,
)

__all__ = [
    "ALittleIsEnough", "Attack", "Attacked", "Colluding", "Collusion", "GaussianNoise", "InnerProductManipulation",
    "MinMax", "Scaled", "SignFlip", "choose_attackers", "flip_labels",
]  # fmt: skip
