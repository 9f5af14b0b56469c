"""Muon on clients and server, FedMuon and its bias-corrected form against NumPy transcripts, and limits; float64."""

from __future__ import annotations

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedsolve as fs
from equations.cases import CLOSE, EVERY, FULL, ROUNDS, SOME, displacement_error, federation, flat
from equations.test_compression import LEAVES, SHARE, top
from fedsolve.core.sampling import Trace
from fedsolve.engine.checks.preflight import on_solvers
from fedsolve.geometry import SpectralBall
from fedsolve.geometry.numerics import polar_factor
from fedsolve.methods.client.muon import polar_of
from harness import CLASSES, FEATURES, crossed, engine, make_clients, make_task, prepare
from verbs_harness import Verbs, play

RATE, BETA, DECAY, SCALE, ALPHA = 0.05, 0.8, 0.1, 0.3, 0.4
WEIGHT, BIAS = LEAVES
SHARED = {"momentum": BETA, "weight_decay": DECAY, "vector_scale": SCALE}


def exact(g):
    """U V' where singular values are not 0."""
    u, s, v = np.linalg.svd(g, full_matrices=False)
    return (u[:, s > 1e-12 * s[0]]) @ v[s > 1e-12 * s[0]]


def quintic(g):
    """Five iterations as published, of the matrix whose sides are in the order of its axes."""
    x = g / (np.linalg.norm(g) + 1e-7)
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * (x @ x.T) @ x + 2.0315 * (x @ x.T) @ (x @ x.T) @ x
    return x


def of_weight(polar, g):
    return polar(g[WEIGHT].reshape(FEATURES, CLASSES)).ravel()


class Muon:
    """The public code's step: u, with moments of its own."""

    def __init__(self, size, polar, momentum=None):
        self.m, self.v, self.k, self.polar = np.zeros(size), np.zeros(size), 0, polar
        if momentum is not None:
            self.m[WEIGHT] = momentum

    def __call__(self, y, g):
        self.k += 1
        u = np.zeros_like(y)
        self.m[WEIGHT] = BETA * self.m[WEIGHT] + (1 - BETA) * g[WEIGHT]
        nesterov = BETA * self.m + (1 - BETA) * g
        u[WEIGHT] = np.sqrt(FEATURES / CLASSES) * of_weight(self.polar, nesterov)
        self.m[BIAS] = 0.9 * self.m[BIAS] + 0.1 * g[BIAS]
        self.v = 0.95 * self.v + 0.05 * g**2
        m_hat, v_hat = self.m / (1 - 0.9**self.k), self.v / (1 - 0.95**self.k)
        u[BIAS] = SCALE * (m_hat / (np.sqrt(v_hat) + 1e-10))[BIAS]
        u[WEIGHT] += DECAY * y[WEIGHT]
        u[BIAS] += SCALE * DECAY * y[BIAS]
        return u


def on_clients(fed, x, polar=quintic, keep=False):
    kept, iterates = {}, [x]
    for t, cohort in enumerate(fed.cohorts):
        ends = []
        for i in cohort:
            rule = kept.setdefault(i, Muon(len(x), polar)) if keep else Muon(len(x), polar)
            y = x
            for rows in fed.minibatches(t, i):
                y = y - RATE * rule(y, fed.gradient(i, y, rows))
            ends.append(y)
        x = np.mean(ends, axis=0) if ends else x
        iterates.append(x)
    return np.stack(iterates)


def on_server(fed, x):
    rule, iterates = Muon(len(x), exact), [x]
    for t, cohort in enumerate(fed.cohorts):
        ends = []
        for i in cohort:
            y = x
            for rows in fed.minibatches(t, i):
                y = y - 0.1 * fed.gradient(i, y, rows)
            ends.append(y)
        x = x - RATE * rule(x, x - np.mean(ends, axis=0)) if ends else x
        iterates.append(x)
    return np.stack(iterates)


