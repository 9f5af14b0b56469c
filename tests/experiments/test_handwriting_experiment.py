"""Constrained handwriting: the methods' order, tuning, verdicts, and a quick run."""

import os
from dataclasses import replace

import numpy as np
import pytest

from fedsolve.experiments import handwriting_cases
from fedsolve.experiments.catalogue import reproduce
from fedsolve.experiments.handwriting import outcome, reached, verdicts
from fedsolve.experiments.handwriting_cases import CASES, GRID, METHODS, Case, Effort, Found, solve
from fedsolve.studies.experiment import Context
from fedsolve.tasks.digits import digits

SMALL = Effort(screen=2, keep=2, steps=3, looks=2)


def case(radius):
    build = lambda data_dir: digits(num_clients=10, model="softmax")  # noqa: E731
    return Case("digits", "ours", build, "l1", radius, GRID[-2:], rounds=6)


@pytest.fixture(scope="module")
def tight(tmp_path_factory):
    """All methods where the ball is reached at once."""
    tight = case(2.0)
    return tight, solve(Context(tmp_path_factory.mktemp("tight")), "tight", tight, SMALL, tight.task(None))


def test_the_methods_are_the_four_of_the_paper():
    psi = CASES["digits-l1"].psi
    assert [build(psi, 0.1, 1.0).name for build in METHODS.values()] == list(METHODS)


def test_constraints_are_on_the_weights_alone():
    for each in CASES.values():
        assert [part.pattern for part in each.psi.parts] == ["weight"]


@pytest.mark.full
def test_tight_ball_is_kept_reached_and_sparse(tight):
    problem, results = tight
    assert reached(problem, results)
    for found in results.values():
        assert np.all(found.metrics["infeasibility"] <= 1e-4)
        assert found.curve("norm")[-1] <= 2.0 + 1e-4
        assert found.curve("density")[-1] < 0.9
        losses = found.metrics["train_loss"][:, -3:].mean(axis=1)
        assert found.last("train_loss") == pytest.approx(losses.min())


@pytest.mark.full
def test_screening_keeps_the_settings_of_lowest_loss(tmp_path, monkeypatch):
    monkeypatch.setattr(handwriting_cases, "METHODS", {"FedMiDOSP": METHODS["FedMiDOSP"]})
    wide = replace(case(1e6), grid=((0.001, 0.01), (0.1, 1.0), (0.03, 1.0)))
    found = solve(Context(tmp_path), "wide", wide, SMALL, wide.task(None))["FedMiDOSP"]
    np.testing.assert_array_equal(
        found.settings, [[0.1, 1.0], [0.03, 1.0]]
    )  # small steps get nowhere so soon
    assert found.chosen == 0


@pytest.mark.full
def test_methods_agree_where_the_ball_is_never_reached(tmp_path):
    wide = case(1e6)
    results = solve(Context(tmp_path), "wide", wide, SMALL, wide.task(None))
    assert not reached(wide, results)
    curves = [found.curve("train_loss") for found in results.values()]
    for curve in curves[1:]:
        np.testing.assert_allclose(curve, curves[0], rtol=1e-5)


@pytest.mark.full
def test_outcome_tells_claims_and_pictures(tight):
    found = outcome({"tight": tight}, SMALL)
    assert [claim.claim.split(": ")[1] for claim in found.claims] == [
        "FedDualAvg is best",
        "FedMiD and FedMiD-OSP are nearly the same",
    ]
    assert "the radius is ours" in found.claims[0].reason
    assert len(found.tables["tuned"].rows) == 4


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ((0.30, 0.50, 0.40, 0.401), ("reproduced", "reproduced", "reproduced", "reproduced")),
        ((0.399, 0.41, 0.40, 0.41), ("partly", "partly", "not reproduced", "partly")),
        ((0.45, 0.30, 0.40, 0.50), ("not reproduced", "not reproduced", "not reproduced", "partly")),
    ],
)
def test_verdicts(losses, expected):
    loss = dict(zip(METHODS, losses, strict=True))  # FedDualAvg, its OSP, FedMiD, its OSP
    accuracy = dict(zip(METHODS, (0.9, 0.91, 0.90, 0.90), strict=True))
    found = verdicts(loss, accuracy, True)
    assert tuple(found[k] for k in ("best", "same", "osp", "odd")) == expected


def test_a_constraint_that_never_acts_compares_nothing():
    assert set(verdicts({}, {}, False).values()) == {"not comparable"}


def test_tuning_passes_over_a_setting_that_diverged():
    loss = np.array([[1.0, np.nan, np.nan, np.nan], [1.0, 0.9, 0.8, 0.7]])
    found = Found(np.array(GRID[:2]), 1, np.arange(4), {"train_loss": loss})
    assert found.last("train_loss") == pytest.approx(0.8)


@pytest.mark.skipif("FEDSOLVE_DATA" not in os.environ, reason="FEDSOLVE_DATA is not set: no handwriting")
def test_quick_run(tmp_path):
    found = reproduce("constrained-handwriting", tmp_path, quick=True)
    assert found.page.exists()
    assert all(claim.verdict is None for claim in found.outcome.claims)


def test_radius_and_rounds_can_be_changed():
    assert replace(CASES["digits-l2"], radius=3.0).psi.parts[0].psi.radius == 3.0
