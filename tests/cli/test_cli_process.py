"""What only a real process shows: start-up, signals, pipes, several devices."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import jax
import pytest
from cli_small import SMALL

import fedsolve as fs
from fedsolve.cli import processes as joining
from fedsolve.cli.processes import PLACE, free_port
from fedsolve.core.xla.compiler import cores
from fedsolve.deploy.processes import descendants, is_alive
from programs import ProgramsDropped, cache_folder, mappings

COMMAND = (sys.executable, "-c", "import sys; from fedsolve.cli.main import main; sys.exit(main())")


def fedsolve(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120, **options)


def test_help_and_wrong_options_do_not_wait_for_jax():
    code = """
import sys; from fedsolve.cli.main import main
for words in (["--help"], ["run", "--help"], ["sweep", "--help"], ["run", "--nonsense"], ["--version"]):
    main(words)
    assert not set(["jax", "numpy", "matplotlib"]) & set(sys.modules), words
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "130 interrupted" in " ".join(ended.stdout.split())
    assert "2 invalid input" in ended.stdout


@pytest.mark.full
def test_a_reader_that_goes_away_is_no_error():
    process = subprocess.Popen(
        [*COMMAND, "list", "schedules"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 0


@pytest.mark.full
def test_ctrl_c_saves_and_the_resumed_run_has_the_same_bits(call, no_pictures):
    run = ("run", "digits", "FedAvg", *SMALL, "--rounds", "3000", "--eval-every", "40")
    process = subprocess.Popen(
        [*COMMAND, *run, "--out", "r"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "round" in line:
            break
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1].endswith("resume with: fedsolve run --resume r")
    assert "Traceback" not in errors
    assert call("show", "r", "--json").document["methods"][0]["rounds"] < 3000
    assert call("run", "--resume", "r").code == 0
    assert call(*run, "--out", "whole").code == 0
    assert Path("r/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()


@pytest.mark.full
def test_large_steps_take_the_cores_as_devices_and_a_resumed_run_those_that_it_had(bare_env):
    """Nothing is said of devices; a run that Python left on one device stays there."""
    del bare_env["JAX_NUM_CPU_DEVICES"]
    sizes = {"num_clients": 4, "examples_per_client": 20_000, "features": 4}
    run = ["run", "regression", "FedAvg", "--rounds=1", *(f"--task-set={n}={v}" for n, v in sizes.items())]
    large, small = ([*run, "--batch-size", size, "--out", size] for size in ("full", "5"))
    code = f"import sys; from fedsolve.cli.main import main; sys.exit(main({large}) or main({small}))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=bare_env)
    assert ended.returncode == 0, ended.stderr
    for folder, devices in (("full", min(4, cores())), ("5", 1)):
        assert f"devices = {devices}\n" in Path(folder, "config.toml").read_text()
    fs.run(
        fs.FedAvg(),
        fs.tasks.build("regression", **sizes),
        rounds=1,
        batch_size="full",
        out="python",
        devices=1,
    )
    ended = fedsolve("run", "--resume", "python", "--rounds", "2", env=bare_env)
    assert ended.returncode == 0, ended.stderr
    assert "other devices" not in ended.stdout + ended.stderr


@pytest.mark.full
def test_the_cores_of_a_cpu_as_devices_and_the_users_cache(bare_env, tmp_path):
    variables = bare_env | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    del variables["JAX_COMPILATION_CACHE_DIR"], variables["JAX_NUM_CPU_DEVICES"]
    sizes = (f"--task-set={name}=4" for name in ("num_clients", "examples_per_client", "features"))
    run = ("run", "regression", "FedAvg", *sizes, "--rounds", "1", "--devices", "2")
    ended = fedsolve(*run, "--out", "r", env=variables)
    assert ended.returncode == 0, ended.stderr
    assert "devices = 2" in Path("r/config.toml").read_text()
    programs = list((tmp_path / "cache" / "fedsolve" / "jax").glob("*-cache"))
    assert programs  # compiled programs are kept
    for path in programs:  # as a process that is killed leaves them
        path.write_bytes(path.read_bytes()[:100])
    again = fedsolve(*run, "--out", "again", env=variables)
    assert again.returncode == 0, again.stderr
    assert "cache" not in again.stderr  # nothing is said of what is damaged
    assert Path("again/model.safetensors").read_bytes() == Path("r/model.safetensors").read_bytes()
    assert all(path.stat().st_size > 100 for path in programs)


# `fedsolve run --processes`: the bits of one process, and what is said where a process is lost or never comes.

SIZES = [f"--task-set={name}=4" for name in ("num_clients", "examples_per_client", "features")]
RUN = ("run", "regression", "SCAFFOLD", *SIZES)
LONG = (*RUN, "--rounds", "100000", "--eval-every", "50000")


def fedsolve_processes(*arguments: str, env: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedsolve", *arguments]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=300)
    return process.returncode, out, errors


def model(folder: str) -> bytes:
    return Path(folder, "model.safetensors").read_bytes()


@pytest.mark.full
def test_two_processes_have_the_bits_of_one_with_two_devices(bare_env):
    """What is printed is the first one's, and as JSON nothing but JSON; one process goes on with the same bits."""
    code, out, errors = ended(
        fedsolve_processes(*RUN, "--rounds", "2", "--processes", "2", "--out", "two", "--json", env=bare_env)
    )
    assert code == 0, errors
    assert json.loads(out)["status"] == "finished"
    assert errors.count("finished") == 1
    assert "devices = 2" in Path("two/config.toml").read_text()
    one = ("--devices", "2", "--out", "one")
    env = bare_env | {"JAX_NUM_CPU_DEVICES": "2"}
    assert ended(fedsolve_processes(*RUN, "--rounds", "2", *one, env=env))[0] == 0
    assert model("two") == model("one")


def member(parent: subprocess.Popen[str], index: int, folder: str) -> int:
    """The process of a run with this number, once there is a checkpoint."""
    until = time.monotonic() + 200
    while not Path(folder, "checkpoint.safetensors").exists():
        assert parent.poll() is None, parent.communicate()
        assert time.monotonic() < until
        time.sleep(0.1)
    for pid in descendants(parent.pid):
        if f" {index}\0" in f"{variable(pid)}\0":
            return pid
    raise AssertionError("no such process")


def variable(pid: int) -> str:
    entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return next((entry for entry in entries if entry.startswith(f"{PLACE}=")), "")


@pytest.mark.full
@pytest.mark.parametrize("index", [0, 1])
def test_a_process_that_dies_ends_the_run(index, bare_env):
    """One line, exit code 4, nobody left; from the checkpoint one process goes on to the bits of an undisturbed run."""
    parent = fedsolve_processes(*LONG, "--processes", "2", "--out", "r", env=bare_env)
    lost = member(parent, index, "r")
    family = descendants(parent.pid)
    os.kill(lost, signal.SIGKILL)
    code, _, errors = ended(parent)
    assert code == 4
    (line,) = [line for line in errors.splitlines() if line.startswith("error:")]
    assert (
        ("has lost another" in line and "is kept in r" in line)
        if index
        else "process 0 of 2 was killed" in line
    )
    assert "Traceback" not in errors
    assert not any(map(is_alive, family))
    finish_and_compare(bare_env)


@pytest.mark.full
def test_ctrl_c_stops_all_processes(bare_env):
    """The state is saved, and the run goes on to the bits of an undisturbed one."""
    parent = fedsolve_processes(*LONG, "--processes", "2", "--out", "r", env=bare_env)
    member(parent, 0, "r")
    family = descendants(parent.pid)
    parent.send_signal(signal.SIGINT)
    code, _, errors = ended(parent)
    assert code == 130
    assert errors.splitlines()[-1].endswith("resume with: fedsolve run --resume r")
    assert not any(map(is_alive, family))
    finish_and_compare(bare_env)


def finish_and_compare(env: dict[str, str]) -> None:
    two = env | {"JAX_NUM_CPU_DEVICES": "2"}
    code, _, errors = ended(fedsolve_processes("run", "--resume", "r", env=two))
    assert code == 0, errors
    assert ended(fedsolve_processes(*LONG, "--processes", "2", "--out", "whole", env=env))[0] == 0
    assert model("r") == model("whole")


@pytest.mark.full
def test_a_process_that_never_comes(bare_env):
    """The one that waits ends by its deadline, with a line."""
    code = "from fedsolve.cli.processes import join; join(2.0)"
    env = bare_env | {PLACE: f"127.0.0.1:{free_port()} 2 0"}
    waits = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert waits.returncode == 4
    said = "error: not all processes of the run have come within 2 seconds: see that each is started"
    assert said in waits.stderr.splitlines()


@pytest.mark.parametrize("place", ["", "127.0.0.1:1 2", "127.0.0.1:1 2 2", "127.0.0.1:1 two 0"])
def test_a_place_that_is_none(place, call, monkeypatch):
    monkeypatch.setenv(PLACE, place)
    assert "must be ADDRESS:PORT COUNT INDEX" in call(*RUN, "--rounds", "1").err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--devices", "3"), "the processes cannot share the run's 3 devices evenly"),
        (("--seeds", "2"), "--processes shares one run: leave out --seeds"),
    ],
)
def test_what_processes_cannot_share(more, words, call):
    ended = call(*RUN, "--rounds", "1", "--processes", "2", *more)
    assert ended.code == 2
    assert words in ended.err


def test_who_is_started_as_one_of_several(monkeypatch):
    """By the variables of Slurm, Open MPI and Kubernetes that JAX goes by; alone in a job is alone."""
    for name in (PLACE, "SLURM_STEP_NODELIST", "OMPI_MCA_orte_hnp_uri", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    assert not joining.is_started()
    cases = [
        {PLACE: "127.0.0.1:1 2 0"},
        {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_NTASKS": "2"},
        {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://127.0.0.1:1", "OMPI_COMM_WORLD_SIZE": "2"},
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"},
    ]
    for case in cases:
        with monkeypatch.context() as m:
            for name, value in case.items():
                m.setenv(name, value)
            assert joining.is_started(), case
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n1")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert not joining.is_started()


# The tests' cache of compiled programs is the one that is used, whatever the command line does in this process.


def kept(name: str) -> list[Path]:
    return [path for path in cache_folder().iterdir() if name in path.name]


def test_a_command_leaves_the_cache_where_it_is(call, no_pictures):
    """A program compiled after a run on the command line lies in the tests' folder, however fast it compiled.

    JAX opens one cache a process, at its first program: were a command to redirect it, all that this worker compiles
    afterwards would be thrown away.
    """
    assert call("run", "digits", "FedAvg", *SMALL, "--out", "r").code == 0
    name = f"f{uuid.uuid4().hex}"

    def f(x):
        return x + 1

    f.__name__ = name
    assert float(jax.jit(f)(1.0)) == 2.0
    found = kept(name)
    assert found
    for path in found:  # nobody will ask for it again
        path.unlink()


def test_the_folder_is_the_users_and_of_this_jax(monkeypatch):
    """A second clone finds what the first compiled; a variable chooses another folder."""
    monkeypatch.delenv("FEDSOLVE_TEST_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path(f"/somewhere/fedsolve/tests-jax-{jax.__version__}")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "fedsolve" / f"tests-jax-{jax.__version__}"
    monkeypatch.setenv("FEDSOLVE_TEST_CACHE", "/chosen")
    assert cache_folder() == Path("/chosen")


@pytest.mark.skipif(
    not os.path.exists("/proc/self/maps"), reason="only Linux limits mappings so low, and tells them"
)
def test_programs_are_dropped_when_the_process_holds_too_many_mappings(monkeypatch):
    """Not below the limit; above it the compiled function compiles anew at its next call."""
    f = jax.jit(lambda x: x * 3 + 1)
    f(1.0)
    dropped = ProgramsDropped()
    monkeypatch.setattr(ProgramsDropped, "MOST", mappings() + 10_000)
    dropped.pytest_runtest_teardown()
    assert f._cache_size() == 1
    assert 0 < dropped.tests_to_go <= 20
    monkeypatch.setattr(ProgramsDropped, "MOST", mappings() - 10)
    dropped.tests_to_go = 0
    dropped.pytest_runtest_teardown()
    assert f._cache_size() == 0
