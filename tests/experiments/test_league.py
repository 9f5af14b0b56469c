"""The league: its methods' defaults are those of the library, and its own rules on made-up numbers."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr
from scipy.stats import t as student

from experiments.comparisons.composite_league import study as league
from experiments.comparisons.composite_league.composite_problems import COMPOSITES, LOW_RANK, SPARSE
from experiments.comparisons.tuning_free_league.statements import POPULAR, fails_nowhere, untuned
from experiments.comparisons.tuning_free_league.study import (
    ALIKE,
    DEFAULTS,
    GIVEN,
    METHODS,
    RANGES,
    SEEDS,
    STUDY,
    TUNING_SEED,
)
from experiments.fedopt import axis_rules as rules
from experiments.fedopt.axes import along, along_axes, edges
from fedsolve.config.build import build
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells, Problem, Study
from fedsolve.studies.cells import Cell, ends, rank_correlation
from fedsolve.studies.experiment import fixed
from fedsolve.studies.pictures import Maps
from fedsolve.studies.reproduce import reproduce


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_first_setting_is_the_documented_default(name):
    method = METHODS[name]
    given = GIVEN.get(name, {}) | ({} if name in ALIKE else {"weighting": "examples"})
    assert repr(method.make(**method.published)) == repr(build(name, given))
    assert all(RANGES[axis][0] <= value < RANGES[axis][1] for axis, value in DEFAULTS[name].items())


def test_its_size():
    assert len(STUDY.problems) >= 12
    assert len(METHODS) == 20
    assert len(SEEDS) == 5
    assert TUNING_SEED not in SEEDS
    assert {len(values) for m in METHODS.values() for values in m.grid.values()} == {30}
    assert {problem.select for problem in STUDY.problems.values()} == {"validation_loss"}
    assert {problem.metric.partition("_")[0] for problem in STUDY.problems.values()} == {"test"}
    assert set(POPULAR) < set(METHODS)


def made_up(ends):
    """Cells of one seed, from method -> (default's, tuned) losses by problem; all start at 1."""
    problem = Problem("p", "small", lambda data_dir: None, {"rounds": 4}, metric="train_loss")

    def sweep(end):
        lost = np.array([[-1 if np.isfinite(end) else 2]])
        metrics = {"train_loss": np.array([[[1.0, end]]])}
        return SweepRecord(
            "m", "p", {"a": (1,)}, (0,), np.array([0, 4]), metrics, lost, Selection("train_loss", 1)
        )

    cells = {
        (str(i), m): Cell(sweep(default), sweep(tuned), sweep(tuned))
        for m, pairs in ends.items()
        for i, (default, tuned) in enumerate(pairs)
    }
    return Cells({str(i): problem for i in range(2)}, (0,), cells)


def test_a_method_fails_where_it_diverges_or_rises():
    cells = made_up(
        {
            "good": [(0.5, 0.1), (1.0, 0.1)],
            "rises": [(1.1, 0.1), (0.5, 0.1)],
            "lost": [(np.nan, 0.1), (0.5, 0.1)],
        }
    )
    assert fails_nowhere("good")(cells).verdict == "consistent"
    assert fails_nowhere("rises")(cells).verdict == fails_nowhere("lost")(cells).verdict == "refuted"
    assert fails_nowhere("good")(cells).ours.endswith(
        "on none of 2 problems; the others on as many: rises 1, lost 1"
    )


def test_one_method_untuned_among_others_tuned():
    cells = made_up({"a": [(0.5, 0.1)] * 2, "b": [(0.9, 0.2)] * 2, "c": [(0.9, 0.3)] * 2})
    assert untuned("a")(cells).mean.tolist() == [3, 1, 2]
    assert untuned("c")(cells).mean.tolist() == [1, 2, 3]


@pytest.mark.full
def test_quick_run(tmp_path):
    made = reproduce("tuning-free-league", tmp_path, quick=True)
    found = json.loads((tmp_path / "results.json").read_text())
    assert "QUICK" in found["made_with"]
    assert not found["claims"]
    assert all((tmp_path / f"{key}.png").stat().st_size > 2000 for key in made.outcome.pictures)


# The composite league: penalties and methods by problem, ranks and counts by what is found, on made-up numbers.

COMPOSITE_SEEDS = league.SEEDS


def made_up_composite(f1, rank):
    """Cells in which methods end at an F1 score on every sparse problem and at a rank on every problem of matrices."""

    def sweep(**ends):
        metrics = {name: np.full((1, len(COMPOSITE_SEEDS), 2), end) for name, end in ends.items()}
        return SweepRecord(
            "m",
            "p",
            {},
            COMPOSITE_SEEDS,
            np.array([0, 4]),
            metrics,
            np.full((1, 5), -1),
            Selection("objective", 1),
        )

    cells = {(p, m): Cell(sweep(f1=end), None, None) for p in SPARSE for m, end in f1.items()}
    cells |= {(p, m): Cell(sweep(rank=end), None, None) for p in LOW_RANK for m, end in rank.items()}
    return Cells(league.STUDY.problems, COMPOSITE_SEEDS, cells)


def test_all_methods_have_the_same_draws_and_their_problem_s_penalty():
    for name, one in COMPOSITES.items():
        made = league.methods(name)
        averages = {label: made.pop(label) for label in league.AVERAGES}
        (axis,) = {repr(method.grid) for method in made.values()}
        assert axis.startswith("{'client_lr, server_lr': ((0.1, 1.0), ")
        (axis,) = {repr(method.grid) for method in averages.values()}
        assert axis.startswith("{'gamma, mu': ((10.0, 0.1), ")
        for method in averages.values():
            one_pair = method.make(**{"gamma, mu": (5.0, 0.2)})
            assert (one_pair.gamma, one_pair.mu, repr(one_pair.psi)) == (5.0, 0.2, repr(one.penalty(1.0)))
        setting = {"client_lr, server_lr": (0.02, 3.0)}
        built = {label: method.make(**setting) for label, method in made.items()}
        assert repr(built["FedMiDOSP"].psi) == repr(built["FedDR"].psi) == repr(one.penalty(1.0))
        assert repr(built["SCAFFOLD+FedMiDOSP"].inner) == repr(built["FedMiDOSP"])
        assert repr(built["FedMiD"].psi) == repr(one.penalty(0.5))  # it applies it twice
        assert (built["FedDR"].eta, built["FedDR"].local.lr) == (3.0, 0.02)
    assert {len(method.grid["client_lr, server_lr"]) for method in made.values()} == {30}
    assert league.TUNING_SEED not in COMPOSITE_SEEDS


def test_ranks_by_what_is_found_of_the_truth():
    """A rank that is too low is as far off as one too high; a run that diverged is last."""
    cells = made_up_composite({"a": 1.0, "b": 0.9, "c": np.nan}, {"a": 2.0, "b": 1.0, "c": 0.0})
    found = league.recovered(cells)
    assert found.by_problem[:, : len(SPARSE)].T.tolist() == [[1, 2, 3]] * len(SPARSE)
    assert found.by_problem[:, len(SPARSE) :].T.tolist() == [[2.5, 1, 2.5]]


def test_one_data_set_refutes_that_all_is_found():
    cells = made_up_composite({"a": 1.0, "b": 0.98}, {"a": 1.0, "b": 1.0})
    found = league.finds_all("a")(cells)
    assert (found.verdict, found.ours) == ("consistent", "of 20 supports and 5 ranks: a 20 and 5, b 0 and 5")
    cells.by_name["low rank III", "a"].published.metrics["rank"][0, 3, -1] = 2
    assert league.finds_all("a")(cells).verdict == "refuted"


@pytest.mark.full
def test_composite_quick_run(tmp_path):
    made = reproduce("composite-league", tmp_path, quick=True)
    assert "QUICK" in json.loads((tmp_path / "results.json").read_text())["made_with"]
    assert all((tmp_path / f"{key}.png").stat().st_size > 2000 for key in made.outcome.pictures)


# Grids on several seeds along one axis, and the rules on them, on made-up numbers.

AXIS_SEEDS = (0, 1, 2, 3, 4)
NOISE = np.array([1.02, 0.98, 1.01, 0.99, 1.0])
RATES, TAUS = (0.1, 1.0, 10.0), (0.0, 1e-3, 1e-1)
PROBLEM = Problem(
    "made up", "", lambda folder: None, {"rounds": 2}, metric="train_loss", select="train_loss:1"
)


def grid_of(losses, metric="train_loss", seeds=AXIS_SEEDS):
    """A sweep over client_lr and tau: losses by (rate, tau) at the end, times the seeds' noise; inf diverged."""
    losses = np.array([[losses[r, t] for t in TAUS] for r in RATES], float).reshape(-1, 1)
    end = losses * NOISE[: len(seeds)]
    curve = np.stack([np.full_like(end, 50.0), end], axis=-1)
    return SweepRecord(
        "m", "p", {"client_lr": RATES, "tau": TAUS}, seeds, np.array([0, 2]), {metric: curve, "train_loss": curve},
        np.where(np.isfinite(end), -1, 1), Selection("train_loss", 1),
    )  # fmt: skip


def cells(metric="train_loss", **methods):
    """Methods whose best loss at each tau is given: at the middle rate, twice that at the others."""
    by_name = {}
    for name, best in methods.items():
        losses = {(r, t): b * (1 if r == 1.0 else 2) for r, (t, b) in itertools.product(RATES, best.items())}
        by_name["p", name] = Cell(None, grid_of(losses, metric), None)
    return Cells({"p": replace(PROBLEM, metric=metric)}, AXIS_SEEDS, by_name)


def taus(*best):
    return dict(zip(TAUS, best, strict=True))


def test_along_an_axis_the_others_are_tuned_by_the_mean_over_seeds():
    found = cells(a=taus(3.0, 2.0, np.inf))
    reached = along(found, "p", "a", "tau")
    assert reached.values == TAUS[:2]  # at the last all diverged
    np.testing.assert_allclose(reached.ends, np.outer([3.0, 2.0], NOISE))
    assert reached.settings == ({"client_lr": 1.0},) * 2
    assert along(found, "p", "a", "tau", (1e-4, 1.0)).values == (1e-3,)
    assert edges(found, "p", "a", "tau") == ""
    losses = {(r, t): 1 / r for r in RATES for t in TAUS}
    at_edge = replace(found, by_name={("p", "a"): Cell(None, grid_of(losses), None)})
    assert edges(at_edge, "p", "a", "tau", (0, 1e-3)) == "a's best client_lr at tau 0, 0.001"


def test_a_sweep_at_a_value():
    grid = grid_of({(r, t): 10 * r + t for r in RATES for t in TAUS})
    at = fixed(grid, tau=1e-3, other=5)
    assert at.grid == {"client_lr": RATES}
    np.testing.assert_allclose(ends(at, "train_loss", 1), np.outer([1.001, 10.001, 100.001], NOISE))
    assert at.best_settings == {"client_lr": 0.1}


def test_what_explodes_has_no_end():
    grid = grid_of({(r, t): 601.0 if r == 10 else 1.0 for r in RATES for t in TAUS})
    lost = np.isnan(ends(grid, "train_loss", 1)).all(axis=1)
    assert lost.tolist() == [False] * 6 + [True] * 3


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ((1, 1.5, 1), (1, 1, 1.9), "reproduced"),
        ((1, 1.5, 1), (1, 1, 2.2), "partly"),
        ((1, 3, 1), (1, 1, 3), "not reproduced"),
    ],
)
def test_flat(a, b, verdict):
    found = rules.flat("p", ("a", "b"), "tau", 2.0)(cells(a=taus(*a), b=taus(*b)))
    assert found.verdict == verdict
    assert not found.provisional


