"""Numbers in a server's main memory, and the threads of a machine with several nodes."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsolve.core.types import is_module, reports

Buffers = dict[str, np.ndarray]
"""Tensors that are averaged plainly beside the model, such as BatchNorm's running statistics, by name."""


def all_finite(tree: Any) -> bool:
    return all(np.isfinite(x).all() for x in jax.tree.leaves(tree))


def stays_finite(before: Any, after: Any) -> bool:
    """Whether everything that was finite in one server state is finite in the next."""
    # What is only reported may be infinite, as epsilon without noise is, but not NaN.
    pairs = zip(jax.tree.leaves(_unreported(before)), jax.tree.leaves(_unreported(after)), strict=True)
    return all((np.isfinite(new) | ~np.isfinite(old)).all() for old, new in pairs) and not any(
        np.isnan(value).any() for value, _ in reports(after).values()
    )


def _unreported(state: Any) -> Any:
    if isinstance(state, Mapping) or not is_module(state):
        return state
    fields = [f for f in dataclasses.fields(state) if not f.metadata.get("static")]
    return [() if f.metadata.get("report") else _unreported(getattr(state, f.name)) for f in fields]


def norm(tree: Any) -> float:
    return math.sqrt(sum(float(np.vdot(x, x)) for x in map(np.asarray, jax.tree.leaves(tree))))


def max_abs(tree: Any) -> float:
    return max(
        (float(np.abs(x).max()) for x in map(np.asarray, jax.tree.leaves(tree)) if x.size), default=0.0
    )


def mean_buffers(buffers: Sequence[Buffers]) -> Buffers:
    """The plain mean over clients of each buffer, in its own type; means of integers (counters) are rounded."""

    def mean(values: list[np.ndarray]) -> np.ndarray:
        exact = np.mean(np.stack(values).astype(np.float64), axis=0)
        is_integer = not np.issubdtype(values[0].dtype, np.floating)
        return np.asarray(np.round(exact) if is_integer else exact, values[0].dtype)

    return {name: mean([b[name] for b in buffers]) for name in buffers[0]}


def cap_weights(weights: Sequence[float], share: float | None) -> list[float]:
    """Weights of which none is more than a share of their sum: those above are cut to the largest that may stand.

    Where so few clients came that somebody must have more (fewer than 1/share), all count alike.

    >>> cap_weights([10.0, 20.0, 1000.0], 0.5)
    [10.0, 20.0, 30.0]
    >>> cap_weights([10.0, 20.0, 1000.0], 0.2)
    [10.0, 10.0, 10.0]
    """
    if share is None or not weights:
        return list(weights)
    down = sorted(weights, reverse=True)
    if len(down) * share <= 1:
        return [down[-1]] * len(down)
    rest, cut = sum(down), 0
    # with the `cut` largest at c and the others at their own:  c = share (rest + cut c)
    while down[cut] > (limit := share * rest / (1 - cut * share)):
        rest -= down[cut]
        cut += 1
    return [min(w, limit) for w in weights]


_M_MMAP_THRESHOLD = -3  # glibc's number of the option


@functools.cache
def return_freed_memory() -> None:
    """Give arrays of a megabyte and more back to the system when they are freed; once a process.

    By itself glibc keeps what is smaller than the largest array that was freed so far, and a server of large models had
    two thirds of its memory from arrays that were gone.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library, another system
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 2**20)


# PyTorch's threads on a machine with several nodes: each takes its share of the cores.
#
# PyTorch takes all cores, and threads that wait for one another spin: on cores that are shared, small steps then take
# tens of times as long.


VARIABLE = "OMP_NUM_THREADS"
"""Where an environment says how many threads PyTorch may take."""


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
    # Whether a process is a SuperNode: the program itself, or the script that an interpreter runs.
    try:
        words = file.read_bytes().split(b"\0")[:2]
    except OSError:  # ended meanwhile, or another user's
        return False
    return any(word.rpartition(b"/")[2] == b"flower-supernode" for word in words)


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
