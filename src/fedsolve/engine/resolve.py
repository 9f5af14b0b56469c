"""First step: what a run is asked for, checked, with all defaults filled in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.buffers import with_buffers
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.fleets import Fleet
from fedsolve.core.sampling import Sampling, Uniform
from fedsolve.core.types import Params
from fedsolve.core.xla.compiler import make_cores_devices
from fedsolve.engine.checks.losses import calls_host
from fedsolve.engine.checks.methods import check_method
from fedsolve.engine.compute.casting import start_key
from fedsolve.engine.compute.clients import LocalWork, local_work
from fedsolve.engine.compute.layout import LocalStep, devices_by_layout, mesh_of
from fedsolve.engine.compute.sharding import MODEL_AXIS, several
from fedsolve.engine.identity import describe
from fedsolve.engine.options import RunOptions
from fedsolve.engine.simulated_time import fleet_of
from fedsolve.tasks.losses.weights import check_coupled
from fedsolve.tasks.task import Task

_ON_ONE = (
    "the loss or a metric of task {} calls Python while it is computed, as a PyTorch module does that is not "
    "translated: on several devices of one process it would never end; give each process one (devices = 1, no mesh)"
)


@dataclass(frozen=True, kw_only=True)
class ResolvedRun:
    """What a run is asked for: method and sampling as the user built them, options with every default filled in."""

    # The run is on the clock of `fleet`, None for none; `work` is that of all clients together, `steps` those of
    # each.

    algorithm: Algorithm
    task: Task
    options: RunOptions
    label: str
    sampling: Sampling
    mesh: Mesh
    fleet: Fleet | None
    work: LocalWork
    steps: np.ndarray
    remarks: tuple[str, ...] = ()

    @property
    def eval_every(self) -> int:
        return self.options.eval_every or self.options.rounds

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the results and can be read in a record."""
        task, options, fleet = self.task, self.options, self.fleet
        clock = {"quorum": options.quorum, "deadline": options.deadline, "systems": describe(fleet)}
        return {
            "task": task.name,
            "clients": task.data.num_clients,
            "examples": task.data.num_examples,
            "algorithm": describe(self.algorithm),
            "sampling": describe(self.sampling),
            "seed": options.seed,
            "batch_size": self.work.batch_size,
            "epochs": options.epochs,
            "local_steps": options.local_steps,
            "dtype": options.dtype,
            "devices": options.devices,
            **({"matmul_dtype": options.matmul_dtype} if self.work.half else {}),  # older records have none
            **({"microbatches": self.work.parts} if self.work.parts > 1 else {}),
            **({} if fleet is None else clock),
            **({"mesh": describe(dict(self.mesh.shape))} if MODEL_AXIS in self.mesh.shape else {}),
        }


def resolve(algorithm: Algorithm, task: Task, options: RunOptions, label: str | None = None) -> ResolvedRun:
    sampling = choose_sampling(options, task)
    devices, remark = choose_devices(options, task, sampling)
    mesh = mesh_of(devices, options.mesh)
    check_methods([algorithm], sampling, task)
    # what is recorded has the devices that the run got, not those asked for
    resolved = replace(options.with_defaults(task), devices=mesh.size, mesh=None)
    work, steps = local_work(task.data.counts, task.loss, **resolved.local_work)
    # a loss whose rows depend on each other needs minibatches of whole groups
    check_coupled(task.loss, work.batch_size, task.data.counts)
    systems, clients = options.systems, task.data.num_clients
    return ResolvedRun(
        algorithm=algorithm,
        task=task,
        options=resolved,
        label=label or name_of(algorithm),
        sampling=sampling,
        mesh=mesh,
        fleet=None if systems is None else fleet_of(systems, clients, options.seed),
        work=replace(work, half=options.matmul_dtype is not None),
        steps=steps,
        remarks=(remark,) if remark else (),
    )


def choose_devices(options: RunOptions, task: Task, sampling: Sampling) -> tuple[int | None, str]:
    """The devices of a run, those of the layout where none are given, and what is to be said of it ('' if nothing)."""
    given = options.devices is not None or options.mesh is not None
    if not given:
        make_cores_devices()
    if options.devices == 1 or (several() and jax.local_device_count() == 1):
        return options.devices, ""
    dtype = jnp.dtype(options.dtype)
    work = options.with_defaults(task).local_work
    try:
        with jax.enable_x64(options.dtype == "float64"):
            params = with_buffers(_model_shapes(task, options.seed, dtype), task.buffers)
            alone = calls_host(task, params, dtype)
            if not (given or alone or several()):
                step = LocalStep.of(task, params, dtype, work)
                size = trees.nbytes(task.data.examples)
                return devices_by_layout(step, sampling, task.data.num_clients, size)
    except (TypeError, ValueError, AttributeError, LookupError, NotImplementedError):
        alone = False  # the steps that follow say what is wrong with the model, the loss or the examples
    if alone and (given or several()):
        raise InvalidInput(_ON_ONE.format(task.name))
    return options.devices if given or several() else 1, ""


def _model_shapes(task: Task, seed: int, dtype: Any) -> Params:
    # the shapes of a task's model, in the run's type; an `init` that cannot be traced is called
    with np.errstate(over="ignore"):  # what is too large is said later
        try:
            given = jax.eval_shape(task.init, jax.eval_shape(jax.random.key, 0))
        except jax.errors.JAXTypeError:
            given = task.init(start_key(seed))
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), dtype), given)


def choose_sampling(options: RunOptions, task: Task) -> Sampling:
    """Who takes part: as given, else a uniform cohort of a size, else all clients."""
    if not isinstance(task, Task):
        raise InvalidInput(f"task must be one such as fs.tasks.digits(), not {shown(task)}")
    sampling, population = options.sampling, task.data.num_clients
    if sampling is not None and not isinstance(sampling, Sampling):
        raise InvalidInput(f"sampling = {shown(sampling)} must be one such as fs.sampling.Bernoulli(0.1)")
    if sampling is None:
        size = options.clients_per_round
        sampling = Uniform(population if size is None else size)
    sampling.check(population)
    sampling.check_rounds(options.rounds)
    return sampling


def check_methods(algorithms: Iterable[Algorithm], sampling: Sampling, task: Task) -> None:
    for algorithm in algorithms:
        check_method(algorithm)
        algorithm.check(sampling, task.data.num_clients)
