"""The operations that have an equivalent in JAX, one file per family; importing this registers them all."""

from fedsolve.pytorch.operations import basic, batch_norm
from fedsolve.pytorch.registry import OPERATIONS

__all__ = ["OPERATIONS", "basic", "batch_norm"]
