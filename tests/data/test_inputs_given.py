"""Every form in which users have arrays, for every function that takes some: a number, or one line with the remedy."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse

import fedsolve as fs
from fedsolve.data import FederatedData, Schema
from fedsolve.data.schema import Column
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.deploy.oracles.sklearn import SklearnOracle
from harness import squares as loss

X, W = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]]), np.array([1.0, 10.0])
Y = X @ W
LABELS = np.array([0, 1, 1])
PARTS = [np.array([0]), np.array([1, 2])]


def task(**more):
    return fs.Task.from_arrays(loss, W, [(X, Y)], predict=lambda w, x: x, **more)


def torch():
    """PyTorch is no part of what the tests need."""
    return pytest.importorskip("torch")


def oracle(x):
    own = SklearnOracle(sk("LinearRegression"), X, Y, batch_size=1, epochs=1, validation=(x, Y))
    return own._validation.x


def sk(name):
    return getattr(pytest.importorskip("sklearn.linear_model"), name)()


def classifier(y, **more):
    return SklearnOracle(sk("LogisticRegression"), X, y, batch_size=1, epochs=1, **more)


SCHEMA = Schema((2,), (), (Column("a"), Column("b")), "y")
FEATURES = {  # function: x -> the numbers that it has of it
    "from_clients": lambda x, _: FederatedData.from_clients([x]).examples,
    "FederatedData": lambda x, _: FederatedData(x, np.array([3])).examples,
    "from_partition": lambda x, _: FederatedData.from_partition(x, PARTS).examples,
    "from_groups": lambda x, _: FederatedData.from_groups(x, [0, 1, 1]).examples,
    "write": lambda x, folder: fs.data.write([x], folder / "data").examples,
    "from_arrays": lambda x, _: fs.Task.from_arrays(loss, W, [(x, Y)]).data.examples[0],
    "test": lambda x, _: task(test=(x, Y)).test[0],
    "validation": lambda x, _: task(validation=(x, Y)).validation[0],
    "unseen": lambda x, _: task(unseen=[(x, Y)]).unseen.examples[0],
    "predict": lambda x, _: task().predict(W, x),
    "Schema.check": lambda x, _: SCHEMA.check(x, Y).x,
    "JaxOracle": lambda x, _: JaxOracle(loss, W, (x, Y), batch_size=1, epochs=1)._examples[0],
    "SklearnOracle": lambda x, _: oracle(x),
}
FRAME = pd.DataFrame(X, columns=["a", "b"])
WIDE = np.repeat(X, 2, axis=1)
WIDE.setflags(write=False)
TAKEN = {
    "as it is": lambda: X,
    "big-endian": lambda: X.astype(">f8"),
    "big-endian integers": lambda: X.astype(">i4"),
    "read-only, not contiguous": lambda: WIDE[:, ::2],
    "Fortran's order": lambda: np.asfortranarray(X),
    "JAX": lambda: jnp.asarray(X),
    "a tensor with gradient": lambda: torch().tensor(X, requires_grad=True),
    "pandas": lambda: FRAME,
    "pandas without names": lambda: pd.DataFrame(X),
    "pandas, nullable": lambda: FRAME.convert_dtypes(),
    "pandas, of Arrow": lambda: FRAME.convert_dtypes(dtype_backend="pyarrow"),
    "pandas, several types": lambda: FRAME.astype({"a": "int8", "b": "Float32"}),
    "Arrow": lambda: pa.Table.from_pandas(FRAME),
    "Polars": lambda: pytest.importorskip("polars").DataFrame({"a": X[:, 0], "b": X[:, 1]}),
    "an object with an array": lambda: type("Own", (), {"__array__": lambda self, *a, **k: X})(),
    "masked without a mask": lambda: np.ma.masked_array(X),
}


@pytest.mark.parametrize("form", TAKEN)
@pytest.mark.parametrize("function", FEATURES)
def test_features_are_taken(function, form, tmp_path):
    found = FEATURES[function](TAKEN[form](), tmp_path)
    assert np.asarray(found).dtype.isnative
    np.testing.assert_allclose(found, X, rtol=1e-5)


def generator():
    return (row for row in X)


def data_set(of):
    data = torch().utils.data
    x = X[:, 0] if of == "pairs of numbers" else X
    pairs = data.TensorDataset(torch().tensor(x), torch().tensor(Y))
    return data.DataLoader(pairs) if of == "DataLoader" else pairs


REFUSED = {
    "a number": (lambda: np.float64(3), "rows|length|shape"),
    "no row": (lambda: X[:0], "no examples|length|rows|shape|group ids"),
    "a row less": (lambda: X[:2], "length|rows|shape|group ids"),
    "objects": (lambda: X.astype(object), "not an array of numbers: convert it, such as by array.astype"),
    "a missing value": (lambda: np.array([[1, None]] * 3, object), "row 0 lacks one: fill it or leave"),
    "NaN": (lambda: np.where(X > 6, np.nan, X), "finite"),
    "pandas, missing": (lambda: FRAME.astype("Int64").replace(4, pd.NA), "'b' of .* no value in row 1"),
    "pandas, text": (lambda: FRAME.astype({"b": str}), "column 'b' of .* holds no numbers .*: encode it"),
    "pandas, days": (lambda: FRAME.astype({"b": "M8[s]"}), "column 'b' of .* holds no numbers"),
    "masked": (lambda: np.ma.masked_greater(X, 6), "masked entries, .*: fill them or leave their rows out"),
    "text": (lambda: X.astype(str), "has type <U32: give arrays of numbers"),
    "fields": (lambda: np.zeros(3, [("a", float)]), "structured_to_unstructured"),
    "ids beside floats": (lambda: FRAME.astype({"a": int}).replace(1, 2**60), "'a' of .* integers beyond"),
    "SciPy's sparse": (lambda: scipy.sparse.csr_matrix(X), r"SparseRows.from_csr|x is a sparse matrix"),
    "a generator": (generator, r"give np.array\(list"),
    "a data set": (lambda: data_set("TensorDataset"), "such as dataset.tensors, or .* fs.tasks.from_torch"),
    "pairs of numbers": (
        lambda: data_set("pairs of numbers"),
        "such as dataset.tensors, or .* fs.tasks.from_torch",
    ),
    "a loader": (lambda: data_set("DataLoader"), "such as dataset.tensors, or .* fs.tasks.from_torch"),
    "a sparse tensor": (lambda: torch().tensor(X).to_sparse(), r"give tensor.to_dense\(\)"),
    "bfloat16": (lambda: torch().tensor(X, dtype=torch().bfloat16), "float32 or float64"),
}


@pytest.mark.parametrize("form", REFUSED)
@pytest.mark.parametrize("function", FEATURES)
def test_features_are_refused(function, form, tmp_path):
    make, words = REFUSED[form]
    x = make()
    if form == "a row less" and function in ("from_clients", "write", "predict"):
        return  # there is nothing that it must fit
    with pytest.raises(fs.InvalidInput, match=words) as error:
        FEATURES[function](x, tmp_path)
    assert "\n" not in str(error.value)


LABELLED = {  # labels -> which examples are alike, in the order of the labels
    "from_groups": lambda y: FederatedData.from_groups(np.arange(3), y).counts.tolist(),
    "Natural": lambda y: [len(part) for part in fs.data.Natural()(y)],
    "Dirichlet": lambda y: fs.data.Dirichlet(1e6)(y, 1) and [1, 2],
    "LabelsPerClient": lambda y: sorted(len(part) for part in fs.data.LabelsPerClient(1)(y, 2)),
    "Shards": lambda y: sorted(len(p) for p in fs.data.Shards(1)(y, 2, seed=1)),
    "IID": lambda y: sorted(len(part) for part in fs.data.IID()(y, 2)),
    "ByQuantity": lambda y: fs.data.ByQuantity(1.0)(y, 1) and [1, 2],
    "Pachinko": lambda y: fs.data.Pachinko()(y, 1, coarse=y) and [1, 2],
    "SklearnOracle": lambda y: np.bincount(classifier(y)._examples.y).tolist(),
}
NAMES = ["a", "b", "b"]
LABELS_TAKEN = {
    "integers": lambda: LABELS,
    "a list": LABELS.tolist,
    "truths": lambda: LABELS > 0,
    "big-endian": lambda: LABELS.astype(">i8"),
    "read-only, not contiguous": lambda: WIDE[:, 0] > 2,
    "floats": lambda: LABELS / 2,
    "JAX": lambda: jnp.asarray(LABELS),
    "a tensor": lambda: torch().tensor(LABELS),
    "a list of tensors": lambda: list(torch().tensor(LABELS)),
    "texts": lambda: NAMES,
    "objects": lambda: np.array(NAMES, object),
    "bytes": lambda: np.array(NAMES, "S"),
    "objects of bytes": lambda: [b"a", b"b", b"b"],
    "pandas": lambda: pd.Series(LABELS, dtype="Int64"),
    "categories": lambda: pd.Series(NAMES, dtype="category"),
    "Arrow": lambda: pa.array(NAMES, pa.string_view()),
    "Arrow's categories": lambda: pa.chunked_array([pa.array(NAMES).dictionary_encode()]),
    "Polars": lambda: pytest.importorskip("polars").Series(NAMES),
    "days": lambda: np.array(["2020-01-01", "2020-01-02", "2020-01-02"], "M8[D]"),
    "beyond 64 bits": lambda: [2**53, 2**70, 2**70],
    "integers that floats merge": lambda: [2**53 + 1, 2**63, 2**63],
}


@pytest.mark.parametrize("form", LABELS_TAKEN)
@pytest.mark.parametrize("function", LABELLED)
def test_labels_are_taken(function, form):
    assert LABELLED[function](LABELS_TAKEN[form]()) == [1, 2]


MISSING = "no value for example 1: fill it, or leave the example out"
LABELS_REFUSED = {
    "None": (lambda: ["a", None, "b"], MISSING),
    "NaN": (lambda: np.array([0, np.nan, 1]), MISSING),
    "NaN among texts": (lambda: ["a", float("nan"), "b"], MISSING),
    "pandas' text": (lambda: pd.Series(["a", None, "b"]), MISSING),
    "NA": (lambda: pd.Series([0, pd.NA, 1], dtype="Int64"), MISSING),
    "a category": (lambda: pd.Series(["a", None, "b"], dtype="category"), MISSING),
    "NaT": (lambda: np.array(["2020-01-01", "NaT", "2020-01-01"], "M8[D]"), MISSING),
    "NaT of pandas": (lambda: pd.Series(pd.to_datetime(["2020-01-01", None, "2020-01-01"])), MISSING),
    "Arrow's null": (lambda: pa.array([0, None, 1]), MISSING),
    "Polars' null": (lambda: pytest.importorskip("polars").Series([0, None, 1]), MISSING),
    "masked": (lambda: np.ma.masked_equal([0, 2, 1], 2), "masked entries: fill them or leave their rows out"),
    "1 and '1'": (lambda: [1, "1", 1], r"several types \(int, str\)"),
    "1 and True": (lambda: [1, True, 0], r"several types \(bool, int\)"),
    "floats that merge": (lambda: [2**53 + 1, 0.5, 0.5], r"several types \(float, int\)"),
    "floats that integers merged in": (
        lambda: np.array([2**53, 2**53 + 1, 3], float),
        "one number for several",
    ),
    "short floats": (lambda: np.array([2**24, 2**24 + 1, 3], np.float32), "one number for several integers"),
    "text and bytes": (lambda: ["a", b"a", "a"], "several types"),
    "no UTF-8": (lambda: [b"\xff", b"a", b"a"], "decode them"),
    "no order": (lambda: np.array([{}, {}, {}]), "no order"),
    "one-hot": (lambda: np.eye(2)[LABELS], r"shape \(3, 2\).*argmax"),
    "of two axes": (lambda: LABELS[:, None], r"shape \(3, 1\)"),
    "none": (list, "shape|only one class"),
    "a number": (lambda: np.int64(3), "shape|array"),
    "a generator": (lambda: iter(NAMES), "shape|not an array"),
    "sparse": (lambda: scipy.sparse.csr_matrix(LABELS), "shape|not an array"),
}


@pytest.mark.parametrize("form", LABELS_REFUSED)
@pytest.mark.parametrize("function", LABELLED)
def test_labels_are_refused(function, form):
    make, words = LABELS_REFUSED[form]
    y = make()
    with pytest.raises(fs.InvalidInput, match=words) as error:
        LABELLED[function](y)
    assert "\n" not in str(error.value)


MODEL = fs.tasks.MLP((2, 3))
LINE = fs.tasks.Linear(2)


def of_loss(made, model, y, test=None):
    return lambda: fs.Task.from_arrays(made(model), model.init(jax.random.key(0)), [(X, y)], test=test)


ONE_HOT = np.eye(3)[LABELS]
CE, LOGISTIC, SQUARES = fs.tasks.CrossEntropy, fs.tasks.Logistic, fs.tasks.SquaredError
CSR, CSC = scipy.sparse.csr_matrix, scipy.sparse.csc_matrix
FORMS = {
    "one-hot labels": (of_loss(CE, MODEL, ONE_HOT), r"give the number of the class, y.argmax\(-1\)"),
    "labels (n, 1)": (of_loss(CE, MODEL, LABELS[:, None]), r"give y\[..., 0\]"),
    "labels (n, 1) of two classes": (of_loss(LOGISTIC, LINE, LABELS[:, None]), r"give y\[..., 0\]"),
    "targets (n, 1)": (of_loss(SQUARES, LINE, Y[:, None]), r"give y\[..., 0\]"),
    "outputs (n, 3)": (of_loss(SQUARES, MODEL, Y), "must agree"),
    "one-hot labels of a test set": (of_loss(CE, MODEL, LABELS, (X, ONE_HOT)), r"the test set .* \[\(2,\), \(3,\)\]"),
    "a test set's width": (lambda: task(test=(X[:, :1], Y)), r"the test set has rows of shapes \[\(1,\)"),
    "a validation set's width": (lambda: task(validation=(WIDE, Y)), r"the validation set has rows"),
    "a test set of inputs": (lambda: task(test=X), "is one array, a client's examples are a tuple of 2 fields"),
    "clients by name": (lambda: FederatedData.from_clients({"a": X}), r"list\(clients.values\(\)\) and names="),
    "clients of a generator": (lambda: FederatedData.from_clients(iter([X])), r"give list\(clients\)"),
    "parts by name": (lambda: FederatedData.from_partition(X, {0: [0]}), r"list\(parts.values\(\)\) and names="),
    "rows as lists": (lambda: FederatedData.from_clients([X.tolist(), [[1.0]]]), r"is one number: .* np.array\(rows\)"),
    "two forms": (lambda: FederatedData.from_clients([(X, Y), {"x": X}]), "client 1 is a dictionary of x, client 0"),
    "integers beside floats": (lambda: FederatedData.from_clients([Y, np.array([2**60])]), "client 1 .* beyond 2.53"),
    "columns in place of rows": (lambda: fs.SparseRows.from_csr(CSC(X), 2), r"matrix.tocsr\(\)"),
    "dense in place of sparse": (lambda: fs.SparseRows.from_csr(X, 2), "not a CSR matrix"),
    "sparse with NaN": (lambda: fs.SparseRows.from_csr(CSR(X * np.nan), 2), "no finite numbers"),
    "labels of another type": (lambda: classifier(LABELS, classes=["0", "1"]), "labels of type int64, and classes"),
    "a schema's other labels": (lambda: Schema((2,), ("a", "b")).check(X, LABELS), "labels of type int"),
    "beyond float32 at a site": (lambda: SCHEMA.check(X * 1e300, Y), "x holds a number in row 0"),
    "a target beyond float32": (lambda: SCHEMA.check(X, Y * 1e300), "y holds a number in row 0"),
    "infinite at a site": (lambda: SCHEMA.check(X.astype("f4") / 0, Y), "x holds a number in row 0"),
    "a schema's other names": (lambda: SCHEMA.check(FRAME.set_axis(["z", "b"], axis=1), Y), "x has 'z' and lacks"),
    "beyond float32 in a run": (
        lambda: fs.run(fs.FedAvg(0.1), fs.Task.from_arrays(loss, W, [(X, Y), (X, Y * 1e300)]), rounds=1),
        r"\[1\] of the examples holds a number in row 0 of client 1 that float32 cannot",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FORMS)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_forms_that_do_not_fit(case):
    make, words = FORMS[case]
    with pytest.raises(fs.InvalidInput, match=words) as error:
        make()
    assert "\n" not in str(error.value)


def test_text_labels_of_a_schema_and_names_in_another_order():
    found = Schema((2,), ("b", "a")).check(X, ["a", "b", "a"])
    assert found.y.tolist() == [1, 0, 1]
    np.testing.assert_array_equal(SCHEMA.check(FRAME[["b", "a"]], Y).x, X)


@pytest.mark.parametrize(
    "x", [np.array([[0.0], [1e39]]), np.array([[0], [2**40]])], ids=["floats", "integers"]
)
def test_what_the_model_computes_in_holds_the_inputs(x):
    """They are finite as they are given, and not in the type of the model."""
    own = fs.Task.from_arrays(
        loss, np.ones(1, np.float32), [(np.ones((2, 1)), np.ones(2))], predict=lambda w, x: x
    )
    wide = fs.Task.from_arrays(loss, np.ones(1), [(np.ones((2, 1)), np.ones(2))], predict=lambda w, x: x)
    if x.dtype.kind == "f":
        with pytest.raises(fs.InvalidInput, match="x holds a number in row 1 that float32 cannot"):
            own.predict(np.ones(1, np.float32), x)
        assert wide.predict(np.ones(1), x)[1, 0] == 1e39
    ids = fs.Task.from_arrays(
        loss, np.ones(1, np.float32), [(np.ones((2, 1), int), np.ones(2))], predict=lambda w, x: x
    )
    if x.dtype.kind == "i":
        with pytest.raises(fs.InvalidInput, match="x holds a number in row 1 that int32 cannot"):
            ids.predict(np.ones(1, np.float32), x)


def test_a_module_computes_in_its_own_type():
    nn = torch().nn
    own = fs.tasks.from_torch(nn.Linear(1, 1), nn.MSELoss(), [(np.ones((2, 1)), np.ones((2, 1)))] * 2)
    with pytest.raises(fs.InvalidInput, match="x holds a number in row 0 that float32 cannot"):
        own.predict(fs.FedAvg(0.1) and own.init(jax.random.key(0)), np.array([[1e39]]))
