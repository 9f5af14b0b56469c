"""docs/benchmarks.md and the README's table: what `python benchmarks/bench.py --store` and `make gpu` left."""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))
from speed_bounds import BOUNDS, HEADLINES, Bound  # noqa: E402

sys.path.pop()

BEGIN, END = "<!-- benchmarks: made by `make generate` -->", "<!-- end of benchmarks -->"
HEAD = """\
# Benchmarks

For readers who want to know what fedsolve costs, and how to measure it.

`make bench` times each program in turns with its reference: the same work written by hand in plain JAX or PyTorch. A
ratio is the median of (time of the program / time of the reference): lower is better, and 0.5 is half the time. Each
claim has a bound, and `python benchmarks/bench.py --check` fails where one does not hold.

The first word of a claim names its program:

* **N1** to **N3** are networks in JAX; **N4** and **module** are PyTorch modules translated to JAX.
* **W1** to **W6** are the engine's rounds for several models and numbers of clients: W5, for example, is a small CNN
  with clients of even or uneven sizes.
* **S1** and **S2** are sweeps, against their runs one after another.
* **T1** is a PyTorch client of a deployment. **start** and **make run** are times until the first results.

`make bench` replaces the results of its processor, and `make generate` writes this page and the README's table.
`make gpu` measures [a GPU](benchmarks-gpu.md). `benchmarks/FINDINGS.md` explains the numbers, and
`benchmarks/accuracies.csv` has the accuracies of networks.
"""
GPU_HEAD = """\
# On a GPU

For readers who have an NVIDIA GPU: what `make gpu` measures, and how to repeat it.

The programs are those of [Benchmarks](benchmarks.md), each next to its PyTorch loop on the same GPU; ratios below 1 are
faster. A part that failed or was interrupted says so, and the next `make gpu` repeats it. `benchmarks/gpu.json` has
all times.
"""


def stored() -> list[dict[str, Any]]:
    """The results of every processor, and of the GPU where one was measured."""
    paths = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    gpu = ROOT / "benchmarks" / "gpu.json"
    return [json.loads(path.read_text()) for path in (*paths, *([gpu] if gpu.exists() else []))]


def accelerators() -> str:
    """The limits of the layout model by kind of device, as `make gpu` measured them."""
    limits = {kind: found for result in stored() for kind, found in result.get("layout", {}).items()}
    return json.dumps(limits, indent=1) + "\n"


def page(results: Sequence[Mapping[str, Any]] | None = None) -> str:
    """The page, of these contents of result files, or of those that are stored."""
    return _page(HEAD, results, False)


def gpu_page(results: Sequence[Mapping[str, Any]] | None = None) -> str:
    """The page of what `make gpu` left, likewise."""
    return _page(GPU_HEAD, results, True)


def _page(head: str, results: Sequence[Mapping[str, Any]] | None, of_gpu: bool) -> str:
    chosen = [result for result in results or stored() if ("parts" in result) == of_gpu]
    return "\n".join([head, *(line for result in chosen for line in _section(result))])


def with_table(readme: str, results: Sequence[Mapping[str, Any]] | None = None) -> str:
    """The README with the table between its marks: a row for each headline, a column for each processor."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, *_table(results or stored()), END + after])


def _table(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"| | target | {' | '.join(map(_name, results))} |"
    yield f"|---|---|{'---|' * len(results)}"
    for bound in HEADLINES:
        cells = [_cell(bound, result["works"]) for result in results]
        yield f"| {_typeset(bound.label)} | ≤ {bound.limit:.2f} | {' | '.join(cells)} |"


def _name(result: Mapping[str, Any]) -> str:
    cores = result.get("cores")
    return f"{result['processor']}, {cores} cores" if cores else result["processor"]


def _cell(bound: Bound, works: Mapping[str, Any]) -> str:
    value = bound.value(works)
    missed = "" if bound.holds(works) else " (missed)"
    return "not measured" if value is None else f"{value:.2f}{missed}"


def _section(result: Mapping[str, Any]) -> Iterator[str]:
    works = result["works"]
    yield f"## {_name(result)}\n"
    dates: dict[str, set[str]] = {}
    for work in works.values():
        dates.setdefault(_versions(work), set()).add(work["date"])
    yield f"Measured on {'; '.join(f'{_and(days)} with {versions}' for versions, days in dates.items())}.\n"
    yield "The programs, each with the time of its reference:\n"
    yield from (_item(key, work) for key, work in works.items())
    bounds = [b for b in BOUNDS if "cores" in result or b.value(works) is not None]
    held = sum(bound.holds(works) for bound in bounds)
    yield f"\n{held} of {len(bounds)} {'' if 'cores' in result else 'measured '}bounds hold:\n"
    yield "| claim | bound | measured | |"
    yield "|---|---|---|---|"
    for bound in bounds:
        value, (claim, limit) = bound.value(works), bound.parts(works)
        found = "" if value is None else f"{value:.2f}"
        word = "not measured" if value is None else "" if bound.holds(works) else "**exceeded**"
        yield f"| {claim} | {limit} | {found} | {word} |"
    yield ""
    yield from _parts(result)


def _parts(result: Mapping[str, Any]) -> Iterator[str]:
    """What else `make gpu` found, each part that failed included."""
    rest = {
        name: part
        for name, part in result.get("parts", {}).items()
        if not ({*result["works"]} & {*part.get("rows", {})})
    }
    if not rest:
        return
    yield "Beside the programs:\n"
    for name, part in rest.items():
        failed = "" if part["ok"] else " (**failed**)"
        yield f"* **{name}**{failed}"
        yield from (
            f"    * {_typeset(label)}: {_typeset(str(text))}" for label, text in part.get("rows", {}).items()
        )
    yield ""


def _item(key: str, work: Mapping[str, Any]) -> str:
    """The program and the time of its reference; all of its times where it has none. The result file has every time."""
    times, unit = work["times"], work["unit"]
    named = [work["base"]] if work["base"] in times else list(times)
    entries = [f"{name}: {statistics.median(times[name]):,.4g} {unit}" for name in named]
    return f"* **{key}**: {_typeset(work['about'])}; {'; '.join(entries)}."


def _typeset(text: str) -> str:
    """28 x 28 as 28 × 28."""
    return re.sub(r"(?<=\d)x(?=\d)|(?<= )x(?= )", "×", text)


def _versions(work: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {n}" for name, n in work["versions"].items())


def _and(days: Iterable[str]) -> str:
    return " and ".join(sorted(days))
