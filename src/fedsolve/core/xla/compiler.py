"""How the engine's two programs are compiled, and that a process has room for more of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import jax

T = TypeVar("T")
_ALLOWED = Path("/proc/sys/vm/max_map_count")
_A_RUN = 500  # mappings, some times what a run or a sweep adds
_AHEAD = {"runs": 0}  # to be made ready before mappings are counted again
_ON_CPU = {
    "xla_backend_optimization_level": 1,
    "xla_cpu_copy_insertion_use_region_analysis": True,
    "xla_cpu_prefer_vector_width": 512,
}
_ON_GPU = {"xla_gpu_deterministic_ops": True}
_ON_ONE_CORE = {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}


def compiler_options(on_one_core: bool = False) -> dict[str, Any]:
    """Options of the default backend's compiler, but for those that XLA_FLAGS gives.

    Measured on a CPU (benchmarks/FINDINGS.md): at the first level of optimisation programs run as fast as at the
    default level and compile in four fifths of the time; copies that an analysis of loops shows to be needless are left
    out; vectors are as wide as the processor has them, up to 512 bits. They are part of a program, as the processor's
    type is: sums in wider vectors round otherwise. On a GPU no operation adds in an order that depends on time, and
    none is chosen by timing candidates: the same seed gives the same bits in every process.

    Args:
        on_one_core: whether a CPU's loops are each computed by one core. The bits are the same.
    """
    on_cpu = _ON_CPU | _ON_ONE_CORE if on_one_core else _ON_CPU
    usual = {"cpu": on_cpu, "gpu": _ON_GPU}.get(jax.default_backend(), {})
    given = os.environ.get("XLA_FLAGS", "")
    return dict(_known(tuple((name, value) for name, value in usual.items() if name not in given)))


@cache
def _known(options: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
    """The options that XLA as it is installed has: with another it refuses to compile. Takes 10 milliseconds once."""
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=dict(options))
    except RuntimeError:
        return tuple(option for option in options if len(options) > 1 and _known((option,)))
    return options


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function, compiled when it is first called: `compiler_options` are those of the backend that is then known.

    Args:
        function: of arrays.
        options: of `jax.jit`, such as `static_argnums`.
    """
    program = made_once(lambda: jax.jit(function, compiler_options=compiler_options(), **options))
    return wraps(function)(lambda *args: program()(*args))


def made_once(make: Callable[[], T]) -> Callable[[], T]:
    """What a function makes when it is first called, for all threads: each of two would compile what it made."""
    made: list[T] = []
    lock = Lock()

    @wraps(make)
    def get() -> T:
        if not made:
            with lock:
                if not made:
                    made.append(make())
        return made[0]

    return get


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
