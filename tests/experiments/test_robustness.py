"""The study of robust reductions: its cases, rules on made-up accuracies, and a quick run."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fedsolve as fs
from experiments.attacks.robustness import study as robustness
from experiments.attacks.robustness.robustness_statements import (
    ALIKE,
    DIFFERENT,
    at,
    breaks,
    lost,
    more_harm,
    withstands,
)
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells
from fedsolve.studies.cells import Cell
from fedsolve.studies.reproduce import reproduce
from fedsolve.studies.runner import tables

STUDY = robustness.STUDY
NOISE = np.array([0.0, 0.002, -0.002, 0.001, -0.001])


def made_up(**accuracy):
    """Accuracy 0.9 everywhere, another on the problems named, such as `noise_10`; seeds differ a little."""
    cells = {}
    for name in STUDY.problems:
        key = name.replace(" %", "").replace("-", "_").replace(" ", "_").replace(",", "")
        last = accuracy.get(key, 0.9) + NOISE * (1 + (key != "none"))
        curve = np.stack([np.full(5, 0.1), last], axis=1)[None]
        metrics = {"test_accuracy": curve, "train_loss": np.ones((1, 5, 2)) * [2, 1]}
        sweep = SweepRecord(
            "mean", name, {"client_lr": (0.5,)}, STUDY.seeds, np.array([0, 40]), metrics,
            np.where(np.isnan(last), 40, -1)[None], Selection("train_loss", 1),
        )  # fmt: skip
        cells[name, "mean"] = Cell(sweep, None, None)
    return Cells(STUDY.problems, STUDY.seeds, cells)


def test_what_is_lost_is_paired_with_the_same_data_without_attackers():
    cells = made_up(noise_10=0.7, none_clients_differ=0.6, little_20_clients_differ=0.55, min_max_20=np.nan)
    np.testing.assert_allclose(lost(cells, "noise 10 %", "mean"), 20 - 100 * NOISE, atol=1e-9)
    np.testing.assert_allclose(lost(cells, at("little", 20, DIFFERENT), "mean").mean(), 5, atol=1e-9)
    assert np.isinf(lost(cells, "min-max 20 %", "mean")).all()


@pytest.mark.parametrize(
    ("ten", "forty", "verdict"),
    [
        (0.88, 0.87, "reproduced"),
        (0.88, 0.2, "partly"),
        (0.2, 0.3, "not reproduced"),
        (0.2, np.nan, "not reproduced"),
        (0.85, 0.85, "underpowered"),
    ],
)
def test_to_withstand_is_to_lose_less_than_the_margin(ten, forty, verdict):
    cells = made_up(noise_10=ten, noise_40=forty)
    found = withstands("mean", ["noise 10 %", "noise 40 %"])(cells)
    assert found.verdict == verdict
    if verdict == "partly":
        assert "1 of 2 (noise 10 %), the contrary in 1 (noise 40 %)" in found.reason
    contrary = {"reproduced": "not reproduced", "not reproduced": "reproduced"}.get(verdict, verdict)
    if contrary != "partly":
        assert {breaks(["mean"], f"noise {share} %")(cells).verdict for share in (10, 40)} == {contrary}


def test_more_harm_is_a_paired_difference():
    cells = made_up(noise_10=0.8, noise_20=0.7, noise_40=np.nan)
    for a, b, verdict in ((20, 10, "reproduced"), (10, 20, "not reproduced"), (40, 20, "reproduced")):
        assert more_harm(f"noise {a} %", f"noise {b} %", ["mean"])(cells).verdict == verdict
    assert more_harm("noise 10 %", "label flip 10 %", ["mean"])(cells).verdict == "reproduced"
    assert more_harm("label flip 10 %", "little 10 %", ["mean"])(cells).verdict == "underpowered"


def test_nothing_is_tuned_so_one_table_has_all_problems():
    found = tables(made_up(noise_10=0.8))
    assert list(found) == ["results"]
    assert len(found["results"].rows) == len(STUDY.problems)
    assert found["results"].rows[1] == ["noise 10 %", "80 ± 0.32 %"]


def test_every_case_is_what_its_name_says():
    assert len(STUDY.problems) == 1 + 6 * 3 + 1 + 3
    case = robustness.CASES["little 40 %"]
    assert (case.attack, case.attackers) == ("little", 12)
    colluding = case.method(fs.robust.Median())(0.5)
    assert isinstance(colluding.attack, fs.attacks.ALittleIsEnough)
    assert colluding.reduction.then == fs.robust.Median()
    few = robustness.CASES["noise 10 %"].method(None)(0.5)
    assert few.attackers.tolist() == [0, 1, 2, *[-1] * 9]
    assert few.reduction is None
    flipped, plain = (
        robustness.CASES[name].task(None, 3).data for name in ("label flip 20 %", at("", 0, ALIKE))
    )
    turned = [not np.array_equal(flipped.client(i).y, plain.client(i).y) for i in range(robustness.CLIENTS)]
    assert turned == [i < 6 for i in range(robustness.CLIENTS)]


@pytest.mark.full
def test_quick_run(tmp_path):
    made = reproduce("robustness", tmp_path, quick=True)
    assert json.loads((tmp_path / "results.json").read_text())["quick"]
    assert set(made.outcome.pictures) == {"overview", "shares"}
    assert len(list((tmp_path / "parts").iterdir())) == 3 * 2
