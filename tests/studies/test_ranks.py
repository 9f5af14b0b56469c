"""Ranks over problems: Demšar's worked example, SciPy's tests, and the rule and the diagram that follow from them."""

import numpy as np
import pytest
from scipy import stats

from fedsolve.core.errors import InvalidInput
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells, Problem, Study
from fedsolve.studies.cells import Cell
from fedsolve.studies.pictures import CriticalDifference
from fedsolve.studies.rules import ends, rank, ranks_above

C45 = np.array(
    [
        [4, 3, 2, 1], [1, 2, 3, 4], [4, 1, 2, 3], [4, 1, 3, 2], [4, 2, 3, 1], [1, 2.5, 4, 2.5], [3, 2, 4, 1],
        [2.5, 2.5, 4, 1], [4, 3, 2, 1], [2.5, 2.5, 2.5, 2.5], [4, 2.5, 1, 2.5], [3, 2, 4, 1], [4, 1, 2, 3],
        [3, 1, 4, 2],
    ]
).T  # fmt: skip
"""Ranks of four variants of C4.5 on 14 data sets: Table 6 of Demšar 2006, JMLR 7."""
NAMES = ("C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf")


def test_the_worked_example_of_demsar():
    """Section 3.2.2: mean ranks, Friedman's 9.28, F of 3.69 with 3 and 39 degrees of freedom, Nemenyi's 1.25."""
    found = rank(dict(zip(NAMES, C45, strict=True)))
    np.testing.assert_array_equal(found.by_problem, C45)
    np.testing.assert_allclose(found.mean, [3.143, 2.000, 2.893, 1.964], atol=6e-4)
    assert found.chi_square == pytest.approx(9.28, abs=0.005)
    assert found.p == pytest.approx(stats.f.sf(3.69, 3, 39), rel=0.01)
    assert found.critical_difference == pytest.approx(2.569 * np.sqrt(4 * 5 / (6 * 14)), abs=1e-3)
    assert found.groups == [("C4.5+m+cf", "C4.5+m", "C4.5+cf", "C4.5")]


def test_without_ties_the_statistic_is_that_of_scipy():
    values = np.random.default_rng(0).normal(size=(5, 8)) + np.arange(5)[:, None] / 2
    found = rank({str(i): row for i, row in enumerate(values)})
    assert found.chi_square == pytest.approx(stats.friedmanchisquare(*values).statistic)


def test_the_same_order_everywhere_is_no_chance():
    assert rank({"a": [1, 1, 1, 1], "b": [2, 2, 2, 2], "c": [3, 3, 3, 3]}).p == 0
    assert rank({"a": [1, 1], "b": [1, 1], "c": [1, 1]}).p == 1


def made_up(losses, metric="test_loss"):
    """Cells of two seeds whose mean at the end is what is given, by method and problem."""
    problem = Problem("p", "small", lambda data_dir: None, {"rounds": 4}, metric=metric)
    cells = {}
    for method, values in losses.items():
        for i, value in enumerate(values):
            metrics = {metric: np.array([[[9.0, value - 0.5], [9.0, value + 0.5]]])}
            lost = np.array([[-1, -1]])
            sweep = SweepRecord(
                "m", "p", {"a": (1,)}, (0, 1), np.array([0, 4]), metrics, lost, Selection(metric, 1)
            )
            cells[str(i), method] = Cell(sweep, None, None)
    return Cells({str(i): problem for i in range(len(values))}, (0, 1), cells)


GOOD, BAD, MIDDLE = [1.0] * 8, [3.0] * 8, [2.0] * 4 + [0.5] * 4


def test_a_rule_needs_more_than_the_critical_difference():
    """Of 8 problems and 3 methods it is 1.17: ranks 1.5 and 3 are apart, 1.5 and 1.5 are not."""
    losses = {"good": GOOD, "middle": MIDDLE, "bad": BAD}
    cells = made_up(losses)
    assert ranks_above("good", ["bad"], ends())(cells).verdict == "reproduced"
    worst = ranks_above("bad", ["good", "middle"], ends())(cells)
    assert worst.verdict == "not reproduced"
    assert worst.reason.endswith("; below good, middle")
    assert ranks_above("good", ["middle"], ends())(cells).verdict == "underpowered"
    partly = ranks_above("good", ["middle", "bad"], ends())(cells)
    assert partly.verdict == "partly"
    assert "it holds in 1 of 2 (bad)" in partly.reason
    assert "good 1.50, middle 1.50, bad 3.00" in partly.ours
    assert ranks_above("good", ["bad"], ends())(made_up(losses, "test_accuracy")).verdict == "not reproduced"


def test_a_seed_that_diverged_makes_a_method_last():
    losses = {"good": [*GOOD[:-1], np.nan], "middle": MIDDLE, "bad": BAD}
    assert ends()(made_up(losses)).by_problem[:, -1].tolist() == [3, 1, 2]


def test_without_a_difference_between_any_methods_none_is_found_between_two():
    """Friedman's p is 0.052, though the least and the largest mean rank are apart by Nemenyi's 1.105."""
    cells = made_up({"a": [1] * 7 + [3] * 2, "b": [2] * 9, "c": [3] * 7 + [1] * 2})
    found = ends()(cells)
    assert found.of("c") - found.of("a") > found.critical_difference
    assert found.groups == [("a", "b", "c")]
    assert ranks_above("a", ["c"], ends())(cells).verdict == "underpowered"


@pytest.mark.parametrize("losses", [{"a": [1, 2], "b": [2, 1]}, {"a": [1], "b": [2], "c": [3]}])
def test_too_little_to_rank_is_one_clear_line(losses):
    with pytest.raises(InvalidInput, match="give three and two or more"):
        rank(losses)


def test_a_method_that_is_not_ranked_is_one_clear_line():
    with pytest.raises(InvalidInput, match="method of the ranks 'd'"):
        rank({"a": [1, 2], "b": [2, 1], "c": [3, 3]}).of("d")


def test_the_diagram_bars_what_cannot_be_told_apart():
    cells = made_up({"good": GOOD, "middle": MIDDLE, "bad": BAD})
    study = Study("t", "", cells.problems, {}, (0, 1), (), {}, needs_data=False)
    caption, figure = CriticalDifference("Ranks.", {"at the end": ends()}).draw(study, cells)
    assert "at the end: Friedman's p = 6.1e-05, critical difference 1.17." in caption
    assert ends()(cells).groups == [("good", "middle")]
    names = [text.get_text() for text in figure.axes[0].texts]
    assert {"good  1.5", "middle  1.5", "3.0  bad"} <= set(names)
    one = Cells({"0": cells.problems["0"]}, cells.seeds, cells.by_name)
    assert CriticalDifference("Ranks.", {"at the end": ends()}).draw(study, one)[0] == "Ranks."
