"""The ready tasks: sizes, types, the statistics that their papers promise, and the catalogue."""

import hashlib
import os
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from fedsolve import tasks
from fedsolve.config.catalogue import BIBTEX
from fedsolve.core.errors import InvalidInput
from fedsolve.data import IID, LabelsPerClient
from fedsolve.tasks import TASKS, Softmax, Task, build
from fedsolve.tasks.ready.simulated import draw_regression

DATA = Path(os.environ.get("FEDSOLVE_DATA") or Path(__file__).parents[3] / "shared" / "data")
needs_mnist = pytest.mark.skipif(
    not (DATA / "mnist").is_dir(), reason="no mnist/ in FEDSOLVE_DATA or in ../shared/data"
)
HERE = ["digits", "regression", "synthetic", "lasso", "lowrank"]
EXACT = ["regression", "lasso", "lowrank"]
"""Regressions of made data, which stay in float64 for runs in float64."""


def same_data(a, b):
    return np.array_equal(a.data.examples.x, b.data.examples.x) and (a.data.counts == b.data.counts).all()


def loss_at_start(task, examples):
    return float(task.loss(task.init(jax.random.key(0)), examples))


@pytest.mark.parametrize("name", HERE)
def test_types_of_arrays_and_the_seed_decides(name):
    task = build(name)
    assert isinstance(task, Task)
    floats, targets = (np.float64, np.float64) if name in EXACT else (np.float32, np.int32)
    assert task.data.examples.x.dtype == floats
    assert task.data.examples.y.dtype == targets
    if name not in ("lasso", "lowrank"):  # theirs: tests/tasks/test_composite_tasks.py
        again = build(name, seed=0)
        assert same_data(task, again)
        assert task.loss == again.loss
        assert not same_data(task, build(name, seed=1))


@pytest.mark.full
@pytest.mark.parametrize("name", HERE)
def test_gradient_descent_lowers_the_loss(name):
    task = build(name)
    examples = jax.tree.map(lambda a: a[:400], task.data.examples)
    params = task.init(jax.random.key(0))
    step = jax.jit(jax.value_and_grad(task.loss))
    before = float(step(params, examples)[0])
    rate = 1e-3 if name in ("lasso", "lowrank") else 0.1  # 400 inputs of norm 45: a curvature of hundreds
    for _ in range(100):
        params = jax.tree.map(lambda p, g: p - rate * g, params, step(params, examples)[1])
    assert float(step(params, examples)[0]) < 0.9 * before


def test_digits_keeps_every_example_once():
    from sklearn.datasets import load_digits

    task = tasks.digits()
    assert task.data.num_clients == 100
    assert task.data.num_examples == 1438
    assert task.test.x.shape == (359, 64)
    rows = np.concatenate([task.data.examples.x, task.test.x])
    labels = np.concatenate([task.data.examples.y, task.test.y])
    x, y = load_digits(return_X_y=True)
    assert rows.min() == 0
    assert rows.max() == 1
    ours = sorted(zip((rows * 16).astype(int).tolist(), labels.tolist(), strict=True))
    assert ours == sorted(zip(x.astype(int).tolist(), y.tolist(), strict=True))


def test_digits_takes_a_partition_as_object_name_or_table():
    by_object = tasks.digits(num_clients=20, partition=LabelsPerClient(2), model="softmax")
    by_table = build("digits", num_clients=20, partition={"name": "labels", "k": 2}, model=Softmax(64, 10))
    assert same_data(by_object, by_table)
    assert by_object.loss == by_table.loss
    assert all(len(np.unique(by_object.data.client(i).y)) <= 2 for i in range(20))
    assert same_data(build("digits", partition="iid"), tasks.digits(partition=IID()))


def test_digits_starts_at_log_ten_with_softmax():
    task = tasks.digits(model="softmax")
    assert loss_at_start(task, task.test) == pytest.approx(np.log(10), rel=1e-5)
    assert set(task.metrics) == {"accuracy"}


def test_regression_has_the_paper_s_sizes():
    task = tasks.anisotropic_regression()
    assert task.data.counts.tolist() == [30] * 20
    assert task.data.examples.x.shape == (600, 1000)
    assert (task.test, task.batch_size, task.epochs, task.local_steps) == (None, None, None, 20)
    assert task.init(jax.random.key(0)).weight.shape == (1000,)
    assert loss_at_start(task, task.data.examples) == pytest.approx(
        np.mean(task.data.examples.y**2), rel=1e-4
    )


