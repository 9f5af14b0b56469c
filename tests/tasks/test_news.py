"""Tags of newsgroup posts: on a small file of the same format, and on the real one where it is."""

import jax
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.errors import InvalidInput
from fedsolve.tasks import Affine, build, news
from tasks.small_files import DATA, needs, write

GROUPS = np.array(["comp.sys.mac", "sci.med", "rec.autos", "sci.space.misc"])
TAGS = ["autos", "comp", "mac", "med", "misc", "rec", "sci", "space", "sys"]
FILE = "20news_by_author.npz"


@pytest.fixture
def posts(tmp_path, monkeypatch):
    """60 posts of 12 words by 8 authors, the last third for the test; post 3 has no words."""
    rng = np.random.default_rng(0)
    table = rng.integers(0, 5, (60, 12)) * (rng.random((60, 12)) < 0.4 * np.linspace(1, 2, 12))
    table[3] = 0
    rows, columns = np.nonzero(table)
    return write(
        monkeypatch,
        tmp_path,
        "news",
        indptr=np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=60))]).astype(np.int32),
        indices=columns.astype(np.uint16),
        counts=table[rows, columns].astype(np.uint8),
        vocab=np.array([f"w{i}" for i in range(12)]),
        label=rng.integers(0, 4, 60).astype(np.uint8),
        author=np.minimum(rng.integers(0, 11, 60), 7).astype(np.int16),
        is_test=np.arange(60) >= 40,
        groups=GROUPS,
    ), table


def expected(folder, table, rows, words):
    """Word shares and tags by loops."""
    z = np.load(folder / FILE)
    x = np.array([[table[r, w] / max(table[r].sum(), 1) for w in words] for r in rows])
    y = [[int(tag in GROUPS[z["label"][r]].split(".")) for tag in TAGS] for r in rows]
    return x.astype(np.float32), np.array(y)


def test_a_client_is_an_author_with_enough_training_posts(posts):
    folder, table = posts
    z = np.load(folder / FILE)
    for least in (1, 4, 6):
        task = news(folder, least, 12)
        training = [np.flatnonzero((z["author"] == a) & ~z["is_test"]) for a in range(8)]
        kept = [rows for rows in training if len(rows) >= least]
        assert task.data.counts.tolist() == [len(rows) for rows in kept]
        assert task.data.names == tuple(f"author {z['author'][rows[0]]}" for rows in kept)
        for i, rows in enumerate(kept):
            x, y = expected(folder, table, rows, range(12))
            np.testing.assert_allclose(task.data.client(i).x, x, rtol=1e-6)
            np.testing.assert_array_equal(task.data.client(i).y, y)
        x, y = expected(folder, table, np.arange(40, 60), range(12))
        np.testing.assert_allclose(task.test.x, x, rtol=1e-6)
        np.testing.assert_array_equal(task.test.y, y)
    assert (task.test.x.dtype, task.test.y.dtype) == (np.float32, np.int32)
    assert (task.batch_size, task.epochs) == (10, 1)


def test_the_vocabulary_is_the_words_in_the_most_training_posts_and_others_count_in_the_total(posts):
    folder, table = posts
    often = sorted(range(12), key=lambda w: (-(table[:40, w] > 0).sum(), w))[:5]
    task = news(folder, vocabulary=5)
    x, _ = expected(folder, table, np.arange(40, 60), sorted(often))
    np.testing.assert_allclose(task.test.x, x, rtol=1e-6)
    assert (task.test.x.sum(1) < 1).any()
    assert sorted(often) != list(range(5))


def test_authors_are_drawn_by_seed(posts):
    some = news(posts[0], 1, num_clients=3, vocabulary=12, seed=2)
    assert some.data.names == news(posts[0], 1, num_clients=3, vocabulary=12, seed=2).data.names
    assert len({news(posts[0], 1, num_clients=3, vocabulary=12, seed=s).data.names for s in range(6)}) > 1
    assert len(some.test.y) == 20


