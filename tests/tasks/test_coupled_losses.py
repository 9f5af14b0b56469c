"""Losses whose examples depend on one another, of full batches of one size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.deploy.oracles.jax import JaxOracle

RNG = np.random.default_rng(0)
ONE = RNG.normal(size=(24, 3))
OTHER = ONE + 0.1 * RNG.normal(size=(24, 3))
TIMES = np.stack([RNG.uniform(1, 9, 24), RNG.integers(0, 2, 24)], axis=1)
START = RNG.normal(size=(3, 2))
SIZE, RATE = 4, 0.1


def contrast(w, batch):
    """InfoNCE: each example's pair among the pairs of its batch."""
    a, b = (x @ w / jnp.linalg.norm(x @ w, axis=1, keepdims=True) for x in batch)
    return -jnp.mean(jnp.diag(jax.nn.log_softmax(a @ b.T / 0.5)))


def cox(w, batch):
    """The negative partial likelihood: risk sets are those of the batch."""
    risk, (time, event) = batch[0] @ w[:, 0], batch[1].T
    at_risk = jnp.where(time[None, :] >= time[:, None], risk[None, :], -jnp.inf)
    return jnp.sum(event * (jax.nn.logsumexp(at_risk, axis=1) - risk)) / len(risk)


def contrast_by_hand(w, batch):
    a, b = (x @ w for x in batch)
    total = 0.0
    for i in range(len(a)):
        scores = [a[i] @ v / (np.linalg.norm(a[i]) * np.linalg.norm(v)) / 0.5 for v in b]
        total += np.log(np.exp(scores).sum()) - scores[i]
    return total / len(a)


def cox_by_hand(w, batch):
    risk, times = batch[0] @ w[:, 0], batch[1]
    terms = [
        np.log(sum(np.exp(risk[j]) for j in range(len(risk)) if times[j, 0] >= times[i, 0])) - risk[i]
        for i in range(len(risk))
        if times[i, 1]
    ]
    return sum(terms) / len(risk)


LOSSES = {"contrast": (contrast, contrast_by_hand, OTHER), "Cox": (cox, cox_by_hand, TIMES)}


def rows(second, *spans):
    return [(ONE[a:b], second[a:b]) for a, b in spans]


def slope(function, w, batch):
    found, step = np.zeros_like(w), 1e-6
    for place in np.ndindex(w.shape):
        moved = np.zeros_like(w)
        moved[place] = step
        found[place] = (function(w + moved, batch) - function(w - moved, batch)) / (2 * step)
    return found


@pytest.mark.parametrize("name", ["contrast", pytest.param("Cox", marks=pytest.mark.full)])
def test_steps_and_evaluations_are_of_whole_batches(name):
    """Clients with two and with four batches; against NumPy, with gradients by differences."""
    loss, by_hand, second = LOSSES[name]
    clients = rows(second, (0, 8), (8, 24))
    given = {"batch_size": SIZE, "couples_examples": True}
    task = fs.Task.from_arrays(loss, START, clients, test=rows(second, (4, 12))[0], **given)
    found = fs.run(fs.FedAvg(RATE), task, rounds=1, dtype="float64")

    def evaluated(w, spans):
        w = np.asarray(w)
        batches = [rows(second, (i, i + SIZE))[0] for a, b in spans for i in range(a, b, SIZE)]
        return np.mean([by_hand(w, batch) for batch in batches])

    assert found.metrics["train_loss"][0] == pytest.approx(evaluated(START, [(0, 24)]), rel=1e-10)
    assert found.metrics["test_loss"][-1] == pytest.approx(evaluated(found.params, [(4, 12)]), rel=1e-10)
    worst = max(evaluated(found.params, [span]) for span in [(0, 8), (8, 24)])
    assert found.metrics["client_loss_worst"][-1] == pytest.approx(worst, rel=1e-10)
    with jax.enable_x64(True):
        for client, (x, y) in enumerate(clients):
            oracle = JaxOracle.of_task(task, client).begin(jax.random.key(0), client, jnp.float64)
            assert oracle.steps == len(x) // SIZE
            start = jnp.array(START.copy())  # JAX keeps a NumPy array in the type of the first run with it
            order = np.arange(len(x)) if oracle.order is None else np.asarray(oracle.order)[0]
            mine = order[SIZE : 2 * SIZE]
            value, gradient = oracle(start, 1)
            assert float(value) == pytest.approx(by_hand(START, (x[mine], y[mine])), rel=1e-10)
            np.testing.assert_allclose(
                gradient, slope(by_hand, START, (x[mine], y[mine])), rtol=1e-6, atol=1e-8
            )
            whole, _ = oracle.full(start)
            assert float(whole) == pytest.approx(evaluated(START, [(0, 8) if client == 0 else (8, 24)]))


@pytest.mark.parametrize(
    ("spans", "test", "options", "words"),
    [
        ([(0, 8), (8, 18)], None, {}, "client 1 has 10 examples and the loss couples those of batches of 4"),
        ([(0, 3), (8, 10)], None, {}, "batches of 4, and local steps have 3"),
        ([(0, 8)], None, {"batch_size": 8}, "batches of 4, and local steps have 8"),
        ([(0, 8)], (0, 6), {}, "a set of 6 examples .* batches of 4: give a multiple"),
    ],
)
def test_padding_is_refused(spans, test, options, words):
    held_out = rows(OTHER, test)[0] if test else None
    given = {"batch_size": SIZE, "couples_examples": True}
    task = fs.Task.from_arrays(contrast, START, rows(OTHER, *spans), test=held_out, **given)
    with pytest.raises(fs.InvalidInput, match=words) as error:
        fs.run(fs.FedAvg(RATE), task, rounds=1, **options)
    assert "\n" not in str(error.value)


def test_it_is_still_refused_unless_stated():
    task = fs.Task.from_arrays(contrast, START, rows(OTHER, (0, 8)), batch_size=SIZE)
    with pytest.raises(fs.InvalidInput, match=r"is not a mean over examples.*couples_examples"):
        fs.run(fs.FedAvg(RATE), task, rounds=1)


def contrast_of_torch(outputs, other):
    from torch import arange
    from torch.nn import functional

    scores = functional.normalize(outputs) @ functional.normalize(other[:, :2]).T / 0.5
    return functional.cross_entropy(scores, arange(scores.shape[0]))


def test_a_module_and_a_loss_of_pytorch():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 2).double()
    clients, given = (
        rows(OTHER, (0, 8), (8, 16)),
        {"metrics": {}, "batch_size": None, "couples_examples": True},
    )
    task = fs.tasks.from_torch(module, contrast_of_torch, clients, **given)
    found = fs.run(fs.FedAvg(RATE), task, rounds=1, dtype="float64")
    models = []
    for x, y in clients:
        module.zero_grad()
        contrast_of_torch(module(torch.tensor(x)), torch.tensor(y)).backward()
        models.append(module.weight - RATE * module.weight.grad)
    np.testing.assert_allclose(found.params["weight"], torch.stack(models).mean(0).detach(), rtol=1e-10)
    with pytest.raises(fs.InvalidInput, match="translate = False"):
        fs.tasks.from_torch(module, contrast_of_torch, clients, translate=False, **given)
    normed = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).double()
    with pytest.raises(fs.InvalidInput, match="couples_examples = True and the loss keeps buffers"):
        fs.tasks.from_torch(normed, contrast_of_torch, clients, **given)
