"""FedMiD and FedDualAvg against Algorithms 2 to 5 of Yuan, Zaheer and Reddi 2021, uneven clients, float64."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest

import fedsolve as fs
from equations.cases import CLOSE, EVERY, FULL, ROUNDS, SOME, displacement_error, federation
from equations.composite_transcript import (
    ALL,
    BIAS,
    WEIGHT,
    Diagonal,
    Euclid,
    Logarithm,
    Power,
    Psi,
    Settings,
    feddualavg,
    fedmid,
)
from fedsolve.geometry import L1, Blocks, DiagonalQuadratic, Entropy, Euclidean, L1Ball, L2Ball, PNorm
from harness import BATCH, EPOCHS, SIZES, Softmax, crossed, default_start, make_clients, make_task
from verbs_harness import play

POSITIVE = 0.05 + np.abs(default_start())
G = np.linspace(0.5, 2.0, 15)


class Case(NamedTuple):
    """psi and the mirror map, ours and in NumPy; the start; the clients' weights."""

    psi: Any
    parts: Psi
    mirror: Any = Euclidean()
    own: Any = Euclid()
    start: Any = None
    weighting: str = "uniform"


CASES = {
    "l1": Case(L1(0.05), Psi([(ALL, "l1", 0.05)])),
    "l1 on weight": Case(L1(0.05).on("weight"), Psi([(WEIGHT, "l1", 0.05)]), weighting="examples"),
    "l1 ball": Case(L1Ball(2.5), Psi([(ALL, "l1ball", 2.5)]), weighting="examples"),
    "l2 ball": Case(L2Ball(1.2), Psi([(ALL, "l2ball", 1.2)])),
    "two blocks": Case(
        L2Ball(1.2).on("weight") + L1(0.05).on("bias"), Psi([(WEIGHT, "l2ball", 1.2), (BIAS, "l1", 0.05)])
    ),
    "p-norm and l1": Case(L1(0.05), Psi([(ALL, "l1", 0.05)]), PNorm(1.5), Power(1.5)),
    "p-norm and l1 on weight": Case(
        L1(0.05).on("weight"), Psi([(WEIGHT, "l1", 0.05)]), PNorm(1.7), Power(1.7)
    ),
    "entropy and l1": Case(
        L1(0.05).on("weight"), Psi([(WEIGHT, "l1", 0.05)]), Entropy(), Logarithm(), POSITIVE, "examples"
    ),
    "entropy and nothing": Case(Blocks(()), Psi([]), Entropy(), Logarithm(), POSITIVE),
    "diagonal and l1": Case(
        L1(0.05), Psi([(ALL, "l1", 0.05)]), DiagonalQuadratic(Softmax.of(G)), Diagonal(G), None, "examples"
    ),
}
OSP = ["l1", "p-norm and l1", "entropy and l1"]
CLIENT, SERVER = 0.3, 0.7


def start_of(case):
    return default_start() if case.start is None else case.start


def check(method, case, sampling, osp=False, client=(CLIENT, CLIENT), server=(SERVER, SERVER), **work):
    """Every exported model agrees to 1e-10 of the way it went; both rates come as (ours, NumPy)."""
    clients, start = make_clients(), start_of(case)
    kind = {"FedMiD": fs.FedMiD, "FedDualAvg": fs.FedDualAvg}[method]
    settings = {"mirror": case.mirror, "weighting": case.weighting, "server_only": osp}
    algorithm = kind(case.psi, client[0], server_lr=server[0], **settings)
    run = play(algorithm, make_task(clients, start, **work), sampling, ROUNDS)
    fed = federation(run, clients, **work)
    theirs = Settings(case.parts, client[1], server[1], case.own, case.weighting, osp)
    if method == "FedMiD":
        want = fedmid(fed, start, theirs)
    else:
        dual = feddualavg(fed, start, theirs)
        want = dual.models
        got = np.concatenate([np.ravel(x) for x in run.state.server.dual])
        assert displacement_error(got[None], dual.duals[-1:], dual.duals[0]) < CLOSE
        assert float(run.state.server.rate_sum) == pytest.approx(dual.rate_sum[-1], rel=1e-13)
    agree(run.iterates, want)
    return run, want


def agree(got, want):
    assert got.dtype == np.float64
    assert np.linalg.norm(got[0] - want[0]) <= 1e-13 * np.linalg.norm(want[0])
    assert np.abs(want[1] - want[0]).max() > 1e-3, "nothing moved: the test would prove nothing"
    assert displacement_error(got[1:], want[1:], want[0]) < CLOSE


BOTH = ("FedMiD", "FedDualAvg")
PAIRS = [
    *(("FedDualAvg", case) for case in ("two blocks", "p-norm and l1 on weight", "entropy and l1")),
    ("FedMiD", "l1 ball"),
]


