"""Next characters and next words: on small files of the same format, and on the real ones where they are."""

import gzip
import importlib
import importlib.util
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsolve.core.errors import InvalidInput
from fedsolve.tasks import (
    Examples,
    Softmax,
    WordAccuracy,
    build,
    check_sequences,
    next_word,
    shakespeare,
    windows,
)
from fedsolve.tasks.models.recurrent import LSTM
from tasks.small_files import DATA, needs, sha256

PLAYS = importlib.import_module("fedsolve.tasks.ready.shakespeare")
CHAT = importlib.import_module("fedsolve.tasks.ready.next_word")
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
    assert CHAT._numbers({"a": [["."] * 3, ["dog"] * 3, ["the"] * 4]}, 3) == {"the": 1, ".": 2, "dog": 3}
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
