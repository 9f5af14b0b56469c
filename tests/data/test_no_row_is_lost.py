"""Whatever ids and labels are: each row belongs to one client, no two ids become one, and a missing one is refused."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve.cli.prediction_files import read_inputs
from fedsolve.core.trees import is_missing
from fedsolve.data import FederatedData, Schema
from fedsolve.data.schema import Column
from fedsolve.data.tables import is_number

INTEGERS = st.integers(-2, 2) | st.sampled_from([2**53, 2**53 + 1, 2**63, 2**64 - 1, 2**70])
TEXTS = st.sampled_from(["", "a", "b", "1", "nan", "a\0", "None", "ä"])
FLOATS = st.floats() | st.sampled_from([0.0, 1.0, 2.0**53])
KINDS = [INTEGERS, TEXTS, FLOATS, st.booleans(), TEXTS.map(str.encode)]
COLUMNS = st.one_of(
    *(st.lists(kind, min_size=1, max_size=9) for kind in [*KINDS, st.one_of(*KINDS, st.none())])
)


def kind(value):
    return "number" if type(value) in (int, float) else type(value).__name__


def form(values, of):
    """A list, and an array of objects."""
    return list(values) if of == "list" else np.fromiter(values, object, len(values))


@settings(max_examples=300)
@given(COLUMNS, st.sampled_from(["list", "objects"]))
def test_clients_are_the_ids(values, of):
    rows = {}
    for row, value in enumerate(values):
        rows.setdefault(value, []).append(row)
    bad = any(map(is_missing, values)) or len({kind(v) for v in values}) > 1
    try:
        data = FederatedData.from_groups(np.arange(len(values)), form(values, of))
    except fs.InvalidInput:
        # floats so large stand for several integers, and some integers cannot stand beside floats
        large = float in map(type, values) and any(
            type(v) in (int, float) and abs(v) >= 2**53 for v in values
        )
        assert bad or large
        return
    assert not bad
    assert sorted(data.client(i).tolist() for i in range(data.num_clients)) == sorted(rows.values())
    assert sorted(part.tolist() for part in fs.data.Natural()(form(values, of))) == sorted(rows.values())


PARTITIONS = [
    fs.data.IID(), fs.data.Dirichlet(0.3), fs.data.LabelsPerClient(2), fs.data.Shards(1), fs.data.ByQuantity(1.0),
]  # fmt: skip


@settings(max_examples=100)
@given(COLUMNS, st.integers(1, 4), st.sampled_from(PARTITIONS))
def test_partitions_give_each_row_to_one_client(values, clients, partition):
    missing = any(map(is_missing, values))
    try:
        parts = partition(values, clients)
    except fs.InvalidInput:
        return
    assert not missing
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(values)))
    assert min(map(len, parts)) >= 1


@settings(max_examples=25, deadline=None)
@given(
    st.one_of(st.lists(st.integers(-3, 3), min_size=1, max_size=9), st.lists(TEXTS, min_size=1, max_size=9))
)
def test_a_table_keeps_each_row(tmp_path_factory, ids):
    path = tmp_path_factory.mktemp("t") / "t.parquet"
    pq.write_table(pa.table({"u": ids, "x": np.arange(len(ids))}), path, row_group_size=2)
    data = fs.data.from_table(path, client="u", x="x")
    found = {name: data.client(i).tolist() for i, name in enumerate(data.names)}
    assert found == {str(u): [i for i, v in enumerate(ids) if v == u] for u in ids}


@pytest.mark.parametrize(
    "value", ["1_000", "1_0", "１２", "1 0", "0x1", "1,5", "inf", "nan", "1e999", "", "+-1", "."]
)
def test_what_is_no_number_in_a_file(value, tmp_path):
    """One rule for inputs of predictions, for sites and for statistics; data frames have it, too."""

    path = tmp_path / "t.csv"
    path.write_text(f'a,y\n1,1\n"{value}",1\n2,2\n3,3\n', encoding="utf-8")
    schema = Schema((1,), (), (Column("a"),), "y")
    reads = [lambda: read_inputs(path, ["a"]), lambda: schema.read_csv(path)]
    for read in reads + [lambda: schema.raw_columns(path)["a"]] * (
        value not in ("", "nan")
    ):  # a missing one is counted
        with pytest.raises(fs.InvalidInput, match="line 3"):
            read()


def test_missing_cells(tmp_path):
    """What data frames take for missing is, unless it is a category or class: no row is lost, and no category found."""
    (tmp_path / "t.csv").write_text("a,b,c,y\n1,NA,x,0\nNA,u,NA,1\n3,null,y,NA\n")
    columns = Column("a", fill="2"), Column("b", categories=("NA", "u", "null")), Column("c")
    raw = Schema((4,), (0, 1), columns, "y").raw_columns(tmp_path / "t.csv")
    np.testing.assert_array_equal(raw["a"], [1, np.nan, 3])
    assert (raw["b"], raw["c"], raw["y"]) == (["NA", "u", "null"], ["x", "", "y"], ["0", "1", ""])
    inputs = Schema((4,), (0, 1), columns[:2], "y").read_inputs(tmp_path / "t.csv")
    np.testing.assert_array_equal(inputs, [[1, 1, 0, 0], [2, 0, 1, 0], [3, 0, 0, 1]])
    with pytest.raises(fs.InvalidInput, match="line 4: column y is empty"):
        Schema((4,), (0, 1), columns[:2], "y").read_csv(tmp_path / "t.csv")


def test_numbers_in_a_file(tmp_path):

    cells = ["1", " -2.5 ", "+.5", "3.", "1e-3", "007"]
    assert all(map(is_number, cells))
    path = tmp_path / "t.csv"
    path.write_text("a,y\n" + "".join(f"{cell},1e300\n" for cell in cells))
    schema = Schema((1,), (), (Column("a"),), "y")
    np.testing.assert_allclose(schema.read_inputs(path)[:, 0], [1, -2.5, 0.5, 3, 1e-3, 7])
    with pytest.raises(fs.InvalidInput, match="line 2: column y is beyond float32"):
        schema.read_csv(path)


@pytest.mark.parametrize(
    "column",
    [
        [1, None, 3.0],
        np.array([1, np.nan, 3]),
        np.array([1, None, 3], object),
        pd.Series([1, pd.NA, 3], dtype="Int64"),
        pa.array([1, None, 3]),
        ["a", "", "b"],
        ["a", float("nan"), "b"],
        pd.Series(["a", pd.NA, "b"], dtype="category"),
    ],
    ids=lambda column: type(column).__name__,
)
def test_statistics_count_what_is_missing(column):
    found = fs.stats.describe([{"x": column}] * 3, min_rows=1)["x"]
    assert (found.rows, found.missing) == (6, 3)


def test_statistics_say_where_a_column_is_text():
    sites = [{"x": np.array([1.0, 2.0])}, {"x": ["1", "a"]}, {"x": np.array([1.0, 1.0])}]
    assert (
        "it is text at client 1 and numbers at client 0"
        in fs.stats.describe(sites, min_rows=1).unreported["x"]
    )
    assert fs.stats.describe(sites, "x=categories", min_rows=1)["x"].counts == {"1": 4, "2": 1, "a": 1}


TIMES = 1.7e9 + 10 * np.arange(6.0)
MERGED = {
    "Unix time": (TIMES, "field of examples, row 1 of client 0"),
    "a column": (np.stack([np.arange(6.0), TIMES], 1), "field of examples, column 1, row 1 of client 0"),
    "a named column": (
        pd.DataFrame({"a": np.arange(6), "t": TIMES}),
        "field of examples, column 't', row 1 of client 0",
    ),
    "integers": (2**24 + np.arange(6), "field of examples, row 1 of client 0"),
    "a second client's": ([np.full(2, 1.7e9), np.array([1.7e9 + 999, 1.7e9 + 1e3])], "row 1 of client 1"),
    "seconds of a day": (1.7e9 + np.arange(86400.0)[::7], "row 1 of"),
    "small numbers": (np.arange(6.0), None),
    "one number": (np.full(6, 1.7e9), None),
    "many close numbers": (np.random.default_rng(0).normal(size=10**5), None),
    "integers that float32 has": (2**23 + np.arange(6), None),
    "numbers that float32 has": (np.float32(TIMES), None),
    "days of many years": (86400.0 * np.arange(20_000), None),
    "beyond float32": (np.array([1e300, 2e300]), None),
}


@pytest.mark.parametrize("case", MERGED)
@pytest.mark.filterwarnings("error")
def test_numbers_that_float32_merges_are_noted(case):
    x, where = MERGED[case]
    clients = x if isinstance(x, list) else [x]
    notes = fs.Task.from_arrays(lambda w, x: jnp.mean(w * x), jnp.zeros(()), clients).notes
    assert len(notes) == (where is not None)
    assert where is None or (where in notes[0] and "float32 cannot tell" in notes[0])
