"""Statistics of a federation's columns: those of `fs.stats.describe`; and what nodes may not say."""

import json
import re

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, RecordDict

import fedsolve as fs
from deploy_small import ask
from fake_grid import FakeGrid
from fedsolve.cli.main import main
from fedsolve.core.errors import Unavailable
from fedsolve.data.column_replies import Measure
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.codec import record_to_request, to_record
from fedsolve.deploy.column_records import ColumnsRequest
from fedsolve.deploy.evaluation_job import STATISTICS_FILE
from fedsolve.deploy.run_log import FAILED
from fedsolve.deploy.server.server import server_app
from fedsolve.deploy.statistics_job import read_statistics

RNG = np.random.default_rng(0)
SITES = [
    {"age": RNG.normal(50, 10, n), "smoker": RNG.choice(["no", "yes", ""], n), "ill": RNG.integers(0, 2, n)}
    for n in (40, 60, 90, 12)
]
COLUMNS = {"age": None, "smoker": None, "ill": "categories"}


def no_model(node):
    raise AssertionError("statistics need no model")


APP = client_app(no_model, statistics=lambda node: SITES[node.client])


def collect(
    folder,
    *,
    app=APP,
    clients=(0, 1, 2, 3),
    tamper=None,
    dishonest=None,
    columns="age, smoker, ill=categories",
    schema=None,
    **config,
):
    server = server_app(fs.FedAvg(0.1), {"w": np.zeros(1)}, rounds=1, population=4, schema=schema)
    given = {"job": "statistics", "columns": columns, "out": str(folder / "run"), "connect-seconds": 0.2}
    config = given | {"round-seconds": 0.1} | config
    grid = FakeGrid(app, list(clients), folder / "nodes", tamper, dishonest, config)
    server(grid, Context(1, 1, {}, RecordDict(), config))
    return read_statistics(folder / "run" / STATISTICS_FILE)


def test_they_are_those_of_the_simulation(tmp_path, capsys):
    """To the bit, although nodes tell JSON; with a schema's constants, and a line for each column in the log."""
    found = collect(tmp_path)
    assert found == fs.stats.describe(SITES, COLUMNS)
    ages = np.concatenate([site["age"] for site in SITES])
    assert found["age"].mean == pytest.approx(ages.mean(), rel=1e-14)
    assert (tmp_path / "run" / "schema.toml").read_text() == found.schema()
    said = capsys.readouterr().out
    assert re.search(r"fedsolve: age +4 +202 +0 +4\d\.", said)
    assert "fedsolve: sums and counts are asked of age, smoker, ill" in said
    assert collect(tmp_path / "all", columns="") == fs.stats.describe(SITES)
    assert main(["show", str(tmp_path / "run")]) == 0
    assert str(tmp_path / "run" / STATISTICS_FILE) in (shown := capsys.readouterr().out)
    assert "smoker: " in shown
    assert main(["cite", str(tmp_path / "run")]) == 2
    assert "holds statistics of columns, and no run" in capsys.readouterr().err
    any_rows = client_app(no_model, statistics=lambda node: SITES[node.client], min_rows=1)
    given = collect(tmp_path / "range", app=any_rows, columns="age=40:60", **{"min-rows": 1})
    assert given == fs.stats.describe(SITES, {"age": (40, 60)}, min_rows=1)
    joined = collect(tmp_path / "joined", columns="age=0:120:60")
    assert joined == fs.stats.describe(SITES, {"age": (0, 120, 60)})
    assert re.search(r"from .* 25 % +median +75 % +±\n.*age( +\d[\d.]*){11}\n", capsys.readouterr().out)
    narrow = collect(tmp_path / "narrow", columns="age=50:51")
    # sites with few rows there have joined bins
    assert re.search(r" below 50 .* above 50\.\d+ +inf\n", capsys.readouterr().out)
    assert narrow["age"].quantile_bounds(0.25)[0] == -np.inf


