"""CITATION.cff says what is cited, of this version."""

from __future__ import annotations

import re
from pathlib import Path

import fedsolve as fs

TEXT = (Path(__file__).parents[2] / "CITATION.cff").read_text(encoding="utf-8")


def test_the_citation_file_has_what_its_format_needs():
    fields = dict(re.findall(r"^([\w-]+): *(.*)$", TEXT, re.M))
    assert {"cff-version", "message", "title", "authors"} <= set(fields)
    assert fields["cff-version"] == "1.2.0"
    assert fields["version"] == fs.__version__
    assert f'license = "{fields["license"]}"' in (Path(__file__).parents[2] / "pyproject.toml").read_text()
