"""The order of packages on docs/architecture.md is the order of imports: none points up, none goes in a circle."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from imports import SOURCE, cycles, graph, modules, package_of, page_packages, upward

import fedsolve as fs

PACKAGES = page_packages()


def test_every_file_has_a_package_and_every_package_a_file():
    assert len(PACKAGES) > 10
    packages = [package for row in PACKAGES for package in row]
    assert len(packages) == len(set(packages))
    assert [package for package in packages if not (SOURCE / package).exists()] == []
    assert [p for p in modules().values() if p.is_file() and not package_of(p, PACKAGES)] == []


def test_no_import_points_up():
    assert sorted(upward(PACKAGES)) == []


def test_no_import_goes_in_a_circle():
    assert cycles(graph()) == []


def test_the_engine_knows_no_method():
    """It uses the interface alone: a method of a user's own is run as any of the catalogue."""
    methods = "fedsolve.methods."
    edges = {(a, b) for a, targets in graph().items() for b in targets}
    found = {(a, b) for a, b in edges if a.startswith("fedsolve.engine.") and b.startswith(methods)}
    assert sorted(found) == []


def test_every_test_file_is_collected_alone():
    """A folder of tests is found by its own files alone: what several share stands above them, in `tests`."""
    tests = SOURCE.parent.parent / "tests"
    homes = defaultdict(set)
    for path in tests.rglob("*.py"):
        homes[path.stem].add(path.parent)
    homes = {
        name: found for name, found in homes.items() if tests not in found and not (tests / name).is_dir()
    }
    statement = re.compile(r"^\s*(?:from|import) (\w+)", re.M)
    assert [
        (path.name, name)
        for path in sorted(tests.rglob("*.py"))
        for name in statement.findall(path.read_text(encoding="utf-8"))
        if name in homes and path.parent not in homes[name]
    ] == []


@cache
def names_of(path):
    """All names that a module's text binds."""
    return set(_names_of(path))


def _names_of(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.ImportFrom() | ast.Import():
                yield from (alias.asname or alias.name for alias in node.names)


def test_programs_beside_the_package_import_what_is_there():
    """No other test runs all of them: what moves in the package must be found by them."""
    known, missing = modules(), []
    for folder in ("benchmarks", "examples", "experiments", "tools"):
        for path in sorted((SOURCE.parent.parent / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedsolve.")):
                    continue
                home = known.get(node.module)
                if (
                    home is not None and home.with_suffix(".pyi").is_file()
                ):  # names are loaded when first used
                    home = home.with_suffix(".pyi")
                there = names_of(home) if home is not None and home.is_file() else set()
                missing += [
                    (path.name, f"{node.module}.{alias.name}")
                    for alias in node.names
                    if alias.name not in there and f"{node.module}.{alias.name}" not in known
                ]
    assert missing == []


def written(tmp_path, files):
    source = tmp_path / "package"
    for name, text in files.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return source


PAGE = """# P

## Packages

Words.

    top/  side.py   above
                    still above
    low/            below

## Next

    not/ this
"""


def test_the_page_is_read_line_by_line():
    assert page_packages(PAGE) == [["top/", "side.py"], ["low/"]]


@pytest.mark.parametrize(
    "statement",
    [
        "from package.top.a import f",
        "import package.top.a",
        "from package.top import a",
        "from ..top import a",
        "def f():\n    from package.top.a import f",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package.top.a import f",
    ],
)
def test_an_upward_import_is_seen_wherever_it_stands(tmp_path, statement):
    source = written(tmp_path, {"top/a.py": "from package.low import b", "low/b.py": statement})
    edge = ("package.low.b", "package.top.a")
    assert upward(page_packages(PAGE), source) == {edge}
    assert cycles(graph(source)) == [["package.low.b", "package.top.a"]]


def test_packages_of_one_line_do_not_import_one_another(tmp_path):
    source = written(tmp_path, {"top/a.py": "", "side.py": "import package.top.a"})
    assert upward(page_packages(PAGE), source) == {("package.side", "package.top.a")}
    assert cycles(graph(source)) == []


def test_a_package_within_a_package_is_its_own(tmp_path):
    packages = [["top/inner/"], ["top/"]]
    source = written(tmp_path, {"top/a.py": "import package.top.inner.b", "top/inner/b.py": ""})
    assert upward(packages, source) == {("package.top.a", "package.top.inner.b")}


def test_a_circle_of_three_is_one_and_what_leads_to_it_is_not_in_it(tmp_path):
    files = {
        "a.py": "import package.b",
        "b.py": "import package.c",
        "c.py": "import package.a",
        "d.py": "import package.a",
    }
    assert cycles(graph(written(tmp_path, files))) == [["package.a", "package.b", "package.c"]]


def test_no_module_hides_a_public_name():
    """Once imported, a module is an attribute of its package: `fs.tasks.build` would then be the module."""
    spaces = [fs, *(found for name in dir(fs) if isinstance(found := getattr(fs, name), ModuleType))]
    folders = {space: Path(space.__file__ or "") for space in spaces}
    assert [
        f"{space.__name__}.{name}"
        for space, file in folders.items()
        for name in dir(space)
        if file.name == "__init__.py" and file.with_name(f"{name}.py").exists()
        if not isinstance(getattr(space, name), ModuleType)
    ] == []
