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

`make bench` runs each program and the same work written by hand in plain JAX or PyTorch in turns, in one process
(`benchmarks/handwritten.py`, `benchmarks/torch_loop.py`). A ratio is the median over repetitions of the time of a
program divided by the time of the program beside it. A ratio below 1 is faster. *Bound* is what the ratio should keep
to; some rows do not keep to theirs. Which of JAX and PyTorch is faster depends on the kind of processor.

`python benchmarks/bench.py --store` replaces the tables of its processor, and `make generate` writes this page.
`benchmarks/FINDINGS.md` explains what makes the programs fast. `python benchmarks/accuracies.py` measures what networks
reach on federated data; its rows are in `benchmarks/accuracies.csv`.
"""
LEFT_OUT = ("minimum", "processor (min)")
"""Columns that the files have, and the page has not."""


def page(results: list[dict[str, Any]] | None = None) -> str:
    """The page, of these contents of result files, or of those that are stored."""
    if results is None:
        results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    return "\n".join([HEAD, *(line for result in results for line in _section(result))])


def _section(result: dict[str, Any]) -> Iterator[str]:
    yield f"## {result['processor']}, {result['cores']} cores\n"
    measured = {_measured(table) for table in result["tables"]}
    yield f"Measured on {'; '.join(sorted(measured))}."
    tables = {table["title"]: table for table in result["tables"]}  # of two alike the later one has more rows
    for title, table in tables.items():
        if "  against " not in title:  # the same times beside another program
            yield from _table(table, len(measured) > 1)
    yield ""


def _table(table: dict[str, Any], is_dated: bool) -> Iterator[str]:
    """A heading line and the rows; a second column of ratios, of processor time, stays in the file."""
    columns = [i for i, name in enumerate(table["columns"]) if name not in (*LEFT_OUT, "ratio")]
    name, _, title = re.sub(r"(\d) ?x ?(\d)", r"\1 × \2", table["title"]).partition("  ")
    dated = f" ({table['date']})" if is_dated else ""
    yield f"\n**{name}**: {title}{dated}\n"
    yield f"| {' | '.join(table['columns'][i] for i in columns)} |"
    yield "|---|" + "---:|" * (len(columns) - 1)
    for row in table["rows"]:
        yield f"| {' | '.join(row[i] for i in columns)} |"


def _measured(table: dict[str, Any]) -> str:
    """When, and with which versions."""
    return f"{table['date']} with " + ", ".join(f"{name} {n}" for name, n in table["versions"].items())
