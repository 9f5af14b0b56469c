"""What a wheel holds: every file beside the code, and a version that the install lines name."""

from __future__ import annotations

import fnmatch
import re
import tomllib
from pathlib import Path

import fedsolve as fs

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_file_beside_the_code_is_package_data():
    """Templates, pages' scripts and py.typed: each matches a pattern of pyproject.toml, and each pattern a file."""
    package = ROOT / "src" / "fedsolve"
    files = {
        str(p.relative_to(package))
        for p in package.rglob("*")
        if p.is_file() and p.suffix not in (".py", ".pyc")
    }
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["fedsolve"]
    matched = {pattern: set(fnmatch.filter(files, pattern)) for pattern in patterns}
    assert set().union(*matched.values()) == files
    assert all(matched.values())


def test_the_install_lines_name_this_version_and_extras_that_there_are():
    text = (ROOT / "README.md").read_text()
    install = text[text.index("## Install") : text.index("## Ten lines")]
    assert set(re.findall(r"fedsolve-([\d.]+)-py3", install)) == {
        fs.__version__,
        PROJECT["project"]["version"],
    }
    named = {extra for group in re.findall(r"\[([a-z,]+)\]", install) for extra in group.split(",")}
    named |= set(re.search(r"further extras: ([\w, ]+)", install)[1].strip().split(", "))
    extras = PROJECT["project"]["optional-dependencies"]
    assert named <= set(extras)
    inside = {extra for extra in extras if set(extras[extra]) <= set(extras["sweep"])}
    assert set(extras) - named - inside == {"test", "dev"}