def fedmuon(fed, x, rate=lambda t: RATE):
    shared, d, iterates = np.zeros(FEATURES * CLASSES), np.zeros_like(x), [x]
    for t, cohort in enumerate(fed.cohorts):
        if cohort:
            ends, momenta, counts = [], [], []
            for i in cohort:
                rule, y = Muon(len(x), quintic, shared), x
                for rows in fed.minibatches(t, i):
                    u = rule(y, fed.gradient(i, y, rows))
                    y = y - (1 - ALPHA) * rate(t) * u + ALPHA * rate(t) * d
                ends.append(y)
                momenta.append(rule.m[WEIGHT])
                counts.append(rule.k)
            new = np.mean(ends, axis=0)
            d = (new - x) / rate(t) / np.mean(counts)
            x, shared = new, np.mean(momenta, axis=0)
        iterates.append(x)
    return np.stack(iterates)


def corrected(fed, x, polar=quintic):
    """Algorithm 1, its alpha 1 - beta."""
    n = len(fed.clients)
    c, own, iterates = np.zeros_like(x), np.zeros((n, len(x))), [x]
    for t, cohort in enumerate(fed.cohorts):
        ends, new = [], own.copy()
        for i in cohort:
            y, m = x, own[i]
            for rows in fed.minibatches(t, i):
                m = BETA * m + (1 - BETA) * fed.gradient(i, y, rows)
                v = m - own[i] + c
                y = y - RATE * np.concatenate([of_weight(polar, v), v[BIAS] / np.linalg.norm(v[BIAS])])
            ends.append(y)
            new[i] = m
        x = (n - len(cohort)) / n * x + sum(ends) / n
        c, own = c + (new - own).sum(axis=0) / n, new
        iterates.append(x)
    return np.stack(iterates)


def local(**more):
    solver = fs.client.Muon(RATE, **(SHARED | more))
    return fs.FedOpt(solver, fs.server.ServerSGD(), weighting="uniform")


CASES = {
    "client.Muon": (local(), on_clients),
    "client.Muon, exact": (local(newton_schulz=0), lambda fed, x: on_clients(fed, x, exact)),
    "client.Muon, kept": (local(keep=True), lambda fed, x: on_clients(fed, x, keep=True)),
    "server.Muon": (
        fs.FedOpt(fs.client.SGD(0.1), fs.server.Muon(RATE, newton_schulz=0, **SHARED)),
        on_server,
    ),
    "FedMuon": (fs.FedMuon(RATE, alpha=ALPHA, **SHARED), fedmuon),
    "BiasCorrectedMuon": (fs.BiasCorrectedMuon(RATE, momentum=BETA), corrected),
    "BiasCorrectedMuon, exact": (
        fs.BiasCorrectedMuon(RATE, momentum=BETA, newton_schulz=0),
        lambda fed, x: corrected(fed, x, exact),
    ),
}


@EVERY
@pytest.mark.parametrize("name", crossed(CASES, [name for name in CASES if "exact" not in name]))
def test_equations(name, sampling):
    """Uneven clients of cohorts that vary, one of them empty: every model."""
    method, transcript = CASES[name]
    clients = make_clients()
    run = play(method, make_task(clients), sampling, ROUNDS)
    expected = transcript(federation(run, clients), run.iterates[0])
    assert np.abs(expected[1:] - expected[0]).max() > 1e-2
    assert displacement_error(run.iterates[1:], expected[1:], expected[0]) < CLOSE


def test_a_schedule():
    """d is divided by the rate of its own round."""
    clients, falling = make_clients(), fs.schedules.Exponential(RATE, 0.7)
    run = play(fs.FedMuon(falling, alpha=ALPHA, **SHARED), make_task(clients), SOME, ROUNDS)
    expected = fedmuon(federation(run, clients), run.iterates[0], rate=lambda t: RATE * 0.7**t)
    assert displacement_error(run.iterates[1:], expected[1:], expected[0]) < CLOSE


def same(first, second, rounds=ROUNDS, sampling=SOME, close=CLOSE, clients=None, **work):
    task = make_task(clients or make_clients(), **work)
    a, b = (play(m, task, sampling, rounds).iterates for m in (first, second))
    assert displacement_error(a[1:], b[1:], b[0]) < close


def test_fedmuon_without_alignment_and_momentum():
    """FedAvg with Muon, whatever the cohorts."""
    given = SHARED | {"momentum": 0.0}
    same(fs.FedMuon(RATE, alpha=0.0, **given), local(momentum=0.0))


