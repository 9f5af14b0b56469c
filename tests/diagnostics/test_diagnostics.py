"""Metrics against NumPy: of a point, of the full objective on uneven clients, and as columns of a run."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from equations.composite_transcript import onto_l1, soft
from equations.transcript import Federation
from fedsolve.core.errors import InvalidInput
from fedsolve.engine.compute.clients import pack
from fedsolve.engine.evaluation.averaged_iterates import measured, objective
from fedsolve.geometry import L1, L1Ball, L2Ball
from fedsolve.geometry.diagnostics import (
    Density,
    Feasibility,
    FrankWolfeGap,
    Objective,
    Point,
    ProxGradient,
    Rank,
    RecoveryError,
    Suboptimality,
    Support,
)
from harness import SIZES, Softmax, cross_entropy, default_start, make_clients, make_task

CLIENTS = make_clients()
FED = Federation(CLIENTS, [], None, 4)
W = default_start()
G = np.random.default_rng(5).standard_normal(15)


pytestmark = pytest.mark.usefixtures("x64")


def of(measure, w=W, g=G, loss=0.7):
    """A measure's numbers at a point."""
    point = Point(jax.tree.map(jnp.asarray, Softmax.of(w)), jnp.asarray(loss), Softmax.of(jnp.asarray(g)))
    found = measure(point)
    assert all(jnp.shape(x) == () for x in found.values())
    return {name: float(x) for name, x in found.items()}


def one(measure, **point):
    (value,) = of(measure, **point).values()
    return value


# -- the full objective -----------------------------------------------------------------------------------


def losses(w):
    """Mean cross-entropy of each client."""
    found, model = [], Softmax.of(w)
    for c in CLIENTS:
        logits = c.x @ model.weight + model.bias
        log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        found.append(-log_p[np.arange(len(c.y)), c.y].mean())
    return np.array(found)


SHARES = {True: np.full(5, 1 / 5), False: np.array(SIZES) / sum(SIZES)}


@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "examples"])
def test_objective_and_gradient_of_uneven_clients(uniform, gradient):
    """F = (1/n) sum f_i, or sum (n_i / N) f_i; sizes 7, 3, 12, 5, 9. Without need no gradient is formed."""
    data = make_task(CLIENTS).data
    packed, _ = pack(data, cross_entropy, jnp.float64, batch_size=4, epochs=1, local_steps=None)
    params = jax.tree.map(jnp.asarray, Softmax.of(W))
    value, found = jax.jit(lambda *at: objective(cross_entropy, uniform, *at, gradient))(packed, params)
    assert float(value) == pytest.approx(SHARES[uniform] @ losses(W), rel=1e-12)
    if not gradient:
        assert found is None
        return
    want = sum(p * FED.gradient(i, W) for i, p in enumerate(SHARES[uniform]))
    got = np.concatenate([np.ravel(x) for x in found])
    assert np.abs(got - want).max() < 1e-12 * np.abs(want).max()


@pytest.mark.parametrize("uniform", [True, False])
def test_blocks_of_rows_are_joined(monkeypatch, uniform):
    """36 rows, seven at a time: the last block overlaps the one before and counts no row twice."""
    data = make_task(CLIENTS).data
    packed, _ = pack(data, cross_entropy, jnp.float64, batch_size=4, epochs=1, local_steps=None)
    width = 4 * 8 + packed.examples.y.dtype.itemsize
    monkeypatch.setattr("fedsolve.engine.evaluation.averaged_iterates._BYTES_AT_ONCE", 7 * width)
    params = jax.tree.map(jnp.asarray, Softmax.of(W))
    value, found = jax.jit(lambda *at: objective(cross_entropy, uniform, *at, True))(packed, params)
    assert float(value) == pytest.approx(SHARES[uniform] @ losses(W), rel=1e-7)
    want = sum(p * FED.gradient(i, W) for i, p in enumerate(SHARES[uniform]))
    np.testing.assert_allclose(np.concatenate([np.ravel(x) for x in found]), want, rtol=1e-6, atol=1e-9)


