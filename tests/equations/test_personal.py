"""FedPer, FedRep and Ditto against transcripts of Arivazhagan et al. 2019, Collins et al. 2021 and Li et al. 2021."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import fedsolve as fs
from equations.cases import FULL, SAMPLINGS, SOME, displacement_error, federation, flat
from equations.transcript import Federation, shares
from harness import CLASSES, crossed, engine, make_clients, make_task
from verbs_harness import play

CLOSE = 1e-12
BODY, HEAD = slice(0, -CLASSES), slice(-CLASSES, None)  # weights are shared, biases personal
FULL_AND_PARTIAL = pytest.mark.parametrize("sampling", list(SAMPLINGS.values()), ids=list(SAMPLINGS))


def fedper(fed, w, lr, own, weighting, server_lr=1.0, mu=0.0):
    """Shared and personal parameters step together from (w, v_i), each at its rate; the shared ones are averaged."""
    heads = np.tile(w[HEAD], (len(fed.clients), 1))
    return rounds(fed, w, heads, weighting, server_lr, lambda *at: jointly(fed, *at, lr, own, mu))


def jointly(fed: Federation, t, i, body, head, lr, own, mu):
    y, v = body.copy(), head.copy()
    for rows in fed.minibatches(t, i):
        g = fed.gradient(i, np.concatenate([y, v]), rows)
        y, v = y - lr(t) * (g[BODY] + mu * (y - body)), v - own(t) * g[HEAD]
    return y, v


def fedrep(fed, w, lr, own, passes, weighting):
    """v_i fits the body w first, `passes` times through the round's minibatches; then the body fits v_i."""

    def one(t, i, body, head):
        y, v = body.copy(), head.copy()
        for rows in fed.minibatches(t, i) * passes:
            v = v - own * fed.gradient(i, np.concatenate([body, v]), rows)[HEAD]
        for rows in fed.minibatches(t, i):
            y = y - lr * fed.gradient(i, np.concatenate([y, v]), rows)[BODY]
        return y, v

    return rounds(fed, w, np.tile(w[HEAD], (len(fed.clients), 1)), weighting, 1.0, one)


def rounds(fed, w, heads, weighting, server_lr, one):
    """Bodies averaged over each cohort, heads kept; the models of the server have the first head for ever."""
    body, iterates = w[BODY], [w]
    for t, cohort in enumerate(fed.cohorts):
        if cohort:
            found = [one(t, i, body, heads[i]) for i in cohort]
            body = body + server_lr * shares(fed, cohort, weighting) @ np.stack([y - body for y, _ in found])
            for i, (_, v) in zip(cohort, found, strict=True):
                heads[i] = v
        iterates.append(np.concatenate([body, w[HEAD]]))
    return np.stack(iterates), heads


def check(algorithm, transcript, sampling, by=play):
    """Every model of the server and every client's own leaves."""
    clients = make_clients()
    run = by(algorithm, make_task(clients), sampling, 10)
    start = run.iterates[0]
    iterates, heads = transcript(federation(run, clients), start)
    assert displacement_error(run.iterates[1:], iterates[1:], start) < CLOSE
    np.testing.assert_array_equal(run.iterates[:, HEAD], np.tile(start[HEAD], (11, 1)))
    got = jax.tree.leaves(run.state.clients.personal)
    assert len(got) == 1, "weights stay with no client"
    assert np.abs(heads - start[HEAD]).max() > 0.1
    np.testing.assert_allclose(got[0], heads, rtol=0, atol=CLOSE)
    return run


@FULL_AND_PARTIAL
def test_fedper(sampling):
    """(y, v_i) -= eta_l grad f_i(y, v_i); w += eta_g sum p_i (y - w), p_i by examples; absent clients keep v_i."""
    algorithm = fs.FedPer("bias", 0.3, server_lr=0.8)
    rate = lambda t: 0.3  # noqa: E731
    check(algorithm, lambda fed, w: fedper(fed, w, rate, rate, "examples", 0.8), sampling)


@pytest.mark.full
def test_fedper_in_the_engine():
    """Whole rounds of the engine, clients side by side with masks: the leaves wait in its stacked states."""
    rate = lambda t: 0.3  # noqa: E731
    check(fs.FedPer("bias", 0.3), lambda fed, w: fedper(fed, w, rate, rate, "examples"), SOME, engine)


def test_personal_leaves_around_fedprox_and_a_schedule():
    """The proximal term is of the shared leaves alone; each part has its rate, both by round."""
    inner = fs.FedProx(fs.schedules.Exponential(0.4, 0.9), mu=0.5, weighting="uniform")
    algorithm = fs.Personal(inner, "bias", personal_lr=fs.schedules.Exponential(0.2, 0.8))
    lr, own = (lambda t: 0.4 * 0.9**t), (lambda t: 0.2 * 0.8**t)
    check(algorithm, lambda fed, w: fedper(fed, w, lr, own, "uniform", mu=0.5), SOME)


@FULL_AND_PARTIAL
@pytest.mark.parametrize("passes", crossed([1, 3], [3]))
def test_fedrep(sampling, passes):
    """The head first, through the minibatches `passes` times, at w; then the body with the new head, once."""
    algorithm = fs.FedRep("bias", 0.3, personal_lr=0.2, passes=passes)
    check(algorithm, lambda fed, w: fedrep(fed, w, 0.3, 0.2, passes, "uniform"), sampling)


@pytest.mark.full
def test_fedrep_in_the_engine():
    """Whole rounds of the engine, with passes over minibatches that uneven clients end at different steps."""
    algorithm = fs.FedRep("bias", 0.3, personal_lr=0.2, passes=3)
    check(algorithm, lambda fed, w: fedrep(fed, w, 0.3, 0.2, 3, "uniform"), SOME, engine)


def ditto(fed, w, lr, own, lam):
    """FedAvg by examples, and v_i -= eta_v (g_i(v_i) + lam (v_i - w)) with the w that the round began with."""
    models, iterates = np.tile(w, (len(fed.clients), 1)), [w]
    for t, cohort in enumerate(fed.cohorts):
        deltas = []
        for i in cohort:
            y = w.copy()
            for rows in fed.minibatches(t, i):
                y = y - lr * fed.gradient(i, y, rows)
                models[i] = models[i] - own * (fed.gradient(i, models[i], rows) + lam * (models[i] - w))
            deltas.append(y - w)
        if cohort:
            w = w + shares(fed, cohort, "examples") @ np.stack(deltas)
        iterates.append(w)
    return np.stack(iterates), models


@pytest.mark.parametrize(
    ("by", "sampling"), [(play, FULL), (play, SOME), pytest.param(engine, SOME, marks=pytest.mark.full)]
)
def test_ditto(by, sampling):
    """The global model is FedAvg's; each client's own is drawn to it, and waits while the client is absent."""
    clients = make_clients()
    run = by(fs.Ditto(fs.FedAvg(0.3), lam=0.7, personal_lr=0.2), make_task(clients), sampling, 10)
    iterates, models = ditto(federation(run, clients), run.iterates[0], 0.3, 0.2, 0.7)
    assert displacement_error(run.iterates[1:], iterates[1:], run.iterates[0]) < CLOSE
    own = run.state.clients.personal
    got = np.stack([flat([own.weight[i], own.bias[i]]) for i in range(len(clients))])
    np.testing.assert_allclose(got, models, rtol=0, atol=CLOSE)
    assert np.abs(got - iterates[-1]).max() > 0.1
