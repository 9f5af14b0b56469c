"""Python's cyclic garbage collector, paused where many objects are made that live on.

Importing JAX and tracing a network make about a million of them. The collector looks through all objects whenever
their number has grown by a quarter: a tenth of the start of a network (benchmarks/FINDINGS.md).
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from threading import Lock

_LOCK = Lock()
_PAUSED = {"by": 0, "enabled": True}  # how many pauses are under way, and whether it was on before the first


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the collector, in all threads, until the last of several such blocks ends; one that is off stays off."""
    with _LOCK:
        if not _PAUSED["by"]:
            _PAUSED["enabled"] = gc.isenabled()
            gc.disable()
        _PAUSED["by"] += 1
    try:
        yield
    finally:
        with _LOCK:
            _PAUSED["by"] -= 1
            if not _PAUSED["by"] and _PAUSED["enabled"]:
                gc.enable()
