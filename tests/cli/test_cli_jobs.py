"""`fedsolve federate evaluate` and `statistics`: what they submit and show, with Flower's part on a fake grid."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import tomllib

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.cli.federation.demo import follow
from fedsolve.cli.federation.local import FlowerCommands
from fedsolve.core.errors import Interrupted, Unavailable

SITES = ("north", "south", "west")


@pytest.fixture
def app(call, tmp_path, monkeypatch):
    """An app for tables whose three nodes have a file each; `flwr run` of it runs on a fake grid."""
    pytest.importorskip("sklearn")
    from flwr.app import Context, RecordDict

    from fake_grid import FakeGrid

    assert call("federate", "new", "tables", "--task", "csv", "--framework", "sklearn").code == 0
    folder, nodes, rng = tmp_path / "tables", [], np.random.default_rng(0)
    for i, site in enumerate(SITES):
        rows = [
            f"{age:.1f},{age + 70:.0f},{('no', 'yes')[int(age) % 2]},{int(age > 50)}"
            for age in rng.normal(50, 9, 60)
        ]
        (tmp_path / f"{site}.csv").write_text("\n".join(["age,pressure,smoker,ill", *rows]))
        nodes.append({"client-id": i, "data": str(tmp_path / f"{site}.csv")})
    monkeypatch.syspath_prepend(str(folder))

    def submit(self, app, config, text=""):
        server, client = (importlib.import_module(f"tables.{name}_app").app for name in ("server", "client"))
        known = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
        given = (
            known | {"connect-seconds": 0.2, "rounds": 1} | config | tomllib.loads("\n".join(text.split()))
        )
        assert set(config) <= set(known)
        grid = FakeGrid(client, nodes, tmp_path / "nodes")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(fs.FedsolveError):
            server(grid, Context(1, 1, {}, RecordDict(), given))
        return 7

    monkeypatch.setattr(FlowerCommands, "submit", submit)
    yield folder
    for module in [m for m in sys.modules if m.partition(".")[0] == "tables"]:
        del sys.modules[module]


def test_analyses(app, call, tmp_path):
    """A model over the rows of files is that of the files put together; the words of each command reach the sites."""
    client = app / "tables" / "client_app.py"
    client.write_text(client.read_text().replace("analyses=()", 'analyses=("glm", "cox", "kaplan_meier")'))
    schema = fs.data.Schema.read(app / "tables" / "schema.toml")
    sites = [schema.raw_columns(tmp_path / f"{site}.csv") for site in SITES]
    wanted = fs.stats.glm(sites, "pressure ~ age + smoker")
    found = call("federate", "glm", "pressure ~ age + smoker", "--app", app, "--json").document
    assert found["result"]["coefficients"] == wanted.coefficients.tolist()
    ended = call("federate", "glm", "pressure ~ age + smoker", "--app", app, "--ratios", "--out", "ratios")
    assert "error of coefficient" in ended.out
    times = ("--time", "pressure", "--event", "ill", "--app", app)
    for command in (
        ("cox", "smoker", *times, "--out", "cox"),
        ("km", *times, "--by", "smoker", "--out", "km"),
    ):
        ended = call("federate", *command)
        assert (ended.code, "column ill is text" in ended.err) == (4, True)
    for word in ("cox", "age", "--ties", "x"), ("km", "--strata", "none", "--interval", "0"):
        ended = call("federate", *word, *times)
        assert (ended.code, ended.err.count("\n")) == (2, 1)


def test_statistics(app, call, tmp_path):
    """A table for people, a document for programs, the constants for a schema."""
    ended = call("federate", "statistics", "--app", app)
    assert ended.code == 0, ended.err
    rows = [line.split() for line in ended.out.splitlines()]
    [row] = [row for row in rows if row[:1] == ["age"]]
    assert row[:6] == ["age", "3", "180", "0", "50.2800", "8.7226"]
    assert not any("median" in row for row in rows)
    assert "smoker: 180 rows of 3 clients, 0 missing; no 88, yes 92\n" in ended.out
    schema = (tmp_path / "runs" / "tables-statistics-1" / "schema.toml").read_text()
    assert '[columns.smoker]\ncategories = ["no", "yes"]' in schema
    (app / "tables" / "schema.toml").write_text(schema)  # it takes the place of the app's
    assert fs.data.Schema.read(app / "tables" / "schema.toml").target == "ill"
    found = call("federate", "statistics", "age=20:80", "--app", app, "--min-clients", "2", "--json").document
    ages = np.concatenate(
        [np.loadtxt(tmp_path / f"{s}.csv", delimiter=",", skiprows=1, usecols=0) for s in SITES]
    )
    ended = call("federate", "statistics", "age=20:80:60", "--app", app, "--out", "quartiles")
    row = next(line.split() for line in ended.out.splitlines() if line.split()[:1] == ["age"])
    assert float(row[-1]) <= 15
    for text, quartile in zip(row[-4:-1], np.quantile(ages, [0.25, 0.5, 0.75]), strict=True):
        assert abs(float(text) - quartile) <= float(row[-1])
    assert found["columns"]["age"]["mean"] == pytest.approx(ages.mean(), rel=1e-12)
    assert found["files"]["schema"].endswith("tables-statistics-2/schema.toml")
    few = call("federate", "statistics", "age", "--app", app, "--min-rows", "61", "--out", "few")
    assert "age" in few.out
    few = call("federate", "statistics", "age", "--app", app, "--min-clients", "4", "--out", "fewer")
    assert (few.code, few.out.splitlines()[-3]) == (
        0,
        "age is not reported: it has 3 clients, and 4 are the minimum (min_clients): 3 would report it",
    )


def test_evaluate(app, call, tmp_path):
    """The clients' means, how they are spread and each client's own, of the model of a run."""
    FlowerCommands().submit(app, {"out": str(tmp_path / "run")})
    ended = call("federate", "evaluate", tmp_path / "run", "--app", app, "--out", "measured")
    assert ended.code == 0, ended.err
    wanted = fs.load(tmp_path / "run").history
    rows = [line.split() for line in ended.out.splitlines() if line.strip()]
    losses = [row[1] for row in rows if row[0] == "loss"]
    assert losses == [f"{wanted.final(f'{part}_loss'):.4f}" for part in ("train", "validation")]
    assert [row[:2] for row in rows if row[0] in SITES] == [[s, n] for n in ("48", "12") for s in SITES]
    assert "validation_accuracy" in wanted.evaluations
    again = call(
        "federate", "evaluate", tmp_path / "run", "--app", app, "--metrics", "loss", "--json"
    ).document
    assert again["train"]["clients"] == list(SITES)
    assert again["train"]["metrics"]["loss"]["over_all_examples"] == wanted.final("train_loss")
    assert list(again["train"]["metrics"]) == ["loss"]
    other = call("federate", "evaluate", tmp_path / "run", "--app", app, "--run-config", 'method="SCAFFOLD"')
    assert other.code == 4
    assert "has algorithm = " in other.err
    taken = call("federate", "evaluate", tmp_path / "run", "--app", app, "--out", "measured")
    assert "measured holds a result already: choose another folder with --out" in taken.err


def test_what_cannot_be_submitted(app, call, tmp_path):
    for arguments, words in (
        (("evaluate", "none"), "none: no such file or folder; give the folder of a run, or a model's file"),
        (("statistics", "age=9:1"), "age = (9.0, 1.0) must be a range (low, high)"),
        (("statistics", "age", "--secure"), "column age: secure sums are of numbers within a range: give it"),
        (("statistics", "--min-rows", "0"), "min_rows = 0 must be an integer of at least 1"),
        (
            ("statistics", "--app", "none"),
            "none/pyproject.toml: No such file or directory; give the folder of an app",
        ),
    ):
        ended = call("federate", *arguments)
        assert (ended.code, words in ended.err) == (2, True), ended.err
    text = (app / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(
        "\n".join(line for line in text.splitlines() if not line.startswith(("job", "min-rows")))
    )
    ended = call("federate", "statistics", "--app", app)
    assert (
        'lacks, below [tool.flwr.app.config]: job = "train"; min-rows = 10: add what is missing' in ended.err
    )
    (app / "pyproject.toml").write_text("[project]")
    assert "describes no Flower app" in call("federate", "statistics", "--app", app).err
    assert not (tmp_path / "runs").exists()


class Stub(FlowerCommands):
    """A SuperLink where a run has ended as it says."""

    def __init__(self, status):
        self.said, self.stopped = status, []

    def status(self, run):
        return self.said

    def log(self, run):
        return "one line\nfedsolve: error: the last\n"

    def stop_run(self, run):
        self.stopped.append(run)


class Asked:
    stop_requested = True


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("finished:failed", "it failed: fedsolve: error: the last"),
        (
            "finished:completed",
            "it has finished, and .* is not on this machine: start the command on the machine of",
        ),
    ],
)
def test_a_run_that_ends_without_a_result(status, words, tmp_path, monkeypatch):
    monkeypatch.setattr("fedsolve.cli.federation.demo._STATUS_SECONDS", 0.0)
    never = type("Never", (), {"stop_requested": False})()
    with pytest.raises(Unavailable, match=words):
        follow(Stub(status), 5, tmp_path, lambda: None, never, "it", "stopped")
    commands = Stub("running")
    with pytest.raises(Interrupted, match="stopped"):
        follow(commands, 5, tmp_path, lambda: None, Asked(), "it", "stopped")
    assert commands.stopped == [5]
