"""Where the methods for F + psi and over a set must be simpler ones, and where they must end."""

from __future__ import annotations

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from equations.composite_transcript import ALL, Psi, fista, soft
from equations.transcript import Federation
from fedsolve.core.sampling import Bernoulli, Uniform
from fedsolve.core.types import module, replace
from fedsolve.geometry import L1, DiagonalQuadratic, L1Ball, L2Ball, PNorm
from fedsolve.methods.frank_wolfe import (
    FedFWBroadcast,
    FedFWChange,
    FedFWClient,
    FedFWMessage,
    FedFWServer,
)
from harness import Listed, crossed, default_start, make_clients, make_task, prepare, relative, squares
from verbs_harness import Verbs, play
from verbs_harness import vector as flat

COHORTS = Listed.of([[0, 1, 2, 3, 4], [3, 1], [4], [], [2, 0, 1]])
EVERYONE = Uniform(5)


def run(algorithm, sampling=COHORTS, rounds=5, clients=None, **local):
    return play(algorithm, make_task(clients or make_clients(), **local), sampling, rounds).iterates


# -- psi = 0 ----------------------------------------------------------------------------------------------

NOTHING = {
    "l1 of weight 0": (L1(0.0), {}),
    "huge l2 ball": (L2Ball(1e6), {}),
    "huge l1 ball": (L1Ball(1e6), {}),
    "p = 2": (L1(0.0), {"mirror": PNorm(2.0)}),
    "unit diagonal": (L1(0.0), {"mirror": DiagonalQuadratic(1.0)}),
}

WITHOUT = [
    (fs.FedMiD, "l1 of weight 0", False),
    (fs.FedDualAvg, "p = 2", False),
    (fs.FedMiD, "unit diagonal", False),
    (fs.FedDualAvg, "huge l2 ball", True),
]
CROSS = [
    *product((fs.FedMiD, fs.FedDualAvg), NOTHING, (False,)),
    (fs.FedMiD, "huge l2 ball", True),
    WITHOUT[-1],
]


@pytest.mark.full_rows("FedDualAvg-p = 2-False", "FedMiD-l1 of weight 0-False")
@pytest.mark.parametrize(("method", "nothing", "osp"), crossed(CROSS, WITHOUT))
def test_without_psi_both_are_fedavg(method, nothing, osp):
    """psi = 0 and h = |w|^2/2: every map is the identity, w <- w + eta_s mean(w_i - w), FedAvg (uniform).

    |w|_2^2/2 is also PNorm at p = 2 and DiagonalQuadratic at 1. FedDualAvg's z is then w itself.
    """
    psi, more = NOTHING[nothing]
    average = run(fs.FedAvg(0.3, server_lr=0.8, weighting="uniform"))
    assert relative(run(method(psi, 0.3, server_lr=0.8, server_only=osp, **more)), average) < 1e-12


@pytest.mark.full
def test_with_psi_they_are_not():
    """lam = .05 moves all three apart: the test above does not pass emptily."""
    found = [run(a) for a in (fs.FedMiD(L1(0.05), 0.3), fs.FedDualAvg(L1(0.05), 0.3), fs.FedAvg(0.3))]
    assert relative(found[0], found[1]) > 1e-3
    assert relative(found[0], found[2]) > 1e-3
    assert relative(found[1], found[2]) > 1e-3


@pytest.mark.full
def test_one_client_one_step():
    """One client, K = 1, eta_s = 1: FedMiDOSP is w <- soft(w - eta g, eta lam), which is ISTA.

    FedMiD thresholds on the client and again on the server, in all by 2 eta lam. FedDualAvg is regularised dual
    averaging (Xiao 2010): w_r = soft(z_r, r eta lam), z <- z - eta g(w_r).
    """
    clients, eta, lam, rounds = make_clients((9,), seed=5), 0.4, 0.1, 8
    local = {"batch": None, "local_steps": 1}
    fed = Federation(clients, [], None, 9)
    ista, twice, dual = [default_start()], [default_start()], [default_start()]
    z = default_start()
    for r in range(rounds):
        ista.append(soft(ista[-1] - eta * fed.gradient(0, ista[-1]), eta * lam))
        inner = soft(twice[-1] - eta * fed.gradient(0, twice[-1]), eta * lam)
        twice.append(soft(inner, eta * lam))
        z = z - eta * fed.gradient(0, dual[-1])
        dual.append(soft(z, (r + 1) * eta * lam))
    one = Uniform(1)
    for algorithm, want in (
        (fs.FedMiDOSP(L1(lam), eta), ista),
        (fs.FedMiD(L1(lam), eta), twice),
        (fs.FedDualAvg(L1(lam), eta), dual),
    ):
        assert relative(run(algorithm, one, rounds, clients, **local), np.stack(want)) < 1e-12
    assert relative(np.stack(twice), np.stack(ista)) > 1e-2