def test_secure_sums(tmp_path):
    """Statistics of numbers are the same, bins of few rows included, as no client's are seen; each reply is masked."""
    columns = "age=0:100, ill=-0.5:1.5:2"
    sums = client_app(no_model, statistics=lambda node: SITES[node.client], min_sum=3)
    found = collect(tmp_path, app=sums, columns=columns, secure=True)
    wanted = fs.stats.describe(SITES, columns)
    for name in ("age", "ill"):
        mine, theirs = found[name], wanted[name]
        assert (mine.clients, mine.rows, mine.missing) == (theirs.clients, theirs.rows, theirs.missing)
        assert mine.mean == pytest.approx(theirs.mean, rel=1e-12)
        assert mine.variance == pytest.approx(theirs.variance, rel=1e-12)
        assert mine.least_below == mine.most_below
        median, bins = mine.quantile(0.5), theirs.quantile(0.5)
        assert abs(median.value - bins.value) <= median.error + bins.error

    def cut(node, kind, content):
        if kind == "query.statistics" and node == 104:
            content["masks"]["bytes"].data = content["masks"]["bytes"].data[:-8]
        return content

    without = collect(tmp_path / "cut", app=sums, columns="age=0:100", secure=True, tamper=cut)
    assert without["age"].rows == 190
    with pytest.raises(Unavailable, match="allows sums of at least 3 clients alone"):
        collect(tmp_path / "clear", app=sums, columns="age")
    with pytest.raises(fs.InvalidInput, match="categories have names"):
        collect(tmp_path / "names", app=sums, columns="ill=categories", secure=True)
    with pytest.raises(fs.InvalidInput, match="column age: secure sums are of numbers within a range"):
        collect(tmp_path / "free", app=sums, columns="age", secure=True)
    both = {"columns": "smoker=0:1, age=0:100", "secure": True}
    with pytest.raises(Unavailable, match=r"no sum of the columns: .* column smoker: it has categories"):
        collect(tmp_path / "text", **both)
    with pytest.raises(Unavailable, match=r"no sum of the columns: .* refused: this client does not answer"):
        collect(tmp_path / "hidden", app=sums, **both)
    few = client_app(no_model, statistics=lambda node: SITES[node.client], min_rows=70)
    with pytest.raises(
        Unavailable, match=r"column age: it has fewer than 70 rows: it is left out of the sum"
    ):
        collect(tmp_path / "few", app=few, columns="age=0:100", secure=True)


def test_owners_decide_and_the_server_decides(tmp_path):
    """A client with more rows as its minimum, one that allows nothing, one column that only two have."""

    def statistics(node):
        if node.client == 0:
            raise fs.InvalidInput("/data/north.csv, line 3: column age is empty")
        return {"age": SITES[node.client]["age"]} | ({"rare": SITES[3]["age"]} if node.client > 1 else {})

    found = collect(
        tmp_path, app=client_app(no_model, statistics=statistics, min_rows=20), columns="age,rare"
    )
    assert found.unreported == {
        name: f"it has {n} clients, and 3 are the minimum (min_clients){more}"
        for name, n, more in (("age", 2, ": 2 would report it"), ("rare", 0, ""))
    }
    notes = " ".join(found.notes)
    assert "client 3, column age: it has fewer than 20 rows" in notes
    assert "client 0: north.csv, line 3: column age is empty" in notes
    with pytest.raises(
        Unavailable,
        match="no client replies about its columns; client 3: no statistics are allowed here",
    ):
        collect(tmp_path / "none", app=client_app(no_model))
    assert "no client replies" in (tmp_path / "none" / "run" / FAILED).read_text()
    listed = collect(
        tmp_path / "list",
        app=client_app(no_model, statistics=lambda node: SITES if node.client else SITES[0]),
    )
    assert "client 1: statistics gave a list: give a mapping from names to columns" in listed.notes
    with pytest.raises(fs.InvalidInput, match="give statistics or max_epsilon = 1, not both"):
        client_app(no_model, statistics=statistics, max_epsilon=1.0)


def test_one_bad_file_does_not_hide_why(tmp_path, capsys):
    """The site is named, and what fewer sites would report; a bad cell costs its column alone, in a full schema."""
    (tmp_path / "s.toml").write_text("target = 'ill'\nclasses = [0, 1]\n[columns.age]\n[columns.smoker]\n")
    schema = fs.data.Schema.read(tmp_path / "s.toml")
    for name, bad in {"north": "", "south": "x", "west": ""}.items():
        rows = "".join(f"{i}{bad if i == 47 else ''},{'ny'[i % 2]},{i % 2}\n" for i in range(20, 60))
        (tmp_path / f"{name}.csv").write_text("age,smoker,ill\n" + rows)
    files = [tmp_path / f"{name}.csv" for name in ("north", "south", "west", "gone")]
    app = client_app(no_model, statistics=lambda node: schema.raw_columns(files[node.client]))

    def found(folder, **config):
        server = server_app(fs.FedAvg(0.1), {"w": np.zeros(1)}, rounds=1, population=4, schema=schema)
        config = {"job": "statistics", "out": str(folder / "run"), "round-seconds": 0.1} | config
        grid = FakeGrid(app, [0, 1, 2, 3], folder / "nodes", None, None, config)
        server(grid, Context(1, 1, {}, RecordDict(), config))
        return read_statistics(folder / "run" / STATISTICS_FILE)

    few = found(tmp_path / "three")
    why = "it has 2 clients, and 3 are the minimum (min_clients): 2 would report it"
    assert few.unreported == {"age": why}
    assert few["smoker"].counts == {"n": 60, "y": 60}
    assert set(few.notes) == {
        "client 1, column age: south.csv, line 29: column age is not a finite number: fix the cell (its own log "
        "shows it)",
        "client 3: cannot read gone.csv: No such file or directory",
    }
    said = capsys.readouterr().out
    assert "does not count: client 3: cannot read gone.csv" in said
    assert (
        "south.csv, line 29: column age = '47x' is not a finite number: fix the cell" in said
    )  # the site's log
    two = found(tmp_path / "two", **{"min-clients": 2})
    assert two["age"].rows == 80
    written = fs.data.Schema.read(tmp_path / "two" / "run" / "schema.toml")
    assert (written.target, written.classes, written.features) == ("ill", (0, 1), 3)
    assert written.columns[0].mean == pytest.approx(39.5)


