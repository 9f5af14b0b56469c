"""What examples hold is in no message: a number and a text of the data are looked for in all that is said."""

import warnings
from functools import partial

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from flwr.app import ConfigRecord, RecordDict
from test_inputs_given import FEATURES, W, X, Y, classifier, loss, torch

import fedsolve as fs
from deploy_small import ask
from fedsolve.cli.prediction_files import read_inputs
from fedsolve.core.errors import ConfidentialError, shown
from fedsolve.data import FederatedData, Schema
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.codec import refusal
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.tasks.ready.libsvm import parse

NUMBER, TEXT = 987654.321, "Zzyzx-secret"
MARKS = ("98765", "9.8765", "9.88e", "Zzyzx")
MARKED = np.where(X == 4, NUMBER, X)
FRAME = pd.DataFrame(MARKED, columns=["a", "b"])
MIXED = np.where(X == 1, TEXT, MARKED.astype(object))


class Own:
    """An object of a user's, which shows what it holds."""

    def __repr__(self):
        return f"Own({NUMBER}, {TEXT})"


FORMS = {
    "a number": lambda: np.float64(NUMBER),
    "Python's number": lambda: NUMBER,
    "a text": lambda: TEXT,
    "uneven lists": lambda: [[NUMBER, 1.0], [NUMBER]],
    "lists of text": lambda: [[TEXT, NUMBER]] * 3,
    "dictionaries": lambda: [{"a": NUMBER, "b": TEXT}] * 3,
    "a set": lambda: {NUMBER, TEXT},
    "objects": lambda: MIXED,
    "text": lambda: np.full((3, 2), TEXT),
    "bytes": lambda: np.full((3, 2), TEXT.encode()),
    "missing": lambda: np.where(X == 7, np.nan, MARKED),
    "beyond": lambda: np.where(X == 7, np.inf, MARKED),
    "too many integers": lambda: np.where(X == 4, 987654321987654321, 1),
    "masked": lambda: np.ma.masked_equal(MARKED, 7),
    "complex": lambda: MARKED.astype("c16")[:2],
    "a record": lambda: np.array([(NUMBER, TEXT)] * 3, [("a", float), ("b", "U20")]),
    "pandas": lambda: FRAME.assign(b=[TEXT, "u", "v"]),
    "pandas, mixed": lambda: FRAME.assign(b=[TEXT, NUMBER, None]),
    "pandas, missing": lambda: FRAME.assign(a=[1.0, None, 2.0]),
    "pandas, days": lambda: FRAME.assign(a=pd.to_datetime(["1987-06-05"] * 3)),
    "Arrow": lambda: pa.table({"a": [TEXT, "u", "v"], "b": [NUMBER, 1.0, 2.0]}),
    "Arrow, missing": lambda: pa.table({"a": [NUMBER, None, 1.0], "b": [NUMBER, 1.0, 2.0]}),
    "sparse": lambda: scipy.sparse.csr_matrix(MARKED),
    "a generator": lambda: (row for row in MARKED),
    "a tensor": lambda: torch().tensor(MARKED, dtype=torch().bfloat16),
    "a data set": lambda: torch().utils.data.TensorDataset(torch().tensor(MARKED)),
    "an object": Own,
}
CLIENTS = {  # function: data of all clients, or of one
    "from_clients": lambda x, _: FederatedData.from_clients(x),
    "from_clients, one": lambda x, _: FederatedData.from_clients([x, X]),
    "names": lambda x, _: FederatedData.from_clients([X] * 3, names=x),
    "names of one": lambda x, _: FederatedData.from_clients([X], names=[x]),
    "counts": lambda x, _: FederatedData(X, x),
    "parts": lambda x, _: FederatedData.from_partition(X, x),
    "groups": lambda x, _: FederatedData.from_groups(X, x),
    "write": lambda x, folder: fs.data.write(x, folder / "data"),
    "statistics": lambda x, _: fs.stats.describe(x),
    "statistics of one": lambda x, _: fs.stats.describe([x]),
    "unseen": lambda x, _: fs.Task.from_arrays(loss, W, [(X, Y)], unseen=x),
    "targets": lambda x, _: fs.Task.from_arrays(loss, W, [(X, x)]),
    "from_torch": lambda x, _: from_torch(x),
    "from_torch, one": lambda x, _: from_torch([x, x]),
    "an argument": lambda x, _: fs.run(fs.FedAvg(x), fs.Task.from_arrays(loss, W, [(X, Y)])),
}
NO_DATA = {
    "an argument": (
        "a number",
        "Python's number",
        "a text",
        "a set",
        "an object",
        "lists of text",
        "dictionaries",
        "uneven lists",
    ),
    "parts": ("too many integers",),  # row numbers
}
"""What is no example there, and may be shown."""


