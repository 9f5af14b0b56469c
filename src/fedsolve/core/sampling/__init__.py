"""Who takes part in a round. A sampling is pluggable: `draw` returns padded client ids and who is present."""

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
