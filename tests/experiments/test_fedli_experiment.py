"""FedLi on convex losses: bounds and rules on made-up numbers, Remark 2, the theorems' condition, the problems."""

from __future__ import annotations

import numpy as np
import pytest

import fedsolve as fs
from experiments.fedli.fedli_convex import rules
from experiments.fedli.fedli_convex import study as fedli
from experiments.fedli.fedli_convex import theorems as fedli_theorems
from experiments.fedli.fedli_convex.problems import (
    KINDS,
    L2,
    STEPS,
    WIDTH,
    drawn,
    from_minimiser,
    problem,
    smoothness,
)
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells
from fedsolve.studies.cells import Cell
from fedsolve.studies.reproduce import reproduce
from tasks.small_files import DATA, needs

NAME = "a9a, IID clients"
ROUNDS = np.arange(41)


def made_up(**metrics):
    """One problem and method, five data sets that differ by a thousandth."""
    seeds = tuple(range(5))
    spread = (1 + 1e-3 * np.arange(5))[:, None]
    columns = {name: (spread * values)[None] for name, values in metrics.items()}
    columns["train_loss"] = np.ones_like(next(iter(columns.values())))
    sweep = SweepRecord(
        "m",
        NAME,
        {"eta_max": (1.0,)},
        seeds,
        ROUNDS,
        columns,
        np.full((1, 5), -1),
        Selection("train_loss", 1),
    )
    return Cells({NAME: fedli.PROBLEMS[NAME]}, seeds, {(NAME, "FedLiLS"): Cell(sweep, None, None)})


def test_one_rise_refutes_descent():
    fall = np.exp(-0.1 * ROUNDS)
    rule = rules.descends((NAME,), ("FedLiLS",))
    assert rule(made_up(suboptimality=fall)).verdict == "consistent"
    risen = fall + np.where(ROUNDS == 20, 1e-12, 0)
    assert (
        rule(made_up(suboptimality=np.maximum(risen, 1e-13 + 0 * fall))).verdict == "consistent"
    )  # rounding
    found = rule(made_up(suboptimality=np.where(ROUNDS >= 20, fall + 0.3, fall)))
    assert found.verdict == "refuted"
    assert "F rises in 5 of 200 rounds" in found.ours


def test_theorem_2_s_bound_is_judged_in_every_round():
    """(1 - eta mu K)^(T + 1) |w_0 - w*|^2 with eta = 0.7 / (L K), by hand; from w* it is 0."""
    base = 1 - 0.7 * L2 / (14 / 4 + L2)
    bound = base ** (ROUNDS + 1.0)
    rule = rules.theorem_2((NAME,), "FedLiLS", lambda name: "a9a")
    below = np.where(ROUNDS == 0, 1.0, 0.99 * bound)
    assert rule(made_up(squared_distance=below)).verdict == "consistent"
    assert rule(made_up(squared_distance=np.where(ROUNDS == 30, 1.02 * bound, below))).verdict == "refuted"
    assert rule(made_up(squared_distance=0.0 * below)).verdict == "consistent"
    assert rule(made_up(squared_distance=1e-6 * (ROUNDS > 0))).verdict == "refuted"


def test_theorem_1_s_bound():
    """|w_0 - w*|^2 / (min(R, K) T), R and K as printed below (15) with rho = eta_g = 1, by hand."""
    L, K = 14 / 4 + L2, STEPS
    eta, c = 0.7 / (L * K), 0.9
    r = eta * K * (2 - L * eta / (2 * (1 - c) * c) - eta * L * K / c)
    k = eta * K * (2 - 1 / c - eta * L * K / c)
    assert fedli_theorems.sublinear(L, K, 7, 3.0) == pytest.approx(3.0 / (min(r, k) * 7))
    rule = rules.theorem_1((NAME,), "FedLiLS", lambda name: "a9a")
    level = 1 / (min(r, k) * ROUNDS[-1])  # constant F - F* crosses the bound at the last round
    constant = {"squared_distance": np.ones(41), "suboptimality": 0.98 * level * np.ones(41)}
    assert rule(made_up(**constant)).verdict == "consistent"
    assert rule(made_up(**constant | {"suboptimality": 1.02 * level * np.ones(41)})).verdict == "refuted"


def test_a_rate_lasts_or_not():
    rule = rules.lasts((NAME,), "FedLiLS")
    straight = np.exp(-0.3 * ROUNDS)
    assert rule(made_up(suboptimality=straight)).verdict == "reproduced"
    assert rule(made_up(suboptimality=straight + 1e-2)).verdict == "not reproduced"
    assert (
        rule(made_up(suboptimality=1.0 - 1e-3 * ROUNDS)).verdict == "not reproduced"
    )  # it hardly falls at all


