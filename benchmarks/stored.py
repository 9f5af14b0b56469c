"""What benchmarks find: tables on the terminal, and times in benchmarks/results/, a file for each kind of processor.

Which of two programs is faster may depend on the processor.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
_LINES = "FEDSOLVE_BENCH_LINES"  # a file that this process and its children append to
_DIGITS = 5
_console = Console(width=120)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; columns without a name are left out."""
    shown = Table(title=title, title_justify="left")
    kept = [i for i, column in enumerate(columns) if column]
    for i in kept:
        shown.add_column(columns[i], justify="right" if i else "left")
    for row in rows:
        shown.add_row(*(row[i] for i in kept))
    _console.print(shown)


def record(entry: Mapping[str, Any]) -> None:
    """Note a work, {"key", "about", "unit", "base", "times": {program: [...]}}, where works are collected."""
    times = {
        name: [float(f"{value:.{_DIGITS}g}") for value in values] for name, values in entry["times"].items()
    }
    if path := os.environ.get(_LINES):
        with open(path, "a") as file:
            file.write(json.dumps({**entry, "times": times}) + "\n")


def processor() -> str:
    """The name of the processor, such as `AMD EPYC`."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    named = re.search(r"^model name\s*: (.*)$", text, re.M)
    return named[1].strip() if named else platform.machine()


def collecting(lines: Path) -> dict[str, str]:
    """The environment of a process whose times are noted in this file."""
    return {**os.environ, _LINES: str(lines), "FEDSOLVE_CACHE": "off"}


def collected(lines: Path) -> dict[str, dict[str, Any]]:
    """The noted times by their key, each with its date and versions."""
    if not lines.exists():
        return {}
    about = {
        "date": datetime.date.today().isoformat(),
        "versions": {name: version(name) for name in ("fedsolve", "jax", "numpy", "torch") if _has(name)},
    }
    entries = [json.loads(line) for line in lines.read_text().splitlines()]
    return {entry.pop("key"): about | entry for entry in entries}


def path_of(name: str) -> Path:
    """The results of a processor of that name."""
    return RESULTS / f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.json"


def load(path: Path) -> dict[str, Any]:
    """Stored results, {"processor", "cores", "works": {key: times}}; none where there is no file."""
    empty = {"processor": processor(), "cores": os.cpu_count(), "works": {}}
    return json.loads(path.read_text()) if path.exists() else empty


def store(new: Mapping[str, dict[str, Any]]) -> Path:
    """Write times to the file of this processor; those of other works that it has stay."""
    path = path_of(processor())
    content = load(path)
    content |= {"processor": processor(), "cores": os.cpu_count()}
    content["works"] = dict(sorted((content["works"] | new).items()))
    RESULTS.mkdir(exist_ok=True)
    write(path, content)
    return path


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Readable JSON with a line for each program."""
    text = json.dumps(content, indent=1)
    text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: "[" + re.sub(r",\s+", ", ", m[1]) + "]", text)
    part = path.with_suffix(".part")
    part.write_text(text + "\n")
    part.replace(path)


def _has(name: str) -> bool:
    try:
        version(name)
    except Exception:
        return False
    return True