def test_a_schema_explains_what_a_table_does_not_show(tmp_path):
    """The scale of a column with a logarithm, and a category that is in no schema; a misspelt column is one note."""
    (tmp_path / "s.toml").write_text(
        "target = 'ill'\nclasses = [0, 1]\n[columns.crp]\nlog = 'log1p'\n[columns.smoker]\ncategories = ['n', 'y']\n"
    )
    schema = fs.data.Schema.read(tmp_path / "s.toml")
    for client in range(4):
        rows = "".join(f"{i},{('n', 'y', 'yess')[i % 3]},{i % 2}\n" for i in range(60))
        (tmp_path / f"{client}.csv").write_text("crp,smoker,ill\n" + rows)
    app = client_app(no_model, statistics=lambda node: schema.raw_columns(tmp_path / f"{node.client}.csv"))
    found = collect(tmp_path / "found", app=app, columns="crp=0:5, smoker, smokr", schema=schema)
    assert found["crp"].maximum < 5  # log1p(59) = 4.1
    assert found.notes == (
        "column crp: its numbers and its range are those after log1p",
        "column smoker: categories not in the schema, or misspelt: yess (80)",
        "client 0, client 1, client 2, client 3, column smokr: unknown column 'smokr': did you mean 'smoker'? Known: "
        "crp, ill, smoker",
    )


def asked_about(folder, client=0, **bounds):
    """The statistics of ages by an app of a process that has just begun."""
    app = client_app(no_model, statistics=lambda node: SITES[node.client], **bounds)
    return collect(folder, app=app, columns="age=0:100", **({"secure": True} if "min_sum" in bounds else {}))


@pytest.mark.parametrize("sums", [{}, {"min_sum": 3}], ids=["read", "summed"])
def test_a_client_answers_so_many_questions_in_its_life(sums, tmp_path):
    """One a statistic: over jobs and processes; columns that there are not are not counted."""
    for folder in ("a", "b"):
        (tmp_path / folder).symlink_to(tmp_path, target_is_directory=True)
        found = asked_about(tmp_path / folder, max_questions=2, **sums)
        assert found["age"].rows == 202
        (tmp_path / "run").rename(tmp_path / f"run-{folder}")
    words = r"asked about 2 times, as often as its owner allows \(max_questions\)"
    if sums:
        with pytest.raises(Unavailable, match=words):
            asked_about(tmp_path, max_questions=2, **sums)
    else:
        stopped = asked_about(tmp_path, max_questions=2)
        assert not stopped.columns
        assert re.search(words, stopped.notes[0])
    path = tmp_path / "nodes" / "node-101" / "client-0-asked" / "questions.json"
    assert json.loads(path.read_text()) == {"age": 2}
    assert path.stat().st_mode & 0o077 == 0
    assert asked_about(tmp_path / "other", max_questions=1)["age"].rows == 202


@pytest.mark.parametrize("text", ["", "[]", '{"age": "x"}', '{"age": null}', "[" * 5000])
def test_a_count_that_is_damaged_answers_nothing(text, tmp_path):
    record = to_record(ColumnsRequest({"age": Measure(0.0, 1.0, 2)}))
    app = client_app(no_model, statistics=lambda node: SITES[0])
    assert "columns" in ask(app, record, tmp_path, kind="query.statistics")
    (tmp_path / "client-0-asked" / "questions.json").write_text(text)
    why = ask(app, record, tmp_path, kind="query.statistics")["refused"]["why"]
    assert "questions.json is damaged" in why
    assert str(tmp_path) not in why