def test_several_measures_share_the_objective():
    """All names together, from one pass."""
    data = make_task(CLIENTS).data
    packed, _ = pack(data, cross_entropy, jnp.float64, batch_size=4, epochs=1, local_steps=None)
    params = jax.tree.map(jnp.asarray, Softmax.of(W))
    measures = FrankWolfeGap(L1Ball(8.0)), Objective(L1(0.1))
    found = jax.jit(lambda *at: measured(cross_entropy, False, measures, *at))(packed, params)
    g = sum(p * FED.gradient(i, W) for i, p in enumerate(SHARES[False]))
    assert float(found["gap"]) == pytest.approx(8 * np.abs(g).max() + g @ W, rel=1e-10)
    assert float(found["objective"]) == pytest.approx(SHARES[False] @ losses(W) + 0.1 * np.abs(W).sum())


# -- optimality -------------------------------------------------------------------------------------------


@pytest.mark.full
def test_gap():
    """max over D of <g, w - s> = <g, w> + r |g|_dual: infinity norm for l1, l2 for l2, summed over blocks."""
    assert one(FrankWolfeGap(L1Ball(8.0))) == pytest.approx(G @ W + 8 * np.abs(G).max(), rel=1e-12)
    assert one(FrankWolfeGap(L2Ball(3.0))) == pytest.approx(G @ W + 3 * np.linalg.norm(G), rel=1e-12)
    blocks = L1Ball(7.0).on("weight") + L2Ball(2.0).on("bias")
    want = G @ W + 7 * np.abs(G[:12]).max() + 2 * np.linalg.norm(G[12:])
    assert one(FrankWolfeGap(blocks)) == pytest.approx(want, rel=1e-12)


def test_gap_is_a_certificate():
    """F(w) - F(u) <= gap(w) for convex F and every u of D: here 200 points of the l1 ball of radius 3."""
    rng = np.random.default_rng(1)
    w = onto_l1(W, 3.0)
    g = sum(p * FED.gradient(i, w) for i, p in enumerate(SHARES[True]))
    gap = one(FrankWolfeGap(L1Ball(3.0)), w=w, g=g)
    others = [onto_l1(rng.standard_normal(15) * rng.uniform(0, 2), 3.0) for _ in range(200)]
    best = min(SHARES[True] @ losses(u) for u in others)
    assert 0 < SHARES[True] @ losses(w) - best <= gap


@pytest.mark.full
def test_feasibility():
    """Violation in the bound's units, and the Euclidean distance to the set: both 0 inside."""
    found = of(Feasibility(L1Ball(2.5)))
    assert found["infeasibility"] == pytest.approx(np.abs(W).sum() - 2.5, rel=1e-12)
    assert found["distance"] == pytest.approx(np.linalg.norm(W - onto_l1(W, 2.5)), rel=1e-12)
    assert of(Feasibility(L1Ball(8.0))) == {"infeasibility": 0.0, "distance": 0.0}
    blocks = of(Feasibility(L2Ball(1.0).on("weight") + L2Ball(0.3).on("bias")))
    outside = np.array([np.linalg.norm(W[:12]) - 1.0, np.linalg.norm(W[12:]) - 0.3])
    assert (outside > 0).all()
    assert blocks["infeasibility"] == pytest.approx(outside.max(), rel=1e-12)
    assert blocks["distance"] == pytest.approx(np.linalg.norm(outside), rel=1e-12)


def test_objective():
    """F + lam |w|_1, on the leaves that lam acts on."""
    assert one(Objective(L1(0.1))) == pytest.approx(0.7 + 0.1 * np.abs(W).sum(), rel=1e-12)
    assert one(Objective(L1(0.1).on("bias"))) == pytest.approx(0.7 + 0.1 * np.abs(W[12:]).sum(), rel=1e-12)


@pytest.mark.parametrize("step", [0.3, 1.0])
def test_prox_gradient(step):
    """|w - soft(w - t g, t lam)| / t, over the whole vector."""
    want = np.linalg.norm(W - soft(W - step * G, step * 0.1)) / step
    assert one(ProxGradient(L1(0.1), step)) == pytest.approx(want, rel=1e-12)
    free = np.concatenate([soft((W - step * G)[:12], step * 0.1), (W - step * G)[12:]])
    want = np.linalg.norm(W - free) / step
    assert one(ProxGradient(L1(0.1).on("weight"), step)) == pytest.approx(want, rel=1e-12)