def test_optax():
    """Without momentum a step of the matrix is optax's, to its eps; the factor is of (out, in) here."""
    theirs = fs.client.Optax(optax.contrib.muon, learning_rate=RATE * np.sqrt(FEATURES / CLASSES), beta=0.0)
    task = make_task(make_clients(), local_steps=1)
    solvers = (local(momentum=0.0, weight_decay=0.0).local, theirs)
    methods = (fs.FedOpt(x, fs.server.ServerSGD(), weighting="uniform") for x in solvers)
    a, b = (play(m, task, SOME, 1).iterates[:, WEIGHT] for m in methods)
    assert displacement_error(a[1:], b[1:], b[0]) < 1e-5


def test_clients_alike_have_nothing_to_correct():
    """c_i = c although neither is 0: without momentum it is FedAvg with Muon, of matrices no longer than wide."""
    pulls = np.random.default_rng(1).standard_normal((3, 2, 4))
    task = fs.Task.from_arrays(
        lambda w, batch: ((w - batch) ** 4).mean(0).sum(),
        np.zeros((2, 4)),
        [pulls] * 3,
        batch_size=None,
        local_steps=3,
    )
    methods = fs.BiasCorrectedMuon(RATE, momentum=0.0), local(momentum=0.0, weight_decay=0.0)
    a, b = (play(method, task, Trace(np.ones((4, 3), bool), 3), 4) for method in methods)
    assert np.abs(a.state.server.control).max() > 0.1
    assert displacement_error(a.iterates[1:], b.iterates[1:], b.iterates[0]) < CLOSE


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (5, 5)])
def test_spectral_ball(shape):
    """The exact factor is minus the oracle of the unit ball; the iteration's singular values are near 1."""
    g = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.testing.assert_allclose(polar_factor(g), -SpectralBall(1.0).lmo(g), atol=1e-6)
    s = np.linalg.svd(np.asarray(polar_factor(g, 5)), compute_uv=False)
    assert s.min() > 0.6
    assert s.max() < 1.25
    thin = g.copy()
    thin[:, 1:] = 0
    assert np.linalg.norm(polar_factor(thin)) == pytest.approx(1, rel=1e-5)
    assert np.linalg.norm(polar_factor(0 * g)) == 0


def test_kernels_keep_the_side_of_their_outputs():
    """(out, in, height, width) of PyTorch and (height, width, in, out) of this package are the same matrix."""
    torch = np.random.default_rng(0).standard_normal((8, 2, 3, 3))
    expected = exact(torch.reshape(8, 18)).reshape(torch.shape)
    np.testing.assert_allclose(polar_of(torch, 0), expected, atol=1e-5)
    own = np.asarray(polar_of(torch.transpose(2, 3, 1, 0), 0))
    np.testing.assert_allclose(own.transpose(3, 2, 0, 1), expected, atol=1e-5)


def test_vectors_step_by_adamw():
    """A matrix that a pattern names has AdamW's first step, each entry 1 long; the other its polar factor's."""
    rule = fs.client.Muon(RATE, vectors="head", vector_scale=SCALE, newton_schulz=0)
    w, g = (
        {"head": np.zeros((2, 2), np.float32), "body": np.zeros((2, 2), np.float32)},
        {x: np.diag([4.0, -1.0]) for x in ("head", "body")},
    )
    u, _ = rule.muon_step(w, g, rule.first_state(w))
    np.testing.assert_allclose(u["head"], np.diag([SCALE, -SCALE]), rtol=1e-6)
    np.testing.assert_allclose(u["body"], np.diag([1.0, -1.0]), atol=1e-6)


@pytest.mark.parametrize(
    "method",
    [
        fs.FedMuon(RATE, vectors="weight"),
        fs.FedOpt(fs.client.SGD(0.1), fs.server.Muon(RATE, vectors="weight")),
        fs.FedOpt(fs.client.Muon(RATE, vectors="weight"), fs.server.ServerSGD()),
        fs.FedOpt(fs.client.Muon(RATE, vectors="weight", keep=True), fs.server.ServerSGD()),
    ],
    ids=("FedMuon", "server", "clients", "clients, kept"),
)
def test_a_model_without_matrices(method):
    """Each leaf with its shape, why it is none, and what it would step by."""
    words = (
        r"no leaf of the model is one: weight \(shape \(4, 3\), excluded by vectors\), bias \(shape \(3,\)\) .*"
        r"step by AdamW"
    )
    with pytest.raises(fs.InvalidInput, match=words):
        prepare(method, make_task(make_clients()), SOME, dtype="float32")