# -- FedFW stays where it must ----------------------------------------------------------------------------

BALLS = {"l1": L1Ball(8.0), "l2": L2Ball(3.0)}
SAMPLINGS = {"Bernoulli": Bernoulli(0.4), "Uniform": Uniform(2)}
METHODS = {
    "FedFW": lambda ball: fs.FedFW(ball, steps=fs.frank_wolfe.Convex(0.3, 0.4)),
    "FedFWPlus": lambda ball: fs.FedFWPlus(ball, steps=fs.frank_wolfe.Convex(0.3, 0.4)),
    "FedFWSto": lambda ball: fs.FedFWSto(ball, steps=fs.frank_wolfe.Stochastic(0.3)),
}

RUNS = [("FedFW", sampling, dtype) for sampling in SAMPLINGS for dtype in ("float32", "float64")]
RUNS += [
    ("FedFWPlus", "Bernoulli", "float64"),
    ("FedFWSto", "Uniform", "float32"),
    ("FedFWSto", "Bernoulli", "float64"),
]


def states(algorithm, sampling, rounds, dtype):
    """xbar, and all x_i as rows, after every round."""
    run = Verbs(algorithm, make_task(make_clients()), sampling, dtype, seed=2)
    for _ in range(rounds):
        run.advance()
        yield flat(run.server.params), np.stack([flat(state.params) for state in run.states])


@pytest.mark.parametrize(("name", "sampling", "dtype"), crossed(RUNS, [RUNS[0], *RUNS[3:5], RUNS[-1]]))
def test_mean_of_feasible_points(name, sampling, dtype):
    """x_i <- (1 - eta) x_i + eta s_i is a convex combination of points of D, xbar the mean of all x_i.

    In float32 both hold to 1e-6 of the radius, in float64 xbar is the mean to 1e-10 (rounding, 40 rounds),
    although absent clients keep their x_i and the server never sees them.
    """
    ball, norm = (BALLS["l1"], 1) if name != "FedFWSto" else (BALLS["l2"], 2)
    radius = float(ball.radius)
    close = 1e-6 if dtype == "float32" else 1e-10
    seen = 0
    for mean, x in states(METHODS[name](ball), SAMPLINGS[sampling], 40, dtype):
        assert str(mean.dtype) == dtype
        outside = np.linalg.norm(np.vstack([mean, x]).astype(float), norm, axis=1) / radius - 1
        assert outside.max() <= 1e-6
        assert np.linalg.norm(mean - x.astype(float).mean(axis=0)) <= close * radius
        seen = max(seen, np.abs(x - mean).max())
    assert seen > 0.1, "all clients agree: the test would prove nothing"


@module
class Overwritten(fs.frank_wolfe.FrankWolfe):
    """Every client begins its round at xbar, as in the published code."""

    def train(self, broadcast, client, oracle):
        return super().train(broadcast, replace(client, params=broadcast.params), oracle)


@module
class PrintedServer(fs.frank_wolfe.FrankWolfe):
    """The server line as printed, (1 - eta) xbar + (eta/n) sum over S of s_i, where absent clients count 0."""

    def update(self, server, message, cohort):
        moved = super().update(server, message, cohort)
        lost = self.steps.eta(cohort.round + 1) * (1 - cohort.size / cohort.population)
        return FedFWServer(jax.tree.map(lambda a, b: a - lost * b, moved.params, server.params))


@pytest.mark.parametrize("broken", [Overwritten, PrintedServer])
def test_broken_variants_lose_the_mean(broken):
    """Either change makes xbar another point than the mean of all x_i when clients are absent."""
    algorithm = broken(BALLS["l1"], steps=fs.frank_wolfe.Convex(0.3, 0.4))
    worst = max(
        np.linalg.norm(mean - x.mean(axis=0)) for mean, x in states(algorithm, Uniform(2), 10, "float64")
    )
    assert worst > 1e-2


