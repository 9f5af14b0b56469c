"""A run: compiled intervals, evaluation between them, checkpoints, and a record of it all."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve import trees
from fedsolve.algorithm import Algorithm
from fedsolve.engine.checkpoint import Checkpoints
from fedsolve.engine.clients import PackedClients, client_oracle, on_device, pack
from fedsolve.engine.clock import CompileClock
from fedsolve.engine.cohorts import Sampling, Uniform
from fedsolve.engine.evaluate import Measures, evaluate
from fedsolve.engine.identity import describe
from fedsolve.engine.interrupt import Interruptible
from fedsolve.engine.layout import chunk_size, mesh
from fedsolve.engine.preflight import check_round, check_task
from fedsolve.engine.record import Recorder
from fedsolve.engine.result import Result
from fedsolve.engine.round import RunState, advance, one_round, start
from fedsolve.engine.train import Program
from fedsolve.errors import Diverged, Interrupted, InvalidInput
from fedsolve.schedules import rate_at
from fedsolve.tasks.task import Task
from fedsolve.types import reports

_CALL_SECONDS = 1.0  # one compiled call lasts at most about this long, so that progress and Ctrl-C stay live


@dataclass(frozen=True)
class Progress:
    """Where a run stands: rounds done and to do, and the latest evaluation."""

    label: str
    round: int
    rounds: int
    metrics: dict[str, float]


def run(
    algorithm: Algorithm,
    task: Task,
    *,
    rounds: int,
    clients_per_round: int | None = None,
    sampling: Sampling | None = None,
    seed: int = 0,
    batch_size: int | Literal["full"] | None = None,
    epochs: int | None = None,
    local_steps: int | None = None,
    eval_every: int | None = None,
    dtype: Literal["float32", "float64"] = "float32",
    chunk: int | None = None,
    devices: int = 1,
    out: str | Path | None = None,
    resume: bool = False,
    label: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Run an algorithm on a task as one compiled program.

    Args:
        algorithm: the method, such as `FedAvg(client_lr=0.1)`.
        task: the problem, such as `fs.tasks.digits()`.
        rounds: communication rounds in all.
        clients_per_round: cohort size, drawn uniformly without replacement; default all clients.
        sampling: another way to draw cohorts, instead of `clients_per_round`.
        seed: of the initial model, cohorts and shuffles; the same seed gives the same bits on one machine.
        batch_size, epochs, local_steps: local work; default the task's ("full": one batch of everything).
        eval_every: rounds between evaluations; default about 50 evaluations in all.
        dtype: type of the whole run, float64 included.
        chunk: clients trained side by side; default by the size of the model.
        devices: devices that share each cohort.
        out: folder for checkpoints, so that the run can be interrupted and resumed.
        resume: continue from the checkpoint in `out`; the result has the same bits as an undisturbed run.
        label: the method's name in tables; default its class.
        progress: called after each compiled call.

    Returns:
        The final model, the evaluations and the log of every round.

    Raises:
        InvalidInput: arguments that do not fit, unusable data, or a checkpoint of another run.
        Diverged: a round in which every client's update was not finite.
        Interrupted: Ctrl-C, after the state was saved in `out`.
    """
    if dtype not in ("float32", "float64"):
        raise InvalidInput(f"dtype = {dtype!r} must be 'float32' or 'float64'")
    with jax.enable_x64(dtype == "float64"):
        setup = Setup.make(
            algorithm, task, rounds, _sampling(clients_per_round, sampling, task), seed, batch_size, epochs,
            local_steps, eval_every, jnp.dtype(dtype), chunk, devices, label,
        )  # fmt: skip
        with Checkpoints.at(out, setup.identity, resume) as checkpoints:
            return _loop(setup, checkpoints, progress)


def _sampling(clients_per_round: int | None, sampling: Sampling | None, task: Task) -> Sampling:
    if clients_per_round is not None and sampling is not None:
        raise InvalidInput("give clients_per_round or sampling, not both")
    population = task.data.num_clients
    size = population if clients_per_round is None else clients_per_round
    sampling = Uniform(size) if sampling is None else sampling
    sampling.check(population)
    return sampling


