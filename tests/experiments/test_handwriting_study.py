"""Handwriting in norm balls: what is measured, the balls, statements on made-up ends, a quick run."""

from __future__ import annotations

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

import fedsolve as fs
from experiments.fco.constrained_handwriting.study import BALLS, L2, NAMES, STUDY, Ball
from fedsolve.geometry.diagnostics import Point
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells
from fedsolve.studies.cells import Cell
from fedsolve.studies.reproduce import reproduce

ROUNDS = np.arange(0, 501, 20)
NO, YES = "not reproduced", "reproduced"


def made_up(loss, accuracy, share, outside=0.0):
    """Cells of each method's loss, accuracy, share of the radius and violation; seeds differ by 1e-4."""
    noise = 1e-4 * np.arange(len(STUDY.seeds))[:, None]
    one = np.ones((len(STUDY.seeds), len(ROUNDS)))
    learns = np.where(ROUNDS < 200, 2.0, 1.0)
    cells = {}
    for name in STUDY.problems:
        for m in NAMES:
            metrics = {
                "train_loss": loss[m] * learns + noise, "test_accuracy": accuracy[m] / learns - noise,
                "norm_share": share * one, "infeasibility": outside * one,
            }  # fmt: skip
            sweep = SweepRecord(
                m, name, {"client_lr": (0.1,), "server_lr": (1.0,)}, STUDY.seeds, ROUNDS,
                {key: values[None] for key, values in metrics.items()}, np.full((1, len(STUDY.seeds)), -1),
                Selection("train_loss", 100),
            )  # fmt: skip
            cells[name, m] = Cell(sweep, None, None)
    return Cells(STUDY.problems, STUDY.seeds, cells)


def verdicts(loss, accuracy, **others):
    """Of all problems, of Figure 13, and of Figures 14 and 15."""
    of_all, *rest = (
        one.decide(
            made_up(*(dict(zip(NAMES, row, strict=True)) for row in (loss, accuracy)), **others)
        ).verdict
        for one in STUDY.statements
    )
    return of_all, rest[:3], rest[3:]


def test_what_the_paper_says_is_reproduced_by_such_ends():
    """Of Figure 13 the other three are alike, of Figures 14 and 15 FedDualAvg-OSP is apart."""
    held, figure_13, _ = verdicts((0.3, 0.4, 0.402, 0.4), (0.9, 0.8, 0.8, 0.8), share=1.0)
    assert (held, figure_13) == ("consistent", [YES] * 3)
    _, _, others = verdicts((0.3, 0.5, 0.402, 0.4), (0.85, 0.9, 0.8, 0.8), share=1.0)
    assert others == [YES] * 9


def test_other_ends_contradict_it():
    held, figure_13, others = verdicts((0.5, 0.3, 0.5, 0.4), (0.6, 0.6, 0.8, 0.9), share=0.5, outside=1.0)
    assert (held, figure_13) == ("refuted", [NO, NO, NO])
    assert others == [NO] * 9


def test_rounding_is_no_violation():
    assert (
        verdicts((0.3,) * 4, (0.9,) * 4, share=1.0, outside=1e-5)[0] == "consistent"
    )  # of a radius of 10 or more


def test_a_ball_is_on_the_weights_alone_and_holds_the_start():
    for ball in BALLS.values():
        assert [part.pattern for part in ball.psi.parts] == ["weight"]
    tight = Ball(2, 3.0)
    usual = fs.tasks.digits(10, model="softmax")
    shapes = jax.eval_shape(usual.init, jax.random.key(0))
    twos = jax.tree.map(lambda leaf: np.full(leaf.shape, 2.0, np.float32), shapes)
    task = tight.around(replace(usual, init=lambda key: twos))
    start = task.init(jax.random.key(0))
    assert np.linalg.norm(start.weight) == pytest.approx(3.0)
    assert (np.asarray(start.bias) == 2).all()
    found = {
        name: float(x)
        for one in task.diagnostics
        for name, x in one(Point(start, np.float32(0), None)).items()
    }
    assert found["norm_share"] == pytest.approx(1.0)
    assert found["infeasibility"] == pytest.approx(0, abs=1e-6)


def test_methods_have_at_least_the_same_grid_on_a_problem():
    for name in STUDY.problems:
        grids = [method.grid for method in STUDY.methods_of(name).values()]
        assert all(set(grids[0][axis]) <= set(grid[axis]) for grid in grids for axis in grids[0])
    assert list(STUDY.methods_of(L2)) == list(NAMES)


@pytest.mark.full
def test_quick_run(tmp_path):
    made = reproduce("constrained-handwriting", tmp_path, quick=True)
    assert not made.outcome.claims
    assert "QUICK" in json.loads((tmp_path / "results.json").read_text())["made_with"]
    assert sorted(path.stem for path in tmp_path.glob("*.png")) == ["grid", "l1", "l2", "network"]
