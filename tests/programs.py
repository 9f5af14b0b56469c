"""How the tests compile, which share a worker, where compiled programs are kept, and when a process drops them."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import jax
import pytest

# By version of JAX, since XLA ends a process that asks for what it does not know. Measured: the older code generator
# compiles five methods' rounds in half the time; one module instead of parts for threads, which two workers have no
# cores for, saves a tenth of the rest; without LLVM's optimisations, from which tests' small arrays gain nothing, an
# operation alone compiles in 24 ms in place of 38, a program of a hundred in a third of the time.
QUICKLY = {
    (0, 10): (
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_cpu_parallel_codegen_split_count=1",
        "--xla_backend_optimization_level=0",
    )
}


def compile_quickly() -> None:
    """Have this process and its children compile for tests: less is compiled well, since programs run for a moment."""
    flags = os.environ.get("XLA_FLAGS", ""), *QUICKLY.get(jax.__version_info__[:2], ())
    os.environ["XLA_FLAGS"] = " ".join(filter(None, flags))


def collect_seldom() -> None:
    """Let garbage lie longer: tracing makes millions of small objects, and looking through all of them at Python's
    usual rate was a sixth of a warm run of the conformance tests (46.6 s -> 38.8 s)."""
    gc.set_threshold(200_000, 20, 100)


def draw_the_same() -> None:
    """Have Hypothesis draw the same examples in every run, whatever modules are imported: it would search their source
    for constants (3 s a process)."""
    from hypothesis import settings
    from hypothesis.internal.conjecture import providers

    settings.register_profile("same", derandomize=True, database=None)
    settings.load_profile("same")
    none = providers.Constants()
    providers._get_local_constants = lambda: none


def trace_shortly() -> None:
    """Have operations without the lines of code that made them: a twentieth less time in tracing and lowering."""
    jax.config.update("jax_traceback_in_locations_limit", 0)
    os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"  # for child processes


# Versions of JAX whose programs for a CPU need, of the dialects that JAX has from elsewhere, this one alone.
DIALECTS = {(0, 10): ("func",)}


def lower_shortly() -> None:
    """Make a program's text in a context of few dialects: JAX loads 20, which most of an operation's lowering is for
    (4.0 ms -> 0.7 a program, of 20 for an operation alone, and the gate has 8,000). A dialect that is missing after all
    fails with its name."""
    from jax._src.interpreters import mlir

    names = DIALECTS.get(jax.__version_info__[:2])
    if names is not None:

        def load(context: Any) -> None:
            for name in names:
                context.get_dialect_descriptor(name)

        mlir.JaxIrContext.load_all_available_dialects = load
        mlir._uncacheable_primitives = Everything()


class Everything(set[Any]):
    """What contains anything: JAX writes an operation into a program where it stands, and not as a function that is
    called there (8.6 s -> 6.9 of lowering in the conformance tests, and 23.3 -> 21.0 of compiling)."""

    def __contains__(self, operation: object) -> bool:
        return True


def one_thread_each() -> None:
    """NumPy, SciPy and PyTorch in one thread: workers fill the cores, and threads that wait for them spin."""
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))


def cache_folder() -> Path:
    """Where compiled programs are kept: the user's cache, by JAX's version, unless FEDSOLVE_TEST_CACHE says where."""
    if chosen := os.environ.get("FEDSOLVE_TEST_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fedsolve" / f"tests-jax-{jax.__version__}"


def group(test: str) -> str:
    """What runs on one worker, of the test with this id: a module, whose tests share programs; of the conformance
    tests, which have a module for all methods, those of one method.
    """
    module, _, name = test.partition("::")
    method = name.partition("[")[2].partition("]")[0].partition("-")[0]
    return method if method and module.startswith("tests/conformance/") else module


def make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives a worker one group after another, in the order of collection: many short ones are the last.

    The groups of xdist's own option, by marks, are those of pytest before 9.2: it writes them into an attribute of a
    test that pytest no longer reads, and spreads the tests of a module over all workers.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    config.option.loadscopereorder = False
    return ByGroup(config, log)


class ProgramsDropped:
    """Drops compiled programs before their mappings of memory are too many: Linux allows a process 65,530.

    Beyond, XLA crashes; 19,000 mappings were 2.9 GB of memory, so far fewer are kept. Counting takes 5 microseconds a
    mapping, so a full process is asked more often.
    """

    MOST = 15_000
    A_TEST = 500  # more than nearly every test adds

    def __init__(self) -> None:
        self.tests_to_go = 0

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self) -> None:
        self.tests_to_go -= 1
        if self.tests_to_go > 0:
            return
        held = mappings()
        if held > self.MOST:
            jax.clear_caches()
            held = 0
        self.tests_to_go = (self.MOST - held) // self.A_TEST


def mappings() -> int:
    """Mappings of memory that this process holds; 0 where the system does not tell."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0
