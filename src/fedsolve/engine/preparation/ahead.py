"""Programs compiled before they are needed, in a thread beside what runs.

Nothing but JAX's caches is filled: a run that finds its program there is the run that would compile it. So whatever
fails here is left to the run, which says so. Only fedsolve's own models, losses and methods are traced beside others:
code of a user may count its calls, or draw from NumPy's generator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import jax

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm
from fedsolve.data.on_disk.stored import StoredData
from fedsolve.engine.checks.loss_contract import built_in
from fedsolve.engine.compute.processes import several
from fedsolve.engine.compute.round import compiled_advance
from fedsolve.engine.options import RunOptions
from fedsolve.engine.prepare import prepare
from fedsolve.engine.prepared_run import PreparedRun
from fedsolve.tasks.task import Task

_MOST_BYTES = 2**26  # of examples, which lie on the device once more meanwhile


@contextlib.contextmanager
def compiled_meanwhile(prepared: PreparedRun) -> Iterator[None]:
    """Compile the rounds of a run while its initial model is evaluated, which needs no Python."""
    if prepared.stream is not None or not _is_ours(prepared.task, prepared.algorithm):
        yield
        return
    with ThreadPoolExecutor(1) as pool:
        _submit(pool, prepared.compile, prepared.options)
        yield


@contextlib.contextmanager
def compiled_ahead(
    algorithms: Sequence[Algorithm], task: Task, options: RunOptions
) -> Iterator[Callable[[int], None]]:
    """What is called with a method's place before it is run: meanwhile the next one's rounds are compiled.

    Args:
        algorithms: in the order in which they are run.
        task: the problem.
        options: of every run.
    """
    data, begun = task.data, dict[int, Future[None]]()
    small = not isinstance(data, StoredData) and trees.nbytes(data.examples) <= _MOST_BYTES
    small = small and options.systems is None and options.sampling is None  # nothing of theirs is done twice
    with ThreadPoolExecutor(1) as pool:

        def next_to(place: int) -> None:
            if place in begun:  # what is half done would be done twice
                begun[place].result()
            after = place + 1
            if small and after < len(algorithms) and _is_ours(task, algorithms[after]):
                compile_it = partial(_compile, algorithms[after], task, options)
                begun[after] = _submit(pool, compile_it, options)

        yield next_to


def _compile(algorithm: Algorithm, task: Task, options: RunOptions) -> None:
    prepare(algorithm, task, options).compile()


def _submit(pool: ThreadPoolExecutor, function: Callable[[], None], options: RunOptions) -> Future[None]:
    compiled_advance()  # made here, once: two threads would each make one, with programs of its own
    return pool.submit(_quietly, function, options)


def _quietly(function: Callable[[], None], options: RunOptions) -> None:
    # each thread has its own types
    with contextlib.suppress(Exception), jax.enable_x64(options.dtype == "float64"):
        function()


def _is_ours(task: Task, algorithm: Algorithm) -> bool:
    """Whether what a run traces is fedsolve's own code alone, in one process."""
    parts = (getattr(task.init, "__self__", None), task.loss, *task.metrics.values())
    ours = type(algorithm).__module__.startswith("fedsolve.") and all(built_in(part) for part in parts)
    return ours and not several()
