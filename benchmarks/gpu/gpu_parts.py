"""What a GPU makes of fedsolve: tests, bits, layouts, speed, memory and copies; a table, and benchmarks/gpu.json.

    make gpu                                  on a machine with an NVIDIA GPU, 20 minutes at most
    python benchmarks/gpu/gpu_parts.py --cpu        tiny sizes on this machine's CPU, to try the script
    python benchmarks/gpu/gpu_parts.py bits n1 n2   these parts alone, again

Each part is a process of its own with a time limit; those that measure no time run first, side by side. One that fails
says so in the table, and the next one begins. What went well is kept: the same command goes on with the parts that are
missing. `--fresh` begins anew, `--minutes` is the time for all, `--out` another file.

Python: `--python`, else this one if its JAX finds a GPU, else `.venv-gpu`, into which JAX for CUDA and PyTorch are
installed first. A machine without a network can bring its own JAX and PyTorch: packages that fedsolve needs beside
them go on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
OUT = ROOT / "benchmarks" / "gpu.json"
TRIED = ROOT / "runs" / "gpu-on-cpu.json"
VENV = ROOT / ".venv-gpu"
_KEPT = 600  # characters of what a failed part said last
_RUNNING: set[int] = set()  # processes of parts, each of which leads its group
_VERSIONS = """import json; from importlib.metadata import distributions
found = {d.name: d.version for d in distributions()}
print(json.dumps({name: found[name] for name in ("jax", "numpy", "torch") if name in found}))"""
_PROBE = "import jax; print(jax.devices()[0].platform, jax.devices()[0].device_kind, sep=';')"


class Part(NamedTuple):
    """One thing that is measured.

    Attributes:
        command: the words behind Python; it prints {"rows": {label: text}, ...} as JSON, the last line counting.
        seconds: that it may take.
        tiny: words that are added for a try on a CPU.
        timed: whether it measures time, and so has the machine for itself; the others run side by side.
    """

    command: Sequence[str]
    seconds: float
    tiny: Sequence[str] = ("--tiny",)
    timed: bool = True


def own(name: str, seconds: float, *words: str, timed: bool = True) -> Part:
    return Part((f"benchmarks/gpu/{name}.py", *words), seconds, timed=timed)


def work(name: str, seconds: float = 120) -> Part:
    """A work of bench.py with its PyTorch loop on the GPU."""
    return Part(
        ("benchmarks/bench.py", "--one", name, "--torch", "cuda"), seconds, ("--torch", "cpu", "--tiny")
    )


PARTS = {
    "device": own("device", 90),
    "bits": own("same_bits", 300, timed=False),
    "layouts": own("layouts", 240),
    "flute": own("flute", 180),
    **{name: work(name) for name in ("n1", "n2", "n3", "w2", "w1", "w3", "w4", "w5", "n4", "modules")},
    "sweeps": work("sweeps", 180),
    "memory": own("memory", 180, timed=False),
    "streams": own("copies", 90),
    "float64": own("reference_tests", 300, "equations", timed=False),
    "conformance": own("reference_tests", 300, "conformance", timed=False),
}


def run(parts: Mapping[str, Part], python: str, kind: str, given: argparse.Namespace) -> dict[str, Any]:
    """Run the parts that have not gone well on this kind of device yet; the file has the results after each."""
    result = load(given.out)
    if given.fresh or result["processor"] != kind:
        result = empty(kind)
    end = time.monotonic() + 60 * given.minutes
    left = {n: p for n, p in parts.items() if n in given.parts or not result["parts"].get(n, {}).get("ok")}
    lock = threading.Lock()

    def go(name: str) -> None:
        print(f"{name} ...", flush=True)
        remaining = end - time.monotonic()
        if remaining < 5:
            entry, works = {"ok": False, "why": "no time was left: run the same command again"}, {}
        else:
            entry, works = one(left[name], python, min(left[name].seconds, remaining), given.cpu)
        with lock:
            result["parts"][name] = entry
            result["works"] |= works
            if entry["ok"] and (limits := entry.get("limits")):
                result["layout"] = {kind: limits}
            write(given.out, result)
            print(f"{name}: {line(entry)}", flush=True)

    with ThreadPoolExecutor() as side_by_side:
        try:
            [*side_by_side.map(go, [name for name, part in left.items() if not part.timed])]
        except KeyboardInterrupt:
            for process in [*_RUNNING]:
                os.killpg(process, signal.SIGKILL)
            raise
    for name in (name for name, part in left.items() if part.timed):
        go(name)
    return result


def one(part: Part, python: str, seconds: float, cpu: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a part printed last and the times that it noted; `why` where it failed."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        lines, text = Path(folder) / "lines", Path(folder) / "text"
        command = [python, *part.command, *(part.tiny if cpu else ())]
        with text.open("w") as out:
            why = _ended(command, environment(lines, cpu), seconds, out)
        said = text.read_text(errors="replace")
        works = noted(lines, python)
    entry: dict[str, Any] = {"ok": not why, "seconds": round(time.monotonic() - begun, 1)}
    entry |= last_found(said)
    if works:
        entry["rows"] = {key: _ratios(found) for key, found in works.items()}
    if why:
        entry["why"] = f"{why}: {said.strip()[-_KEPT:]}" if said.strip() else why
    return entry, works


def _ended(command: Sequence[str], environment: Mapping[str, str], seconds: float, out: Any) -> str:
    """Run a command to its end or its limit, with all that it started; why it did not go well, else ''."""
    try:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**environment, "FEDSOLVE_SECONDS": str(seconds)},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return str(error)
    _RUNNING.add(process.pid)
    try:
        status = process.wait(seconds)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as ended:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(ended, KeyboardInterrupt):
            raise
        return f"took longer than {seconds:.0f} s"
    finally:
        _RUNNING.discard(process.pid)
    return "" if status == 0 else f"ended with status {status}"


def environment(lines: Path, cpu: bool) -> dict[str, str]:
    """Of a part: where times are noted, and memory taken as it is needed, since PyTorch is on the same GPU."""
    paths = [str(ROOT / "src"), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    variables = {
        "FEDSOLVE_BENCH_LINES": str(lines),
        "FEDSOLVE_CACHE": "off",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    if cpu:
        variables |= {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    return os.environ | variables


def last_found(said: str) -> dict[str, Any]:
    """The last line that is a JSON object."""
    for text in reversed(said.splitlines()):
        if text.startswith("{"):
            try:
                return json.loads(text)
            except ValueError:
                continue
    return {}


def noted(lines: Path, python: str) -> dict[str, Any]:
    """The times of works that bench.py noted, by their key, with the versions that this Python has."""
    if not lines.exists():
        return {}
    asked = subprocess.run([python, "-c", _VERSIONS], capture_output=True, text=True)
    about = {"date": datetime.date.today().isoformat(), "versions": json.loads(asked.stdout or "{}")}
    entries = [about | json.loads(text) for text in lines.read_text().splitlines()]
    return {entry.pop("key"): entry for entry in entries}


def _ratios(work: Mapping[str, Any]) -> str:
    times = {name: sorted(values)[len(values) // 2] for name, values in work["times"].items()}
    return ", ".join(f"{name} {value:.4g}" for name, value in times.items()) + f" {work['unit']}"


def empty(kind: str) -> dict[str, Any]:
    """Results of a device of which nothing is measured."""
    return {"processor": kind, "parts": {}, "works": {}, "layout": {}}


def load(path: Path) -> dict[str, Any]:
    """What the file has, or nothing."""
    try:
        return empty("") | json.loads(path.read_text())
    except (OSError, ValueError):
        return empty("")


def write(path: Path, result: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1)
    text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: "[" + re.sub(r",\s+", ", ", m[1]) + "]", text)
    part = path.with_suffix(".part")
    part.write_text(text + "\n")
    part.replace(path)


def line(entry: Mapping[str, Any]) -> str:
    """A part in words."""
    rows = "; ".join(f"{label}: {text}" for label, text in entry.get("rows", {}).items())
    last = entry.get("why", "").strip().splitlines()
    words = [*([rows] if rows else []), *([f"FAILED, {last[0][:100]} ... {last[-1][:160]}"] if last else [])]
    return "; ".join(words) or "done"


def table(result: Mapping[str, Any]) -> str:
    """All parts, those that failed included."""
    lines = [f"{result['processor']}"]
    for name, entry in result["parts"].items():
        lines.append(f"{name:12} {'ok' if entry['ok'] else 'FAILED':7} {entry.get('seconds', 0):6.1f} s")
        lines += [f"    {label}: {text}" for label, text in entry.get("rows", {}).items()]
        lines += [f"    {text}" for text in entry.get("why", "").strip().splitlines()[-3:]]
    return "\n".join(lines)


def gpu_of(python: str) -> str:
    """The kind of the GPU that JAX of that Python finds; '' for none."""
    try:
        ran = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    platform, _, kind = (ran.stdout.splitlines() or [""])[-1].partition(";")
    return kind if ran.returncode == 0 and platform != "cpu" else ""


def installed(given: str | None) -> tuple[str, str]:
    """A Python whose JAX finds a GPU, and the GPU's kind; '' where none can be had."""
    of_venv = str(VENV / "bin" / "python")
    for python in (given,) if given else (of_venv, sys.executable):
        if kind := gpu_of(python):
            return python, kind
    if given:
        return given, ""
    print(f"installing JAX for CUDA and PyTorch into {VENV}", flush=True)
    pip = [of_venv, "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt"]
    for command in (
        [sys.executable, "-m", "venv", str(VENV)],
        [*pip, "--editable", ".[digits,arrow,privacy]", f"jax[{cuda()}]"],
        [*pip, "pytest", "pytest-xdist", "hypothesis", "flax", "cvxpy"],
        [*pip, "torch==2.13.0"],
    ):
        try:
            failed = subprocess.run(command, cwd=ROOT).returncode
        except OSError as error:
            failed = error
        if failed:
            print(f"this failed ({failed}), the rest goes on: {' '.join(command)}", flush=True)
    return of_venv, gpu_of(of_venv)


