"""Compressed client updates: a wrapper around any method, and compressors of one array.

fs.Compressed(fs.FedAvg(0.1), fs.compression.TopK(0.01), memory="feedback")
"""

from fedsolve.core.building import Registry
from fedsolve.methods.compression.compressors import (
    EDEN,
    QSGD,
    Cast,
    Chain,
    Compressor,
    PowerSGD,
    RandomK,
    Sign,
    TopK,
)

__all__ = ["EDEN", "QSGD", "Cast", "Chain", "Compressor", "PowerSGD", "RandomK", "Sign", "TopK"]

_CLASSES: tuple[type[Compressor], ...] = (Cast, QSGD, EDEN, TopK, RandomK, PowerSGD, Sign, Chain)

COMPRESSORS = Registry("compressor", {cls.__name__: cls for cls in _CLASSES}, any_spelling=True)
"""Every compressor by its name, which a configuration may write in any case.

>>> COMPRESSORS.build("compressor", {"name": "TopK", "share": 0.01})
TopK(share=0.01)
"""
