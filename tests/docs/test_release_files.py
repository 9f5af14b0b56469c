"""What a release rests on: workflows, forms and CITATION.cff fit their published schemas, and say the same."""

import fnmatch
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import fedsolve as fs

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
FORMS = sorted(p for p in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if p.name != "config.yml")
SCHEMAS = {
    "vendor.github-workflows": sorted((GITHUB / "workflows").glob("*.yml")),
    "vendor.github-issue-forms": FORMS,
    "vendor.github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TESTS = YAML(typ="safe").load(GITHUB / "workflows" / "tests.yml")["jobs"]


def fits(schema: str, files: list[Path]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.full
@pytest.mark.parametrize("schema", SCHEMAS)
def test_each_file_fits_its_published_schema(schema):
    assert SCHEMAS[schema]
    checked = fits(schema, SCHEMAS[schema])
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_workflow_with_a_wrong_key_does_not_fit(tmp_path):
    text = (GITHUB / "workflows" / "tests.yml").read_text()
    (tmp_path / "tests.yml").write_text(text.replace("runs-on:", "run-on:"))
    assert fits("vendor.github-workflows", [tmp_path / "tests.yml"]).returncode == 1


def test_the_classifiers_are_what_is_tested():
    matrix = TESTS["tests"]["strategy"]["matrix"]
    versions = re.findall(r"Python :: (3\.\d+)\b", "\n".join(PROJECT["classifiers"]))
    assert versions == matrix["python"]
    assert PROJECT["requires-python"] == f">={versions[0]}"
    systems = {"MacOS": "macos-latest", "POSIX :: Linux": "ubuntu-latest"}
    named = [c.removeprefix("Operating System :: ") for c in PROJECT["classifiers"] if "Operating" in c]
    assert sorted(systems[name] for name in named) == sorted(matrix["system"])


def test_the_oldest_jax_that_is_tested_is_the_oldest_that_is_allowed(tmp_path):
    """The step is run as it stands: its constraints differ from the usual ones in JAX alone."""
    step = next(s["run"] for s in TESTS["tests"]["steps"] if s.get("if") == "matrix.jax == 'oldest'")
    (tmp_path / "constraints.txt").write_text((ROOT / "constraints.txt").read_text())
    subprocess.run(["bash", "-ec", step], cwd=tmp_path, check=True)
    usual = set((ROOT / "constraints.txt").read_text().splitlines())
    pins = set((tmp_path / "chosen.txt").read_text().splitlines()) - usual
    (oldest,) = [re.match(r"jax>=([\d.]+),", d)[1] for d in PROJECT["dependencies"] if d.startswith("jax>")]
    assert {p.partition("==")[0] for p in pins} <= {"jax", "jaxlib"}
    assert {p.partition("==")[2] for p in pins} == {oldest if oldest.count(".") > 1 else f"{oldest}.0"}


def test_the_newest_jax_is_free(tmp_path):
    step = next(s["run"] for s in TESTS["tests"]["steps"] if s.get("if") == "matrix.jax == 'newest'")
    (tmp_path / "constraints.txt").write_text((ROOT / "constraints.txt").read_text())
    subprocess.run(["bash", "-ec", step], cwd=tmp_path, check=True)
    names = {line.partition("==")[0] for line in (tmp_path / "chosen.txt").read_text().splitlines()}
    assert not names & {"jax", "jaxlib"}
    assert "optax" in names


def test_workflows_run_what_there_is():
    """Each `make` target and each file of a step exists."""
    steps = [
        step["run"]
        for path in SCHEMAS["vendor.github-workflows"]
        for job in YAML(typ="safe").load(path)["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    targets = set(re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(), re.M))
    used = {target for step in steps for target in re.findall(r"make ([\w./-]+)", step)}
    assert used
    assert used <= targets
    files = {path for step in steps for path in re.findall(r"(?:bash|python) ([\w./-]+/[\w.-]+)", step)}
    assert ".ci/run" in files
    assert all((ROOT / path).exists() for path in files)


def test_the_tag_of_a_release_is_its_version():
    release = YAML(typ="safe").load(GITHUB / "workflows" / "release.yml")["jobs"]["build"]["steps"]
    (step,) = [s["run"] for s in release if "GITHUB_REF_NAME" in s.get("run", "")]
    version = re.search(r'__version__ = "(.*)"', (ROOT / "src/fedsolve/core/__init__.py").read_text())[1]
    codes = [
        subprocess.run(["bash", "-ec", step], cwd=ROOT, env={"GITHUB_REF_NAME": tag, "PATH": "/usr/bin:/bin"})
        for tag in (f"v{version}", "v9.9.9")
    ]
    assert [c.returncode for c in codes] == [0, 1]


def test_one_address():
    home = PROJECT["urls"]["Homepage"]
    texts = [ROOT / "CITATION.cff", ROOT / "SECURITY.md", GITHUB / "ISSUE_TEMPLATE" / "config.yml"]
    for path in [*texts, ROOT / "pyproject.toml"]:
        named = set(re.findall(r"https://github\.com/[\w-]+/[\w-]+", path.read_text()))
        assert named == {home}, path


# CITATION.cff, CHANGELOG.md and the package agree on what is cited: the version, and the day it was released.

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


# What a wheel holds: every file beside the code, and extras that the install lines name.

PACKAGING_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_file_beside_the_code_is_package_data():
    """Templates, pages' scripts and py.typed: each matches a pattern of pyproject.toml, and each pattern a file."""
    package = ROOT / "src" / "fedsolve"
    files = {
        str(p.relative_to(package))
        for p in package.rglob("*")
        if p.is_file() and p.suffix not in (".py", ".pyc")
    }
    patterns = PACKAGING_PROJECT["tool"]["setuptools"]["package-data"]["fedsolve"]
    matched = {pattern: set(fnmatch.filter(files, pattern)) for pattern in patterns}
    assert set().union(*matched.values()) == files
    assert all(matched.values())


EXTRAS = PACKAGING_PROJECT["project"]["optional-dependencies"]


def packages(*extras):
    """The packages that extras install, those of extras that they name included."""
    found = set()
    for line in (line for extra in extras for line in EXTRAS[extra]):
        inner = re.fullmatch(r"fedsolve\[([a-z,-]+)\]", line)
        found |= packages(*inner[1].split(",")) if inner else {re.match(r"[\w-]+", line)[0]}
    return found


def readme_install():
    text = (ROOT / "README.md").read_text()
    return text[text.index("## Install") : text.index("## Quickstart")]


def test_the_install_lines_name_extras_that_there_are():
    install = readme_install()
    named = {extra for group in re.findall(r"\[([a-z,]+)\]", install) for extra in group.split(",")}
    named |= set(re.findall(r"`([\w-]+)`", re.search(r"Further extras: ([^.]+)\.", install)[1]))
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
    ours += [Requirement(line) for line in PACKAGING_PROJECT["project"]["dependencies"]]
    flowers = [Requirement(line) for line in importlib.metadata.requires("flwr")]
    checked = set()
    for requirement in [*ours, *flowers]:
        version = pins.get(canonicalize_name(requirement.name))
        if version is not None and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            assert version in requirement.specifier, requirement
            checked.add(canonicalize_name(requirement.name))
    assert {"typer", "rich", "click", "protobuf", "packaging", "torch", "pyarrow", "flwr"} <= checked


# The paper for the Journal of Open Source Software: its form, its citations, and that its commands and program run.

PAPER = ROOT / "paper" / "paper.md"
_, HEAD, PAPER_TEXT = PAPER.read_text(encoding="utf-8").split("---\n", 2)
KEY = re.compile(r"^@\w+\{([\w-]+),", re.M)


def test_its_length_and_sections_are_those_the_journal_asks_for():
    assert 750 <= len(PAPER_TEXT.split()) <= 1750
    for section in ("# Summary", "# Statement of need", "# Acknowledgements", "# References"):
        assert section in PAPER_TEXT
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} <= set(
        re.findall(r"^(\w+):", HEAD, re.M)
    )


def test_every_citation_has_an_entry_and_every_entry_of_its_own_is_cited():
    files = re.findall(r"^ +- (\S+\.bib)$", HEAD, re.M)
    own, shared = (set(KEY.findall((PAPER.parent / name).read_text())) for name in files)
    cited = set(re.findall(r"@([\w-]+)", PAPER_TEXT))
    assert own <= cited <= own | shared


def test_files_and_commands_that_it_names_are_there():
    for path in re.findall(r"python (?:-m pytest )?([\w/]+(?:\.py)?)", PAPER_TEXT):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"\]\((\S+)\)", PAPER_TEXT):
        assert (PAPER.parent / path).exists(), path


@pytest.mark.full
def test_its_program_runs():
    (program,) = re.findall(r"```python\n(.*?)```", PAPER_TEXT, re.S)
    names: dict[str, object] = {}
    exec(program.replace("seeds=5", "seeds=2").replace("rounds=200", "rounds=2"), names)
    assert set(names["results"].final("test_accuracy")) == {"FedAvg", "FedDuAdam"}
