"""A study as data: cells kept and resumed, what is asked of them, rules on made-up numbers, its page in every size."""

from __future__ import annotations

import inspect
import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import fedsolve as fs
from fedsolve.core.errors import Interrupted, InvalidInput
from fedsolve.report.plots import new_figure
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells, Method, Problem, Statement, Study, runner
from fedsolve.studies.cells import Cell, chance
from fedsolve.studies.experiment import OURS, Claim, Context, Outcome, within
from fedsolve.studies.pages import write_results
from fedsolve.studies.pictures import Against, Along, Curves, Line, Maps, Panel, Several, panels, styles
from fedsolve.studies.rules import Interval, at_round, by_metric, by_window, decided, in_decades
from fedsolve.studies.rules import comparisons as rules
from fedsolve.studies.runner import experiment, outcome, settings, solve, tables

YES, NO, UNSURE = "reproduced", "not reproduced", "underpowered"
SIZES = {"num_clients": 3, "examples_per_client": 4, "features": 5}


def regression(data_dir):
    return fs.tasks.build("regression", **SIZES)


PROBLEM = Problem(
    "regression", "3 of 20 clients", regression, {"rounds": 4, "eval_every": 2, "local_steps": 1},
    metric="train_loss", published={"FedAvg": 0.2},
)  # fmt: skip
STUDY = Study(
    "A made-up study",
    "for tests",
    {"small": PROBLEM},
    {
        "FedAvg": Method(lambda client_lr: fs.FedAvg(client_lr), {"client_lr": 0.01}, {"client_lr": (1e-3, 0.01, 0.1)}),
        "FedAdam": Method(lambda server_lr: fs.FedAdam(0.01, server_lr=server_lr), {"server_lr": 0.1}),
    },
    (0, 1),
    (Statement("FedAdam is better", "Table 1: 3 against 2", rules.better("small", "FedAdam", "FedAvg")),),
    {"curves": Curves("Loss by round."), "against": Against("Theirs and ours.")},
    paper="reddi2021fedopt",
    deviations=("It is made up.",),
    cost="Nothing.",
    full={"small": replace(PROBLEM, options={**PROBLEM.options, "rounds": 6})},
    needs_data=False,
)  # fmt: skip


def made_up(values, metric="test_accuracy", grid=None, at=0, **problem):
    """Cells of one problem: method -> values by seed at the end; the tuned setting is number `at` of the grid."""
    values = {name: np.asarray(v, float) for name, v in values.items()}
    seeds = tuple(range(len(next(iter(values.values())))))
    axes = grid or {"client_lr": (0.1, 0.2, 0.3, 0.4)}
    methods = {name: Method(lambda client_lr: None, grid=axes) for name in values}
    study = replace(
        STUDY,
        methods=methods,
        seeds=seeds,
        problems={"p": replace(PROBLEM, metric=metric, published={}, **problem)},
    )

    def sweep(end, settings):
        lost = np.where(np.isfinite(end), -1, 1)
        start = 30.0 if metric == "train_loss" else 0.0
        curve = np.stack([np.full_like(end, start), end], axis=-1)[None]
        metrics = {metric: np.repeat(curve, settings, 0)}
        axis = {name: tuple(v[:1]) if settings == 1 else v for name, v in axes.items()}
        axis = {name: (axes[name][at],) for name in axes} if settings == 1 else axis
        return SweepRecord(
            "m",
            "p",
            axis,
            seeds,
            np.array([0, 4]),
            metrics,
            np.repeat(lost[None], settings, 0),
            Selection(metric, 1),
        )

    size = len(next(iter(axes.values())))
    return Cells(
        study.problems, seeds, {("p", n): Cell(None, sweep(v, size), sweep(v, 1)) for n, v in values.items()}
    )


def test_the_folder_of_what_has_not_ended_stays_until_all_has(tmp_path, monkeypatch):
    """Another part may be about to make its own folder in it, on another worker."""
    left = []
    monkeypatch.setattr(
        Path, "rmdir", lambda path: left.append((path.name, len(list((tmp_path / "parts").iterdir()))))
    )
    solve(STUDY, Context(tmp_path))
    assert left == [("under-way", 4)]


@pytest.mark.full
def test_a_study_runs_is_kept_and_judged(tmp_path):
    """Published setting with all seeds, grid on the first, the chosen one again; a second call runs nothing."""
    found = outcome(STUDY, Context(tmp_path))
    parts = sorted(path.name.rsplit("-", 1)[0] for path in (tmp_path / "parts").iterdir())
    assert parts == [
        "small-FedAdam-published",
        "small-FedAvg-grid",
        "small-FedAvg-published",
        "small-FedAvg-tuned",
    ]
    assert not (tmp_path / "under-way").exists()
    said: list[str] = []
    again = solve(STUDY, Context(tmp_path, say=lambda part, done, total: said.append(part)))
    assert len(said) == 4
    judged = outcome(STUDY, Context(tmp_path, stored_only=True))
    assert judged.claims == found.claims
    assert all(name.endswith("(kept)") for name in said)
    alone = fs.run(fs.FedAvg(0.01), regression(None), rounds=4, eval_every=2, local_steps=1, seed=1)
    np.testing.assert_allclose(
        again.curve("small", "FedAvg", "published")[1][1], alone.metrics["train_loss"], rtol=1e-5
    )
    assert again.cell("small", "FedAvg").chosen == {"client_lr": 0.1}
    assert again.cell("small", "FedAvg").edges == ["client_lr"]
    assert "FedAvg's best client_lr = 0.1 lies at the edge" in found.claims[0].provisional
    assert found.claims[0].shown_verdict == f"{found.claims[0].verdict}, provisional"
    own = [
        Claim("", theirs, "", verdict).shown_verdict
        for theirs in ("Table 1", OURS)
        for verdict in (YES, NO, UNSURE)
    ]
    assert own == [YES, NO, UNSURE, "confirmed", "contradicted", UNSURE]
    table = found.tables["small"]
    assert table.rows[0][:2] == ["FedAvg", "client_lr 0.01"]
    assert table.rows[0][-1] == "0.2"


