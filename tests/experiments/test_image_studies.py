"""The image studies: what they run fits the library and the papers' tables, and their rules read made-up results."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.feddua.methods import MeanOfTwo
from experiments.networks import rules
from experiments.networks.autoencoder import study as autoencoder
from experiments.networks.cifar import study as cifar
from experiments.networks.femnist import study as femnist
from experiments.networks.methods import around
from experiments.networks.vit import study as vit
from fedsolve.engine.options import RunOptions
from fedsolve.engine.sweep_grid import build_methods
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells
from fedsolve.studies.cells import Cell
from fedsolve.studies.reproduce import reproduce
from fedsolve.studies.rules import better, early

STUDIES = {
    "femnist": femnist.STUDY,
    "cifar": cifar.STUDY,
    "autoencoder": autoencoder.STUDY,
    "vit": vit.STUDY,
}
SIZES = [(name, size) for name in STUDIES for size in ("problems", "full")]
FIGURE_4 = {
    "ResNet": {"FedExP": 0.484, "FedDuAdagrad": 0.512, "FedAvg": 0.395, "FedAdagrad": 0.409},
    "ViT": {"FedExP": 0.25, "FedDuAdagrad": 0.35, "FedAvg": 0.2, "FedAdagrad": 0.3},
}
"""Numbers as Figure 4 and Table 2 have them, in order; those of the ViT are made up."""


def made_up(study, numbers):
    """Cells that end at `numbers`, problem -> method -> value, 0.1 % apart by seed; FedYogi and FedAdam rise faster."""

    def sweep(name, problem, end):
        rounds = 1_000 * np.arange(5)
        way = (rounds / 4_000) ** (0.3 if name in ("FedYogi", "FedAdam") else 1.0)
        start = 0.1 if problem.metric == "test_loss" else 0.0
        curves = np.stack([start + way * (end * (1 + 1e-3 * seed) - start) for seed in study.seeds])
        axes = {"client_lr": (0.1,)}
        found = {problem.metric: curves[None]}
        return SweepRecord(
            name, "t", axes, study.seeds, rounds, found, np.full((1, len(study.seeds)), -1), Selection("x", 1)
        )

    by_name = {
        (p, m): Cell(sweep(m, study.problems[p], value), None, None)
        for p, values in numbers.items()
        for m, value in values.items()
    }
    return Cells(study.problems, study.seeds, by_name)


def papers(name):
    """The papers' own numbers by problem and method."""
    return FIGURE_4 if name == "vit" else {k: dict(p.published) for k, p in STUDIES[name].problems.items()}


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_every_problem_is_one_that_a_sweep_takes(name, size):
    study = STUDIES[name] if size == "problems" else STUDIES[name].at_full_size()
    assert set(STUDIES[name].problems) <= set(STUDIES[name].full)
    for key, problem in study.problems.items():
        methods = study.methods_of(key)
        assert set(problem.published) <= set(methods)
        for options in (problem.options, {**problem.options, **problem.tuning}):
            share = {k: v for k, v in options.items() if k == "validation"}
            assert ("validation" in problem.select) == bool(share)
            RunOptions(**{k: v for k, v in options.items() if k not in share})
        for method in methods.values():
            assert build_methods(method.make, method.grid or {k: (v,) for k, v in method.published.items()})
            assert len(method.grid.get("client_lr", (0.1, 0.2, 0.3))) >= 3


def test_the_papers_rates_reach_the_methods():
    feddua, fedopt = (cifar.METHODS[f"CIFAR-100 {paper}"] for paper in (cifar.FEDDUA, cifar.FEDOPT))
    made = feddua["FedDuAdam"].make(**feddua["FedDuAdam"].published)
    assert isinstance(made, MeanOfTwo)
    local = made.inner.local
    assert (float(local.lr(0)), float(local.lr(1))) == pytest.approx((0.01, 0.00998))
    assert (local.weight_decay, local.clip_norm, made.inner.weighting) == (1e-4, 10.0, "uniform")
    assert float(made.inner.server_optimizer.eps_g) == pytest.approx(0.1)
    yogi = fedopt["FedYogi"].make(**fedopt["FedYogi"].published)
    assert yogi.weighting == "examples"
    assert float(yogi.local.lr) == pytest.approx(10**-1.5)
    assert (yogi.server_optimizer.lr, yogi.server_optimizer.tau) == (1.0, pytest.approx(0.1))
    assert not isinstance(feddua["FedAvgM"].make(client_lr=0.01, server_lr=1.0), MeanOfTwo)
    assert around(0) == pytest.approx((10**-0.5, 1.0, 10**0.5))


@pytest.mark.parametrize("name", STUDIES)
def test_the_papers_own_numbers_reproduce_the_papers_statements(name):
    cells = made_up(STUDIES[name], papers(name))
    for statement in STUDIES[name].evaluated:
        found = statement.decide(cells)
        assert found.verdict == "reproduced", (statement.says, found)


@pytest.mark.parametrize("name", STUDIES)
def test_the_contrary_numbers_reproduce_no_order(name):
    """The best method's number is the worst's and the other way round: what is close stays close, no order holds."""
    turned = {
        p: {m: min(v.values()) + max(v.values()) - x for m, x in v.items()} for p, v in papers(name).items()
    }
    cells = made_up(STUDIES[name], turned)
    verdicts = {s.says: s.decide(cells).verdict for s in STUDIES[name].evaluated}
    orders = {says: v for says, v in verdicts.items() if "within" not in says and "at first" not in says}
    assert "reproduced" not in orders.values()
    assert "not reproduced" in orders.values()


def test_who_is_ahead_early_and_by_what_factor():
    study = autoencoder.STUDY
    cells = made_up(study, {"autoencoder": {"FedAdam": 0.01, "FedAvg": 0.01, "FedAvgM": 0.04}})
    found = early("autoencoder", better("autoencoder", "FedAdam", "FedAvg"))(cells)
    assert found.verdict == "reproduced"
    # after a quarter of the rounds: 0.1 - 0.09 * 0.25^0.3 against 0.1 - 0.09 * 0.25
    assert f"{0.09 * (0.25**0.3 - 0.25):+.3g}" in found.ours
    assert early("autoencoder", better("autoencoder", "FedAvg", "FedAdam"))(cells).verdict == "not reproduced"
    assert rules.times_lower("autoencoder", "FedAdam", "FedAvgM", 3.0)(cells).verdict == "reproduced"
    assert rules.times_lower("autoencoder", "FedAdam", "FedAvgM", 5.0)(cells).verdict == "not reproduced"
    lingering = made_up(study, {"autoencoder": {"FedAdam": 0.018, "FedAvg": 0.02, "FedAvgM": 0.02}})
    assert {s.decide(lingering).verdict for s in study.evaluated} == {"not learnt"}
    assert "4 times" in rules.times_lower("autoencoder", "FedAdam", "FedAvgM", 3.0)(cells).ours


@pytest.mark.full
@pytest.mark.parametrize("name", STUDIES)
def test_the_quick_form_runs_without_the_data_folder(name, tmp_path, monkeypatch):
    monkeypatch.delenv("FEDSOLVE_DATA", raising=False)
    found = reproduce(name, tmp_path, quick=True)
    assert found.page.exists()
    assert {p.stem for p in tmp_path.glob("*.png")} == set(STUDIES[name].pictures)
