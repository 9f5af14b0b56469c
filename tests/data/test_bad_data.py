"""Data that would be cut, wrapped or misread are refused in one line, before anything is compiled."""

import gzip
import hashlib
import struct
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.errors import ConfidentialError, InvalidInput, check_seed
from fedsolve.data import checksum, data_dir, read_idx, read_npz
from fedsolve.data.federated import FederatedData
from fedsolve.deploy.codec import refusal
from fedsolve.engine.compute.casting import cast
from fedsolve.engine.compute.clients import on_device

X = np.arange(6.0)
MASKED = np.ma.masked_less(X, 1)


def of_rows(*parts):
    return lambda: FederatedData.from_partition(X, parts)


REFUSED = {
    "a boolean mask": (of_rows(X > 2, X <= 2), "flatnonzero"),
    "floats": (of_rows([0.0, 1.7], [2, 3]), "float64, not row numbers"),
    "a row beyond the last": (of_rows([0, 6]), "hold 6"),
    "a negative row": (of_rows([0, -1]), "hold -1"),
    "a table of rows": (of_rows([[0, 1]]), "shape"),
    "a part that is a number": (of_rows(3), "shape"),
    "parts that are a number": (lambda: FederatedData.from_partition(X, 3), "parts = an int"),
    "fields of other lengths": (lambda: FederatedData.from_partition((X, X[:2]), [[0]]), "lengths"),
    "too few group ids": (lambda: FederatedData.from_groups(X, np.array([0, 1, 1])), "3 group ids for 6"),
    "too many group ids": (lambda: FederatedData.from_groups(X, np.zeros(7)), "7 group ids for 6"),
    "masked examples": (lambda: FederatedData.from_clients([MASKED]), "masked"),
    "masked fields": (lambda: FederatedData((X, MASKED), np.array([6])), "masked"),
    "masked counts": (lambda: FederatedData(X, np.ma.masked_equal([6, 2], 2)), "masked"),
    "masked groups": (lambda: FederatedData.from_groups(X, MASKED), "masked"),
    "masked rows": (of_rows(np.ma.masked_equal([1, 2], 1)), "masked"),
    "masked test": (lambda: fs.Task("t", TASK.init, TASK.loss, TASK.data, test=MASKED), "masked"),
    "counts that are no whole numbers": (lambda: FederatedData(X, np.array([3.5, 2.5])), "counts"),
    "text": (lambda: FederatedData.from_clients([np.array(["a", "b"])]), "numbers"),
    "objects": (lambda: FederatedData.from_clients([np.array([None, {}])]), "numbers"),
    "rows of different lengths": (
        lambda: FederatedData.from_clients(
            [np.array([1.0]), np.array([[1, 2], [3, 4]], object)],
        ),
        "numbers",
    ),
    "no array": (lambda: FederatedData({}, np.array([2])), "no array"),
    "two clients of one name": (
        lambda: FederatedData.from_clients([X, X, X], ["a", "b", "a"]),
        "clients 0 and 2 are both called 'a'",
    ),
    "a name that is no text": (
        lambda: FederatedData.from_clients([X, X], ["a", 1]),
        "client 1 has an int: give text",
    ),
    "groups that have no order": (
        lambda: FederatedData.from_groups(X[:2], np.array([1, "a"], object)),
        "ids of several types",
    ),
    "no list of clients": (lambda: FederatedData.from_clients(7), "clients = an int"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    make, words = REFUSED[case]
    with pytest.raises(fs.InvalidInput, match=words) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("bad", "dtype"),
    [(np.array([2**31]), "float32"), (np.array([-(2**31) - 1]), "float32"), (np.array([1e39]), "float32")],
)
def test_numbers_that_the_device_would_wrap(bad, dtype):
    """64-bit integers beyond 32 bits, and floats beyond float32's, in a float32 run; in float64 they fit."""
    with pytest.raises(fs.InvalidInput, match=r"\[1\] of the examples holds"):
        on_device((np.zeros(1), bad), jnp.dtype(dtype))
    with jax.enable_x64(True):
        np.testing.assert_array_equal(on_device(bad, jnp.dtype("float64")), bad)
    fits = np.array([2**31 - 1, -(2**31)])
    np.testing.assert_array_equal(on_device(fits, jnp.dtype("float32")), fits)


@pytest.mark.parametrize("bad", [2**32, 2**64 + 1, -1, 1.0, True, "1", None, 10**400])
def test_seeds(bad):
    """A key has 32 bits of it in a float32 run: two seeds that differ above would be one replicate."""
    with pytest.raises(fs.InvalidInput, match="seed"):
        check_seed(bad)
    with pytest.raises(fs.InvalidInput, match="seed"):
        fs.sweep("FedAvg", TASK, {"client_lr": [0.1]}, rounds=1, seeds=[bad])
    assert check_seed(2**32 - 1) == 2**32 - 1


TASK = fs.Task.from_arrays(lambda w, batch: jnp.mean(w * batch), jnp.zeros(()), [X, X])


@pytest.mark.parametrize("name", ["loss", "loss_averaged", "a_averaged", "", 3, "two\nlines", "a\0b"])
def test_names_of_metrics(name):
    """`train_loss` is the loss's own, `train_a_averaged` that of a metric a."""
    metrics = {"a": TASK.loss, name: TASK.loss}
    with pytest.raises(fs.InvalidInput, match="metric"):
        fs.Task("t", TASK.init, TASK.loss, TASK.data, metrics=metrics)


@pytest.mark.parametrize("bad", [1e-46, 1e-40, 1e39, np.array(1e-46)])
def test_rates_that_float32_does_not_have(bad):
    """Below its least normal number a step would be 0 or lose its digits, above its largest infinite."""
    with pytest.raises(fs.InvalidInput, match=r"^client_lr = "):
        cast(fs.FedAvg(bad), jnp.dtype("float32"))
    with jax.enable_x64(True):
        assert float(cast(fs.FedAvg(bad), jnp.dtype("float64")).local.lr) == float(bad)


@pytest.mark.filterwarnings("error")
def test_arrays_and_models_that_float32_does_not_have():
    """Without a warning of NumPy's before the error; what is small in an array may vanish."""
    with pytest.raises(fs.InvalidInput, match=r"weights = -1e\+39 of Weighted is infinite in float32"):
        cast(fs.sampling.Weighted(np.array([1.0, -1e39]), 1), jnp.dtype("float32"))
    assert cast(fs.sampling.Weighted(np.array([1.0, 1e-60]), 1), jnp.dtype("float32")).weights[1] == 0
    task = fs.Task.from_arrays(TASK.loss, np.array(-1e300), [X])
    with pytest.raises(fs.InvalidInput, match=r"gives 1e\+300, which is infinite in float32"):
        fs.run(fs.FedAvg(0.1), task, rounds=1)


@pytest.mark.parametrize("deviation", ["alpha", "beta"])
def test_synthetic_data_whose_labels_would_be_rounding(deviation):
    with pytest.raises(fs.InvalidInput, match=f"{deviation} = 1e.200 must be finite and >= 0 and <= 1000000"):
        fs.tasks.synthetic(**{deviation: 1e200})


# Data files: every way an idx or npz file can be broken ends in one line that names the file.

IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
HEADER = bytes([0, 0, 8, 3]) + struct.pack(">III", 2, 3, 4)


def write(folder, content, name="file.idx"):
    path = folder / name
    path.write_bytes(content)
    return path


GZIPPED = gzip.compress(
    HEADER + IMAGES.tobytes(), mtime=0
)  # without a time stamp, so that test names are stable


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_reads_plain_and_gzipped_files_by_content_not_by_name(tmp_path, pack):
    found = read_idx(write(tmp_path, pack(HEADER + IMAGES.tobytes())))
    assert found.dtype == np.uint8
    assert np.array_equal(found, IMAGES)


@pytest.mark.parametrize(("code", "dtype"), [(9, "i1"), (11, "i2"), (12, "i4"), (13, "f4"), (14, "f8")])
def test_reads_every_type_in_big_endian(tmp_path, code, dtype):
    values = np.array([-3, 100], dtype=">" + dtype)
    found = read_idx(write(tmp_path, bytes([0, 0, code, 1]) + struct.pack(">I", 2) + values.tobytes()))
    assert found.dtype == np.dtype(dtype)
    assert found.dtype.isnative
    assert found.tolist() == [-3, 100]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file .*missing"),
        (b"\0\0\x08", "not an idx file"),
        (b"\0\x01\x08\x03" + HEADER[4:] + IMAGES.tobytes(), "not an idx file .*00010803"),
        (b"\0\0\x07\x03" + HEADER[4:] + IMAGES.tobytes(), "not an idx file .*00000703"),
        (b"\0\0\x08\0", "not an idx file"),
        (HEADER[:9], "ends inside its header of 3 dimensions"),
        (HEADER + IMAGES.tobytes()[:-1], r"holds 23 bytes of data, its shape \(2, 3, 4\) calls for 24"),
        (HEADER + IMAGES.tobytes() + b"\0", "holds 25 bytes"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12, "calls for"),
        (GZIPPED[:-9], "damaged gzip"),
        (GZIPPED[:12], "damaged gzip"),
        (GZIPPED[:-8] + b"\1\2\3\4\5\6\7\x08", "damaged gzip"),
        (b"\x1f\x8b\x08\x00" + b"\xff" * 40, "damaged gzip"),
        (gzip.compress(HEADER + IMAGES.tobytes()[:-4], mtime=0), "holds 20 bytes"),
    ],
)
def test_a_broken_idx_file_is_one_line_with_its_name(tmp_path, content, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        read_idx(write(tmp_path, content))
    assert "file.idx" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [read_idx, lambda p: checksum(p, "0" * 64), lambda p: read_npz(p, ["a"])])
