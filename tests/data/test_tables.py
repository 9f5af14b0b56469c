"""Parquet and Arrow files with a client column: the data that grouping their rows by hand gives."""

import itertools
import json
import os
import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedsolve as fs
from fedsolve.data import grouping

RNG = np.random.default_rng(0)
N = 3000
USERS = np.array([f"user {i}" for i in RNG.zipf(1.5, N) % 40])
PICTURES = RNG.integers(0, 256, (N, 2, 3), np.uint8)
WEIGHTS = RNG.random((N, 4), np.float32)
LABELS = RNG.integers(0, 5, N)
COLUMNS = {
    "user": pa.array(USERS),
    "number": pa.array(RNG.zipf(1.5, N) % 300),
    "kind": pa.array(USERS).dictionary_encode(),
    "picture": pa.array(PICTURES.tolist(), pa.list_(pa.list_(pa.uint8()))),
    "weights": pa.FixedSizeListArray.from_arrays(WEIGHTS.ravel(), 4),
    "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(PICTURES),
    "a": pa.array(WEIGHTS[:, 0]),
    "b": pa.array(WEIGHTS[:, 1]),
    "right": pa.array(LABELS > 2),
    "label": pa.array(LABELS),
}
TABLE = pa.table(COLUMNS)


def parquet(folder):
    pq.write_table(TABLE[:1000], folder / "a.parquet", row_group_size=300)
    pq.write_table(TABLE[1000:], folder / "b.parquet")
    return folder


def one_parquet(folder):
    pq.write_table(TABLE, folder / "x", row_group_size=1500)
    return folder / "x"


def arrow_files(folder):
    with pa.ipc.new_file(folder / "a.arrow", TABLE.schema) as out:
        out.write_table(TABLE, max_chunksize=1300)
    return folder


def hugging_face(folder):
    """As `save_to_disk` writes it: Arrow's stream format, and the files' names; a cache beside them is none."""
    parts = {"data-00000-of-00002.arrow": TABLE[:1700], "data-00001-of-00002.arrow": TABLE[1700:]}
    for name, part in (parts | {"cache-1f.arrow": TABLE}).items():
        with pa.ipc.new_stream(folder / name, part.schema) as out:
            out.write_table(part, max_chunksize=1000)
    state = {"_data_files": [{"filename": name} for name in parts], "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


SOURCES = {f.__name__: f for f in (parquet, one_parquet, arrow_files, hugging_face)}
READ = {
    "text, nested lists": ("user", "picture", "label", PICTURES, LABELS),
    "categories, lists of one length": ("kind", "weights", "right", WEIGHTS, LABELS > 2),
    "integers, columns side by side": ("number", ["a", "b"], ["label", "label"], WEIGHTS[:, :2], None),
    "tensors, no targets": ("user", "tensor", None, PICTURES, None),
}


def by_hand(ids, rows):
    """Each client's rows in their order, clients in the order of their ids."""
    return [rows[ids == i] for i in np.unique(ids)]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("case", READ)
def test_rows_are_grouped_in_memory_and_in_a_folder(source, case, tmp_path):
    client, x, y, inputs, targets = READ[case]
    if targets is None and y:
        targets = np.stack([LABELS, LABELS], axis=1)
    (tmp_path / "in").mkdir()
    path = SOURCES[source](tmp_path / "in")
    ids = np.array(COLUMNS[client].to_pylist())
    resident = fs.data.from_table(path, client=client, x=x, y=y)
    stored = fs.data.from_table(path, client=client, x=x, y=y, folder=tmp_path / "out")
    for data in (resident, stored):
        assert list(data.names) == [str(i) for i in np.unique(ids)]
        for i, rows in enumerate(by_hand(ids, inputs)):
            found = data.client(i) if y is None else data.client(i).x
            assert found.dtype == rows.dtype
            np.testing.assert_array_equal(found, rows)
        for i, rows in enumerate(by_hand(ids, targets) if y else []):
            np.testing.assert_array_equal(data.client(i).y, rows)
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]  # nothing is left of the grouping
    assert fs.data.open(tmp_path / "out", verify=True).digest == stored.digest


