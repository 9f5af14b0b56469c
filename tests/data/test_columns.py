"""Columns with names are kept by name: put in order or refused, from the clients' tables to a prediction."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import fedsolve as fs
from fedsolve.cli.main import app
from fedsolve.data import FederatedData
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.deploy.oracles.sklearn import SklearnOracle
from harness import squares as loss

RNG = np.random.default_rng(0)
X, W = RNG.normal(size=(7, 3)), np.array([1.0, -2.0, 0.5])
Y = X @ W


def frame(x, names="abc"):
    return pd.DataFrame(x, columns=list(names))


def turned(x):
    """The same columns in another order."""
    return frame(x)[["c", "a", "b"]]


def arrow(x):
    return pa.Table.from_pandas(turned(x))


def polars(x):
    return pytest.importorskip("polars").DataFrame({name: turned(x)[name].to_numpy() for name in "cab"})


def task(clients=None, **more):
    clients = clients or [(frame(X), Y), (turned(X), Y)]
    return fs.Task.from_arrays(loss, W, clients, predict=lambda w, x: x @ w, **more)


ROWS = {  # the index of the inputs, that of the targets, and what is said
    "shuffled inputs": (range(6, -1, -1), range(7), "in another order than"),
    "sorted targets": ([3, 1, 2, 5, 4, 6, 7], [1, 2, 3, 4, 5, 6, 7], "in another order than"),
    "others": (list("abcdefg"), list("hijklmn"), "other rows than"),
    "dates": (pd.date_range("2020", periods=7), pd.date_range("2021", periods=7), "other rows than"),
    "pairs": ([(1, i) for i in range(7)], [(2, i) for i in range(7)], "other rows than"),
    "the same": (list("gfedcba"), list("gfedcba"), None),
    "numbered anew": (list("gfedcba"), range(7), None),
    "numbered as floats": (range(7), np.arange(7.0), None),
}


@pytest.mark.parametrize("case", ROWS)
def test_rows_that_are_named_otherwise_are_refused(case):
    """Inputs, targets and ids of groups with an index of pandas: rows go by position where their names allow it."""
    mine, theirs, words = ROWS[case]
    mine, theirs = (
        pd.MultiIndex.from_tuples(i) if isinstance(i[0], tuple) else pd.Index(i) for i in (mine, theirs)
    )
    x, y = pd.DataFrame(X, mine, list("abc")), pd.Series(Y, theirs)
    ways = [
        lambda: FederatedData.from_clients([(x, y)]),
        lambda: FederatedData.from_groups(x, y),
        lambda: task(test=(x, y)),
    ]
    for way in ways:
        if words is None:
            way()
        else:
            with pytest.raises(fs.InvalidInput, match=words):
                way()


ORDERS = {"pandas": turned, "Arrow": arrow, "batch": lambda x: arrow(x).to_batches()[0], "Polars": polars}


@pytest.mark.parametrize("other", ORDERS.values(), ids=ORDERS)
def test_another_order_is_put_in_order(other):
    """For all ways in, and whatever the table."""
    own = (other(X), Y)
    made = task([(frame(X), Y), own], test=own, validation=own, unseen=[own])
    site = JaxOracle(loss, W, (frame(X), Y), batch_size=1, epochs=1, validation=own)
    found = [made.data.client(0), made.data.client(1), made.test, made.validation, made.unseen.examples]
    for x, _ in (*found, site._validation):
        np.testing.assert_array_equal(x, X)
    for x in (other(X), X):
        np.testing.assert_allclose(made.predict(W, x), Y, rtol=1e-6)
    pooled = FederatedData.from_groups(own, [0, 1, 1, 0, 0, 0, 1])
    assert pooled.columns == (("c", "a", "b"), None)
    np.testing.assert_allclose(task(pooled).predict(W[[2, 0, 1]], frame(X)), Y, rtol=1e-6)


def test_names_stay_with_what_is_made_of_the_data(tmp_path):
    data = FederatedData.from_clients([(frame(X), Y)] * 4)
    made = [data.of(np.array([1])), data.sample(9), data.hold_out(0.3)[0], data.hold_out_clients(0.5)[0]]
    made.append(FederatedData.from_partition((frame(X), Y), [[0, 1], [2]]))
    made.append(fs.data.write(data, tmp_path / "a"))
    made.append(fs.data.write(((x, Y) for x in (frame(X), turned(X))), tmp_path / "b"))
    for own in made:
        assert own.columns == (("a", "b", "c"), None)
    np.testing.assert_array_equal(made[-1].client(1)[0], X)
    assert fs.data.write([X], tmp_path / "c").columns == FederatedData.from_clients([X]).columns == ()
    table = pa.Table.from_pandas(frame(X).assign(y=Y, u=[0, 1, 0, 0, 0, 1, 1]))
    pq.write_table(table, tmp_path / "t.parquet")
    for folder in (None, tmp_path / "d"):
        read = fs.data.from_table(tmp_path / "t.parquet", client="u", x=["c", "a"], y="y", folder=folder)
        assert read.columns == (("c", "a"), None)


@pytest.mark.parametrize("labels", [None, [1, 0, 2]])
def test_tables_without_names_and_arrays_are_taken_by_position(labels):
    """pandas numbers the columns that have no name: such a number is a position."""
    nameless = pd.DataFrame(X) if labels is None else pd.DataFrame(X)[labels]
    for first in (X, frame(X), pd.DataFrame(X)):
        data = FederatedData.from_clients([first, nameless, X])
        np.testing.assert_array_equal(data.client(1), X)
        assert data.columns == ((("a", "b", "c"),) if "a" in getattr(first, "columns", ()) else ())


def test_a_pipeline_of_scikit_learn_takes_columns_by_name():
    linear, scaler = (pytest.importorskip(f"sklearn.{name}") for name in ("linear_model", "preprocessing"))
    pipeline = pytest.importorskip("sklearn.pipeline").make_pipeline
    for fit in (X, frame(X), turned(X)):  # without names it takes tables by position
        model = pipeline(scaler.StandardScaler().fit(fit), linear.LinearRegression())
        site = SklearnOracle(model, frame(X), Y, batch_size=1, epochs=1, validation=(turned(X), Y))
        np.testing.assert_array_equal(site._examples.x, site._validation.x)
    with pytest.raises(fs.InvalidInput, match="x has 'z' and lacks 'a', unlike what step 'standardscaler'"):
        SklearnOracle(model, OTHER, Y, batch_size=1, epochs=1)


OTHER, TWICE = frame(X, "zbc"), frame(X, "aac")
REFUSED = {
    "a client's": (lambda: task([(frame(X), Y), (OTHER, Y)]), r"client 1: \[0\] has 'z' and lacks 'a'"),
    "a third client's": (lambda: task([(X, Y), (frame(X), Y), (OTHER, Y)]), r"client 2: \[0\] has 'z'"),
    "a column less": (lambda: task([(frame(X), Y), (frame(X)[["a", "b"]], Y)]), "client 1.* lacks 'c'"),
    "the test set's": (lambda: task(test=(OTHER, Y)), r"test \[0\] has 'z'"),
    "the validation set's": (lambda: task(validation=(OTHER, Y)), r"validation \[0\] has 'z'"),
    "an unseen client's": (lambda: task(unseen=[(OTHER, Y)]), "unseen has 'z' and lacks 'a', unlike those"),
    "new inputs'": (lambda: task().predict(W, OTHER), "x has 'z' and lacks 'a', unlike the inputs of custom"),
    "more of new inputs": (lambda: task().predict(W, frame(X).assign(y=Y)), "x has 'y', unlike"),
    "a name twice": (lambda: task([(TWICE, Y)]), r"client 0: \[0\] has two columns 'a'"),
    "a name twice in new inputs": (lambda: task().predict(W, TWICE), "x has two columns 'a'"),
    "1 and '1'": (lambda: task([(frame(X).set_axis([1, "1", 2], axis=1), Y)]), "two columns '1'"),
    "written ones": (lambda: fs.data.write(iter([frame(X), OTHER]), "folder"), "client 1: has 'z'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_names_are_refused(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make, words = REFUSED[case]
    with pytest.raises(fs.InvalidInput, match=words) as error:
        make()
    assert "\n" not in str(error.value)


def test_a_stored_model_knows_the_columns_of_its_training(tmp_path):
    history = fs.run(fs.FedAvg(0.1), task(), rounds=1, progress=False).history
    result = fs.Result(W, history, None, task().inference)
    result.save(tmp_path / "run")
    for clients in ([(turned(X), Y)], [(X, Y)]):  # built again with another order, and without names
        loaded = fs.load(tmp_path / "run", task(clients))
        np.testing.assert_allclose(loaded.predict(turned(X)), Y, rtol=1e-6)
    with pytest.raises(fs.InvalidInput, match="the task custom has 'z' and lacks 'a', unlike the model in"):
        fs.load(tmp_path / "run", task([(OTHER, Y)]))


def test_the_command_takes_columns_by_name(tmp_path, monkeypatch):
    """Its file may have further ones; `--columns` must name those of the training."""
    (tmp_path / "named.py").write_text(
        "import jax.numpy as jnp, numpy as np, pandas as pd, fedsolve as fs\n"
        "def make() -> fs.Task:\n"
        "    x = pd.DataFrame(np.eye(3), columns=list('abc'))\n"
        "    return fs.Task.from_arrays(lambda w, b: jnp.mean((b[0] @ w - b[1]) ** 2), np.array([1.0, 10.0, 100.0]),\n"
        "        [(x, np.array([1.0, 10.0, 100.0]))], predict=lambda w, x: x @ w)\n"
    )
    monkeypatch.chdir(tmp_path)
    call = lambda words: CliRunner().invoke(app, words.split())  # noqa: E731
    assert call("run named:make FedAvg --rounds 1 --out run").exit_code == 0
    (tmp_path / "new.csv").write_text("id,c,a,b\n7,3,1,2\n")
    predict = "predict run --input new.csv --trust named --out "
    for words in (predict + "0.npz", predict + "1.npz --columns b,c,a"):
        assert call(words).exit_code == 0
    for out in ("0.npz", "1.npz"):
        np.testing.assert_allclose(np.load(out)["prediction"], [321], rtol=1e-6)
    done = call(predict + "2.npz --columns id,a,b")
    assert "--columns has 'id' and lacks 'c', unlike the model" in str(done.exception)