def test_another_value_in_a_method_is_run_anew_and_judging_runs_nothing(tmp_path):
    """A method's other value, which no axis names, makes its parts old: computed anew, but read where judged."""
    first = solve(STUDY, Context(tmp_path))
    momentum = Method(lambda server_lr: fs.FedAdam(0.01, server_lr=server_lr, beta1=0.5), {"server_lr": 0.1})
    changed = replace(STUDY, methods={**STUDY.methods, "FedAdam": momentum})
    read = solve(changed, Context(tmp_path, stored_only=True)).final("small", "FedAdam")
    assert np.array_equal(read, first.final("small", "FedAdam"))
    assert not np.array_equal(solve(changed, Context(tmp_path)).final("small", "FedAdam"), read)
    with pytest.raises(InvalidInput, match="keeps no part 'small-FedAvg-published'"):
        solve(STUDY, Context(tmp_path / "nowhere", stored_only=True))


@pytest.mark.full
def test_a_method_s_own_options_stand_in_place_of_the_problem_s(tmp_path):
    make = STUDY.methods["FedAvg"].make
    methods = {
        "some": Method(make, {"client_lr": 0.01}),
        "one": Method(make, {"client_lr": 0.01}, options={"clients_per_round": 1}),
    }
    cells = solve(replace(STUDY, methods=methods), Context(tmp_path))
    alone = fs.run(
        fs.FedAvg(0.01), regression(None), rounds=4, eval_every=2, local_steps=1, clients_per_round=1, seed=1
    )
    found = cells.curve("small", "one", "published")[1][1]
    np.testing.assert_allclose(found, alone.metrics["train_loss"], rtol=1e-5)
    assert not np.allclose(found, cells.curve("small", "some", "published")[1][1])


def test_a_problem_s_grid_is_read_from_a_wider_one_s(tmp_path):
    """As if it had run its own; what an earlier problem did not run is said."""
    make, rates = STUDY.methods["FedAvg"].make, (1e-3, 0.01, 0.1)
    grids = {"wide": rates, "narrow": rates[:2], "beyond": (0.1, 0.2)}
    narrow = replace(PROBLEM, grid_of="wide")
    study = replace(
        STUDY,
        problems={"wide": PROBLEM, "narrow": narrow},
        methods=lambda name: {"FedAvg": Method(make, grid={"client_lr": grids[name]})},
    )
    found = solve(study, Context(tmp_path))
    own = solve(replace(study, problems={"narrow": PROBLEM}), Context(tmp_path / "own"))
    read, ran = (cells.cell("narrow", "FedAvg") for cells in (found, own))
    assert (read.chosen, read.edges) == (ran.chosen, ran.edges) == ({"client_lr": 0.01}, [])
    assert read.grid.grid == ran.grid.grid
    for name, values in ran.grid.metrics.items():
        np.testing.assert_array_equal(read.grid.metrics[name], values)
    (kept,) = tmp_path.glob("parts/narrow*")
    assert kept.name.startswith("narrow-FedAvg-tuned")
    otherwise = replace(study, problems={"wide": PROBLEM, "narrow": replace(narrow, select="most_loss")})
    with pytest.raises(
        InvalidInput, match="most_loss"
    ):  # its own selection counts, not that of the wider one
        solve(otherwise, Context(tmp_path))
    with pytest.raises(InvalidInput, match=r"lacks values of .*client_lr"):
        solve(replace(study, problems={"wide": PROBLEM, "beyond": narrow}), Context(tmp_path))
    with pytest.raises(InvalidInput, match="earlier problem with FedAvg"):
        solve(replace(study, problems={"narrow": narrow}), Context(tmp_path))


@pytest.mark.full
def test_a_stored_part_says_what_it_holds(tmp_path):
    """Axes with their values, seeds and options, readable without fedsolve."""
    solve(STUDY, Context(tmp_path))
    (part,) = tmp_path.glob("parts/small-FedAvg-grid*")
    held = json.loads(str(np.load(part)["what_it_holds"]))
    assert held["axes"] == {"client_lr": [0.001, 0.01, 0.1]}
    assert (held["seeds"], held["options"]["rounds"], held["method"]) == ([0], 4, "FedAvg")


