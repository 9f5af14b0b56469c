"""Logistic regression on LIBSVM's files: on small files of the format, and on the real ones where they are."""

import gzip
import hashlib
import importlib
import itertools

import jax
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.errors import InvalidInput
from fedsolve.data import Dirichlet, Shards
from fedsolve.tasks import Affine, build, libsvm
from fedsolve.tasks.ready.libsvm import parse
from harness import crossed
from tasks.small_files import DATA, needs

SIZES = {"a9a": (60, 123), "a9a.t": (20, 123), "w8a": (50, 300), "mushrooms": (40, 112)}


def dense(name):
    """Inputs and signs of a small file: few non-zeros a row, the first row empty."""
    n, features = SIZES[name]
    rng = np.random.default_rng(n)
    x = np.where(rng.random((n, features)) < 0.1, rng.integers(1, 5, (n, features)) / 4, 0)
    x[0] = 0
    return x.astype(np.float32), rng.permutation(np.arange(n) % 3 == 0)


def text(x, positive, low, high):
    rows = []
    for row, up in zip(x, positive, strict=True):
        entries = [f"{j + 1}:{row[j]:g}" for j in np.flatnonzero(row)]
        rows.append(" ".join([high if up else low, *entries]) + " \n")
    return ("".join(rows) + "\n").encode()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Small files in the place of the four, mushrooms with labels 1 and 2."""
    (tmp_path / "libsvm").mkdir()
    sums = {}
    for name in SIZES:
        content = text(*dense(name), *(("1", "2") if name == "mushrooms" else ("-1", "+1")))
        (tmp_path / "libsvm" / f"{name}.gz").write_bytes(gzip.compress(content))
        sums[name] = hashlib.sha256(content).hexdigest()
    monkeypatch.setattr(importlib.import_module("fedsolve.tasks.ready.libsvm"), "SHA256", sums)
    return tmp_path


def sorted_rows(*parts):
    """Rows of inputs with their labels, in an order that does not depend on who holds them."""
    rows = np.concatenate([np.column_stack([x, y]) for x, y in parts])
    return rows[np.lexsort(rows.T)]


def test_a9a_has_its_own_test_file(folder):
    task = libsvm(folder, num_clients=7)
    x, y = dense("a9a")
    np.testing.assert_array_equal(sorted_rows(task.data.examples), sorted_rows((x, y)))
    x, y = dense("a9a.t")
    np.testing.assert_array_equal(task.test.x, x)
    np.testing.assert_array_equal(task.test.y, y)
    assert (task.data.counts.min(), task.data.counts.max()) == (8, 9)
    assert (task.data.examples.x.dtype, task.data.examples.y.dtype) == (np.float32, np.int32)
    assert (task.name, task.batch_size, task.epochs) == ("a9a", 32, 1)


@pytest.mark.parametrize(("dataset", "held_out"), [("w8a", 10), ("mushrooms", 8)])
def test_the_others_hold_out_a_fifth_drawn_by_seed(folder, dataset, held_out):
    task = build("libsvm", data_dir=str(folder), dataset=dataset, num_clients=3, seed=4)
    assert len(task.test.y) == held_out
    np.testing.assert_array_equal(sorted_rows(task.data.examples, task.test), sorted_rows(dense(dataset)))
    again, other = (libsvm(folder, dataset, num_clients=3, seed=s) for s in (4, 5))
    np.testing.assert_array_equal(task.data.examples.x, again.data.examples.x)
    assert not np.array_equal(task.test.x, other.test.x)


def test_partitions_deal_by_label(folder):
    by_label = libsvm(folder, num_clients=6, partition={"name": "shards", "per_client": 1})
    assert sum(len(np.unique(by_label.data.client(i).y)) == 2 for i in range(6)) <= 1
    same = libsvm(folder, num_clients=6, partition=Shards(1))
    np.testing.assert_array_equal(by_label.data.examples.x, same.data.examples.x)
    assert len(set(libsvm(folder, num_clients=6, partition=Dirichlet(0.3)).data.counts.tolist())) > 1


def test_an_unzipped_file_is_as_good(folder):
    zipped = folder / "libsvm" / "w8a.gz"
    task = libsvm(folder, "w8a", num_clients=3)
    (folder / "libsvm" / "w8a").write_bytes(gzip.decompress(zipped.read_bytes()))
    zipped.unlink()
    np.testing.assert_array_equal(libsvm(folder, "w8a", num_clients=3).data.examples.x, task.data.examples.x)


@pytest.mark.full
@pytest.mark.parametrize(
    ("l2", "bias"), crossed(itertools.product((0.0, 0.3), (False, True)), ((0.0, False), (0.3, True)))
)
def test_uneven_clients_take_the_steps_of_numpy(folder, l2, bias):
    """FedAvg on the regularised loss, two epochs of full batches in float64, weights by examples."""
    task = libsvm(folder, num_clients=5, partition=Dirichlet(0.5), l2=l2, bias=bias)
    assert len(set(task.data.counts.tolist())) > 1
    found = fs.run(fs.FedAvg(0.5), task, rounds=3, batch_size=60, epochs=2, dtype="float64", eval_every=1)
    w, b = np.zeros(123), 0.0
    shares = task.data.counts / task.data.num_examples
    clients = [task.data.client(i) for i in range(5)]

    def sides(part):
        return 2.0 * part.y - 1

    def objective(parts):
        losses = np.concatenate([np.log1p(np.exp(-sides(p) * (p.x @ w + b))) for p in parts])
        return losses.mean() + l2 / 2 * w @ w

    for r in range(4):
        assert found.metrics["train_loss"][r] == pytest.approx(objective(clients), rel=1e-12)
        assert found.metrics["test_loss"][r] == pytest.approx(objective([task.test]), rel=1e-12)
        sent = []
        for part in clients:
            v, c = w.copy(), b
            for _ in range(2):
                slope = -sides(part) / (1 + np.exp(sides(part) * (part.x @ v + c))) / len(part.y)
                v, c = v - 0.5 * (slope @ part.x + l2 * v), c - 0.5 * bias * slope.sum()
            sent.append((v, c))
        if r < 3:
            w = sum(share * v for share, (v, _) in zip(shares, sent, strict=True))
            b = sum(share * c for share, (_, c) in zip(shares, sent, strict=True))
    np.testing.assert_allclose(found.params.weight, w, rtol=1e-10, atol=1e-13)
    if bias:
        np.testing.assert_allclose(found.params.bias, b, rtol=1e-10)
    else:
        assert found.params.bias is None
    accuracy = ((task.test.x @ w + b > 0) == task.test.y).mean()
    assert found.metrics["test_accuracy"][-1] == pytest.approx(accuracy, rel=1e-6)


@pytest.mark.full
def test_the_gradient_is_that_of_finite_differences(folder):
    task = libsvm(folder, num_clients=5, l2=0.1, bias=True)
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        w, b, dw, db = rng.standard_normal(123), 0.2, rng.standard_normal(123), 0.7
        x = task.test.x.astype(np.float64)

        def at(t):
            return float(
                task.loss(Affine(w + t * dw, np.float64(b + t * db)), type(task.test)(x, task.test.y))
            )

        slope = jax.grad(task.loss)(Affine(w, np.float64(b)), type(task.test)(x, task.test.y))
        along = float(slope.weight @ dw + slope.bias * db)
        assert along == pytest.approx((at(1e-5) - at(-1e-5)) / 2e-5, rel=1e-8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "mushroom"}, "unknown LIBSVM data set 'mushroom': did you mean 'mushrooms'"),
        ({"num_clients": 61}, "num_clients = 61 is more than the 60 examples"),
        ({"num_clients": 0}, "num_clients = 0"),
        ({"l2": -0.1}, r"l2 = -0\.1 must be finite and >= 0"),
        ({"l2": float("nan")}, "l2 = nan"),
        ({"bias": 1}, "bias = 1 must be true or false"),
        ({"partition": "dirichlet"}, "partition dirichlet needs alpha"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_bad_options_end_in_one_line(folder, options, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        build("libsvm", data_dir=folder, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"1 1:1e39", "value is not a finite number"),
        (b"1 1:1 " + b"9" * 5000 + b":1", "word 3 is not index:value"),
        (b"+1 3:1 2:1", "index 2 after 3, indices must ascend from 1 to 123"),
        (b"+1 3:1 3:1", "index 3 after 3"),
        (b"+1 0:1", "index 0 after 0"),
        (b"+1 124:1", "index 124 after 0"),
        (b"+1 3", "word 2 is not index:value"),
        (b"+1 -3:1", "word 2 is not index:value"),
        (b"+1 3:", "value is not a finite number"),
        (b"+1 3:1:2", "value is not a finite number"),
        (b"+1 3:nan", "value is not a finite number"),
        (b"up 3:1", "label is not a finite number"),
        (b"\xff\x00", "is not a finite number"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(folder, line, message):
    lines = gzip.decompress((folder / "libsvm" / "a9a.gz").read_bytes()).split(b"\n")
    lines[4] = line
    (folder / "libsvm" / "a9a.gz").write_bytes(gzip.compress(b"\n".join(lines)))
    with pytest.raises(InvalidInput, match=r"a9a\.gz, line 5: .*" + message) as caught:
        libsvm(folder)
    assert "\n" not in str(caught.value)


def test_missing_damaged_and_changed_files_are_named(folder, tmp_path, monkeypatch):
    with pytest.raises(InvalidInput, match="is not a folder"):
        libsvm(tmp_path / "nowhere")
    path = folder / "libsvm" / "a9a.gz"
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    with pytest.raises(InvalidInput, match=r"a9a\.gz is damaged gzip"):
        libsvm(folder)
    path.write_bytes(gzip.compress(gzip.decompress(content) + b"+1 1:1\n"))
    with pytest.raises(InvalidInput, match=r"a9a\.gz has text of SHA-256 .* damaged or another version"):
        libsvm(folder)
    path.write_bytes(gzip.compress(b"\n"))
    with pytest.raises(InvalidInput, match=r"a9a\.gz holds no example"):
        libsvm(folder)
    path.unlink()
    with pytest.raises(InvalidInput, match=r"a9a\.gz does not exist"):
        libsvm(folder)
    monkeypatch.delenv("FEDSOLVE_DATA", raising=False)
    with pytest.raises(InvalidInput, match=r"give data_dir .* or set the environment variable FEDSOLVE_DATA"):
        libsvm()


def test_carriage_returns_explicit_zeros_and_blank_lines_are_read():
    x, y = parse(b"1 1:0.5 3:0\r\n\r\n  \n2\t2:-1e-2\n", 3)
    np.testing.assert_array_equal(x, np.float32([[0.5, 0, 0], [0, -0.01, 0]]))
    assert y.tolist() == [1, 2]


@needs("libsvm")
@pytest.mark.parametrize(
    ("dataset", "train", "test", "positive"),
    [
        ("a9a", 32_561, 16_281, 7_841 + 3_846),
        ("w8a", 39_799, 9_950, 1_479),
        ("mushrooms", 6_499, 1_625, 4_208),
    ],
)
def test_the_real_files_are_read_as_scikit_learn_reads_them(dataset, train, test, positive):
    from sklearn.datasets import load_svmlight_file

    task = libsvm(DATA, dataset)
    assert (task.data.num_examples, len(task.test.y)) == (train, test)
    assert task.data.examples.y.sum() + task.test.y.sum() == positive
    files = [dataset, "a9a.t"] if dataset == "a9a" else [dataset]
    features = task.test.x.shape[1]
    theirs = [load_svmlight_file(str(DATA / "libsvm" / f"{f}.gz"), n_features=features) for f in files]
    expected = sum(x.sum(axis=0) for x, _ in theirs)
    np.testing.assert_array_equal(
        task.data.examples.x.sum(0, np.float64) + task.test.x.sum(0, np.float64), expected.A1
    )
    with_label = sum(x[y == y.max()].sum() for x, y in theirs)
    ours = sum(part.x[part.y == 1].sum(dtype=np.float64) for part in (task.data.examples, task.test))
    assert ours == with_label


@needs("libsvm")
def test_a9a_is_learnt():
    result = fs.run(fs.FedAvg(0.5), libsvm(DATA), rounds=20, clients_per_round=20, eval_every=20)
    assert result.metrics["test_accuracy"][-1] > 0.84
