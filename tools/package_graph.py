"""The diagram of docs/architecture.md: which package imports which, as a Mermaid graph and as a picture of it.

GitHub draws the Mermaid graph; the documentation site, which runs no scripts, shows the picture.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Set
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURE = "docs/diagrams/packages.svg"
BLOCK = re.compile(r"```mermaid\n.*?```\n", re.DOTALL)
_WIDTH, _HEIGHT = 110, 64  # between the centres of two packages side by side, and of two layers
_BOX_WIDTH, _BOX_HEIGHT = 92, 30
_SWEEPS = 8  # over the layers, each ordered by the positions of its neighbours

Edge = tuple[str, str]


def package_imports() -> set[Edge]:
    """Every (package, package that it imports)."""
    sys.path.insert(0, str(ROOT / "tests" / "structure"))
    from imports import SOURCE, graph

    packages = {path.name for path in SOURCE.iterdir() if any(path.rglob("*.py"))}
    found = set()
    for module, targets in graph().items():
        package = module.split(".")[1:2]
        for target in targets:
            imported = target.split(".")[1:2]
            if package != imported and {*package, *imported} <= packages and package and imported:
                found.add((package[0], imported[0]))
    return found


def reduced(edges: Set[Edge]) -> list[Edge]:
    """The edges that do not follow from others: a graph without cycles has one such set."""

    def reached(start: str, without: Edge) -> set[str]:
        found: set[str] = set()
        ahead = [b for a, b in edges if a == start and (a, b) != without]
        while ahead:
            node = ahead.pop()
            if node not in found:
                found.add(node)
                ahead += [b for a, b in edges if a == node]
        return found

    return sorted(edge for edge in edges if edge[1] not in reached(edge[0], edge))


def mermaid(edges: list[Edge]) -> str:
    """The graph as Mermaid's text, with arrows downwards."""
    lines = [f"  {a} --> {b}" for a, b in edges]
    return "\n".join(["```mermaid", "flowchart TB", *lines, "```", ""])


def with_graph(page: str) -> str:
    """The page with the graph as the imports are now."""
    return BLOCK.sub(lambda _: mermaid(reduced(package_imports())), page)


def layers_of(edges: list[Edge]) -> dict[str, int]:
    """The layer of each package, from 0 at the bottom: above all that it imports."""
    layers = {b: 0 for _, b in edges}
    for _ in edges:  # a path has no more edges than the graph
        for a, b in edges:
            layers[a] = max(layers.get(a, 0), layers[b] + 1)
    return layers


def picture(edges: list[Edge]) -> str:
    """The graph as SVG: one row a layer; an edge over several layers passes between the packages of each."""
    layers = layers_of(edges)
    steps, paths = _paths(edges, layers)
    rows = [sorted(n for n in steps if steps[n] == layer) for layer in range(max(layers.values()) + 1)]
    links = [(a, b) for path in paths for a, b in pairwise(path)]
    column = _columns(rows, links)
    widest = max(map(len, rows))
    top = len(rows) - 1

    def centre(node: str) -> tuple[float, float]:
        x = (column[node] + (widest - len(rows[steps[node]])) / 2 + 0.5) * _WIDTH
        return x, (top - steps[node] + 0.5) * _HEIGHT

    lines = [_line([centre(node) for node in path]) for path in paths]
    boxes = [_box(package, *centre(package)) for package in sorted(layers)]
    size = f'viewBox="0 0 {widest * _WIDTH} {len(rows) * _HEIGHT}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} width="{widest * _WIDTH}" '
            'font-family="sans-serif" font-size="14">',
            '<rect width="100%" height="100%" fill="white"/>',
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto">'
            '<path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker></defs>',
            *lines,
            *boxes,
            "</svg>",
            "",
        ]
    )


def _paths(edges: list[Edge], layers: dict[str, int]) -> tuple[dict[str, int], list[list[str]]]:
    """The layer of every node, and each edge as the nodes that it passes: one for each layer in between."""
    steps, paths = dict(layers), []
    for a, b in edges:
        between = [f"{a} {b} {layer}" for layer in range(layers[a] - 1, layers[b], -1)]
        steps |= {name: int(name.split()[-1]) for name in between}
        paths.append([a, *between, b])
    return steps, paths


def _columns(rows: list[list[str]], links: list[Edge]) -> dict[str, int]:
    """The place of each node in its row: rows are ordered by the mean place of their neighbours."""
    column = {node: i for row in rows for i, node in enumerate(row)}
    for sweep in range(_SWEEPS):
        for row in rows if sweep % 2 else rows[::-1]:
            near = {node: list(_neighbours(node, links, below=sweep % 2 == 1)) for node in row}
            mean = {n: sum(column[m] for m in near[n]) / len(near[n]) if near[n] else column[n] for n in row}
            row.sort(key=lambda node: (mean[node], node))
            column |= {node: i for i, node in enumerate(row)}
    return column


def _neighbours(node: str, links: list[Edge], below: bool) -> Iterator[str]:
    for a, b in links:
        if (a if below else b) == node:
            yield b if below else a


def _line(points: list[tuple[float, float]]) -> str:
    """An arrow from the bottom of the first box to the top of the last."""
    (x, y), (end, last) = points[0], points[-1]
    inner = points[1:-1]
    all_points = [(x, y + _BOX_HEIGHT / 2), *inner, (end, last - _BOX_HEIGHT / 2)]
    text = " ".join(f"{x:.0f},{y:.0f}" for x, y in all_points)
    return f'<polyline points="{text}" fill="none" stroke="#555" marker-end="url(#arrow)"/>'


def _box(name: str, x: float, y: float) -> str:
    corner = f'x="{x - _BOX_WIDTH / 2:.0f}" y="{y - _BOX_HEIGHT / 2:.0f}"'
    rect = f'<rect {corner} width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="4" fill="#eee" stroke="#555"/>'
    return f'{rect}<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle">{escape(name)}</text>'
