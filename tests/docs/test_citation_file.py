"""CITATION.cff, CHANGELOG.md and the package agree on what is cited: the version, and the day it was released."""

from __future__ import annotations

import re
from pathlib import Path

import fedsolve as fs

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_citation_file_has_what_its_format_needs():
    fields = dict(re.findall(r"^([\w-]+): *(.*)$", TEXT, re.M))
    assert {"cff-version", "message", "title", "authors"} <= set(fields)
    assert fields["cff-version"] == "1.2.0"
    assert fields["version"] == fs.__version__
    version, date = re.findall(
        r"^## (\S+) - (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M
    )[0]
    assert version == fs.__version__
    assert fields.get("date-released", "unreleased").strip('"') == date
    assert f'license = "{fields["license"]}"' in (ROOT / "pyproject.toml").read_text()
