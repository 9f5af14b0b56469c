"""Fast-FedDA and its relatives, ProxTracking, and SCAFFOLD with one prox on the server; against NumPy, float64."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy.optimize import minimize

import fedsolve as fs
from equations.cases import CLOSE, EVERY, FULL, SOME, displacement_error, federation, flat
from equations.composite_transcript import ALL, BIAS, WEIGHT, Psi, fista
from equations.transcript import shares
from fedsolve.geometry import L1, Blocks, L2Ball
from fedsolve.methods.algorithms.fast_dual_averaging import l1_within_ball
from harness import default_start, make_clients, make_task
from verbs_harness import play

ROUNDS, MU, GAMMA = 8, 0.15, 4.0
PSIS = {
    "l1": (L1(0.05), Psi([(ALL, "l1", 0.05)])),
    "two blocks": (
        L2Ball(1.2).on("weight") + L1(0.05).on("bias"),
        Psi([(WEIGHT, "l2ball", 1.2), (BIAS, "l1", 0.05)]),
    ),
}


def fast(fed, w, psi, weighting, mu=MU, gamma=GAMMA):
    """The points y_s are all at which a gradient was taken; means over clients of G and of their sum."""
    x0, G, X, t, iterates = w, np.zeros_like(w), np.zeros_like(w), 0.0, [w]
    for r, cohort in enumerate(fed.cohorts):
        if cohort:
            sums = []
            for i in cohort:
                Gi, points, y = G.copy(), X.copy(), w
                batches = fed.minibatches(r, i)
                for k, rows in enumerate(batches, 1):
                    Gi, points = Gi + fed.gradient(i, y, rows), points + y
                    b = mu / 2 + gamma / (t + k)
                    y = psi.prox((mu / 2 * points + gamma * x0 - Gi) / (t + k) / b, 1 / b)
                sums.append((Gi, points, len(batches)))
            p = shares(fed, cohort, weighting)
            G, X, K = (sum(q * s[j] for q, s in zip(p, sums, strict=True)) for j in range(3))
            t += K
            b = mu / 2 + gamma / t
            w = psi.prox((mu / 2 * X + gamma * x0 - G) / t / b, 1 / b)
        iterates.append(w)
    return np.stack(iterates)


def once_a_round(fed, w, prox, weighting, stages=(), mu=MU, gamma=GAMMA):
    """C-FedDA, in stages MC-FedDA: X has the start of each round, K times; `prox(v, step, x0, stage)`."""
    x0, G, X, t, stage, iterates = w, np.zeros_like(w), np.zeros_like(w), 0.0, 0, [w]
    ends = np.cumsum(stages)
    for r, cohort in enumerate(fed.cohorts):
        if cohort:
            sums = []
            for i in cohort:
                batches = fed.minibatches(r, i)
                K, Gi, y = len(batches), G.copy(), w
                points, total = X + K * w, t + K
                b = mu / 2 + gamma / total
                for rows in batches:
                    Gi = Gi + fed.gradient(i, y, rows)
                    y = prox((mu / 2 * points + gamma * x0 - Gi) / total / b, 1 / b, x0, stage)
                sums.append((Gi, points, K))
            p = shares(fed, cohort, weighting)
            G, X, K = (sum(q * s[j] for q, s in zip(p, sums, strict=True)) for j in range(3))
            t += K
            b = mu / 2 + gamma / t
            w = prox((mu / 2 * X + gamma * x0 - G) / t / b, 1 / b, x0, stage)
            if (now := int(np.sum(r + 1 >= ends))) > stage:
                x0, G, X, t, stage = w, np.zeros_like(w), np.zeros_like(w), 0.0, now
        iterates.append(w)
    return np.stack(iterates)


def agree(run, want):
    assert np.abs(want[1:] - want[0]).max() > 1e-2
    assert displacement_error(run.iterates[1:], want[1:], want[0]) < CLOSE


@EVERY
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("name", PSIS)
@pytest.mark.parametrize("method", [fs.FastFedDA, fs.CFedDA])
def test_dual_averaging(method, name, weighting, sampling):
    ours, theirs = PSIS[name]
    clients = make_clients()
    run = play(method(ours, mu=MU, gamma=GAMMA, weighting=weighting), make_task(clients), sampling, ROUNDS)
    fed, start = federation(run, clients), default_start()
    if method is fs.FastFedDA:
        agree(run, fast(fed, start, theirs, weighting))
    else:
        agree(run, once_a_round(fed, start, lambda v, step, x0, stage: theirs.prox(v, step), weighting))


def numpy_ball(v, center, weight, radius):
    """Coordinate by coordinate, by trying both kinks and the three pieces; nu by bisection."""

    def prox(nu):
        trials = np.stack([0 * v, center, *(v - a * weight - b * nu for a in (-1, 1) for b in (-1, 1))])
        values = weight * np.abs(trials) + nu * np.abs(trials - center) + (trials - v) ** 2 / 2
        return np.take_along_axis(trials, values.argmin(axis=0)[None], 0)[0]

    low, high = 0.0, np.abs(v - center).max() + weight
    if np.abs(prox(0.0) - center).sum() <= radius:
        return prox(0.0)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.abs(prox(middle) - center).sum() > radius else (low, middle)
    return prox(high)


@EVERY
def test_stages(sampling):
    """Three stages of 2, 3 and more rounds, with the weights and balls of each about its own start."""
    factors, radii = (4.0, 2.0, 1.0), (1.5, 0.6, 0.3)
    clients = make_clients()
    method = fs.MCFedDA(L1(0.02), mu=MU, gamma=GAMMA, stages=(2, 3), scales=factors, radii=radii)
    run = play(method, make_task(clients), sampling, ROUNDS)

    def prox(v, step, x0, stage):
        return numpy_ball(v, x0, 0.02 * factors[stage] * step, radii[stage])

    agree(run, once_a_round(federation(run, clients), default_start(), prox, "uniform", (2, 3)))


def test_the_prox_within_a_ball_is_a_minimiser(x64):
    """Against a general solver, with centres of both signs and at 0."""
    rng = np.random.default_rng(3)
    for _ in range(5):
        v, center = rng.normal(size=6), rng.normal(size=6) * rng.integers(0, 2, 6)
        got = np.asarray(l1_within_ball(v, center, 0.3, 0.8))
        assert np.abs(got - center).sum() <= 0.8 * (1 + 1e-12)

        def value(y, v=v):
            return 0.3 * np.abs(y).sum() + ((y - v) ** 2).sum() / 2

        # y = center + plus - minus with plus, minus >= 0
        def split(z, center=center):
            return center + z[:6] - z[6:]

        found = minimize(
            lambda z: value(split(z)), np.full(12, 0.05), bounds=[(0, None)] * 12, method="SLSQP",
            constraints={"type": "ineq", "fun": lambda z: 0.8 - z.sum()}, options={"ftol": 1e-14, "maxiter": 1000},
        )  # fmt: skip
        assert value(got) <= value(split(found.x)) + 1e-9


def test_dual_averaging_limits():
    """mu = 0 without psi, one client and one step: x0 - G/gamma; CFedDA is FastFedDA where K = 1."""
    task = make_task(make_clients((6,)), local_steps=1)
    none = Blocks(())
    run = play(fs.FastFedDA(none, mu=0.0, gamma=GAMMA), task, fs.sampling.Uniform(1), 4)
    fed = federation(run, make_clients((6,)), local_steps=1)
    w, total = default_start(), 0.0
    for t in range(4):
        total = total + fed.gradient(0, w, fed.minibatches(t, 0)[0])
        w = default_start() - total / GAMMA
    np.testing.assert_allclose(run.iterates[-1], w, rtol=1e-12)
    several = make_task(make_clients(), local_steps=1)
    a, b = (play(m(L1(0.05), mu=MU, gamma=GAMMA), several, SOME, 5) for m in (fs.FastFedDA, fs.CFedDA))
    np.testing.assert_allclose(a.iterates, b.iterates, rtol=1e-10)


# ProxTracking, and SCAFFOLD with a prox on the server.

LOCAL, SERVER = 0.3, 0.8


def tracked(fed, w, psi, steps):
    """The published properties in the form of `ProxTracking`'s docstring; models and corrections by round."""
    x, c, a = w, np.zeros((len(fed.clients), len(w))), SERVER * LOCAL * steps
    models, corrections = [w], []
    for r, cohort in enumerate(fed.cohorts):
        start, ends, means = psi.prox(x, a), [], np.zeros_like(c)
        for i in cohort:
            z, h, total = start, start, 0.0
            for k, rows in enumerate(fed.minibatches(r, i), 1):
                g = fed.gradient(i, z, rows)
                h, total = h - LOCAL * (g + c[i]), total + g
                z = psi.prox(h, k * LOCAL)
            ends.append(h)
            means[i] = total / steps
        corrections.append(c.sum(axis=0))
        x = start + SERVER * (np.mean(ends, axis=0) - start)
        c = (start - x) / a - means
        models.append(psi.prox(x, a))
    return np.stack(models), np.stack(corrections)