@EVERY
@pytest.mark.parametrize(("method", "case"), crossed(product(BOTH, CASES), PAIRS))
def test_with_every_psi_and_mirror_map(method, case, sampling):
    """eta_c = .3, eta_s = .7, two epochs in batches of 4: clients take 4, 2, 6, 4 and 6 steps."""
    check(method, CASES[case], sampling)


@EVERY
@pytest.mark.parametrize(
    ("method", "case"),
    crossed(
        product(BOTH, OSP), [("FedMiD", "l1"), ("FedDualAvg", "p-norm and l1"), ("FedMiD", "entropy and l1")]
    ),
)
def test_prox_on_the_server_only(method, case, sampling):
    """Algorithms 4 and 5: a client's map is grad h*, the server's composite map stays."""
    check(method, CASES[case], sampling, osp=True)


@pytest.mark.parametrize("method", BOTH)
def test_rates_that_fall(method):
    """eta_c = .3 x .8^t and eta_s = 1.2 / sqrt(t + 1): each round's e uses its own two rates."""
    client = (fs.schedules.Exponential(0.3, 0.8), lambda t: 0.3 * 0.8**t)
    server = (fs.schedules.InverseSqrt(1.2), lambda t: 1.2 / np.sqrt(t + 1))
    check(method, CASES["l1"], SOME, client=client, server=server)


@pytest.mark.parametrize("method", BOTH)
def test_a_number_of_steps(method):
    """K = 5 for all: e of round r is the paper's eta_s eta_c r K, here after ten rounds .7 x .3 x 10 x 5."""
    run, _ = check(method, CASES["l1"], FULL, local_steps=5)
    if method == "FedDualAvg":
        assert float(run.state.server.rate_sum) == pytest.approx(0.7 * 0.3 * 10 * 5, rel=1e-13)


@pytest.mark.parametrize("weighting", crossed(["uniform", "examples"], ["examples"]))
def test_elapsed_of_uneven_clients(weighting):
    """e_r = sum over rounds of eta_s eta_c sum_i p_i K_i with K_i = 2 ceil(n_i / 4): 4, 2, 6, 4, 6."""
    steps = EPOCHS * -(-np.array(SIZES) // BATCH)
    np.testing.assert_array_equal(steps, [4, 2, 6, 4, 6])
    weight = np.array(SIZES) if weighting == "examples" else np.ones(5)
    algorithm = fs.FedDualAvg(L1(0.05), CLIENT, server_lr=SERVER, weighting=weighting)
    run = play(algorithm, make_task(make_clients()), SOME, ROUNDS)
    want = sum(weight[c] @ steps[c] / weight[c].sum() for c in run.cohorts if c) * CLIENT * SERVER
    assert float(run.state.server.rate_sum) == pytest.approx(want, rel=1e-13)


@EVERY
@pytest.mark.parametrize("case", crossed(["l1", "l1 ball", "p-norm and l1"], ["l1 ball"]))
def test_output_of_theorem_4_2(case, sampling):
    """Equation (4.4): the mean over rounds and steps k = 1 ... 5 of grad(h + e_k psi)*(mean of the z_k).

    e_k = e + eta_c k. A round without clients has no steps and does not count. The last model is another.
    """
    one, clients, work = CASES[case], make_clients(), {"local_steps": 5}
    algorithm = fs.FedDualAvg(
        one.psi, CLIENT, server_lr=1.0, mirror=one.mirror, weighting=one.weighting, averaged=True
    )
    run = play(algorithm, make_task(clients, **work), sampling, ROUNDS)
    settings = Settings(one.parts, CLIENT, 1.0, one.own, one.weighting)
    dual = feddualavg(federation(run, clients, **work), default_start(), settings)
    agree(run.iterates, dual.averaged)
    assert np.abs(run.iterates[-1] - dual.models[-1]).max() > 1e-3


@pytest.mark.parametrize("case", [name for name, one in CASES.items() if "l1" in name and "and" in name])
def test_the_transcripts_maps_are_minimisers(case):
    """u = grad(h + t psi)*(z) solves 0 in grad h(u) - z + t lam d|u_j|: = t lam sign u_j, within t lam at 0.

    The transcripts use closed forms; this is where they come from.
    """
    one, step = CASES[case], 8.0
    z = one.own.grad(start_of(one))
    u = one.own.composite(one.parts, z, step)
    rest, bound = z - one.own.grad(u), step * one.parts.penalty(z)
    away = u != 0
    np.testing.assert_allclose(rest[away], (bound * np.sign(u))[away], rtol=1e-12, atol=1e-13)
    assert (np.abs(rest[~away]) <= bound[~away]).all()
    assert isinstance(one.own, Logarithm) or (~away).any()
