"""What only a real process shows: start-up, signals, pipes, several devices."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_small import SMALL

import fedsolve as fs
from fedsolve.core.xla.compiler import cores

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
    assert "2 bad input" in ended.stdout


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
