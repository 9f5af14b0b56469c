"""The layout is one to read: a module is a topic told in one place, a folder a group of topics."""

from __future__ import annotations

import ast
from collections import Counter

from imports import SOURCE, graph, modules, statements

ENTRIES = 19
LOOSE_FILES = 4  # __init__.py and its stub, __main__.py, py.typed
FILES_IN_A_FOLDER = 25
LINES, FILES = 92_992, 384
SHORTEST = 60
SHORTEST_PART = 120  # of a module that one other in its folder imports, and nothing else
LARGEST_PACKAGE = 0.19  # of all lines
LINES_OF_A_FUNCTION = 60
NAMES_FOR_OTHERS = {"__main__.py", "studies/public.py"}


def python_files():
    return sorted(SOURCE.rglob("*.py"))


def entries(folder):
    return [path for path in folder.iterdir() if path.name != "__pycache__"]


def lines_of(path):
    return len(path.read_text(encoding="utf-8").splitlines())


def test_the_top_level_has_few_entries():
    found = entries(SOURCE)
    assert len(found) <= ENTRIES, sorted(p.name for p in found)
    assert len([p for p in found if p.is_file()]) <= LOOSE_FILES


def test_no_folder_has_many_modules():
    """Package data, such as what pages are made of, is no module."""
    counts = Counter(path.parent.relative_to(SOURCE).as_posix() for path in python_files())
    assert {folder: n for folder, n in counts.items() if n > FILES_IN_A_FOLDER} == {}


def test_the_package_stays_within_its_size():
    """What is added replaces something."""
    files = python_files()
    assert len(files) <= FILES
    assert sum(map(lines_of, files)) <= LINES


def test_no_module_is_a_fragment():
    short = {path.relative_to(SOURCE).as_posix(): lines_of(path) for path in python_files()}
    assert {
        path: n
        for path, n in short.items()
        if n < SHORTEST and not path.endswith("__init__.py") and path not in NAMES_FOR_OTHERS
    } == {}


def test_a_short_module_has_more_than_one_reader():
    """A part that only its neighbour uses belongs into it."""
    known, importers = modules(), {}
    for name, targets in graph().items():
        for target in targets:
            importers.setdefault(target, set()).add(name)
    parts = {
        name
        for name, path in known.items()
        if path.name != "__init__.py"
        and lines_of(path) < SHORTEST_PART
        and len(found := importers.get(name, set())) == 1
        and known[next(iter(found))].parent == path.parent
        and known[next(iter(found))].name != "__init__.py"
    }
    assert parts == set()


def test_no_package_outgrows_the_others():
    lines = Counter()
    for path in python_files():
        lines[path.relative_to(SOURCE).parts[0]] += lines_of(path)
    package, most = lines.most_common(1)[0]
    assert most / lines.total() <= LARGEST_PACKAGE, package


def test_functions_fit_on_a_page():
    """With their docstrings left out: these are as long as what they say needs."""
    long = {}
    for path in python_files():
        for node in statements(ast.parse(path.read_text(encoding="utf-8")).body):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = (
                    node.body[1:] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body
                )
                length = body[-1].end_lineno - body[0].lineno + 1
                if length > LINES_OF_A_FUNCTION:
                    long[f"{path.relative_to(SOURCE)}:{node.name}"] = length
    assert long == {}
