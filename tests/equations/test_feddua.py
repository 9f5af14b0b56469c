"""FedExP, FedExPM, FedDuAdagrad, FedDuAdam and FedDuA in any geometry against Takakura et al. 2025."""

from __future__ import annotations

from itertools import product

import jax
import numpy as np
import pytest

import fedsolve as fs
from equations.cases import EVERY, SOME, check_fedopt
from equations.server_rules import FedDuA, FedExPRule, MirrorFedDuA
from equations.transcript import LocalSGD
from fedsolve.geometry import DiagonalQuadratic, Entropy, PNorm, Quadratic
from harness import Softmax, crossed, default_start

SGD = LocalSGD(0.3)


@EVERY
def test_fedexp_study(sampling):
    """eta = (1/2) mean |D_i|^2 / (|D|^2 + eps_g), no clamp: in rounds of one client it is 1/2 at eps_g =
    0.
    """
    run = check_fedopt(fs.FedExP(0.3), lambda: FedExPRule(0.0), SGD, "uniform", sampling)
    alone = [t for t, cohort in enumerate(run.cohorts) if len(cohort) == 1]
    np.testing.assert_allclose(run.logs["server_lr"][alone], 0.5, rtol=1e-12)


@EVERY
def test_fedexp_study_with_eps(sampling):
    """eps_g = 0.05 is added to |D|^2 as it is."""
    check_fedopt(fs.FedExP(0.3, eps_g=0.05), lambda: FedExPRule(0.05), SGD, "uniform", sampling)


@EVERY
def test_fedexp_original(sampling):
    """max(1, .) and eps_g = 1e-3, uniform weights."""
    run = check_fedopt(
        fs.FedExP(0.3, preset="original"), lambda: FedExPRule(1e-3, clamp=True), SGD, "uniform", sampling
    )
    alone = [t for t, cohort in enumerate(run.cohorts) if len(cohort) == 1]
    assert (run.logs["server_lr"][alone] == 1.0).all()  # without the clamp: 1/2
    assert (run.logs["server_lr"] > 1.0).any()


@EVERY
def test_fedexp_code(sampling):
    """The public script: max(1, .), eps_g |S|, p_i by examples in D and in mean |D_i|^2."""
    rule = fs.FedExP(0.3, eps_g=0.01, preset="code")
    check_fedopt(rule, lambda: FedExPRule(0.01, clamp=True, times_size=True), SGD, "examples", sampling)


@EVERY
@pytest.mark.parametrize("eps_g", [0.0, 0.1])
def test_fedexpm(sampling, eps_g):
    """v and m of FedDuAdam with G = I."""
    check_fedopt(
        fs.FedExPM(0.3, eps_g=eps_g, beta1=0.9),
        lambda: FedDuA("identity", 0.9, 0.99, 0.0, eps_g),
        SGD,
        "uniform",
        sampling,
    )


@EVERY
@pytest.mark.parametrize("eps_g", [0.0, 0.1])
@pytest.mark.parametrize(
    ("build", "kind", "b1"),
    [(fs.FedDuAdagrad, "adagrad", None), (fs.FedDuAdam, "adam", 0.9)],
    ids=["adagrad", "adam"],
)
def test_feddudagrad_and_feddudam(build, kind, b1, eps_g, sampling):
    """s += D^2, v = D, m = (1/2) mean |D_i|^2, G = sqrt(s) + 1e-9; or s and v by moving averages with .99
    and .9, m with .9/2 (Theorem 3.3).
    """
    rule = build(0.3, eps_g=eps_g)
    check_fedopt(rule, lambda: FedDuA(kind, b1, 0.99, 1e-9, eps_g), SGD, "uniform", sampling)


@EVERY
@pytest.mark.parametrize("method", ["adagrad", "adam"])
def test_without_any_eps_and_with_a_dead_feature(sampling, method):
    """eps = eps_g = 0: the three weights of a feature that is 0 everywhere have 0/0 and must not move."""
    build = {"adagrad": fs.FedDuAdagrad, "adam": fs.FedDuAdam}[method]
    b1 = {"adagrad": None, "adam": 0.9}[method]
    run = check_fedopt(
        build(0.3, eps_g=0.0, eps=0.0),
        lambda: FedDuA(method, b1, 0.99, 0.0, 0.0),
        SGD,
        "uniform",
        sampling,
        dead=True,
    )
    assert (run.iterates[:, 9:12] == run.iterates[0, 9:12]).all()


def test_feddudam_by_examples():
    """Weights by examples enter D and mean |D_i|^2 alike."""
    check_fedopt(
        fs.FedDuAdam(0.3, eps_g=0.05, beta1=0.7, beta2=0.8, eps=1e-3, weighting="examples"),
        lambda: FedDuA("adam", 0.7, 0.8, 1e-3, 0.05),
        SGD,
        "examples",
        SOME,
    )


RNG = np.random.default_rng(5)
DIAGONAL = RNG.uniform(0.2, 3.0, 15)
ROOT = RNG.standard_normal((15, 15))
MATRIX = ROOT @ ROOT.T / 15 + np.eye(15)
POSITIVE = np.abs(default_start()) + 0.3


def p_map(p):
    def gradient(w):
        return np.sign(w) * np.abs(w) ** (p - 1) * (np.abs(w) ** p).sum() ** ((2 - p) / p)

    return gradient


def test_quadratic_geometry_keeps_the_precision_of_the_run():
    """Built outside a float64 run, A and its factor still have float64's precision: A^-1 A w = w to 1e-14."""
    mirror = Quadratic(MATRIX)
    with jax.enable_x64(True):
        w = jax.numpy.asarray(POSITIVE)
        assert np.abs(np.asarray(mirror.inverse(mirror.forward(w))) - POSITIVE).max() < 1e-13


GEOMETRIES = {
    "diagonal": (
        lambda: DiagonalQuadratic(Softmax.of(DIAGONAL)),
        lambda w: DIAGONAL * w,
        lambda z: z / DIAGONAL,
    ),
    "number": (lambda: DiagonalQuadratic(2.5), lambda w: 2.5 * w, lambda z: z / 2.5),
    "quadratic": (lambda: Quadratic(MATRIX), lambda w: MATRIX @ w, lambda z: np.linalg.solve(MATRIX, z)),
    "p-norm": (lambda: PNorm(1.5), p_map(1.5), p_map(3.0)),
    "entropy": (Entropy, np.log, np.exp),
}


@EVERY
@pytest.mark.parametrize(
    ("name", "b1"),
    crossed(
        product(GEOMETRIES, (None, 0.9)),
        [("diagonal", None), ("quadratic", 0.9), ("p-norm", 0.9), ("entropy", None)],
    ),
)
def test_any_geometry(name, b1, sampling):
    """theta = grad psi(w); theta += eta v; w = grad psi*(theta); the transcript solves h(eta) = m by brentq.

    grad psi* of (1/2)|.|_p^2 is the same map with q = p/(p-1): 1.5 and 3. The step is logged with status 0.
    """
    build, gradient, inverse = GEOMETRIES[name]
    run = check_fedopt(
        fs.FedDuA(build(), 0.3, beta1=b1),
        lambda: MirrorFedDuA(gradient, inverse, b1),
        SGD,
        "uniform",
        sampling,
        start=POSITIVE if name == "entropy" else None,
    )
    assert (run.logs["step_status"] == 0).all()
    assert (run.logs["step_residual"] <= 1e-12).all()
    if name == "entropy":
        assert (run.iterates > 0).all()
