"""The phase diagram: its data, grids alike for all methods of a kind, regret, its own rules and its predictor."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.client_drift.phase_diagram import predictor, problems
from experiments.client_drift.phase_diagram import study as phases
from experiments.client_drift.phase_diagram.regret import least_regret, regrets
from experiments.client_drift.phase_diagram.skew_rules import gains_more, unaffected
from experiments.feddua.methods import MeanOfTwo
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells
from fedsolve.studies.cells import Cell
from fedsolve.studies.reproduce import reproduce

SEEDS = phases.SEEDS
NOISE = 0.01 * np.random.default_rng(0).uniform(-1, 1, len(SEEDS))
FIRST = phases.CELLS[0]


def made_up(losses, diversity=2.0):
    """Problem -> method -> mean loss at the end of 15 deals, all of which begin with a loss of 10."""
    cells = {}
    for problem, methods in losses.items():
        for k, (method, end) in enumerate(methods.items()):
            one = np.asarray(end + np.roll(NOISE, k))[:, None]
            curve = np.concatenate([np.full_like(one, 10.0), one, one, one], axis=1)
            columns = {"train_loss": curve[None], "diversity": np.full((1, *curve.shape), diversity)}
            record = SweepRecord(
                method, "digits", {"client_lr": (0.1,)}, SEEDS, np.array([0, 10, 45, 50]), columns,
                np.full((1, len(SEEDS)), -1), Selection("train_loss", 1),
            )  # fmt: skip
            cells[problem, method] = Cell(record, None, None)
    return Cells(phases.STUDY.problems, SEEDS, cells)


def loss_of(cell):
    assert cell.published is not None
    return cell.published.metrics["train_loss"]


def test_regret_is_the_loss_over_the_best_one_s():
    """Of FedAvg 0.5 and FedAdam 0.6: 1.2; a method that diverged or has not learnt has endless regret."""
    losses = {
        cell: {"FedAvg": 0.5, "FedAdam": 0.6, "FedProx": np.nan, "SCAFFOLD": 10.0} for cell in phases.CELLS
    }
    cells = made_up(losses)
    found = regrets(cells, FIRST)
    assert found["FedAvg"] == (0, 0, 0)
    assert np.exp(found["FedAdam"].mean) == pytest.approx(1.2, rel=1e-2)
    assert found["FedProx"].mean == found["SCAFFOLD"].mean == np.inf
    caption, figure = phases.STUDY.pictures["regret"].draw(phases.STUDY, cells)
    assert {text.get_text() for text in figure.axes[0].texts} == {"1.00", "1.20", "div."}
    assert "deals and data sets. Seeds" in caption


@pytest.mark.parametrize(
    ("elsewhere", "verdict"), [(0.6, "reproduced"), (1.2, "not reproduced"), (0.748, "underpowered")]
)
def test_one_method_loses_little_everywhere(elsewhere, verdict):
    """FedAvg is best but in one cell, where its loss is 1.2, 2.4 and 1.496 times FedAdam's, against 1.5."""
    few = phases.CELLS[:12]
    losses = {cell: {"FedAvg": 0.5, "FedAdam": 5.0} for cell in few}
    losses[few[2]] = {"FedAvg": elsewhere, "FedAdam": 0.5}
    found = least_regret(few, 1.5)(made_up(losses))
    assert found.verdict == verdict
    assert f"({few[2]}), FedAdam" in found.ours
    assert "than every other on 12 of 12" in found.reason


@pytest.mark.parametrize(
    ("skewed", "verdict"),
    [(0.5, "reproduced"), (0.6, "not reproduced"), (0.4, "not reproduced"), (0.55, "underpowered")],
)
def test_a_loss_that_the_skew_does_not_affect(skewed, verdict):
    """0.5 where labels are hardly skewed: ratios of 1, 1.2, 0.8 and 1.1 against 1.1."""
    pairs = phases.SKEWS[:2]
    cells = made_up(
        {p: {"SCAFFOLD": end} for _, *two in pairs for p, end in zip(two, (skewed, 0.5), strict=True)}
    )
    for _, strong, _ in pairs:
        loss_of(cells.by_name[strong, "SCAFFOLD"])[0, :, 1:] += np.roll(NOISE, 3)[:, None]
    assert unaffected("SCAFFOLD", pairs, 1.1)(cells).verdict == verdict


