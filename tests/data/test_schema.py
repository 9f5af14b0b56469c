"""Tables as clinics and agencies have them, by one schema: each site writes in its own way and means the same."""

import re

import numpy as np
import pandas as pd
import pytest

import fedsolve as fs
from fedsolve.core.errors import ConfidentialError
from fedsolve.deploy.codec import refusal
from fedsolve.deploy.oracles.node_oracle import NodeContext

SCHEMA = """
target = "ill"
classes = ["no", "yes"]
missing = ["?"]
[columns."größe"]
mean = 170
standard_deviation = 10
unit = "cm"
[columns.ward]
categories = ["north", "süd"]
unknown = "other"
indicator = true
[columns.crp]
log = "log1p"
clip = [0, 500]
missing = [-99]
indicator = true
[columns.admitted]
date = ["%d.%m.%Y", "%Y-%m-%d"]
standard_deviation = 365.25
fill = 0
"""
ROWS = [
    ("180.5", "süd", "10", "24.12.1970", "yes"),
    ("170", "Zürich", "-99.0", "1971-01-01", "no"),
    ("1.6e2", "?", "1e9", "", "no"),
]
WANTED = [  # größe; ward north, süd, other, missing; crp, missing; admitted
    [1.05, 0, 1, 0, 0, np.log(11), 0, 357 / 365.25],
    [0, 0, 0, 1, 0, 0, 1, 365 / 365.25],
    [-1, 0, 0, 0, 1, np.log(501), 0, 0],
]


