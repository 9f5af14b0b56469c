"""Making a run ready in five steps: what is asked for, where it lies, its program, its memory, its start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import jax
import jax.numpy as jnp

from fedsolve.core import collection_paused
from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.fleets import PROFILES
from fedsolve.core.xla.compiler import make_room, use_compile_cache
from fedsolve.engine.checks.preflight import on_solvers
from fedsolve.engine.compute.casting import in_run, start_params
from fedsolve.engine.compute.round import start
from fedsolve.engine.compute.sharding import replicate
from fedsolve.engine.evaluation.eval_sets import choose_eval_sets
from fedsolve.engine.identity import as_written
from fedsolve.engine.options import RunOptions
from fedsolve.engine.placement import Placed, budget, place, plan
from fedsolve.engine.prepared_run import PreparedRun
from fedsolve.engine.resolve import Requested, check_methods, choose_sampling, request
from fedsolve.tasks.task import Task

_OWN = (
    "clients of {} have models of their own: metrics of training examples, and of validation examples of theirs, are "
    "of these; a test set and unseen clients are measured with the server's model"
)
_NOBODY_LATE = "no systems were given: nobody is late, and a round of {} is synchronous, of all whom it draws"


def check_all_begin(algorithms: Iterable[Algorithm], task: Task, options: RunOptions) -> None:
    """Raise `InvalidInput` unless each method can begin on the task: before the first of several is run."""
    sampling, dtype = choose_sampling(options, task), jnp.dtype(options.dtype)
    with jax.enable_x64(options.dtype == "float64"):
        params = start_params(task, options.seed, dtype)
        for algorithm in algorithms:
            check_methods([algorithm], sampling, task)
            jax.eval_shape(in_run(algorithm, task, dtype).init, params)


@collection_paused()
def prepare(algorithm: Algorithm, task: Task, options: RunOptions, label: str | None = None) -> PreparedRun:
    """A run made ready; call it with 64-bit types enabled where the run's type needs them.

    Raises:
        InvalidInput: a method, a task or options that cannot be used, or that do not fit each other.
    """
    use_compile_cache()
    make_room()
    requested = request(algorithm, task, options, label)
    placed = place(requested)
    sets, on_sets = choose_eval_sets(requested, placed)
    planned = plan(requested, placed)
    memory = budget(placed, planned)
    clients = placed.clients
    state = start(planned.algorithm, placed.params, task.data.num_clients, planned.program, memory.slots)
    if not (planned.program.is_sharded or planned.algorithm.traits.personal):
        sets = sets.divided_among(requested.mesh, task.loss, clients.first_model(placed.params, task.buffers))
    on_one_device = requested.mesh.size == 1 or planned.stream is not None
    return PreparedRun(
        algorithm=planned.algorithm,
        sampling=planned.sampling,
        task=task,
        label=requested.label,
        method=as_written(requested.algorithm),
        options=requested.options,
        program=planned.program,
        packed=clients,
        shared=clients if on_one_device else replicate(clients, requested.mesh),
        stream=planned.stream,
        params=placed.params,
        state=state,
        key=placed.key,
        traffic=planned.traffic,
        timed=planned.timed,
        identity=requested.identity | planned.identity,
        remarks=(
            *task.notes,
            *requested.remarks,
            *placed.remarks,
            *([memory.remark] if memory.remark else []),
            *on_sets,
            *_on_method(requested, placed),
        ),
        **vars(sets),
    )


def _on_method(requested: Requested, placed: Placed) -> Iterator[str]:
    """What is to be said of the method, the fleet that it is on or is not on, and its solver."""
    algorithm, options = placed.algorithm, requested.options
    if algorithm.traits.personal:
        yield _OWN.format(name_of(algorithm))
    if options.systems is None and algorithm.traits.buffer:
        yield _NOBODY_LATE.format(name_of(algorithm))
    if isinstance(options.systems, str):
        yield f"time is on the clock of the fleet {options.systems} ({PROFILES[options.systems].source})"
    yield from on_solvers(algorithm, placed.params, int(requested.steps.max()), options.rounds)