def test_who_gains_more_with_all_clients():
    """FedAvg's loss is 2 times SCAFFOLD's with all clients, 1.6 times with a fifth: a ratio of 1.25, or its inverse."""
    pairs = phases.PARTICIPATIONS[:2]
    ends = {problem: 1.0 if "30 of 30" in problem else 0.8 for _, *two in pairs for problem in two}
    cells = made_up({p: {"FedAvg": end, "SCAFFOLD": 0.5} for p, end in ends.items()})
    found = gains_more("SCAFFOLD", "FedAvg", pairs)(cells)
    assert found.verdict == "reproduced"
    assert "alpha 0.05 1.25 [" in found.ours
    assert gains_more("FedAvg", "SCAFFOLD", pairs)(cells).verdict == "not reproduced"


def test_the_predictor_is_a_linear_regression_on_the_groups_that_it_is_not_judged_on():
    """Against normal equations solved for one method at a time, and choices made for one deal at a time."""
    rng = np.random.default_rng(1)
    logs = [rng.normal(size=(4, 3, 2)) for _ in range(3)]
    regret = [np.abs(rng.normal(size=(4, 3, 3)) + x[..., :1] * [1.0, -1.0, 0.0]) for x in logs]
    predicted, always = predictor.held_out(predictor.Groups(logs, regret))
    for k in range(3):
        rows = [
            (f, r)
            for i in range(3)
            if i != k
            for f, r in zip(logs[i].reshape(-1, 2), regret[i].reshape(-1, 3), strict=True)
        ]
        design = np.array([[1.0, *f] for f, _ in rows])
        known = np.array([r for _, r in rows])
        slopes = [np.linalg.solve(design.T @ design, design.T @ known[:, m]) for m in range(3)]
        for cell in range(4):
            taken = [
                regret[k][cell, deal][np.argmin([s @ [1.0, *logs[k][cell, deal]] for s in slopes])]
                for deal in range(3)
            ]
            assert predicted[k][cell] == pytest.approx(np.mean(taken), rel=1e-10)
            assert always[k][cell] == pytest.approx(
                regret[k][cell, :, known.mean(axis=0).argmin()].mean(), rel=1e-10
            )


@pytest.mark.parametrize(("told", "verdict"), [(True, "reproduced"), (False, "not reproduced")])
def test_a_log_that_tells_the_best_method_is_worth_its_regret(told, verdict):
    """SCAFFOLD's loss is a third or three times FedAvg's, by a diversity of 1 or 8, or of 2 in all cells."""
    groups = [phases.CELLS[i : i + 12] for i in (0, 12, 24)]
    ends = {p: (0.3, 0.9) if k % 3 else (0.9, 0.3) for k, p in enumerate(phases.CELLS)}
    cells = [
        made_up({p: {"FedAvg": a, "SCAFFOLD": b}}, (1.0 if a < b else 8.0) if told else 2.0).by_name
        for p, (a, b) in ends.items()
    ]
    for one in cells:  # the loss tells nothing
        for cell in one.values():
            loss_of(cell)[..., 1] = 5.0
    every = Cells(phases.STUDY.problems, SEEDS, {key: cell for one in cells for key, cell in one.items()})
    found = predictor.predicts(groups, ("FedAvg", "SCAFFOLD"), 1.05)(every)
    assert found.verdict == verdict
    assert f"predicted {'1 ' if told else '1.44'}" in found.ours
    assert "one method everywhere 1.44" in found.ours
    assert "drawn at random 1.73, the best of the 2 in each cell 1;" in found.ours


def test_data_of_one_scale():
    """Mean |x|^2 is 10, features have mean 0; a deal gives each client as many, and a seed its own."""
    for x, y in (problems.tumours(), problems.mixture()):
        assert np.square(x).sum(axis=1).mean() == pytest.approx(10, rel=1e-5)
        assert np.abs(x.mean(axis=0)).max() < 1e-5
        assert len(x) == len(y)
    task = problems.dealt("mixture", 0.05, 3)
    sizes = {len(task.data.client(i).y) for i in range(30)}
    assert sizes == {50}
    assert (task.data.client(0).y != problems.dealt("mixture", 0.05, 4).data.client(0).y).any()
    assert task.test is None


def test_grids_are_alike():
    """One range of client rates for all; methods without a server rate have nothing else."""
    assert all(method.grid["client_lr"] == phases.CLIENT_LR for method in phases.METHODS.values())
    assert [name for name, method in phases.METHODS.items() if len(method.grid) == 1] == [
        "FedDuAdagrad",
        "FedDuAdam",
    ]
    assert isinstance(phases.METHODS["FedDuAdam"].make(client_lr=0.1), MeanOfTwo)
    assert not set(problems.TUNED_ON) & set(SEEDS)


@pytest.mark.full
def test_quick_run(tmp_path):
    made = reproduce("phase-diagram", tmp_path, quick=True)
    assert set(made.outcome.pictures) == {"regret", *(f"regret-{d}" for d in problems.DATA_SETS)}
    assert not made.outcome.claims