def test_an_interrupted_writing_goes_on(tmp_path, monkeypatch):
    path = one_parquet(tmp_path)
    given = {"client": "user", "x": "weights", "y": "label"}
    whole = fs.data.from_table(path, **given, folder=tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr("fedsolve.data.writing._BETWEEN", 100)
        left, fsync = iter(range(12)), os.fsync

        def full(number):
            if next(left, None) is None:
                raise OSError(28, "No space left on device")
            fsync(number)

        patch.setattr(os, "fsync", full)
        with pytest.raises(fs.InvalidInput, match="No space left"):
            fs.data.from_table(path, **given, folder=tmp_path / "d")
    assert fs.data.from_table(path, **given, folder=tmp_path / "d", resume=True).digest == whole.digest


def test_a_folder_of_hugging_face_itself(tmp_path):
    datasets = pytest.importorskip("datasets")
    if not hasattr(datasets, "Dataset"):  # a folder of that name among the tests
        pytest.skip("Hugging Face's datasets is not installed: its files are made by hand above")
    features = datasets.Features(
        {
            "user": datasets.Value("string"),
            "picture": datasets.Array2D((2, 3), "uint8"),
            "weights": datasets.Sequence(datasets.Value("float32"), length=4),
            "label": datasets.ClassLabel(num_classes=5),
        }
    )
    columns = {"user": USERS, "picture": PICTURES, "weights": WEIGHTS, "label": LABELS}
    made = datasets.Dataset.from_dict({k: v.tolist() for k, v in columns.items()}, features=features)
    made.save_to_disk(tmp_path / "d", num_shards=3)
    for x, rows in (("picture", PICTURES), ("weights", WEIGHTS)):
        data = fs.data.from_table(tmp_path / "d", client="user", x=x, y="label")
        for i, own in enumerate(by_hand(USERS, rows)):
            np.testing.assert_array_equal(data.client(i).x, own)


def written(columns, **more):
    def write(folder):
        pq.write_table(pa.table(columns), folder / "t.parquet", **more)
        return folder / "t.parquet"

    return write


def cut(folder):
    path = one_parquet(folder)
    os.truncate(path, path.stat().st_size // 2)
    return path


def of_two_types(folder):
    pq.write_table(pa.table({"user": [1], "x": [1.0]}), folder / "a.parquet")
    pq.write_table(pa.table({"user": [1], "x": [2**53 + 1]}), folder / "b.parquet")
    return folder


def without_a_shard(folder):
    (hugging_face(folder) / "data-00001-of-00002.arrow").unlink()
    return folder


def elsewhere(folder):
    state = {"_data_files": [{"filename": "../secret.arrow"}]}
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def splits(folder):
    (folder / "train").mkdir()
    hugging_face(folder / "train")
    (folder / "dataset_dict.json").write_text("{}")
    return folder


def text_file(folder):
    (folder / "x.arrow").write_text("user,x\n1,2\n")
    return folder


X = [1.0, 2.0, 3.0]
BAD = {
    "no file": (lambda folder: folder / "none", "does not exist"),
    "an empty folder": (lambda folder: folder, "no file that ends in .parquet"),
    "no table": (text_file, "is not a complete Parquet or Arrow file"),
    "cut": (cut, "is not a complete Parquet or Arrow file"),
    "no row": (written({"user": pa.array([], pa.int32()), "x": pa.array([], pa.int32())}), "no rows"),
    "no column": (written({"user": [1, 2, 3], "z": X}), r"unknown column of .*t.parquet 'x'"),
    "a null client": (
        written({"user": ["a", "b", None], "x": X}, row_group_size=2),
        "t.parquet, row group 1, column user has 1 nulls",
    ),
    "a null category": (
        written({"user": pa.array(["a", None, "b"]).dictionary_encode(), "x": X}),
        "column user has 1 nulls",
    ),
    "a null number": (
        written({"user": [1, 1, 1], "x": [1.0, None, 2.0]}),
        "row group 0, column x has 1 nulls",
    ),
    "a null in a list": (written({"user": [1], "x": [[1, None]]}), "column x has 1 nulls"),
    "a null list": (written({"user": [1, 1], "x": [[1], None]}), "column x has 1 nulls"),
    "lists of two lengths": (written({"user": [1, 2], "x": [[1], [1, 2]]}), "lists of length 1 to 2"),
    "empty lists": (written({"user": [1], "x": [[]]}), "lists of length 0"),
    "lists of two lengths in two groups": (
        written({"user": [1, 2], "x": [[1], [1, 2]]}, row_group_size=1),
        r"row group 1, column x has rows of shape \(2,\), before \(1,\)",
    ),
    "text": (written({"user": [1], "x": ["one"]}), "column x has type string: give numbers"),
    "an encoded picture": (written({"user": [1], "x": [{"bytes": b"PNG"}]}), "images decoded"),
    "days": (written({"user": [1], "x": pa.array([1], pa.date32())}), "type date32"),
    "clients of broken numbers": (written({"user": [1.5], "x": [1]}), "ids must be integers or text"),
    "not finite": (written({"user": [3, 7, 7], "x": [1, 2, np.nan]}), "7 holds a non-finite number in row 1"),
    "two types": (of_two_types, "b.parquet, row group 0: column x has type int64, before double"),
    "a missing shard": (without_a_shard, "names the file 'data-00001-of-00002.arrow'"),
    "a shard elsewhere": (elsewhere, "names the file '../secret.arrow'"),
    "several splits": (splits, "several splits: give the folder of one of them .train"),
}


@pytest.mark.parametrize("case", BAD)
def test_refused(case, tmp_path):
    make, words = BAD[case]
    with pytest.raises(fs.InvalidInput, match=words) as error:
        fs.data.from_table(make(tmp_path), client="user", x="x")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"x": []}, r"x = \[\] must be the name of a column, or a list of names"),
        ({"x": 3}, "x = 3 must be"),
        ({"y": []}, r"y = \[\] must be"),
        ({"client": ["user"]}, "client = .* must be the name of a column"),
        ({"folder": 3}, "folder = 3 must be a path"),
        ({"resume": 3}, "resume = 3"),
    ],
)
def test_arguments_that_name_no_column_are_refused(options, words, tmp_path):
    path = one_parquet(tmp_path)
    with pytest.raises(fs.InvalidInput, match=words):
        fs.data.from_table(path, **({"client": "user", "x": "a"} | options))


