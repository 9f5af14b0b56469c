"""Buffers: a running mean by hand, whatever the method, the chunks, the sweep, an interruption or the devices."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.errors import InvalidInput
from fedsolve.results.callbacks import FineTuning
from harness import Listed, engine, prepare, relative

SIZES, BATCH, RATE, DECAY = (7, 3, 8, 5), 4, 0.05, 0.9
COHORTS = [[0, 2], [1, 3, 0], [2, 1]]
RNG = np.random.default_rng(0)
CLIENTS = [(RNG.normal(size=(n, 3)) + 1, RNG.normal(size=n)) for n in SIZES]
START = {"mean": np.full(3, 0.5), "seen": np.int32(0)}
WEIGHTS = RNG.normal(size=3)


def centred(w, batch, key=None, weights=None, buffers=None):
    """Least squares on inputs less their mean: that of the batch in training, the running one in evaluation."""
    x, y = batch
    weights = jnp.ones(len(y), x.dtype) if weights is None else weights
    mean = weights @ x / jnp.sum(weights)
    used = buffers["mean"] if key is None else mean
    loss = jnp.sum(weights * ((x - used) @ w - y) ** 2) / jnp.sum(weights)
    new = {"mean": DECAY * buffers["mean"] + (1 - DECAY) * mean, "seen": buffers["seen"] + 1}
    return loss, new


def unused(w, batch, weights=None):
    """Least squares without any statistics."""
    plain = (batch[0] @ w - batch[1]) ** 2
    weights = jnp.ones_like(plain) if weights is None else weights
    return jnp.sum(weights * plain) / jnp.sum(weights)


def running(w, batch, buffers, weights=None):
    """The same beside statistics that it does not use."""
    return unused(w, batch, weights), centred(w, batch, None, weights, buffers)[1]


def task(loss=centred, buffers=START, clients=CLIENTS, **more):
    more = {"batch_size": BATCH, "epochs": 2} | more
    return fs.Task.from_arrays(loss, WEIGHTS, clients, buffers=buffers, **more)


class ByHand(NamedTuple):
    w: np.ndarray
    mean: np.ndarray
    seen: float


def by_hand(cohorts, orders):
    """FedAvg in NumPy: local steps with the batch's mean, then w weighted by examples and buffers plainly."""
    state, states = ByHand(WEIGHTS, START["mean"], 0), []
    for cohort, order in zip(cohorts, orders, strict=True):
        states.append(state)
        ends = []
        for i in cohort:
            (x, y), (w, mean, seen) = CLIENTS[i], state
            for epoch in range(2):
                rows = np.arange(len(y)) if len(y) <= BATCH else order[i][epoch][: len(y)]
                for first in range(0, len(y), BATCH):
                    now = rows[first : first + BATCH]
                    centre = x[now].mean(0)
                    error = (x[now] - centre) @ w - y[now]
                    w = w - RATE * 2 * (x[now] - centre).T @ error / len(now)
                    mean, seen = DECAY * mean + (1 - DECAY) * centre, seen + 1
            ends.append(ByHand(w, mean, seen))
        share = np.array([SIZES[i] for i in cohort]) / sum(SIZES[i] for i in cohort)
        state = ByHand(
            share @ np.stack([e.w for e in ends]),
            np.mean([e.mean for e in ends], 0),
            np.round(np.mean([e.seen for e in ends])),
        )
    return [*states, state]


@pytest.mark.full
@pytest.mark.parametrize("chunk", [None, pytest.param(1, marks=pytest.mark.full)])
def test_fedavg_by_hand(chunk):
    """Uneven clients, part of them each round: parameters and statistics are the transcript's."""
    found = engine(fs.FedAvg(RATE), task(), Listed.of(COHORTS), rounds=3, chunk=chunk)
    wanted = by_hand(COHORTS, found.orders)
    flat = np.stack([np.concatenate([s.w, s.mean, [s.seen]]) for s in wanted])
    assert relative(found.iterates, flat) < 1e-12
    assert flat[-1, -1] == 10