def test_prox_gradient_is_zero_at_a_solution():
    """w = 0 where all |g_j| <= lam; w_j > 0 where g_j = -lam."""
    g, w = np.full(15, -0.1), np.zeros(15)
    w[4] = 2.0
    assert one(ProxGradient(L1(0.1)), w=w, g=g) < 1e-15


def test_suboptimality():
    """F + psi - optimum; None is psi = 0; a set counts nothing."""
    assert one(Suboptimality(L1(0.1), 0.4)) == pytest.approx(0.3 + 0.1 * np.abs(W).sum(), rel=1e-12)
    assert one(Suboptimality(None, 0.4)) == pytest.approx(0.3, rel=1e-12)
    assert one(Suboptimality(L1Ball(1.0), 0.4)) == pytest.approx(0.3, rel=1e-12)
    both = L1Ball(1.0).on("weight") + L1(0.1).on("bias")
    assert one(Suboptimality(both, 0.4)) == pytest.approx(0.3 + 0.1 * np.abs(W[12:]).sum(), rel=1e-12)


# -- structure --------------------------------------------------------------------------------------------

SPARSE = np.array([0.5, 0, -0.02, 0.009, 0, 0, 1, 0, 0, 0, 0, -0.3, 0, 0.2, 0])


def test_density():
    """Entries above 1e-2 in size: four of 12 weights (.5, -.02, 1, -.3), one of three biases."""
    assert one(Density(), w=SPARSE) == pytest.approx(5 / 15)
    assert one(Density(on="weight"), w=SPARSE) == pytest.approx(4 / 12)
    assert one(Density(zero=0.0), w=SPARSE) == pytest.approx(6 / 15)
    assert one(Density(zero=10.0), w=SPARSE) == 0.0


def test_support_on_a_pattern():
    """Found in the weight: 0, 2, 6, 11; true: 0, 1, 6: two hits, precision 2/4, recall 2/3, f1 4/7.

    On all leaves one hit more of one more found (13), and one more true: 3/5, 3/4, 2/3.
    """
    truth = np.zeros(15)
    truth[[0, 1, 6, 13]] = 1.0
    found = of(Support(Softmax.of(truth), on="weight"), w=SPARSE)
    assert found == pytest.approx({"precision": 2 / 4, "recall": 2 / 3, "f1": 4 / 7})
    assert of(Support(Softmax.of(truth)), w=SPARSE) == pytest.approx(
        {"precision": 3 / 5, "recall": 3 / 4, "f1": 2 / 3}
    )


def test_support_of_nothing():
    """Nothing found: 0, not 0/0."""
    truth = Softmax.of(np.ones(15))
    assert of(Support(truth), w=np.zeros(15)) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert of(Support(Softmax.of(np.zeros(15))), w=np.ones(15)) == {
        "precision": 0.0,
        "recall": 0.0,
        "f1": 0.0,
    }


def test_rank():
    """Singular values of the 4 x 3 weight above .01: diag(2, .5, .001) in rotated axes has two."""
    rng = np.random.default_rng(2)
    u, v = np.linalg.qr(rng.standard_normal((4, 3)))[0], np.linalg.qr(rng.standard_normal((3, 3)))[0]
    w = np.concatenate([(u * [2, 0.5, 0.001] @ v.T).ravel(), np.ones(3)])
    assert one(Rank(), w=w) == 2.0
    assert one(Rank(zero=1e-4, on="weight"), w=w) == 3.0
    assert one(Rank(zero=1.0), w=w) == 1.0
    with pytest.raises(InvalidInput, match="zero = -1"):
        Rank(zero=-1.0)
    with pytest.raises(InvalidInput, match=r"0 matrices: name one leaf"):
        one(Rank(on="bias"))


def test_recovery_error():
    """|w - truth| over chosen leaves."""
    truth = Softmax.of(G)
    assert one(RecoveryError(truth)) == pytest.approx(np.linalg.norm(W - G), rel=1e-12)
    assert one(RecoveryError(truth, on="bias")) == pytest.approx(np.linalg.norm(W[12:] - G[12:]), rel=1e-12)


@pytest.mark.parametrize("measure", [Density(on="wieght"), RecoveryError(Softmax.of(W), on="wieght")])
def test_a_pattern_that_matches_nothing(measure):
    with pytest.raises(InvalidInput, match=r"'wieght'.*weight, bias"):
        of(measure)


