"""Units of work on the workers of an executor: runs, batches of a sweep's trials, parts of a study.

An executor is any object with `submit`, as those of `concurrent.futures`. The caller and its workers share a folder:
what units have in common, such as the task with its data, is a file there, named by its digest, which a worker reads
once; each unit leaves a note of where it runs and how far it is; and the file `stop` asks all of them to save and stop.

A worker chooses programs as its caller does, with as many devices and a pool of as many threads: XLA divides large
products by these. So a unit has the bits that it has in the caller's process, on the same kind of device.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import logging
import multiprocessing
import os
import platform
import re
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import jax

from fedsolve.core import __version__
from fedsolve.core.errors import FedsolveError, Interrupted, InvalidInput, Unavailable, check_integer, shown
from fedsolve.core.xla.compiler import begin_as, cores
from fedsolve.engine.progress import Progress
from fedsolve.folders.files import STOP, Interruptible, slug, write_atomically
from fedsolve.folders.untrusted import MALFORMED, loads, read_bytes

T = TypeVar("T")
Tell = Callable[[Progress], None]
_FORMS = "processes:4, dask:tcp://host:8786, slurm:partition=gpu,timeout_min=120 or mpi"
_UNGUARDED = (
    "no worker process could begin: a script that gives executor= must make its calls below "
    "`if __name__ == '__main__':`, as Python starts processes by importing it"
)


@dataclass(frozen=True)
class Workers:
    """An executor, and how often a unit of work is repeated when its worker is lost.

    Attributes:
        executor: an object with `submit`, such as a `ProcessPoolExecutor` of spawned processes, Dask's
            `client.get_executor()`, submitit's `AutoExecutor` or mpi4py's `MPIPoolExecutor`; or text:
            `processes:4`, `dask:tcp://host:8786`, `slurm:partition=gpu,timeout_min=120` with any parameters of
            submitit, or `mpi`. Text may end with `,retries=N`.
        retries: how often a lost unit is repeated, at least 0.

    Raises:
        InvalidInput: another object, text of no executor, or a pool of forked processes, in which JAX hangs.
    """

    executor: Any
    retries: int = 2

    def __post_init__(self) -> None:
        check_integer("retries", self.retries, 0)
        if isinstance(self.executor, str):
            _parsed(self.executor)
        elif not callable(getattr(self.executor, "submit", None)):
            raise InvalidInput(f"executor = {shown(self.executor)} must have `submit`, or be text: {_FORMS}")
        context = getattr(self.executor, "_mp_context", None)
        if context is not None and context.get_start_method() == "fork":
            raise InvalidInput(
                "executor: its processes are forked, in which JAX hangs: give ProcessPoolExecutor "
                "mp_context=multiprocessing.get_context('spawn'), or executor='processes:4'"
            )


# Executors made from text.

_TEXT = re.compile(r"(processes|dask|slurm|mpi)(?::(.*?))?(?:,retries=(\d+))?")
_LIBRARIES = {
    "dask": ("distributed", "fedsolve[dask]"),
    "slurm": ("submitit", "fedsolve[slurm]"),
    "mpi": ("mpi4py.futures", "mpi4py"),
}
_OF_SUBMITIT = ("name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node")


def _parsed(text: str) -> tuple[str, str, int | None]:
    # the kind, what is said of it, and the retries
    match = _TEXT.fullmatch(text)
    kind, given = (match[1], match[2] or "") if match else ("", "")
    fits = {
        "processes": given.isdecimal() and int(given) > 0,
        "dask": given != "",
        "slurm": all("=" in part for part in given.split(",") if part),
        "mpi": given == "",
    }
    if match is None or not fits[kind]:
        raise InvalidInput(f"executor = {text!r} must be such as {_FORMS}")
    return kind, given, int(match[3]) if match[3] else None


def _made(kind: str, given: str, folder: Path, stack: contextlib.ExitStack) -> Any:
    # the executor, which ends with the stack
    if kind == "processes":
        return stack.enter_context(contextlib.closing(_Processes(int(given))))
    library = _imported(*_LIBRARIES[kind])
    try:
        if kind == "mpi":
            return stack.enter_context(library.MPIPoolExecutor())
        if kind == "dask":
            return stack.enter_context(library.Client(given)).get_executor(pure=False)
        options: dict[str, Any] = dict(part.split("=", 1) for part in given.split(",") if part)
        executor = library.AutoExecutor(folder / "slurm", cluster=options.pop("cluster", "slurm"))
        options = {name: int(x) if x.isdecimal() else x for name, x in options.items()}
        executor.update_parameters(
            **{k if k in _OF_SUBMITIT else f"slurm_{k}": x for k, x in options.items()}
        )
        return executor
    except Exception as error:  # whatever the library raises of what it is given
        raise InvalidInput(f"executor {kind!r}: {' '.join(str(error).split())}") from None


class _Processes:
    """Processes of this machine, each with a share of the cores and of the GPUs."""

    # Each is an executor of its own, so that one which is killed loses its own unit alone, and is started again.

    def __init__(self, count: int) -> None:
        self._count, self._free, self._pools = count, SimpleQueue[int](), dict[int, ProcessPoolExecutor]()
        for place in range(count):
            self._start(place)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Wait for a process that is free, and let it call the function."""
        place = self._free.get()

        def ended(future: Future[Any]) -> None:
            broken = not future.cancelled() and isinstance(future.exception(), BrokenExecutor)
            self._start(place) if broken else self._free.put(place)

        try:
            future = self._pools[place].submit(function, *arguments)
        except BrokenExecutor:  # it was killed while it was free
            self._start(place)
            return self.submit(function, *arguments)
        future.add_done_callback(ended)
        return future

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown()

    def _start(self, place: int) -> None:
        context = multiprocessing.get_context("spawn")  # JAX has threads, which a fork would lose
        share = _share(place, self._count)
        self._pools[place] = ProcessPoolExecutor(1, context, initializer=_take_share, initargs=share)
        self._free.put(place)