def test_the_servers_line_with_everyone():
    """|S| = n: xbar + (eta/n) sum (s_i - x_i) = (1 - eta) xbar + eta mean s_i, since xbar = mean x_i.

    Verb by verb: the server rebuilds every s_i from its code and follows x_i.
    """
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        algorithm = fs.FedFW(L1Ball(2.0), steps=fs.frank_wolfe.Convex(0.3))
        x, s = rng.uniform(-0.1, 0.1, (5, 6)), np.zeros((5, 6))
        mean, sent = jnp.asarray(x.mean(axis=0)), []
        down = FedFWBroadcast(mean, 3, jnp.int32(5))
        for i, j in enumerate([0, 5, 2, 2, 4]):
            s[i, j] = 2.0 * (-1) ** i
            code = algorithm.constraint.vertex(jnp.asarray(-s[i]))
            client = FedFWClient(jnp.asarray(x[i]), (), (), ())
            change, after = algorithm.receive(down, FedFWMessage(code), client)
            np.testing.assert_allclose(after.params, 0.6 * x[i] + 0.4 * s[i], rtol=1e-14)  # eta_4 = 2/5
            sent.append(np.asarray(change.params))
        reduced = FedFWChange(jnp.asarray(np.mean(sent, axis=0)))
        server = algorithm.update(FedFWServer(mean), reduced, fs.Cohort(3, 5, 5))
        np.testing.assert_allclose(server.params, 0.6 * mean + 0.4 * s.mean(axis=0), rtol=1e-14, atol=1e-15)


# -- where they end ---------------------------------------------------------------------------------------

D = 6


def least_squares():
    """Five clients of 8 examples who disagree, from a sparse truth; the model starts at 0."""
    rng = np.random.default_rng(7)
    truth = np.array([1.5, -1.0, 0.0, 0.0, 0.5, 0.0])
    clients = []
    for _ in range(5):
        x = rng.standard_normal((8, D))
        clients.append(fs.Examples(x, x @ (truth + 0.3 * rng.standard_normal(D))))
    return clients


CLIENTS = least_squares()
H = np.mean([2 * c.x.T @ c.x / len(c.y) for c in CLIENTS], axis=0)
C = np.mean([2 * c.x.T @ c.y / len(c.y) for c in CLIENTS], axis=0)
SMOOTH = np.linalg.eigvalsh(H).max()


def objective(w):
    return np.mean([np.mean((c.x @ w - c.y) ** 2) for c in CLIENTS])


def gradient(w):
    return H @ w - C


def quadratic_task(**local):
    return fs.Task.from_arrays(squares, np.zeros(D), CLIENTS, batch_size=None, **local)


def at_rounds(algorithm, rounds, sampling=EVERYONE, **local):
    """The exported model after each of some numbers of rounds, in float64."""
    with jax.enable_x64(True):
        setup = prepare(algorithm, quadratic_task(**(local or {"local_steps": 2})), sampling, capacity=20_000)
        state, found, done = setup.state, [], 0
        for t in rounds:
            state, _ = setup.advance(state, t - done)
            found.append(np.array(setup.algorithm.export(state.server)))
            done = t
        return found


ENDS = {
    "l1": (L1(0.3), Psi([(slice(0, D), "l1", 0.3)]), lambda w: 0.3 * np.abs(w).sum()),
    "l1 ball": (L1Ball(1.0), Psi([(slice(0, D), "l1ball", 1.0)]), lambda w: 0.0),
}


@pytest.mark.full
def test_fista_solves():
    """w = prox(w - grad F(w)) to 1e-13 at its result: the reference of the tests below is a solution."""
    for _, parts, _ in ENDS.values():
        w = fista(gradient, parts, np.zeros(D), 1 / SMOOTH)
        assert np.linalg.norm(w - parts.prox(w - gradient(w), 1.0)) < 1e-13
        assert np.linalg.norm(gradient(w)) > 0.05, "psi does not matter here: it would prove nothing"