def from_torch(clients):
    nn = torch().nn
    return fs.tasks.from_torch(nn.Linear(2, 2), nn.CrossEntropyLoss(), clients)


def call(function, form, folder):
    return function(FORMS[form](), folder)


def is_clean(text):
    return not any(mark in text for mark in MARKS)


def said(make, capsys):
    """All that a call says; the error that it raises, if it does."""
    error, words = None, ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            words = " ".join(getattr(make(), "notes", ()))
        except fs.FedsolveError as raised:
            error = raised
        except (
            TypeError,
            AttributeError,
            ValueError,
        ) as raised:  # Python's and JAX's, of what is no data at all
            words = str(raised)
    printed = "".join(capsys.readouterr())
    return error, " ".join([words, str(error), printed, *(str(warning.message) for warning in caught)])


@pytest.mark.parametrize("function", FEATURES | CLIENTS)
def test_examples_are_in_no_refusal(function, tmp_path, capsys):
    refused = 0
    for i, form in enumerate(FORMS):
        if form in NO_DATA.get(function, ()):
            continue
        folder = tmp_path / str(i)
        folder.mkdir()
        error, words = said(partial(call, (FEATURES | CLIENTS)[function], form, folder), capsys)
        assert is_clean(words), (form, words)
        refused += error is not None
    assert refused > len(FORMS) / 3


def test_arguments_are_shown_without_arrays():
    assert shown([1, "two", {"x": MARKED}]) == "[1, 'two', {'x': <ndarray of shape (3, 2)>}]"
    assert shown(FRAME) == "<DataFrame of shape (3, 2)>"
    assert shown(np.float32(0.5)) == "np.float32(0.5)"
    assert is_clean(shown({"a": (jnp.asarray(MARKED), [scipy.sparse.csr_matrix(MARKED)])}))


