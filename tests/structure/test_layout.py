"""The layout stays small enough to find a file by looking: few entries, short folders, telling names."""

from __future__ import annotations

import ast
from collections import Counter

from imports import SOURCE, statements

ENTRIES = 18
LOOSE_FILES = 4  # __init__.py and its stub, __main__.py, py.typed
FILES_IN_A_FOLDER = 14
FILES_OF_ONE_NAME = 2
LARGEST_PACKAGE = 0.19  # of all lines
LINES_OF_A_FUNCTION = 60
LINES_OF_A_METHOD = 120
FAMILIES = (
    "adaptive_local", "fairness", "low_rank", "muon", "personal", "proximal_point", "sharpness", "skipping",
    "zeroth_order",
)  # fmt: skip


def python_files():
    return sorted(SOURCE.rglob("*.py"))


def entries(folder):
    return [path for path in folder.iterdir() if path.name != "__pycache__"]


def test_the_top_level_has_few_entries():
    found = entries(SOURCE)
    assert len(found) <= ENTRIES, sorted(p.name for p in found)
    assert len([p for p in found if p.is_file()]) <= LOOSE_FILES


def test_no_folder_has_many_modules():
    """Package data, such as what pages are made of, is no module."""
    counts = Counter(path.parent.relative_to(SOURCE).as_posix() for path in python_files())
    assert {folder: n for folder, n in counts.items() if n > FILES_IN_A_FOLDER} == {}


def test_a_file_name_says_which_file_it_is():
    counts = Counter(path.name for path in python_files() if path.name != "__init__.py")
    assert {name: n for name, n in counts.items() if n > FILES_OF_ONE_NAME} == {}


def test_no_package_outgrows_the_others():
    lines = Counter()
    for path in python_files():
        lines[path.relative_to(SOURCE).parts[0]] += len(path.read_text(encoding="utf-8").splitlines())
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


def test_methods_are_short():
    """A method takes at most 120 lines with its docstring; what methods share is a base class."""
    files = [p for p in python_files() if p.parent.parent.name == "methods" and p.parent.name in FAMILIES]
    nodes = [node for path in files for node in ast.parse(path.read_text(encoding="utf-8")).body]
    lengths = {
        x.name: x.end_lineno - x.lineno + 1 for x in nodes if isinstance(x, ast.ClassDef | ast.FunctionDef)
    }
    assert {"FedMuon", "LowRank", "DeComFL", "IFCA"} <= lengths.keys()
    assert {name: n for name, n in lengths.items() if n > LINES_OF_A_METHOD} == {}
