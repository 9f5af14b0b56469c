"""SCALLION and SCAFCOM against a NumPy transcript of Huang et al. 2024, and their limits; float64."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import fedsolve as fs
from equations.cases import ROUNDS, SOME, displacement_error, federation
from equations.test_compression import LEAVES, SHARE, random_k, top
from equations.transcript import LocalSGD
from fedsolve.methods.compression import Cast, RandomK, Sign, TopK
from fedsolve.methods.compression.compressors import round_key
from fedsolve.methods.compression.methods import SCAFCOM, SCALLION, Scafcom, Scallion
from harness import CLASSES, FEATURES, make_clients, make_task
from verbs_harness import play

RATE = 0.3


def random_entries(change, t):
    """RandomK's for all clients of round t: each leaf has its own randomness."""
    keys = [jax.random.fold_in(round_key(t), i) for i in range(len(LEAVES))]
    return np.concatenate(
        [random_k(change[leaf], SHARE, key) for leaf, key in zip(LEAVES, keys, strict=True)]
    )


def transcript(fed, w, change, compress, momentum=0.0):
    """The method's iterates, c, all c_i; `change` makes what is compressed of h_i, c_i and v_i."""
    local, population = LocalSGD(RATE), len(fed.clients)
    c, ci, vi = np.zeros_like(w), np.zeros((population, len(w))), np.zeros((population, len(w)))
    iterates, m = [w], np.zeros_like(w)
    for t, cohort in enumerate(fed.cohorts):
        if cohort:
            sent, rates = [], []
            for i in cohort:
                y = local(fed, t, i, w, correction=c - ci[i])
                rates.append(RATE * len(fed.minibatches(t, i)))
                own = ci[i] - c + (w - y) / rates[-1]
                wanted, vi[i] = change(own, ci[i], vi[i])
                sent.append(compress(wanted, t))
                ci[i] = ci[i] + sent[-1]
            q = np.mean(sent, axis=0)
            m = momentum * m - np.mean(rates) * (c + q)
            w, c = w + m, c + len(cohort) / population * q
        iterates.append(w)
    return np.stack(iterates), c, ci


def scallion(alpha):
    return lambda own, ci, vi: (alpha * (own - ci), vi)


def scafcom(beta):
    def change(own, ci, vi):
        v = (1 - beta) * vi + beta * own
        return v - ci, v

    return change


TOP, RANDOM = TopK(SHARE), RandomK(SHARE)
CASES = {
    "SCALLION": (SCALLION(RANDOM, RATE, alpha=0.3, smallest=1), scallion(0.3), random_entries),
    "SCALLION, alpha by omega": (
        Scallion(fs.FedAvg(RATE), RANDOM, smallest=1),
        scallion(1.0),
        lambda x, t: (
            random_entries(x, t) * np.where(np.arange(len(x)) < FEATURES * CLASSES, KEPT[0], KEPT[1])
        ),
    ),
    "SCAFCOM": (SCAFCOM(TOP, RATE, beta=0.3, smallest=1), scafcom(0.3), lambda x, t: top(x)),
}
KEPT = [round(SHARE * len(leaf)) / len(leaf) for leaf in LEAVES]


def check(method, change, compress, momentum=0.0, **work):
    clients = make_clients()
    run = play(method, make_task(clients, **work), SOME, ROUNDS)
    expected, c, ci = transcript(
        federation(run, clients, **work), run.iterates[0], change, compress, momentum
    )
    assert np.abs(expected[1:] - expected[0]).max() > 1e-2, "nothing moved: the test would prove nothing"
    assert displacement_error(run.iterates[1:], expected[1:], expected[0]) < 1e-12
    flat = np.concatenate([np.ravel(x) for x in jax.tree.leaves(run.state.server.control)])
    np.testing.assert_allclose(flat, c, rtol=0, atol=1e-12)
    states = [x.reshape(len(clients), -1) for x in jax.tree.leaves(run.state.clients.control)]
    np.testing.assert_allclose(np.concatenate(states, axis=1), ci, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_equations(name):
    """Uneven clients of a cohort that varies and is empty once: models, c and all c_i."""
    check(*CASES[name])


def test_a_server_with_momentum():
    """Any server optimiser: here heavy-ball momentum along -K eta_l (c + q)."""
    method = Scafcom(fs.FedAvgM(RATE, momentum=0.5, weighting="uniform"), TOP, beta=0.3, smallest=1)
    check(method, scafcom(0.3), lambda x, t: top(x), momentum=0.5, local_steps=3)


@pytest.mark.gate("SCALLION")
@pytest.mark.parametrize(
    "method",
    [SCALLION(RandomK(1.0), RATE, alpha=1.0, smallest=1), SCAFCOM(TopK(1.0), RATE, beta=1.0, smallest=1)],
    ids=["SCALLION", "SCAFCOM"],
)
def test_without_compression_it_is_scaffold(method):
    """With alpha = 1 or beta = 1, and clients that take the same number of steps."""
    task = make_task(make_clients(), local_steps=5)
    ours, theirs = (play(m, task, SOME, ROUNDS) for m in (method, fs.SCAFFOLD(RATE)))
    assert displacement_error(ours.iterates[1:], theirs.iterates[1:], theirs.iterates[0]) < 1e-12


def test_codes_of_a_linear_compressor_are_added_up():
    """The server decodes their mean once: the message is reduced as it is sent."""
    from fedsolve.deploy.communication import payload

    assert not payload(SCALLION(RandomK(0.5), smallest=1)).not_a_sum
    assert payload(SCAFCOM(TopK(0.5), smallest=1)).not_a_sum


REFUSED = {
    "needs an unbiased compressor": lambda: SCALLION(TopK(0.1)),
    "SCALLION needs a compressor": lambda: SCALLION(0.1),
    "alpha = 0": lambda: SCALLION(RANDOM, alpha=0.0),
    "beta = 2": lambda: SCAFCOM(Sign(), beta=2.0),
    "wrap once": lambda: Scafcom(SCALLION(RANDOM), Cast()),
    "one set of control variates": lambda: fs.ControlVariates(SCALLION(RANDOM)),
    "mean of all clients' c_i": lambda: fs.Compressed(SCALLION(RANDOM), Sign()),
    "which Compressed does not send": lambda: Scafcom(fs.Compressed(fs.FedAvg(RATE), Sign()), Sign()),
    "needs local SGD": lambda: Scafcom(fs.DiLoCo(), Sign()),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused(words):
    with pytest.raises(fs.InvalidInput, match=words):
        REFUSED[words]()