def test_an_interrupted_cell_goes_on(tmp_path, monkeypatch):
    """What is under way lies in a folder of its own; the next call resumes it and gives the same numbers."""
    whole = solve(STUDY, Context(tmp_path / "whole"))
    sweep, resumed = fs.sweep, []

    def stopped(*args, progress, **kwargs):
        def at_start(at):
            if not at.done:
                signal.raise_signal(signal.SIGINT)

        return sweep(*args, progress=at_start, **kwargs)

    def watched(*args, resume, **kwargs):
        resumed.append(resume)
        return sweep(*args, resume=resume, **kwargs)

    context = Context(tmp_path / "cut")
    with monkeypatch.context() as patched:
        patched.setattr(fs, "sweep", stopped)
        with pytest.raises(Interrupted, match="saved in"):
            solve(STUDY, context)
    assert [
        path.name.startswith("small-FedAvg-published") for path in (context.folder / "under-way").iterdir()
    ] == [True]
    monkeypatch.setattr(fs, "sweep", watched)
    found = solve(STUDY, context)
    assert resumed == [True, False, False, False]
    for method in STUDY.methods:
        assert np.array_equal(found.curve("small", method)[1], whole.curve("small", method)[1])


@pytest.mark.full
def test_data_by_seed(tmp_path):
    """Each seed has its data: cells are fs.sweep's on each data set, tuned on the first, kept by seed and resumed."""

    def drawn(data_dir, seed):
        return fs.tasks.build("regression", **SIZES, seed=seed)

    by_seed = replace(PROBLEM, task=drawn, data_by_seed=True)
    study = replace(
        STUDY, problems={"small": by_seed}, full={}, seeds=(3, 4), pictures={"curves": Curves("Loss.")}
    )
    found = outcome(study, Context(tmp_path))
    cells = solve(study, Context(tmp_path, stored_only=True))
    for seed in study.seeds:
        fresh = fs.sweep(
            lambda client_lr: fs.FedAvg(client_lr), drawn(None, seed), {"client_lr": (0.01,)}, seeds=(seed,),
            **PROBLEM.options,
        )  # fmt: skip
        values = cells.curve("small", "FedAvg", "published")[1]
        np.testing.assert_allclose(
            values[study.seeds.index(seed)], fresh.curve(0, "train_loss")[0], rtol=1e-6
        )
    assert not np.array_equal(values[0], values[1])
    assert cells.cell("small", "FedAvg").published.seeds == (3, 4)
    assert cells.cell("small", "FedAvg").grid.seeds == (3,)
    (tuned,) = (tmp_path / "parts").glob("small-FedAvg-tuned--seed-4-*")
    tuned.unlink()
    said: list[str] = []
    again = solve(study, Context(tmp_path, say=lambda part, done, total: said.append(part)))
    assert {part for part in said if not part.endswith("(kept)")} == {"small: FedAvg, tuned, seed 4"}
    assert np.array_equal(again.final("small", "FedAvg"), cells.final("small", "FedAvg"))
    assert "data drawn anew for each seed" in found.settings["regression"]
    assert "over 2 data sets" in found.tables["small"].note
    assert "intervals over data sets" in found.claims[0].reason
    assert found.pictures["curves"]()[0] == "Loss. Seeds 3, 4, each with data of its own."


def test_settings_say_once_what_all_problems_have_alike():
    longer = replace(PROBLEM, title="longer", options={**PROBLEM.options, "rounds": 8})
    told = settings(replace(STUDY, problems={"small": PROBLEM, "long": longer}))
    alike = "eval_every 2, local_steps 1, compared train_loss (last round), chosen by training-loss"
    assert told == {
        "seeds": [0, 1],
        "tuned on seed": 0,
        "all problems": alike,
        "regression": "3 of 20 clients; rounds 4",
        "longer": "3 of 20 clients; rounds 8",
    }
    grid_later = {"small": {"FedAdam": STUDY.methods["FedAdam"]}, "long": {"FedAvg": STUDY.methods["FedAvg"]}}
    by_problem = replace(STUDY, problems={"small": PROBLEM, "long": longer}, methods=grid_later.__getitem__)
    assert settings(by_problem)["tuned on seed"] == 0
    assert "tuned on seed" not in settings(replace(by_problem, problems={"small": PROBLEM}))
    everywhere = replace(STUDY, problems={"small": replace(PROBLEM, tuning={"seeds": (0, 1)})})
    assert "tuned on seed" not in settings(everywhere)
    assert settings(STUDY)["regression"] == f"3 of 20 clients; rounds 4, {alike}"


def test_problems_of_different_metrics_are_in_different_tables():
    found = made_up({"FedAvg": [0.5, 0.7]})
    cell = Cell(found.cell("p", "FedAvg").tuned, None, None)
    loss = replace(found.problem("p"), title="by loss", metric="train_loss")
    by_name = {(name, "FedAvg"): cell for name in ("p", "q", "loss")}
    problems = {"p": found.problem("p"), "q": found.problem("p"), "loss": loss}
    two = tables(Cells({"p": problems["p"], "q": problems["q"]}, found.seeds, by_name))
    assert (list(two), [row[1] for row in two["results"].rows]) == (["results"], ["60 ± 14 %"] * 2)
    runs = replace(cell.published, metrics={**cell.published.metrics, "train_loss": np.ones((1, 2, 2))})
    by_name = {key: Cell(runs, None, None) for key in by_name}
    three = tables(Cells(problems, found.seeds, by_name))
    assert {name: len(table.rows) for name, table in three.items()} == {
        "results-test_accuracy": 2,
        "results-train_loss": 1,
    }
    assert three["results-train_loss"].rows[0][:2] == ["by loss", "1 ± 0"]


