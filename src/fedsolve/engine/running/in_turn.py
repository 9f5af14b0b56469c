"""The runs of methods, asked for one method after another; where the data are small, later methods run meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import jax

from fedsolve.core import trees
from fedsolve.core.errors import Diverged
from fedsolve.data.stored import StoredData
from fedsolve.engine.compute.processes import is_first
from fedsolve.engine.loop import CompileClock
from fedsolve.engine.options import RunOptions
from fedsolve.engine.prepare import prepare
from fedsolve.engine.progress import Progress
from fedsolve.engine.result import Result
from fedsolve.engine.run_rounds import run_rounds
from fedsolve.engine.running.at_once import running_at_once
from fedsolve.engine.running.method_runs import Finish, MethodRuns, on_devices_of
from fedsolve.results.callbacks import Callback, notify_ended
from fedsolve.tasks.task import Task

_MOST_BYTES = 2**26  # of examples, which lie on the device once for each method that runs


@contextlib.contextmanager
def running(methods: Sequence[MethodRuns], task: Task, options: RunOptions) -> Iterator[Finish]:
    """The runs of each method, in order: what is called for each in turn, and gives the results with each of its seeds.

    A run that diverged has no model and says why. What is under way when the block ends is asked to stop.

    Args:
        methods: in the order in which they are asked for.
        task: the problem.
        options: of every run.

    Raises, when the method's turn comes:
        InvalidInput: as `fedsolve.run`.
        Interrupted: Ctrl-C, after each run's state was saved.
    """
    if len(methods) > 1 and _is_small(task):
        with running_at_once(methods, task, options) as finish:
            yield finish
        return
    waiting = iter(methods)

    def finish_next(progress: Callable[[Progress], None] | None) -> tuple[Result, ...]:
        method = next(waiting)
        if method.seeds is None:
            return (_run_alone(method, task, options, progress),)
        with running_at_once([method], task, options) as finish:
            return finish(progress)

    yield finish_next


def run_one(
    method: MethodRuns,
    task: Task,
    options: RunOptions,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """The run with the seed of the options; of its folder it writes the checkpoints alone.

    Of several processes the first one writes, tells and calls back.

    Raises:
        InvalidInput: as `fedsolve.run`.
        Diverged: the run did.
        Interrupted: Ctrl-C, after the state was saved.
    """
    callbacks: Sequence[Callback] = method.callbacks_of(options.seed) if is_first() else ()
    result: Result | None = None
    try:
        with jax.enable_x64(options.dtype == "float64"), CompileClock() as clock:
            options = on_devices_of(method.out if method.resume else None, options)
            prepared = prepare(method.algorithm, task, options, method.label)
            told = progress if is_first() else None
            result = run_rounds(prepared, method.out, method.resume, clock, lambda: False, told, callbacks)
        return result
    finally:
        notify_ended(callbacks, result)


def _run_alone(
    method: MethodRuns, task: Task, options: RunOptions, progress: Callable[[Progress], None] | None
) -> Result:
    """The run with the seed of the options; one that diverged says why."""
    try:
        return run_one(method, task, options, progress)
    except Diverged as error:
        return Result(None, error.history, failure=str(error))


def _is_small(task: Task) -> bool:
    return not isinstance(task.data, StoredData) and trees.nbytes(task.data.examples) <= _MOST_BYTES
