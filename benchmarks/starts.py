"""What starting costs, in fresh processes: importing, first rounds without and with compiled programs on disk.

python benchmarks/bench.py start second-start make-run
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import Setting, show

_ROOT = Path(__file__).parent.parent
_START = """
import time; t = time.perf_counter()
import fedsolve as fs; imported = time.perf_counter() - t
task = fs.tasks.digits(); loaded = time.perf_counter() - t
fs.run(fs.FedAvg(0.1), task, rounds=1, clients_per_round=20); first = time.perf_counter() - t
print(imported, loaded, first)
"""
_NETWORK = """
import time; t = time.perf_counter()
import sys; sys.path.insert(0, {folder!r})
import fedsolve as fs, networks
work = networks.{make}
loaded = time.perf_counter() - t
fs.run(fs.FedAvg(0.1), work, rounds=1, clients_per_round=10, batch_size={batch}, epochs=1)
print(loaded, time.perf_counter() - t)
"""
_NETWORKS = {
    "N1": ("n1_task(networks.WRITERS)", "n1_task([3] * 10)", 20),
    "N2": ("n2_task(20)", "n2_task(2, 16, 8)", 10),
    "N3": ("n3_task(20)", "n3_task(2, 2)", 20),
}


def start(setting: Setting) -> None:
    """Without a compilation cache: import, and the first round done and evaluated."""
    repeats = setting.pick(3, 1)
    found = [_seconds(_START, {"FEDSOLVE_CACHE": "off"}) for _ in range(repeats)]
    names = ("import fedsolve", "digits loaded", "first round")
    times = {name: list(column) for name, column in zip(names, zip(*found, strict=True), strict=True)}
    show("start", "a cold start without compiled programs on disk, until", times, unit="s")


def second_start(setting: Setting) -> None:
    """The first round of networks, evaluated: once with an empty cache folder, then with what that left."""
    for key, (usual, tiny, batch) in _NETWORKS.items():
        with tempfile.TemporaryDirectory() as folder:
            code = _NETWORK.format(
                folder=str(Path(__file__).parent), make=setting.pick(usual, tiny), batch=batch
            )
            found = [_seconds(code, {"FEDSOLVE_CACHE": folder}) for _ in range(setting.pick(4, 2))]
        (_, first), *later = found
        columns = list(zip(*later, strict=True))
        times = {"first start": [first] * len(later), "second start": list(columns[1])}
        times["of which imports and data"] = list(columns[0])
        show(f"start {key}", f"{key}'s first round done and evaluated, in a fresh process", times, unit="s")


def make_run(setting: Setting) -> None:
    """`make run`'s command, twice, each time into a new folder."""
    command = [sys.executable, "-m", "fedsolve", "compare", "--config", "experiments/digits/compare.toml"]
    command += setting.pick([], ["--rounds", "2", "--seeds", "1"])
    times = []
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(setting.pick(4, 2)):
            with tempfile.TemporaryDirectory() as out:
                begun = time.perf_counter()
                environment = _environment({"FEDSOLVE_CACHE": cache})
                asked = [*command, "--out", f"{out}/run"]
                subprocess.run(asked, cwd=_ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
                times.append(time.perf_counter() - begun)
    first, *later = times
    about = "twelve methods on the digits, three seeds each"
    show("make run", about, {"first": [first] * len(later), "second": later}, unit="s")


def _seconds(code: str, variables: dict[str, str]) -> list[float]:
    """What a fresh process prints last: numbers."""
    asked = [sys.executable, "-c", code]
    out = subprocess.run(asked, env=_environment(variables), check=True, capture_output=True, text=True)
    return [float(v) for v in out.stdout.splitlines()[-1].split()]


def _environment(variables: dict[str, str]) -> dict[str, str]:
    """Of this process, without another cache of compiled programs and without a number of devices."""
    left_out = ("JAX_COMPILATION_CACHE_DIR", "JAX_NUM_CPU_DEVICES", "XLA_FLAGS")
    return {k: v for k, v in os.environ.items() if k not in left_out} | variables
