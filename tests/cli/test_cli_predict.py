"""`fedsolve predict`: files of inputs in, files of predictions out, and one line for all that can be wrong."""

import sys

import numpy as np
import pandas as pd
import pytest

import fedsolve as fs

OWN = """
import jax, jax.numpy as jnp, numpy as np
import fedsolve as fs

def plane(slope: float = 2.0) -> fs.Task:
    x = np.random.default_rng(0).normal(size=(30, 2))
    model = fs.tasks.Linear(2)
    loss = fs.tasks.SquaredError(model)
    data = [(x[:10], slope * x[:10, 0]), (x[10:], slope * x[10:, 0])]
    return fs.Task.from_arrays(loss, model.init(jax.random.key(0)), data, name="plane")

def tags() -> fs.Task:
    words = np.random.default_rng(0).random((30, 5)) > 0.5
    rows = fs.SparseRows(np.tile(np.arange(5, dtype=np.int32), (30, 1)), words.astype(np.float32))
    model = fs.tasks.SparseLinear(5, 2)
    data = [fs.Examples(rows, np.eye(2, dtype=np.float32)[words[:, 0].astype(int)])]
    return fs.Task.from_arrays(fs.tasks.BinaryCrossEntropy(model), model.init(jax.random.key(0)), data, name="tags")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved result, inputs in every format, and the labels that the result predicts."""
    path = tmp_path_factory.mktemp("predict")
    task = fs.tasks.digits(num_clients=4, model="softmax")
    result = fs.run(fs.FedAvg(0.3), task, rounds=2)
    result.save(path / "run")
    x = task.test.x[:9]
    np.savez(path / "x.npz", x=x)
    np.savez(path / "y.npz", y=x)
    table = pd.DataFrame(x, columns=[f"p{i}" for i in range(64)])
    table.to_csv(path / "x.csv", index=False)
    table.to_parquet(path / "x.parquet")
    table[table.columns[::-1]].assign(name="a").to_csv(path / "mixed.csv", index=False)
    (path / "text.csv").write_text("a,b\n1,2\n3,high\n")
    (path / "plain.csv").write_text("1,2\n3,4\n")
    return path, result.predict(x), result.predict(x, scores=True)


def test_every_format_gives_the_predictions_of_the_result(call, folder, tmp_path):
    path, labels, scores = folder
    names = ",".join(f"p{i}" for i in range(64))
    for source, more in [
        ("x.npz", ()),
        ("x.csv", ()),
        ("x.parquet", ()),
        ("mixed.csv", ("--columns", names)),
    ]:
        out = tmp_path / f"{source}.csv"
        ended = call("predict", path / "run", "--input", path / source, "--out", out, *more)
        assert (ended.code, ended.out) == (0, f"9 predictions into {out}\n")
        assert pd.read_csv(out)["prediction"].tolist() == labels.tolist()
    out = tmp_path / "scores.parquet"
    call("predict", path / "run", "--input", path / "x.csv", "--out", out, "--scores", "--json")
    np.testing.assert_allclose(pd.read_parquet(out).to_numpy(), scores, atol=1e-5)
    assert list(pd.read_parquet(out).columns) == [f"prediction_{i}" for i in range(10)]
    call("predict", path / "run", "--input", path / "x.csv", "--out", tmp_path / "o.npz")
    np.testing.assert_array_equal(np.load(tmp_path / "o.npz")["prediction"], labels)


@pytest.mark.parametrize(
    ("source", "more", "message"),
    [
        ("none.csv", (), "none.csv does not exist"),
        ("x.txt", (), "x.txt must end in .csv, .parquet or .npz"),
        ("y.npz", (), "y.npz has no array x, but y: save it by np.savez(file, x=...)"),
        ("text.csv", (), "text.csv, line 3: column b = 'high' is not a finite number"),
        ("plain.csv", (), "plain.csv has numbers in its first line"),
        (
            "x.csv",
            ("--columns", "p1,p2"),
            "x.csv: x has rows of shape (2,), the inputs of digits have shape (64,)",
        ),
        ("x.csv", ("--columns", "p1,q7"), "has no column q7: did you mean p7?"),
        ("x.parquet", ("--columns", "q7"), "unknown column of"),
    ],
)
def test_what_is_wrong_is_one_line(call, folder, tmp_path, source, more, message):
    path, out = folder[0], tmp_path / "out.csv"
    ended = call("predict", path / "run", "--input", path / source, "--out", out, *more)
    assert ended.code == 2
    assert message in ended.err
    assert ended.err.count("\n") == 1
    assert not out.exists()


def test_no_file_is_overwritten_and_several_runs_are_not_one(call, folder, tmp_path):
    path = folder[0]
    (tmp_path / "out.csv").write_text("mine")
    ended = call("predict", path / "run", "--input", path / "x.csv", "--out", tmp_path / "out.csv")
    assert (ended.code, (tmp_path / "out.csv").read_text()) == (2, "mine")
    assert "exists already" in ended.err
    task = fs.Task.from_arrays(lambda w, x: (x @ w).mean(), np.zeros(2), [np.ones((3, 2))], name="own")
    fs.run(fs.FedAvg(0.1), task, rounds=1, seeds=2).save(tmp_path / "seeds")
    ended = call("predict", tmp_path / "seeds", "--input", path / "x.csv", "--out", tmp_path / "new.csv")
    assert ended.code == 2
    assert "holds several runs: give the folder of one of them, such as seed-0" in ended.err
    ended = call(
        "predict", tmp_path / "seeds" / "seed-0", "--input", tmp_path / "in.csv", "--out", tmp_path / "o.csv"
    )
    assert (ended.code, "predict in Python with fs.load(" in ended.err) == (2, True)


@pytest.mark.full
def test_code_of_ones_own_task_is_imported_only_where_it_may(call, tmp_path, monkeypatch, no_pictures):
    (tmp_path / "planes.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = tmp_path / "elsewhere" / "run"
    settings = ("--set", "client_lr=0.1", "--rounds", "60", "--out", run)
    assert call("run", "planes:plane", "FedAvg", *settings).code == 0
    (tmp_path / "in.csv").write_text("a,b\n1,0\n0,1\n-1,5\n")
    given = ("predict", run, "--input", tmp_path / "in.csv", "--out", tmp_path / "out.csv")
    ended = call(*given)
    assert ended.code == 2
    assert "give --trust planes if you trust" in ended.err
    assert call(*given, "--trust", "planes").code == 0
    np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv")["prediction"], [2, 0, -2], atol=0.05)
    sys.modules.pop("planes", None)


def test_inputs_that_no_file_holds_are_refused_with_what_to_do(call, tmp_path, monkeypatch, no_pictures):
    (tmp_path / "sparse.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert call("run", "sparse:tags", "FedAvg", "--rounds", "1", "--out", tmp_path / "run").code == 0
    (tmp_path / "in.csv").write_text("a,b\n1,0\n")
    given = ("--input", tmp_path / "in.csv", "--out", tmp_path / "out.csv", "--trust", "sparse")
    ended = call("predict", tmp_path / "run", *given)
    assert ended.code == 2
    assert "the inputs of tags are fs.SparseRows" in ended.err
    assert "to `predict` in Python (a file of inputs holds one array)" in ended.err
    sys.modules.pop("sparse", None)
