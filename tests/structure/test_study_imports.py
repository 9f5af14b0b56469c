"""The studies of the papers use the public names of the package alone: nothing that a study of others could not use."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from imports import ROOT

import fedsolve

PROGRAMS = sorted((ROOT / "experiments").rglob("*.py"))
NAMESPACES = {name for name, home in fedsolve._homes().items() if home.endswith(":")}


def not_public(tree: ast.AST) -> Iterator[str]:
    """What a program takes of the package that is not public: by an import, or as `fs.name` and `fs.space.name`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("fedsolve."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fedsolve":
            yield from (
                f"{node.module}.{a.name}" for a in node.names if not is_public(node.module or "", a.name)
            )
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "fs":
            yield from () if is_public("fedsolve", node.attr) else (f"fs.{node.attr}",)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            space = node.value
            if isinstance(space.value, ast.Name) and space.value.id == "fs" and space.attr in NAMESPACES:
                yield from (
                    ()
                    if is_public(f"fedsolve.{space.attr}", node.attr)
                    else (f"fs.{space.attr}.{node.attr}",)
                )


def is_public(module: str, name: str) -> bool:
    """Whether a name is the package's, one of a namespace, or of `fedsolve.studies`, and begins without `_`."""
    if name.startswith("_"):
        return False
    if module == "fedsolve":
        return name in fedsolve._homes()
    if module.removeprefix("fedsolve.") in NAMESPACES:
        return name in importlib.import_module(module).__all__
    if f"{module}.".startswith("fedsolve.studies."):
        there = importlib.import_module(module)
        return name in getattr(there, "__all__", [name])
    return False


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(Path(path).relative_to(ROOT / "experiments")))
def test_studies_use_public_names(path):
    assert list(not_public(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from fedsolve.core.types import module", ["fedsolve.core.types.module"]),
        ("def f():\n    import fedsolve.engine.run", ["fedsolve.engine.run"]),
        ("from fedsolve.tasks import digits, Secret", ["fedsolve.tasks.Secret"]),
        ("from fedsolve.studies.public import _hidden", ["fedsolve.studies.public._hidden"]),
        ("from fedsolve import engine", ["fedsolve.engine"]),
        ("import fedsolve as fs\nfs.tasks.nothing(fs.run, fs.prepare)", ["fs.tasks.nothing", "fs.prepare"]),
        (
            "from fedsolve.studies.rules import better\nfrom fedsolve.sampling import Uniform\nimport fedsolve as fs",
            [],
        ),
    ],
)
def test_what_is_not_public_is_seen(text, found):
    assert sorted(not_public(ast.parse(text))) == sorted(found)