def test_regression_targets_are_inner_products_and_the_task_holds_them():
    x, y, w = draw_regression(3, 20, 30, 1000, 1.1, 0.1)
    np.testing.assert_allclose(y, np.einsum("ijk,ijk->ij", x, w), rtol=1e-10)
    task = tasks.anisotropic_regression(seed=3)
    np.testing.assert_array_equal(task.data.client(7).x, x[7])
    np.testing.assert_array_equal(task.data.client(7).y, y[7])


def test_regression_inputs_have_variance_k_to_the_minus_1_1():
    """Over 6,000 rows a variance is known to sqrt(2 / 6000) = 1.8 %; its slope in log k is -1.1."""
    x, _, _ = draw_regression(0, 20, 300, 1000, 1.1, 0.1)
    k = np.arange(1, 1001)
    ratio = x.reshape(-1, 1000).var(axis=0) * k**1.1
    assert abs(ratio - 1).max() < 0.1
    assert np.polyfit(np.log(k), np.log(x.reshape(-1, 1000).var(axis=0)), 1)[0] == pytest.approx(
        -1.1, abs=0.01
    )


def test_regression_weights_have_variance_one_within_and_a_tenth_between_clients():
    """Client means over n examples have variance .1 + 1 / n = .1033 for n = 300."""
    _, _, w = draw_regression(0, 20, 300, 100, 1.1, 0.1)
    assert w.var(axis=1, ddof=1).mean() == pytest.approx(1.0, abs=0.02)
    assert w.mean(axis=1).var() == pytest.approx(0.1033, abs=0.012)


def test_regression_can_be_interpolated():
    """600 equations with 1,000 unknowns: the least-norm solution fits all of them."""
    examples = tasks.anisotropic_regression().data.examples
    x = examples.x.astype(np.float64)
    w = np.linalg.lstsq(x, examples.y.astype(np.float64), rcond=None)[0]
    assert abs(x @ w - examples.y).max() < 1e-6


def test_synthetic_has_the_paper_s_sizes_and_holds_out_a_fifth():
    task = tasks.synthetic(num_clients=200)
    train, total = task.data.counts, task.data.num_examples + len(task.test.y)
    assert train.min() >= 40
    assert np.median(train) == pytest.approx(0.8 * (np.exp(4) + 50), rel=0.1)
    assert 0.15 < len(task.test.y) / total <= 0.2
    assert task.data.examples.x.shape[1] == 60


def center_spread(task):
    return np.stack([task.data.client(i).x.mean(0) for i in range(task.data.num_clients)]).mean(1).std()


def test_synthetic_beta_moves_the_inputs_and_iid_does_not():
    """The mean input of a client over features is B_k plus 1 / sqrt(60) noise: deviation beta."""
    assert center_spread(tasks.synthetic(beta=0.0, num_clients=100)) < 0.2
    assert center_spread(tasks.synthetic(beta=3.0, num_clients=100)) == pytest.approx(3.0, rel=0.25)
    assert center_spread(tasks.synthetic(iid=True, num_clients=100)) < 0.02


def test_synthetic_inputs_have_variance_j_to_the_minus_1_2():
    task = tasks.synthetic(iid=True, num_clients=60)
    variance = task.data.examples.x.var(axis=0)
    assert abs(variance * np.arange(1, 61) ** 1.2 - 1).max() < 0.15


def label_skew(task):
    """Mean total-variation distance between a client's label shares and the pooled ones."""
    shares = [np.bincount(task.data.client(i).y, minlength=10) for i in range(task.data.num_clients)]
    pooled = sum(shares) / sum(shares).sum()
    return np.mean([np.abs(s / s.sum() - pooled).sum() / 2 for s in shares])


def test_synthetic_clients_share_their_labels_only_if_iid():
    """With v_k and W_k of its own a client's examples crowd on few labels; identical clients have all."""
    assert label_skew(tasks.synthetic(iid=True)) < 0.2
    assert label_skew(tasks.synthetic(0.0, 0.0)) > 0.5


