"""Callbacks: what they see, a clean end, the best model, and that a resumed run ends as an undisturbed one."""

from __future__ import annotations

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.results.callbacks import EarlyStopping, Evaluated, KeepBest
from harness import squares_of_leaf as loss

RNG = np.random.default_rng(0)
CLIENTS = [fs.Examples(RNG.normal(size=(8, 3)), RNG.normal(size=8)) for _ in range(4)]


TASK = fs.Task.from_arrays(loss, {"w": np.zeros(3)}, CLIENTS, batch_size=4)


def run(rounds=12, **options):
    return fs.run(
        fs.FedAvg(0.3), TASK, **({"rounds": rounds, "eval_every": 2, "clients_per_round": 2} | options)
    )


def stops_at(values, patience):
    """By hand: the first evaluation at which the last `patience` ones are no better than the best before them."""
    for k in range(patience, len(values)):
        if min(values[k - patience + 1 : k + 1]) >= min(values[: k - patience + 1]):
            return k
    return None


@pytest.mark.gate("2")
@pytest.mark.parametrize("patience", [1, 2, 3])
def test_a_run_ends_where_the_metric_has_not_become_better(patience):
    whole = run(40)
    stop = stops_at(whole.metrics["train_loss"], patience)
    assert stop is not None
    ended = run(40, callbacks=[EarlyStopping("train_loss", patience)])
    assert ended.metrics["round"][-1] == 2 * stop == len(ended.rounds["round"])
    np.testing.assert_array_equal(ended.metrics["train_loss"], whole.metrics["train_loss"][: stop + 1])
    assert f"ended after round {2 * stop} of 40: train_loss was no better than" in ended.notes[-1]


def test_accuracy_counts_upwards_and_nan_is_never_better():
    def at(values, name):
        columns = {"round": np.arange(len(values)), name: np.array(values)}
        return Evaluated("m", 0, 9, columns, lambda: None, lambda: None)

    rising = [0.1, 0.2, 0.3, np.nan]
    assert EarlyStopping("test_accuracy", 2)(at(rising, "test_accuracy")) is None
    assert EarlyStopping("test_accuracy", 1)(at([0.2, 0.2], "test_accuracy")) is not None
    assert EarlyStopping("test_accuracy", 1)(at(rising, "test_accuracy")) is not None
    assert EarlyStopping("test_loss", 2)(at(rising, "test_loss")) is not None
    assert EarlyStopping("test_accuracy", 2, min_delta=0.15)(at(rising[:3], "test_accuracy")) is None
    assert EarlyStopping("test_accuracy", 2, min_delta=0.5)(at(rising[:3], "test_accuracy")) is not None


def test_the_best_result_is_kept(tmp_path):
    seen = []

    def see(at):
        seen.append((at.metrics["train_loss"][-1], np.asarray(at.result().params["w"])))

    result = run(callbacks=[see, KeepBest("train_loss", tmp_path / "new" / "best")])
    assert [len(result.metrics["round"]), seen[0][1].tolist()] == [7, [0, 0, 0]]
    best = int(np.argmin([value for value, _ in seen]))
    kept = fs.load(tmp_path / "new" / "best", TASK)
    np.testing.assert_array_equal(kept.params["w"], seen[best][1])
    np.testing.assert_array_equal(kept.metrics["train_loss"], result.metrics["train_loss"][: best + 1])
    assert not np.array_equal(kept.params["w"], result.params["w"])


def test_a_resumed_run_ends_as_an_undisturbed_one(tmp_path):
    stop = [EarlyStopping("train_loss", 1)]
    whole = run(40, callbacks=stop)
    run(2, out=tmp_path / "run", callbacks=stop)
    for _ in range(2):  # the second time it is over already
        again = run(40, out=tmp_path / "run", resume=True, callbacks=stop)
        np.testing.assert_array_equal(again.params["w"], whole.params["w"])
        assert again.history.notes == whole.history.notes


def test_words_at_the_last_round_end_nothing():
    assert run(2, callbacks=[lambda at: "enough" if at.round == at.rounds else None]).history.notes == ()


@pytest.mark.parametrize(
    ("callbacks", "words"),
    [
        (3, "callbacks = 3 must be a list of functions"),
        ([3], "callbacks: 3 must be a function"),
        ([lambda at: True], "a callback returned True: return None to continue, or a string"),
        (
            [EarlyStopping("train_los", 2)],
            "unknown metric of a callback 'train_los': did you mean 'train_loss'",
        ),
        ([EarlyStopping("validation_loss", 2)], r"no validation_loss for a callback: .* give task\.hold_out"),
    ],
)
def test_what_cannot_be_is_refused(callbacks, words):
    with pytest.raises(fs.InvalidInput, match=words):
        run(callbacks=callbacks)


def test_numbers_out_of_range():
    with pytest.raises(fs.InvalidInput, match="patience = 0"):
        EarlyStopping("train_loss", 0)
    with pytest.raises(fs.InvalidInput, match="min_delta = -1"):
        EarlyStopping("train_loss", 1, min_delta=-1)


@pytest.mark.parametrize(
    ("metric", "values", "saved"),
    [
        ("train_loss", [1.0, 0.5, 0.5, 0.6, 0.4, 0.4], [0, 1, 4]),
        ("test_accuracy", [0.1, 0.3, 0.3, 0.2], [0, 1]),
        ("train_loss", [1.0, float("inf"), 1.0], [0]),
    ],
)
def test_of_equal_evaluations_the_first_is_kept(tmp_path, metric, values, saved):
    """As `EarlyStopping` names the first: a tie saves nothing anew."""
    kept = []

    class Saved:
        def save(self, folder):
            kept.append(folder)

    for k in range(len(values)):
        before = len(kept)
        seen = {"round": np.arange(k + 1), metric: np.array(values[: k + 1])}
        KeepBest(metric, tmp_path)(Evaluated("x", k, 9, seen, Saved, None))
        assert (len(kept) > before) == (k in saved)
