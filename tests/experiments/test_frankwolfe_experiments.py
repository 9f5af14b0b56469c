"""The Frank-Wolfe experiments: a tiny run of each, and their verdicts on made-up numbers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from fedsolve.experiments import frankwolfe, frankwolfe_figures, rates
from fedsolve.experiments.catalogue import reproduce
from fedsolve.experiments.fw_common import choose
from fedsolve.experiments.fw_problems import BALLS, halved, judged, mnist, projected, synthetic
from fedsolve.experiments.fw_tables import claims, wins
from fedsolve.experiments.fw_verdicts import by_order, by_slope, by_wins, slope, together

HERE = ("fw-nonconvex", "fw-participation", "fw-penalty", "fw-rates")


@pytest.mark.full
@pytest.mark.parametrize("name", HERE)
def test_quick_run_writes_everything(name, tmp_path):
    """`quick` needs no data folder: synthetic problems alone. A second call computes nothing: parts are kept."""
    made = reproduce(name, tmp_path, quick=True)
    if name == "fw-participation":
        before = {path: path.stat().st_mtime_ns for path in (tmp_path / "parts").iterdir()}
        reproduce(name, tmp_path, quick=True)
        assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "parts").iterdir()}
    found = json.loads((tmp_path / "results.json").read_text())
    assert "QUICK" in found["made_with"]
    assert found["claims"]
    assert found["deviations"]
    assert {c["verdict"] for c in found["claims"]} == {None}
    assert all((tmp_path / f"{key}.png").stat().st_size > 5000 for key in made.outcome.pictures)
    assert all((tmp_path / f"{key}.csv").exists() for key in made.outcome.tables)
    for gap in made.outcome.settings.get("gap of the solutions that give F*", {}).values():
        assert -1e-12 <= gap < 1e-6  # a certificate: F* is right to this


@pytest.mark.skipif("FEDSOLVE_DATA" not in os.environ, reason="FEDSOLVE_DATA is not set")
def test_digits_are_dealt_by_labels():
    """2,000 test digits, three labels a client, halved images."""
    task = mnist(200, small=True)(Path(os.environ["FEDSOLVE_DATA"]), 0, 10, False)
    assert task.data.num_clients == 10
    assert task.data.examples.x.shape[1:] == (14, 14, 1)
    assert len(task.test.y) == 2_000
    assert max(len(np.unique(task.data.client(i).y)) for i in range(10)) <= 3


def curves(loss, gap=None, accuracy=0.5):
    """What a contender leaves, one seed."""
    gap = loss if gap is None else gap
    return {
        "round": np.array([0, 1]), "loss": np.array([[9.0, loss]]), "gap": np.array([[9.0, gap]]),
        "accuracy": np.array([[0.1, accuracy]]), "tried": np.array([loss]), "chosen": np.array(0),
    }  # fmt: skip


def test_wins_count_cells_and_divergence_loses():
    found = {
        ("l2", "iid", "a"): {"FedFW": curves(1.0), "FedFWPlus": curves(3.0), "FedDR": curves(2.0)},
        ("l2", "iid", "b"): {"FedFW": curves(5.0), "FedFWPlus": curves(3.0), "FedDR": curves(2.0)},
        ("l2", "iid", "c"): {"FedFW": curves(5.0), "FedFWPlus": curves(3.0), "FedDR": curves(np.nan)},
    }
    assert wins(found, ["FedFW", "FedFWPlus"], "FedDR", "loss") == 2
    assert wins(found, ["FedFW"], "FedFWPlus", "loss") == 1


def test_claims_follow_the_numbers():
    """FedFW's family ahead everywhere agrees with Table 2; behind everywhere does not; accuracies never count."""
    study = frankwolfe.NONCONVEX

    def verdicts(ours, theirs):
        three = {"FedFW": curves(ours), "FedFWPlus": curves(ours), "FedDR": curves(theirs)}
        return [c.verdict for c in claims(study, dict.fromkeys(study.theirs, three))]

    assert verdicts(1.0, 2.0) == ["reproduced", "reproduced", "not reproduced", "not comparable"]
    assert verdicts(2.0, 1.0) == ["not reproduced", "not reproduced", "not reproduced", "not comparable"]


def sweep(values):
    """A panel: by the varied value, F and gap that stay at a number."""
    return {
        v: {"round": np.arange(3), "loss": np.full((1, 3), x), "gap": np.full((1, 3), x)}
        for v, x in values.items()
    }


def test_participation_and_penalty_verdicts():
    falls, mixed = {0.1: 3.0, 0.5: 2.0, 1.0: 1.0}, {0.1: 3.0, 0.5: 4.0, 1.0: 1.0}
    found = frankwolfe_figures.participation_claims(
        {"MCLR a": sweep(falls), "MCLR b": sweep(mixed), "DNN c": sweep(falls)}
    )
    assert [c.verdict for c in found] == ["partly", "partly", "reproduced", "reproduced", "not reproduced"]
    grows = {0.01: 1.0, 0.1: 2.0}
    assert frankwolfe_figures.penalty_claims({"a": sweep(grows)})[0].verdict == "reproduced"
    assert frankwolfe_figures.penalty_claims({"a": sweep(falls)})[0].verdict == "not reproduced"


@pytest.mark.parametrize(
    ("power", "verdict"), [(0.8, "reproduced"), (0.5, "reproduced"), (0.1, "not reproduced")]
)
def test_slopes_of_known_curves(power, verdict):
    t = np.arange(1, 10_001, 10)
    assert slope(t, 7.0 * t**-power, 100, 10_000) == pytest.approx(-power, abs=1e-9)
    line = {"round": t, "suboptimality": (7.0 * t**-power)[None]}
    assert by_slope(rates.fitted(line, 10_000), 1 / 2) == verdict


def test_an_optimum_that_is_reached_is_steep_enough():
    line = {"round": np.arange(1, 10_001, 10), "suboptimality": np.zeros((1, 1000))}
    assert rates.fitted(line, 10_000) == -np.inf
    assert by_slope(-np.inf, 1 / 2) == "reproduced"


def test_simple_rules():
    assert [by_wins(n, 8) for n in (9, 8, 7, 4, 3)] == ["reproduced"] * 2 + ["partly"] * 2 + [
        "not reproduced"
    ]
    assert [by_order(v) for v in ([1, 2, 3], [1, 3, 2], [3, 2, 1])] == [
        "reproduced",
        "partly",
        "not reproduced",
    ]
    assert together(["not reproduced", "reproduced"]) == "partly"
    assert choose([np.nan, 2.0, 1.0, np.inf]) == 2


@pytest.mark.full
def test_problems():
    image = np.arange(16.0).reshape(1, 4, 4, 1)
    np.testing.assert_array_equal(halved(image)[0, :, :, 0], [[2.5, 4.5], [10.5, 12.5]])
    import jax

    task = synthetic("mlp", 60)(None, 0, 4, False)
    start = projected(task, BALLS["l1"]).init(jax.random.key(0))
    assert sum(float(abs(leaf).sum()) for leaf in jax.tree.leaves(start)) == pytest.approx(10.0, rel=1e-5)
    assert judged(task, BALLS["l1"]).eval_examples is None
