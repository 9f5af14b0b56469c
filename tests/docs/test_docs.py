"""The documents do what they say: their code runs, their sources and tables are the package's."""

import importlib
import importlib.util
import json
import re
import shlex
import sys
import textwrap
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.config.catalogue import ALGORITHMS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text()


def blocks_of(page):
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def run_blocks(*which):
    """These programs of docs/quickstart.md in one session, as a reader would type them; they end with good results."""
    for package in ("sklearn", "matplotlib"):
        pytest.importorskip(package)
    blocks = blocks_of(QUICKSTART)
    assert len(blocks) == 7
    names: dict = {}
    exec("import fedsolve as fs", names)

    def digits():
        assert names["result"].metrics["test_accuracy"][-1] > 0.9

    def callbacks():
        assert Path("runs/best/model.safetensors").stat().st_size > 0

    def comparison():
        finals = names["found"].final("test_accuracy")
        assert [len(x) for x in finals.values()] == [3, 3]
        assert finals["adaptive"].min() > 0.85

    def regression():
        assert names["result"].params["w"].dtype == np.float64
        np.testing.assert_allclose(names["result"].params["w"], names["truth"], atol=0.05)

    def frank_wolfe():
        gap = names["result"].metrics["gap"]
        assert (gap > 0).all()
        assert gap[-1] < 0.05 * gap[0]
        assert np.abs(names["result"].params["w"]).sum() <= 2.0 + 1e-5
        assert names["result"].rounds["bytes_up"][-1] == 3  # three clients, one byte each

    def sweep():
        assert names["found"].best_settings == {"client_lr": 0.03, "server_lr": 1.0}

    ends = (digits, comparison, callbacks, regression, frank_wolfe, sweep, lambda: None)
    for i in which:
        exec(blocks[i], names)
        ends[i]()


@pytest.mark.full
def test_small_problems_of_the_quickstart_run():
    run_blocks(3, 4)


@pytest.mark.full
def test_all_programs_of_the_quickstart_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_blocks(*range(7))


def test_the_programs_of_the_readme_run():
    for package in ("sklearn", "matplotlib"):
        pytest.importorskip(package)
    names: dict = {}
    for block in blocks_of(README)[:2]:
        exec(block.replace("rounds=200", "rounds=3"), names)
    np.testing.assert_allclose(names["result"].params["w"], names["truth"], atol=0.05)


def test_the_readme_is_short():
    """At most 900 words, and lines that no page cuts off."""
    assert len(README.split()) <= 900
    assert max(map(len, README.splitlines())) <= 100


COMMANDS = ("command-line", "tasks", "own-data", "scale", "personalisation", "deployment", "train-further")


def shown_commands():
    """The command lines of the README and of guides, comments off, continued lines joined."""
    guides = [(ROOT / "docs" / f"{name}.md").read_text() for name in COMMANDS]
    return [
        shlex.split(line, comments=True)[1:]
        for page in (README, QUICKSTART, *guides)
        for line in page.replace("\\\n", " ").splitlines()
        if line.startswith("    fedsolve")
    ]


def test_shown_command_lines_are_read():
    """Each command and option of them exists, and names of tasks, methods, data sets and experiments are right."""
    from typer.main import get_command

    from fedsolve.cli.configuration.values import parse_assignments, parse_method
    from fedsolve.cli.main import app
    from fedsolve.config.build import arguments
    from fedsolve.studies.reproduce import entries
    from fedsolve.tasks.catalogue import TASKS
    from fedsolve.tasks.datasets.download import DATASETS

    seen, every = set(), get_command(app)
    above = every.make_context("fedsolve", [], resilient_parsing=True)
    for words in shown_commands():
        command, rest = every, words
        while hasattr(command, "commands"):
            command, rest = command.commands[rest[0]], rest[1:]
        given = command.make_context(command.name, list(rest), parent=above).params
        seen.add(words[0])
        task = given.get("task") or "digits"
        assert task in (*TASKS, "csv") or task.startswith("mine:"), words
        named = [
            *(given.get("names") or ()),
            given.get("algorithm"),
            given["name"] if words[0] == "sweep" else None,
        ]
        for name in [n for n in named if n is not None and ":" not in n]:
            keys = parse_assignments(given.get("settings") or [], "--set")
            of_one = {key.rpartition(".")[2] for key in keys}  # slow.client_lr
            assert of_one <= set(arguments(parse_method(name)["name"])), words
        if words[0] in ("data", "reproduce") and given["name"]:
            assert given["name"] in {"data": DATASETS, "reproduce": entries()}[words[0]]
    commands = (
        "run compare sweep data reproduce federate show cite list settings stop predict export doctor study"
    )
    assert seen == set(commands.split())


