"""Sparse and low-rank regression: the paper's sizes, the truth and the statistics of the data."""

import jax
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.errors import InvalidInput
from fedsolve.tasks import build, lasso, lowrank
from fedsolve.tasks.ready.simulated import Setup, draw_composite
from harness import crossed

SIZES = {1: (64, 128), 2: (64, 128), 3: (64, 128), 4: (256, 32)}


@pytest.fixture(scope="module")
def sparse():
    return lasso(2)


@pytest.mark.full_rows("1")
@pytest.mark.parametrize("dataset", [1, 2, 3, 4])
def test_lasso_has_the_paper_s_sizes_and_truth(dataset):
    task = lasso(dataset)
    clients, examples = SIZES[dataset]
    assert task.data.counts.tolist() == [examples] * clients
    assert task.data.examples.x.shape == (8192, 1024)
    assert task.test.x.shape == (2000, 1024)
    ones = {1: 512, 2: 64, 3: 8, 4: 512}[dataset]
    assert task.truth.weight.tolist() == [1.0] * ones + [0.0] * (1024 - ones)
    assert (task.batch_size, task.epochs, task.citation) == (10, 1, "yuan2021fco")
    assert task.name == f"lasso-{dataset}"


@pytest.mark.parametrize("dataset", [1, 2, 3, 4])
def test_lowrank_has_the_paper_s_sizes_and_truth(dataset):
    task = lowrank(dataset)
    clients, examples = SIZES[dataset]
    assert task.data.counts.tolist() == [examples] * clients
    assert task.data.examples.x.shape == (8192, 32, 32)
    rank = {1: 16, 2: 4, 3: 1, 4: 16}[dataset]
    assert np.linalg.matrix_rank(task.truth.weight) == rank
    np.testing.assert_array_equal(task.truth.weight, np.diag([1.0] * rank + [0.0] * (32 - rank)))
    assert task.name == f"lowrank-{dataset}"


@pytest.mark.full
@pytest.mark.parametrize("make", [lasso, lowrank])
def test_the_model_starts_at_zero_with_the_shapes_of_the_truth(make):
    task = make()
    start = task.init(jax.random.key(0))
    assert jax.tree.map(np.shape, start) == jax.tree.map(np.shape, task.truth)
    assert not any(leaf.any() for leaf in jax.tree.leaves(start))


@pytest.mark.full
def test_data_sets_of_one_size_share_inputs_and_noise(sparse):
    other = lasso(3)
    np.testing.assert_array_equal(sparse.data.examples.x, other.data.examples.x)
    assert sparse.truth.bias == other.truth.bias
    noise = [t.data.examples.y - t.data.examples.x @ t.truth.weight for t in (sparse, other)]
    np.testing.assert_allclose(*noise, atol=1e-9)


@pytest.mark.full
def test_the_noise_on_the_truth_has_deviation_one_in_training_and_test(sparse):
    """10,192 residuals: their variance is known to sqrt(2 / n) = 1.4 %, their mean to 0.01."""
    for part in (sparse.data.examples, sparse.test):
        residual = part.y - part.x @ sparse.truth.weight - sparse.truth.bias
        assert residual.mean() == pytest.approx(0, abs=4 / np.sqrt(len(residual)))
        assert residual.var() == pytest.approx(1, abs=4 * np.sqrt(2 / len(residual)))
    matrices = lowrank(2)
    x, y = matrices.data.examples
    residual = y - np.einsum("nij,ij->n", x, matrices.truth.weight) - matrices.truth.bias
    assert residual.var() == pytest.approx(1, abs=0.07)
    at_truth = matrices.loss(
        jax.tree.map(np.float32, matrices.truth), jax.tree.map(np.float32, matrices.test)
    )
    assert float(at_truth) == pytest.approx(1, abs=0.13)  # the loss has no half: it is the noise


def test_least_squares_finds_the_truth(sparse):
    """8,192 equations of unit noise in 1,025 unknowns: each weight to about sqrt(1 / (8192 - 1024)) = .012."""
    x = np.column_stack([sparse.data.examples.x, np.ones(8192)])
    w = np.linalg.solve(x.T @ x, x.T @ sparse.data.examples.y)
    assert abs(w[:-1] - sparse.truth.weight).max() < 0.06
    assert w[-1] == pytest.approx(sparse.truth.bias, abs=0.1)
    residual = sparse.data.examples.y - x @ w
    assert residual @ residual / (8192 - 1025) == pytest.approx(1, abs=0.07)


def test_clients_have_centers_of_unit_variance_and_inputs_of_unit_variance_around_them(sparse):
    """Means over 128 examples have variance 1 + 1 / 128; 64 x 1,024 of them tell it to half a percent."""
    x = sparse.data.examples.x.reshape(64, 128, 1024)
    assert x.var(axis=1, ddof=1).mean() == pytest.approx(1, abs=0.003)
    assert x.mean(axis=1).var() == pytest.approx(1 + 1 / 128, abs=0.025)
    assert x.mean() == pytest.approx(0, abs=0.02)


def test_held_out_examples_come_from_the_same_clients_evenly():
    """Five examples of three clients are two, two and one, each nearest to the center of its own client."""
    data, test, _ = draw_composite(np.ones(400), Setup(400, 3, 50), seed=4, test_examples=5)
    centers = np.stack([data.client(i).x.mean(axis=0) for i in range(3)])
    distance = np.linalg.norm(test.x[:, None] - centers, axis=-1)
    assert distance.argmin(axis=1).tolist() == [0, 0, 1, 1, 2]
    assert not np.isin(test.y, data.examples.y).any()


@pytest.mark.full
@pytest.mark.parametrize("make", crossed([lasso, lowrank], [lasso]))
def test_the_seed_decides_data_and_truth(make):
    a, b, c = make(3), make(3, seed=0), make(3, seed=1)
    for mine, same in zip(
        jax.tree.leaves((a.data.examples, a.test)), jax.tree.leaves((b.data.examples, b.test)), strict=True
    ):
        np.testing.assert_array_equal(mine, same)
    assert a.truth.bias == b.truth.bias != c.truth.bias
    assert not np.array_equal(a.data.examples.x, c.data.examples.x)
    assert a.loss == c.loss


@pytest.mark.full
def test_federated_averaging_comes_closer_to_the_truth():
    task = lowrank(1)
    result = fs.run(fs.FedAvg(client_lr=2e-4), task, rounds=20, clients_per_round=10, eval_every=20)
    before = np.linalg.norm(task.truth.weight)
    assert np.linalg.norm(result.params.weight - task.truth.weight) < 0.9 * before


@pytest.mark.parametrize("name", ["lasso", "lowrank"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": 5}, r"dataset = 5 must be one of 1 \(.*; 64 x 128\), .* 4 \(.*; 256 x 32\)"),
        ({"dataset": 0}, "dataset = 0 must be one of"),
        ({"dataset": True}, "dataset = True must be an integer"),
        ({"dataset": "1"}, "dataset = '1' must be an integer"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_bad_options_end_in_one_line(name, options, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        build(name, **options)
    assert "\n" not in str(caught.value)


def test_true_is_no_data_set():
    with pytest.raises(InvalidInput, match="dataset = True"):
        lasso(True)