def test_flat_is_undecided_where_the_interval_holds_the_bar():
    found = cells(a=taus(1.0, 2.0, 1.0))
    grid = found.by_name["p", "a"].grid
    grid.metrics["train_loss"][4, :, 1] *= [1.2, 0.8, 1.1, 0.9, 1.0]
    told = rules.flat("p", ("a",), "tau", 2.0)(found)
    assert told.verdict == "underpowered"
    logs = np.log(2 * np.array([1.2, 0.8, 1.1, 0.9, 1.0]))  # by hand: Student's interval of the logarithm
    half = student.ppf(0.975, 4) * logs.std(ddof=1) / np.sqrt(5)
    ends_ = np.exp([logs.mean(), logs.mean() - half, logs.mean() + half])
    assert "a {:.3g} [{:.3g}, {:.3g}]".format(*ends_) in told.ours


def test_flatter():
    found = cells(a=taus(1, 1.2, 1), b=taus(1, 3, 1))
    pair = ("a", "tau", None), ("b", "tau", None)
    assert rules.flatter("p", [pair])(found).verdict == "reproduced"
    assert rules.flatter("p", [pair[::-1]])(found).verdict == "not reproduced"
    assert rules.flatter("p", [pair, pair[::-1]])(found).verdict == "partly"


@pytest.mark.parametrize(("at_zero", "verdict"), [(1.0, "reproduced"), (1.3, "not reproduced")])
def test_nearly_best_of_losses(at_zero, verdict):
    assert (
        rules.nearly_best("p", ("a",), "tau", 0.0, 1.1)(cells(a=taus(at_zero, 1.0, 5.0))).verdict == verdict
    )


