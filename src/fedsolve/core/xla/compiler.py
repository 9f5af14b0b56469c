"""How programs are compiled and kept: options, the cache on disk, cores of a CPU as devices, room for more."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache, wraps
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import jax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

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
    """Options of the default backend's compiler, but for those that XLA_FLAGS gives."""
    # measured on a CPU (benchmarks/FINDINGS.md): at the first level of optimisation programs run as fast as at
    # the default level and compile in four fifths of the time; copies that an analysis of loops shows to be
    # needless are left out; vectors are as wide as the processor has them, up to 512 bits. They are part of a
    # program, as the processor's type is: sums in wider vectors round otherwise. On a GPU no operation adds in
    # an order that depends on time, and none is chosen by timing candidates: the same seed gives the same bits
    # in every process.
    on_cpu = _ON_CPU | _ON_ONE_CORE if on_one_core else _ON_CPU
    usual = {"cpu": on_cpu, "gpu": _ON_GPU}.get(jax.default_backend(), {})
    given = os.environ.get("XLA_FLAGS", "")
    return dict(_known(tuple((name, value) for name, value in usual.items() if name not in given)))


def quickest(is_long: bool = False) -> dict[str, Any]:
    """Options for a program that runs once or twice. At level 0 it does not show what the compiler changes."""
    once = {"xla_backend_optimization_level": 1, "xla_llvm_disable_expensive_passes": True}
    # XLA's emitters of fusions halve the time to compile a long program, and lengthen that of a short one
    if jax.default_backend() == "cpu" and not is_long:
        once |= {"xla_cpu_use_fusion_emitters": False}
    return dict(_known(tuple(once.items())))


@cache
def _known(options: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
    # the options that XLA as it is installed has: with another it refuses to compile. Takes 10 milliseconds
    # once.
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=dict(options))
    except RuntimeError:
        return tuple(option for option in options if len(options) > 1 and _known((option,)))
    return options


def not_inlined(function: Callable[..., Any], **static: Any) -> Callable[..., Any]:
    """The function, compiled as one of its own; `static` as `jax.jit` has them."""
    # Else XLA works its arguments out again for each of its results, in the order of their transposes, and its
    # results for each place where they are read.
    own = jax.jit(function, inline=False, **static)

    @wraps(function)
    def call(*values: Any, **given: Any) -> Any:
        with set_xla_metadata(inlineable="false"):
            return own(*values, **given)

    return call


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function, compiled when it is first called, with `compiler_options` of the backend that is then known."""
    program = lazy(lambda: jax.jit(function, compiler_options=compiler_options(), **options))
    return wraps(function)(lambda *args: program()(*args))


def lazy(make: Callable[[], T]) -> Callable[[], T]:
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


def clear_caches_near_mapping_limit() -> None:
    """Drop what the process has compiled once it holds half of the memory mappings that Linux allows it, 65,530."""
    # beyond them the compiler aborts the process, as a long series of runs would, each of a shape of its own.
    # What is needed again is compiled again. Counting takes 5 microseconds a mapping, so that an empty process
    # is seldom asked.
    _AHEAD["runs"] -= 1
    if _AHEAD["runs"] > 0 or not _ALLOWED.exists():
        return
    half, held = int(_ALLOWED.read_text()) // 2, Path("/proc/self/maps").read_bytes().count(b"\n")
    if held > half:
        jax.clear_caches()
        held = 0
    _AHEAD["runs"] = (half - held) // _A_RUN


def return_memory() -> None:
    """Give the system what the C library keeps for later: of compiling and of arrays of up to 32 MB."""
    # with a network of 27 million parameters 1.1 GB. It takes milliseconds
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


# Compiled programs in the user's cache folder: what one process compiled, the next one loads.

CACHE_VARIABLE = "FEDSOLVE_CACHE"
"""`off` keeps no compiled programs; a folder keeps them there."""
_SECONDS_OF_JAX = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
_MOST_BYTES = 2**30
_SHORTEST = 0.0  # seconds: a start has dozens of single operations, each loaded faster than it is compiled
_CHECKED = ".checked"  # its time: entries that are not newer have been read
_ZLIB = b"\x78"


@functools.cache
def use_compile_cache() -> Path | None:
    """Let JAX keep the programs that it compiles from here on; once a process."""
    # the folder is `~/.cache/fedsolve/jax`, or what `FEDSOLVE_CACHE` names. JAX's own settings stand: a folder
    # that it has been given already, or `jax_enable_compilation_cache`.
    # returns the folder that JAX uses, None where nothing is kept
    if not jax.config.jax_enable_compilation_cache:  # pyright: ignore[reportAttributeAccessIssue]
        return None
    if given := jax.config.jax_compilation_cache_dir:  # pyright: ignore[reportAttributeAccessIssue]
        return Path(given)
    folder = None if os.environ.get(CACHE_VARIABLE, "").lower() == "off" else _writable_folder()
    if folder is None:
        return None
    tidy(folder)
    # an entry that another process is writing is compiled here too
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if _SECONDS_OF_JAX not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _SHORTEST)
    return folder


def tidy(folder: Path, most_bytes: int = _MOST_BYTES) -> None:
    """Remove entries that are damaged, and those not used for longest once all have more than `most_bytes`."""
    # only entries that are newer than the last call are read. A process that was killed leaves a damaged entry,
    # which JAX would neither load nor replace. Other processes may use the folder meanwhile: they compile what
    # is gone.
    # most_bytes: of all entries; the most recently used ones that have three quarters of it stay
    stamp, now = folder / _CHECKED, time.time()
    since = stamp.stat().st_mtime if stamp.exists() else 0.0
    entries = []
    for path, facts in _entries(folder):
        if facts.st_mtime >= since and not _is_whole(path):
            path.unlink(missing_ok=True)
        else:
            entries.append((max(facts.st_atime, facts.st_mtime), facts.st_size, path))
    stamp.touch()
    os.utime(stamp, (now, now))
    left = sum(size for _, size, _ in entries)
    if left <= most_bytes:
        return
    for _, size, path in sorted(entries):
        if left <= 0.75 * most_bytes:
            return
        path.unlink(missing_ok=True)
        left -= size


def _entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    # files of compiled programs; those that another process removes meanwhile are left out
    for path in folder.glob("*-cache"):
        try:
            yield path, path.stat()
        except OSError:
            continue


def _is_whole(path: Path) -> bool:
    # whether an entry can be decompressed; one that JAX did not compress by zlib is taken as it is
    try:
        data = path.read_bytes()
        if data[:1] in (b"", _ZLIB):
            zlib.decompress(data)
    except (OSError, zlib.error):
        return False
    return True


def _writable_folder() -> Path | None:
    # the folder for compiled programs, the user's alone; None where it cannot be written
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        given = os.environ.get(CACHE_VARIABLE)
        folder = (
            Path(given) if given else (Path(base) if base else Path.home() / ".cache") / "fedsolve" / "jax"
        )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder if os.access(folder, os.W_OK) else None


# The cores of a CPU as devices of JAX: how many there are, and that JAX begins with all of them.

DEVICES_VARIABLE = "JAX_NUM_CPU_DEVICES"
_FLAG = "xla_force_host_platform_device_count"


_like: list[int] = []  # the cores of the process that this one works for


def cores() -> int:
    if _like:
        return _like[0]
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_number_given() -> bool:
    """Whether the number of devices of a CPU is given: in JAX's own settings, or by starting several processes."""
    given = jax.config.jax_num_cpu_devices >= 0  # pyright: ignore[reportAttributeAccessIssue]
    return (
        given
        or DEVICES_VARIABLE in os.environ
        or _FLAG in os.environ.get("XLA_FLAGS", "")
        or jax.distributed.is_initialized()
    )