def test_quick_and_full_sizes(tmp_path):
    """The quick form is of the quick problem and judges nothing; the full form has its own rounds."""
    quick = STUDY.at_quick_size()
    assert (quick.problems["quick"].options["rounds"], quick.statements, quick.needs_data) == (2, (), False)
    found = outcome(STUDY, Context(tmp_path, quick=True))
    assert not found.claims
    assert json.dumps(found.settings)
    assert STUDY.at_full_size().problems["small"].options["rounds"] == 6


def test_what_a_rule_lacks_is_told_before_anything_runs():
    assert list(inspect.signature(rules.better).parameters) == ["problem", "a", "b", "which"]
    with pytest.raises(TypeError, match="'b'"):
        rules.better("digits", "FedAdam")


def test_an_interval_that_holds_the_bar_decides_nothing():
    found = Interval(2.0, 1.0, 3.0)
    assert f"{found:+.3g}" == "+2 [1, 3]"
    assert [decided(found, bar) for bar in (0.5, 1.0, 3.0, 3.5)] == [YES, UNSURE, UNSURE, NO]
    assert [decided(found, bar, -1) for bar in (0.5, 1.0, 3.0, 3.5)] == [NO, UNSURE, UNSURE, YES]
    lost = Interval(np.inf, np.inf, np.inf)  # a run that diverged is above any bar
    assert (decided(lost, 5.0), decided(lost, 5.0, -1)) == (YES, NO)


def test_rules_decide_by_paired_intervals():
    """Student's interval of the differences by seed, as SciPy has it; noise common to both does not count."""
    noise = np.array([0.0, 0.1, -0.1, 0.05, -0.05])
    a, b = 0.8 + noise + [0.01, 0.012, 0.008, 0.011, 0.009], 0.79 + noise
    cells = made_up({"A": a, "B": b, "C": b[::-1]})
    found = rules.difference(cells, "p", "A", "B")
    low, high = stats.t.interval(0.95, 4, np.mean(100 * (a - b)), stats.sem(100 * (a - b)))
    np.testing.assert_allclose([found.low, found.high], [low, high], rtol=1e-12)
    of_two = rules.difference(cells, "p", "A", "B", comparisons=2)
    low, high = stats.t.interval(0.975, 4, np.mean(100 * (a - b)), stats.sem(100 * (a - b)))
    np.testing.assert_allclose([of_two.low, of_two.high], [low, high], rtol=1e-12)
    assert rules.better("p", "A", "B")(cells).verdict == "reproduced"
    assert rules.better("p", "B", "A")(cells).verdict == "not reproduced"
    assert rules.better("p", "A", "C")(cells).verdict == "underpowered"
    assert rules.better_than_all("p", "A", ("B", "C"))(cells).verdict == "partly"
    assert rules.close("p", "A", "B", 3)(cells).verdict == "reproduced"
    assert rules.close("p", "A", "B", 1)(cells).verdict == "not reproduced"
    assert rules.at_least_as_good("p", "B", "A", 3)(cells).verdict == "reproduced"
    assert rules.at_least_as_good("p", "B", "A", 1)(cells).verdict == "not reproduced"
    both = rules.together(rules.better("p", "A", "B"), rules.better("p", "B", "A"))
    assert both(cells).verdict == "partly"
    assert f"[{low:.3g}, {high:.3g}]" in both(cells).ours  # rules judged together share the 5 %
    assert rules.close("p", "A", "B", 1.5)(cells).ours.endswith("(at 0.75: not reproduced, 3: reproduced)")


def test_intervals_over_splits_of_one_data_set_are_wider():
    """Nadeau and Bengio's: of 8 splits that test on a seventh of what they train on, by sqrt(1 + 8/7)."""
    values = np.array([0.5, 0.52, 0.51, 0.55, 0.49, 0.5, 0.53, 0.52])
    plain, splits = (
        made_up({"A": values, "B": 0 * values}, data_by_seed=True, overlap=overlap)
        for overlap in (0.0, 1 / 7)
    )
    one, two = (rules.difference(cells, "p", "A", "B") for cells in (plain, splits))
    assert (two.high - two.low) / (one.high - one.low) == pytest.approx(np.sqrt(1 + 8 / 7))
    assert "over splits, paired" in rules.better("p", "A", "B")(splits).reason


def test_the_chance_of_the_test_set_is_at_most_that_of_errors_with_nothing_in_common():
    """Test sets drawn again and again, of examples on which two methods err together or apart."""
    rng = np.random.default_rng(0)
    hard = rng.random((4000, 1, 200)) < 0.2
    spread = {}
    for how, shared in (("together", 0.8), ("apart", 0.0)):
        wrong = shared * hard + rng.random((4000, 2, 200)) > 0.9
        means = 1 - wrong.mean(axis=2)
        spread[how] = (
            np.std(means[:, 0] - means[:, 1]),
            chance(means.mean(axis=0), 200) / stats.norm.ppf(0.975),
        )
    assert spread["apart"][0] == pytest.approx(spread["apart"][1], rel=0.03)
    assert spread["together"][0] < 0.8 * spread["together"][1]