@pytest.mark.full
def test_evaluation_uses_the_servers():
    """Train and test losses, an averaged model and a metric of the whole set are of the running mean."""
    test = (RNG.normal(size=(6, 3)), RNG.normal(size=6))

    def root(w, batch, buffers):
        return jnp.sqrt(centred(w, batch, None, None, buffers)[0])

    with_test = fs.Task.from_arrays(
        centred,
        WEIGHTS,
        CLIENTS,
        buffers=START,
        test=test,
        metrics={"root": root},
        batch_size=BATCH,
        epochs=2,
    )
    given = {"rounds": 3, "sampling": Listed.of(COHORTS), "dtype": "float64", "eval_every": 1}
    result = fs.run(fs.FedAvg(RATE), with_test, **given)
    error = (test[0] - np.asarray(result.buffers["mean"])) @ np.asarray(result.params) - test[1]
    np.testing.assert_allclose(result.metrics["test_loss"][-1], np.mean(error**2), rtol=1e-12)
    np.testing.assert_allclose(result.metrics["test_root"][-1], np.sqrt(np.mean(error**2)), rtol=1e-12)
    assert result.buffers["seen"] == 10
    assert result.buffers["seen"].dtype == np.int32


@pytest.mark.full
def test_a_sweep_evaluates_with_the_servers():
    with_test = task(test=(RNG.normal(size=(6, 3)), RNG.normal(size=6)))
    given = {"rounds": 3, "sampling": Listed.of(COHORTS), "dtype": "float64", "eval_every": 1}
    result = fs.run(fs.FedAvg(RATE), with_test, **given)
    sweep = fs.sweep("FedAvg", with_test, {"client_lr": [RATE, RATE / 2]}, **given)
    for name in ("train_loss", "test_loss"):
        np.testing.assert_allclose(sweep.metrics[name][0, 0], result.metrics[name], rtol=1e-12)


@pytest.mark.full
def test_fine_tuning_moves_them_too():
    """Full steps from the server's model and statistics, by hand; evaluated with each client's own statistics."""
    held = [(RNG.normal(size=(n, 3)), RNG.normal(size=n)) for n in (2, 3, 1, 4)]
    owned = {"validation": tuple(map(np.concatenate, zip(*held, strict=True)))}
    look, models = FineTuning(3, RATE, rounds=[1]), []
    problem = replace(task(), **owned, validation_clients=np.repeat(np.arange(4), (2, 3, 1, 4)))
    keep = lambda at: models.append(at.result())  # noqa: E731
    options = {"rounds": 1, "batch_size": "full", "dtype": "float64", "residency": "stream"}
    fs.run(fs.FedAvg(RATE), problem, callbacks=[keep, look], **options)
    wanted = []
    for (x, y), (a, b) in zip(CLIENTS, held, strict=True):
        w, mean = (np.asarray(x) for x in (models[1].params, models[1].buffers["mean"]))
        for _ in range(3):
            error = (x - x.mean(0)) @ w - y
            w, mean = (
                w - RATE * 2 * (x - x.mean(0)).T @ error / len(y),
                DECAY * mean + (1 - DECAY) * x.mean(0),
            )
        wanted.append(np.mean(((a - mean) @ w - b) ** 2))
    np.testing.assert_allclose(look.after[1].column("loss"), wanted, rtol=1e-12)


METHODS = {
    "SCAFFOLD": fs.SCAFFOLD(RATE),
    "FedAdam": fs.FedAdam(RATE),
    "FedLiLS": fs.FedLiLS(),
    "FedFW": fs.FedFW(fs.geometry.L2Ball(9.0)),
    "FedDR": fs.FedDR(fs.geometry.L1(0.01)),
    "Robust": fs.robust.Robust(fs.FedAvg(RATE), fs.robust.Median()),
}


@pytest.mark.full
@pytest.mark.parametrize(
    "name", [n if n == "SCAFFOLD" else pytest.param(n, marks=pytest.mark.full) for n in METHODS]
)
def test_methods_do_not_see_them(name):
    """Where the loss does not use its statistics, the parameters are those of a loss without; they count all steps.

    FedFW takes gradients of all examples, no minibatch: it leaves them as they were. A median is meant for three
    clients, so that two of the three rounds leave the model.
    """
    beside = engine(METHODS[name], task(running), Listed.of(COHORTS), rounds=3)
    alone = engine(METHODS[name], task(unused, None), Listed.of(COHORTS), rounds=3)
    np.testing.assert_allclose(beside.iterates[:, :3], alone.iterates, rtol=1e-12)
    assert beside.iterates[-1, -1] == {"Robust": 4, "FedFW": 0}.get(name, 10)


