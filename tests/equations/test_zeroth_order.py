"""FedZO, FedKSeed and DeComFL against their papers in NumPy, and the bits of server and clients."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy.stats import norm

import fedsolve as fs
from equations.cases import CLOSE, EVERY, ROUNDS, SOME, displacement_error, federation, flat
from equations.transcript import shares
from fedsolve.methods.zeroth_order import key_of, walk
from harness import Softmax, crossed, default_start, make_clients, make_task
from verbs_harness import play

RATE, MU, MOST, K, P, HISTORY = 0.03, 0.2, 7, 5, 2, 3
LIKE = Softmax.of(default_start())


def drawn(*numbers):
    """A direction, leaf by leaf as the methods draw it."""
    key = jax.random.key(0x5EED)
    for number in numbers:
        key = jax.random.fold_in(key, np.uint32(number))
    bits = [np.array(jax.random.bits(jax.random.fold_in(key, i), x.shape)) >> 9 for i, x in enumerate(LIKE)]
    return flat([norm.ppf(b / 2**23 + 2.0**-25) for b in bits])


def slope(fed, i, y, z, rows):
    """The central difference along z."""
    return (fed.loss(i, y + MU * z, rows) - fed.loss(i, y - MU * z, rows)) / (2 * MU)


def fedzo(fed, w):
    """Algorithm 1 of Fang et al.: d (F(y + mu v) - F(y)) v / mu, averaged over directions of length 1."""
    iterates = [w]
    for t, cohort in enumerate(fed.cohorts):
        ends = []
        for i in cohort:
            y = w
            for k, rows in enumerate(fed.minibatches(t, i)):
                estimate = 0.0
                for p in range(P):
                    v = drawn(3, t, i, k, p)
                    v = v / np.linalg.norm(v)
                    estimate += len(w) * (fed.loss(i, y + MU * v, rows) - fed.loss(i, y, rows)) / MU * v / P
                y = y - RATE * estimate
            ends.append(y - w)
        w = w + 0.8 * np.mean(ends, axis=0) if cohort else w
        iterates.append(w)
    return np.stack(iterates)


def fedkseed(fed, start, weighting):
    """A dictionary of candidates on each client, added up; the model always from the start."""
    sums, iterates = np.zeros(K), [start]
    candidates = [drawn(0, j) for j in range(K)]
    for t, cohort in enumerate(fed.cohorts):
        w = start - sum(RATE * a * z for a, z in zip(sums, candidates, strict=True))
        for i, p in zip(cohort, shares(fed, cohort, weighting) if cohort else [], strict=True):
            y = w
            for k, rows in enumerate(fed.minibatches(t, i)):
                j = int(jax.random.randint(key_of(1, t, i, k), (), 0, K, "int32"))
                g = slope(fed, i, y, candidates[j], rows)
                y = y - RATE * g * candidates[j]
                sums[j] += p * g
        iterates.append(start - sum(RATE * a * z for a, z in zip(sums, candidates, strict=True)))
    return np.stack(iterates)


def decomfl(fed, w, weighting, history=HISTORY):
    """Algorithms 3 and 4 of Li et al. with the authors' difference; rounds without clients draw no directions."""
    iterates, moves, last = [w], 0, np.zeros(5, int)
    for t, cohort in enumerate(fed.cohorts):
        mean, here = np.zeros((MOST, P)), [i for i in cohort if moves - last[i] <= history]
        for i, share in zip(here, shares(fed, here, weighting), strict=True):
            y, last[i] = w, moves
            for k, rows in enumerate(fed.minibatches(t, i)):
                zs = [drawn(2, moves, k, p) for p in range(P)]
                g = [slope(fed, i, y, z, rows) for z in zs]
                y = y - RATE * np.mean([a * z for a, z in zip(g, zs, strict=True)], axis=0)
                mean[k] += share * np.array(g)
        w = w - RATE / P * sum(mean[k, p] * drawn(2, moves, k, p) for k in range(MOST) for p in range(P))
        moves += bool(cohort)
        iterates.append(w)
    return np.stack(iterates)


def kseed(**options):
    return fs.FedKSeed(RATE, seeds=K, mu=MU, most_steps=MOST, **options)


def decom(**options):
    return fs.DeComFL(RATE, directions=P, mu=MU, most_steps=MOST, history=HISTORY, **options)


CASES = {
    "FedZO": (lambda: fs.FedZO(RATE, directions=P, mu=MU, server_lr=0.8), lambda f, w: fedzo(f, w)),
    "FedKSeed": (kseed, lambda f, w: fedkseed(f, w, "examples")),
    "FedKSeed, model": (
        lambda: kseed(down="model", weighting="uniform"),
        lambda f, w: fedkseed(f, w, "uniform"),
    ),
    "DeComFL": (decom, lambda f, w: decomfl(f, w, "uniform")),
    "DeComFL, model": (
        lambda: decom(down="model", weighting="examples"),
        lambda f, w: decomfl(f, w, "examples", history=ROUNDS),  # nobody needs one
    ),
}


def check(run, iterates):
    assert np.abs(iterates[1:] - iterates[0]).max() > 1e-3, "nothing moved: the test would prove nothing"
    assert displacement_error(run.iterates[1:], iterates[1:], iterates[0]) < CLOSE


@EVERY
@pytest.mark.parametrize("case", crossed(CASES, [name for name in CASES if "model" not in name]))
def test_iterates(case, sampling):
    """Uneven clients that take other numbers of steps, with few of them in a round."""
    build, transcript = CASES[case]
    clients = make_clients()
    run = play(build(), make_task(clients), sampling, ROUNDS)
    check(run, transcript(federation(run, clients), run.iterates[0]))


def test_clients_have_the_bits_of_the_server():
    """In programs of their own: DeComFL's clients go on from old models, FedKSeed's from the first one."""
    run = play(decom(), make_task(make_clients()), SOME, ROUNDS)
    np.testing.assert_array_equal(run.logs["lost"], [0] * 9 + [1 / 2])  # client 2, in the last round
    for i in range(5):
        last = 4 if i == 2 else max(t for t, cohort in enumerate(run.cohorts) if i in cohort)
        own = flat([x[i] for x in run.state.clients.params])
        np.testing.assert_array_equal(own, run.iterates[last])
    run = play(kseed(), make_task(make_clients()), SOME, ROUNDS)
    with jax.enable_x64(True):
        rebuilt = jax.jit(lambda w, a: walk(w, a, lambda j: key_of(0, j)))(LIKE, run.state.server.sums)
    np.testing.assert_array_equal(flat(rebuilt), run.iterates[-1])


@pytest.mark.full
def test_who_misses_more_than_the_history_is_left_out():
    """Of clients 1, 2 and 3 no slope counts later; in round 8 of nobody's."""
    clients = make_clients()
    method = fs.DeComFL(RATE, directions=P, mu=MU, most_steps=MOST, history=2)
    run = play(method, make_task(clients), SOME, ROUNDS)
    check(run, decomfl(federation(run, clients), run.iterates[0], "uniform", history=2))
    np.testing.assert_allclose(run.logs["lost"][[2, 3, 5, 8]], [0, 1 / 4, 1 / 2, 1])
