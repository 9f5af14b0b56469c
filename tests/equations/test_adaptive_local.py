"""FedAdamW and FedLADA against NumPy transcripts, and their limits; float64."""

from __future__ import annotations

import numpy as np
import optax
import pytest

import fedsolve as fs
from equations.cases import CLOSE, EVERY, ROUNDS, SOME, displacement_error, federation, flat
from equations.test_compression import LEAVES
from harness import CLASSES, FEATURES, crossed, make_clients, make_task
from verbs_harness import play

RATE, ALPHA, B1, B2 = 0.02, 0.4, 0.8, 0.95


def leaf_means(v):
    """The mean of each leaf."""
    return np.concatenate([np.full(len(leaf), v[leaf].mean()) for leaf in LEAVES])


def row_means(v):
    """Of the matrix the mean of each row, of the bias one."""
    weight, bias = (v[leaf] for leaf in LEAVES)
    rows = weight.reshape(FEATURES, CLASSES).mean(axis=1)
    return np.concatenate([np.repeat(rows, CLASSES), np.full(CLASSES, bias.mean())])


def adamw(fed, x, means=leaf_means, rate=lambda t: RATE, decay=0.1, eps=1e-3):
    """The paper's client and server, signs as in the authors' code."""
    v, momentum, steps_before, iterates = np.zeros_like(x), np.zeros_like(x), 0.0, [x]
    for t, cohort in enumerate(fed.cohorts):
        if cohort:
            ends, seconds, counts = [], [], []
            for i in cohort:
                y, m, own = x, np.zeros_like(x), v
                for k, rows in enumerate(fed.minibatches(t, i), start=1):
                    g = fed.gradient(i, y, rows)
                    m, own = B1 * m + (1 - B1) * g, B2 * own + (1 - B2) * g**2
                    m_hat, v_hat = m / (1 - B1**k), own / (1 - B2 ** (steps_before + k))
                    y = y * (1 - rate(t) * decay) - rate(t) * m_hat / (np.sqrt(v_hat) + eps)
                    y = y + ALPHA * rate(t) * momentum
                ends.append(y)
                seconds.append(means(own))
                counts.append(len(fed.minibatches(t, i)))
            new = np.mean(ends, axis=0)
            momentum = (new - x) / rate(t) / np.mean(counts)
            x, v, steps_before = new, np.mean(seconds, axis=0), steps_before + np.mean(counts)
        iterates.append(x)
    return np.stack(iterates), v


def lada(fed, x, eps=0.05):
    """Public ports' client and server: g_a points the way of a gradient."""
    v, amended, iterates = np.full_like(x, eps**2), np.zeros_like(x), [x]
    for t, cohort in enumerate(fed.cohorts):
        if cohort:
            ends, seconds, counts = [], [], []
            for i in cohort:
                y, m, own, v_hat = x, np.zeros_like(x), v, v
                for rows in fed.minibatches(t, i):
                    g = fed.gradient(i, y, rows)
                    m, own = B1 * m + (1 - B1) * g, B2 * own + (1 - B2) * g**2
                    v_hat = np.maximum(v_hat, own)
                    y = y - RATE * (ALPHA * m / np.sqrt(v_hat) + (1 - ALPHA) * amended)
                ends.append(y)
                seconds.append(v_hat)
                counts.append(len(fed.minibatches(t, i)))
            new = np.mean(ends, axis=0)
            amended = (x - new) / (RATE * np.mean(counts))
            x, v = new, np.mean(seconds, axis=0)
        iterates.append(x)
    return np.stack(iterates), v


def ours(partition):
    return fs.FedAdamW(RATE, alpha=ALPHA, beta1=B1, beta2=B2, eps=1e-3, weight_decay=0.1, partition=partition)


