"""Files and modules that the pages name exist where they say: a move in the package is a move in its pages."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fedsolve"
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
FILE = re.compile(r"`((?:[\w-]+/)+[\w.-]+\.(?:py|toml|md|txt))`")
MODULE = re.compile(r"(?<![\w./:@-])fedsolve(?:\.\w+)+")


def ids(paths):
    return [path.name for path in paths]


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_files_exist(page):
    """Below the repository, the package or the folder of the page; `NAME` stands for any, others are made."""
    named = FILE.findall(page.read_text())
    named = {name for name in named if "NAME" not in name and not name.startswith(("runs/", "sites/"))}
    homes = (ROOT, SOURCE, page.parent)
    assert sorted(n for n in named if not any((home / n).is_file() for home in homes)) == []


def exists(dotted: str) -> bool:
    """Whether a dotted name is a module or something in one."""
    parts = dotted.split(".")
    for i in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:i]))
        except ModuleNotFoundError:
            continue
        for part in parts[i:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_modules_exist(page):
    named = set(MODULE.findall(page.read_text()))
    assert sorted(name for name in named if not exists(name)) == []