def test_nearly_best_of_accuracies_is_by_the_largest():
    found = cells("test_accuracy", a=taus(0.9, 0.8, 0.5))
    grid = found.by_name["p", "a"].grid
    grid.metrics["train_loss"] = 100 - grid.metrics["test_accuracy"]
    told = rules.nearly_best("p", ("a",), "tau", 1e-3, 1 / 0.95)(found)
    assert told.verdict == "not reproduced"
    assert rules.nearly_best("p", ("a",), "tau", 0.0, 1 / 0.95)(found).verdict == "reproduced"


def test_rank_correlation_by_seed():
    x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 3.0, 2.0, 2.0])
    assert rank_correlation(x, y) == pytest.approx(spearmanr(x, y)[0])
    assert rank_correlation(x, np.ones(4)) == 0
    falling = rules.goes(
        "p", ("a",), lambda cells, m: [(x, -x)] * 4 + [(x, -y)], "x and y", False, lambda cells, m: ""
    )
    assert falling(cells(a=taus(1, 1, 1))).verdict == "reproduced"
    neither = rules.goes(
        "p", ("a",), lambda cells, m: [(x, np.ones(4))] * 5, "x and y", False, lambda cells, m: m
    )
    told = neither(cells(a=taus(1, 1, 1)))
    assert (told.verdict, told.provisional) == ("underpowered", "at the edge of the grid: a")