def changed(change, of=102):
    """Client 1's replies with other facts of column age, or another record."""

    def tamper(node, kind, content):
        if node == of:
            facts = dict(content["columns"])
            columns = json.loads(facts["columns"])
            change(facts, columns)
            content["columns"] = ConfigRecord(
                {**facts, **({} if "raw" in facts else {"columns": json.dumps(columns)})}
            )
        return content

    return tamper


def age(**facts):
    return lambda _, columns: columns["age"].update(facts)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (age(rows=61), "client 1, column age: its counts add up to 60, and it has 61 rows"),
        (age(mean=float("nan")), "client 1, column age: its mean is nan"),
        (age(mean=1e300), "client 1, column age: its mean is 1e+300, and its numbers lie from "),
        (age(rows=60.0), "a node: its rows is 60.0, which is of another type"),
        (age(counts=[True] * 102), "a node: its counts is [True, True"),
        (age(kind="Categories"), "a node: it has a message of another version of fedsolve"),
        (age(more=1), "a node: it has a message of another version of fedsolve"),
        (lambda facts, _: facts.update(client=7), "a node: client 7 is none of the 4 clients"),
        (lambda facts, _: facts.update(client=0), "a node: another node is client 0: give each node its own"),
        (lambda facts, _: facts.update(site="a\nb"), "a node: site = 'a\\nb' is not a name of a site"),
        (lambda facts, _: facts.update(extra=1), "a node: it has an unknown extra: another version"),
        (lambda _, columns: columns.update({"a\n": columns["age"]}), "a node: 'a' is no name of a column"),
        (
            lambda _, columns: columns.update(age={"kind": "Refused", "reason": "so\n\x1b[2Jall is well"}),
            "client 1, column age: so \\x1b[2Jall is well",
        ),
    ],
)
def test_what_a_node_may_not_say(change, note, tmp_path):
    """It is noted with its reason, and the statistics are the others'."""
    found = collect(tmp_path, columns="age=0:100", tamper=changed(change))
    assert any(line.startswith(note) for line in found.notes), found.notes
    others = np.concatenate([site["age"] for i, site in enumerate(SITES) if i != 1])
    assert found["age"].clients == 3
    assert found["age"].mean == pytest.approx(others.mean(), rel=1e-13)
    assert found["age"].variance == pytest.approx(others.var(ddof=1), rel=1e-12)


def test_text_that_is_no_json_and_nodes_that_are_silent(tmp_path):
    def tamper(node, kind, content):
        if node == 101:
            content["columns"] = ConfigRecord(dict(content["columns"]) | {"columns": "[" * 10_000})
        return None if node == 104 else content

    found = collect(tmp_path, columns="age", tamper=tamper, **{"min-clients": 2})
    assert found["age"].clients == 2
    assert found.notes == (
        "a node: the reply cannot be read (ValueError): another version of fedsolve?",
        "a node: no answer within 0.1 s",
    )
    dead = collect(
        tmp_path / "dead", clients=(3, 0, 1, 2, 3), tamper=lambda node, _, content: content if node > 101 else None,
    )  # fmt: skip
    assert (dead["age"].clients, [note for note in dead.notes if "node" in note]) == (4, [])
    with pytest.raises(Unavailable, match=r"3 of 4 clients connected within 0\.2 s"):
        collect(tmp_path / "few", clients=(0, 1, 2))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Measure(1.0, 1.0, 10), "it asks for 10 bins from 1.0 to 1.0"),
        (Measure(float("nan"), 1.0, 10), "it asks for 10 bins"),
        (Measure(0.0, 1.0, 10**6), "it asks for 1000000 bins"),
        (Measure(0.0, 1.0, 0), "it asks for 0 bins"),
        (Measure(0, 1.0, 10), "its low is 0, which is of another type"),
    ],
)
def test_what_a_server_may_not_ask(request_, words):
    with pytest.raises(fs.InvalidInput, match=words):
        record_to_request(ColumnsRequest, to_record(ColumnsRequest({"x": request_})))


def test_a_file_that_is_damaged(tmp_path):
    collect(tmp_path, columns="smoker")
    file = tmp_path / "run" / STATISTICS_FILE
    text = file.read_text()
    file.write_text(text.replace('"rows": ', '"rows": 1', 1))
    with pytest.raises(fs.InvalidInput, match="is damaged"):
        read_statistics(file)
    with pytest.raises(fs.InvalidInput, match="cannot read"):
        read_statistics(tmp_path / "none.json")
