"""What a release rests on: workflows, forms and CITATION.cff fit their published schemas, and say the same."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

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
