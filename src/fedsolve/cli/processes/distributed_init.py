"""Joining the other processes of a run: of `--processes`, or of Slurm, Open MPI or Kubernetes as JAX finds them."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from fedsolve.cli.terminal.console import fail
from fedsolve.core.errors import InvalidInput, Unavailable

PLACE = "FEDSOLVE_PROCESS"
"""The variable by which a process knows its place where nothing else says so: ADDRESS:PORT COUNT INDEX."""
_SECONDS = 300.0
# what JAX goes by, and where each says how many processes there are
_LAUNCHERS = {"SLURM_STEP_NODELIST": "SLURM_NTASKS", "OMPI_MCA_orte_hnp_uri": "OMPI_COMM_WORLD_SIZE"}
_INDEXED_JOB = {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"}  # whose size JAX asks for
_joined = False


def is_started() -> bool:
    """Whether this process was started as one of several."""
    sizes = [os.environ.get(size, "1") for mark, size in _LAUNCHERS.items() if mark in os.environ]
    several = any(size != "1" for size in sizes)
    return PLACE in os.environ or several or os.environ.keys() >= _INDEXED_JOB


def spread(config: Any, processes: int, resumed: bool) -> Any:
    """A configuration of a run whose devices are those of so many processes: one each where it does not say.

    So too where a run that is `resumed` had devices that they cannot share.

    Raises:
        InvalidInput: they cannot share its devices evenly, or what is asked for is no single run.
    """
    devices = config.run.devices or processes
    if devices % processes and resumed:
        devices = processes
    if devices % processes:
        raise InvalidInput(
            f"--processes {processes}: the processes cannot share the run's {devices} devices evenly; "
            f"give a divisor of {devices}"
        )
    if config.run.mesh is not None:
        raise InvalidInput("--processes: sharded models (run.mesh) are trained by one process; leave it out")
    if config.seeds is not None:
        raise InvalidInput("--processes shares one run: leave out --seeds, or run the seeds one by one")
    return config.model_copy(update={"run": config.run.model_copy(update={"devices": devices})})


def join(seconds: float = _SECONDS) -> None:
    """Meet the other processes; nothing where this one was started alone. Before JAX has started.

    The process ends with a line where not all of them have come after so many seconds.

    Raises:
        InvalidInput: its place among them cannot be found out.
    """
    global _joined
    if not is_started():
        return
    import jax

    given = {}
    if PLACE in os.environ:
        address, several, index = _place()
        given = {
            "coordinator_address": address,
            "coordinator_bind_address": address,
            "num_processes": several,
            "process_id": index,
            "cluster_detection_method": "deactivate",
        }
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM, which stops a run
    _keep_output_clean()
    _joined = True
    with _deadline(seconds):
        try:
            # JAX ends a process that waits in vain with a trace of its own: later than this does, with a line
            jax.distributed.initialize(**given, initialization_timeout=int(2 * seconds))
        except (RuntimeError, ValueError, OSError) as error:
            raise InvalidInput(
                f"the processes of the run cannot meet: {' '.join(str(error).split())}"
            ) from None


def left(command: Callable[[], int]) -> int:
    """What a command returns; one of several processes that failed ends here, as JAX would wait for those it lost."""
    try:
        code = command()
    except BaseException:
        if not _joined:
            raise
        traceback.print_exc()
        code = 1
    if _joined and code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _place() -> tuple[str, int, int]:
    """Address, number of processes and own place, as `PLACE` says."""
    try:
        address, several, index = os.environ[PLACE].split()
        if not 0 <= int(index) < int(several):
            raise ValueError
        return address, int(several), int(index)
    except ValueError:
        raise InvalidInput(
            f"{PLACE} = {os.environ[PLACE]!r} must be ADDRESS:PORT COUNT INDEX, such as 10.0.0.1:7000 2 0"
        ) from None


@contextlib.contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    def give_up() -> None:
        text = f"not all processes of the run have come within {seconds:g} seconds: see that each is started"
        os._exit(fail(text, Unavailable.exit_code, "--json" in sys.argv))

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _keep_output_clean() -> None:
    """Let nothing but Python write to standard output, where results go: Gloo says there whom it has reached."""
    sys.stdout.flush()
    own = os.dup(1)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
    sys.stdout = os.fdopen(own, "w", encoding=sys.stdout.encoding)
