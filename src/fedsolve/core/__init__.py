"""What everything else is written in: the interface of methods, pytrees, checks, errors, messages as bytes."""

import contextlib
import gc
from collections.abc import Iterator
from threading import Lock

__version__ = "0.2.0"

_LOCK = Lock()
_PAUSED = {"by": 0, "enabled": True}  # how many pauses are under way, and whether it was on before the first


# Importing JAX and tracing a network make about a million objects that live on. The collector looks through all
# objects whenever their number has grown by a quarter: a tenth of the start of a network (benchmarks/FINDINGS.md).
@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Pause Python's cyclic garbage collector, in all threads, until the last of several such blocks ends."""
    # one that is off stays off
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
