"""Scaffnew and FedComLoc against their papers in NumPy, and their limits; float64."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import fedsolve as fs
from equations.cases import CLOSE, EVERY, FULL, ROUNDS, SOME, displacement_error, federation, flat
from equations.test_compression import top
from fedsolve.methods.compression import TopK
from harness import engine, make_clients, make_task
from verbs_harness import play

RATE, P = 0.3, 0.4


def tosses(t, p):
    """Up to the first success, for round t."""
    bits = int(jax.random.bits(jax.random.fold_in(jax.random.key(0), t), dtype="uint32")) // 2**16
    u, k = (bits + 0.5) / 2**16, 1
    while u < (1 - p) ** k:
        k += 1
    return k


def proxskip(fed, x, p):
    """Algorithm 2 of the paper, one iteration after another: every client takes part."""
    models, h, iterates = [x] * len(fed.clients), np.zeros((len(fed.clients), len(x))), [x]
    for t in range(len(fed.cohorts)):
        last = tosses(t, p) - 1
        batches = [fed.minibatches(t, i) for i in range(len(models))]
        for k in range(last + 1):
            hats = [y - RATE * (fed.gradient(i, y, batches[i][k]) - h[i]) for i, y in enumerate(models)]
            models = [np.mean(hats, axis=0)] * len(models) if k == last else hats
            h = h + p / RATE * (np.array(models) - hats)
        iterates.append(models[0])
    return np.stack(iterates)


def sampled(fed, w, p, up=lambda x: x):
    """Clients that are drawn, as SCAFFOLD keeps control variates, and compressed models."""
    population = len(fed.clients)
    c, ci, iterates = np.zeros_like(w), np.zeros((population, len(w))), [w]
    for t, cohort in enumerate(fed.cohorts):
        if cohort:
            ends, steps = [], []
            for i in cohort:
                y, correction = w, c - ci[i]
                batches = fed.minibatches(t, i)[: tosses(t, p)]
                for rows in batches:
                    y = y - RATE * (fed.gradient(i, y, rows) + correction)
                ends.append(up(y))
                steps.append(len(batches))
                ci[i] = ci[i] - p / RATE * (ends[-1] - w) - p * steps[-1] * c
            x = np.mean(ends, axis=0)
            c = c - len(cohort) / population * (p / RATE * (x - w) + p * np.mean(steps) * c)
            w = x
        iterates.append(w)
    return np.stack(iterates), c, ci


TOP = TopK(0.4)
CASES = {
    "Scaffnew": (fs.Scaffnew(RATE, p=P), {}),
    "FedComLoc": (fs.FedComLoc(TOP, RATE, p=P, smallest=1), {"up": top}),
}


@EVERY
@pytest.mark.parametrize("name", CASES)
def test_equations(name, sampling):
    """Uneven clients of cohorts that vary, one of them empty: models, c and all c_i."""
    method, compressed = CASES[name]
    clients = make_clients()
    run = play(method, make_task(clients), sampling, ROUNDS)
    expected, c, ci = sampled(federation(run, clients), flat(make_task(clients).init(None)), P, **compressed)
    assert len({tosses(t, P) for t in range(ROUNDS)}) > 2, "rounds of one length would prove nothing"
    assert np.abs(expected[1:] - expected[0]).max() > 1e-2
    np.testing.assert_allclose(run.iterates, expected, rtol=0, atol=CLOSE)
    np.testing.assert_allclose(flat(run.state.server.control), c, rtol=0, atol=CLOSE)
    states = [x.reshape(len(clients), -1) for x in jax.tree.leaves(run.state.clients.control)]
    np.testing.assert_allclose(np.concatenate(states, axis=1), ci, rtol=0, atol=CLOSE)


def test_everyone_takes_part():
    """The paper's algorithm with its h_i, by whole rounds of the engine; more local steps than a coin asks for."""
    clients = make_clients()
    run = engine(fs.Scaffnew(RATE, p=P), make_task(clients, local_steps=12), FULL, ROUNDS)
    fed = federation(run, clients, local_steps=12)
    expected = proxskip(fed, run.iterates[0], P)
    assert max(tosses(t, P) for t in range(ROUNDS)) <= 12
    assert displacement_error(run.iterates[1:], expected[1:], expected[0]) < CLOSE


def test_certain_communication_is_gradient_descent():
    """p = 1, full batches: FedAvg with one local step, and SCAFFOLD with one whoever is drawn."""
    task = make_task(make_clients(), batch=None, local_steps=1)
    several = make_task(make_clients(), batch=None, local_steps=4)
    for sampling, plain in ((FULL, fs.FedAvg(RATE, weighting="uniform")), (SOME, fs.SCAFFOLD(RATE))):
        ours, theirs = (
            play(fs.Scaffnew(RATE, p=1.0), several, sampling, ROUNDS),
            play(plain, task, sampling, ROUNDS),
        )
        assert displacement_error(ours.iterates[1:], theirs.iterates[1:], theirs.iterates[0]) < CLOSE


def test_without_compression_it_is_scaffnew():
    """All entries are sent."""
    task = make_task(make_clients())
    method = fs.FedComLoc(TopK(1.0), RATE, p=P, smallest=1)
    ours, theirs = (play(m, task, SOME, ROUNDS) for m in (method, fs.Scaffnew(RATE, p=P)))
    assert displacement_error(ours.iterates[1:], theirs.iterates[1:], theirs.iterates[0]) < CLOSE


REFUSED = {
    "Scaffnew takes client.SGD without momentum": lambda: type(fs.Scaffnew())(
        fs.client.SGD(0.1, momentum=0.9)
    ),
    "p = 0": lambda: fs.Scaffnew(p=0.0),
    "FedComLoc needs a compressor": lambda: fs.FedComLoc(0.1),
    "smallest = 0": lambda: fs.FedComLoc(TOP, smallest=0),
    "mean of all clients' c_i": lambda: fs.Compressed(fs.Scaffnew(), TOP),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused(words):
    """In a line that says why."""
    with pytest.raises(fs.InvalidInput, match=words):
        REFUSED[words]()
