"""docs/benchmarks.md and the README's table: what `python benchmarks/bench.py --store` and `make gpu` left."""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))
from speed_bounds import BOUNDS, HEADLINES, Bound  # noqa: E402

sys.path.pop()

BEGIN, END = "<!-- benchmarks: made by `make generate` -->", "<!-- end of benchmarks -->"
HEAD = """\
# Benchmarks

For readers who want to know what fedsolve costs. After this page you can repeat each measurement.

`make bench` times each program and the same work written by hand in plain JAX or PyTorch in turns. A ratio is the
median of the time of a program divided by the time of the program beside it, so less than 1 is faster. Each claim is a
ratio or a time with its bound; `python benchmarks/bench.py --check` fails where one does not hold. FedAvg has the
devices that a run chooses: each core for networks, one for small models.

`make bench` replaces the results of its processor, and `make generate` writes this page and the README's table.
[On a GPU](benchmarks-gpu.md) has those of `make gpu`. `benchmarks/FINDINGS.md` explains the
numbers, and has both values where two machines of one name differ. `benchmarks/accuracies.csv` has what networks reach
on federated data.
"""
GPU_HEAD = """\
# On a GPU

For readers who have an NVIDIA GPU. After this page you know what `make gpu` measures, and can repeat it.

The works are those of [benchmarks](benchmarks.md), each beside its PyTorch loop on the same GPU. A part that failed or
was cut off says so, and the next `make gpu` goes on with it. `benchmarks/gpu.json` has every time.
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
    yield f"| | goal | {' | '.join(map(_name, results))} |"
    yield f"|---|---|{'---|' * len(results)}"
    for bound in HEADLINES:
        cells = [_cell(bound, result["works"]) for result in results]
        yield f"| {_typeset(bound.label)} | {bound.limit:g} | {' | '.join(cells)} |"


def _name(result: Mapping[str, Any]) -> str:
    cores = result.get("cores")
    return f"{result['processor']}, {cores} cores" if cores else result["processor"]


def _cell(bound: Bound, works: Mapping[str, Any]) -> str:
    value = bound.value(works)
    missed = "" if bound.holds(works) else ", missed"
    return "not measured" if value is None else f"{value:.2f}{missed}"


def _section(result: Mapping[str, Any]) -> Iterator[str]:
    works = result["works"]
    yield f"## {_name(result)}\n"
    measured = {_measured(work) for work in works.values()}
    yield f"Measured on {'; '.join(sorted(measured))}.\n"
    bounds = [b for b in BOUNDS if b.work in works or "cores" in result]
    held = sum(bound.holds(works) for bound in bounds)
    yield f"{held} of {len(bounds)} bounds hold:\n"
    yield "| claim | bound | measured | |"
    yield "|---|---|---|---|"
    for bound in bounds:
        value, (claim, limit) = bound.value(works), bound.parts(works)
        found = "" if value is None else f"{value:.2f}"
        word = "not measured" if value is None else "holds" if bound.holds(works) else "**exceeded**"
        yield f"| {claim} | {limit} | {found} | {word} |"
    yield "\nThe programs, with the time of what they are compared with:\n"
    yield from (_item(key, work, len(measured) > 1) for key, work in works.items())
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


def _item(key: str, work: Mapping[str, Any], is_dated: bool) -> str:
    """The work and the time of what it is compared with, of all programs where it is with nothing; the file has all."""
    times, unit = work["times"], work["unit"]
    dated = f" ({work['date']})" if is_dated else ""
    named = [work["base"]] if work["base"] in times else list(times)
    entries = [f"{name} {statistics.median(times[name]):,.4g} {unit}" for name in named]
    return f"* **{key}**: {_typeset(work['about'])}{dated}. {'; '.join(entries)}."


def _typeset(text: str) -> str:
    """28 x 28 as 28 × 28."""
    return re.sub(r"(?<=\d)x(?=\d)|(?<= )x(?= )", "×", text)


def _measured(work: Mapping[str, Any]) -> str:
    """When, and with which versions."""
    return f"{work['date']} with " + ", ".join(f"{name} {n}" for name, n in work["versions"].items())
