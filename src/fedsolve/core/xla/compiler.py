"""How the engine's two programs are compiled, and that a process has room for more of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any

import jax

_ALLOWED = Path("/proc/sys/vm/max_map_count")
_A_RUN = 500  # mappings, some times what a run or a sweep adds
_AHEAD = {"runs": 0}  # to be made ready before mappings are counted again


def compiler_options() -> dict[str, Any]:
    """Options of the default backend's compiler.

    On a CPU the first level of optimisation: measured (benchmarks/FINDINGS.md), the programs run as fast as at
    the default level and compile in four fifths of the time. A level given in XLA_FLAGS stands.
    """
    if "xla_backend_optimization_level" in os.environ.get("XLA_FLAGS", ""):
        return {}
    return {"xla_backend_optimization_level": 1} if jax.default_backend() == "cpu" else {}


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function, compiled when it is first called: `compiler_options` are those of the backend that is then known.

    Args:
        function: of arrays.
        options: of `jax.jit`, such as `static_argnums`.
    """
    program = cache(lambda: jax.jit(function, compiler_options=compiler_options(), **options))
    return wraps(function)(lambda *args: program()(*args))


def make_room() -> None:
    """Drop what the process has compiled once it holds half of the memory mappings that Linux allows it, 65,530.

    Beyond them the compiler aborts the process, as a long series of runs would, each of a shape of its own. What is
    needed again is compiled again. Counting takes 5 microseconds a mapping, so that an empty process is seldom asked.
    """
    _AHEAD["runs"] -= 1
    if _AHEAD["runs"] > 0 or not _ALLOWED.exists():
        return
    half, held = int(_ALLOWED.read_text()) // 2, Path("/proc/self/maps").read_bytes().count(b"\n")
    if held > half:
        jax.clear_caches()
        held = 0
    _AHEAD["runs"] = (half - held) // _A_RUN
