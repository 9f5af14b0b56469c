"""Metrics of sequences against NumPy: means over all tokens together, in runs and sweeps; the loss over sequences."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.errors import InvalidInput
from fedsolve.tasks import BitsPerToken, Examples, NextToken, NextTokenAccuracy, WordAccuracy

VOCABULARY = 6


def bigrams(params, x):
    return params["table"][x] + params["bias"]


def sequences(rng, count):
    """Sequences of 1 to 7 tokens, padded to 7."""
    tokens = rng.integers(1, VOCABULARY, (count, 8))
    ended = np.arange(8) > rng.integers(1, 8, count)[:, None]
    tokens[ended] = 0
    x, y = tokens[:, :-1].copy(), tokens[:, 1:].copy()
    x[y == 0] = 0
    return Examples(x.astype(np.int32), y.astype(np.int32))


RNG = np.random.default_rng(0)
CLIENTS = [sequences(RNG, n) for n in (5, 2, 9)]
# the last one has no known word (1 or 2): its share of right ones is of nothing
UNSEEN = [
    sequences(RNG, 3),
    Examples(np.full((1, 7), 4, np.int32), np.array([[5, 5, 0, 0, 0, 0, 0]], np.int32)),
]
TEST = sequences(RNG, 11)
START = {"table": RNG.normal(size=(VOCABULARY, VOCABULARY)), "bias": RNG.normal(size=VOCABULARY)}


@dataclass(frozen=True)
class Ones:
    """A user's own: the share of tokens that are 1, whatever the model says."""

    def each(self, params, batch):
        return jnp.sum(batch.y == 1, axis=1) / self.counts(batch) + 0 * params["bias"][0]

    def counts(self, batch):
        return jnp.sum(batch.y > 0, axis=1)

    def __call__(self, params, batch):
        return jnp.mean(self.each(params, batch))


METRICS = {
    "ones": Ones(),
    "accuracy": NextTokenAccuracy(bigrams),
    "bits": BitsPerToken(bigrams),
    "known": WordAccuracy(bigrams, 2),
}


def by_hand(model, examples):
    """Loss, and the sums over tokens of the metrics with how many tokens they are of."""
    logits = np.asarray(model["table"])[examples.x] + np.asarray(model["bias"])
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    own = -np.take_along_axis(log_p, examples.y[..., None], -1)[..., 0]
    right, there = logits.argmax(-1) == examples.y, examples.y != 0
    known = there & (examples.y <= 2)
    loss = np.mean([row[here].mean() for row, here in zip(own, there, strict=True)])
    return {
        "loss": (loss * len(there), len(there)),
        "accuracy": (right[there].sum(), there.sum()),
        "bits": (own[there].sum() / np.log(2), there.sum()),
        "known": (right[known].sum(), known.sum()),
        "ones": ((examples.y == 1).sum(), there.sum()),
    }


@pytest.fixture(scope="module", params=["all train", pytest.param("frozen", marks=pytest.mark.full)])
def trained(request):
    freeze = ("bias",) if request.param == "frozen" else ()
    task = fs.Task.from_arrays(
        NextToken(bigrams),
        START,
        CLIENTS,
        test=TEST,
        unseen=UNSEEN,
        metrics=METRICS,
        freeze=freeze,
        batch_size=3,
    )
    return task, fs.run(fs.FedAvg(1.0), task, rounds=2, dtype="float64")


@pytest.mark.full_rows("all train-train-clients0")
@pytest.mark.parametrize(("part", "clients"), [("train", CLIENTS), ("test", [TEST]), ("unseen", UNSEEN)])
def test_tokens_of_all_examples_count_alike(trained, part, clients):
    result = trained[1]
    each = [by_hand(result.params, c) for c in clients]
    assert not any(note for note in result.history.notes if "whole sets" in note)
    for name in each[0]:
        value = sum(e[name][0] for e in each) / sum(e[name][1] for e in each)
        assert result.metrics[f"{part}_{name}"][-1] == pytest.approx(value, rel=1e-10)
        if part == "test":
            continue
        means = np.array([e[name][0] / e[name][1] for e in each if e[name][1]])
        where = "client" if part == "train" else part
        worst = means.min() if name == "accuracy" else means.max()  # what no word says is taken for an error
        for what, want in {"mean": means.mean(), "p10": np.percentile(means, 10), "worst": worst}.items():
            assert result.metrics[f"{where}_{name}_{what}"][-1] == pytest.approx(want, rel=1e-10)


@pytest.mark.full
def test_sweeps_have_the_same(trained):
    task, run = trained
    sweep = fs.sweep("FedAvg", task, {"client_lr": [1.0]}, rounds=2, seeds=[0], dtype="float64")
    for name in ("test_loss", "test_accuracy", "test_bits", "test_known", "unseen_bits", "unseen_ones"):
        assert np.ravel(sweep.metrics[name])[-1] == pytest.approx(run.metrics[name][-1], rel=1e-10)


def test_a_pooled_metric_is_no_loss():
    with pytest.raises(
        InvalidInput, match=r"pools the parts of all examples: give a loss .* such as NextToken"
    ):
        fs.Task.from_arrays(BitsPerToken(bigrams), START, CLIENTS)
