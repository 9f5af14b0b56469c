"""What low-rank updates go around, what goes around them, and what is said of all else."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import fedsolve as fs
from fedsolve.core.algorithm import client_update_of
from fedsolve.core.introspect import ShapeOracle, first_cohort
from fedsolve.methods.compression import EDEN, RandomK

AVG = fs.FedAvg(0.1, weighting="uniform")
MODEL = {"w": jnp.zeros((6, 5)), "deep": {"w": jnp.zeros((2, 3, 2)), "b": jnp.zeros(5)}}
PRIVATE = fs.privacy.DifferentialPrivacy(AVG, 1.0, 0.5, cohort=5, population=10, delta=1e-5, sampling="none")


def low_rank(inner: Any = AVG, average: Any = "both", **options: Any) -> fs.Algorithm:
    return fs.LowRank(inner, **{"rank": 2, "average": average} | options)


REFUSED = {
    "rank = 0": lambda: low_rank(rank=0),
    "average = 'all' must be 'both', 'A', 'exact' or 'stack'": lambda: low_rank(average="all"),
    "alpha = 0": lambda: low_rank(alpha=0),
    r"leaves = \[\] must be patterns": lambda: low_rank(leaves=[]),
    "FLoRA cannot wrap LoRA, which has factors already": lambda: low_rank(low_rank(), "stack"),
    "LoRA cannot wrap FedBuff: its clients start from models of different age": lambda: low_rank(
        fs.FedBuff(0.1)
    ),
    "LoRA cannot wrap FedPer, whose clients have personal models": lambda: low_rank(fs.FedPer("w")),
    "FedEx-LoRA cannot wrap FedNova: it sends no plain client updates": lambda: low_rank(
        fs.FedNova(0.1), "exact"
    ),
    "FLoRA cannot wrap FedDualAvg: it sends no plain": lambda: low_rank(
        fs.FedDualAvg(fs.geometry.L1(0.1)), "stack"
    ),
    r"FedEx-LoRA cannot wrap Compressed: it sends no plain": lambda: low_rank(
        fs.Compressed(AVG, EDEN(1), memory="ef21"), "exact"
    ),
    r"FedEx-LoRA cannot wrap Robust: the residual is of means": lambda: low_rank(
        fs.robust.Robust(AVG, fs.robust.Median()), "exact"
    ),
    "Robust cannot wrap FedEx-LoRA: the residual is of means": lambda: fs.robust.Robust(
        low_rank(average="exact"), fs.robust.Median()
    ),
    "FLoRA cannot wrap DP: products of factors exceed its bound": lambda: low_rank(PRIVATE, "stack"),
    "LocalDP around FLoRA: its server multiplies": lambda: fs.privacy.LocalDifferentialPrivacy(
        low_rank(average="stack"), 0.5, 1.0, delta=1e-5
    ),
    "Compressed cannot wrap LoRA, whose client updates are factors: build LowRank around Compressed": lambda: (
        fs.Compressed(low_rank(), EDEN(1))
    ),
    "SCAFFOLD cannot wrap FLoRA, whose client updates are factors": lambda: fs.ControlVariates(
        low_rank(average="stack")
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refusals(words):
    """In a line, when the method is built."""
    with pytest.raises(fs.InvalidInput, match=words):
        REFUSED[words]()


def started(method: fs.Algorithm) -> Any:
    """The shapes of a message as its server reads it."""
    server = method.init(MODEL)
    broadcast = method.broadcast(server, first_cohort(4))
    client = method.enrol(broadcast, MODEL)
    return jax.eval_shape(
        lambda: method.receive(broadcast, method.train(broadcast, client, ShapeOracle())[0], client)[0]
    )


@pytest.mark.parametrize(
    ("words", "method"),
    [
        ("leaves = 'wide': no leaf of the model has this name; the nearest paths are w", low_rank(leaves="wide")),
        ("leaves: deep.b are no matrices", low_rank(leaves="b")),
        ("new factors, and the clients of SCAFFOLD keep a state", low_rank(fs.SCAFFOLD(0.1), "stack")),
        ("and SPPMAS sends more", low_rank(fs.ProximalPoint(AVG), "stack")),
        ("decodes their mean alone", low_rank(fs.Compressed(AVG, RandomK(0.5), smallest=4), "exact")),
    ],
)  # fmt: skip
def test_refusals_at_the_start(words, method):
    """Of what depends on the model."""
    with pytest.raises(fs.InvalidInput, match=words):
        started(method)


def test_leaves():
    """Matrices that a pattern matches and that are larger than their factors have them; others train in full."""
    for average, a in {"both": (2, 5), "A": None, "exact": (2, 5)}.items():
        update = client_update_of(started(low_rank(average=average)))
        assert update["w"].b.shape == (6, 2)
        assert (update["w"].a.shape if a else update["w"].a) == a
        assert update["deep"]["w"].shape == (2, 3, 2)  # 12 entries, its factors 16
        assert update["deep"]["b"].shape == (5,)
