"""What is settled before JAX starts: devices of a CPU, the cache of programs, and the other processes of a run."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any

from fedsolve.cli.console import fail
from fedsolve.core.errors import InvalidInput, Unavailable


def start_jax(devices: int | None = 1) -> None:
    """Keep compiled programs in the user's cache folder, and let a CPU count as `devices` devices, None for its cores.

    JAX's own variables (JAX_COMPILATION_CACHE_DIR, JAX_NUM_CPU_DEVICES) are respected. Where JAX has
    started already, the number of devices stays. No more devices than cores: they would wait for one another.
    """
    import jax

    from fedsolve.core.xla.compiler import DEVICES_VARIABLE, cores, make_cores_devices, use_compile_cache

    use_compile_cache()
    if devices is None:
        make_cores_devices()
    elif devices > 1 and DEVICES_VARIABLE not in os.environ:
        try:
            jax.config.update("jax_num_cpu_devices", min(devices, cores()))  # the engine refuses what is more
        except RuntimeError:  # JAX has started: the engine says how many devices there are
            return


# Joining the other processes of a run: of `--processes`, or of Slurm, Open MPI or Kubernetes as JAX finds them.


PLACE = "FEDSOLVE_PROCESS"
"""The variable by which a process knows its place where nothing else says so: ADDRESS:PORT COUNT INDEX."""
_SECONDS = 300.0
# what JAX goes by, and where each says how many processes there are
_LAUNCHERS = {"SLURM_STEP_NODELIST": "SLURM_NTASKS", "OMPI_MCA_orte_hnp_uri": "OMPI_COMM_WORLD_SIZE"}
_INDEXED_JOB = {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"}  # whose size JAX asks for
_joined = False


def is_started() -> bool:
    # whether this process is one of several, started by a launcher or by `--processes`
    sizes = [os.environ.get(size, "1") for mark, size in _LAUNCHERS.items() if mark in os.environ]
    several = any(size != "1" for size in sizes)
    return PLACE in os.environ or several or os.environ.keys() >= _INDEXED_JOB


def spread(config: Any, processes: int, resumed: bool) -> Any:
    """A configuration of a run whose devices are those of so many processes: one each where it does not say."""
    # So too where a run that is `resumed` had devices that they cannot share.
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
    """Meet the other processes; nothing where this one was started alone. Before JAX has started."""
    # The process ends with a line where not all of them have come after so many seconds.
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


def exit_process(command: Callable[[], int]) -> int:
    # where others are lost, JAX would wait for them: end at once
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
    # results go to standard output, and Gloo says there whom it has reached
    sys.stdout.flush()
    own = os.dup(1)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
    sys.stdout = os.fdopen(own, "w", encoding=sys.stdout.encoding)


# Processes and ports of this machine: those of `fedsolve run --processes`, and whether a process still runs.


HOST = "127.0.0.1"
_PATIENCE = 15.0  # seconds that the others have to say why they end, once one has failed
_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3"}  # what JAX logs of a lost process is said in a line


def run_locally(arguments: Sequence[str], count: int) -> int:
    """Run a command as so many processes until all have ended; the exit code of the first, which alone is seen."""
    with tempfile.TemporaryDirectory() as logs, _processes(arguments, count, Path(logs)) as children:
        while all(child.poll() in (None, 0) for child in children):
            if all(child.returncode == 0 for child in children):
                return 0
            time.sleep(0.05)
        lost = next(i for i, child in enumerate(children) if child.returncode)
        # the first says why it ends, once it has noticed that another is gone
        with contextlib.suppress(subprocess.TimeoutExpired):
            children[0].wait(_PATIENCE)
        if (code := children[0].returncode or 0) > 0:
            return code
        words = Path(logs, f"{lost}.log").read_text(errors="replace").strip().splitlines()
    why, code = f": {words[-1]}" if words else "", children[lost].returncode
    how = f"was killed (signal {-code})" if code < 0 else f"ended with exit code {code}"
    raise Unavailable(
        f"process {lost} of {count} {how}{why}; the last checkpoint is kept: continue with --resume FOLDER"
    )


@contextlib.contextmanager
def _processes(arguments: Sequence[str], count: int, logs: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    # Ctrl-C is passed on to each, and whichever is left at the end is killed
    address = f"{HOST}:{free_port()}"
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        for child in children:
            child.send_signal(number)

    # the children are in sessions of their own: a terminal's Ctrl-C reaches this process alone
    old = {s: signal.signal(s, pass_on) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        for index in range(count):
            with open(logs / f"{index}.log", "wb") as log:
                children.append(_start(arguments, f"{address} {count} {index}", log if index else None))
        yield children
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
            child.wait()
        for number, handler in old.items():
            signal.signal(number, handler)


def _start(arguments: Sequence[str], place: str, output: IO[bytes] | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedsolve", *arguments],
        env=os.environ | _ENVIRONMENT | {PLACE: place},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,  # the terminal's Ctrl-C comes by `pass_on` alone
    )


def free_port() -> int:
    with socket.socket() as s:
        s.bind((HOST, 0))
        return s.getsockname()[1]


def is_taken(port: int) -> bool:
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((HOST, port))
        except OSError:
            return True
    return False


def is_listening(port: int) -> bool:
    with socket.socket() as s:
        s.settimeout(1.0)
        return s.connect_ex((HOST, port)) == 0