@pytest.mark.full
def test_command_lines_that_train_show_the_methods_well(tmp_path, monkeypatch, capsys):
    """The FedFW line as it stands; the comparison has tuned settings, and the method that was at 67 % without them."""
    pytest.importorskip("sklearn")
    from fedsolve.cli.configuration.command_options import CompareRequest
    from fedsolve.cli.configuration.overlay import from_options
    from fedsolve.cli.configuration.prepare import untuned_note
    from fedsolve.cli.main import main

    found = importlib.util.find_spec  # as where matplotlib is not installed, which saves seconds
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *a: None if n == "matplotlib" else found(n, *a)
    )

    def accuracy(*words):
        assert main([*words, "--out", str(tmp_path / words[3]), "--json"]) == 0
        return json.loads(capsys.readouterr().out)["result"]["final_test_accuracy"]

    (frankwolfe,) = [words for words in shown_commands() if "FedFW" in words]
    assert accuracy(*frankwolfe) > 0.95
    (compare,) = [words for words in shown_commands() if words[0] == "compare" and "--config" in words]
    at = compare.index("--config")
    tuned = ROOT / compare[at + 1]
    config = from_options(CompareRequest(config=tuned, task=compare[1], names=compare[2:at]))
    assert (config.run.rounds, config.run.clients_per_round, untuned_note(config)) == (200, 20, [])
    assert len(config.how_tuned) > 100
    last = config.method[-1].name
    assert accuracy("run", "digits", last, "--config", str(tuned), "--rounds", "40") > 0.9


@pytest.mark.full
def test_the_federation_of_the_page_runs(tmp_path, monkeypatch):
    """The two apps of docs/deployment.md train on the fake grid."""
    for package in ("torch", "sklearn"):
        pytest.importorskip(package)
    from flwr.app import Context, RecordDict

    from fake_grid import FakeGrid

    monkeypatch.chdir(tmp_path)
    block = blocks_of((ROOT / "docs" / "deployment.md").read_text())[0]
    names: dict = {}
    exec(block, names)
    grid = FakeGrid(names["client"], [0, 1, 2], tmp_path / "nodes")
    names["server"](grid, Context(1, 1, {}, RecordDict(), {"rounds": 2, "out": str(tmp_path / "run")}))
    assert (tmp_path / "run" / "history.json").exists()


@pytest.mark.full
def test_five_csv_files_become_a_federation_and_predictions(tmp_path, monkeypatch):
    """docs/deployment.md on five files: the app and the schema as it says, its last program loads and predicts."""
    pytest.importorskip("sklearn")
    from flwr.app import Context, RecordDict

    from fake_grid import FakeGrid
    from fedsolve.cli.federation.new import write_app

    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "deployment.md").read_text()
    assert "fedsolve federate new sites --task csv --framework sklearn --clients 5" in page
    write_app(Path("sites"), "csv", "sklearn", 5)
    [schema] = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "sites" / "sites" / "schema.toml").write_text(textwrap.dedent(schema))
    monkeypatch.syspath_prepend(str(tmp_path / "sites"))
    server, client = (importlib.import_module(f"sites.{name}_app").app for name in ("server", "client"))
    grid = FakeGrid(client, list(range(5)), tmp_path / "nodes")
    rng = np.random.default_rng(0)
    for site, node in zip(("north", "south", "east", "west", "centre"), grid.nodes.values(), strict=True):
        rows = [
            f"{crp:.1f},{int(crp > 9)},{rng.choice(['no', 'yes', ''])}" for crp in rng.lognormal(2.2, 0.9, 60)
        ]
        (tmp_path / f"{site}.csv").write_text("\n".join(["crp,ill,smoker", *rows]))
        node["data"] = f"{site}.csv"
    config = {
        "method": "FedAvg",
        "client-lr": 0.1,
        "rounds": 5,
        "client-metrics": "loss, accuracy",
        "out": "run",
    }
    server(grid, Context(1, 1, {}, RecordDict(), config))
    names: dict = {}
    exec(blocks_of(page)[1].replace("/data/new.csv", "north.csv"), names)
    predicted = names["fitted"](fs.load("run").params).predict(names["x"])
    assert np.mean(predicted == names["SCHEMA"].read_csv("north.csv")[1]) > 0.8
    assert fs.load("run").history.settings["sites"] == "north, south, east, west, centre"
    for name in [name for name in sys.modules if name.partition(".")[0] == "sites"]:
        monkeypatch.delitem(sys.modules, name)


