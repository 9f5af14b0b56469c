"""Simulated attacks by clients: independent (`Attacked`), colluding (`Colluding`), or by flipped labels."""

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