@pytest.mark.full
def test_resume(tmp_path):
    """An interrupted run goes on with the same bits; bytes are the parameters' and the buffers'."""
    given = {"sampling": Listed.of(COHORTS), "eval_every": 1}
    whole = fs.run(fs.SCAFFOLD(RATE), task(), rounds=3, **given)
    fs.run(fs.SCAFFOLD(RATE), task(), rounds=2, out=tmp_path, **given)
    again = fs.run(fs.SCAFFOLD(RATE), task(), rounds=3, out=tmp_path, resume=True, **given)
    np.testing.assert_array_equal(whole.params, again.params)
    for name, value in whole.buffers.items():
        np.testing.assert_array_equal(value, again.buffers[name])
    alone = prepare(fs.SCAFFOLD(RATE), task(unused, None), Listed.of(COHORTS), dtype="float32")
    assert whole.rounds["bytes_up"][0] - 2 * sum(alone.traffic.up) == 2 * 4 * 4  # 2 clients, 4 numbers
    other = task(buffers=START | {"mean": np.zeros(3)})
    with pytest.raises(InvalidInput, match="start"):
        fs.run(fs.SCAFFOLD(RATE), other, rounds=3, out=tmp_path, resume=True, **given)


@pytest.mark.full
def test_beside_frozen_leaves():
    """With a frozen factor of 2 on the inputs: the run on inputs that are twice as large, statistics too."""

    def scaled(model, batch, key=None, weights=None, buffers=None):
        return centred(model["w"], (model["scale"] * batch[0], batch[1]), key, weights, buffers)

    given = {"rounds": 2, "sampling": Listed.of(COHORTS), "dtype": "float64"}
    model = {"w": WEIGHTS, "scale": np.full(3, 2.0)}
    beside = fs.Task.from_arrays(
        scaled, model, CLIENTS, buffers=START, freeze=("scale",), batch_size=BATCH, epochs=2
    )
    found = fs.run(fs.SCAFFOLD(RATE), beside, **given)
    wanted = fs.run(fs.SCAFFOLD(RATE), task(clients=[(2 * x, y) for x, y in CLIENTS]), **given)
    np.testing.assert_allclose(found.params["w"], wanted.params, rtol=1e-12)
    np.testing.assert_allclose(found.buffers["mean"], wanted.buffers["mean"], rtol=1e-12)
    np.testing.assert_array_equal(found.params["scale"], model["scale"])
    np.testing.assert_allclose(found.metrics["train_loss"], wanted.metrics["train_loss"], rtol=1e-12)


def test_what_cannot_be():
    def grows(w, batch, buffers, weights=None):
        return unused(w, batch, weights), {"mean": jnp.zeros(4), "seen": buffers["seen"]}

    def real(w, batch, buffers, weights=None):
        return unused(w, batch, weights), buffers | {"seen": buffers["seen"] / 2}

    def alone(w, batch, buffers, weights=None):
        return unused(w, batch, weights)

    def padded(w, batch, buffers):
        return running(w, batch, buffers)

    cases = {
        "changes mean of its buffers from shape \\(3,\\) float32 to \\(4,\\) float32": (grows, START),
        "changes seen of its buffers from shape \\(\\) int32 to \\(\\) float32": (real, START),
        "alone: loss\\(params, batch, buffers\\) returns": (alone, START),
        "argument `weights`": (padded, START),
        "does not ask for the task's buffers": (unused, START),
        "asks for buffers: give the task buffers": (running, None),
        "must be arrays": (running, {"mean": "none"}),
    }
    for words, (loss, buffers) in cases.items():
        with pytest.raises(InvalidInput, match=words):
            fs.run(fs.FedAvg(RATE), task(loss, buffers), rounds=1)
    private = fs.privacy.DifferentialPrivacy(
        fs.FedAvg(RATE, weighting="uniform"), 1.0, 0.5, cohort=2, population=4, delta=1e-2
    )
    with pytest.raises(InvalidInput, match="protects the parameters, not the buffers"):
        fs.run(private, task(), rounds=1, clients_per_round=2)


DEVICES = """
import sys
sys.path[:0] = sys.argv[1:]
import jax, numpy as np
import fedsolve as fs
from harness import Listed
from test_keeps_buffers import COHORTS, RATE, task
given = {"rounds": 3, "sampling": Listed.of(COHORTS), "dtype": "float64"}
one, two = (fs.run(fs.SCAFFOLD(RATE), task(), devices=d, **given) for d in (1, 2))
for a, b in zip(jax.tree.leaves((one.params, one.buffers)), jax.tree.leaves((two.params, two.buffers))):
    np.testing.assert_allclose(a, b, rtol=1e-12)
print("same")
"""


@pytest.mark.full
def test_devices():
    """Two devices share the cohorts: parameters and statistics are those of one."""
    tests = Path(__file__).parent.parent
    env = os.environ | {"JAX_NUM_CPU_DEVICES": "2"}
    command = [sys.executable, "-c", DEVICES, str(tests), str(tests / "wrappers")]
    found = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert found.stdout.endswith("same\n"), found.stderr