FALLING = [(fs.FedMiD, "l1"), (fs.FedDualAvg, "l1")]


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "end"), crossed(product((fs.FedMiDOSP, fs.FedMiD, fs.FedDualAvg), ENDS), FALLING)
)
def test_falling_rates_end_at_the_optimum(method, end):
    """K = 2 full-batch steps, all clients, eta_c = .05/sqrt(r + 1), eta_s = 1: F + psi falls to its minimum.

    Client drift is of the order of eta_c, and FedMiD thresholds by K eta_c twice a round (client and server),
    so that its l1 optimum is that of 2 lam: F + psi with 2 lam is what it minimises.
    """
    ours, parts, value = ENDS[end]
    if method is fs.FedMiD and end == "l1":
        parts, value = Psi([(slice(0, D), "l1", 0.6)]), lambda w: 0.6 * np.abs(w).sum()
    best = fista(gradient, parts, np.zeros(D), 1 / SMOOTH)
    least = objective(best) + value(best)
    found = at_rounds(method(ours, fs.schedules.InverseSqrt(0.05)), (20, 2000, 20_000))
    above = [objective(w) + value(w) - least for w in found]
    assert above[0] > above[1] > above[2]
    assert above[2] < 2e-3 * (objective(np.zeros(D)) - least)


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "ball"),
    crossed(product((fs.FedFW, fs.FedFWPlus), ("l1", "l2")), [(fs.FedFW, "l1")]),
)
def test_fedfw_ends_at_the_optimum(method, ball):
    """F(xbar) - F* falls and stays below the gap: max over D of <grad F, xbar - s> >= F(xbar) - F* (convex F).

    F* is that of projected FISTA; the gap in NumPy is r |grad|_dual + <grad, xbar>, dual max or l2 norm, and
    is what `result.metrics["gap"]` reports.
    """
    ours = {"l1": L1Ball(1.0), "l2": L2Ball(0.8)}[ball]
    parts = Psi([(slice(0, D), f"{ball}ball", float(ours.radius))])
    best = fista(gradient, parts, np.zeros(D), 1 / SMOOTH)
    algorithm = method(ours, steps=fs.frank_wolfe.Convex(0.3))
    found = at_rounds(algorithm, (10, 200, 2000))
    excess, gaps = [], []
    for w in found:
        g = gradient(w)
        dual = np.abs(g).max() if ball == "l1" else np.linalg.norm(g)
        gaps.append(ours.radius * dual + g @ w)
        excess.append(objective(w) - objective(best))
    assert (np.array(gaps) >= np.array(excess)).all()
    assert min(excess) >= -1e-12
    assert excess[0] > excess[1] > excess[2]
    assert excess[2] < 0.03 * (objective(np.zeros(D)) - objective(best))
    measured = fs.run(algorithm, quadratic_task(local_steps=2), rounds=200, eval_every=10, dtype="float64")
    np.testing.assert_array_equal(measured.metrics["round"][[1, 20]], [10, 200])
    np.testing.assert_allclose(measured.metrics["gap"][[1, 20]], gaps[:2], rtol=1e-9)


@pytest.mark.full
@pytest.mark.parametrize(("end", "drawn"), crossed(product(ENDS, (5, 2)), [("l1 ball", 2)]))
def test_feddr_ends_at_the_minimiser(end, drawn):
    """Exact proximal steps on quadratics: xbar is the minimiser of F + psi to 1e-8, absent clients or not."""
    ours, parts, _ = ENDS[end]
    best = fista(gradient, parts, np.zeros(D), 1 / SMOOTH)
    found = at_rounds(fs.FedDR(ours, eta=1.0, solver="exact"), (10, 600), Uniform(drawn))
    assert np.linalg.norm(found[0] - best) > 1e-5
    assert np.linalg.norm(found[1] - best) < 1e-8 * np.linalg.norm(best)


def test_the_whole_vector_is_one_ball():
    """L1Ball on (weight, bias) is |W|_1 + |b|_1 <= r; `each` is two balls of radius r, a larger set."""
    start = 0.01 * default_start()
    gradient_ = make_task(make_clients(), start)
    one = play(fs.FedFW(L1Ball(1.0), steps=fs.frank_wolfe.Convex(0.01)), gradient_, EVERYONE, 3).iterates[-1]
    two = play(
        fs.FedFW(L1Ball(1.0).each(), steps=fs.frank_wolfe.Convex(0.01)), gradient_, EVERYONE, 3
    ).iterates[-1]
    assert np.abs(one[ALL]).sum() <= 1 + 1e-12
    assert 1.01 < np.abs(two[ALL]).sum() <= 2 + 1e-12
