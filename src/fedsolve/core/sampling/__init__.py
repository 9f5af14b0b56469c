"""Client sampling: how the cohort of each round is drawn."""

from fedsolve.core.sampling.availability import Trace
from fedsolve.core.sampling.equal_chances import Bernoulli, Uniform
from fedsolve.core.sampling.sampling import Sampling, Scheme
from fedsolve.core.sampling.weighted import Weighted

__all__ = [
    "Bernoulli",
    "Sampling",
    "Scheme",
    "Trace",
    "Uniform",
    "Weighted",
]
