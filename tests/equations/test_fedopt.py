"""FedAvg, FedAvgM and the adaptive server optimisers against Algorithms 1 and 2 of Reddi et al. 2021."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fedsolve as fs
from equations.cases import FULL, SAMPLINGS, TWO_OF_AVAILABLE, check_fedopt
from equations.server_rules import Average, FedOptRule
from equations.transcript import LocalSGD
from harness import engine, make_clients, make_task
from verbs_harness import play

SGD = LocalSGD(0.3)
EVERY = pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
BOTH = pytest.mark.parametrize("weighting", ["uniform", "examples"])


@EVERY
@BOTH
def test_fedavg(sampling, weighting):
    """w += 0.7 D with D = sum p_i D_i, p_i = 1/|S| or n_i / sum n; round 7 of `partial` is empty: w stays."""
    check_fedopt(
        fs.FedAvg(0.3, server_lr=0.7, weighting=weighting), lambda: Average(0.7), SGD, weighting, sampling
    )


@pytest.mark.full
def test_fedavg_with_a_cohort_drawn_by_the_engine():
    """Two of the clients that the trace shows, drawn with the run's keys: whole rounds of the engine."""
    algorithm = fs.FedAvg(0.3, weighting="uniform")
    run = check_fedopt(algorithm, lambda: Average(1.0), SGD, "uniform", TWO_OF_AVAILABLE, by=engine)
    assert [len(c) for c in run.cohorts] == [2, 1, 2, 2, 2, 2, 0, 2, 1, 2]


@EVERY
@pytest.mark.parametrize("ema", [False, True], ids=["heavy ball", "ema"])
def test_fedavgm(sampling, ema):
    """m = 0.8 m + D (heavy ball) or 0.8 m + 0.2 D (EMA), w += 0.5 m; m starts at 0 and waits in empty
    rounds.
    """
    algorithm = fs.FedAvgM(0.3, server_lr=0.5, momentum=0.8, ema=ema, weighting="uniform")
    check_fedopt(algorithm, lambda: Average(0.5, 0.8, ema), SGD, "uniform", sampling)


# (tau, beta2, initial v, bias) by second moment and preset: section 4.1 of the papers' facts
PRESETS = {
    ("adagrad", "paper"): (1e-3, 0.99, 1e-6, False),
    ("adagrad", "flower"): (1e-9, 0.99, 0.0, False),
    ("adagrad", "google-research"): (1e-3, 0.999, 0.0, False),
    ("adam", "paper"): (1e-3, 0.99, 1e-6, False),
    ("adam", "flower"): (1e-9, 0.99, 0.0, True),
    ("adam", "google-research"): (1e-3, 0.999, 0.0, True),
    ("yogi", "paper"): (1e-3, 0.99, 1e-6, False),
    ("yogi", "flower"): (1e-3, 0.99, 0.0, False),
    ("yogi", "google-research"): (1e-3, 0.999, 0.0, True),
}
METHODS = {"adagrad": fs.FedAdagrad, "adam": fs.FedAdam, "yogi": fs.FedYogi}


@EVERY
@pytest.mark.parametrize(("second", "preset"), PRESETS, ids=["-".join(k) for k in PRESETS])
def test_adaptive(second, preset, sampling):
    """m, v and w by Algorithm 2 with the preset's constants; Adagrad without momentum; lr 0.1 (Flower's
    Yogi .01).
    """
    tau, b2, v0, bias = PRESETS[second, preset]
    lr = 0.01 if (second, preset) == ("yogi", "flower") else 0.1
    b1 = 0.0 if second == "adagrad" else 0.9
    algorithm = METHODS[second](0.3, preset=preset)
    check_fedopt(algorithm, lambda: FedOptRule(second, lr, tau, b1, b2, v0, bias), SGD, "examples", sampling)


def test_adaptive_arguments_override_the_preset():
    """server_lr, tau and the betas that are given win over the preset's; the paper's v starts at the given
    tau^2.
    """
    algorithm = fs.FedYogi(0.3, server_lr=0.05, tau=0.02, beta1=0.5, beta2=0.8, weighting="uniform")
    check_fedopt(
        algorithm, lambda: FedOptRule("yogi", 0.05, 0.02, 0.5, 0.8, 4e-4, False), SGD, "uniform", FULL
    )


def test_flowers_first_adam_step():
    """Round 1: m = .1 D, v = .01 D^2, so m / sqrt(v) = sign(D); the correction is sqrt(1 - .99^2) / (1 -
    .9^2).

    sqrt(.0199) / .19 = .742460: with lr .1 every coordinate moves by .0742460 (tau = 1e-9 is far below |D|).
    """
    factor = math.sqrt(1 - 0.99**2) / (1 - 0.9**2)
    assert factor == pytest.approx(0.742460, abs=5e-7)
    run = play(fs.FedAdam(0.3, preset="flower"), make_task(make_clients()), FULL, 1)
    assert run.logs["server_lr"][0] == pytest.approx(0.1 * factor, rel=1e-14)
    np.testing.assert_allclose(np.abs(run.iterates[1] - run.iterates[0]), 0.1 * factor, rtol=1e-3)


def test_papers_first_adam_step():
    """Without correction and with v_0 = 0 the first step is (1 - .9) / sqrt(1 - .99) = 1 times lr sign(D).

    The paper's v_0 = tau^2 adds .99 tau^2 below the root, tau outside it: shorter than lr, the more so the
    smaller D.
    """
    task = make_task(make_clients())
    run = play(fs.FedAdam(0.3, server_lr=0.1, tau=1e-12), task, FULL, 1)
    np.testing.assert_allclose(np.abs(run.iterates[1] - run.iterates[0]), 0.1, rtol=1e-5)
    slower = play(fs.FedAdam(0.3, server_lr=0.1, tau=1e-3), task, FULL, 1)
    assert (np.abs(slower.iterates[1] - slower.iterates[0]) < 0.1).all()
