"""The operations that have an equivalent in JAX, one file per family; importing this registers them all."""

from fedsolve.pytorch.operations import (  # noqa: F401
    activations,
    creation,
    images,
    indexing,
    linear,
    normalisation,
    pointwise,
    pooling,
    recurrent,
    reductions,
    shapes,
)
from fedsolve.pytorch.translation.registry import OPERATIONS as OPERATIONS