CASES = {
    "FedAdamW": (ours("tensor"), adamw),
    "FedAdamW, rows": (ours("row"), lambda fed, x: adamw(fed, x, row_means)),
    "FedAdamW, entries": (ours("entry"), lambda fed, x: adamw(fed, x, lambda v: v)),
    "FedLADA": (fs.FedLADA(RATE, alpha=ALPHA, beta1=B1, beta2=B2, eps=0.05), lada),
}


@EVERY
@pytest.mark.parametrize("name", crossed(CASES, [name for name in CASES if "entries" not in name]))
def test_equations(name, sampling):
    """Uneven clients of cohorts that vary, one of them empty: every x, and v at the end."""
    method, transcript = CASES[name]
    clients = make_clients()
    run = play(method, make_task(clients), sampling, ROUNDS)
    expected, v = transcript(federation(run, clients), run.iterates[0])
    assert np.abs(expected[1:] - expected[0]).max() > 1e-2
    assert displacement_error(run.iterates[1:], expected[1:], expected[0]) < CLOSE
    moment = run.state.server.moment
    spread = [np.broadcast_to(b, x.shape) for b, x in zip(moment, run.state.server.params, strict=True)]
    np.testing.assert_allclose(flat(spread), v, rtol=CLOSE)


def test_a_schedule():
    """d is divided by the rate of its own round."""
    clients, halves = make_clients(), fs.schedules.Exponential(RATE, 0.7)
    method = fs.FedAdamW(halves, alpha=ALPHA, beta1=B1, beta2=B2, eps=1e-3, weight_decay=0.1)
    run = play(method, make_task(clients), SOME, ROUNDS)
    expected, _ = adamw(federation(run, clients), run.iterates[0], rate=lambda t: RATE * 0.7**t)
    assert displacement_error(run.iterates[1:], expected[1:], expected[0]) < CLOSE


def same(first, second, rounds, sampling=SOME, **work):
    task = make_task(make_clients(), **work)
    a, b = (play(m, task, sampling, rounds).iterates for m in (first, second))
    assert displacement_error(a[1:], b[1:], b[0]) < CLOSE


def local_adamw(**more):
    solver = fs.client.Optax(optax.adamw, learning_rate=RATE, eps=1e-3, weight_decay=0.1, **more)
    return fs.FedOpt(solver, fs.server.ServerSGD(), weighting="uniform")


def test_fedavg_with_adamw():
    """Without d: in the first round whatever beta2, in all rounds where v forgets all but the last gradient."""
    given = {"alpha": 0.0, "eps": 1e-3, "weight_decay": 0.1}
    same(fs.FedAdamW(RATE, **given), local_adamw(), 1)
    same(fs.FedAdamW(RATE, beta2=0.0, **given), local_adamw(b2=0.0), ROUNDS)


def test_mofedsam_without_moves():
    """v stays eps^2 where gradients are smaller than eps: SGD of rate eta_l / eps, with the last mean direction."""
    lada = fs.FedLADA(RATE * 50, alpha=0.3, beta1=0.0, eps=50.0)
    same(lada, fs.MoFedSAM(RATE, rho=0.0, alpha=0.3), ROUNDS, local_steps=3)
    alone = fs.FedLADA(RATE * 50, alpha=1.0, beta1=0.0, eps=50.0)
    same(alone, fs.FedAvg(RATE, weighting="uniform"), ROUNDS, local_steps=3)


REFUSED = {
    "partition = 'head' must be 'tensor', 'row' or 'entry'": lambda: fs.FedAdamW(partition="head"),
    "alpha = 2": lambda: fs.FedAdamW(alpha=2.0),
    "alpha = 0": lambda: fs.FedLADA(alpha=0.0),
    "beta2 = 1": lambda: fs.FedLADA(beta2=1.0),
    "eps = 0": lambda: fs.FedLADA(eps=0.0),
    "client_lr = -1": lambda: fs.FedAdamW(-1.0),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused(words):
    """In a line that says why."""
    with pytest.raises(fs.InvalidInput, match=words):
        REFUSED[words]()
