"""Where a method must be a simpler one: neutral geometry, no proximal term, equal clients, one step."""

from __future__ import annotations

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.sampling import Uniform
from fedsolve.geometry import DiagonalQuadratic
from harness import Listed, Softmax, make_clients, make_task, relative
from verbs_harness import play

COHORTS = Listed.of([[0, 1, 2, 3, 4], [3, 1], [4], [], [2, 0, 1]])
ALL = Uniform(5)


def run(algorithm, sampling=COHORTS, clients=None, rounds=5, **local):
    clients = make_clients() if clients is None else clients
    return play(algorithm, make_task(clients, **local), sampling, rounds)


@pytest.mark.full
@pytest.mark.parametrize("b1", [None, 0.9], ids=["FedExP", "FedExPM"])
def test_feddua_in_the_identity_geometry(b1):
    """psi = (1/2)|w|^2: h(eta) = eta |v|^2, so eta = m / |v|^2, FedExP's step (with momentum: FedExPM's)."""
    general = run(fs.FedDuA(DiagonalQuadratic(1.0), 0.3, beta1=b1))
    simple = run(fs.FedExP(0.3) if b1 is None else fs.FedExPM(0.3, beta1=b1))
    assert relative(general.iterates, simple.iterates) < 1e-12
    np.testing.assert_allclose(general.logs["server_lr"], simple.logs["server_lr"], rtol=1e-11)


@pytest.mark.full
def test_closed_form_of_a_diagonal_quadratic():
    """FedDuAdagrad's first step is FedDuA's with G = sqrt(D^2) + eps as a fixed quadratic: root = closed
    form.

    In round 1 s = D^2, so G = |D| + eps with D the mean displacement, which FedAvg's first step shows.
    """
    average = run(fs.FedAvg(0.3, weighting="uniform"), ALL, rounds=1)
    D = average.iterates[1] - average.iterates[0]
    closed = run(fs.FedDuAdagrad(0.3, eps=0.01), ALL, rounds=1)
    root = run(fs.FedDuA(DiagonalQuadratic(Softmax.of(np.abs(D) + 0.01)), 0.3), ALL, rounds=1)
    assert relative(root.iterates[1:] - root.iterates[0], closed.iterates[1:] - closed.iterates[0]) < 1e-11
    np.testing.assert_allclose(root.logs["server_lr"], closed.logs["server_lr"], rtol=1e-11)


def test_fedprox_without_pull():
    """mu = 0 adds 0 (y - w) = 0 to every gradient: FedAvg to the last bit."""
    assert (run(fs.FedProx(0.3, mu=0.0)).iterates == run(fs.FedAvg(0.3)).iterates).all()


@pytest.mark.full
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_with_identical_clients(option):
    """Equal full-batch clients have c_i = c always (start 0, equal changes), so c - c_i = 0: FedAvg."""
    same = [make_clients((6,), seed=3)[0]] * 5
    local = {"batch": None, "local_steps": 3}
    scaffold = run(fs.SCAFFOLD(0.3, option=option), ALL, same, **local)
    average = run(fs.FedAvg(0.3, weighting="uniform"), ALL, same, **local)
    assert relative(scaffold.iterates, average.iterates) < 1e-12


def test_scaffold_with_one_step_and_everyone():
    """K = 1, option II: c_i+ = g_i(w), c = mean c_i, so the mean of g_i - c_i + c is the mean of g_i:
    FedAvg.
    """
    local = {"batch": None, "local_steps": 1}
    scaffold = run(fs.SCAFFOLD(0.3), ALL, **local)
    average = run(fs.FedAvg(0.3, weighting="uniform"), ALL, **local)
    assert relative(scaffold.iterates, average.iterates) < 1e-12


def test_scaffold_differs_from_fedavg_otherwise():
    """With 2 of 5 clients and several steps the correction acts: the two tests above do not pass emptily."""
    gap = relative(run(fs.SCAFFOLD(0.3)).iterates, run(fs.FedAvg(0.3, weighting="uniform")).iterates)
    assert gap > 1e-3


def test_heavy_ball_and_moving_average():
    """m' = .9 m' + .1 D is .1 times m = .9 m + D: EMA with eta_g = 10 eta makes the same steps."""
    heavy = run(fs.FedAvgM(0.3, server_lr=0.5, momentum=0.9))
    ema = run(fs.FedAvgM(0.3, server_lr=5.0, momentum=0.9, ema=True))
    assert relative(ema.iterates, heavy.iterates) < 1e-12


def test_momentum_zero_is_fedavg():
    """m = 0 m + D = D."""
    assert (
        relative(
            run(fs.FedAvgM(0.3, server_lr=0.5, momentum=0.0)).iterates,
            run(fs.FedAvg(0.3, server_lr=0.5)).iterates,
        )
        < 1e-14
    )


def test_averaging_by_examples_with_equal_clients():
    """n_i = 6 for all: n_i / sum n = 1/|S|."""
    same = make_clients((6,) * 5)
    uniform = run(fs.FedAvg(0.3, weighting="uniform"), clients=same)
    examples = run(fs.FedAvg(0.3, weighting="examples"), clients=same)
    assert relative(examples.iterates, uniform.iterates) < 1e-13