@pytest.fixture
def schema(tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    return fs.data.Schema.read(tmp_path / "schema.toml")


def table(separator=",", decimal="."):
    rows = [(a.replace(".", decimal), b, c.replace(".", decimal), d, e) for a, b, c, d, e in ROWS]
    lines = [("größe", "ward", "crp", "admitted", "ill", "note"), *((*row, '"a;b,\tc|d"') for row in rows)]
    return "".join(separator.join(line) + "\r\n" for line in lines)


SITES = {
    "plain": (table(), "utf-8", {}),
    "a mark": (table(), "utf-8-sig", {}),
    "Germany": (table(";", ","), "cp1252", {"decimal": ",", "encoding": "cp1252"}),
    "Latin 1": (table(";"), "latin-1", {"encoding": "latin-1"}),
    "UTF-8 where another was named": (table("\t"), "utf-8", {"encoding": "cp1252"}),
    "Excel's Unicode text": (table("\t", ","), "utf-16", {"decimal": ","}),
    "UTF-16 without a mark": (table("|"), "utf-16-le", {"encoding": "utf-16-le"}),
    "a separator of its own": (table("^"), "utf-8", {"separator": "^"}),
}


@pytest.mark.parametrize("site", SITES)
def test_every_site_writes_in_its_own_way(site, schema, tmp_path):
    """By hand: (180.5 - 170) / 10; log(1 + 10); 24 December is day 357 of the year, from 0."""
    text, encoding, config = SITES[site]
    (tmp_path / "t.csv").write_bytes(text.encode(encoding))
    node = NodeContext(0, site, {"client-id": 0, "data": str(tmp_path / "t.csv"), **config}, {})
    x, y = schema.read_csv(node.data, node.file_format)
    np.testing.assert_allclose(x, WANTED, rtol=1e-6)
    assert (x.shape[1], y.tolist()) == (schema.features, [1, 0, 0])
    np.testing.assert_array_equal(schema.read_inputs(node.data, node.file_format), x)
    raw = schema.raw_columns(node.data, node.file_format)
    np.testing.assert_allclose(raw["crp"], [np.log(11), np.nan, np.log(501)])
    np.testing.assert_allclose(raw["admitted"], [357, 365, np.nan])
    assert (raw["ward"], raw["ill"]) == (["süd", "Zürich", ""], ["yes", "no", "no"])


def test_a_site_may_have_the_missing_cells_of_its_own(schema, tmp_path):
    (tmp_path / "t.csv").write_text(table().replace("?", "unbekannt"), encoding="utf-8")
    own = schema.read_csv(tmp_path / "t.csv", {"missing": "unbekannt"}).x
    np.testing.assert_allclose(own, WANTED, rtol=1e-6)
    assert schema.read_csv(tmp_path / "t.csv").x[2].tolist()[1:5] == [0, 0, 1, 0]  # another ward


WITHOUT = "target = 'y'\n[columns.a]\n"
REFUSED = {
    "line 2: column a (mg/l) is not a finite number: is `decimal` of the schema or the node right": (
        WITHOUT + "unit = 'mg/l'",
        "a;y\n1,5;1\n",
        {},
    ),
    "line 2: column a is not a finite number: is `decimal` of the schema or the node right": (
        WITHOUT,
        "a;y\n1.5;1\n",
        {"decimal": ","},
    ),
    "line 2: column a = '1.234,5' is not a finite number: fix the cell": (
        WITHOUT,
        "a;y\n1.234,5;1\n",
        {"decimal": ","},
    ),
    "line 3: column a has a number of at most 0, which has no log": (
        WITHOUT + "log = 'log'",
        "a,y\n1,1\n0,1\n",
        {},
    ),
    "line 2: column a = '31.02.1987' is no date as %d.%m.%Y has it": (
        WITHOUT + "date = '%d.%m.%Y'",
        "a,y\n31.02.1987,1\n",
        {},
    ),
    "line 2: column a is empty: fill it": (WITHOUT + "missing = '-'", "a,y\n-,1\n", {}),
    "is not in UTF-8: save it in UTF-8, or set `encoding`, such as 'cp1252'": (WITHOUT, "a,y,ü\n1,1,2\n", {}),
    "is not in CP1252": (WITHOUT, "a,y,\x81\xff\n1,1,2\n", {"encoding": "cp1252"}),
    "has none of the columns a, y in its first line": (WITHOUT, "1;2\n3;4\n", {}),
    "unknown part of a file's format 'sep': did you mean": (WITHOUT, "a,y\n1,1\n", {"sep": ";"}),
    "encoding = 'base64' is not known": (WITHOUT, "a,y\n1,1\n", {"encoding": "base64"}),
    "decimal = 0 must be '.' or ','": (WITHOUT, "a,y\n1,1\n", {"decimal": 0}),
    "separator = ';;' must be one character": (WITHOUT, "a,y\n1,1\n", {"separator": ";;"}),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_refused_says_what_to_do(said, tmp_path):
    text, rows, form = REFUSED[said]
    (tmp_path / "s.toml").write_text(text)
    (tmp_path / "t.csv").write_bytes(rows.encode("latin-1"))
    with pytest.raises(fs.InvalidInput) as refused:
        fs.data.Schema.read(tmp_path / "s.toml").read_csv(tmp_path / "t.csv", form)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    for value in ("1987", "1,5", "1.5", "1.234"):  # the server is not told what the cell holds
        assert value not in refusal(refused.value)["refused"]["why"]


def test_unknown_categories_are_refused_unless_the_schema_says_more(tmp_path):
    """The value is for the site's own log alone."""
    (tmp_path / "t.csv").write_text("a,y\nu,1\nsecret,1\nv,1\n")
    text = WITHOUT + "categories = ['u', 'v']\n"
    read = {}
    for policy in ("refuse", "ignore", "other"):
        (tmp_path / "s.toml").write_text(text + f"unknown = '{policy}'")
        read[policy] = fs.data.Schema.read(tmp_path / "s.toml")
    assert read["ignore"].read_inputs(tmp_path / "t.csv").tolist() == [[1, 0], [0, 0], [0, 1]]
    assert read["other"].read_inputs(tmp_path / "t.csv").tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]
    with pytest.raises(
        ConfidentialError, match="column a = 'secret' is none of its categories u, v"
    ) as refused:
        read["refuse"].read_inputs(tmp_path / "t.csv")
    assert "secret" not in refusal(refused.value)["refused"]["why"]


SCHEMAS = {
    "part = 'day' must be 'days' or 'year' or 'month'": "date = '%Y'\npart = 'day'",
    "date = 'DD.MM.YYYY' must be a form of dates": "date = 'DD.MM.YYYY'",
    "clip = [3, 1] must be [LEAST, LARGEST]": "clip = [3, 1]",
    "log = True must be 'log' or 'log1p'": "log = true",
    "indicator = 1 must be true or false": "indicator = 1",
    "log = 'log' is of numbers: leave it or categories out": "log = 'log'\ncategories = ['u', 'v']",
    "date = '%Y' is of numbers: leave it or categories out": "date = '%Y'\ncategories = ['u', 'v']",
    "part = 'year' is of dates: give `date`": "part = 'year'",
    "fill = 'x' must be a finite number": "fill = 'x'",
    "unit = 3 must be text": "unit = 3",
    "missing = {} must be a list of texts": "missing = {}",
    "unknown key of [columns.a] 'deviation'": "deviation = 1\nstandard_deviation = 1",
}


@pytest.mark.parametrize("said", SCHEMAS)
def test_a_schema_that_is_none(said, tmp_path):
    (tmp_path / "s.toml").write_text(WITHOUT + SCHEMAS[said])
    with pytest.raises(fs.InvalidInput) as refused:
        fs.data.Schema.read(tmp_path / "s.toml")
    assert said in str(refused.value)


def messy(n, seed):
    """What a site has before anybody agreed on anything."""
    rng = np.random.default_rng(seed)
    days = np.where(rng.random(n) < 0.2, rng.integers(0, 2, n), rng.integers(0, 900, n))  # two are frequent
    dates = pd.Timestamp("2020-01-01") + pd.to_timedelta(days, "D")
    return pd.DataFrame({
        "age": np.where(rng.random(n) < 0.1, np.nan, rng.normal(60, 10, n).round(1)),
        "crp": rng.lognormal(2, 1, n).round(2),
        'blood "group" 🩸': rng.choice(["0", "A+", 'B"', "AB"], n),
        "ward.1": rng.choice(["Nord", "Süd"], n),
        "admitted": dates.strftime("%d.%m.%Y"),
        "constant": 1,
        "ill": rng.integers(0, 2, n),
    })  # fmt: skip


def test_the_schema_that_statistics_write_is_a_schema(tmp_path):
    """As it is, with every table: agreed keys stay, dates are left out with the reason, and the target is no input."""
    files = []
    for i in range(3):
        files.append(tmp_path / f"{i}.csv")
        messy(200, i).to_csv(files[-1], index=False, sep=",;\t"[i], encoding="utf-8-sig")
    first = (
        'target = "ill"\nclasses = [0, 1]\nmissing = ["?"]\n[columns.age]\nunit = "years"\nindicator = true\n'
        '[columns.crp]\nlog = "log"\nclip = [1e-2, 1e3]\n[columns."blood \\"group\\" 🩸"]\nunknown = "ignore"\n'
        '[columns."ward.1"]\n'
        'categories = ["West", "Nord"]\nunknown = "other"\nfill = "Nord"\n[columns.admitted]\n[columns.constant]\n'
    )
    path = tmp_path / "schema.toml"
    path.write_text(first, encoding="utf-8")
    schema = fs.data.Schema.read(path)
    found = fs.stats.describe([schema.raw_columns(file) for file in files])
    path.write_text(found.schema(schema), encoding="utf-8")
    written = fs.data.Schema.read(path)
    assert (written.target, written.classes, written.form) == (schema.target, schema.classes, schema.form)
    names = [column.name for column in schema.columns]
    assert [column.name for column in written.columns] == [name for name in names if name != "admitted"]
    assert re.search(
        r"# \[columns\.admitted\]\n(# .*\n)*# left out: of 600 rows \d+ have a text", path.read_text("utf-8")
    )
    by_name = {column.name: column for column in written.columns}
    assert by_name["ward.1"].categories == ("West", "Nord", "Süd")
    assert set(by_name['blood "group" 🩸'].categories) == {"0", "A+", 'B"', "AB"}
    assert (by_name["crp"].log, by_name["crp"].clip, by_name["age"].unit) == ("log", (0.01, 1000.0), "years")
    x = np.concatenate([written.read_inputs(file) for file in files])
    pooled = pd.concat([messy(200, i) for i in range(3)])
    logs = np.log(pooled["crp"])
    np.testing.assert_allclose(x[:, 2], (logs - logs.mean()) / logs.std(), atol=1e-5)
    ages = x[x[:, 1] == 0, 0]
    assert (abs(ages.mean()) < 1e-6, ages.std(ddof=1)) == (True, pytest.approx(1, rel=1e-5))
    again = fs.stats.describe([written.raw_columns(file) for file in files]).schema(written)
    path.write_text(again, encoding="utf-8")
    assert fs.data.Schema.read(path) == written
    dated = path.with_name("dated.toml")
    dated.write_text(
        first.replace("[columns.admitted]", '[columns.admitted]\ndate = "%d.%m.%Y"'), encoding="utf-8"
    )
    days = fs.stats.describe([fs.data.Schema.read(dated).raw_columns(f) for f in files])["admitted"]
    assert 18262 < days.mean < 18262 + 900  # 1 January 2020


def test_what_is_not_reported_stays_as_it_was(tmp_path):
    (tmp_path / "s.toml").write_text(WITHOUT + "mean = 3\n[columns.b]\nlog = 'log1p'\n")
    schema = fs.data.Schema.read(tmp_path / "s.toml")
    sites = [{"a": np.arange(20.0), "b": np.append(np.arange(19.0), np.nan)}, {"b": np.arange(20.0)}]
    found = fs.stats.describe(sites, min_clients=2)
    text = found.schema(schema)
    assert "mean = 3.0\n" in text
    assert "# not reported: it has 1 clients, and 2 are the minimum" in text
    fill = float(re.search("# fill = (.*)  # for 1 empty cells", text)[1])
    assert fill == pytest.approx(np.expm1(found["b"].mean))
    only = fs.stats.describe(sites, min_clients=2).schema()
    assert only.startswith("[columns.b]\nmean = ")


def test_held_out_examples_are_of_every_class():
    """A rare class too; the same each time; of numbers a fraction of all."""
    y = np.array([0] * 95 + [1] * 2 + [2])
    data = fs.Examples(np.arange(98.0), y)
    train, held = data.hold_out(0.2)
    rows = fs.SparseRows(np.arange(100).reshape(50, 2), np.ones((50, 2)))
    assert fs.Examples(rows, np.arange(50.0)).hold_out(0.2)[1].x.indices.shape == (10, 2)
    with pytest.raises(fs.InvalidInput, match="x has 49 examples and y 50"):
        fs.Examples(np.zeros(49), np.zeros(50)).hold_out(0.2)
    assert np.bincount(train.y).tolist() == [76, 1, 1]
    assert np.bincount(held.y).tolist() == [19, 1]
    assert sorted([*train.x, *held.x]) == data.x.tolist()
    np.testing.assert_array_equal(held.x, data.hold_out(0.2)[1].x)
    assert len(fs.Examples(np.arange(50), np.arange(50.0)).hold_out(0.2)[1].y) == 10
    assert not set(y[held.x.astype(int)]) - set(train.y.tolist())
    for share, labels in ((0.2, [1]), (1.0, [1, 1])):
        with pytest.raises(fs.InvalidInput):
            fs.Examples(np.zeros(len(labels)), np.array(labels)).hold_out(share)