def cuda() -> str:
    """The CUDA that the driver has: 13 from driver 580 on."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(asked, capture_output=True, text=True).stdout.split(".")[0]
    except OSError:
        return "cuda12"
    return "cuda13" if driver.strip().isdigit() and int(driver) >= 580 else "cuda12"


def main(words: Sequence[str] | None = None, parts: Mapping[str, Part] = PARTS) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}; all by default")
    parser.add_argument("--cpu", action="store_true", help="tiny sizes on the CPU, to try the script")
    parser.add_argument("--python", help="the Python to use")
    parser.add_argument("--out", type=Path, help=f"the file of results ({OUT.relative_to(ROOT)})")
    parser.add_argument("--minutes", type=float, default=20, help="for all parts (20)")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    given = parser.parse_args(words)
    if unknown := {*given.parts} - {*parts}:
        parser.error(f"no part is called {', '.join(sorted(unknown))}; parts: {', '.join(parts)}")
    given.out = given.out or (TRIED if given.cpu else OUT)
    begun = time.monotonic()
    python, kind = (given.python or sys.executable, "cpu") if given.cpu else installed(given.python)
    if not kind:
        print(
            "no GPU was found by JAX, and none of its versions for CUDA could be installed; --cpu tries the script"
        )
        return 1
    given.minutes -= (time.monotonic() - begun) / 60
    chosen = {name: part for name, part in parts.items() if not given.parts or name in given.parts}
    result = run(chosen, python, kind, given)
    print(table(result))
    missed = [name for name in chosen if not result["parts"][name]["ok"]]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} parts went well; results: {given.out}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
