"""tools/prose.py finds the words that docs/glossary.md abandons and common slips, in prose alone."""

from __future__ import annotations

import doctest
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool():
    pytest.importorskip("proselint")
    spec = importlib.util.spec_from_file_location("prose", ROOT / "tools" / "prose.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found(tool, page):
    config = tool.checks(tool.vocabulary(tool.GLOSSARY.read_text()))
    return [(line, message) for line, _, message in tool.found(page, config)]


def test_its_examples(tool):
    assert doctest.testmod(tool).failed == 0


def test_what_is_found(tool):
    page = "# Curves\n\nCurves of the\nthe methods.\n\nThe two cannot be told\napart.\n"
    assert [line for line, _ in found(tool, page)] == [3, 6]
    assert "significantly different" in found(tool, page)[1][1]


def test_code_formulas_links_and_names_are_no_prose(tool):
    page = """Use `the the league`, $a a$ and [this](docs/league.md):

    fedsolve reproduce league league

```python
league = league
```

```math
league
```

The row of tuning-free-league is a name.
"""
    assert found(tool, page) == []
    assert [line for line, _ in found(tool, page.replace("a name", "a league"))] == [13]


PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=[path.stem for path in PAGES])
def test_a_page_says_for_whom_it_is_and_is_short(page):
    text = page.read_text()
    title, blank, first = text.splitlines()[:3]
    assert title.startswith("# ")
    assert blank == ""
    assert first.startswith(("For ", "This page is for "))
    assert len(text.split()) <= 1500
