"""Attackers: what they send, who they are, flipped labels; robust methods from the command line and on two devices."""

from __future__ import annotations

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.geometry import L1Ball
from harness import Listed, make_clients, make_task
from verbs_harness import play

ALONE = Listed.of([[i] for i in range(5)])


def displacement(algorithm, rounds=1):
    """What client 0 alone moves the model by, per round."""
    found = play(algorithm, make_task(make_clients()), Listed.of([[0]]), rounds).iterates
    return np.diff(found, axis=0)


@pytest.mark.parametrize(
    ("attack", "factor"),
    [(fs.attacks.SignFlip(), -1.0), (fs.attacks.SignFlip(3.0), -3.0), (fs.attacks.Scaled(7.0), 7.0)],
)
def test_multiples(attack, factor):
    """An attacker's displacement is a multiple; another client's is its own."""
    honest = displacement(fs.FedAvg(0.3))
    np.testing.assert_allclose(
        displacement(fs.attacks.Attacked(fs.FedAvg(0.3), attack, (3, 0))), factor * honest, rtol=1e-12
    )
    np.testing.assert_array_equal(displacement(fs.attacks.Attacked(fs.FedAvg(0.3), attack, (3, -1))), honest)
    np.testing.assert_array_equal(displacement(fs.attacks.Attacked(fs.FedAvg(0.3), attack, ())), honest)


@pytest.mark.full
def test_noise_is_new_each_round_and_has_its_deviation():
    moves = displacement(fs.attacks.Attacked(fs.FedAvg(0.3), fs.attacks.GaussianNoise(100.0), (0,)), 40)
    assert len(np.unique(moves)) == moves.size
    np.testing.assert_allclose(moves.std(), 100.0, rtol=0.1)
    again = displacement(fs.attacks.Attacked(fs.FedAvg(0.3), fs.attacks.GaussianNoise(100.0), (0,)), 40)
    np.testing.assert_array_equal(moves, again)


def test_two_attackers_send_different_noise():
    algorithm = fs.attacks.Attacked(fs.FedAvg(0.3), fs.attacks.GaussianNoise(1.0), tuple(range(5)))
    found = play(algorithm, make_task(make_clients()), ALONE, 5)
    assert len(np.unique(np.diff(found.iterates, axis=0).round(9))) == 5 * 15


def test_chosen_attackers_are_nested():
    few, many = fs.attacks.choose_attackers(30, 0.1, seed=4), fs.attacks.choose_attackers(30, 0.4, seed=4)
    assert (len(few), len(many)) == (3, 12)
    assert many[:3] == few
    assert len(set(many)) == 12
    assert fs.attacks.choose_attackers(30, 0.0) == ()


def test_labels_of_attackers_are_flipped():
    task = make_task(make_clients())
    flipped = fs.attacks.flip_labels(task, (1, 4), 3)
    for i in range(5):
        own, other = task.data.client(i), flipped.data.client(i)
        np.testing.assert_array_equal(own.x, other.x)
        np.testing.assert_array_equal(other.y, 2 - own.y if i in (1, 4) else own.y)


def test_refusals():
    task = make_task(make_clients())
    with pytest.raises(fs.InvalidInput, match="clients 0 to 4"):
        fs.attacks.flip_labels(task, (5,), 3)
    with pytest.raises(fs.InvalidInput, match="from 0 to 1"):
        fs.attacks.flip_labels(task, (0,), 2)
    with pytest.raises(fs.InvalidInput, match="numbers of clients"):
        fs.attacks.Attacked(fs.FedAvg(), fs.attacks.SignFlip(), (0.5,))
    with pytest.raises(fs.InvalidInput, match="share"):
        fs.attacks.choose_attackers(10, 1.5)
    with pytest.raises(fs.InvalidInput, match="population = 0 must be an integer of at least 1"):
        fs.attacks.choose_attackers(0, 0.5)
    with pytest.raises(fs.InvalidInput, match="seed = -1 must be an integer of at least 0"):
        fs.attacks.choose_attackers(10, 0.5, seed=-1)
    with pytest.raises(fs.InvalidInput, match="FedFW sends no vector"):
        displacement(fs.attacks.Attacked(fs.FedFW(L1Ball(9.0)), fs.attacks.SignFlip(), (0,)))


def test_settings_of_the_command_line():
    given = {"reduction": {"name": "TrimmedMean", "trim": 0.2}, "client_lr": 0.3}
    assert fs.build("Robust+FedAdam", given).reduction == fs.robust.TrimmedMean(0.2)
    assert fs.build("Robust+FedAvg", {"reduction": "median"}).reduction == fs.robust.Median()
    with pytest.raises(fs.InvalidInput, match="did you mean 'Krum'"):
        fs.build("Robust+FedAvg", {"reduction": "krumm"})