def test_a_missing_file_or_a_folder_is_named(tmp_path, read):
    with pytest.raises(InvalidInput, match=r"absent\.gz does not exist"):
        read(tmp_path / "absent.gz")
    (tmp_path / "folder.gz").mkdir()
    with pytest.raises(InvalidInput, match=r"folder\.gz cannot be read"):
        read(tmp_path / "folder.gz")


def test_checksum_accepts_the_file_and_shows_twelve_digits_of_another(tmp_path):
    path = write(tmp_path, b"abc")
    good = hashlib.sha256(b"abc").hexdigest()
    checksum(path, good)
    checksum(path, good.upper())
    wrong = "0123456789abcdef" * 4
    with pytest.raises(InvalidInput, match=r"file\.idx") as caught:
        checksum(path, wrong)
    assert good[:12] in str(caught.value)
    assert good[:13] not in str(caught.value)
    assert wrong[:12] in str(caught.value)
    assert wrong[:13] not in str(caught.value)


def test_npz_gives_its_fields_and_names_a_missing_one(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(3), y=np.ones(2))
    assert read_npz(path, ["x"])["x"].tolist() == [0, 1, 2]
    with pytest.raises(InvalidInput, match=r"a\.npz has no field 'z' \(it holds x, y\)"):
        read_npz(path, ["x", "z"])


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-30], lambda b: b"", lambda b: b"text" + b, lambda b: b[:40]]
)
def test_a_damaged_npz_is_named(tmp_path, damage):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.arange(300))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InvalidInput, match=r"a\.npz is not a readable npz"):
        read_npz(path, ["x"])