# -- columns of a run -------------------------------------------------------------------------------------


@pytest.mark.full
def test_columns_of_fedfw():
    """gap, infeasibility and distance of xbar, F weighing clients alike as FedFW does."""
    run = fs.run(fs.FedFW(L1Ball(8.0)), make_task(CLIENTS), rounds=3, eval_every=1, dtype="float64")
    w = np.concatenate([np.ravel(x) for x in run.params])
    g = np.mean([FED.gradient(i, w) for i in range(5)], axis=0)
    assert run.metrics["gap"][-1] == pytest.approx(g @ w + 8 * np.abs(g).max(), rel=1e-10)
    assert run.metrics["gap"].shape == (4,)
    assert (run.metrics["gap"] > 0).all()
    assert (run.metrics["infeasibility"] <= 1e-12).all()
    assert (run.metrics["distance"] <= 1e-12).all()


@pytest.mark.full
@pytest.mark.parametrize("weighting", [pytest.param("uniform", marks=pytest.mark.full), "examples"])
def test_columns_of_fedmid(weighting):
    """objective and prox_gradient with the method's own weights."""
    algorithm = fs.FedMiD(L1(0.05), 0.3, weighting=weighting)
    extra = (Support(Softmax.of(np.arange(15) % 2), on="weight"), Density())
    task = replace(make_task(CLIENTS), diagnostics=extra)
    run = fs.run(algorithm, task, rounds=3, eval_every=3, dtype="float64")
    w = np.concatenate([np.ravel(x) for x in run.params])
    p = SHARES[weighting == "uniform"]
    g = sum(q * FED.gradient(i, w) for i, q in enumerate(p))
    assert run.metrics["objective"][-1] == pytest.approx(p @ losses(w) + 0.05 * np.abs(w).sum(), rel=1e-10)
    want = np.linalg.norm(w - soft(w - g, 0.05))
    assert run.metrics["prox_gradient"][-1] == pytest.approx(want, rel=1e-9)
    assert run.metrics["density"][-1] == pytest.approx((np.abs(w) > 1e-2).mean())
    hits = ((np.abs(w) > 1e-2) & (np.arange(15) % 2 != 0))[:12].sum()
    assert run.metrics["recall"][-1] == pytest.approx(hits / 6)


@pytest.mark.full
def test_columns_of_fedmid_on_a_set():
    ball = fs.run(fs.FedMiD(L1Ball(1.0), 0.3), make_task(CLIENTS), rounds=1)
    assert {"infeasibility", "distance", "prox_gradient"} <= set(ball.metrics)
    assert "objective" not in ball.metrics


@pytest.mark.full
def test_the_tasks_objective_is_that_of_every_method():
    """F + 0.1 |w|_1 of the task, also of a method that trains with 0.05."""
    task = replace(make_task(CLIENTS), diagnostics=(Objective(L1(0.1)),))
    algorithm, options = fs.FedMiD(L1(0.05), 0.3), {"rounds": 2, "eval_every": 2, "dtype": "float64"}
    run = fs.run(algorithm, task, **options)
    w = np.concatenate([np.ravel(x) for x in run.params])
    want = SHARES[True] @ losses(w) + 0.1 * np.abs(w).sum()
    assert run.metrics["objective"][-1] == pytest.approx(want, rel=1e-10)
    assert "prox_gradient" in run.metrics  # the method's, where the task has none


@pytest.mark.full
def test_the_tasks_objective_in_a_sweep():
    task = replace(make_task(CLIENTS), diagnostics=(Objective(L1(0.1)),))
    options = {"rounds": 2, "eval_every": 2, "dtype": "float64"}
    run = fs.run(fs.FedMiD(L1(0.05), 0.3), task, **options)
    swept = fs.sweep(
        lambda client_lr: fs.FedMiD(L1(0.05), client_lr), task, grid={"client_lr": [0.3]}, **options
    )
    np.testing.assert_allclose(swept.metrics["objective"][0, 0], run.metrics["objective"], rtol=1e-10)


@pytest.mark.full
def test_evaluations_of_a_method_without_psi():
    """FedAvg has none of these columns."""
    run = fs.run(fs.FedAvg(0.3), make_task(CLIENTS), rounds=1)
    assert not {"gap", "objective", "prox_gradient", "infeasibility"} & set(run.metrics)
