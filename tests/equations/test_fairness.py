"""QFedAvg, TERM, AFL and DRFA against their papers in NumPy, and what they are at the ends of their parameters."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import fedsolve as fs
from equations.cases import CLOSE, EVERY, ROUNDS, SOME, compare, displacement_error, federation, flat
from equations.transcript import LocalSGD, shares
from harness import crossed, engine, make_clients, make_task
from verbs_harness import play

RATE, SERVER, DUAL = 0.3, 0.8, 0.4
LOCAL = LocalSGD(RATE)


def rounds(fed, w, server):
    """w_0, w_1, ...; a round of nobody changes nothing."""
    iterates = [w]
    for t, cohort in enumerate(fed.cohorts):
        if cohort:
            w = server(fed, t, cohort, w)
        iterates.append(w)
    return np.stack(iterates)


def qfedavg(q, weighting):
    """Algorithm 2 of Li et al. 2020: d_i and h_i are gradients and curvatures, L = 1 / eta_l."""

    def server(fed, t, cohort, w):
        top, bottom = 0.0, 0.0
        for i, p in zip(cohort, shares(fed, cohort, weighting), strict=True):
            loss, gradient = fed.loss(i, w) + 1e-10, (w - LOCAL(fed, t, i, w)) / RATE
            top = top + p * loss**q * gradient
            bottom += p * (q * loss ** (q - 1) * (gradient @ gradient) + loss**q / RATE)
        return w - SERVER * top / bottom

    return server


def term(tilt, smoothing, weighting):
    """The running mean z of exp(t f_i) in its own units, no logarithms."""
    z = None

    def server(fed, t, cohort, w):
        nonlocal z
        p = shares(fed, cohort, weighting)
        tilted = np.exp([tilt * fed.loss(i, w) for i in cohort])
        z = p @ tilted if z is None else (1 - smoothing) * z + smoothing * (p @ tilted)
        deltas = [LOCAL(fed, t, i, w) - w for i in cohort]
        return w + SERVER * sum(q * e * d for q, e, d in zip(p, tilted, deltas, strict=True)) / z

    return server


def ascended(weights, gradient):
    """Mirror ascent on the simplex by the entropy: lambda_i exp(eta g_i), normalised."""
    weights = weights * np.exp(DUAL * gradient)
    return weights / weights.sum()


class Agnostic:
    """AFL with all weights in one place, lambda on the simplex."""

    def __init__(self, population=5):
        self.weights, self.population = np.full(population, 1 / population), population

    def gradient(self, cohort, losses):
        unbiased = np.zeros(self.population)
        unbiased[cohort] = np.array(losses) * self.population / len(cohort)
        return unbiased

    def mean(self, cohort, vectors):
        scale = self.population / len(cohort)
        return sum(scale * self.weights[i] * v for i, v in zip(cohort, vectors, strict=True))

    def __call__(self, fed, t, cohort, w):
        losses = [fed.loss(i, w) for i in cohort]
        after = w + SERVER * self.mean(cohort, [LOCAL(fed, t, i, w) - w for i in cohort])
        self.weights = ascended(self.weights, self.gradient(cohort, losses))
        return after


class Snapshots(Agnostic):
    """DRFA: the cohort evaluates the snapshot of the last round, then trains; the next snapshot is at step t'."""

    snapshot = np.zeros(0)

    def __call__(self, fed, t, cohort, w):
        if t > 0:  # each on the first minibatch of the round
            losses = [fed.loss(i, self.snapshot, fed.minibatches(t, i)[0]) for i in cohort]
            self.weights = ascended(self.weights, self.gradient(cohort, losses))
        share = (
            int(jax.random.bits(jax.random.fold_in(jax.random.key(0), t), dtype="uint32")) // 2**16 / 2**16
        )
        ends, halts = [], []
        for i in cohort:
            batches, y, path = fed.minibatches(t, i), w, []
            for rows in batches:
                y = y - RATE * fed.gradient(i, y, rows)
                path.append(y)
            ends.append(y - w)
            halts.append(path[int(share * len(batches))] - w)
        self.snapshot = w + self.mean(cohort, halts)
        return w + SERVER * self.mean(cohort, ends)


