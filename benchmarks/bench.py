"""Speed, measured in turns: the library against the same work written by hand, in PyTorch, or run one by one.

    make bench                               all works, kept in benchmarks/results/ and checked
    python benchmarks/bench.py w1 w3         these works, on the terminal alone
    python benchmarks/bench.py --store n1    and their times in benchmarks/results/; docs/benchmarks.md shows them
    python benchmarks/bench.py --check       whether what is stored of this processor keeps its bounds (bounds.py)

Each work runs in a process of its own, as a run of its own would: its devices are those that a run chooses. Each
repetition times every program of a work once (measure.py). With works and `--check` their own bounds are checked;
the exit status is 1 if one does not hold, with a line for each. `--tiny` only shows that works run, and `--torch cuda`
has the PyTorch loops on a GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import stored
from measure import Setting
from speed_bounds import BOUNDS, broken

WORKS = {
    "start": ("starts", "start"),
    "second-start": ("starts", "second_start"),
    "make-run": ("starts", "make_run"),
    "w1": ("convex_works", "w1"),
    "w2": ("networks", "w2"),
    "w3": ("convex_works", "w3"),
    "w4": ("convex_works", "w4"),
    "w5": ("networks", "w5"),
    "w6": ("convex_works", "w6"),
    "n1": ("networks", "n1"),
    "n2": ("networks", "n2"),
    "n3": ("networks", "n3"),
    "n4": ("torch_modules", "n4"),
    "modules": ("torch_modules", "modules"),
    "large": ("large_modules", "large"),
    "language": ("language_models", "language"),
    "sweeps": ("sweeps", "sweeps"),
    "torch-client": ("torch_client", "measure"),
}
"""Module and function of each work."""
APART = {"federation": ("real_round", "federation")}
"""Real federations, which have no bounds: measured where they are named."""
SECONDS = 900  # of a work at most


def one(name: str, setting: Setting) -> None:
    """A work, in this process."""
    from fedsolve.core.xla.compiler import make_cores_devices

    module, function = (WORKS | APART)[name]
    make_cores_devices()
    try:
        work = getattr(__import__(module), function)
    except ImportError as error:
        print(f"{name} is left out: {error}")
        return
    work(setting)


def alone(name: str, options: list[str], lines: Path) -> bool:
    """A work in a process of its own, its times appended to a file; whether it ran to its end."""
    command = [sys.executable, __file__, "--one", name, *options]
    try:
        return subprocess.run(command, env=stored.collecting(lines), timeout=SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def checked(works: dict, keys: set[str] | None = None) -> int:
    """Print what does not hold, of these keys or of all; the exit status."""
    bounds = [bound for bound in BOUNDS if keys is None or bound.work in keys]
    lines = broken(works, bounds)
    for line in lines:
        print(line)
    print(f"{len(bounds) - len(lines)} of {len(bounds)} bounds hold")
    return 1 if lines else 0


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"of {', '.join((*WORKS, *APART))}")
    parser.add_argument("--store", action="store_true", help="keep the times in benchmarks/results/")
    parser.add_argument("--check", action="store_true", help="fail where a bound does not hold")
    parser.add_argument("--tiny", action="store_true", help="sizes that only show that works run")
    parser.add_argument("--torch", default="cpu", help="PyTorch's device: cpu or cuda")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if unknown := [name for name in given.works if name not in WORKS | APART]:
        parser.error(f"no work is called {', '.join(unknown)}; works: {', '.join((*WORKS, *APART))}")
    if given.store and given.tiny:
        parser.error("--tiny measures nothing that could be stored")
    if given.one:
        one(given.works[0], Setting(given.tiny, given.torch))
        return 0
    path = stored.path_of(stored.processor())
    if given.check and not given.works and not given.store:
        return checked(stored.load(path)["works"])
    options, failed, found = [*(["--tiny"] if given.tiny else []), "--torch", given.torch], [], {}
    with tempfile.TemporaryDirectory() as folder:
        for name in given.works or WORKS:
            lines = Path(folder) / f"{name}.jsonl"
            if not alone(name, options, lines):
                failed.append(name)
            new = stored.collected(lines)
            found |= new
            if given.store and new:
                stored.store(new)
    if failed:
        print(f"these works failed: {', '.join(failed)}")
    if given.store:
        print(f"stored in {os.path.relpath(path)}; `make generate` writes docs/benchmarks.md from it")
    status = checked(found, set(found) if given.works else None) if given.check else 0
    return 1 if failed else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
