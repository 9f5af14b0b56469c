"""A client whose loss is never a number: left out of all metrics and named, while true divergence is still seen."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from harness import squares as loss

RNG = np.random.default_rng(0)
GOOD = [(RNG.normal(size=(n, 3)), RNG.normal(size=n)) for n in (9, 4, 6, 5)]
LOST = (np.full((3, 3), 1e38), np.ones(3))  # finite; its squares are not, in float32


def make(clients):
    return fs.Task.from_arrays(loss, jnp.ones(3), clients, batch_size=4, test=GOOD[0])


def run(task, lr=0.05, **options):
    return fs.run(fs.FedAvg(lr), task, rounds=4, eval_every=2, **options)


@pytest.mark.full
def test_metrics_of_the_others(tmp_path):
    """Metrics are those of the federation without it, whose data it trains on; after a resume too."""
    task = make([*GOOD[:2], LOST, *GOOD[2:]])
    fs.run(fs.FedAvg(0.05), task, rounds=2, eval_every=2, out=tmp_path)
    result = run(task, out=tmp_path, resume=True)
    straight = run(task)
    final = np.asarray(result.params)
    pooled = [np.concatenate([c[i] for c in GOOD]) for i in (0, 1)]
    assert result.metrics["train_loss"][-1] == pytest.approx(
        np.mean((pooled[0] @ final - pooled[1]) ** 2), rel=1e-5
    )
    own = [np.mean((x @ final - y) ** 2) for x, y in GOOD]
    assert result.metrics["client_loss_worst"][-1] == pytest.approx(max(own), rel=1e-5)
    for name in set(straight.metrics) - {"seconds"}:
        np.testing.assert_array_equal(result.metrics[name], straight.metrics[name], err_msg=name)
    for notes in (result.history.notes, straight.history.notes):
        assert "1 of 5 clients (client 2; 3 examples) left out of all metrics" in notes[0]


@pytest.mark.full
def test_a_sweep_is_not_said_to_have_diverged():
    """Nor are its validation metrics; the setting that does diverge is."""
    task = make([*GOOD[:2], LOST, *GOOD[2:]])
    found = fs.sweep(
        "FedAvg", task, {"client_lr": [0.05, 1e30]}, rounds=4, eval_every=2, validation=0.3,
        select="validation_loss:100",
    )  # fmt: skip
    assert np.isfinite(found.metrics["train_loss"][0]).all()
    assert np.isfinite(found.metrics["validation_loss"][0]).all()
    assert found.diverged[0, 0] < 0 < found.diverged[1, 0]
    assert any("left out of all metrics" in note for note in found.notes)


def test_divergence_and_problems_without_a_loss_are_seen():
    """A model that runs away has diverged; where half of the clients have no loss, nobody is left out."""
    with pytest.raises(fs.Diverged):
        run(make([*GOOD, LOST]), lr=1e30)
    half = run(make([GOOD[0], LOST]))
    assert np.isnan(half.metrics["train_loss"]).all() or np.isinf(half.metrics["train_loss"]).all()
    assert not any("left out of all metrics" in note for note in half.history.notes)


@pytest.mark.full
def test_a_sample_of_clients():
    """Where metrics look at some clients only (here the lost one among them), those that have a loss are looked at."""
    result = run(replace(make([LOST, *GOOD]), eval_examples=26))
    assert np.isfinite(result.metrics["train_loss"]).all()
