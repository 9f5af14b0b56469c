"""Metrics against NumPy: pooled, held out, of the mean of the last two iterates, and by client."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.sampling import Uniform
from fedsolve.engine.evaluation.averaged_iterates import Iterates
from fedsolve.engine.evaluation.eval_sets import client_percentiles
from fedsolve.engine.evaluation.example_metrics import Metrics, on_all
from fedsolve.results.clients import ClientMetrics
from harness import Listed, Softmax, cross_entropy, crossed, engine, make_clients, make_task


def accuracy(params, batch):
    right = jnp.argmax(batch.x @ params.weight + params.bias, axis=1) == batch.y
    return jnp.mean(right, dtype=params.weight.dtype)


def by_hand(flat, x, y):
    """Loss and correctness of every example."""
    w = Softmax.of(flat)
    logits = x @ w.weight + w.bias
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -log_p[np.arange(len(y)), y], (logits.argmax(axis=1) == y).astype(float)


CLIENTS = make_clients()
TEST = make_clients((20,), seed=4)[0]
UNSEEN = make_clients((3, 9, 1, 6), seed=5)


@pytest.fixture(scope="module")
def runs():
    task = replace(make_task(CLIENTS), test=TEST, metrics={"accuracy": accuracy})
    task = replace(task, unseen=fs.FederatedData.from_clients(UNSEEN), whole={"rows": lambda w, b: len(b.y)})
    options = {"rounds": 3, "clients_per_round": 2, "dtype": "float64"}
    run = fs.run(fs.FedAvg(0.5), task, eval_every=1, **options)
    return run, engine(fs.FedAvg(0.5), task, Uniform(2), 3).iterates


@pytest.mark.parametrize("part", ["train", "test", "unseen"])
def test_pooled_metrics_of_both_iterates(runs, part):
    """NAME at w_t and NAME_averaged at (w_t + w_{t-1})/2, both means over all examples; before round 1 they
    agree.
    """
    run, iterates = runs
    clients = {"train": CLIENTS, "test": [TEST], "unseen": UNSEEN}[part]
    x, y = (np.concatenate(field) for field in zip(*clients, strict=True))
    assert run.metrics[f"{part}_rows"].tolist() == [len(y)] * 4
    for t in range(4):
        for suffix, w in (("", iterates[t]), ("_averaged", (iterates[t] + iterates[max(t - 1, 0)]) / 2)):
            loss, correct = by_hand(w, x, y)
            assert run.metrics[f"{part}_loss{suffix}"][t] == pytest.approx(loss.mean(), rel=1e-12)
            assert run.metrics[f"{part}_accuracy{suffix}"][t] == pytest.approx(correct.mean(), abs=1e-12)
    np.testing.assert_array_equal(run.metrics["round"], [0, 1, 2, 3])


@pytest.mark.parametrize(("part", "clients"), [("client", CLIENTS), ("unseen", UNSEEN)])
def test_clients_metrics(runs, part, clients):
    """Each client's own mean; then mean, 10th and 90th percentile (linear), largest loss, smallest
    accuracy.
    """
    run, iterates = runs
    for t in range(4):
        each = [by_hand(iterates[t], c.x, c.y) for c in clients]
        for k, name, worst in ((0, "loss", np.max), (1, "accuracy", np.min)):
            means = np.array([e[k].mean() for e in each])
            want = {"mean": means.mean(), "worst": worst(means)}
            want |= {"p10": np.percentile(means, 10), "p90": np.percentile(means, 90)}
            for what, value in want.items():
                assert run.metrics[f"{part}_{name}_{what}"][t] == pytest.approx(value, rel=1e-12)


def test_unseen_clients_in_a_sweep_and_refused():
    unseen = fs.FederatedData.from_clients(UNSEEN)
    task = replace(make_task(CLIENTS), unseen=unseen)
    sweep = fs.sweep("FedAvg", task, {"client_lr": [0.5]}, rounds=2, seeds=[0])
    run = fs.run(fs.FedAvg(0.5), task, rounds=2)
    got = float(np.ravel(sweep.metrics["unseen_loss"])[-1])
    assert got == pytest.approx(float(run.metrics["unseen_loss"][-1]), rel=1e-5)
    with pytest.raises(fs.InvalidInput, match="unseen clients have fields"):
        replace(task, unseen=fs.FederatedData.from_clients([np.ones((2, 3))]))
    with pytest.raises(fs.InvalidInput, match=r"unseen = \[\] of the task must be FederatedData"):
        replace(task, unseen=[])


def test_the_worst_client_has_the_most_bits():
    means = np.array([[1.0, 0.5, 2.0], [3.0, 0.1, 1.0]])
    found = client_percentiles(["loss", "accuracy", "bits_per_character"], means, means > 0)
    worst = [found[f"client_{name}_worst"] for name in ("loss", "accuracy", "bits_per_character")]
    assert worst == [3.0, 0.1, 2.0]


def test_the_worst_client_of_a_calibration_and_of_counts():
    """A slope is best at 1 and an intercept at 0; no count is worse than another, and other names are minimised."""
    names = ["c_slope", "c_intercept", "n_tp", "bins_n_0", "perplexity", "auc_error"]
    means = np.array([[1.2, -0.5, 3, 4, 9, 0.1], [0.4, 0.1, 9, 1, 2, 0.3], [0.9, 0.3, 1, 2, np.nan, 0.2]])
    found = client_percentiles(names, means, np.ones_like(means, bool))
    worst = np.array([found[f"client_{name}_worst"] for name in names])
    np.testing.assert_array_equal(worst, [0.4, -0.5, np.nan, np.nan, np.nan, 0.3])
    clients = ClientMetrics(tuple("xyz"), np.ones(3), dict(zip(names, means.T, strict=True)))
    assert [clients.worst(name) for name in names] == [
        [("y", 0.4)], [("x", -0.5)], [], [], [("x", 9.0)], [("y", 0.3)]
    ]  # fmt: skip


def test_blocks_of_rows_are_joined():
    """1100 rows are seen 512 at a time (the last block overlaps the one before): each has its own metrics."""
    many = make_clients((1100,), seed=6)[0]
    flat = np.linspace(-1, 1, 15)
    metrics = Metrics(cross_entropy, (("accuracy", accuracy),))
    with jax.enable_x64(True):
        params, rows = jax.tree.map(jnp.asarray, (Softmax.of(flat), many))
        found = on_all(metrics, (), params, rows)
    for got, want in zip((found["loss"], found["accuracy"]), by_hand(flat, many.x, many.y), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10)


@pytest.mark.full
def test_default_spacing_of_evaluations():
    """About 50: every second of 100 rounds, and always the last."""
    run = fs.run(fs.FedAvg(0.1), make_task(CLIENTS), rounds=101)
    np.testing.assert_array_equal(run.metrics["round"], [*range(0, 101, 2), 101])


# 15 parameters of 4 bytes; up: displacement, local loss, |D_i|^2 for the doubly adaptive, change of c_i;
# down: model, round number (4), control variate
TRAFFIC = {
    "FedAvg": (60 + 4, 60 + 4),
    "FedAdam": (60 + 4, 60 + 4),
    "FedDuAdam": (60 + 4 + 4, 60 + 4),
    "FedExP": (60 + 4 + 4, 60 + 4),
    "FedProx": (60 + 4, 60 + 4),
    "SCAFFOLD": (60 + 4 + 60, 60 + 4 + 60),
    "SCAFFOLD+FedDuAdam": (60 + 4 + 4 + 60, 60 + 4 + 60),
}


@pytest.mark.full
@pytest.mark.parametrize("name", crossed(TRAFFIC, ["SCAFFOLD+FedDuAdam"]))
def test_bytes_by_hand(name):
    """Bytes of one client's message times participants, also where a cohort is empty."""
    up, down = TRAFFIC[name]
    algorithm, cohorts = fs.build(name, {"client_lr": 0.1}), Listed.of([[0, 1, 4], [2], []])
    run = fs.run(algorithm, make_task(CLIENTS), rounds=3, eval_every=3, sampling=cohorts)
    np.testing.assert_array_equal(run.rounds["bytes_up"], [3 * up, up, 0])
    np.testing.assert_array_equal(run.rounds["bytes_down"], [3 * down, down, 0])
    np.testing.assert_array_equal(run.rounds["round"], [1, 2, 3])