def test_a_pattern_of_no_leaf():
    """It is named, with the leaves that there are."""
    with pytest.raises(
        fs.InvalidInput, match=r"vectors = 'head': no leaf .* has this name; the nearest paths are"
    ):
        play(fs.FedMuon(RATE, vectors="head"), make_task(make_clients()), SOME, 1)


def test_mean_of_factors_is_no_factor_of_the_mean():
    """Two clients whose gradients at 0 are -3 I and I: FedAvg with Muon stays at 0, the minimum is I."""
    clients = [c * np.eye(2)[None] for c in (3.0, -1.0)]
    task = fs.Task.from_arrays(
        lambda w, batch: ((w - batch) ** 2).mean(0).sum() / 2,
        np.zeros((2, 2)),
        clients,
        local_steps=2,
        batch_size=None,
    )
    falling = fs.schedules.InverseSqrt(0.3)
    moved = []
    for method in (local_exact(), fs.BiasCorrectedMuon(falling, newton_schulz=0)):
        moved.append(play(method, task, Trace(np.ones((1, 2), bool), 2), 60).iterates[-1].reshape(2, 2))
    assert np.abs(moved[0]).max() < 1e-12
    assert np.abs(moved[1] - np.eye(2)).max() < 0.2


def test_leaves_that_are_no_matrices_are_named():
    """In a note of the run that also says what they step by, around wrappers and of each part once."""
    model = {"a": np.zeros((2, 2)), "b": np.zeros(2), "c": np.zeros(3)}
    for method in (fs.Compressed(fs.FedMuon(), fs.compression.Cast()), local()):
        assert list(on_solvers(method, model, 1, 1)) == ["Muon is for matrices: b, c step by AdamW"]
    (told,) = on_solvers(fs.BiasCorrectedMuon(), model, 1, 1)
    assert told == "Muon is for matrices: of b, c the momentum is scaled to length 1"
    assert not list(on_solvers(fs.FedMuon(), {"a": model["a"]}, 1, 1))
    assert not list(on_solvers(fs.FedAvg(), model, 1, 1))


def local_exact():
    return fs.FedOpt(fs.client.Muon(0.1, newton_schulz=0), fs.server.ServerSGD(), weighting="uniform")