def _share(place: int, count: int) -> tuple[list[int], dict[str, str]]:
    # the cores of one process of several, and what its environment says of its GPU
    there = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    own = there[place::count] or [there[place % len(there)]]
    if jax.default_backend() != "gpu":
        return own, {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(str(d.id) for d in jax.local_devices())
    gpus = visible.split(",")
    share = 0.75 / -(-count // len(gpus))  # of its memory: three quarters is what JAX takes alone
    gpu = {"CUDA_VISIBLE_DEVICES": gpus[place % len(gpus)], "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{share:.3f}"}
    return own, gpu


# In a worker.

NOTE = "worker.json"
"""The file in which a unit says where it runs and how far it is."""
_SECONDS_BETWEEN_NOTES = 0.5
_VERSIONS = f"fedsolve {__version__}, jax {jax.__version__}"
_at_work = threading.Lock()
_own_cores: list[int] = []
_read: dict[str, Any] = {}  # what units share, the last one by its digest


def _take_share(own: list[int], environment: Mapping[str, str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C: the caller asks by a file
    os.environ.update(environment)
    _own_cores[:] = own


def work(order: Mapping[str, Any]) -> bytes:
    """Do a unit in this process, one at a time: its name, what it returned and what it raised, pickled."""
    folder, where = Path(order["folder"]), f"{platform.node()}, process {os.getpid()}"
    if not folder.is_dir():
        raise InvalidInput(f"worker {where} does not see {folder}: give out=, a folder that all workers see")
    if order["versions"] != _VERSIONS:
        raise InvalidInput(
            f"worker {where} has {_VERSIONS}, its caller {order['versions']}: install the same"
        )
    value, error = None, None
    with _at_work, Interruptible(folder, shared=True) as interrupt:
        sys.path += [path for path in order["path"] if path not in sys.path]
        os.environ.update(order["environment"])
        begin_as(order["cores"], order["devices"])
        try:
            if interrupt.stop_requested:
                raise Interrupted("stopped before it began")
            tell = _Note(Path(order["note"]), f"on {where}")
            _pin()
            value = _unpickled(order["call"])(_shared(folder, order["shared"]), tell)
        except Exception as raised:  # the unit's own: the caller raises it
            error = _portable(raised)
        if interrupt.signalled:
            raise RuntimeError("its worker was asked to end")
        return _pickled(f"the result of {order['unit']}", (order["unit"], value, error))


def _pin() -> None:
    # once JAX has its threads, as many as the caller's has, they share the cores of this process
    if _own_cores and Path("/proc/self/task").exists():
        jax.devices()
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # it has ended
                os.sched_setaffinity(int(thread), _own_cores)


def _shared(folder: Path, digest: str) -> Any:
    if digest not in _read:
        content = read_bytes(folder / digest, None, follow=False)
        if hashlib.sha256(content).hexdigest() != digest:
            raise InvalidInput(f"{folder / digest} is not what was written")
        _read.clear()
        _read[digest] = _unpickled(content)
    return _read[digest]


def _portable(error: Exception) -> Exception:
    # with its traceback in words, and as another one where it cannot be pickled
    if not isinstance(error, FedsolveError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        return _unpickled(_pickled("", error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


class _Note:
    # told a unit's progress, it leaves a note of it, twice a second at most
    def __init__(self, path: Path, where: str) -> None:
        self._path, self._where, self._written = path, where, 0.0
        self(Progress("", 0, 1, {}))

    def __call__(self, at: Progress) -> None:
        if at.done >= at.total or time.monotonic() - self._written > _SECONDS_BETWEEN_NOTES:
            metrics = {name: float(x) for name, x in at.metrics.items()}
            note = asdict(at) | {"metrics": metrics, "remark": self._where}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new = self._path.with_suffix(".new")  # which need not be on the disk
            new.write_text(json.dumps(note))
            new.replace(self._path)
            self._written = time.monotonic()


# Of the caller.

_SECONDS_ASLEEP = 0.2
_FOLDER = ".workers-"


def where_it_runs(folder: Path) -> Progress | None:
    """How far the unit of a folder is, by its note, with where it runs as the remark; None where none runs."""
    try:
        note = loads(read_bytes(folder / NOTE, 2**20, follow=False))
        at = Progress(**note | {"by_seed": tuple(note["by_seed"]), "notes": tuple(note["notes"])})
        return at if f"{at.label} {at.where} {at.words}" else None  # which fails where it is malformed
    except (OSError, *MALFORMED):
        return None


class Units:
    """Hands units of work to an executor, each by a thread that waits for its result; made by `open_units`."""

    threads = 256  # units that are handed over at once

    def __init__(
        self, executor: Any, retries: int, folder: Path, kept: str, interrupt: Interruptible
    ) -> None:
        self._executor, self._retries, self._folder, self._kept = executor, retries, folder, kept
        self.interrupt = interrupt
        self.path = [os.path.abspath(path) for path in sys.path]

    def share(self, what: str, value: Any) -> str:
        """Write what units have in common where workers read it; its digest."""
        content = _pickled(what, value)
        digest = hashlib.sha256(content).hexdigest()
        write_atomically(self._folder / digest, content, private=True)
        return digest

    def run(
        self, unit: str, call: Callable[..., Any], shared: str, tell: Tell, folder: Path | None = None
    ) -> tuple[Any, tuple[str, ...]]:
        """What `call(shared, tell)` returns on a worker, and a line for each time that it was lost.

        A folder that it writes to has its note meanwhile.
        """
        place = (folder or self._folder / slug(unit)).absolute()
        order = {
            "unit": unit,
            "call": _pickled(unit, call),
            "shared": shared,
            "folder": str(self._folder),
            "note": str(place / NOTE),
            "path": self.path,
            "environment": {k: v for k, v in os.environ.items() if k == "FEDSOLVE_DATA"},
            "versions": _VERSIONS,
            "cores": cores(),
            "devices": jax.local_device_count() if jax.default_backend() == "cpu" else None,
        }
        lost: list[str] = []
        while not self.interrupt.stop_requested:
            value, error = self._attempt(order | {"attempt": secrets.token_hex(8)}, place, tell)
            begun = where_it_runs(place) is not None
            (place / NOTE).unlink(missing_ok=True)
            if isinstance(error, Interrupted) or (isinstance(error, _Lost) and self.interrupt.stop_requested):
                break
            # what the unit itself raises would come again: only one that was lost with its worker is repeated
            if not isinstance(error, _Lost):
                if error is not None:
                    raise error
                return value, tuple(lost)
            if error.is_broken and not isinstance(self._executor, _Processes):
                raise Unavailable(f"{unit}: {error}; such an executor is not made anew; {self._kept}")
            if len(lost) == self._retries:
                why = error if begun or not error.is_broken else f"{_UNGUARDED} ({error})"
                raise Unavailable(f"{unit} was lost {len(lost) + 1} times: {why}; {self._kept}")
            lost.append(f"{unit} was lost and is repeated: {error}")
            logging.getLogger("fedsolve").warning(lost[-1])
        self.interrupt.signalled = True  # one that was stopped stops all
        raise Interrupted(f"{unit} was stopped")

    def _attempt(self, order: Mapping[str, Any], place: Path, tell: Tell) -> tuple[Any, Exception | None]:
        # what the unit returned and raised; `_Lost` if its worker did not end it
        told = None
        try:
            future = self._executor.submit(work, order)
        except Exception as error:
            return None, _judged(error)
        client = getattr(self._executor, "_client", None)  # of Dask: it answers nothing once it is closed
        while not future.done():
            if getattr(client, "status", "") == "closed":
                return None, _Lost(BrokenExecutor("the scheduler is gone"))
            wait([future], _SECONDS_ASLEEP) if isinstance(future, Future) else time.sleep(_SECONDS_ASLEEP)
            at = where_it_runs(place)
            if at is not None and at != told:
                told = at
                if at.label:
                    tell(at)
            if self.interrupt.stop_requested:
                (self._folder / STOP).touch()
                if told is None:  # it waits for a worker
                    future.cancel()
        try:
            unit, value, error = _unpickled(future.result())
        except Exception as error:
            return None, _judged(error)
        fits = unit == order["unit"]
        return value, error if fits else InvalidInput(f"{order['unit']}: the worker replied of {shown(unit)}")


class _Lost(Exception):
    def __init__(self, error: Exception) -> None:
        super().__init__(" ".join(f"{type(error).__name__}: {error}".split()))
        self.is_broken = isinstance(error, BrokenExecutor)


def _judged(error: Exception) -> Exception:
    # as it is where a repetition would not change it
    lasting = (FedsolveError, ImportError, AttributeError, TypeError, ValueError)
    return error if isinstance(error, lasting) else _Lost(error)


def each_in_threads(function: Callable[[Any], T], units: Sequence[Any], threads: int) -> list[T]:
    """What the function returns of each unit, in so many threads at once; raises once all have ended."""
    if threads == 1 or len(units) == 1:
        return [function(unit) for unit in units]
    wide = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    context = copy_context()  # whose clock counts what is compiled

    def call(unit: Any) -> T:
        with jax.enable_x64(wide):  # each thread has its own
            return function(unit)

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(context.copy().run, call, unit) for unit in units]
    return [future.result() for future in futures]


@contextlib.contextmanager
def open_units(executor: Any, out: str | Path | None) -> Iterator[Units | None]:
    """What hands units to an executor within the block, by a folder in `out`; None without an executor."""
    if executor is None:
        yield None
        return
    workers = executor if isinstance(executor, Workers) else Workers(executor)
    # a worker process that imports its caller's script comes here
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise InvalidInput(_UNGUARDED)
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
        for left in Path(out).glob(f"{_FOLDER}*"):  # by a caller that was killed
            shutil.rmtree(left, ignore_errors=True)
    kept = f"what is done is kept in {out}: resume it" if out else "nothing was saved: give out=FOLDER"
    with (
        tempfile.TemporaryDirectory(prefix=_FOLDER, dir=out) as name,
        contextlib.ExitStack() as stack,
        Interruptible() as interrupt,
    ):
        made, retries, folder = workers.executor, workers.retries, Path(name).absolute()
        if isinstance(made, str):
            kind, given, often = _parsed(made)
            made, retries = _made(kind, given, folder, stack), retries if often is None else often
        yield Units(made, retries, folder, kept, interrupt)


def _pickled(what: str, value: Any) -> bytes:
    try:
        return _imported("cloudpickle", "cloudpickle").dumps(value)
    except InvalidInput:
        raise
    except Exception as error:  # whatever the objects of a user raise
        raise InvalidInput(f"{what} cannot be sent to a worker: {' '.join(str(error).split())}") from None


def _unpickled(content: bytes) -> Any:
    with jax.enable_x64(True):  # arrays of 64 bits stay such
        return _imported("cloudpickle", "cloudpickle").loads(content)


def _imported(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InvalidInput(f"executor: {error}; install it: pip install '{package}'") from None
