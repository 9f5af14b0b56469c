"""PAdaMFed against its pseudo-code in NumPy, and what it is with one client."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fedsolve as fs
from equations.cases import CLOSE, EVERY, FULL, ROUNDS, SOME, compare, displacement_error, federation, flat
from fedsolve.core.sampling import Trace
from harness import engine, make_clients, make_task
from verbs_harness import play

HORIZON, SCALE = 20, 3.0


def padamfed(fed, w):
    """Yan et al. 2025: iterates, c, g and every c_i, one client after another."""
    population, horizon = len(fed.clients), HORIZON
    c, g, ci = np.zeros_like(w), np.zeros_like(w), np.zeros((population, len(w)))
    iterates, rates, work, rate = [w], [], None, 0.0
    for t, cohort in enumerate(fed.cohorts):
        if cohort:
            beta = 1.0 if work is None else min(1.0, math.sqrt(work / horizon))
            updates, changes, steps = [], [], []
            for i in cohort:
                batches, y, gradients = fed.minibatches(t, i), w, []
                for rows in batches:
                    gradients.append(fed.gradient(i, y, rows))
                    v = beta * (gradients[-1] - ci[i] + c) + (1 - beta) * g
                    y = y - v / np.linalg.norm(v) / (len(batches) * horizon)
                new = np.mean(gradients, axis=0)
                updates.append(y - w)
                changes.append(new - ci[i])
                steps.append(len(batches))
                ci[i] = new
            work = len(cohort) * np.mean(steps)
            rate = SCALE * work**0.25 / horizon**0.75 * horizon
            w = w + rate * np.mean(updates, axis=0)
            g = beta * (c + np.mean(changes, axis=0)) + (1 - beta) * g
            c = c + np.sum(changes, axis=0) / population
        iterates.append(w)
        rates.append(rate)
    return np.stack(iterates), np.array(rates), c, g, ci


@EVERY
def test_rounds(sampling):
    """Uneven clients take other numbers of steps; momentum and every control variate agree at the end."""
    clients = make_clients()
    run = play(fs.PAdaMFed(HORIZON, scale=SCALE), make_task(clients), sampling, ROUNDS)
    iterates, rates, c, g, ci = padamfed(federation(run, clients), run.iterates[0])
    compare(run, iterates, rates)
    for ours, theirs in ((run.state.server.control, c), (run.state.server.momentum, g)):
        assert displacement_error(flat(ours)[None], theirs[None], 0 * theirs) < CLOSE
    got = np.concatenate([np.reshape(x, (5, -1)) for x in run.state.clients], axis=1)
    assert np.abs(got - ci).max() < CLOSE * np.abs(ci).max()


@pytest.mark.full
def test_rounds_of_the_engine():
    clients = make_clients()
    run = engine(fs.PAdaMFed(HORIZON, scale=SCALE), make_task(clients), SOME, ROUNDS)
    assert (
        displacement_error(run.iterates, padamfed(federation(run, clients), run.iterates[0])[0], 0.0) < 1e-9
    )


def test_one_client_is_fedavg_with_small_clipping():
    """c = c_i cancels in beta (g_i - c_i + c), and with beta = 1 there is no momentum: normalised local SGD."""
    task = make_task(make_clients((12,)), epochs=None, local_steps=3)
    small, horizon = 1e-9, 2  # beta = 1: S K = 3 > T
    rate = (3 * horizon) ** 0.25
    fedavg = fs.FedAvg(1 / (3 * horizon) / small, server_lr=rate, clip_norm=small)
    sampling = Trace(np.ones((4, 1), bool), 1)
    ours = play(fs.PAdaMFed(horizon), task, sampling, 4).iterates
    np.testing.assert_allclose(ours, play(fedavg, task, sampling, 4).iterates, rtol=1e-10)


def test_a_round_moves_the_model_by_at_most_gamma():
    task = make_task(make_clients(), epochs=None, local_steps=4)
    run = play(fs.PAdaMFed(100), task, FULL, ROUNDS)
    moved = np.linalg.norm(np.diff(run.iterates, axis=0), axis=1)
    assert moved.max() <= (5 * 4) ** 0.25 / 100**0.75 * (1 + 1e-12)


def test_bad_numbers():
    with pytest.raises(fs.InvalidInput, match="horizon = 0"):
        fs.PAdaMFed(0)
    with pytest.raises(fs.InvalidInput, match="scale = -1"):
        fs.PAdaMFed(10, scale=-1.0)
    with pytest.raises(fs.InvalidInput, match="c must stay the mean"):
        fs.build("Robust+PAdaMFed", {"horizon": 10, "reduction": "median"})
