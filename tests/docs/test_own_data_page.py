"""The programs of docs/own-data.md: from a CSV file with a rare class to a table with AUC over five seeds."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as theirs

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "own-data.md").read_text()
ARRAYS, CSV = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[:2]


@pytest.mark.full
def test_the_first_program_runs():
    names = {}
    exec(ARRAYS.replace("rounds=20", "rounds=1"), names)
    x, y = (np.concatenate(part) for part in zip(*names["clients"], strict=True))
    wanted = theirs.f1_score(y, x @ np.asarray(names["result"].params) > 0)
    assert names["result"].final("train_f1") == pytest.approx(wanted)


@pytest.mark.full
def test_a_table_of_auc_from_a_csv_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    age, bmi = draw.normal(60, 15, 300), draw.normal(27, 4, 300)
    ill = draw.random(300) < 1 / (1 + np.exp(3 - (age - 60) / 15))
    rows = np.stack([draw.integers(0, 4, 300), age, bmi, ill], axis=1)
    np.savetxt("patients.csv", rows, "%.6g", ",", header="hospital,age,bmi,ill", comments="")
    names = {}
    exec(CSV.replace("rounds=50", "rounds=3"), names)
    assert len([line for line in CSV.splitlines() if line and "import" not in line]) <= 10
    results, (x, y) = names["results"], names["task"].validation
    assert {len(values) for values in results.final("validation_auc").values()} == {5}
    params = results["FedAvg"][0].params
    exact = theirs.roc_auc_score(y, np.asarray(names["model"](params, x)))
    found = results["FedAvg"][0]
    assert abs(found.final("validation_auc") - exact) <= found.final("validation_auc_error") + 1e-5
    said = np.asarray(names["model"](params, x)) > 0
    assert found.final("validation_sensitivity") == pytest.approx(theirs.recall_score(y, said))
    table = names["results"].to_latex(metrics=["validation_auc", "validation_sensitivity"])
    assert table.count(r"\pm") >= 4
    assert "alidation" in table
