"""The operations that have an equivalent in JAX, one file per family; importing this registers them all."""

from fedsolve.pytorch.operations import images, pointwise, shapes
from fedsolve.pytorch.operations import images as pooling
from fedsolve.pytorch.operations import layers as linear
from fedsolve.pytorch.operations import layers as normalisation
from fedsolve.pytorch.operations import layers as recurrent
from fedsolve.pytorch.operations import pointwise as activations
from fedsolve.pytorch.operations import pointwise as reductions
from fedsolve.pytorch.operations import shapes as creation
from fedsolve.pytorch.operations import shapes as indexing
from fedsolve.pytorch.translation.registry import OPERATIONS as OPERATIONS
