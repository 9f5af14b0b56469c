"""What imports what in `src/`, read from the text: eagerly, inside functions, or for types alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "fedsolve"
PAGE = ROOT / "docs" / "architecture.md"


def modules(source: Path = SOURCE) -> dict[str, Path]:
    """Every module by dotted name; a package is its `__init__`."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    packages = {p.parent for p in found.values()} - {source.parent}
    for folder in packages:  # one without an `__init__` is a package all the same
        found.setdefault(".".join(folder.relative_to(source.parent).parts), folder / "__init__.py")
    return found


def statements(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """All statements of a body, at any depth."""
    for node in body:
        yield node
        for part in ("body", "handlers", "orelse", "finalbody", "cases"):
            yield from statements(getattr(node, part, ()))


def imports(name: str, path: Path, known: Mapping[str, Path]) -> set[str]:
    """The modules of the package that a module imports, wherever the statement stands."""
    return set(_imports(name, path, known)) if path.is_file() else set()


def _imports(name: str, path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    top = name.partition(".")[0]
    for node in statements(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.partition(".")[0] == top)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # relative: so many packages up
                here = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
                base = ".".join([*here[: len(here) - node.level + 1], *filter(None, [base])])
            if base.partition(".")[0] == top:
                for a in node.names:  # a name of a package is a module of it, or something in its `__init__`
                    inside = f"{base}.{a.name}"
                    yield inside if inside in known else base


def graph(source: Path = SOURCE) -> dict[str, set[str]]:
    """Each module, and what it imports."""
    return _graph(source)


@cache  # by the folder, given or not
def _graph(source: Path) -> dict[str, set[str]]:
    known = modules(source)
    return {name: imports(name, path, known) - {name} for name, path in known.items()}


def page_packages(page: str | None = None) -> list[list[str]]:
    """The packages of docs/architecture.md, top to bottom: a list for each line of the block under "Packages".

    A line names its packages first, folders as `engine/`, files as `wire.py`; a line that begins otherwise goes on with
    the description above it.
    """
    text = PAGE.read_text(encoding="utf-8") if page is None else page
    section = re.split(r"^## Packages\n", text, flags=re.M)[1].split("\n## ")[0]
    rows = []
    for line in re.findall(r"^    (\S.*)$", section, flags=re.M):
        names = []
        for word in line.split():
            if not re.fullmatch(r"[\w/]+(\.py|/)", word):
                break
            names.append(word)
        if names:
            rows.append(names)
    return rows


def package_of(path: Path, packages: list[list[str]], source: Path = SOURCE) -> str:
    """The package of a file: of those that hold it the innermost; '' if none does."""
    inside = path.relative_to(source).as_posix()
    holding = [
        r for row in packages for r in row if inside == r or (r.endswith("/") and inside.startswith(r))
    ]
    return max(holding, key=len, default="")


def upward(packages: list[list[str]], source: Path = SOURCE) -> set[tuple[str, str]]:
    """Imports of another package that does not stand on a lower line, as (module, imported module)."""
    known = modules(source)
    line = {package: i for i, row in enumerate(packages) for package in row} | {"": len(packages)}
    where = {name: package_of(path, packages, source) for name, path in known.items()}
    return {
        (name, target)
        for name, targets in graph(source).items()
        for target in targets
        if where[name] != where[target] and line[where[target]] <= line[where[name]]
    }


def cycles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach one another, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in sorted(edges.get(name, ())):
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in edges:
        if name not in index:
            visit(name)
    return found