def test_a_verdict_that_other_test_examples_may_change_says_so():
    values = {
        "A": 0.9 + np.array([0.0, 0.01, 0.02, 0.0, 0.01]),
        "B": 0.88 + np.array([0.0, 0.01, 0.02, 0.01, 0.0]),
    }
    few, many, untold = (made_up(values, grid={"client_lr": (0.1, 0.2)}, tested=n) for n in (300, 30_000, 0))
    a, b = (values[name].mean() for name in "AB")
    for cells, n in ((few, 300), (many, 30_000)):
        found, alone = (rules.difference(one, "p", "A", "B", comparisons=3) for one in (cells, untold))
        assert (found.low, found.high) == (alone.low, alone.high)
        half = stats.norm.ppf(1 - 0.05 / 6) * 100 * np.sqrt((a * (1 - a) + b * (1 - b)) / n)
        wide = found.mean + np.array([-1, 1]) * np.sqrt((found.mean - found.low) ** 2 + half**2)
        np.testing.assert_allclose((found.wide.low, found.wide.high), wide, rtol=1e-12)
    judged = [rules.better("p", "A", "B")(cells) for cells in (few, many, untold)]
    assert [one.verdict for one in judged] == [YES] * 3
    said = "with the chance of the test examples underpowered"
    assert [one.reason.endswith(said) for one in judged] == [True, False, False]
    assert not any(one.provisional for one in judged)  # more computation does not change it
    assert "of 300 examples" in judged[0].reason
    assert "test set" not in judged[2].ours
    margin = [rules.at_least_as_good("p", "B", "A", 4)(cells) for cells in (few, many)]
    assert ["chance of the test examples" in one.reason for one in margin] == [True, False]
    of_another = by_metric("test_accuracy", rules.better("p", "A", "B"))(few)
    assert "chance" not in of_another.reason  # of what, is not known


def test_a_problem_that_tells_other_test_examples_than_its_task_has_is_refused(tmp_path):
    told = replace(STUDY, problems={"small": replace(PROBLEM, tested=7)})
    with pytest.raises(InvalidInput, match=r"tested = 7, its task has \d+ test examples: give tested=\d+"):
        solve(told, Context(tmp_path))


def test_a_loss_is_better_when_lower_and_one_seed_decides_nothing():
    low, high = [0.10, 0.11, 0.12], [0.20, 0.21, 0.22]
    assert rules.better("p", "A", "B")(made_up({"A": low, "B": high}, "train_loss")).verdict == "reproduced"
    assert (
        rules.better("p", "A", "B")(made_up({"A": [0.1], "B": [0.9]}, "train_loss")).verdict == "underpowered"
    )
    alike = made_up({"A": [0.1, 0.1, 0.1], "B": [0.9, 0.9, 0.9]}, "train_loss")
    assert rules.better("p", "A", "B")(alike).verdict == "underpowered"


def test_a_method_that_diverged_loses():
    cells = made_up({"A": [0.5, 0.51], "B": [0.9, np.nan], "C": [np.nan, np.nan]})
    judged = rules.better("p", "A", "B")(cells)
    assert (judged.verdict, "B diverged (1 of 2 seeds)" in judged.ours) == ("reproduced", True)
    assert rules.better("p", "B", "A")(cells).verdict == "not reproduced"
    assert rules.better("p", "B", "C")(cells).verdict == "not learnt"
    grown = made_up({"A": [0.5, 0.6]})
    tuned = grown.cell("p", "A").tuned
    loss = np.array([[[1.0, 11.0], [1.0, 9.0]]])
    cell = Cell(replace(tuned, metrics={**tuned.metrics, "train_loss": loss}), None, None)
    assert np.isnan(Cells(grown.problems, grown.seeds, {("p", "A"): cell}).final("p", "A")).tolist() == [
        True,
        False,
    ]


def test_an_edge_counts_where_a_better_setting_beyond_it_could_change_the_verdict():
    """That of the worse method, of the one that is said to be worse, of both where nothing is decided."""
    values = {"A": [0.8, 0.81, 0.82, 0.8, 0.8], "B": [0.1, 0.11, 0.12, 0.1, 0.1]}
    assert not rules.better("p", "A", "B")(made_up(values, at=1)).provisional
    edge = made_up(values, at=3)
    told = {pair: rules.better("p", *pair)(edge).provisional for pair in ("AB", "BA")}
    assert told == dict.fromkeys(told, "B's best client_lr = 0.4 lies at the edge of the grid")
    assert "A's best client_lr = 0.4, B's" in rules.close("p", "A", "B", 70)(edge).provisional
    assert rules.at_least_as_good("p", "A", "B", 1)(edge).provisional.startswith("B's")
    near = made_up({"A": [0.79, 0.9, 0.82, 0.7, 0.8], "B": [0.8, 0.81, 0.82, 0.8, 0.8]}, at=3)
    undecided = rules.at_least_as_good("p", "A", "B", 1)(near)
    assert undecided.verdict == "underpowered"
    assert undecided.provisional.startswith("A's best client_lr = 0.4, B's")
    condition = replace(edge, problems={"p": replace(edge.problems["p"], grid_of="wider")})
    assert not rules.better("p", "A", "B")(condition).provisional  # the paper's grid, beside a wider one
    fewer = {name: some[:4] for name, some in values.items()}
    assert rules.better("p", "A", "B")(made_up(fewer, at=1)).provisional == "4 seeds, fewer than 5"
    both = rules.together(*2 * (rules.better("p", "A", "B"),))(edge)
    assert both.provisional.count("edge") == 1


