"""Rates of Frank-Wolfe: the theorems' bounds by hand, the problems' constants in NumPy, the rules on made-up runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.fedfw import theorems
from experiments.fedfw.fw_rates import rate_problems as problems
from experiments.fedfw.fw_rates import rate_rules as rules
from experiments.fedfw.fw_rates import study as fw_rates
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells
from fedsolve.studies.cells import Cell

ROOT2 = np.sqrt(2)
C = theorems.Constants(2.0, 2, 2.0, dual=2 * ROOT2, gradient=2 * ROOT2, variance=1.0, height=1.0)
"""L = n = D = 2, so G = 4 sqrt 2."""


def test_bounds_by_hand():
    """At rounds where the roots are whole, lambda_0 = 1."""
    assert theorems.theorem_1(C, 1.0, 4.0) == pytest.approx(12 + 4 * ROOT2 * (2 * ROOT2 + 2 * np.sqrt(3)))
    part = 16 / 4.5 + (16 + 8 * (2 * ROOT2 + 4)) / np.sqrt(4.5)
    assert theorems.theorem_1_partial(C, 1.0, 0.5, 6.0) == pytest.approx(part)
    apart = 2 * ROOT2 + np.sqrt(1.75)
    assert theorems.theorem_2(C, 1.0, 8.0) == pytest.approx(3.5 + (4 * ROOT2 + 4) * apart)
    gap = 5 / 7 ** (1 / 3) + 4 / 7 ** (2 / 3)
    found = theorems.theorem_2(C, 1.0, 14.0, 0.5)
    assert found == pytest.approx(gap + (4 * ROOT2 + 4) * (2 * ROOT2 + np.sqrt(gap / 2)))
    c = 9 ** (1 / 3) * (648 + 18 * np.sqrt(680))
    late = c / 2 + 4 * ROOT2 * (2 + 2 * np.sqrt(2 * c) / 8 ** (5 / 12))
    assert theorems.theorem_3(C, 1.0, 1.0) == pytest.approx(late)


def test_what_is_known_of_a_data_set():
    """F* and the norms at x* on the sphere, where (A + mu) x = b with |x| = 1/2, mu by bisection in NumPy."""
    task = problems.convex(None, 0, "sphere")
    optimum, known = task.diagnostics[1].optimum, task.diagnostics[2].numbers
    clients = [task.data.client(i) for i in range(problems.CLIENTS)]
    x, y = np.concatenate([e.x for e in clients]), np.concatenate([e.y for e in clients])
    a, b = 2 * x.T @ x / len(y), 2 * x.T @ y / len(y)
    assert np.linalg.norm(np.linalg.solve(a, b)) == pytest.approx(1.0)
    low, high = 0.0, 1e3
    for _ in range(200):
        mu = (low + high) / 2
        w = np.linalg.solve(a + mu * np.eye(len(b)), b)
        low, high = (mu, high) if np.linalg.norm(w) > 0.5 else (low, mu)
    assert optimum == pytest.approx(np.mean((x @ w - y) ** 2), abs=1e-12)
    g = np.stack([2 * e.x.T @ (e.x @ w - e.y) / len(e.y) for e in clients]) / len(clients)
    assert known["gradient"] == pytest.approx(np.sqrt((g**2).sum()), rel=1e-6)
    assert known["dual"] == pytest.approx(np.sqrt(((g - g.mean(0)) ** 2).sum()), rel=1e-6)
    each = 2 * (clients[0].x @ w - clients[0].y)[:, None] * clients[0].x
    assert ((each - each.mean(0)) ** 2).sum(1).mean() / problems.BATCH < known["variance"]


def made_up(metric, problem_names, curve):
    """Runs of one method, five data sets a hundredth apart, with C as what is known."""
    seeds = tuple(range(5))
    rounds = np.array([0, *np.unique(np.geomspace(1, 10_000, 60).astype(int))])
    known = {name: np.full((1, 5, len(rounds)), getattr(C, name)) for name in problems.KNOWN}
    cells = {}
    for name in problem_names:
        values = np.stack([(1 + 0.01 * s) * curve(np.maximum(rounds, 1), s) for s in seeds])[None]
        sweep = SweepRecord(
            "m", name, {"lam0": (1.0,)}, seeds, rounds, {metric: values, **known}, np.full((1, 5), -1),
            Selection(metric, 1),
        )  # fmt: skip
        cells[name, "FedFW"] = Cell(sweep, None, None)
    return Cells({name: fw_rates.PROBLEMS[name] for name in problem_names}, seeds, cells)


def test_a_bound_holds_until_the_mean_lies_above():
    rule = rules.within(("sphere",), {"FedFW": lambda c, rounds: 0 * c.smooth + 1 / np.sqrt(rounds)})
    for factor, verdict in ((0.9, "consistent"), (1.2, "refuted")):
        found = rule(made_up("suboptimality", ["sphere"], lambda t, s, by=factor: by / np.sqrt(t)))
        assert found.verdict == verdict
        assert "(FedFW on sphere)" in found.ours


def test_the_smallest_gap_of_each_length():
    """The bound is 1 / T; the runs' smallest gaps are factor / 10,000, whatever their T."""
    series = {"not convex, l2 ball": {rounds: f"not convex, l2 ball, T = {rounds}" for rounds in (100, 1000)}}
    rule = rules.least(series, {"FedFW": lambda c, rounds: c.smooth / 2 / rounds})
    names = list(series["not convex, l2 ball"].values())
    for factor, verdict in ((9.0, "consistent"), (11.0, "refuted")):
        cells = made_up("gap", names, lambda t, s, by=factor: by / t)
        assert rule(cells).verdict == verdict


@pytest.mark.parametrize(
    ("power", "verdict"),
    [
        (lambda s: 0.8, "reproduced"),
        (lambda s: 0.3, "not reproduced"),
        (lambda s: 0.3 + 0.09 * s, "underpowered"),
    ],
)
def test_slopes_of_known_curves(power, verdict):
    cells = made_up("suboptimality", ["sphere"], lambda t, s: t ** -power(s))
    assert rules.falls(("sphere",), "FedFW", 0.5)(cells).verdict == verdict


def test_nearer_is_judged_by_the_ratio():
    """A tenth on each data set, whose F - F* differ by orders of magnitude: the difference alone would tell nothing."""
    cells = made_up("suboptimality", ["sphere"], lambda t, s: 10.0 ** (3 * s) / t)
    (cell,) = cells.by_name.values()
    metrics = {**cell.published.metrics, "suboptimality": cell.published.metrics["suboptimality"] / 10}
    ahead = Cell(replace(cell.published, metrics=metrics), None, None)
    cells = replace(cells, by_name={**cells.by_name, ("sphere", "FedFWPlus"): ahead})
    assert rules.nearer(("sphere",), "FedFWPlus", ("FedFW",))(cells).verdict == "reproduced"
    assert rules.nearer(("sphere",), "FedFW", ("FedFWPlus",))(cells).verdict == "not reproduced"


def test_an_optimum_that_is_reached_is_steep():
    assert rules.slope(np.arange(0, 10_001, 10), np.zeros(1001)) == -np.inf