LABELS = {
    "a schema": lambda: Schema((2,), (0, 1)).check(X, [0, 1, 987654321]),
    "a schema of text": lambda: Schema((2,), ("a", "b")).check(X, ["a", "b", TEXT]),
    "scikit-learn": lambda: classifier([0, 1, 987654321], classes=[0, 1]),
    "JAX": lambda: JaxOracle(
        fs.tasks.CrossEntropy(lambda w, x: x @ w), np.ones((2, 2)), (X, np.array([0, 1, 987654321])),
        batch_size=1, epochs=1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("where", ["a schema", "scikit-learn", "JAX"])
def test_a_measurement_in_the_place_of_a_label_is_not_shown(where, capsys):
    y = [0.0, 1.0, NUMBER]
    made = {
        "a schema": lambda: Schema((2,), (0, 1)).check(X, y),
        "scikit-learn": lambda: classifier(y, classes=[0, 1]),
        "JAX": lambda: fs.Task.from_arrays(
            fs.tasks.CrossEntropy(lambda w, x: x @ w), np.ones((2, 2)), [(X, y)]
        ),
    }
    error, words = said(made[where], capsys)
    assert error is not None
    assert is_clean(words)


@pytest.mark.parametrize("where", LABELS)
def test_a_wrong_label_is_told_to_its_owner_alone(where):
    with pytest.raises(ConfidentialError) as refused:
        LABELS[where]()
    assert not is_clean(str(refused.value))
    told = refusal(refused.value)["refused"]["why"]
    assert is_clean(told)
    assert "its own log shows it" in told


SCHEMA = """target = "ill"
classes = [0, 1]
[columns.age]
[columns.art]
categories = ["a", "b"]
"""
TABLES = {
    "text for a number": f"age,art,ill\n{TEXT},a,1\n",
    "no number": "age,art,ill\n9.8765.4,a,1\n",
    "too large": "age,art,ill\n9.8765e99,a,1\n",
    "no first line": f"987654.321,{TEXT},1\n987654.321,{TEXT},1\n",
    "a longer row": f"age,art,ill\n987654.321,a,1,{TEXT}\n",
    "a category": f"age,art,ill\n1,{TEXT},1\n",
    "a class": "age,art,ill\n1,a,98765\n",
    "an empty cell": f"age,art,ill,note\n987654.321,,1,{TEXT}\n",
}


@pytest.mark.parametrize("kind", TABLES)
def test_cells_stay_at_their_site(kind, tmp_path, capsys):
    """Of a table the line and the column are told, by the site's client app as well."""
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "north.csv").write_text(TABLES[kind])
    schema = Schema.read(tmp_path / "schema.toml")
    with pytest.raises(fs.InvalidInput) as refused:
        schema.read_csv(tmp_path / "north.csv")
    shown_there = ("a category", "a class", "text for a number", "no number")  # in the site's own log
    assert is_clean(str(refused.value)) or kind in shown_there
    assert is_clean(refusal(refused.value)["refused"]["why"])
    app = client_app(lambda node: schema.read_csv(tmp_path / "north.csv"))
    told = ask(app, RecordDict({"who": ConfigRecord({})}), tmp_path, kind="query")
    assert is_clean(told["refused"]["why"])
    assert "north.csv" in told["refused"]["why"]
    if kind not in (*shown_there, "an empty cell", "too large"):
        (tmp_path / "new.csv").write_text(TABLES[kind])
        error, words = said(lambda: read_inputs(tmp_path / "new.csv", ["age"]), capsys)
        assert error is not None
        assert is_clean(words)


def test_other_files(tmp_path, capsys):
    for line in (f"{TEXT} 1:1", f"1 1:{TEXT}", f"1 {TEXT}:1", f"1 {TEXT}"):
        error, words = said(partial(parse, line.encode(), 2), capsys)
        assert error is not None
        assert is_clean(words)
    parquet = tmp_path / "a.parquet"
    pd.DataFrame({"u": ["a", "b"], "x": [TEXT, "c"], "z": [NUMBER, None]}).to_parquet(parquet)
    for columns in ("x", "z", ["x", "z"]):
        error, words = said(partial(fs.data.from_table, parquet, client="u", x=columns), capsys)
        assert error is not None
        assert is_clean(words)


def raises(kind):
    def oracle_for(node):
        if kind == "foreign":
            raise ValueError(f"could not convert string to float: '{TEXT}'")
        if kind == "a key":
            return {}[TEXT]
        try:
            float(TEXT)
        except ValueError as error:
            quoted = f"{type(error).__name__}: {error}" if kind == "quoted" else str(error)
            raise fs.InvalidInput(f"the loss fails ({quoted}): mend it") from None

    return oracle_for


@pytest.mark.parametrize("kind", ["foreign", "a key", "quoted", "its words"])
def test_words_of_other_exceptions_stay_at_their_site(kind, tmp_path):
    told = ask(client_app(raises(kind)), RecordDict({"who": ConfigRecord({})}), tmp_path, kind="query")
    why = told["refused"]["why"]
    assert is_clean(why)
    assert ("KeyError" if kind == "a key" else "ValueError") in why


def test_items_that_make_no_arrays(capsys):
    """PyTorch's own words of a collate name shapes and types, and might name more."""
    tensor = torch().tensor
    for items in ([tensor([NUMBER]), tensor([1.0, NUMBER])], [Own(), Own()], [{TEXT: NUMBER}, {"a": 1}]):
        pairs = type("Pairs", (torch().utils.data.Dataset,), {
            "__len__": lambda self: 2, "__getitem__": lambda self, i, items=items: (items[i], 1),
        })()  # fmt: skip
        error, words = said(partial(from_torch, [pairs, pairs]), capsys)
        assert str(error).startswith("client 0: ")
        assert "item" in str(error)
        assert is_clean(words)