def test_methods_that_have_not_learnt_are_not_called_alike_or_better():
    """By their test metric, training loss and chance; one that has learnt is better than one that has not."""
    low, high = [0.0, 0.01, -0.01, 0.01, -0.01], [0.8, 0.81, 0.82, 0.8, 0.8]
    cells = made_up({"A": low, "B": low[::-1], "C": high})
    assert rules.close("p", "A", "B", 5)(cells).verdict == "not learnt"
    assert rules.at_least_as_good("p", "C", "A", 1)(cells).verdict == "not learnt"
    assert rules.at_least_as_good("p", "A", "C", 1)(cells).verdict == NO
    assert rules.better("p", "A", "B")(cells).verdict == "not learnt"
    assert rules.better("p", "C", "A")(cells).verdict == YES
    some = rules.each_better("p", [("C", "A"), ("A", "B")])(cells)
    assert (some.verdict, "neither has learnt in A over B" in some.reason) == ("partly", True)
    for cell in cells.by_name.values():
        cell.tuned.metrics["train_loss"] = np.full((1, 5, 2), 1.0)
    assert rules.better("p", "C", "A")(cells).verdict == "not learnt"
    above = made_up({"C": high, "D": [0.4, 0.41, 0.42, 0.4, 0.4]})
    by_chance = replace(above, problems={"p": replace(above.problems["p"], chance=0.82)})
    assert [rules.better("p", "C", "D")(one).verdict for one in (above, by_chance)] == [YES, "not learnt"]


def test_collapsed_seeds_are_counted_and_not_averaged():
    """A seed that gains less than half of what the median seed does is told apart, with where it ends."""
    a, b = [0.778, 0.084, 0.76, 0.782, 0.784], [0.70, 0.69, 0.69, 0.68, 0.71]
    cells = made_up({"A": a, "B": b}, at=1)
    assert cells.collapsed("p", "A").tolist() == [False, True, False, False, False]
    found = rules.difference(cells, "p", "A", "B")
    differences = 100 * np.delete(np.subtract(a, b), 1)
    low, high = stats.t.interval(0.95, 3, differences.mean(), stats.sem(differences))
    np.testing.assert_allclose(
        [found.mean, found.low, found.high], [differences.mean(), low, high], rtol=1e-12
    )
    told = rules.better("p", "A", "B")(cells)
    assert "A 77.6 ± 1.1 % and 8.4 on 1 of 5 seeds, which collapsed" in told.ours
    assert "without 1 seed that collapsed" in told.ours
    assert told.verdict == "partly"
    assert told.provisional == "4 seeds, fewer than 5"
    in_part = rules.each_better("p", [("A", "B"), ("C", "B")])(made_up({"A": a, "B": b, "C": b}, at=1))
    assert "(A over B) on the seeds that did not collapse" in in_part.reason
    assert rules.better("p", "B", "A")(cells).verdict == NO
    own_data = replace(cells, problems={"p": replace(cells.problems["p"], data_by_seed=True)})
    assert not own_data.collapsed("p", "A").any()


def test_after_a_sweep_of_fewer_rounds_whole_runs_choose_between_its_best_and_the_published_setting(
    tmp_path, monkeypatch
):
    short = replace(PROBLEM, tuning={**PROBLEM.tuning, "rounds": 2})
    study = replace(STUDY, problems={"small": short})
    assert solve(study, Context(tmp_path)).cell("small", "FedAvg").chosen == {"client_lr": 0.1}
    runs = {}
    monkeypatch.setattr(runner, "_is_better", lambda one, other: runs.update(pair=(one, other)) or False)
    read = solve(study, Context(tmp_path, stored_only=True)).cell("small", "FedAvg")
    assert (read.chosen, read.grid is not None) == ({"client_lr": 0.01}, True)
    assert [run.rounds[-1] for run in runs["pair"]] == [4, 4]
    monkeypatch.undo()
    assert runner._is_better(*runs["pair"])
    assert not runner._is_better(*runs["pair"][::-1])
    most = [
        replace(
            run, selection=Selection("test_accuracy", 1), metrics={"test_accuracy": run.metrics["train_loss"]}
        )
        for run in runs["pair"]
    ]
    assert not runner._is_better(*most)


def test_a_colour_belongs_to_a_method():
    assert styles(["x", "FedAdam"])["FedAdam"] == styles(["FedAdam", "FedAvg"])["FedAdam"]
    shown = styles([f"own {i}" for i in range(20)] + ["FedAvg"])
    assert len(set(shown.values())) == 21
    assert len({colour for colour, _ in styles(["FedDualAvg", "FedMiD", *"abcd"]).values()}) == 6


