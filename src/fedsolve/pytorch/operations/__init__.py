"""The operations that have an equivalent in JAX, one file per family; importing this registers them all."""

from fedsolve.pytorch.operations import images, layers, pointwise, shapes  # noqa: F401
from fedsolve.pytorch.translation.registry import OPERATIONS as OPERATIONS
