from __future__ import annotations

import json
import math

import numpy as np
import pytest

from fedsolve.core.errors import InvalidInput
from fedsolve.results.columns import as_column, write_jsonl
from fedsolve.results.history import History


def short(**columns) -> History:
    """Evaluations at rounds 0, 2, 4 of a run of four rounds."""
    base = {"round": [0, 2, 4], "seconds": [0.0, 1.0, 2.0], "train_loss": [3.0, 1.0, 2.0]}
    rounds = {"round": [1, 2, 3, 4], "bytes_up": [10, 20, 30, 40], "bytes_down": [1, 1, 1, 1]}
    evaluations, per_round = ({k: np.array(v) for k, v in c.items()} for c in (base | columns, rounds))
    return History("m", "t", {"seed": 3}, evaluations, per_round)


def test_json_round_trip_is_exact_with_nonfinite_numbers():
    awkward = np.array([0.1 + 0.2, np.nan, -np.inf])
    h = History(
        "método</script>", "t", {"clip": math.inf, "mu": 0.1 + 0.2, "tau": None, "nesterov": True, "seed": 1},
        {"round": np.arange(3), "seconds": np.array([0.0, 1.0, 2.0]), "train_loss": awkward},
        {"round": np.array([1, 2]), "server_lr": np.array([np.inf, 5e-324])},
        math.nan, 1.5, ("a note",),
    )  # fmt: skip
    text = h.to_json()
    json.loads(text, parse_constant=pytest.fail)  # standard JSON has no NaN or Infinity token
    again = History.from_json(text)
    for part in ("evaluations", "rounds"):
        mine, theirs = getattr(h, part), getattr(again, part)
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert mine[name].dtype == theirs[name].dtype
            assert mine[name].tobytes() == theirs[name].tobytes()
    assert again.settings == h.settings
    assert again.settings["nesterov"] is True
    assert (again.label, again.notes, again.compile_seconds) == (h.label, ("a note",), 1.5)
    assert math.isnan(again.seconds)
    assert again == h


def test_whole_valued_floats_stay_floats_and_float32_is_kept_exactly():
    h = short(train_loss=np.array([1, 2, 0.1], np.float32))
    again = History.from_json(h.to_json())
    assert again.evaluations["seconds"].dtype == np.float64
    assert again.evaluations["round"].dtype == np.int64
    assert again.evaluations["train_loss"][2] == float(np.float32(0.1))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"label": "a"}', '{"evaluations": 1, "rounds": 2}'])
def test_other_json_is_refused(text):
    with pytest.raises(InvalidInput, match="not the JSON of a history"):
        History.from_json(text)


def test_final_and_best_follow_the_direction_of_the_metric():
    h = short(
        test_accuracy=[0.1, 0.8, 0.7], test_accuracy_averaged=[0.1, 0.9, 0.2], test_loss=[2.0, np.nan, 3.0]
    )
    assert (h.final("test_accuracy"), h.best("test_accuracy")) == (0.7, 0.8)
    assert h.best("test_accuracy_averaged") == 0.9
    assert (h.final("train_loss"), h.best("train_loss")) == (2.0, 1.0)
    assert h.best("test_loss") == 2.0
    assert math.isnan(short(test_loss=[np.nan] * 3).best("test_loss"))
    assert short(test_accuracy=[-np.inf, np.nan, 0.5]).best("test_accuracy") == 0.5


def test_rounds_to_counts_rounds_not_evaluations():
    """Evaluated at 0, 2, 4: 0.8 is first reached at the evaluation of index 1, which is round 2."""
    h = short(test_accuracy=[np.nan, 0.8, 0.7])
    assert h.rounds_to("test_accuracy", 0.8) == 2
    assert h.rounds_to("test_accuracy", 0.81) is None
    assert h.rounds_to("train_loss", 2.0) == 2
    assert h.rounds_to("train_loss", 3.0) == 0
    assert h.rounds_to("train_loss", 0.5) is None


def test_megabytes_are_of_the_finished_rounds():
    """After 0, 2 and 4 rounds: 0, 10 + 20 + 2 and 100 + 4 bytes."""
    np.testing.assert_allclose(short().megabytes(), [0, 32e-6, 104e-6])


def test_per_round_columns_at_the_evaluations():
    np.testing.assert_array_equal(short().at_evaluations("bytes_up"), [np.nan, 20, 40])
    assert short().total("bytes_up") == 100
    assert short().total("dropped") == 0


def test_unknown_metric_names_the_nearest():
    with pytest.raises(InvalidInput, match="did you mean 'train_loss'"):
        short().final("train_los")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"test_loss": [1.0, 2.0]}, "'test_loss' has shape"),
        ({"test_loss": [[1.0], [2.0], [3.0]]}, "'test_loss' has shape"),
        ({"test_loss": ["a", "b", "c"]}, "numbers only"),
        ({"round": [], "seconds": [], "train_loss": []}, "no evaluation"),
    ],
)
def test_bad_columns_are_refused(columns, message):
    with pytest.raises(InvalidInput, match=message):
        short(**columns)


def test_a_history_needs_its_columns():
    with pytest.raises(InvalidInput, match="no column 'train_loss'"):
        History("m", "t", {}, {"round": np.arange(2), "seconds": np.arange(2.0)}, {"round": np.arange(1)})


def test_json_lines_round_trip(tmp_path):
    columns = {
        "round": np.array([0, 5]),
        "train_loss": np.array([0.1 + 0.2, np.nan]),
        "x": np.array([np.inf, 1.0]),
    }
    path = write_jsonl(tmp_path / "run" / "metrics.jsonl", columns)
    assert path.read_text().count("\n") == 2
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [list(row) for row in rows] == [list(columns)] * 2
    for name, values in columns.items():
        again = as_column([row[name] for row in rows])
        assert again.dtype == values.dtype
        assert again.tobytes() == values.tobytes()
    assert [p.name for p in path.parent.iterdir()] == ["metrics.jsonl"]  # no temporary file stays


def test_json_lines_without_rows(tmp_path):
    assert write_jsonl(tmp_path / "m.jsonl", {"round": np.zeros(0)}).read_text() == ""
