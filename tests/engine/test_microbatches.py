"""A local step in parts has the gradient of the whole, with less memory."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.tasks import OfSums

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(19, 3)), RNG.integers(0, 3, 19)
UNEVEN = [(X[:12], Y[:12]), (X[12:], Y[12:])]
EVEN = [(X[:6], Y[:6]), (X[6:12], Y[6:12])]
WEIGHTS = jnp.array([1.0, 0.0, 5.0])
START = RNG.normal(size=(3, 3))


def each(w, batch):
    return -jax.nn.log_softmax(batch[0] @ w)[jnp.arange(len(batch[1])), batch[1]]


def weighted(w, batch):
    own = WEIGHTS[batch[1]]
    return jnp.stack([own * each(w, batch), own], axis=1)


def by_margin(w, batch):
    """Weights that depend on the model, so that each part's gradient needs the sums of all."""
    own = jax.nn.sigmoid(jnp.sum(batch[0] @ w, axis=1))
    return jnp.stack([own * each(w, batch), own], axis=1)


def dropped(w, batch, key=None):
    kept = jnp.ones(3) if key is None else jax.random.bernoulli(key, 0.5, (3,)) * 2.0
    return each(kept[:, None] * w, batch)


LOSSES = {
    "mean": lambda w, batch: jnp.mean(each(w, batch)),
    "each example's": each,
    "quotient": OfSums(weighted, lambda sums: sums[0] / sums[1]),
    "quotient of the model's": OfSums(by_margin, lambda sums: sums[0] / sums[1]),
    "root of a quotient": OfSums(weighted, lambda sums: jnp.sqrt(sums[0] / sums[1])),
}


def run(loss, clients, parts, **options):
    task = fs.Task.from_arrays(
        loss, START, clients, local_steps=3, microbatches=1 if "over" in options else parts
    )
    given = {"microbatches": parts} if options.pop("over", False) else {}
    return fs.run(fs.FedAvg(0.3), task, rounds=2, dtype="float64", **given, **options)


IN_THE_GATE = {("quotient", "uneven"), ("quotient of the model's", "whole clients"), ("mean", "uneven")}
CLIENTS = {"uneven": (UNEVEN, 6), "whole clients": (UNEVEN, "full"), "even": (EVEN, 6)}


@pytest.mark.parametrize(
    ("loss", "which"),
    [
        pytest.param(*pair, marks=() if pair in IN_THE_GATE else pytest.mark.full)
        for pair in itertools.product(LOSSES, CLIENTS)
    ],
)
def test_the_model_is_that_of_whole_batches(loss, which):
    clients, size = CLIENTS[which]
    whole, parts = (run(LOSSES[loss], clients, count, batch_size=size) for count in (1, 3))
    np.testing.assert_allclose(parts.params, whole.params, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(parts.metrics["train_loss"], whole.metrics["train_loss"], rtol=1e-12)


@pytest.mark.parametrize("name", ["ignored", pytest.param("weighted", marks=pytest.mark.full)])
def test_losses_of_pytorch(name):
    """Where a part has ignored targets alone, too."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    labels = np.where(np.arange(12) < 4, 0, Y[:12])
    weight = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64) if name == "weighted" else None
    loss = torch.nn.CrossEntropyLoss(weight=weight, ignore_index=0)
    module = torch.nn.Linear(3, 3).double()
    task = fs.tasks.from_torch(module, loss, [(X[:12], labels)], batch_size=None, translate=True, metrics={})
    assert task.loss.moving is not None
    found = [
        fs.run(fs.FedAvg(0.3), task, rounds=2, dtype="float64", microbatches=count).params for count in (1, 3)
    ]
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


def test_a_client_of_its_own_takes_the_same_steps():
    task = fs.Task.from_arrays(LOSSES["quotient"], START, UNEVEN, batch_size=6, microbatches=3)
    one, other = JaxOracle.of_task(task, 0), JaxOracle.of_task(task, 0, microbatches=1)
    with jax.enable_x64(True):
        (loss, slope), (wanted, gradient) = (
            o.begin(jax.random.key(1), 0, jnp.float64)(jnp.array(START.copy()), 1) for o in (one, other)
        )
        assert one.begin(jax.random.key(1), 0, jnp.float64).loss(jnp.array(START.copy()), 1) == pytest.approx(
            float(loss), rel=1e-12
        )
        assert one.begin_steps(jax.random.key(1), 0, jnp.float64, 2).work.parts == 3
    np.testing.assert_allclose(loss, wanted, rtol=1e-12)
    np.testing.assert_allclose(slope, gradient, rtol=1e-12)


def test_parts_draw_by_themselves():
    task = fs.Task.from_arrays(dropped, START, EVEN, batch_size=6, microbatches=3)
    whole, parts = (
        JaxOracle.of_task(task, 0, microbatches=count).begin(jax.random.key(1), 0, jnp.float32)
        for count in (1, 3)
    )
    start = jnp.asarray(START, jnp.float32)
    assert parts.loss(start, 0) == parts(start, 0)[0]
    drawn = [
        dropped(start, (X[2 * k : 2 * k + 2], Y[2 * k : 2 * k + 2]), jax.random.fold_in(whole.step_key(0), k))
        for k in range(3)
    ]
    assert float(parts.loss(start, 0)) == pytest.approx(float(jnp.mean(jnp.stack(drawn))), rel=1e-5)


def test_memory_falls_with_the_parts():
    """Of what is kept from the forward pass for the gradient."""

    def deep(w, batch):
        hidden = batch
        for _ in range(6):
            hidden = jnp.tanh(hidden @ w)
        return jnp.mean(hidden**2)

    task = fs.Task.from_arrays(
        deep, np.eye(8, dtype=np.float32), [np.ones((4096, 8), np.float32)], batch_size=None
    )

    def memory(parts):
        own = JaxOracle.of_task(task, 0, microbatches=parts).begin(jax.random.key(0), 0, jnp.float32)
        program = jax.jit(lambda oracle, w: oracle(w, 0)).lower(own, jnp.eye(8))
        return program.compile().memory_analysis().temp_size_in_bytes

    assert memory(4) < 0.4 * memory(1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batch_size": 6, "microbatches": 4}, "batch_size = 6 must be a multiple of microbatches = 4"),
        ({"batch_size": 6, "microbatches": 0}, "microbatches"),
    ],
)
def test_what_cannot_be_divided(given, words):
    task = fs.Task.from_arrays(each, START, EVEN)
    with pytest.raises(fs.InvalidInput, match=words) as error:
        fs.run(fs.FedAvg(0.1), task, rounds=1, **given)
    assert "\n" not in str(error.value)


def test_batches_of_one_piece():
    """Running statistics, modules that PyTorch runs, losses that couple examples."""
    torch = pytest.importorskip("torch")
    normed = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    loss = torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    tasks = {
        "running statistics": fs.tasks.from_torch(normed, loss, EVEN, batch_size=6),
        "runs in PyTorch": fs.tasks.from_torch(
            torch.nn.Linear(3, 3), loss, EVEN, batch_size=6, translate=False
        ),
        "depends on the others": fs.Task.from_arrays(each, START, EVEN, batch_size=6, couples_examples=True),
    }
    for words, task in tasks.items():
        with pytest.raises(fs.InvalidInput, match=f"microbatches = 2: .*{words}.*leave microbatches out"):
            fs.run(fs.FedAvg(0.1), task, rounds=1, microbatches=2)