@pytest.mark.parametrize("name", PSIS)
def test_prox_tracking(name):
    ours, theirs = PSIS[name]
    clients = make_clients()
    run = play(
        fs.ProxTracking(ours, LOCAL, server_lr=SERVER), make_task(clients, local_steps=4), FULL, ROUNDS
    )
    models, corrections = tracked(federation(run, clients, local_steps=4), default_start(), theirs, 4)
    agree(run, models)
    assert np.abs(corrections).max() < 1e-12


def whole(clients):
    """Each client's examples in one minibatch: exact gradients."""
    return make_task(clients, batch=None, local_steps=5)


@pytest.mark.full
def test_fixed_points():
    """Exact gradients, five local steps, skewed clients: ProxTracking reaches the minimiser of F + psi. With one prox a
    round on the server the distance is in proportion to the rate, and control variates halve it here."""
    clients = make_clients()
    fed = federation(play(fs.FedAvg(0.1), whole(clients), FULL, 1), clients)
    ours, theirs = PSIS["l1"]

    def gradient(w):
        return np.mean([fed.gradient(i, w) for i in range(5)], axis=0)

    best = fista(gradient, theirs, default_start(), 0.2, 4000)

    def distance(method, rounds):
        run = fs.run(method, whole(clients), rounds=rounds, eval_every=rounds, dtype="float64")
        return np.abs(flat(jax.tree.leaves(run.params)) - best).max()

    assert distance(fs.ProxTracking(ours, 0.1), 600) < 1e-6
    controlled = [
        distance(fs.ControlVariates(fs.FedMiDOSP(ours, lr)), n) for lr, n in ((0.1, 400), (0.05, 800))
    ]
    assert controlled[1] == pytest.approx(controlled[0] / 2, rel=0.1)
    assert controlled[0] < 0.6 * distance(fs.FedMiDOSP(ours, 0.1), 400)


