"""What the stored studies found: the package's table is of them as they are, and a setting of it is used as it was."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedsolve as fs
from fedsolve.data.partitions import Dirichlet
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells, Method, Problem
from fedsolve.studies.cells import Cell
from fedsolve.studies.settings import choose, known_settings

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import settings_table as table  # noqa: E402 (beside `make generate`, which writes the table)

# The table.


def test_every_method_on_every_problem_of_the_stored_studies_answers():
    asked = {
        (name, problem, label)
        for name, study in table.studies().items()
        for problem in study.problems
        for label in study.methods_of(problem)
    }
    assert {(s.study, s.problem, s.label) for s in known_settings()} == asked
    for task, method in {(s.task or s.study, s.method or s.label) for s in known_settings()}:
        found = fs.settings(task, method)
        assert found
        assert all(task in (s.task, s.study) and method in (s.method, s.label) for s in found)
    assert fs.settings("lasso-1") == [s for s in known_settings() if s.study == "lasso-1"]
    assert {s.method for s in fs.settings(method="FedYogi")} == {"FedYogi"}


def test_the_table_is_of_the_studies_as_they_are():
    assert table.text() == table.stored(), "run: make generate"
    assert (ROOT / table.TABLE).stat().st_size <= 200_000
    assert (ROOT / "docs/settings.md").read_text() == table.page(), "run: make generate"


def rows(name):
    known = [row for row in json.loads(table.stored())["settings"] if row["study"] == name]
    return known, {row["problem"] for row in known if row.get("same_task")}


@pytest.mark.gate("fw-averaging", "femnist", "next-word")
@pytest.mark.parametrize("name", table.studies())
def test_a_study_gives_its_rows(name):
    known, same = rows(name)
    made = table.of_study(name, table.studies()[name], same)
    assert json.loads(json.dumps(made)) == known, f"run: python tools/settings_table.py {name}"


RATES, TAUS = (0.01, 0.1, 1.0), (1e-3, 1e-2)
SCORES = np.array([[5.0, 4.0], [2.09, 2.0], [2.2, 3.0]])  # by rate and tau, of one seed


def swept(grid, metrics, seeds, lost=()):
    diverged = np.full(metrics["train_loss"].shape[:2], -1)
    diverged[0, list(lost)] = 3
    return SweepRecord(
        "FedAdam", "t", grid, seeds, np.arange(0, 20, 10), metrics, diverged, Selection("train_loss", 1)
    )


def test_a_row_by_hand():
    """Best 2.0 at the middle rate and the largest of two taus; 2.0 and 2.09 lie within 5 %, 2.2 does not."""
    losses = np.stack([np.full(6, 9.0), SCORES.ravel()], axis=-1)[:, None]
    grid = swept({"client_lr": RATES, "tau": TAUS}, {"train_loss": losses}, (0,))
    ends = np.array([0.5, 0.6, 0.8, 0.0])
    metrics = {
        "train_loss": np.array([[[9.0, 1.0]] * 4]),
        "test_accuracy": np.stack([0 * ends, ends], -1)[None],
    }
    tuned = swept({"client_lr": (0.1,), "tau": (1e-2,)}, metrics, (0, 1, 2, 3), lost=[3])
    problem = Problem("t", "small", lambda data: None, {"rounds": 10}, select="train_loss")
    cell = Cell(None, grid, tuned)
    method = Method(lambda client_lr, tau: fs.FedAdam(client_lr, tau=tau), grid=grid.grid)
    row = table._row(cell, method)
    assert row["grid"] == {"client_lr": list(RATES), "tau": list(TAUS)}
    assert (row["select"], row["tuned_on"]) == ("train_loss:1", 1)
    assert row["near_best"] == pytest.approx(2 / 6, abs=1e-4)
    assert (row["method"], row["settings"], row["edges"]) == ("FedAdam", {"tau": 0.01}, {})
    score = table._score(Cells({"p": problem}, (0, 1, 2, 3), {("p", "FedAdam"): cell}), "p", "FedAdam")
    mean, spread = np.mean(ends[:3]), stats.sem(ends[:3])
    assert score["score"] == pytest.approx([mean, *stats.t.interval(0.95, 2, mean, spread)], abs=1e-3)
    assert (score["seeds"], score["lost"]) == (4, 1)
    low = Cell(None, grid, swept({"client_lr": (0.01,), "tau": (1e-2,)}, metrics, (0, 1, 2, 3)))
    high = Cell(None, grid, swept({"client_lr": (1.0,), "tau": (1e-2,)}, metrics, (0, 1, 2, 3)))
    assert [table._edges(one) for one in (low, high)] == [{"client_lr": "low"}, {"client_lr": "high"}]


def test_a_task_that_a_study_changes_is_not_the_catalogues():
    def problem(change):
        return Problem("t", "small", lambda data: change(fs.tasks.digits(4, model="softmax")), {"rounds": 1})

    same = problem(lambda task: replace(task, test=None))
    fewer = problem(lambda task: replace(task, batch_size=7))
    other = problem(lambda task: replace(task, init=lambda key: jax.tree.map(jnp.negative, task.init(key))))
    made = table.built_from(same, 0)
    assert (made.name, dict(made.options)) == ("digits", {"num_clients": 4, "model": "softmax"})
    assert [table._is_same(made, one, 0, known=False) for one in (same, fewer, other)] == [True, False, False]
    assert table.built_from(problem(lambda task: task), 0) == made
    own = Problem("t", "small", lambda data: None, {"rounds": 1})
    assert table.built_from(own, 0) is None


# A setting for a run.


def chosen(method, task, options=(), run=(), given=()):
    return choose(method, task, dict(options), dict(run), dict(given))


def test_the_task_has_the_same_options_however_they_are_written():
    on = [{"num_clients": 20, "partition": p} for p in (Dirichlet(0.1), {"name": "dirichlet", "alpha": 0.1})]
    first, second = (chosen("FedMuon", "digits", options)[0] for options in on)
    assert first == second
    assert first.study == "muon-bias"
    plain = chosen(
        "FedYogi", "digits", {"num_clients": 100, "partition": Dirichlet(0.3), "seed": 7, "model": "mlp"}
    )
    assert plain[0].task_options == {}  # these are the defaults; a seed draws other data of the same kind
    for other in (
        {"num_clients": 20},
        {"model": "softmax"},
        {"partition": {"name": "dirichlet", "alpha": 0.1}},
    ):
        (name,) = other
        with pytest.raises(
            fs.InvalidInput, match=f"FedYogi was tuned on digits in .* with {name} .* there, .* here"
        ):
            chosen("FedYogi", "digits", other)


def test_of_several_studies_that_whose_run_is_most_like_this_one():
    def study(**run):
        return chosen("FedAvg", "digits", run=run)[0].study

    assert study(rounds=60, clients_per_round=20) == "fedopt-tuning"
    assert study(rounds=150, clients_per_round=20, batch_size=10, local_steps=5) == "bytes-to-accuracy"
    found, words = chosen("FedAvg", "digits", run={"rounds": 60, "clients_per_round": 5})
    assert f"the study {found.study} ({found.problem})" in words
    assert "clients_per_round 20 there, 5 here" in words
    assert "rounds 60 there" not in words
    same = chosen("FedAvg", "digits", run=found.run)[1]
    assert "this run has the same" in same


def test_a_value_of_ones_own_stays_and_is_said():
    found, words = chosen("FedAvg", "digits", run={"rounds": 60}, given={"client_lr": 0.5})
    assert found.settings["client_lr"] != 0.5
    assert words.splitlines()[-2] == "in place of it, as you say: client_lr 0.5"
    # of variants of a method that which has the value given
    bits = {"compressor": {"name": "EDEN", "bits": 2}}
    assert chosen("Compressed+FedAvg", "digits", given=bits)[0].settings["compressor"]["bits"] == 2
    assert "in place" not in chosen("Compressed+FedAvg", "digits", given=bits)[1]


def test_what_no_study_has_tuned_is_refused_with_the_nearest_pairs():
    with pytest.raises(
        fs.InvalidInput,
        match=r"no stored study has FedMuon on mnist as it is: mnist has .*; FedMuon is known on digits",
    ):
        fs.tuned("FedMuon", "mnist")
    with pytest.raises(fs.InvalidInput, match="did you mean 'FedAdam'"):
        fs.tuned("FedAdm", "digits")
    with pytest.raises(fs.InvalidInput, match="did you mean 'digits'"):
        fs.tuned("FedAdam", "digit")
    with pytest.raises(fs.InvalidInput, match="did you mean 'rounds'"):
        fs.tuned("FedAdam", "digits", round=10)
    with pytest.raises(fs.InvalidInput, match="not as a builder of fedsolve"):
        fs.tuned("FedAdam", replace(fs.tasks.digits(4), test=None))
    # images that the study deals to clients otherwise: shown, and not used
    assert not any(found.same_task for found in fs.settings("cifar10", "FedFW"))
    with pytest.raises(fs.InvalidInput, match="no stored study has FedFW on cifar10 as it is"):
        fs.tuned("FedFW", "cifar10")


# of which the seeds' runs are not chaotic: elsewhere rounding moves a mean by more than the seeds of one data set do
REPEATED = [
    ("tuning-free-league", "synthetic", "FedAvgM"),
    ("tuning-free-league", "lasso", "FedExP"),
    ("tuning-free-league", "lasso", "FedDuAdam"),
    ("bytes-to-accuracy", "digits", "FedAdam"),
    ("muon-bias", "digits, 5 of 20", "FedMuon"),
]


@pytest.mark.gate("tuning-free-league FedExP")
@pytest.mark.parametrize("of", REPEATED, ids=lambda of: f"{of[0]} {of[2]}")
def test_the_tuned_method_repeats_the_stored_mean(of, capsys):
    (row,) = (s for s in known_settings() if (s.study, s.problem, s.label) == of)
    task = fs.tasks.build(row.task, **row.task_options)
    method = fs.tuned(row.method, task, **row.run)
    assert "in place" not in (said := capsys.readouterr().out)
    assert f"the study {row.study} ({row.problem})" in said
    runs = fs.run(method, task, seeds=row.seeds, **row.run)
    rounds = np.asarray(runs.runs[0].history.evaluations["round"])
    ends = [np.mean(r.history.evaluations[row.metric][rounds > rounds[-1] - row.last]) for r in runs.runs]
    assert row.score.low <= np.mean(ends) <= row.score.high
