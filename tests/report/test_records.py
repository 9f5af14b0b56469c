"""A result as people hold it: data frame, CSV, LaTeX, one line, and what a notebook shows."""

from __future__ import annotations

import csv
import sys
import types
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from fedsolve.core.errors import InvalidInput
from fedsolve.engine.results import Result
from fedsolve.report.plots import curves
from fedsolve.report.records import Records
from fedsolve.results.history import History


def run(label="FedAvg", seed=0, **more):
    evaluations = {
        "round": [0, 2, 4],
        "seconds": [0, 0.1, 0.2],
        "train_loss": [2.0, 0.1 + 0.2, np.nan],
        **more,
    }
    return History(label, "digits", {"seed": seed}, evaluations, {"round": [1, 2, 3, 4], "bytes_up": [9] * 4})


class Two(Records):
    histories = (run(), run("A & B", 3, test_accuracy=[0.1, 0.5, 0.75]))


def test_a_csv_file_reads_back_exactly(tmp_path):
    rows = list(csv.DictReader(Two().to_csv(tmp_path / "new" / "all.csv").open(newline="")))
    assert list(rows[0]) == ["method", "seed", "round", "seconds", "train_loss", "test_accuracy"]
    assert [(r["method"], r["seed"], r["round"]) for r in rows[2:4]] == [
        ("FedAvg", "0", "4"),
        ("A & B", "3", "0"),
    ]
    np.testing.assert_array_equal([float(r["train_loss"]) for r in rows], [2.0, 0.1 + 0.2, np.nan] * 2)
    np.testing.assert_array_equal([float(r["test_accuracy"]) for r in rows], [*[np.nan] * 3, 0.1, 0.5, 0.75])
    rounds = list(csv.DictReader(Two().to_csv(tmp_path / "rounds.csv", "rounds").open(newline="")))
    assert [r["bytes_up"] for r in rounds] == ["9"] * 8


def test_a_frame_is_of_the_library_that_is_there(monkeypatch):
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidInput, match="needs pandas or polars: pip install pandas"):
        Two().frame()
    for name in ("polars", "pandas"):  # with both it is pandas
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(DataFrame=lambda c, n=name: (n, c)))
        kind, columns = Two().frame("rounds")
        assert kind == name
        assert columns["round"].tolist() == [1, 2, 3, 4] * 2
    with pytest.raises(InvalidInput, match="part of a history 'round'"):
        Two().frame("round")


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_real_frames(name, monkeypatch):
    library = pytest.importorskip(name)
    if name == "polars":
        monkeypatch.setitem(sys.modules, "pandas", None)
    table = Two().frame()
    assert isinstance(table, library.DataFrame)
    assert list(table["seed"]) == [0, 0, 0, 3, 3, 3]


def test_latex_has_the_cells_of_the_table_and_escapes_them():
    lines = Two().to_latex().splitlines()
    assert lines[0] == r"\begin{tabular}{l" + "r" * (lines[2].count(" & ")) + "}"
    assert r"Final test accuracy (\%)" in lines[2]
    assert lines[4].startswith("FedAvg & - & - & diverged")
    assert lines[5].startswith(r"A \& B & 75.00 & 75.00 & diverged & 36 B")
    assert all(line.endswith(r"\\") for line in (lines[2], *lines[4:6]))


def test_a_result_is_one_line_and_a_notebook_shows_its_table():
    result = Result(np.zeros(100_000), run("<b>", test_accuracy=[0.1, 0.5, 0.75]))
    assert repr(result) == "Result(<b> on digits: 4 rounds, test accuracy 75.0 %, training loss nan)"
    assert repr(result.history) == repr(result).replace("Result", "History")
    shown = ET.fromstring(result._repr_html_())  # well-formed: the name is no markup
    cells = [cell.text for cell in shown.iter("td")]
    assert cells[:2] == ["<b>", "75.00"]
    (line,) = shown.iter("polyline")
    ys = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    assert ys == pytest.approx(
        [22, 2 + 20 * 0.25 / 0.65, 2], abs=0.06
    )  # up is better; 24 high, a margin of 2
    assert "http" not in result._repr_html_()


def test_a_notebook_shows_a_figure():
    pytest.importorskip("matplotlib")
    assert curves([run()], "train_loss")._repr_png_().startswith(b"\x89PNG")