def _integer(name: str, value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InvalidInput(f"{name} = {value} must be an integer of at least {least}")
    return int(value)


@dataclass(frozen=True)
class Setup:
    """A run made ready: arguments checked, data on the device, the program chosen."""

    algorithm: Algorithm
    task: Task
    rounds: int
    eval_every: int
    sampling: Sampling
    program: Program
    packed: PackedClients
    judged: PackedClients
    test: Any
    measures: Measures
    state: RunState
    key: Any
    label: str
    identity: dict[str, Any]

    @classmethod
    def make(
        cls,
        algorithm: Algorithm,
        task: Task,
        rounds: int,
        sampling: Sampling,
        seed: int,
        batch_size: Any,
        epochs: int | None,
        local_steps: int | None,
        eval_every: int | None,
        dtype: Any,
        chunk: int | None,
        devices: int,
        label: str | None,
    ) -> Setup:
        """Check, place and choose."""
        if not isinstance(algorithm, Algorithm):
            raise InvalidInput(f"algorithm must be one such as FedAvg(client_lr=0.1), not {algorithm!r}")
        rounds, seed = _integer("rounds", rounds), _integer("seed", seed, 0)
        every = _integer("eval_every", max(1, round(rounds / 50)) if eval_every is None else eval_every)
        batch = None if batch_size == "full" else (task.batch_size if batch_size is None else batch_size)
        if epochs is None and local_steps is None:
            epochs, local_steps = task.epochs, task.local_steps
        packed, work = pack(
            task.data, task.loss, dtype, batch_size=batch, epochs=epochs, local_steps=local_steps
        )
        identity = {
            "task": task.name,
            "clients": task.data.num_clients,
            "examples": task.data.num_examples,
            "algorithm": describe(algorithm),
            "sampling": describe(sampling),
            "seed": seed,
            "batch_size": work.batch_size,
            "epochs": epochs,
            "local_steps": local_steps,
            "eval_every": every,
            "dtype": str(dtype),
            "devices": devices,
        }
        init_key, key = jax.random.split(jax.random.key(seed, impl="threefry2x32"))
        params = jax.tree.map(lambda x: jnp.asarray(x, dtype), task.init(init_key))
        cohort = getattr(sampling, "size", task.data.num_clients)
        place = mesh(devices)
        size = chunk_size(chunk, params, -(-cohort // devices))
        identity["chunk"] = size
        name = label or type(algorithm).__name__
        algorithm, sampling = _cast(algorithm, dtype), _cast(sampling, dtype)
        test = None if task.test is None else on_device(task.test, dtype)
        check_task(task, params, packed, test)
        judged = packed
        if task.eval_examples is not None and task.eval_examples < task.data.num_examples:
            some = task.data.sample(task.eval_examples)
            judged = pack(some, task.loss, dtype, batch_size=None, epochs=1, local_steps=None)[0]
        program = Program(work, size, every, place)
        state = start(algorithm, params, task.data.num_clients, place)
        return cls(
            algorithm=algorithm,
            task=task,
            rounds=rounds,
            eval_every=every,
            sampling=sampling,
            program=program,
            packed=packed,
            judged=judged,
            test=test,
            measures=Measures(task.loss, tuple(task.metrics.items())),
            state=state,
            key=key,
            label=name,
            identity=identity,
        )

    def advance(self, state: RunState, rounds: int) -> tuple[RunState, dict[str, np.ndarray]]:
        """Some rounds, and their logs."""
        inputs = (self.program, self.algorithm, self.sampling, self.packed, self.key)
        try:
            state, logs = advance(*inputs, state, jnp.int32(rounds))
        except TypeError:
            check_round(partial(one_round, *inputs), state)  # says it plainly if a shape or type changes
            raise
        return state, {name: np.asarray(log)[:rounds] for name, log in jax.device_get(logs).items()}

    def evaluate(self, state: RunState) -> dict[str, float]:
        """All metrics of the state's model."""
        model = self.algorithm.export(state.server)
        found = evaluate(self.measures, self.judged, self.test, model, state.previous)
        return {name: float(value) for name, value in jax.device_get(found).items()}

    def traffic(self, state: RunState) -> tuple[int, int]:
        """Bytes that one client sends up and gets down in a round."""
        down = jax.eval_shape(lambda s: self.algorithm.broadcast(s, jnp.int32(0)), state.server)
        up = jax.eval_shape(self._message, state)
        return trees.nbytes(up), trees.nbytes(down)

    def warnings(self, recorder: Recorder) -> tuple[str, ...]:
        """What the server's reports and the dropped updates give reason to say."""
        found = []
        if len(self.judged.counts) < self.task.data.num_clients:
            seen, judged = int(self.judged.counts.sum()), len(self.judged.counts)
            found.append(f"training metrics are of {judged} clients drawn at random ({seen} examples)")
        found += [w for name, (_, w) in reports(self.state.server).items() if w and recorder.any(name)]
        if dropped := recorder.total("dropped"):
            found.append(f"{dropped} updates were not finite and left out")
        return tuple(found)

    def _message(self, state: RunState) -> Any:
        work = self.program.work
        oracle = client_oracle(work, self.packed, self.key, jnp.int32(0), jnp.int32(work.max_steps))
        broadcast = self.algorithm.broadcast(state.server, jnp.int32(0))
        return self.algorithm.train(broadcast, self.algorithm.enroll(broadcast), oracle)[0]


def _cast(module: Any, dtype: Any) -> Any:
    """Hyper-parameters as arrays of the run's type, so that their values are no part of the program."""

    def leaf(x: Any) -> Any:
        keep = hasattr(x, "dtype") and not jnp.issubdtype(x.dtype, jnp.floating)
        return jnp.asarray(x) if keep else jnp.asarray(x, dtype)

    return jax.tree.map(leaf, module)


def _loop(setup: Setup, checkpoints: Checkpoints, progress: Callable[[Progress], None] | None) -> Result:
    clock = CompileClock()
    state, recorder = checkpoints.restore(setup.state, Recorder())
    traffic = setup.traffic(state)
    if not recorder.evaluated:
        recorder.evaluation(0, 0.0, setup.evaluate(state))
    speed = None  # seconds of a round, once known
    with Interruptible() as interrupt, clock:
        begun = time.perf_counter() - recorder.seconds
        while (done := int(state.round)) < setup.rounds:
            stop = min(setup.rounds, (done // setup.eval_every + 1) * setup.eval_every)
            some = 1 if speed is None else max(1, int(_CALL_SECONDS / speed))
            before, compiled = time.perf_counter(), clock.seconds
            state, logs = setup.advance(state, min(stop - done, some))
            new = int(state.round)
            spent = time.perf_counter() - before - (clock.seconds - compiled)
            speed = max(spent / max(new - done, 1), 1e-6)
            recorder.log(done, new, logs, traffic)
            _check_alive(setup, state, recorder, checkpoints)
            if new == stop:
                metrics = setup.evaluate(state)
                recorder.evaluation(new, time.perf_counter() - begun - clock.seconds, metrics)
            asked = interrupt.asked  # read once: what stops here has been saved
            if new == setup.rounds or asked or checkpoints.due:
                recorder.seconds = time.perf_counter() - begun - clock.seconds
                checkpoints.save(state, recorder)
            if progress is not None:
                progress(Progress(setup.label, new, setup.rounds, recorder.latest))
            if asked and new < setup.rounds:
                raise Interrupted(checkpoints.how_to_resume(new, setup.rounds))
    history = recorder.history(
        setup.label, setup.task.name, setup.identity, clock.seconds, setup.warnings(recorder)
    )
    model = setup.task.assemble(setup.algorithm.export(state.server))
    return Result(model, history)


def _check_alive(setup: Setup, state: RunState, recorder: Recorder, checkpoints: Checkpoints) -> None:
    failed = int(state.failed)
    if failed < 0:
        return
    lr = getattr(getattr(setup.algorithm, "local", None), "lr", float("nan"))
    client_lr = float(rate_at(lr, failed))
    server_lr = recorder.last("server_lr")
    nothing = {name: float("nan") for name in recorder.latest if name not in ("round", "seconds")}
    recorder.evaluation(failed + 1, recorder.latest["seconds"], nothing)
    history = recorder.history(setup.label, setup.task.name, setup.identity, 0.0, ())
    raise Diverged(
        f"round {failed + 1}: every client's update of {setup.label} is not finite "
        f"(client_lr {client_lr:g}, last server_lr {server_lr:g}); lower the rates. "
        f"{checkpoints.where_is_last()}",
        history,
    )