def test_a_rule_by_another_metric_and_at_an_earlier_round():
    """Curves that cross: the later winner is not the earlier one; another column is judged as it is."""
    noise = 0.01 * np.arange(3)[:, None] * [1, 1, 1]

    def cell(curve):
        values = curve + noise
        metrics = {"test_accuracy": values[None], "density": 1 - values[None]}
        rounds, lost = np.array([0, 2, 4]), np.full((1, 3), -1)
        sweep = SweepRecord("m", "p", {"a": (1,)}, (0, 1, 2), rounds, metrics, lost, Selection("density", 1))
        return Cell(sweep, None, None)

    found = {("p", "A"): cell([0.3, 0.5, 0.8]), ("p", "B"): cell([0.3, 1.3, 0.1])}
    cells = replace(made_up({"A": [1.0] * 3}), by_name=found)
    a_wins = rules.better("p", "A", "B")
    assert a_wins(cells).verdict == "reproduced"
    assert at_round(3, a_wins)(cells).verdict == "not reproduced"
    assert at_round(4, a_wins)(cells).verdict == "reproduced"
    assert at_round(4, a_wins, last=4)(cells).verdict == "not reproduced"  # 0.65 against 0.7
    assert by_metric("density", a_wins)(cells).verdict == "reproduced"
    assert at_round(3, by_metric("density", a_wins))(cells).verdict == "not reproduced"
    assert by_window("p", a_wins)(cells).reason.endswith(
        "; alike of the last 2 rounds and of the last evaluation"
    )
    two = replace(cells, problems={"p": replace(cells.problem("p"), last=2)})
    found = by_window("p", a_wins)(two)
    assert found.verdict == "reproduced"
    assert found.reason.endswith("on which the verdict hangs; of the last 4 rounds: not reproduced")


def test_losses_that_are_decades_apart_are_compared_in_decades():
    """A hundredth of a loss on every seed is two decades, whichever of them is large; plainly it is below the noise."""
    b = np.array([1.0, 1e-6, 3e-3])
    cells = made_up({"A": 0.01 * b * [1.1, 1.0, 0.9], "B": b}, metric="train_loss", at=1)
    plain = rules.better("p", "A", "B")
    assert plain(cells).verdict == "underpowered"
    told = in_decades(plain)(cells)
    gaps = 2 - np.log10([1.1, 1.0, 0.9])
    half = stats.t.ppf(0.975, 2) * gaps.std(ddof=1) / np.sqrt(3)
    assert told.verdict == "reproduced"
    assert told.ours.startswith("log10 of the training loss: A ")
    assert told.ours.endswith(
        f"A over B {gaps.mean():+.3g} [{gaps.mean() - half:.3g}, {gaps.mean() + half:.3g}]"
    )
    assert at_round(1, in_decades(plain))(cells).verdict == "not learnt"  # all begin alike


def test_several_metrics_leave_out_what_diverged():
    """The seeds that are left, and a known solution as a line that is no method's."""
    cells = made_up({"FedAvg": [0.5, 0.6, np.nan], "FedAdam": [0.5, 0.6, 0.7]})
    metrics = cells.cell("p", "FedAvg").tuned.metrics
    metrics["known_test_accuracy"] = np.ones_like(metrics["test_accuracy"])
    study = replace(STUDY, problems=cells.problems, seeds=cells.seeds)
    caption, figure = Several("By round.", ("test_accuracy",), beside="known").draw(study, cells)
    assert caption == "By round. Seeds 0, 1, 2. Diverged and left out: FedAvg on 1 of 3."
    drawn = {line.get_label(): line.get_ydata()[-1] for line in figure.axes[0].get_lines()}
    assert drawn == pytest.approx({"FedAvg": 55, "FedAdam": 60, "known": 100})


def test_maps_of_two_rates():
    """A method's grid; rates at which all diverge are left out and named."""
    rates = {"client_lr": (0.1, 0.2, 0.3), "server_lr": (1.0, 2.0)}
    ends = np.array([[0.5], [0.6], [0.9], [0.8], [np.nan], [np.nan]])
    values = {"test_accuracy": np.stack([ends, ends], axis=-1)}
    lost = np.where(np.isnan(ends), 1, -1)
    grid = SweepRecord("m", "p", rates, (0,), np.array([0, 4]), values, lost, Selection("test_accuracy", 1))
    cells = replace(made_up({"FedAvg": [0.5]}), by_name={("p", "FedAvg"): Cell(None, grid, None)})
    study = replace(STUDY, problems=cells.problems, seeds=cells.seeds)
    caption, figure = Maps("Accuracy.", "test_accuracy", best=100, columns=1).draw(study, cells)
    assert caption.endswith("framed. Every method diverged at client_lr 0.3.")
    assert [text.get_text() for text in figure.axes[0].texts] == ["50.00", "60.00", "90.00", "80.00"]
    assert len(figure.axes[0].patches) == 2  # the frame and its edge
    few = within(grid, {"client_lr": (0.2, 0.3), "server_lr": (1.0, 2.0)})
    both = replace(cells, by_name={**cells.by_name, ("p", "FedAdam"): Cell(None, few, None)})
    caption, figure = Maps("Accuracy.", "test_accuracy", columns=2).draw(study, both)
    assert caption.endswith("client_lr 0.3. Values that only some methods have run are left out.")
    assert [text.get_text() for text in figure.axes[0].texts] == ["90.00", "80.00"]
    assert [len(axis.patches) for axis in figure.axes[:2]] == [2, 2]
    other = within(grid, {"client_lr": (0.1, 0.3), "server_lr": (1.0, 2.0)})
    both = replace(cells, by_name={**cells.by_name, ("p", "FedAdam"): Cell(None, other, None)})
    caption, _ = Maps("Accuracy.", "test_accuracy", columns=2).draw(study, both)
    assert caption.endswith("left out, among them what was chosen: FedAvg's client_lr 0.2, server_lr 1.")