def test_gamma_and_the_price_of_a_search():
    adapts = rules.adapts((NAME,), "FedLiLS")
    assert adapts(made_up(gamma=0.5 * np.ones(41))).verdict == "reproduced"
    assert adapts(made_up(gamma=1.0 + np.ones(41))).verdict == "not reproduced"
    found = rules.searches((NAME,), ("FedLiLS",))(made_up(loss_evaluations=2.0 * STEPS * np.ones(41)))
    assert (found.verdict, "FedLiLS 2.00, at most 2.01" in found.ours) == ("not the paper's problem", True)


def test_remark_2_by_hand():
    """f1 = 3 x^3 - x^2 and f2 = x^2 - x^3 have slopes 7 and -1 at 1: steps 0.2 / 7 and 0.5; 1.15^3."""
    steps, met, after = fedli_theorems.remark_2()
    assert steps == pytest.approx([0.2 / 7, 0.5])
    assert (met, after) == ([True, True], pytest.approx(1.520875))
    assert rules.remark_2(made_up(gamma=ROUNDS)).verdict == "reproduced"


@pytest.mark.full
@pytest.mark.parametrize(("client", "eta", "to"), [(0, 0.2 / 7, 0.8), (1, 0.5, 1.5)])
def test_remark_2_steps_are_steps_of_the_line_search(client, eta, to):
    """Each client alone, its first trial at the stated step: Armijo accepts it at once."""
    a, b = fedli_theorems.CUBICS[client]
    task = fs.Task.from_arrays(lambda w, batch: a * w**3 + b * w**2, np.ones(()), [np.zeros((1, 1))])
    found = fs.run(fs.FedLiLS(eta_max=eta), task, rounds=1, local_steps=1, batch_size="full", dtype="float64")
    assert float(found.params) == pytest.approx(to)
    assert found.rounds["loss_evaluations"][0] == 1


@pytest.mark.full
def test_lemma_2_has_a_counter_example():
    """On x^2 / 2 a search from 1.9 refuses 1.9 and accepts 0.9 of it, below 2 (1 - c) / L = 1.8."""
    task = fs.Task.from_arrays(lambda w, batch: w**2 / 2, np.ones(()), [np.zeros((1, 1))])
    found = fs.run(fs.FedLiLS(eta_max=1.9), task, rounds=1, local_steps=1, batch_size="full", dtype="float64")
    assert found.rounds["client_step"][0] == pytest.approx(1.71)
    assert fedli_theorems.searched(1.9, 0.1, 0.9, 1.0) == pytest.approx(1.71)
    assert rules.lemma_2(made_up(gamma=ROUNDS)).verdict == "refuted"


def test_the_theorems_need_more_than_half_of_the_clients():
    for c in (0.1, 0.5, 1.0):
        assert not any(fedli_theorems.condition(c, eta, 1.0, 0.1, STEPS) for eta in np.logspace(-9, 0, 10))
    for smooth in (0.3, 1.4, 20.0):
        eta, c = fedli_theorems.constants(smooth, STEPS).values()
        assert fedli_theorems.condition(c, eta, smooth, 1.0, STEPS)
    assert rules.condition(made_up(gamma=ROUNDS)).verdict == "not reproduced"


@pytest.mark.full
def test_problems_are_dealt_as_said():
    """Identical clients are; unequal ones hold a label each; begun at w*, F is F* and w is w*."""
    same, unequal = (problem("made", kind, 0, None) for kind in ("identical", "unequal"))
    np.testing.assert_array_equal(same.data.client(0).x, same.data.client(7).x)
    assert sum(len(np.unique(unequal.data.client(i).y)) == 1 for i in range(20)) >= 19
    assert set(KINDS) == {"identical", "iid", "unequal"}
    assert not np.array_equal(drawn("made", 0, None).x, drawn("made", 1, None).x)
    begun = from_minimiser(problem("made", "iid", 0, None))
    found = fs.run(fs.FedAvg(1e-6), begun, rounds=1, local_steps=1, batch_size="full", dtype="float64")
    assert abs(found.metrics["suboptimality"][0]) < 1e-10
    assert found.metrics["squared_distance"][0] == 0
    assert same.data.client(0).x.shape == (64, WIDTH)
    assert smoothness("a9a") == 14 / 4 + L2


@pytest.mark.full
@needs("libsvm")
@pytest.mark.parametrize("dataset", ["a9a", "mushrooms"])
def test_no_row_is_longer_than_l_says(dataset):
    assert (drawn(dataset, 0, DATA).x.astype(float) ** 2).sum(axis=1).max() <= 4 * (smoothness(dataset) - L2)


@pytest.mark.full
def test_quick_run(tmp_path):
    """Made data, no files; an evaluation a step is logged beside the bound's distance."""
    made = reproduce("fedli-convex", tmp_path, quick=True)
    assert not made.outcome.claims
    assert set(made.outcome.pictures) == {"distance", "from_minimiser", "sampled"}
    for path in (tmp_path / "parts").iterdir():
        kept = np.load(path)
        assert (kept["metric loss_evaluations"][..., 1:] >= STEPS).all()
        assert (kept["metric squared_distance"] >= 0).all()
