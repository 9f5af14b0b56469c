"""What a wheel holds: every file beside the code, and extras that the install lines name."""

from __future__ import annotations

import fnmatch
import importlib.metadata
import re
import tomllib
from pathlib import Path

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


EXTRAS = PROJECT["project"]["optional-dependencies"]


def packages(*extras):
    """The packages that extras install, those of extras that they name included."""
    found = set()
    for line in (line for extra in extras for line in EXTRAS[extra]):
        inner = re.fullmatch(r"fedsolve\[([a-z,]+)\]", line)
        found |= packages(*inner[1].split(",")) if inner else {re.match(r"[\w-]+", line)[0]}
    return found


def readme_install():
    text = (ROOT / "README.md").read_text()
    return text[text.index("## Install") : text.index("## Quickstart")]


def test_the_install_lines_name_extras_that_there_are():
    install = readme_install()
    named = {extra for group in re.findall(r"\[([a-z,]+)\]", install) for extra in group.split(",")}
    named |= set(re.findall(r"`(\w+)`", re.search(r"Further extras: ([^.]+)\.", install)[1]))
    assert named <= set(EXTRAS)
    inside = {extra for extra in EXTRAS if set(EXTRAS[extra]) <= set(EXTRAS["sweep"])}
    assert set(EXTRAS) - named - inside == {"test", "dev", "docs"}


def test_what_the_install_lines_and_make_run_install_is_enough():
    """Tables and pictures of the digits, and sweeps, whose results are Parquet files."""
    needed = {"scikit-learn", "matplotlib"}
    for group in re.findall(r"(?:\.|whl)\[([a-z,]+)\]", readme_install()):
        assert needed | {"pyarrow"} <= packages(*group.split(","))
    makefile = (ROOT / "Makefile").read_text()
    run = makefile[makefile.index(".venv/.run:") : makefile.index(".venv/.dev:")]
    assert needed <= packages(*re.search(r"\.\[([a-z,]+)\]", run)[1].split(","))
    assert packages("all") == packages(*(set(EXTRAS) - {"all", "test", "dev", "docs"}))


def test_what_is_asked_for_stays_below_flowers_caps():
    """Flower takes no newer typer, rich, click, protobuf and packaging: what is pinned here must be what it takes."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if line.count("==") == 1
    )
    ours = [Requirement(line) for lines in EXTRAS.values() for line in lines]
    ours += [Requirement(line) for line in PROJECT["project"]["dependencies"]]
    flowers = [Requirement(line) for line in importlib.metadata.requires("flwr")]
    checked = set()
    for requirement in [*ours, *flowers]:
        version = pins.get(canonicalize_name(requirement.name))
        if version is not None and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            assert version in requirement.specifier, requirement
            checked.add(canonicalize_name(requirement.name))
    assert {"typer", "rich", "click", "protobuf", "packaging", "torch", "pyarrow", "flwr"} <= checked
