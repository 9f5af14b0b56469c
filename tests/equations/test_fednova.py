"""FedNova against equations 4 and 12 of Wang et al. 2020, clients of two to six local steps; float64."""

from __future__ import annotations

import numpy as np
import pytest

import fedsolve as fs
from equations.cases import CLOSE, FULL, ROUNDS, SAMPLINGS, SOME, compare, federation
from equations.transcript import LocalSGD, shares
from harness import make_clients, make_task
from verbs_harness import play

ETA, SERVER = 0.3, 0.8


def norm_of_a(steps, beta):
    """|a_i|_1, a_i = (1 + beta + ... + beta^(k-1)) for k = 1 ... tau_i: how often each gradient counts in D_i."""
    return sum(sum(beta**j for j in range(k)) for k in range(1, steps + 1))


def fednova(fed, w, beta, weighting):
    """w -= SERVER tau_eff eta sum p_i d_i; iterates, server rates, and eta tau_eff by round."""
    local, iterates, rates, effective = LocalSGD(ETA, momentum=beta), [w], [], []
    for t, cohort in enumerate(fed.cohorts):
        if cohort:
            p = shares(fed, cohort, weighting)
            norms = [norm_of_a(len(fed.minibatches(t, i)), beta) for i in cohort]
            d = [(w - local(fed, t, i, w)) / (ETA * a) for i, a in zip(cohort, norms, strict=True)]
            tau_eff = p @ norms
            w = w - SERVER * tau_eff * ETA * sum(q * x for q, x in zip(p, d, strict=True))
        iterates.append(w)
        rates.append(SERVER)
        effective.append(ETA * tau_eff)
    return np.stack(iterates), np.array(rates), np.array(effective)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize(("beta", "weighting"), [(0.0, "examples"), (0.6, "uniform")])
def test_normalised_averaging(beta, weighting, sampling):
    """Every iterate and both rates; clients of 3 to 12 examples in minibatches of 4 take 2, 4 or 6 steps."""
    clients = make_clients()
    method = fs.FedNova(ETA, server_lr=SERVER, weighting=weighting, client_momentum=beta or None)
    run = play(method, make_task(clients), sampling, ROUNDS)
    fed = federation(run, clients)
    assert len({len(fed.minibatches(0, i)) for i in range(5)}) > 1
    iterates, rates, effective = fednova(fed, run.iterates[0], beta, weighting)
    compare(run, iterates, rates)
    np.testing.assert_allclose(run.logs["effective_rate"], effective, rtol=CLOSE)


def test_unequal_steps_make_another_method_than_fedavg():
    """FedAvg weighs client i by p_i tau_i: with everyone there the two part in the first round."""
    clients = make_clients()
    nova, avg = (
        play(m, make_task(clients), FULL, 1) for m in (fs.FedNova(ETA, server_lr=1.0), fs.FedAvg(ETA))
    )
    assert np.linalg.norm(nova.iterates[1] - avg.iterates[1]) > 1e-2 * np.linalg.norm(
        avg.iterates[1] - avg.iterates[0]
    )


def test_clients_of_equal_steps_make_it_fedavg():
    """tau_i = tau for all i: tau_eff eta d_i = -D_i, and the mean of displacements comes back."""
    clients = make_clients((12, 12, 12, 12, 12))
    nova, avg = (
        play(m, make_task(clients), SOME, ROUNDS) for m in (fs.FedNova(ETA, server_lr=1.0), fs.FedAvg(ETA))
    )
    np.testing.assert_allclose(nova.iterates, avg.iterates, rtol=1e-12, atol=1e-12)


def test_scaffold_needs_displacements():
    """Option II reads c_i off the displacement, which a normalised message is not; option I does not."""
    with pytest.raises(fs.InvalidInput, match="needs the clients' updates, which FedNova does not"):
        fs.ControlVariates(fs.FedNova(0.1))
    assert fs.ControlVariates(fs.FedNova(0.1), option="I").name == "SCAFFOLD+FedNova"
