"""A run's rounds, compiled in a thread while its initial model is evaluated, which needs no Python.

Nothing but JAX's caches is filled: a run that finds its program there is the run that would compile it. So whatever
fails here is left to the run, which says so. Only fedsolve's own models, losses and methods are traced beside others:
code of a user may count its calls, or draw from NumPy's generator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import jax

from fedsolve.core.algorithm import Algorithm
from fedsolve.engine.checks.loss_contract import built_in
from fedsolve.engine.compute.processes import several
from fedsolve.engine.prepared_run import PreparedRun
from fedsolve.tasks.task import Task


@contextlib.contextmanager
def compiled_meanwhile(prepared: PreparedRun) -> Iterator[None]:
    """Compile the rounds of a run while its initial model is evaluated."""
    if prepared.stream is not None or several() or not is_ours(prepared.task, prepared.algorithm):
        yield
        return
    with ThreadPoolExecutor(1) as pool:
        pool.submit(copy_context().run, _compile, prepared)  # whose clock counts it
        yield


def is_ours(task: Task, algorithm: Algorithm) -> bool:
    """Whether what a run traces is fedsolve's own code alone."""
    parts = (getattr(task.init, "__self__", None), task.loss, *task.metrics.values())
    return type(algorithm).__module__.startswith("fedsolve.") and all(built_in(part) for part in parts)


def _compile(prepared: PreparedRun) -> None:
    # each thread has its own types
    with contextlib.suppress(Exception), jax.enable_x64(prepared.options.dtype == "float64"):
        prepared.compile()