@pytest.mark.full_rows("True")
@pytest.mark.parametrize("moved", [False, True])
def test_equal_iterates_are_evaluated_once(moved):
    """At the start the last iterate and the mean of two are the same model."""
    calls = []

    def function(params):
        jax.debug.callback(lambda: calls.append(1))
        return {"squares": params["w"] ** 2, "sum": params["b"].sum()}

    last = {"w": jnp.ones(3), "b": jnp.full(4, 2.0)}
    both = Iterates(last, {**last, "b": last["b"].at[2].add(2.0 * moved)})
    found = jax.jit(lambda both: both.values(function))(both)
    jax.effects_barrier()
    assert len(calls) == 1 + moved
    np.testing.assert_array_equal(found["squares"], np.ones((2, 3)))
    np.testing.assert_array_equal(found["sum"], [8, 8 + moved])
    nan = jax.tree.map(lambda a: a * jnp.nan, both)
    assert np.isnan(nan.values(function)["sum"]).all()


def test_an_evaluation_makes_one_copy_of_a_model():
    """Of the two, one after the other: a network of 100 million parameters has 0.4 GB."""
    both = Iterates(jnp.ones((512, 512)), jnp.zeros((512, 512)))
    program = jax.jit(lambda both, x: both.values(lambda w: (x @ w).sum())).lower(both, jnp.ones((4, 512)))
    room = program.compile().memory_analysis().temp_size_in_bytes
    assert room < 1.1 * both.last.nbytes
