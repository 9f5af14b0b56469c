"""Weights of classes: losses against NumPy, and the objective of PyTorch's weighted loss, in runs and on nodes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.engine.identity import code_digest

MODEL = fs.tasks.MLP((4, 3))
WEIGHTS = (1.0, 25.0, 3.0)


def client(seed, n):
    draw = np.random.default_rng(seed)
    y = draw.choice(3, n, p=(0.6, 0.1, 0.3))
    return draw.normal(size=(n, 4)) + 0.3 * y[:, None], y.astype(np.int32)


CLIENTS = [client(0, 31), client(1, 11), client(2, 6)]
START = MODEL.init(jax.random.key(0))


def weighted_mean(params, x, y):
    """Sum of w l over the sum of w, in NumPy."""
    logits = x @ np.asarray(params[0].weight, float).T + np.asarray(params[0].bias, float)
    own = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]
    weights = np.array(WEIGHTS)[y]
    return weights @ own / weights.sum()


def run(task):
    return fs.run(fs.FedAvg(0.1), task, rounds=2, dtype="float64")


def test_the_loss_is_the_weighted_mean_of_all_examples_and_of_each_client():
    loss = fs.tasks.CrossEntropy(MODEL, class_weights=np.array(WEIGHTS))
    found = run(fs.Task.from_arrays(loss, START, CLIENTS, batch_size=4))
    together = [np.concatenate(part) for part in zip(*CLIENTS, strict=True)]
    assert found.metrics["train_loss"][-1] == pytest.approx(weighted_mean(found.params, *together))
    own = [weighted_mean(found.params, *c) for c in CLIENTS]
    assert found.metrics["client_loss_mean"][-1] == pytest.approx(np.mean(own))


def test_margins_take_two_weights():
    x, y = jnp.array([0.5, -2.0, 1.0]), jnp.array([1, 0, -1])
    loss = fs.tasks.Logistic(lambda w, x: w * x, class_weights=(1, 9))
    own = np.log1p(np.exp(np.array([-0.5, -2.0, 1.0])))
    assert float(loss(1.0, (x, y))) == pytest.approx((9 * own[0] + own[1] + own[2]) / 11)


@pytest.mark.full
def test_a_module_of_pytorch_with_weights_has_the_same_objective_in_simulation_and_on_nodes():
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(4, 3)).double()
    with torch.no_grad():
        net[0].weight[:] = torch.tensor(np.asarray(START[0].weight))
        net[0].bias[:] = torch.tensor(np.asarray(START[0].bias))
    theirs = torch.nn.CrossEntropyLoss(torch.tensor(WEIGHTS, dtype=torch.float64))
    mine = fs.tasks.CrossEntropy(MODEL, WEIGHTS)
    here = fs.Task.from_arrays(mine, START, CLIENTS, batch_size=None, local_steps=2)
    there = fs.tasks.from_torch(net, theirs, CLIENTS, batch_size=None, local_steps=2)
    found = [run(task) for task in (here, there)]
    for name in ("train_loss", "client_loss_mean", "client_loss_worst"):
        np.testing.assert_allclose(found[0].metrics[name], found[1].metrics[name], rtol=1e-9, err_msg=name)
    weights = {name: p.detach().numpy() for name, p in net.named_parameters()}
    for i, (x, y) in enumerate(CLIENTS):
        batch = [(torch.tensor(x), torch.tensor(y).long())]
        node = fs.flower.TorchOracle(net, theirs, batch).measure(weights, ["loss"])["train"]
        own = fs.flower.JaxOracle.of_task(here, i).measure(START, ["loss"])["train"]
        assert node.means["loss"] == pytest.approx(weighted_mean(START, x, y), rel=1e-6)
        assert own.means["loss"] == pytest.approx(node.means["loss"], rel=1e-5)
        assert own.counts["loss"] == pytest.approx(node.counts["loss"]) == np.array(WEIGHTS)[y].sum()


@pytest.mark.parametrize("wrong", [[1, -2, 3], [0, 0, 0], [1, np.nan, 2], [1], [[1, 2, 3]]], ids=str)
def test_wrong_weights_are_refused(wrong):
    with pytest.raises(fs.InvalidInput, match="a number for each class, at least 0 and not all 0"):
        fs.tasks.CrossEntropy(MODEL, wrong)


def test_one_weight_for_each_class():
    task = fs.Task.from_arrays(fs.tasks.CrossEntropy(MODEL, (1, 2)), START, CLIENTS)
    with pytest.raises(fs.InvalidInput, match="are 2 for 3 classes: give a number for each"):
        run(task)
    with pytest.raises(fs.InvalidInput, match=r"Ridge adds its penalty to means .* weight_decay"):
        fs.tasks.Ridge(fs.tasks.Logistic(MODEL, (1, 2)), 0.1)


def test_without_weights_a_loss_is_known_as_before():
    """Its digest is that of runs that were stored before there were weights."""
    assert code_digest(fs.tasks.CrossEntropy(MODEL)) == "b42342b52565"
    assert code_digest(fs.tasks.CrossEntropy(MODEL, WEIGHTS)) != "b42342b52565"
