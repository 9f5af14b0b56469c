"""The studies of compression: when an accuracy is reached and with how many bytes, and norms that are not divided."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import fedsolve as fs
from experiments.compression.bytes_to_accuracy import study
from experiments.compression.bytes_to_accuracy.bytes_to_target import fewer, saves_bytes
from experiments.compression.bytes_to_accuracy.posts import seen
from experiments.compression.compressed_extrapolation.undivided import Undivided
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells
from fedsolve.studies.cells import Cell

ROUNDS, SEEDS = np.arange(0, 60, 5), (0, 1, 2, 3, 4)


def cells(late):
    """FedAvg, which rises to 0.8 by the round, and a method with 25 times fewer bytes that is `late` rounds behind."""
    found = {}
    for name, delay, sent in (("FedAvg", np.zeros(5), 4000), ("one", np.asarray(late), 160)):
        rises = np.clip((ROUNDS - delay[:, None]) / 50, 0, 0.8)[None]
        metrics = {"test_accuracy": rises, "train_loss": 1 - rises}
        record = SweepRecord(
            name, study.FEMNIST, {"a": (1,)}, SEEDS, ROUNDS, metrics, np.full((1, 5), -1),
            Selection("train_loss", 1), {"bytes_up": sent},
        )  # fmt: skip
        found[study.FEMNIST, name] = Cell(record, None, None)
    return Cells(study.PROBLEMS, SEEDS, found)


@pytest.mark.parametrize(
    ("late", "verdict"),
    [
        ([0, 0, 0, 5, 0], "reproduced"),
        ([15, 15, 15, 10, 15], "not reproduced"),
        ([0, 15, 5, 15, 10], "underpowered"),
        ([0, 0, 0, 0, 50], "not reproduced"),
    ],
)
def test_bytes_to_an_accuracy(late, verdict):
    """FedAvg reaches 90 % of its 0.8 in round 40 of 55, the other `late` rounds after it, or never."""
    some, rounds = cells(late), 40 + np.array(late)
    with np.errstate(divide="ignore"):
        expected = np.log(np.where(rounds <= 55, 25 * 40 / rounds, 0.0))
    np.testing.assert_allclose(fewer(some, study.FEMNIST, "one", "FedAvg", 0.9), expected, rtol=1e-12)
    assert saves_bytes(study.FEMNIST, "one", "FedAvg", 0.9, 20.0)(some).verdict == verdict


def test_an_undivided_norm():
    """The same code, whose decoded norm is taken as it is."""
    code = fs.compression.RandomK(0.1)
    assert (Undivided(code).error(100), code.error(100)) == (0.0, pytest.approx(9.0))


def test_a_head_on_what_a_frozen_encoder_sees():
    """The logits are those of the whole model."""
    model, rng = fs.tasks.Encoder(5, 40, 8, 16, 1, 2, 32), np.random.default_rng(0)
    params, x = jax.jit(model.init)(jax.random.key(0)), rng.integers(0, 40, (3, 8))
    head = params.head._replace(weight=rng.normal(size=(5, 16)).astype(np.float32))
    whole = jax.jit(model)(params._replace(head=head), x)
    np.testing.assert_allclose(seen(model, params, x) @ head.weight.T, whole, atol=1e-5)
