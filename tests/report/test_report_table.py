from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedsolve.core.errors import InvalidInput
from fedsolve.report.table import human_bytes, result_columns, result_rows, result_table
from fedsolve.results.columns import dumps
from fedsolve.results.history import History

ROUNDS = {"round": [1, 2], "bytes_up": [600_000, 650_000], "bytes_down": [500, 400], "dropped": [0, 3]}


def run(label: str = "FedAvg", seed: int = 0, **changes: Any) -> History:
    evaluations = {
        "round": [0, 1, 2], "seconds": [0.0, 1.0, 2.0], "train_loss": [2.0, 0.5, 0.25],
        "test_accuracy": [0.1, 0.95, 0.85],
    }  # fmt: skip
    evaluations = {
        k: np.array(v) for k, v in (evaluations | changes.pop("evaluations", {})).items() if v is not None
    }
    rounds = {k: np.array(v) for k, v in (ROUNDS | changes.pop("rounds", {})).items()}
    return History(label, "digits", {"seed": seed}, evaluations, rounds, 12.345, 1.0, **changes)


def printed(histories: list[History], **options: Any) -> str:
    buffer = io.StringIO()
    Console(file=buffer, width=200).print(result_table(histories, **options).rich())
    return buffer.getvalue()


def test_rows_are_plain_numbers():
    (row,) = result_rows([run()])
    assert row == {
        "method": "FedAvg", "task": "digits", "seed": 0, "final_test_accuracy": 0.85,
        "best_test_accuracy": 0.95, "final_train_loss": 0.25,
        "bytes_up": 1_250_000, "bytes_down": 900, "dropped": 3, "seconds": 12.345, "compile_seconds": 1.0,
    }  # fmt: skip
    assert json.loads(dumps(row)) == row


def test_cells_have_units_and_the_target_is_a_parameter():
    shown = printed([run()], target=0.96)
    for cell in ("85.00", "95.00", "0.2500", "1.25 MB", "900 B", "12 s", "Rounds to 96 %", " - "):
        assert cell in shown
    assert "Rounds to" not in printed([run()])


def test_dropped_updates_show_only_when_there_are_any():
    clean = run(rounds={"dropped": [0, 0]})
    assert "Dropped" not in printed([clean])
    assert "Dropped" in printed([clean, run("FedAdam")])


def test_without_accuracy_the_columns_are_losses():
    losses = run(evaluations={"test_accuracy": None, "test_loss": [2.0, 0.4, 0.6]})
    (row,) = result_rows([losses])
    assert (row["final_test_loss"], row["best_test_loss"]) == (0.6, 0.4)
    assert "rounds_to_target" not in row
    keys = [c.key for c in result_columns([losses])]
    assert keys[1:4] == ["final_test_loss", "best_test_loss", "final_train_loss"]
    assert result_rows([losses], target=0.5)[0]["rounds_to_target"] == 1
    assert "accuracy" not in printed([losses])


def test_only_a_training_loss_is_shown_once():
    keys = [c.key for c in result_columns([run(evaluations={"test_accuracy": None})])]
    assert keys[1:3] == ["final_train_loss", "best_train_loss"]
    assert keys.count("final_train_loss") == 1


def test_a_diverged_run_says_so_and_a_missing_metric_is_a_dash():
    diverged = run(
        "A", evaluations={"test_accuracy": [0.1, 0.2, np.nan], "train_loss": [1.0, np.nan, np.nan]}
    )
    missing = run("B", evaluations={"test_accuracy": None})
    rows = result_rows([diverged, missing])
    assert rows[0]["best_test_accuracy"] == 0.2
    assert rows[1]["final_test_accuracy"] is None
    lines = printed([diverged, missing]).splitlines()
    assert next(line for line in lines if line.startswith(" A ")).count("diverged") == 2
    assert next(line for line in lines if line.startswith(" B ")).count(" - ") == 2