def test_the_page_on_statistics_over_sites_runs():
    pytest.importorskip("formulaic")
    names: dict = {}
    exec(blocks_of((ROOT / "docs" / "pooled-statistics.md").read_text())[0], names)
    fitted, hazards = names["fit"], names["hazards"]
    assert (fitted.rows, hazards.rows, names["curves"].rows) == (800, 800, 800)
    assert np.isfinite(hazards.trends).all()
    assert fitted["age"] > 0 < hazards["age"]


def test_the_readme_counts_the_methods():
    from fedsolve.config.catalogue import WRAPPERS

    assert f"**Exact.** {len({*ALGORITHMS, *WRAPPERS})} methods" in README


@pytest.mark.full
def test_the_methods_of_adding_an_algorithm_run(tmp_path, monkeypatch):
    """Its three files, by module:name, in wrappers and as wrappers; the methods are what their docstrings say."""
    page = (ROOT / "docs" / "adding-an-algorithm.md").read_text()
    files = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for name, text in zip(("mine", "ridge", "mime"), files, strict=True):
        (tmp_path / f"page_{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    rows = np.random.default_rng(0).normal(size=(4, 16, 3))
    clients = [(x, x.sum(1) + i) for i, x in enumerate(rows)]
    task = fs.Task.from_arrays(lambda w, b: jnp.mean((b[0] @ w - b[1]) ** 2), np.zeros(3), clients)

    def loss(name, settings):
        result = fs.run(fs.build(name, settings), task, rounds=3, batch_size="full", local_steps=4)
        return result.metrics["train_loss"][-1]

    rate = {"client_lr": 0.1}
    ema = loss("FedAvgM", rate | {"ema": True, "momentum": 0.5})
    assert loss("page_mine:Averaged", rate | {"beta": 0.5}) == pytest.approx(ema, rel=1e-5)
    assert loss("FedProx+page_mine:Averaged", rate | {"beta": 0.5, "mu": 1.0}) > ema
    adam = loss("FedAdam", rate)
    assert loss("page_ridge:Ridge+FedAdam", rate | {"weight": 0.0}) == pytest.approx(adam, rel=1e-5)
    assert loss("page_ridge:Ridge+FedAdam", rate | {"weight": 1.0}) > adam
    average = loss("FedAvg", rate)
    assert loss("page_mime:MimeLite+FedAvg", rate | {"beta": 0.0}) == pytest.approx(average, rel=1e-5)
    assert (
        loss("FedProx+page_mime:MimeLite+FedAvg", rate | {"beta": 0.9, "mu": 0.0}) > average
    )  # its first steps
    scaffold = loss("SCAFFOLD", rate)
    assert loss("SCAFFOLD+page_mime:MimeLite+FedAvg", rate | {"beta": 0.0}) == pytest.approx(
        scaffold, rel=1e-5
    )


def test_the_commands_of_adding_an_algorithm_name_its_methods():
    """Each `module:name` and each setting of the page's commands is one that the page defines."""
    page = (ROOT / "docs" / "adding-an-algorithm.md").read_text()
    named = set(
        re.findall(r"\b(\w+):([A-Z]\w+)", " ".join(re.findall(r"^    fedsolve .*$", page, re.MULTILINE)))
    )
    assert named == {("mine", "Averaged"), ("ridge", "Ridge"), ("mime", "MimeLite")}
    assert all(
        f"Save it as `{module}.py`" in page or f"Save this file as `{module}.py`" in page
        for module, _ in named
    )


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_files_that_are_named_exist(page):
    """Every `path` in backquotes that looks like a file of the repository, and every picture, exists."""
    text = (ROOT / page).read_text()
    named = re.findall(r"`((?:docs|benchmarks|experiments|src|tests)/[\w./-]+\.\w+)`", text)
    assert not [n for n in named if not (ROOT / n).exists()]
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert not [n for n in pictures if not (ROOT / page).parent.joinpath(n).exists()]


def test_which_method_an_object_is():
    """What docs/choosing.md asks of objects is so."""
    page = (ROOT / "docs" / "choosing.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict = {}
    asked = [line for line in block.splitlines() if line.startswith("isinstance")]
    exec(block, names)
    assert len(asked) == 3
    assert [eval(line, names) for line in asked] == [True] * 3
    assert names["x"].name == "FedAdam"
    with pytest.raises(TypeError):
        isinstance(names["x"], names["fs"].FedAvg)
