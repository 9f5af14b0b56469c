"""docs/predict.md: programs of at most ten lines go from one's own table and from a PyTorch module to predictions."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "predict.md").read_text()
TABLE, LOADED, MODULE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def patients(rng, rows):
    """Ages and doses of a few sites, and who is ill: a line between them, with no noise."""
    table = pd.DataFrame(
        {"site": rng.integers(0, 4, rows), "age": rng.normal(size=rows), "dose": rng.normal(size=rows)}
    )
    return table.assign(ill=(table.age + 2 * table.dose > 0).astype(int))


def test_programs_and_the_page_are_short():
    for program in (TABLE, LOADED, MODULE):
        assert len([line for line in program.splitlines() if line]) <= 10
    assert len(PAGE.split()) <= 650


@pytest.mark.full
def test_from_a_table_of_ones_own_to_predictions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    new = patients(rng, 300)
    patients(rng, 400).to_csv("patients.csv", index=False)
    new.drop(columns="ill").to_csv("new.csv", index=False)
    names: dict = {}
    exec(TABLE + LOADED, names)
    assert np.mean(pd.read_csv("predicted.csv")["ill"] == new["ill"]) > 0.95
    weight, bias = names["later"].params
    by_hand = new[["age", "dose"]].to_numpy() @ np.asarray(weight) + float(bias) > 0
    np.testing.assert_array_equal(names["later"].predict(new[["age", "dose"]]), by_hand)


@pytest.mark.full
def test_a_module_trained_on_100_clients_predicts_after_loading(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(MODULE, names)
    x, y = (names["x"][1500:] / 16).astype(np.float32), names["y"][1500:]
    assert np.mean(names["labels"] == y) > 0.75
    with torch.no_grad():
        outputs = names["trained"](torch.tensor(x)).numpy()
    np.testing.assert_array_equal(names["labels"], outputs.argmax(1))
    np.testing.assert_allclose(names["result"].predict(x, scores=True), outputs, atol=1e-5)
    before = names["net"](torch.tensor(x)).detach().numpy()
    assert np.abs(before - outputs).max() > 0.1  # the module that was given stays as it was
