"""docs/benchmarks.md: the tables that `python benchmarks/bench.py --store` left, by processor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
HEAD = """\
# Benchmarks

For readers who want to know what fedsolve costs. After this page you can repeat each measurement.

`make bench` runs each work and the same work written by hand in plain JAX or PyTorch (`benchmarks/handwritten.py`,
`benchmarks/torch_loop.py`) in turns, in one process. A ratio is the median over repetitions of the time of a program
divided by the time of the program beside it. A ratio below 1 is faster than that program. *Bound* is what the ratio
should keep to. The ratio of JAX to PyTorch depends on the kind of processor, so each table names it.
`python benchmarks/bench.py --store` replaces the tables of its processor, and `make generate` writes this page.
`benchmarks/FINDINGS.md` explains what makes the programs fast."""


def page(results: list[dict[str, Any]] | None = None) -> str:
    """The page, of these contents of result files, or of those that are stored."""
    if results is None:
        results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    return "\n".join([HEAD, *(line for result in results for line in _section(result)), ""])


def _section(result: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield f"## {result['processor']}, {result['cores']} cores"
    for table in result["tables"]:
        versions = ", ".join(f"{name} {number}" for name, number in table["versions"].items())
        yield from ("", f"**{table['title']}** ({table['date']}, {versions}; `{table['command']}`)", "")
        yield f"| {' | '.join(table['columns'])} |"
        yield "|---|" + "---:|" * (len(table["columns"]) - 1)
        for row in table["rows"]:
            yield f"| {' | '.join(row)} |"
