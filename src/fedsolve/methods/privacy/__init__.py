"""Differential privacy around any method, and its accounting (`docs/privacy.md`).

z = fs.privacy.noise_multiplier_for(epsilon=8.0, rounds=200, population=1000, cohort=50, delta=1e-5)
fs.privacy.DifferentialPrivacy(fs.FedAvg(0.1, weighting="uniform"), z, 0.5, cohort=50, population=1000, delta=1e-5)
"""

from fedsolve.methods.privacy import accounting
from fedsolve.methods.privacy.accounting import epsilon, noise_multiplier_for
from fedsolve.methods.privacy.central import DifferentialPrivacy
from fedsolve.methods.privacy.local import LocalDifferentialPrivacy

__all__ = ["DifferentialPrivacy", "LocalDifferentialPrivacy", "accounting", "epsilon", "noise_multiplier_for"]
