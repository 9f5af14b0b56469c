"""What a run needs at least of memory and of disk, compared with what there is before anything is compiled.

Lower bounds from shapes: a run is refused where it cannot fit, with what makes it smaller, in place of being killed.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedsolve.core.errors import InvalidInput
from fedsolve.engine.compute.layout import free_bytes, total_bytes

_LITTLE = 20  # a run that needs less than so small a part of the memory says nothing of it


class Need(NamedTuple):
    """A part of what a run needs.

    Attributes:
        what: in words.
        bytes: at least.
        remedy: what makes it smaller.
    """

    what: str
    bytes: int
    remedy: str


def check_memory(needs: Sequence[Need], there: int) -> str:
    """What is to be said of a run's memory, '' if it needs little.

    Args:
        needs: what is not in memory yet.
        there: bytes of the examples that are.

    Raises:
        InvalidInput: less is free; the largest part is named with its remedy.
    """
    needed, free = sum(need.bytes for need in needs), free_bytes()
    if needed > free:
        largest = max(needs, key=lambda need: need.bytes)
        raise InvalidInput(
            f"the run needs {size(needed)} of memory at least ({size(largest.bytes)} for {largest.what}), and "
            f"{size(free)} are free: take {largest.remedy}"
        )
    if there + needed < total_bytes() // _LITTLE:
        return ""
    parts = [("examples", there), *((need.what, need.bytes) for need in needs)]
    words = ", ".join(f"{size(bytes)} for {what}" for what, bytes in parts if bytes)
    return f"it needs {size(there + needed)} of {size(total_bytes())} of memory at least: {words}"


def check_disk(folder: Path, needs: Sequence[Need]) -> None:
    """Raise `InvalidInput` if a folder's disk has no room for what a run will surely write there."""
    needed, free = sum(need.bytes for need in needs), shutil.disk_usage(folder).free
    if needed > free:
        largest = max(needs, key=lambda need: need.bytes)
        raise InvalidInput(
            f"the run needs {size(needed)} of disk at least ({size(largest.bytes)} for {largest.what}), and the disk "
            f"of {folder} has {size(free)} free: free space, choose another folder, or take {largest.remedy}"
        )


def size(bytes: int) -> str:
    """Bytes as people read them."""
    return f"{bytes / 1e9:.1f} GB" if bytes >= 1e9 else f"{bytes / 1e6:.1f} MB"
