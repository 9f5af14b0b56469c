"""The schema that all sites share: what it refuses, and what a table becomes by it."""

import warnings

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.errors import ConfidentialError
from fedsolve.deploy.codec import refusal

TEXT = """
target = "ill"
classes = ["no", "yes"]
[columns.age]
mean = 50
deviation = 20.0
[columns.smoker]
categories = ["never", "once", "often"]
fill = "never"
[columns.weight]
fill = 80
"""
ROWS = """id, age,weight,smoker,ill
1,70,60,often,yes

2, 40,,,no
"""


@pytest.fixture
def schema(tmp_path):
    (tmp_path / "schema.toml").write_text(TEXT)
    return fs.data.Schema.read(tmp_path / "schema.toml")


@pytest.fixture
def read(schema, tmp_path):
    def of(text):
        (tmp_path / "north.csv").write_text(text)
        return schema.read_csv(tmp_path / "north.csv")

    return of


def test_a_table(schema, read):
    """By hand: (70 - 50) / 20 = 1, (40 - 50) / 20 = -0.5; three inputs for smoker; empty cells are 80 and never."""
    assert (schema.shape, schema.features, schema.outputs) == ((5,), 5, 2)
    x, y = read(ROWS)
    np.testing.assert_array_equal(x, np.float32([[1, 0, 0, 1, 60], [-0.5, 1, 0, 0, 80]]))
    assert (x.dtype, y.dtype, y.tolist()) == (np.float32, np.int32, [1, 0])


BAD_TABLES = {
    "north.csv has no column age: did you mean ag? It has id, ag, weight": ROWS.replace(" age", "ag"),
    "north.csv has 2 columns called age": ROWS.replace("id", "age"),
    "north.csv has no commas in its first line": ROWS.replace(",", ";"),
    "line 2: column age is not a finite number: fix the cell": ROWS.replace("70", "old"),
    "line 4: column age is not a finite number": ROWS.replace("40", "inf"),
    "line 4: column age is empty: fill it, leave the row out, or agree": ROWS.replace(" 40", ""),
    "line 2: column smoker = 'Often' is none of its categories never, once": ROWS.replace("often", "Often"),
    "line 4: column ill = '0' is none of its classes no, yes": ROWS.replace(",no", ",0"),
    "line 4 has 4 cells, the first line 5": ROWS.replace(",,,no", ",,no"),
    "north.csv has no row below its first line": ROWS.split("\n")[0],
    "north.csv is empty: its first line must name the columns": "",
}


@pytest.mark.parametrize("said", BAD_TABLES)
def test_a_table_that_differs(said, read):
    with pytest.raises(fs.InvalidInput) as refused:
        read(BAD_TABLES[said])
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_cell_leaves_the_site(read):
    """What the server is told of a cell that cannot be used: where it is, not what it holds."""
    with pytest.raises(ConfidentialError) as refused:
        read(ROWS.replace("often", "Miller"))
    told = refusal(refused.value)["refused"]["why"]
    assert told == (
        "north.csv, line 2: column smoker has a value that is none of its categories never, once, often: "
        "fix the cell, or the schema of all sites (its own log shows it)"
    )


BAD_SCHEMAS = {
    "no.toml: No such file": None,
    "is not valid TOML": "a = ",
    "unknown key 'clases': did you mean 'classes'?": TEXT.replace("classes", "clases", 1),
    "classes = ['no'] must be a list of two labels or more": TEXT.replace(', "yes"', ""),
    "classes = ['no', 3] must be all integers or all text": TEXT.replace('"yes"', "3"),
    "give either shape = [...], or a section": "shape = [3]\n" + TEXT,
    "shape = [0] must be a list of integers": "shape = [0]",
    "target = 'age' must name a column that has no section": TEXT.replace('"ill"', '"age"'),
    "unknown key of [columns.age] 'men': did you mean 'mean'?": TEXT.replace("mean", "men"),
    "[columns.age] deviation = 0.0 must be > 0": TEXT.replace("20.0", "0.0"),
    "[columns.age] mean = 'x' must be a finite number": TEXT.replace("mean = 50", 'mean = "x"'),
    "[columns.smoker] categories = ['never']: give two or more": TEXT.replace(', "once", "often"', ""),
    "classes hold ' yes', and cells have no spaces around them": TEXT.replace('"yes"', '" yes"'),
    "[columns.smoker] categories hold ''": TEXT.replace('"once"', '""'),
    "must be a finite number": TEXT.replace("fill = 80", f"fill = {10**400}"),
    "shape = [3, 6148914691236517206]: no array has this shape": "shape = [3, 6148914691236517206]",
    "no array has this shape: maximum supported dimension": f"shape = {[1] * 72}",
    "values are nested more than 64 deep": "classes = " + "[" * 70 + "]" * 70,
    "[columns.smoker] fill = 'no' must be one of its categories": TEXT.replace(
        'fill = "never"', 'fill = "no"'
    ),
}


@pytest.mark.parametrize("said", BAD_SCHEMAS)
def test_a_schema_that_is_none(said, tmp_path):
    path = tmp_path / "no.toml"
    if BAD_SCHEMAS[said] is not None:
        path.write_text(BAD_SCHEMAS[said])
    with pytest.raises(fs.InvalidInput) as refused:
        fs.data.Schema.read(path)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_arrays(tmp_path):
    """Labels by their places in the list, which need not be sorted."""
    (tmp_path / "s.toml").write_text("shape = [2, 2]\nclasses = [3, 1]")
    schema = fs.data.Schema.read(tmp_path / "s.toml")
    x, y = schema.check(np.ones((3, 2, 2)), [1, 3, 1])
    assert (x.dtype, y.tolist(), schema.features) == (np.float32, [1, 0, 1], 4)
    for given, said in {
        ((3, 4), (1, 3, 1)): "the schema has (examples, 2, 2) and (examples,)",
        ((3, 2, 2), (1, 3, 2)): "y holds a label = 2 that is none of the classes 3, 1: leave its rows out",
    }.items():
        with pytest.raises(fs.InvalidInput) as refused:
            schema.check(np.ones(given[0]), list(given[1]))
        assert said in str(refused.value)
    with pytest.raises(fs.InvalidInput, match="has a shape and no columns: give arrays to"):
        schema.read_csv(tmp_path / "s.toml")


@pytest.mark.parametrize(
    ("cell", "constants"),
    [("-1e308", "mean = 1e308"), ("1", "deviation = 1e-320"), ("1e39", "mean = -1e308\ndeviation = 1e-3")],
)
def test_what_overflows_when_it_is_scaled_is_refused(tmp_path, cell, constants):
    """Without a warning of NumPy's: warnings are errors here."""
    (tmp_path / "s.toml").write_text(f'target = "y"\n[columns.a]\n{constants}\n')
    (tmp_path / "t.csv").write_text(f"a,y\n{cell},1\n")
    schema = fs.data.Schema.read(tmp_path / "s.toml")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(fs.InvalidInput, match="line 2: column a is beyond float32"):
            schema.read_csv(tmp_path / "t.csv")


def test_imaginary_parts_are_not_dropped(tmp_path):
    (tmp_path / "s.toml").write_text("shape = [1]")
    schema = fs.data.Schema.read(tmp_path / "s.toml")
    for x, y in (([[1j]], [1.0]), ([[1.0]], [1j])):
        with pytest.raises(fs.InvalidInput, match="has type complex128: give real numbers"):
            schema.check(np.array(x), np.array(y))
