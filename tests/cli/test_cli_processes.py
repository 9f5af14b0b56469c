"""`fedsolve run --processes`: the bits of one process, and what is said where a process is lost or never comes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsolve.cli import processes as joining
from fedsolve.cli.processes import PLACE, descendants, free_port, is_alive

SIZES = [f"--task-set={name}=4" for name in ("num_clients", "examples_per_client", "features")]
RUN = ("run", "regression", "SCAFFOLD", *SIZES)
LONG = (*RUN, "--rounds", "100000", "--eval-every", "50000")


def fedsolve(*arguments: str, env: dict[str, str]) -> subprocess.Popen[str]:
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
        fedsolve(*RUN, "--rounds", "2", "--processes", "2", "--out", "two", "--json", env=bare_env)
    )
    assert code == 0, errors
    assert json.loads(out)["status"] == "finished"
    assert errors.count("finished") == 1
    assert "devices = 2" in Path("two/config.toml").read_text()
    one = ("--devices", "2", "--out", "one")
    env = bare_env | {"JAX_NUM_CPU_DEVICES": "2"}
    assert ended(fedsolve(*RUN, "--rounds", "2", *one, env=env))[0] == 0
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
    parent = fedsolve(*LONG, "--processes", "2", "--out", "r", env=bare_env)
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
    parent = fedsolve(*LONG, "--processes", "2", "--out", "r", env=bare_env)
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
    code, _, errors = ended(fedsolve("run", "--resume", "r", env=two))
    assert code == 0, errors
    assert ended(fedsolve(*LONG, "--processes", "2", "--out", "whole", env=env))[0] == 0
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
