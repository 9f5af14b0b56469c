"""PyTorch's threads on a machine with several nodes: each takes its share of the cores.

PyTorch takes all cores, and threads that wait for one another spin: on cores that are shared, small steps then take
tens of times as long.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

VARIABLE = "OMP_NUM_THREADS"
"""Where an environment says how many threads PyTorch may take."""

_NODE = b"flower-supernode"


def share_of_cores(nodes: int) -> int:
    """Threads of each of so many nodes of this machine, at least one.

    >>> share_of_cores(10**6)
    1
    """
    available = getattr(os, "sched_getaffinity", None)
    cores = len(available(0)) if available else os.cpu_count() or 1
    return max(cores // max(nodes, 1), 1)


def nodes_here(processes: Path = Path("/proc")) -> int:
    """SuperNodes that run on this machine, as far as its table of processes tells; 0 where it tells nothing."""
    return sum(_is_node(file) for file in processes.glob("[0-9]*/cmdline"))


def _is_node(file: Path) -> bool:
    """Whether a process is a SuperNode: the program itself, or the script that an interpreter runs."""
    try:
        words = file.read_bytes().split(b"\0")[:2]
    except OSError:  # ended meanwhile, or another user's
        return False
    return any(word.rpartition(b"/")[2] == _NODE for word in words)


@functools.cache
def share_threads() -> None:
    """Let PyTorch, where a client has imported it, take no more than this node's share; once a process.

    A number in the environment stands, and so does a smaller one that the client's owner set.
    """
    torch = sys.modules.get("torch")
    if torch is None or VARIABLE in os.environ:
        return
    share = share_of_cores(nodes_here())
    if share < torch.get_num_threads():
        torch.set_num_threads(share)
