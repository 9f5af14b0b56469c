"""Ranks over problems: Demšar's worked example, SciPy's tests, and the rule and the diagram that follow from them."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedsolve.core.errors import InvalidInput
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells, Problem, Study
from fedsolve.studies.cells import Cell
from fedsolve.studies.pictures import CriticalDifference, Line, Panel, panels
from fedsolve.studies.rules import better_in_each, ends, holm, not_learnt, rank, wins_more

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
            start = 90.0 if metric == "test_loss" else -90.0
            metrics = {metric: np.array([[[start, value - 0.5], [start, value + 0.5]]])}
            lost = np.array([[-1, -1]])
            sweep = SweepRecord(
                "m", "p", {"a": (1,)}, (0, 1), np.array([0, 4]), metrics, lost, Selection(metric, 1)
            )
            cells[str(i), method] = Cell(sweep, None, None)
    return Cells({str(i): problem for i in range(len(values))}, (0, 1), cells)


GOOD, BAD, MIDDLE = [1.0] * 8, [3.0] * 8, [2.0] * 4 + [0.5] * 4


def test_a_method_wins_more_problems_by_sign_tests_that_share_the_five_percent():
    """Of 8 problems 8 to 0 has p 2 / 2^8, 4 to 4 has 1; of two tests the smaller one is doubled."""
    losses = {"good": GOOD, "middle": MIDDLE, "bad": BAD}
    cells = made_up(losses)
    found = wins_more("good", ["bad"], ends())(cells)
    assert (found.verdict, "bad 8 to 0 (p 0.0078)" in found.ours) == ("reproduced", True)
    assert wins_more("bad", ["good", "middle"], ends())(cells).verdict == "not reproduced"
    assert wins_more("good", ["middle"], ends())(cells).verdict == "underpowered"
    partly = wins_more("good", ["middle", "bad"], ends())(cells)
    assert partly.verdict == "partly"
    assert "it holds against bad" in partly.reason
    assert "middle 4 to 4 (p 1), bad 8 to 0 (p 0.016); mean rank good 1.50, middle 1.50" in partly.ours
    assert wins_more("good", ["bad"], ends())(made_up(losses, "test_accuracy")).verdict == "not reproduced"


def test_signs_do_not_depend_on_who_else_is_ranked_and_leave_ties_out():
    """7 to 1 of 8 problems and a tie; many others between the two change ranks, not signs."""
    two = {"a": [1.0] * 7 + [3.0, 2.0], "b": [2.0] * 8 + [2.0]}
    others = {f"c{i}": [1.5] * 9 for i in range(6)}
    few, many = (wins_more("a", ["b"], ends())(made_up(two | more)) for more in ({"c": [9.0] * 9}, others))
    expected = stats.binomtest(7, 8).pvalue
    assert few.verdict == many.verdict == "underpowered"
    for one in (few, many):
        assert f"b 7 to 1 (p {expected:.2g})" in one.ours


def test_holm_s_correction():
    """By the definition: the k-th least p times the number of those that are left, never falling."""
    values = [0.012, 0.001, 0.04, 0.03]
    order = sorted(range(4), key=values.__getitem__)
    expected, largest = [0.0] * 4, 0.0
    for k, i in enumerate(order):
        largest = max(largest, (4 - k) * values[i])
        expected[i] = min(largest, 1.0)
    np.testing.assert_allclose(holm(values), expected)
    np.testing.assert_allclose(holm(values, sharing=2), [min(2 * one, 1.0) for one in expected])
    assert holm([0.6, 0.7]) == [1.0, 1.0]


def test_a_method_that_has_not_learnt_is_last_wherever_it_ends():
    """A loss that is lower by luck on one of two seeds, or accuracy that is not above chance."""
    cells = made_up({"a": [1.0, 89.9], "b": [2.0, 95.0], "c": [3.0, 50.0]})
    assert [not_learnt(cells, str(i), "abc") for i in (0, 1)] == [(), ("a", "b")]
    assert ends()(cells).by_problem.T.tolist() == [[1, 2, 3], [2.5, 2.5, 1]]
    accurate = made_up({"a": [10.0], "b": [20.0]}, "test_accuracy")
    chance = {"0": replace(accurate.problems["0"], chance=10.2)}
    assert not_learnt(accurate, "0", "ab") == ()
    assert not_learnt(replace(accurate, problems=chance), "0", "ab") == ("a",)


def test_as_many_right_answers_in_float32_are_a_tie(monkeypatch):
    """309, 325 and 325 of 359 by seed beside 309, 324 and 326: the means of float32 shares differ in a later digit."""
    right = {"a": [309, 325, 325], "b": [309, 324, 326], "c": [310, 325, 325]}
    ended = {name: np.array(counts, np.float32) / np.float32(359) for name, counts in right.items()}
    assert ended["a"].mean(dtype=np.float64) != ended["b"].mean(dtype=np.float64)
    monkeypatch.setattr(Cells, "final", lambda cells, problem, name, which: ended[name])
    monkeypatch.setattr("fedsolve.studies.rules.ranks.not_learnt", lambda *of: ())
    cells = made_up({key: [1.0, 2.0] for key in right}, "test_accuracy")
    assert ends()(cells).by_problem[:, 0].tolist() == [2.5, 2.5, 1]


def test_a_seed_that_diverged_makes_a_method_last():
    losses = {"good": [*GOOD[:-1], np.nan], "middle": MIDDLE, "bad": BAD}
    assert ends()(made_up(losses)).by_problem[:, -1].tolist() == [3, 1, 2]


def test_without_a_difference_between_any_methods_all_are_one_group():
    """Friedman's p is 0.052, though the least and the largest mean rank are apart by Nemenyi's 1.105."""
    found = ends()(made_up({"a": [1] * 7 + [3] * 2, "b": [2] * 9, "c": [3] * 7 + [1] * 2}))
    assert found.of("c") - found.of("a") > found.critical_difference
    assert found.groups == [("a", "b", "c")]


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


# Several problems at once: a comparison on all of them.

NOISE = 0.01 * np.array([1.0, -1.0, 0.5, -0.5, 0.0])
WIDE = 0.5 * np.array([1.0, -1.0, 0.5, -0.5, 0.0])


def cells(**ends):
    """Cells of problems by name: method -> training losses at the end, by seed."""
    found, problems = {}, {}
    for name, methods in ends.items():
        problems[name] = Problem(name, "made up", lambda d: None, {"rounds": 4}, metric="train_loss")  # pyright: ignore
        for method, end in methods.items():
            end = np.asarray(end, float)
            curve = np.stack([np.full_like(end, 2.0), end], axis=-1)[None]
            lost = np.where(np.isfinite(end), -1, 1)[None]
            one = SweepRecord(
                method, name, {"client_lr": (0.1,)}, tuple(range(5)), np.array([0, 4]), {"train_loss": curve}, lost,
                Selection("train_loss", 1),
            )  # fmt: skip
            found[name, method] = Cell(one, None, None)
    return Cells(problems, tuple(range(5)), found)


ONE = {"A": 0.5 + NOISE, "B": 0.6 - NOISE}
OTHER = {"A": 0.9 + NOISE, "B": 0.6 - NOISE}
OPEN = {"A": 0.5 + WIDE, "B": 0.55 - WIDE}


@pytest.mark.parametrize(
    ("second", "verdict", "words"),
    [
        (ONE, "reproduced", "A over B: better on 2 of 2"),
        (OTHER, "partly", "A over B: better on 1 of 2, worse on 1 (second)"),
        (OPEN, "partly", "A over B: better on 1 of 2, open on 1 (second)"),
    ],
)
def test_better_in_each_says_where(second, verdict, words):
    judged = better_in_each(("first", "second"), "A", ("B",))(cells(first=ONE, second=second))
    assert judged.verdict == verdict
    assert judged.ours.endswith(words)
    assert "least and greatest of 2 problems: A 0.5" in judged.ours


def test_better_in_none():
    assert better_in_each(("one",), "A", ("B",))(cells(one=OTHER)).verdict == "not reproduced"
    assert better_in_each(("one",), "A", ("B",))(cells(one=OPEN)).verdict == "underpowered"
    lost = {"A": 0.5 + NOISE, "B": [np.nan, 0.1, 0.1, 0.1, 0.1]}
    judged = better_in_each(("one",), "A", ("B",))(cells(one=lost))
    assert (judged.verdict, "B diverged on some" in judged.ours) == ("reproduced", True)


def test_comparisons_share_the_level():
    """A difference that one comparison shows is open among forty."""
    small = {"A": 0.5 + NOISE, "B": 0.525 + 0 * NOISE}
    assert better_in_each(("p0",), "A", ("B",))(cells(p0=small)).verdict == "reproduced"
    many = {f"p{i}": small for i in range(40)}
    assert better_in_each(tuple(many), "A", ("B",))(cells(**many)).verdict == "underpowered"


# The legend of a grid of panels is not cut off.


@pytest.mark.gate("4")
@pytest.mark.parametrize("length", [4, 14, 24])
def test_the_legend_fits_the_figure(length):
    lines = [Line(f"{i} {'method ' * length}"[:length], np.arange(3), np.zeros((2, 3))) for i in range(9)]
    figure = panels([[Panel("a", lines, "y", "x", ylog=False)] * 3], "title", 3.3, 2.6)
    figure.canvas.draw()
    legend, whole = figure.legends[0].get_window_extent(), figure.bbox
    assert legend.x0 >= whole.x0
    assert legend.x1 <= whole.x1