@pytest.mark.full
def test_uneven_clients_take_the_steps_of_numpy(posts):
    """Two rounds of FedAvg in float64, full batches; loss, recall and accuracy at the end."""
    task = news(posts[0], 2, 12)
    assert len(set(task.data.counts.tolist())) > 1
    found = fs.run(fs.FedAvg(3.0), task, rounds=2, batch_size=60, dtype="float64", eval_every=2)
    w, b = np.zeros((9, 12)), np.zeros(9)

    def sigmoid(x):
        return 1 / (1 + np.exp(-(x @ w.T + b)))

    for _ in range(2):
        dw, db = 0, 0
        for i, n in enumerate(task.data.counts):
            part = task.data.client(i)
            residual = (sigmoid(part.x.astype(np.float64)) - part.y) / n
            share = n / task.data.num_examples
            dw, db = dw + share * residual.T @ part.x, db + share * residual.sum(0)
        w, b = w - 3 * dw, b - 3 * db
    np.testing.assert_allclose(found.params.weight, w, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(found.params.bias, b, rtol=1e-10)
    p, y = sigmoid(task.test.x.astype(np.float64)), task.test.y
    loss = -(y * np.log(p) + (1 - y) * np.log(1 - p)).sum(1).mean()
    assert found.metrics["test_loss"][-1] == pytest.approx(loss, rel=1e-10)
    best = np.argsort(-p, axis=1, kind="stable")[:, :5]
    recall = (np.take_along_axis(y, best, 1).sum(1) / y.sum(1)).mean()
    assert found.metrics["test_recall_at_5"][-1] == pytest.approx(recall, rel=1e-6)
    members = np.array([[tag in group.split(".") for tag in TAGS] for group in GROUPS])
    likelihood = np.stack([np.where(own, p, 1 - p).prod(1) for own in members], 1)
    right = (members[likelihood.argmax(1)] == y).all(1).mean()
    assert found.metrics["test_accuracy"][-1] == pytest.approx(right, rel=1e-6)


@pytest.mark.full
def test_the_gradient_is_that_of_finite_differences(posts):
    task = news(posts[0], 2, 12)
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        at = Affine(rng.standard_normal((9, 12)), rng.standard_normal(9))
        way = Affine(rng.standard_normal((9, 12)), rng.standard_normal(9))
        batch = type(task.test)(task.test.x.astype(np.float64), task.test.y)

        def along(t):
            return float(task.loss(Affine(at.weight + t * way.weight, at.bias + t * way.bias), batch))

        slope = jax.grad(task.loss)(Affine(*map(jax.numpy.asarray, at)), batch)
        found = float((slope.weight * way.weight).sum() + slope.bias @ way.bias)
        assert found == pytest.approx((along(1e-5) - along(-1e-5)) / 2e-5, rel=1e-7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary": 13}, "vocabulary = 13 of 12 words"),
        ({"vocabulary": 0}, "vocabulary = 0"),
        ({"min_posts": 0}, "min_posts = 0"),
        ({"min_posts": 100}, r"min_posts = 100, no author has more than \d+: give fewer"),
        ({"num_clients": 9}, r"num_clients = 9 of \d groups"),
        ({"num_client": 3}, "did you mean 'num_clients'"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_bad_options_end_in_one_line(posts, options, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        build("news", data_dir=posts[0], **{"vocabulary": 12, **options})
    assert "\n" not in str(caught.value)


@needs(FILE)
def test_the_real_file_has_its_authors_and_tags():
    task = news(DATA)
    assert (task.data.num_clients, task.data.num_examples, len(task.test.y)) == (390, 3_749, 7_532)
    assert task.data.examples.x.nbytes + task.test.x.nbytes < 100e6
    assert task.test.y.shape[1] == 33
    each = np.unique(task.test.y, axis=0).sum(1)
    assert (len(each), each.min(), each.max()) == (20, 2, 5)
    assert task.test.x.sum(1).max() <= 1 + 1e-6


@needs(FILE)
@pytest.mark.full
def test_fedadam_learns_the_tags():
    result = fs.run(
        fs.FedAdam(20.0, server_lr=0.3), news(DATA), rounds=60, clients_per_round=10, eval_every=60
    )
    assert result.metrics["test_recall_at_5"][-1] > 0.45
