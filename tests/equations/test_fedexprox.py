"""FedExProx against Li, Acharya and Richtarik 2024: three extrapolations, exact and inexact proximal steps."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import fedsolve as fs
from equations.cases import CLOSE, EVERY, ROUNDS, compare, federation
from equations.server_rules import Average
from equations.tuning_transcript import (
    Work,
    displaced,
    diversity,
    envelope_polyak,
    local_sgd,
    rounds,
)
from harness import SIZES, crossed, make_clients, make_task, squares
from verbs_harness import play

GAMMA, LOWER, D = 0.8, 0.1, 6
KINDS = {
    "constant": ({"alpha": 1.7}, lambda: displaced(Average(1.7))),
    "GraDS": ({}, lambda: diversity),
    "StoPS": ({"extrapolation": "StoPS", "f_star": LOWER}, lambda: envelope_polyak(GAMMA, LOWER)),
}


def check(run, client, server, weights):
    iterates, log = rounds(run.cohorts, run.iterates[0], client, server, weights)
    compare(run, iterates, log["server_lr"])
    if "f" in log:
        np.testing.assert_allclose(run.logs["f"], log["f"], rtol=CLOSE, atol=0)


@EVERY
@pytest.mark.parametrize(
    ("weighting", "kind"),
    crossed(
        product(("uniform", "examples"), KINDS),
        [("examples", "constant"), ("uniform", "GraDS"), ("examples", "StoPS")],
    ),
)
def test_inexact(weighting, kind, sampling):
    """p_i by K steps of SGD on f_i + |y - w|^2 / (2 gamma); the envelope is the objective where they end."""
    settings, server = KINDS[kind]
    clients = make_clients()
    algorithm = fs.FedExProx(0.3, gamma=GAMMA, weighting=weighting, **settings)
    run = play(algorithm, make_task(clients), sampling, ROUNDS)
    fed = federation(run, clients)
    check(run, local_sgd(fed, 0.3, 1 / GAMMA), server(), fed.size if weighting == "examples" else lambda i: 1)


@EVERY
@pytest.mark.parametrize("kind", crossed(KINDS, ["StoPS"]))
def test_exact(kind, sampling):
    """p_i = (H_i + I / gamma)^-1 (c_i + w / gamma) by elimination, for f_i = w'H_i w / 2 - c_i'w + constant."""
    rng = np.random.default_rng(3)
    clients = [fs.Examples(rng.standard_normal((n, D)) + 0.2, rng.standard_normal(n)) for n in SIZES]
    settings, server = KINDS[kind]

    def client(t, i, w):
        x, y = clients[i].x, clients[i].y
        H, c = 2 * x.T @ x / len(y), 2 * x.T @ y / len(y)
        p = np.linalg.solve(H + np.eye(D) / GAMMA, c + w / GAMMA)
        return Work(p, end=np.mean((x @ p - y) ** 2) + (p - w) @ (p - w) / (2 * GAMMA))

    task = fs.Task.from_arrays(squares, np.linspace(-1, 1, D), clients, batch_size=4)
    algorithm = fs.FedExProx(gamma=GAMMA, solver="exact", **settings)
    check(play(algorithm, task, sampling, ROUNDS), client, server(), lambda i: 1)


def test_names_and_defaults():
    """GraDS unless alpha is given; the name is the paper's, under wrappers as well."""
    assert fs.FedExProx().name == "FedExProx"
    assert isinstance(fs.FedExProx().inner.server_optimizer, fs.server.GradientDiversity)
    assert fs.FedExProx(alpha=1.2).inner.server_optimizer.lr == 1.2
    assert fs.ControlVariates(fs.FedExProx()).name == "SCAFFOLD+FedExProx"