CASES = {
    "QFedAvg": (lambda: fs.QFedAvg(RATE, q=1.5, server_lr=SERVER), lambda: qfedavg(1.5, "uniform")),
    "QFedAvg, examples": (
        lambda: fs.QFedAvg(RATE, q=0.5, server_lr=SERVER, weighting="examples"),
        lambda: qfedavg(0.5, "examples"),
    ),
    "TERM": (
        lambda: fs.TERM(RATE, t=2.0, smoothing=0.3, server_lr=SERVER),
        lambda: term(2.0, 0.3, "uniform"),
    ),
    "TERM, examples": (
        lambda: fs.TERM(RATE, t=-1.0, smoothing=1.0, server_lr=SERVER, weighting="examples"),
        lambda: term(-1.0, 1.0, "examples"),
    ),
    "AFL": (lambda: fs.AFL(RATE, dual_lr=DUAL, server_lr=SERVER), Agnostic),
    "DRFA": (lambda: fs.DRFA(RATE, dual_lr=DUAL, server_lr=SERVER), Snapshots),
}


@EVERY
@pytest.mark.parametrize("case", crossed(CASES, [name for name in CASES if "examples" not in name]))
def test_rounds(case, sampling):
    """Every iterate; of AFL and DRFA also the weights of all clients at the end."""
    build, transcript = CASES[case]
    clients, server = make_clients(), transcript()
    run = play(build(), make_task(clients), sampling, ROUNDS)
    iterates = rounds(federation(run, clients), run.iterates[0], server)
    compare(run, iterates, np.full(ROUNDS, SERVER))
    if isinstance(server, Agnostic):
        dual = np.asarray(run.state.clients.dual)
        weights = np.exp(dual - run.state.server.log_scale) / 5
        assert np.abs(weights - server.weights).max() < CLOSE
        assert weights.max() > 1.5 * weights.min(), "weights alike: the test would prove nothing"
    if isinstance(server, Snapshots):
        ours = flat(run.state.server.snapshot)
        assert displacement_error(ours[None], server.snapshot[None], run.iterates[0]) < CLOSE


@pytest.mark.parametrize("name", ["AFL", "DRFA"])
@pytest.mark.full
def test_weights_wait_in_the_engine(name):
    """Whole rounds of the engine: absent clients keep their weights."""
    build, transcript = CASES[name]
    clients = make_clients()
    run = engine(build(), make_task(clients), SOME, ROUNDS)
    iterates = rounds(federation(run, clients), run.iterates[0], transcript())
    compare(run, iterates, np.full(ROUNDS, SERVER))


@pytest.mark.parametrize(
    "method",
    [
        fs.QFedAvg(RATE, q=0.0),
        fs.TERM(RATE, t=0.0),
        fs.AFL(RATE, dual_lr=1e-30),
        fs.DRFA(RATE, dual_lr=1e-30),
    ],
    ids=lambda method: method.name,
)
def test_limits(method):
    """Without a power, a tilt or an ascent each is FedAvg with uniform weights."""
    clients = make_clients()
    run = play(method, make_task(clients), SOME, ROUNDS)
    plain = play(fs.FedAvg(RATE, weighting="uniform"), make_task(clients), SOME, ROUNDS)
    assert displacement_error(run.iterates[1:], plain.iterates[1:], plain.iterates[0]) < CLOSE


def test_large_tilts_stay_finite():
    """exp(t f) is larger than any number: the first round counts clients alike, later ones do not."""
    run = play(fs.TERM(0.05, t=3000.0), make_task(make_clients()), SOME, ROUNDS)
    plain = play(fs.FedAvg(0.05, weighting="uniform"), make_task(make_clients()), SOME, ROUNDS)
    assert np.isfinite(run.iterates).all()
    np.testing.assert_allclose(run.iterates[1], plain.iterates[1], rtol=1e-12)
    assert np.abs(run.iterates[-1] - plain.iterates[-1]).max() > 1e-3


def test_refusals():
    """What would be computed wrongly is refused in a line."""
    local = fs.client.SGD(0.1)
    kind = type(fs.TERM())
    with pytest.raises(fs.InvalidInput, match="TERM weights client updates, and GradientDiversity"):
        kind(local, server_optimizer=fs.server.GradientDiversity())
    with pytest.raises(fs.InvalidInput, match="QFedAvg takes L from the rate of local SGD, not from Armijo"):
        type(fs.QFedAvg())(fs.client.Armijo())
    with pytest.raises(fs.InvalidInput, match="needs the clients' updates, which AFL does not send"):
        fs.ControlVariates(fs.AFL())
    with pytest.raises(
        fs.InvalidInput, match="Robust cannot wrap TERM: weighted updates are divided by the sum"
    ):
        fs.robust.Robust(fs.TERM(), fs.robust.Median())
    with pytest.raises(fs.InvalidInput, match="q = -1"):
        fs.QFedAvg(q=-1.0)