@pytest.mark.full
def test_synthetic_iid_clients_share_one_model():
    """A softmax model fitted to half of the clients is as good on the other half."""
    task = tasks.synthetic(iid=True)
    half = int(task.data.offsets[15])
    first, second = (jax.tree.map(lambda a, r=r: a[r], task.data.examples) for r in np.s_[:half, half:])
    params, step = task.init(jax.random.key(0)), jax.jit(jax.grad(task.loss))
    for _ in range(200):
        params = jax.tree.map(lambda p, g: p - 5.0 * g, params, step(params, first))
    assert float(task.metrics["accuracy"](params, second)) > 0.7


def test_synthetic_alpha_shifts_every_logit_alike():
    """W_k + u_k and b_k + u_k add u_k (1 + sum_j x_j) to all ten logits: the labels stay."""
    none, much = tasks.synthetic(alpha=0.0), tasks.synthetic(alpha=5.0)
    assert (none.data.examples.y == much.data.examples.y).mean() > 0.999


def test_synthetic_refuses_a_knob_that_would_do_nothing():
    with pytest.raises(InvalidInput, match="no meaning with iid"):
        tasks.synthetic(alpha=0.5, iid=True)


def test_synthetic_clients_know_the_labels_they_are_given_and_keep_their_inputs():
    """Client k of c = 3 has labels among k, k + 1, k + 2 mod 10; inputs and sizes are those without c."""
    task, free = tasks.synthetic(0.5, 0.5, 20, labels_per_client=3), tasks.synthetic(0.5, 0.5, 20)
    assert (task.data.counts == free.data.counts).all()
    np.testing.assert_array_equal(task.data.examples.x, free.data.examples.x)
    for k in range(20):
        allowed = {k % 10, (k + 1) % 10, (k + 2) % 10}
        mine, own = task.data.client(k).y, free.data.client(k).y
        assert set(mine.tolist()) <= allowed
        kept = np.isin(own, list(allowed))  # what the client's model already chose among them stays
        np.testing.assert_array_equal(mine[kept], own[kept])
    assert task.name == "synthetic-0.5-0.5-3labels"
    assert same_data(tasks.synthetic(labels_per_client=10), tasks.synthetic())


def test_synthetic_can_be_capped_and_given_another_model():
    task = tasks.synthetic(num_clients=50, max_examples=60, model="mlp")
    assert task.data.counts.max() == 48
    assert task.data.counts.min() >= 40
    shapes = [layer.weight.shape for layer in task.init(jax.random.key(0))]
    assert shapes == [(20, 60), (20, 20), (10, 20)]
    assert (tasks.synthetic(num_clients=5, max_examples=5).data.counts == 4).all()


def test_synthetic_defaults_give_the_data_of_the_first_release():
    """SHA-256 of x, y, counts and the held-out x, y, written down before the options were added."""
    for options, digest in [({}, "80e8d509a67d081c"), ({"iid": True}, "6018709bdab38cb3")]:
        task = tasks.synthetic(**options)
        parts = (*task.data.examples, task.data.counts, *task.test)
        assert hashlib.sha256(b"".join(a.tobytes() for a in parts)).hexdigest()[:16] == digest


@needs_mnist
def test_mnist_by_writer_is_the_original_by_its_writers():
    task = tasks.mnist_by_writer(DATA, model="softmax")
    assert task.data.num_clients == 539
    assert (task.data.counts.min(), task.data.counts.max()) == (19, 131)
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    test = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(task.data.examples.y).tolist() == train
    assert np.bincount(task.test.y).tolist() == test
    assert task.data.examples.x.shape == (60_000, 28, 28, 1)
    assert task.data.examples.x.dtype == np.float32
    assert (task.data.examples.x.min(), task.data.examples.x.max()) == (0, 1)
    writers = np.load(DATA / "mnist" / "mnist_writers.npz")["train_writer"]
    number = int(task.data.names[17].removeprefix("writer "))
    assert task.data.counts[17] == (writers == number).sum()


@needs_mnist
def test_mnist_draws_some_writers_by_seed():
    all_, some = tasks.mnist_by_writer(DATA, "mlp"), tasks.mnist_by_writer(DATA, "mlp", num_clients=5, seed=1)
    assert some.data.num_clients == 5
    for i, name in enumerate(some.data.names):
        j = all_.data.names.index(name)
        np.testing.assert_array_equal(some.data.client(i).x, all_.data.client(j).x)
        np.testing.assert_array_equal(some.data.client(i).y, all_.data.client(j).y)
    assert some.data.names != tasks.mnist_by_writer(DATA, "mlp", num_clients=5, seed=2).data.names