TEXTS = pa.array(["ann", "bob"])
IDS = {
    "text": TEXTS,
    "large text": TEXTS.cast(pa.large_string()),
    "viewed text": TEXTS.cast(pa.string_view()),
    "categories": TEXTS.dictionary_encode(),
    "others": pa.array(["bob", "ann", "bob"]).dictionary_encode()[1:],
    "few categories": pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), TEXTS),
    "large categories": pa.DictionaryArray.from_arrays([0, 1], TEXTS.cast(pa.large_string())),
}
NUMBERS = {
    "double": pa.array([1.0, 2.0]),
    "float": pa.array([1.0, 2.0], pa.float32()),
    "integer": pa.array([1, 2]),
    "byte": pa.array([1, 2], pa.uint8()),
    "coded": pa.array([1.0, 2.0]).dictionary_encode(),
}


@pytest.mark.parametrize("of", [IDS, NUMBERS], ids=["ids", "numbers"])
def test_types_of_a_kind_are_one_column(of, tmp_path):
    """Each beside each, in two files: the second file's rows are those that the first one's are."""
    for i, (one, other) in enumerate(itertools.product(of, of)):
        folder = tmp_path / str(i)
        folder.mkdir()
        for name, kind in (("a", one), ("b", other)):
            table = {"user": TEXTS, "x": NUMBERS["double"]} | {"user" if of is IDS else "x": of[kind]}
            with pa.ipc.new_file(folder / f"{name}.arrow", pa.table(table).schema) as out:
                out.write_table(pa.table(table))
        data = fs.data.from_table(folder, client="user", x="x")
        assert data.names == ("ann", "bob"), (one, other)
        assert [data.client(c).tolist() for c in range(2)] == [[1, 1], [2, 2]], (one, other)


