"""docs/benchmarks.md: the tables that `python benchmarks/bench.py --store` left, by processor."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
HEAD = """\
# Benchmarks

For readers who want to know what fedsolve costs. After this page you can repeat each measurement.

`make bench` runs each program and the same work written by hand in plain JAX or PyTorch in turns, in one process. A
ratio is the median of the time of a program divided by the time of the program beside it, so less than 1 is faster; of
sweeps it is how many times longer than the sweep. The bound of a ratio is in parentheses; some ratios exceed theirs.

`python benchmarks/bench.py --store` replaces the results of its processor, and `make generate` writes this page.
`benchmarks/FINDINGS.md` explains the numbers. `benchmarks/accuracies.csv` has what networks reach on federated data.
"""


def page(results: list[dict[str, Any]] | None = None) -> str:
    """The page, of these contents of result files, or of those that are stored."""
    if results is None:
        results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    return "\n".join([HEAD, *(line for result in results for line in _section(result))])


def _section(result: dict[str, Any]) -> Iterator[str]:
    yield f"## {result['processor']}, {result['cores']} cores\n"
    measured = {_measured(table) for table in result["tables"]}
    yield f"Measured on {'; '.join(sorted(measured))}. Ratios:\n"
    tables = {table["title"]: table for table in result["tables"]}  # of two alike the later one has more rows
    for title, table in tables.items():
        if "  against " not in title:  # the same times beside another program
            yield _item(table, len(measured) > 1)
    yield ""


def _item(table: dict[str, Any], is_dated: bool) -> str:
    """The work, the time of what it is compared with, and the ratios of the others; the file has every column."""
    columns = table["columns"]
    time, ratio = (
        columns[1],
        next(i for i, name in enumerate(columns) if name.startswith(("ratio to ", "times "))),
    )
    name, _, title = re.sub(r"(\d) ?x ?(\d)", r"\1 × \2", table["title"]).partition("  ")
    dated = f" ({table['date']})" if is_dated else ""
    unit = time.replace(" (median)", "")
    base = columns[ratio].removeprefix("ratio to ").removeprefix("times the ")
    others = [row for row in table["rows"] if row[0] != base and not row[0].endswith("side by side")]
    entries = [f"{row[0]} {_ratio(row, ratio, unit)}" for row in others]
    (of_base,) = [row[1] for row in table["rows"] if row[0] == base]
    first = f"{base[0].upper()}{base[1:]}: {of_base} {unit}"
    return f"* **{name}**: {title}{dated}. {first}. {'; '.join(entries)}."


def _ratio(row: list[str], ratio: int, unit: str) -> str:
    """A row's ratio with its bound, or its time where it has no ratio."""
    bound = f" ({row[-1]})" if row[-1] else ""
    return (row[ratio] or f"{row[1]} {unit}") + bound


def _measured(table: dict[str, Any]) -> str:
    """When, and with which versions."""
    return f"{table['date']} with " + ", ".join(f"{name} {n}" for name, n in table["versions"].items())
