"""Tables of benchmarks: on the terminal, and with `bench.py --store` in benchmarks/results/ (docs/benchmarks.md).

One file for each kind of processor: which of two programs is faster may depend on it.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

import fedsolve

RESULTS = Path(__file__).parent / "results"
_LINES = "FEDSOLVE_BENCH_LINES"  # a file that this process and its children append to
_console = Console(width=120)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; where tables are collected, note it."""
    shown = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        shown.add_column(column, justify="right" if i else "left")
    for row in rows:
        shown.add_row(*row)
    _console.print(shown)
    if path := os.environ.get(_LINES):
        with open(path, "a") as file:
            file.write(
                json.dumps({"title": title, "columns": [*columns], "rows": [[*r] for r in rows]}) + "\n"
            )


def processor() -> str:
    """The name of the processor, such as `AMD EPYC`."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    named = re.search(r"^model name\s*: (.*)$", text, re.M)
    return named[1].strip() if named else platform.machine()


def collect(folder: Path) -> Path:
    """Have all tables from here on noted in a file of this folder, those of child processes included."""
    path = folder / "tables.jsonl"
    os.environ[_LINES] = str(path)
    return path


def store(lines: Path, works: Sequence[str]) -> Path:
    """Write the noted tables to the file of this processor; tables of other works that it has stay."""
    target = RESULTS / f"{re.sub(r'[^a-z0-9]+', '-', processor().lower()).strip('-')}.json"
    known = json.loads(target.read_text())["tables"] if target.exists() else []
    new = [json.loads(line) for line in lines.read_text().splitlines()]
    about: dict[str, object] = {
        "date": datetime.date.today().isoformat(),
        "command": f"python benchmarks/bench.py --store {' '.join(works)}".rstrip(),
        "versions": {"fedsolve": fedsolve.__version__} | {name: version(name) for name in ("jax", "numpy")},
    }
    titles = {entry["title"] for entry in new}
    tables = [entry for entry in known if entry["title"] not in titles] + [about | entry for entry in new]
    RESULTS.mkdir(exist_ok=True)
    content = {"processor": processor(), "cores": os.cpu_count(), "tables": tables}
    target.write_text(json.dumps(content, indent=1) + "\n")
    return target