def make_cores_devices() -> bool:
    """Let each core of a CPU be a device of JAX, where nobody gave another number and JAX has not begun."""
    # returns whether it could: False where JAX has begun
    if is_number_given():
        return True
    try:
        jax.config.update("jax_num_cpu_devices", cores())
    except RuntimeError:  # JAX has begun
        return False
    return True


def begin_as(count: int, devices: int | None) -> None:
    """Choose programs as on a CPU of so many cores, with a pool of so many threads and so many devices."""
    # XLA divides a large product by the threads of its pool, which changes bits. Where JAX has begun, the pool stays.
    _like[:] = [count]
    os.environ.setdefault("NPROC", str(count))  # how XLA is told the size of its pool
    if devices is not None and not is_number_given():
        with contextlib.suppress(RuntimeError):  # JAX has begun
            jax.config.update("jax_num_cpu_devices", devices)


# Programs that JAX has traced, and those inside them: the bodies of loops, the branches, what is called.

Program = ClosedJaxpr | Jaxpr


def equations_of(program: Any) -> list[JaxprEqn]:
    """The operations of a program, without those of programs inside."""
    return (program.jaxpr if isinstance(program, ClosedJaxpr) else program).eqns


def programs_inside(equation: JaxprEqn) -> Iterator[Program]:
    """The programs of an operation: of a loop, a branch, a call."""
    for value in equation.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, ClosedJaxpr | Jaxpr):
                yield one


def all_programs(program: Program) -> Iterator[Program]:
    yield program
    for equation in equations_of(program):
        for inside in programs_inside(equation):
            yield from all_programs(inside)


def all_equations(program: Program) -> Iterator[JaxprEqn]:
    """The operations of a program and of all that are inside it."""
    for part in all_programs(program):
        yield from equations_of(part)


Rewrite = Callable[[JaxprEqn, list[Any]], list[Any] | None]


def evaluate(program: Program, arguments: Sequence[Any], rewrite: Rewrite) -> list[Any]:
    """The results of a traced program, equation by equation; `rewrite` gives those of the ones that it changes."""
    jaxpr = program.jaxpr if isinstance(program, ClosedJaxpr) else program
    variables = (*jaxpr.constvars, *jaxpr.invars)
    known = dict(zip(variables, (*getattr(program, "consts", ()), *arguments), strict=True))

    def read(v: Any) -> Any:
        return v.val if isinstance(v, Literal) else known[v]

    for equation in jaxpr.eqns:
        values = [read(v) for v in equation.invars]
        results = rewrite(equation, values)
        known.update(
            zip(equation.outvars, bind(equation, values) if results is None else results, strict=True)
        )
    return [read(v) for v in jaxpr.outvars]


def bind(equation: JaxprEqn, values: list[Any]) -> list[Any]:
    parameters = equation.primitive.get_bind_params(equation.params)
    functions: Sequence[Any] = ()
    if isinstance(parameters, tuple):  # the functions of a custom derivative apart, until JAX 0.10.1
        functions, parameters = parameters
    results = equation.primitive.bind(*functions, *values, **parameters)
    return list(results) if equation.primitive.multiple_results else [results]


def rewrite_inside(equation: JaxprEqn, rewrite: Rewrite) -> JaxprEqn:
    """The operation, with `rewrite` applied to the programs in it, such as a loop's; they keep their types."""

    def changed(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return jax.make_jaxpr(lambda *given: evaluate(value, given, rewrite))(*value.in_avals)
        if isinstance(value, Jaxpr):
            return changed(ClosedJaxpr(value, ())).jaxpr
        return type(value)(map(changed, value)) if type(value) in (tuple, list) else value

    return equation.replace(params={name: changed(value) for name, value in equation.params.items()})