def test_pictures_along_a_number():
    cells = made_up({"FedAvg": [0.5, 0.6, 0.7]})
    study = replace(STUDY, problems=cells.problems, seeds=cells.seeds)
    caption, figure = Along("At the end.", "steps", {"p": 10}).draw(study, cells)
    assert caption == "At the end. Seeds 0, 1, 2."
    assert figure.axes[0].get_xlabel() == "steps"


def test_published_numbers_beside_ours():
    """A point for each published method, named in the legend alone; methods of one colour have other shapes."""
    cells = made_up({"FedAvg": [0.5, 0.7], "FedAdagrad": [0.6, 0.6], "other": [0.7, 0.7]})
    published = replace(cells.problem("p"), published={"FedAvg": 0.4, "FedAdagrad": 0.5})
    cells = replace(cells, problems={"p": published})
    study = replace(STUDY, problems=cells.problems, seeds=cells.seeds)
    _, figure = Against("Theirs and ours.").draw(study, cells)
    points = [bars[0] for bars in figure.axes[0].containers]
    assert [tuple(p.get_xydata()[0]) for p in points] == [(40, pytest.approx(60)), (50, pytest.approx(60))]
    assert [(p.get_color(), p.get_marker()) for p in points] == [("#0072B2", "o"), ("#0072B2", "s")]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FedAvg", "FedAdagrad"]
    assert not figure.axes[0].texts


def test_many_bands_are_lighter():
    lines = [Line(f"m{i}", np.arange(3), np.ones((2, 3)) * [[1], [2]]) for i in range(6)]
    drawn = panels([[Panel("", lines[:5], "y"), Panel("", lines, "y")]], "t").axes
    assert [{band.get_alpha() for band in axis.collections} for axis in drawn] == [{0.15}, {0.06}]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Method(fs.FedAvg), "published setting or a grid"),
        (lambda: Method(fs.FedAvg, {"client_lr": 1.0}, {"client_lr": (0.1, 0.2)}), "lacks the published 1.0"),
        (lambda: Method(fs.FedAvg, {"client_lr": 1.0}, {"server_lr": (1.0,)}), "both need the same axes"),
        (lambda: replace(PROBLEM, options={}), "has no rounds"),
        (lambda: replace(PROBLEM, tested=-1), "tested"),
        (lambda: made_up({"A": [1.0]}).problem("q"), "problem of the study 'q'"),
    ],
)
def test_bad_input_is_one_clear_line(make, says):
    with pytest.raises(InvalidInput, match=says):
        make()


def test_pictures_of_one_caption_are_all_on_the_page(tmp_path):
    figures = [new_figure(width, 1) for width in (1, 2)]
    drawn = {str(i): lambda figure=figure: ("Alike.", figure) for i, figure in enumerate(figures)}
    made = Outcome((), drawn, {}, (), {})
    page = write_results(tmp_path, "made-up", experiment(STUDY), made, 1.0, "by hand")
    assert page.read_text().count("<figure ") == len(list(tmp_path.glob("*.png"))) == 2


def test_a_claim_shows_its_weakest_number_the_papers_words_and_its_picture(tmp_path):
    """What else was measured is folded; the outcome stands above the first picture."""
    ours = "A 3, B 2, C 1; A over B +1 [-0.5, 2.5]; A over C +2 [1, 3]"
    claim = Claim(
        "FedMiD and FedMiD-OSP remain slow", "Figure 6 and A.2.2", ours, "underpowered", "few data sets"
    )
    figures = {
        key: (caption, new_figure(1, 1)) for key, caption in (("f1", "F1 score."), ("slow", "Slow methods."))
    }
    made = Outcome((claim,), {key: lambda one=one: one for key, one in figures.items()}, {}, (), {})
    study = replace(STUDY, paper="yuan2021fco")
    page = write_results(tmp_path, "made-up", experiment(study), made, 1.0, "by hand").read_text()
    shown, folded = page.split("<article", 1)[1].split("<details>", 1)
    assert '<p>A over B +1 [-0.5, 2.5] <a href="#slow">picture</a></p>' in shown
    assert "A.2.2: “The convergence of FedMiD and FedMiD-OSP remains slow”" in shown
    assert "A over C +2 [1, 3]" in folded
    assert page.index("1 claim of the paper is underpowered.") < page.index('<figure id="f1"')
    assert page.index('<figure id="f1"') < page.index("<article") < page.index('<figure id="slow"')


def test_curves_by_bytes(tmp_path):
    """FedAvg sends 5 features and a loss in float32, 24 bytes a round; the picture begins at round 2."""
    context = Context(tmp_path)
    cells = solve(STUDY, context)
    sent = cells.sent("small", "FedAvg")
    assert list(sent) == [0, 48, 96]
    _, figure = Curves("By bytes.", x="bytes_up").draw(STUDY, cells)
    line = figure.axes[0].get_lines()[0]
    np.testing.assert_array_equal(line.get_xdata(), sent[1:])
    kept = cells.cell("small", "FedAvg")
    bare = Cell(replace(kept.published, settings={}), None, None)
    with pytest.raises(InvalidInput, match="draw it by round"):
        Cells(cells.problems, cells.seeds, {("small", "FedAvg"): bare}).sent("small", "FedAvg")