REFUSED = {
    "alpha = 2": lambda: fs.FedMuon(alpha=2.0),
    "momentum = 1": lambda: fs.BiasCorrectedMuon(momentum=1.0),
    "newton_schulz = -1": lambda: fs.client.Muon(0.1, newton_schulz=-1),
    "vector_scale = 0": lambda: fs.server.Muon(0.1, vector_scale=0.0),
    "client_lr = -1": lambda: fs.BiasCorrectedMuon(-1.0),
    "vectors = 3 must be patterns": lambda: fs.FedMuon(vectors=3),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused(words):
    """In a line that says why."""
    with pytest.raises(fs.InvalidInput, match=words):
        REFUSED[words]()


def test_flat_order():
    """The leaves of the tests' model lie in the order that the transcripts assume."""
    weight, bias = np.arange(12.0).reshape(4, 3), np.arange(3.0)
    assert (flat((weight, bias))[WEIGHT] == weight.ravel()).all()


def test_an_exact_factor_leaves_out_rounding():
    """A singular value of some units of rounding is taken for 0; one of a billionth counts."""
    rng = np.random.default_rng(3)
    u, v = np.linalg.qr(rng.normal(size=(5, 4)))[0], np.linalg.qr(rng.normal(size=(4, 4)))[0]
    with jax.enable_x64(True):
        found = polar_factor(jnp.asarray(u * [3, 1, 1e-9, 20 * np.finfo(float).eps] @ v))
    np.testing.assert_allclose(found, u[:, :3] @ v[:3], atol=1e-6)


def test_fedmuon_has_no_number_that_does_nothing():
    """Its fields are its arguments: the moments that it shares with FedAdamW have no decays of their own."""
    fields = {f.name for f in dataclasses.fields(fs.FedMuon()) if f.init}
    assert fields - {"lr"} == inspect.signature(fs.FedMuon).parameters.keys() - {"client_lr"}


def oracle(ball, g):
    """-argmin <g, Z> over a unit ball: of the model, or of the matrix, and 0.3 of the bias' largest entry."""
    if ball == "euclidean":
        return g / np.linalg.norm(g)
    u = np.empty_like(g)
    u[WEIGHT] = np.sqrt(FEATURES / CLASSES) * of_weight(exact, g)
    u[BIAS] = 0.3 * np.sign(g[BIAS])
    return u


def ef21_muon(fed, x, beta, down, ball):
    """Models, W and every G_i: gradients at W, their momenta and the model sent as changes."""
    w, n = x, len(fed.clients)
    momenta, known, g = np.zeros((n, len(x))), np.zeros((n, len(x))), np.zeros(len(x))
    iterates = [x]
    for t, cohort in enumerate(fed.cohorts):
        assert len(cohort) == n
        w = w + down(x - w)
        for i in cohort:
            own = np.mean([fed.gradient(i, w, rows) for rows in fed.minibatches(t, i)], axis=0)
            momenta[i] = (1 - beta) * momenta[i] + beta * own
            change = top(momenta[i] - known[i])
            known[i] += change
            g = g + change / n
        x = x - RATE * oracle(ball, g)
        iterates.append(x)
    return np.stack(iterates), w, known, g


@pytest.mark.parametrize(
    ("both", "by", "ball"),
    [
        (True, play, "spectral"),
        (False, play, "euclidean"),
        pytest.param(True, engine, "spectral", marks=pytest.mark.full),
    ],
    ids=["both ways", "up alone", "engine"],
)
def test_ef21_muon(both, by, ball):
    """40 % of the entries of changes; without a code down W is the model. G stays the mean of all G_i."""
    clients, code = make_clients(), fs.compression.TopK(SHARE)
    down = code if both else None
    method = fs.EF21Muon(
        code, RATE, down=down, momentum=0.3, newton_schulz=0, smallest=1, ball=ball, vector_scale=0.3
    )
    run = by(method, make_task(clients), FULL, ROUNDS)
    fed = federation(run, clients)
    iterates, w, known, g = ef21_muon(fed, run.iterates[0], 0.3, top if both else lambda change: change, ball)
    assert displacement_error(run.iterates[1:], iterates[1:], iterates[0]) < CLOSE
    ours = np.concatenate([x.reshape(5, -1) for x in run.state.clients.memory], axis=1)
    np.testing.assert_allclose(ours, -known, rtol=0, atol=CLOSE)
    np.testing.assert_allclose(flat(run.state.server.memory), -g, rtol=0, atol=CLOSE)
    np.testing.assert_allclose(-g, ours.mean(axis=0), rtol=0, atol=CLOSE)
    if both:
        np.testing.assert_allclose(flat(run.state.server.down[0]), w, rtol=0, atol=CLOSE)
        held = np.concatenate([x.reshape(5, -1) for x in run.state.clients.down[0]], axis=1)
        np.testing.assert_array_equal(held, np.tile(flat(run.state.server.down[0]), (5, 1)))


def test_ef21_muon_without_codes_is_muon_on_the_mean_momentum():
    """TopK(1.0) both ways and beta = 1: Muon on the server with mean gradients."""
    code = fs.compression.TopK(1.0)
    first = fs.EF21Muon(code, RATE, down=code, momentum=1.0, newton_schulz=0, smallest=1)
    rule = fs.server.LMO(RATE, newton_schulz=0)
    same(first, fs.FedOpt(fs.client.Gradient(), rule, weighting="uniform"), sampling=FULL)


def test_a_client_that_missed_a_change_of_the_model_counts_no_more():
    """All must take part; of who failed or dropped out in round 1 no later message is used."""
    code = fs.compression.TopK(SHARE)
    method = fs.EF21Muon(code, RATE, down=code, smallest=1)
    with pytest.raises(fs.InvalidInput, match="EF21Muon needs all 5 clients"):
        method.check(fs.sampling.Uniform(3), 5)
    run = Verbs(method, make_task(make_clients()), FULL, "float64", 0)
    run.advance()
    before = run.states[3]
    run.advance()
    run.states[3] = before
    assert run.advance()["dropped"] == 1
    assert run.advance()["dropped"] == 1
