"""A compressor that claims to make no error: its decoded norms are then not divided by 1 + omega."""

from __future__ import annotations

from typing import Any, ClassVar

from jax import Array, ShapeDtypeStruct

import fedsolve as fs
from fedsolve.studies.public import module, static


@module
class Undivided(fs.compression.Compressor):
    """Another compressor, with an omega of 0 in place of its own.

    Attributes:
        inner: it.
    """

    is_unbiased: ClassVar[bool] = True

    inner: fs.compression.Compressor = static()

    def encode(self, x: Array, key: Any, common: Any) -> Any:
        """The code of the inner compressor."""
        return self.inner.encode(x, key, common)

    def decode(self, sent: Any, like: ShapeDtypeStruct, common: Any) -> Array:
        """The array that the inner compressor decodes."""
        return self.inner.decode(sent, like, common)

    def error(self, size: int) -> float:
        """0, which it is not."""
        return 0.0