def test_easier_counts_settings_near_the_best_of_all():
    accuracy = {"a": [0.9, 0.89, 0.88], "b": [0.9, 0.5, 0.5], "c": [0.6, 0.6, 0.6]}
    by_name = {}
    for name, by_rate in accuracy.items():
        losses = {(r, t): v for (r, v), t in itertools.product(zip(RATES, by_rate, strict=True), TAUS)}
        by_name["p", name] = Cell(None, grid_of(losses, "test_accuracy"), None)
    found = Cells({"p": replace(PROBLEM, metric="test_accuracy")}, AXIS_SEEDS, by_name)
    told = rules.easier("p", [("a", "b"), ("b", "c")], 0.05, tau=1e-3)(found)
    assert told.verdict == "reproduced"
    assert "a 100 %, b 33.3 %, c 0 %" in told.ours
    assert rules.easier("p", [("c", "a")], 0.05, tau=1e-3)(found).verdict == "not reproduced"


def test_pictures_of_grids():
    """A map is the mean over seeds at the tau that is asked for; lines along an axis leave 0 out of a log axis."""
    found = cells(a=taus(1.0, 2.0, 3.0), b=taus(3.0, 2.0, 1.0))
    study = Study("t", "", found.problems, {}, AXIS_SEEDS, (), {})
    caption, figure = along_axes("Drawn.", (("p", "tau", "tau", ("a", "b")),)).draw(study, found)
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    assert lines["b"].get_xdata().tolist() == [1e-3, 1e-1]
    np.testing.assert_allclose(lines["b"].get_ydata(), [2.0, 1.0])
    assert caption.endswith("Seeds 0, 1, 2, 3, 4.")
    empty = along_axes("Drawn.", (("other", "tau", "tau", ("a",)),)).draw(study, found)[1]
    assert not empty.axes[0].get_lines()
    deeper = {
        key: Cell(None, replace(cell.grid, grid={**cell.grid.grid, "k": (1,)}), None)
        for key, cell in found.by_name.items()
    }
    caption, figure = Maps("Drawn.", "train_loss", problem="p", at={"k": 1}).draw(
        study, replace(found, by_name=deeper)
    )
    assert "Mean over seeds 0, 1, 2, 3, 4" in caption
    drawn = [text.get_text() for text in figure.axes[0].texts]
    assert drawn == ["2.00", "4.00", "6.00", "1.00", "2.00", "3.00", "2.00", "4.00", "6.00"]