def test_seeds_of_one_method_are_one_row_of_means_and_deviations():
    """Finals 0.85 and 0.75: mean 0.80, deviation 0.1/sqrt 2; 90 % after 1 and after 2 rounds; bytes are means."""
    other = run(seed=1, evaluations={"test_accuracy": [0.1, 0.2, 0.75]}, rounds={"bytes_up": [0, 0]})
    rows = result_rows([run(), run("X"), other], target=0.7)
    assert [(r["method"], r["seed"]) for r in rows] == [("FedAvg", "0, 1"), ("X", 0)]
    assert rows[0]["final_test_accuracy"] == pytest.approx(0.8)
    assert rows[0]["deviations"]["final_test_accuracy"] == pytest.approx(0.1 / 2**0.5)
    assert (rows[0]["bytes_up"], rows[0]["seeds"]) == (625_000, 2)
    shown = printed([run(), run("X"), other], target=0.7)
    for cell in ("80.0 ± 7.1", "1.50 ± 0.71", "0.25 ± 0", "625 kB", "(n - 1) over 2 seeds"):
        assert cell in shown
    assert "±" not in printed([run(), run("X")])
    lost = run(seed=1, evaluations={"test_accuracy": [0.1, 0.2, np.nan]})
    (row,) = result_rows([run(), lost], target=0.9)
    assert (np.isnan(row["final_test_accuracy"]), row["rounds_to_target"]) == (True, None)


def test_the_users_own_metrics_have_columns_and_can_be_chosen():
    """AUC and F1 of the test set, not the bound of the AUC, not the training set's; of seven the first five."""
    own = {
        "test_auc": [0.5, 0.7, 0.75],
        "test_auc_error": [0.1] * 3,
        "test_f1": [0.2] * 3,
        "train_auc": [0.9] * 3,
    }
    other = {name: [x / 2 for x in values] for name, values in own.items()}
    runs = [run(evaluations=own), run(seed=1, evaluations=other), run("X")]
    shown = printed(runs)
    assert [c.title for c in result_columns(runs)][4:6] == ["Final test AUC", "Final test F1"]
    assert "0.56 ± 0.27" in shown  # 0.75 and 0.375
    assert next(line for line in shown.splitlines() if line.startswith(" X ")).count(" - ") == 2
    many = run(evaluations={f"test_m{i}": [0.0] * 3 for i in range(7)})
    assert [c.key for c in result_columns([many]) if "_m" in c.key] == [f"final_test_m{i}" for i in range(5)]
    chosen = result_columns(runs, 0.7, ["auc", "train_loss"])
    assert [c.title for c in chosen] == ["Method", "Final test AUC", "Final training loss", "Rounds to 0.7"]
    assert result_rows(runs[:1], 0.7, ["auc"])[0]["rounds_to_target"] == 1
    held = run(evaluations={"test_accuracy": None, "validation_f1": [0.1] * 3, "validation_loss": [1.0] * 3})
    assert "final_validation_f1" in result_rows([held])[0]
    for wrong, words in (
        (["test_au"], "unknown metric .test_au.: did you mean"),
        ("auc", "must be a list"),
        ([], "must be"),
    ):
        with pytest.raises(InvalidInput, match=words):
            result_rows(runs, metrics=wrong)


def test_runs_of_one_seed_are_told_apart():
    assert [r["method"] for r in result_rows([run(), run()])] == ["FedAvg (run 1)", "FedAvg (run 2)"]


def test_markup_in_a_name_is_shown_as_written():
    assert "[red]Fed[/red]" in printed([run("[red]Fed[/red]")])


def test_no_histories_are_refused():
    with pytest.raises(InvalidInput, match="at least one"):
        result_rows([])


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (999_600, "1.00 MB"),
        (123_456_789, "123 MB"),
        (2e15, "2.00 PB"),
    ],
)
def test_human_bytes(count, shown):
    assert human_bytes(count) == shown
