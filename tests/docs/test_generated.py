"""What is made from the catalogue is as it makes it now: the package's stub and pages of the docs."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

import fedsolve as fs
from fedsolve.config.catalogue import ALGORITHMS, WRAPPERS

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
spec = importlib.util.spec_from_file_location("generate", ROOT / "tools" / "generate.py")
generate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generate)


def test_the_stub_and_the_page_of_methods():
    assert (ROOT / "src/fedsolve/__init__.pyi").read_text() == generate.stub(), "run: make generate"
    page = (ROOT / "docs/methods.md").read_text()
    assert page == generate.methods(), "run: make generate"
    assert all(f"* `{name}`: " in page for name in ALGORITHMS)
    assert all(f"`{name}+X`" in page for name in WRAPPERS)


def test_the_page_of_benchmarks():
    """It is of the results as they are stored: which processor, when, every program and every bound."""
    made = generate.benchmark_page
    assert (ROOT / "docs/benchmarks.md").read_text() == made.page(), "run: make generate"
    assert (ROOT / "docs/benchmarks-gpu.md").read_text() == made.gpu_page(), "run: make generate"
    readme = (ROOT / "README.md").read_text()
    assert readme == made.with_table(readme), "run: make generate"
    assert readme.count(made.BEGIN) == readme.count(made.END) == 1
    times = {"by hand": [2.0, 2.0], "FedAvg": [3.0, 2.0], "PyTorch loop": [2.5, 2.5]}
    about = {
        "date": "2026-01-02",
        "versions": {"jax": "0.9"},
        "unit": "ms",
        "base": "by hand",
        "times": times,
    }
    works = {"W1": {"about": "work", **about}, "N1": {"about": "network", **about}}
    results = [{"processor": "Some CPU", "cores": 4, "works": works}]
    small = made.page(results)
    assert "## Some CPU, 4 cores" in small
    assert "2026-01-02 with jax 0.9" in small
    assert "* **W1**: work; by hand: 2 ms." in small
    assert "| W1: FedAvg / by hand | <= 1.2 | 1.25 | **exceeded** |" in small
    assert "| N2: FedAvg / PyTorch loop | <= 0.85 |  | not measured |" in small
    gpu = {
        "processor": "Some GPU",
        "works": {"N1": works["N1"] | {"times": {"FedAvg": [1], "PyTorch loop": [2]}}},
    }
    gpu["parts"] = {
        "n1": {"ok": True, "rows": {"N1": "1 ms"}},
        "bits": {"ok": False, "rows": {"FedAvg": "other"}},
    }
    on_gpu = made.gpu_page([*results, gpu])
    assert "Some CPU" not in on_gpu
    assert "Some GPU" not in made.page([*results, gpu])
    assert "## Some GPU\n" in on_gpu
    assert "* **bits** (**failed**)\n    * FedAvg: other" in on_gpu
    assert "* **n1**" not in on_gpu
    table = made.with_table(f"before\n{made.BEGIN}\nold\n{made.END}\nafter\n", [*results, gpu]).splitlines()
    assert (table[0], table[-1]) == ("before", "after")
    assert table[2] == "| | target | Some CPU, 4 cores | Some GPU |"
    assert table[4] == "| CNN with dropout, uneven clients | ≤ 0.85 | 1.00 (missed) | 0.50 |"
    assert "| LSTM 2 × 256, sequences of 80 | ≤ 0.85 | not measured | not measured |" in table


def test_the_index_of_figures():
    """It is of the results as they are kept; it names every experiment, and its links lead to pages."""
    from experiments.figures import BESIDE, ITEMS
    from fedsolve.studies.reproduce import program_folders

    assert {name for item in ITEMS for name in item.experiments} | set(BESIDE) == set(program_folders())
    assert all(item.note for item in ITEMS if not item.experiments)
    assert (ROOT / "docs/figures.md").read_text() == generate.figures.markdown(), "run: make generate"
    page = (ROOT / "experiments/index.html").read_text()
    assert page == generate.figures.page(), "run: make generate"
    linked = re.findall(r'href="([\w./-]+)"', page)
    assert len(set(linked)) > 10
    assert all((ROOT / "experiments" / link).exists() for link in linked)


def test_the_schemas_of_json_output():
    made = generate.json_documents
    assert (ROOT / made.SCHEMAS).read_text() == made.text(), "run: make generate"
    assert (ROOT / "docs/json.md").read_text() == made.page(), "run: make generate"
    for schema in made.schemas()["commands"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert {"$ref": "#/$defs/Failed"} in schema["anyOf"]


def test_the_index_for_programs():
    """`llms.txt` has every page with its first sentence."""
    text = (ROOT / "llms.txt").read_text()
    assert text == generate.index(), "run: make generate"
    assert set(re.findall(r"\(docs/([\w-]+)\.md\): \S.*\.$", text, re.MULTILINE)) == {
        path.stem for path in (ROOT / "docs").glob("*.md")
    }
    assert generate._first("# A\n\nFor `b.c` and d. And\nmore.\n\nRest.") == "For `b.c` and d."


def test_what_agents_are_told_is_there():
    """Every path and command of AGENTS.md exists: targets of make, options of commands, files and folders."""
    from typer.main import get_command

    from fedsolve.cli.main import app

    text = (ROOT / "AGENTS.md").read_text()
    targets = set(re.findall(r"^([a-z-]+|\.venv/\.\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([\w./-]+)", text)) <= targets
    paths = re.findall(
        r"(?<![\w/.-])((?:src|tests|tools|docs|experiments|\.ci)/[\w./-]*|[A-Z]+\.md|llms\.txt)", text
    )
    assert len(set(paths)) > 15
    assert [path for path in paths if not (ROOT / path.rstrip(".")).exists()] == []
    commands = re.findall(r"^    fedsolve (.*?)(?:  .*)?$", text, re.MULTILINE)
    assert len(commands) > 3
    for words in map(str.split, commands):
        command = get_command(app).commands[words[0]]
        command.make_context(words[0], words[1:], resilient_parsing=False)


def test_the_graph_of_packages():
    """In docs/architecture.md and as a picture for the site: both follow from the imports."""
    graph = generate.package_graph
    page = (ROOT / "docs/architecture.md").read_text()
    assert page == graph.with_graph(page), "run: make generate"
    edges = graph.reduced(graph.package_imports())
    assert (ROOT / graph.PICTURE).read_text() == graph.picture(edges), "run: make generate"


def test_an_arrow_that_follows_from_others_is_left_out():
    graph = generate.package_graph
    edges = graph.reduced({("a", "b"), ("b", "c"), ("a", "c"), ("d", "c")})
    assert edges == [("a", "b"), ("b", "c"), ("d", "c")]
    assert graph.layers_of(edges) == {"a": 2, "b": 1, "c": 0, "d": 1}
    picture = graph.picture([*edges, ("a", "c")])  # which passes between the packages of the middle layer
    assert picture.count("<polyline") == 4
    assert picture.count("<text") == 4


@pytest.mark.full
def test_the_page_on_communication():
    pytest.importorskip("dp_accounting")
    page = generate.communication_page.page()
    assert (ROOT / "docs/communication.md").read_text() == page, "run: make generate"


def test_every_name_of_the_face_is_there():
    """Methods, modules and the rest, as attributes and by a star; what has gone says where it is now."""
    names: dict = {}
    exec("from fedsolve import *", names)
    assert set(dir(fs)) <= set(names)
    assert set(ALGORITHMS) <= set(dir(fs))
    for name in fs._INSTEAD:
        if name not in ("wrappers",):  # a package of its own, loaded by now
            with pytest.raises(AttributeError, match=r"it is now fs\."):
                getattr(fs, name)
    with pytest.raises(AttributeError, match=r"no attribute 'FedAvgX'$"):
        fs.FedAvgX  # noqa: B018


def test_importing_the_package_and_its_catalogue_loads_no_jax():
    code = "import sys, fedsolve.catalogue; dir(fedsolve); print({'jax', 'numpy'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