@needs_mnist
def test_mnist_refuses_a_changed_file(tmp_path):
    shutil.copytree(DATA / "mnist", tmp_path / "mnist", copy_function=shutil.copyfile)
    labels = tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz"
    labels.write_bytes(labels.read_bytes()[:-1])
    with pytest.raises(InvalidInput, match=r"t10k-labels-idx1-ubyte\.gz has SHA-256"):
        tasks.mnist_by_writer(tmp_path, "mlp")


def test_mnist_without_its_files_says_which_is_missing(tmp_path):
    with pytest.raises(InvalidInput, match=r"mnist_writers\.npz does not exist"):
        tasks.mnist_by_writer(tmp_path, "mlp")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digit", {}, "unknown task 'digit': did you mean 'digits'"),
        ("digits", {"num_client": 3}, "option of the task digits 'num_client': did you mean 'num_clients'"),
        ("digits", {"num_clients": "ten"}, "task digits: num_clients = 'ten' must be an integer"),
        ("digits", {"num_clients": True}, "task digits: num_clients = True must be an integer"),
        ("digits", {"num_clients": 2.0}, r"num_clients = 2\.0"),
        ("digits", {"partition": 3}, "partition = 3 must be"),
        ("digits", {"partition": "dirichle"}, "did you mean 'dirichlet'"),
        ("digits", {"partition": "pachinko"}, "needs the coarse labels"),
        ("digits", {"model": "mpl"}, "unknown model 'mpl': did you mean 'mlp'"),
        ("digits", {"model": 3}, "model = 3 must be one of mlp, softmax"),
        ("digits", {"model": Softmax(63, 10)}, "does not take examples of shape"),
        ("digits", {"model": Softmax(64, 9)}, "the task needs"),
        ("digits", {"num_clients": 1439}, "more than the 1438 examples"),
        ("digits", {"seed": -1}, "seed = -1"),
        ("regression", {"decay": float("nan")}, "decay = nan"),
        ("regression", {"num_clients": 0}, "num_clients = 0"),
        ("regression", {"client_variance": -0.1}, "client_variance"),
        ("synthetic", {"alpha": -1.0}, "alpha = -1"),
        ("synthetic", {"iid": 1}, "iid = 1 must be true or false"),
        ("synthetic", {"num_clients": 0}, "num_clients = 0"),
        ("synthetic", {"labels_per_client": 0}, "labels_per_client = 0"),
        ("synthetic", {"labels_per_client": 11}, "more than the 10 classes"),
        ("synthetic", {"labels_per_client": 3, "iid": True}, "labels_per_client = 3 has no meaning with iid"),
        ("synthetic", {"max_examples": 4}, "max_examples = 4 must be an integer of at least 5"),
        ("synthetic", {"model": Softmax(60, 9)}, "the task needs"),
        ("synthetic", {"model": "cnn"}, "unknown model 'cnn'"),
    ],
)
def test_bad_requests_end_in_one_line(name, options, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        build(name, **options)
    assert "\n" not in str(caught.value)


def test_whole_numbers_are_numbers():
    assert same_data(build("synthetic", alpha=1, beta=1), build("synthetic"))


@pytest.mark.full
def test_every_task_is_summarised_and_cited():
    files = [
        "voxels",
        "handwriting",
        "femnist",
        "femnist-autoencoder",
        "fashion-mnist",
        "cifar10",
        "cifar100",
    ]
    files += ["shakespeare", "next-word", "libsvm", "news", "newsgroups-minilm"]
    assert list(TASKS) == [*HERE[:3], "mnist", *HERE[3:], *files]
    for name, entry in TASKS.items():
        assert entry.summary
        assert entry.citation in BIBTEX
        if name in HERE:
            assert build(name).citation == entry.citation


def test_the_page_of_tasks_names_each():
    page = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()
    assert not [name for name in TASKS if f"`{name}`" not in page]


def test_every_bibtex_entry_carries_its_key_and_balances():
    for key, text in BIBTEX.items():
        assert text.split("{", 1)[1].startswith(f"{key},")
        assert text.count("{") == text.count("}")
        assert all(f" {field} " in text for field in ("title", "author", "year"))
