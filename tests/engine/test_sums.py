"""A loss that follows from sums over examples: its value, gradient, evaluation and diagnostics against NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs

COUNTS, RATE = (5, 3, 4), 0.2


def examples():
    """x, y and the weight of each example; all of client 2's are 0."""
    draw = np.random.default_rng(0)
    found = [(draw.normal(size=(n, 2)), draw.normal(size=n), draw.uniform(0.1, 9, n)) for n in COUNTS]
    found[2][2][:] = 0
    return found


def adds(w, batch):
    x, y, weight = batch
    return jnp.stack([weight * (x @ w - y) ** 2, weight], axis=1)


def ratio(sums):
    return sums[0] / sums[1]


LOSS = fs.tasks.OfSums(adds, ratio)


def loss_and_gradient(w, client):
    x, y, weight = client
    apart = x @ w - y
    return weight @ apart**2 / weight.sum(), 2 * x.T @ (weight * apart) / weight.sum()


def task(**options):
    return fs.Task.from_arrays(
        LOSS, jnp.zeros(2), examples(), batch_size=None, local_steps=2, metrics={"again": LOSS}, **options
    )


def by_hand():
    """One round of FedAvg, each client by its number of examples; the last one stays where it is."""
    models = []
    for client in examples():
        w = np.zeros(2)
        for _ in range(2 if client[2].any() else 0):
            w = w - RATE * loss_and_gradient(w, client)[1]
        models.append(w)
    return np.average(models, axis=0, weights=COUNTS)


def everything():
    return tuple(np.concatenate(part) for part in zip(*examples(), strict=True))


@pytest.mark.parametrize("options", [{}, {"residency": "stream"}], ids=str)
def test_a_run_and_its_metrics(options):
    """The step is of each client's weighted mean; the metrics are of all examples, and of clients with any weight."""
    clients = task(test=examples()[0])
    found = fs.run(fs.FedAvg(RATE), clients, rounds=1, clients_per_round=3, dtype="float64", **options)
    wanted = by_hand()
    np.testing.assert_allclose(found.params, wanted, rtol=1e-12)
    for name, part in (("train", everything()), ("test", examples()[0])):
        assert found.metrics[f"{name}_loss"][-1] == pytest.approx(
            loss_and_gradient(wanted, part)[0], rel=1e-12
        )
    own = [loss_and_gradient(wanted, c)[0] for c in examples()[:2]]
    assert found.metrics["client_loss_mean"][-1] == pytest.approx(np.mean(own), rel=1e-12)
    assert found.metrics["client_again_worst"][-1] == pytest.approx(np.min(own), rel=1e-12)


@pytest.mark.full
def test_a_sweep_measures_the_same():
    clients = task(test=examples()[0])
    alone = fs.run(fs.FedAvg(RATE), clients, rounds=1, clients_per_round=3, dtype="float64")
    grid = {"client_lr": [RATE, 0.1]}
    swept = fs.sweep("FedAvg", clients, grid=grid, rounds=1, clients_per_round=3, dtype="float64")
    for name in ("train_loss", "test_loss", "test_again"):
        assert swept.metrics[name][0, 0, -1] == pytest.approx(alone.metrics[name][-1], rel=1e-12)


@pytest.mark.full_rows("True")
@pytest.mark.parametrize("uniform", [False, True])
def test_the_objective_weighs_the_clients_own_losses(uniform):
    """F = sum_i p_i f_i with each client's weighted mean f_i, 0 where nothing counts; and its gradient."""
    from fedsolve.engine.compute.clients import pack
    from fedsolve.engine.evaluation.averaged_iterates import objective

    made = task()
    with jax.enable_x64(True):
        packed = pack(made.data, LOSS, jnp.float64, batch_size=None, epochs=1, local_steps=None)[0]
        w = np.array([0.3, -0.7])
        value, gradient = objective(LOSS, uniform, packed, jnp.asarray(w), True)
        shares = np.full(3, 1 / 3) if uniform else np.array(COUNTS) / sum(COUNTS)
        parts = [loss_and_gradient(w, c) for c in examples()[:2]]
        assert float(value) == pytest.approx(sum(s * f for s, (f, _) in zip(shares, parts, strict=False)))
        np.testing.assert_allclose(
            gradient, sum(s * g for s, (_, g) in zip(shares, parts, strict=False)), rtol=1e-12
        )


def test_what_mixes_examples_is_refused():
    mixing = fs.tasks.OfSums(lambda w, b: adds(w, (b[0] - b[0].mean(0), *b[1:])), ratio)
    wrong = fs.Task.from_arrays(mixing, jnp.zeros(2), examples())
    with pytest.raises(fs.InvalidInput, match=r"example \d+ of 12 has .* among the others and .* alone"):
        fs.run(fs.FedAvg(RATE), wrong, rounds=1, clients_per_round=3)


def test_a_sum_is_refused():
    wrong = fs.Task.from_arrays(fs.tasks.OfSums(adds, lambda sums: sums[0]), jnp.zeros(2), examples())
    with pytest.raises(fs.InvalidInput, match="with each of them twice"):
        fs.run(fs.FedAvg(RATE), wrong, rounds=1, clients_per_round=3)