def test_integers_beside_floats_lose_nothing(tmp_path):
    """A float of 32 bits holds no integer beyond 2^24: the column is double, in lists, too, or the file is refused."""
    for i, wrap in enumerate((lambda n: n, lambda n: [n, n])):
        folder = tmp_path / str(i)
        folder.mkdir()
        float32 = pa.float32() if i == 0 else pa.list_(pa.float32())
        pq.write_table(pa.table({"user": [1], "x": pa.array([wrap(0.5)], float32)}), folder / "a.parquet")
        pq.write_table(pa.table({"user": [1], "x": [wrap(2**24 + 1)]}), folder / "b.parquet")
        x = fs.data.from_table(folder, client="user", x="x").client(0)
        assert x.reshape(2, -1)[:, 0].tolist() == [0.5, 2**24 + 1]


def test_files_whose_names_have_accents_in_two_forms(tmp_path):
    for form, file in (("NFC", "a"), ("NFD", "b")):
        table = pa.table({unicodedata.normalize(form, "Fälle"): [1.0], "user": [1]})
        pq.write_table(table, tmp_path / f"{file}.parquet")
    for form in ("NFC", "NFD"):
        x = unicodedata.normalize(form, "Fälle")
        assert fs.data.from_table(tmp_path, client="user", x=x).client(0).tolist() == [1, 1]
    both = pa.table({unicodedata.normalize(form, "Fälle"): [1.0] for form in ("NFC", "NFD")} | {"user": [1]})
    pq.write_table(both, tmp_path / "c.parquet")
    with pytest.raises(fs.InvalidInput, match=r"c\.parquet has 2 columns called Fälle"):
        fs.data.from_table(tmp_path, client="user", x="Fälle")


def test_two_columns_of_one_name_are_refused(tmp_path):
    table = pa.Table.from_arrays([pa.array([1, 2])] * 3, names=["user", "x", "x"])
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(fs.InvalidInput, match=r"t\.parquet has 2 columns called x: give each its own name"):
        fs.data.from_table(tmp_path / "t.parquet", client="user", x="x")


def test_lists_side_by_side_are_refused(tmp_path):
    with pytest.raises(fs.InvalidInput, match="column weights holds lists"):
        fs.data.from_table(one_parquet(tmp_path), client="user", x=["a", "weights"])


@pytest.mark.parametrize(
    "other", [TABLE[:-1], pa.concat_tables([TABLE, TABLE[:1]]), TABLE.take(np.arange(N)[::-1])]
)
def test_rows_that_change_while_they_are_read(other, tmp_path, monkeypatch):
    """A row less, a row more; the same rows in another order are nothing to see."""
    path, count = one_parquet(tmp_path), grouping._counts

    def counted(table, client):
        found = count(table, client)
        pq.write_table(other, path)
        return found

    monkeypatch.setattr(grouping, "_counts", counted)
    if len(other) == N:
        assert fs.data.from_table(path, client="user", x="a").num_examples == N
        return
    with pytest.raises(fs.InvalidInput, match="changed while it was read"):
        fs.data.from_table(path, client="user", x="a")


def test_a_full_disk_beside_the_folder(tmp_path, monkeypatch):
    def full(file, start, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(fs.InvalidInput, match=r"cannot write to .*: No space left on device: free space"):
        fs.data.from_table(one_parquet(tmp_path), client="user", x="a", folder=tmp_path / "d")
    assert not (tmp_path / "d").exists()