def test_limits_of_prox_tracking():
    """Without psi: SCAFFOLD (option II). One full step: proximal gradient descent with the step a."""
    none, clients = Blocks(()), make_clients()
    task = make_task(clients, local_steps=4)
    one, other = (play(m, task, FULL, 5) for m in (fs.ProxTracking(none, LOCAL), fs.SCAFFOLD(LOCAL)))
    np.testing.assert_allclose(one.iterates, other.iterates, rtol=1e-10)
    ours, theirs = PSIS["l1"]
    step = make_task(clients, batch=None, local_steps=1)
    first = theirs.prox(default_start(), LOCAL)
    for method, w in (
        (fs.ProxTracking(ours, LOCAL), first),
        (fs.ControlVariates(fs.FedMiDOSP(ours, LOCAL)), default_start()),
    ):
        run = play(method, step, FULL, 5)
        fed = federation(run, clients, local_steps=1)
        for _ in range(5):
            w = theirs.prox(w - LOCAL * np.mean([fed.gradient(i, w) for i in range(5)], axis=0), LOCAL)
        np.testing.assert_allclose(run.iterates[-1], w, rtol=1e-10, atol=1e-12)


def scaffold_prox(fed, w, psi):
    c, ci = np.zeros_like(w), np.zeros((len(fed.clients), len(w)))
    iterates = [w]
    for r, cohort in enumerate(fed.cohorts):
        deltas, changes, lengths = [], [], []
        for i in cohort:
            y, batches = w, fed.minibatches(r, i)
            for rows in batches:
                y = y - LOCAL * (fed.gradient(i, y, rows) - ci[i] + c)
            new = ci[i] - c + (w - y) / (len(batches) * LOCAL)
            deltas.append(y - w)
            changes.append(new - ci[i])
            lengths.append(LOCAL * len(batches))
            ci[i] = new
        if cohort:
            w = psi.prox(w + SERVER * np.mean(deltas, axis=0), SERVER * np.mean(lengths))
            c = c + np.sum(changes, axis=0) / len(fed.clients)
        iterates.append(w)
    return np.stack(iterates), c


@EVERY
def test_control_variates_with_one_prox_a_round(sampling):
    ours, theirs = PSIS["two blocks"]
    clients = make_clients()
    method = fs.ControlVariates(fs.FedMiDOSP(ours, LOCAL, server_lr=SERVER))
    run = play(method, make_task(clients), sampling, ROUNDS)
    want, c = scaffold_prox(federation(run, clients), run.iterates[0], theirs)
    agree(run, want)
    np.testing.assert_allclose(flat(run.state.server.control), c, atol=CLOSE * np.abs(c).max())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: fs.MCFedDA(L2Ball(1.0)), "MCFedDA takes L1(weight) on the whole model"),
        (lambda: fs.MCFedDA(L1(0.1), stages=(0,)), "stages = (0,) must be numbers of rounds"),
        (lambda: fs.MCFedDA(L1(0.1), stages=(5,)), "scales = (4.0, 2.0, 1.0) must be 2 numbers above 0"),
        (lambda: fs.CFedDA(L1(0.1), gamma=0.0), "gamma = 0.0 must be finite and > 0"),
        (lambda: fs.ControlVariates(fs.FedMiD(L1(0.1))), "option II needs local SGD"),
    ],
)
def test_refused(make, said):
    with pytest.raises(fs.InvalidInput) as error:
        make()
    assert said in str(error.value)


def test_prox_tracking_needs_all_clients_and_equal_steps():
    task = make_task(make_clients())
    with pytest.raises(fs.InvalidInput, match="as many steps"):
        fs.run(fs.ProxTracking(L1(0.1)), task, rounds=1)
    with pytest.raises(fs.InvalidInput, match="needs all 5 clients"):
        fs.run(fs.ProxTracking(L1(0.1)), task, rounds=1, clients_per_round=2, local_steps=2)