def test_npz_never_unpickles(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(InvalidInput, match="not a readable npz"):
        read_npz(path, ["x"])


def test_the_argument_goes_before_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSOLVE_DATA", str(tmp_path))
    (tmp_path / "other").mkdir()
    assert data_dir() == tmp_path
    assert data_dir(str(tmp_path / "other")) == tmp_path / "other"


@pytest.mark.parametrize("value", [None, ""])
def test_without_a_data_folder_both_ways_to_name_it_are_given(monkeypatch, value):
    monkeypatch.delenv("FEDSOLVE_DATA", raising=False)
    if value is not None:
        monkeypatch.setenv("FEDSOLVE_DATA", value)
    with pytest.raises(InvalidInput, match=r"data_dir .*--data-dir.* or set .* FEDSOLVE_DATA"):
        data_dir()


def test_a_data_folder_that_is_none_says_where_it_was_named(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSOLVE_DATA", str(tmp_path / "gone"))
    with pytest.raises(InvalidInput, match=r"FEDSOLVE_DATA = .*gone is not a folder"):
        data_dir()
    with pytest.raises(InvalidInput, match=r"data_dir = .*lost is not a folder"):
        data_dir(tmp_path / "lost")


# The schema that all sites share: what it refuses, and what a table becomes by it.

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
    "line 2: column age = 'old' is not a finite number: fix the cell": ROWS.replace("70", "old"),
    "line 4: column age = 'inf' is not a finite number": ROWS.replace("40", "inf"),
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
        "fix the cell, or the schema of all sites, or set `unknown` in it (its own log shows it)"
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
    "[columns.age] standard_deviation = 0.0 must be > 0": TEXT.replace("20.0", "0.0"),
    "[columns.age] mean = 'x' must be a finite number": TEXT.replace("mean = 50", 'mean = "x"'),
    "[columns.smoker] categories = ['never'] must be two or more": TEXT.replace(', "once", "often"', ""),
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
