"""Robust reductions under attack: twins, verdicts on made-up numbers, and a quick run."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.data.partitions import Dirichlet
from fedsolve.experiments import robustness_runs as runs
from fedsolve.experiments.catalogue import reproduce
from fedsolve.experiments.robustness_claims import claims, holds, mean_fails, price, prices
from fedsolve.experiments.robustness_runs import ATTACKS, FULL, REDUCTIONS, RULES, settings
from fedsolve.studies.experiment import VERDICTS


def made_up(**of):
    """Accuracy 0.9 everywhere, or that of a reduction by share."""
    value = {r: of.get(r.replace(" ", "_").replace("-", "_"), [0.9] * 5) for r in REDUCTIONS}
    return {(rule, r): np.broadcast_to(np.array(value[r]), (3, 4, 5)) for rule in RULES for r in REDUCTIONS}


@pytest.mark.full
def test_twins_are_flipped_labels():
    """Of a client and its twin one takes part: the model is that of `flip_labels` on the attackers.

    One round on all examples: twins have other numbers, hence other shuffles.
    """
    task = runs.make_task()
    plain = fs.tasks.digits(num_clients=runs.CLIENTS, partition=Dirichlet(runs.ALPHA), model="softmax")
    flipped = fs.attacks.flip_labels(
        plain, fs.attacks.choose_attackers(runs.CLIENTS, 0.2, seed=1), runs.CLASSES
    )
    work = {"rounds": 1, "batch_size": "full", "local_steps": 1}
    twins = fs.run(runs.method("FedAvg", "mean", "label flip", 0.2, 1), task, **work)
    direct = fs.run(RULES["FedAvg"](), flipped, **work)
    assert int(twins.rounds["dropped"][0]) == runs.CLIENTS
    close = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6)  # noqa: E731
    jax.tree.map(close, twins.params, direct.params)


def test_verdicts_follow_the_numbers():
    good = made_up(mean=[0.9, 0.1, 0.1, 0.1, 0.1])
    assert mean_fails(FULL, good).verdict == "reproduced"
    assert mean_fails(FULL, made_up()).verdict == "not reproduced"
    assert holds(FULL, good, "median", "").verdict == "reproduced"
    assert holds(FULL, made_up(median=[0.9, 0.9, 0.85, 0.5, 0.2]), "median", "").verdict == "partly"
    assert holds(FULL, made_up(median=[0.9, 0.5, 0.4, 0.3, 0.2]), "median", "").verdict == "not reproduced"
    assert price(FULL, good).verdict == "reproduced"
    assert price(FULL, made_up(geometric_median=[0.8] * 5)).verdict == "not reproduced"
    assert "Krum -10.0, -10.0, -10.0" in prices(FULL, made_up(Krum=[0.8] * 5)).ours
    assert {c.verdict for c in claims(FULL, good)} <= set(VERDICTS)


def test_every_attack_and_share_is_a_lane():
    lanes = settings(FULL.shares)
    assert len(lanes) == len(set(lanes)) == 17
    assert {a for a, _ in lanes} == set(ATTACKS)


@pytest.mark.full
def test_quick_run(tmp_path):
    made = reproduce("robustness", tmp_path, quick=True)
    found = json.loads((tmp_path / "results.json").read_text())
    assert "QUICK" in found["made_with"]
    assert (tmp_path / "robustness.png").stat().st_size > 5000
    assert len(made.outcome.tables["accuracy"].rows) == 2 * 4
    assert len(list((tmp_path / "parts").iterdir())) == 2
