"""Sparse examples: a run has the numbers of one on the same examples made dense, in memory and from a folder."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.tasks import BinaryCrossEntropy, CrossEntropy, RecallAt, Softmax, SparseLinear

WORDS, TAGS = 12, 5
RNG = np.random.default_rng(0)


def rows(n, columns, most, values):
    """Sparse rows with 0 to `most` entries, each column at most once, and the same dense."""
    dense = np.zeros((n, columns))
    for row in dense:
        own = RNG.permutation(columns)[: RNG.integers(0, most + 1)]
        row[own] = values(len(own))
    ends = np.concatenate([[0], np.cumsum((dense != 0).sum(axis=1))])
    csr = SimpleNamespace(indptr=ends, indices=np.nonzero(dense)[1].astype(np.uint16), data=dense[dense != 0])
    return fs.SparseRows.from_csr(csr, most + 1), dense


CLIENTS = [
    tuple(
        fs.Examples(*pair)
        for pair in zip(rows(n, WORDS, 4, RNG.random), rows(n, TAGS, 3, np.ones), strict=True)
    )
    for n in (7, 3, 10, 1)
]
MODEL = SparseLinear(WORDS, TAGS)


def task(clients):
    loss, recall = BinaryCrossEntropy(MODEL), RecallAt(MODEL, 2)
    return fs.Task("tags", MODEL.init, loss, clients, metrics={"recall": recall}, batch_size=None)


def by_hand(rounds, lr):
    """FedAvg with full batches on the dense examples: weight, bias, and the mean loss at the end."""
    w, b = np.zeros((WORDS, TAGS)), np.zeros(TAGS)
    total = sum(len(dense.x) for _, dense in CLIENTS)
    for _ in range(rounds):
        new = np.zeros_like(w), np.zeros_like(b)
        for _, (x, y) in CLIENTS:
            error = 1 / (1 + np.exp(-(x @ w + b))) - y
            for mean, own, gradient in zip(new, (w, b), (x.T @ error, error.sum(axis=0)), strict=True):
                mean += len(x) / total * (own - lr * gradient / len(x))
        w, b = new
    losses = [np.logaddexp(0, np.where(y > 0, -1, 1) * (x @ w + b)).sum() for _, (x, y) in CLIENTS]
    return w, b, sum(losses) / total


@pytest.mark.full
def test_a_run_has_the_numbers_of_dense_examples(tmp_path):
    sparse = [own for own, _ in CLIENTS]
    stored = fs.data.write(sparse, tmp_path / "d")
    w, b, loss = by_hand(3, 0.7)
    for data, residency in ((fs.FederatedData.from_clients(sparse), "device"), (stored, "stream")):
        options = {"rounds": 3, "dtype": "float64", "residency": residency}
        result = fs.run(fs.FedAvg(0.7, weighting="examples"), task(data), **options)
        np.testing.assert_allclose(result.params.weight, w, atol=1e-12, rtol=0)
        np.testing.assert_allclose(result.params.bias, b, atol=1e-12, rtol=0)
        assert result.metrics["train_loss"][-1] == pytest.approx(loss, abs=1e-12)
    assert type(stored.examples.x) is fs.SparseRows
    assert stored.examples.x.indices.dtype == np.uint16


@pytest.mark.full
def test_metrics_and_classes_are_those_of_dense_rows():
    params = jax.tree.map(lambda p: jnp.asarray(RNG.normal(size=p.shape)), MODEL.init(jax.random.key(0)))
    dense_model, turned = Softmax(WORDS, TAGS), params._replace(weight=params.weight.T)
    sparse, dense = CLIENTS[2]
    for metric in (RecallAt(MODEL, 2), BinaryCrossEntropy(MODEL)):
        of_dense = dataclasses.replace(metric, model=dense_model)
        np.testing.assert_allclose(metric(params, sparse), of_dense(turned, dense), rtol=1e-5)
    labels = np.arange(len(dense.x)) % TAGS
    found = CrossEntropy(MODEL)(params, fs.Examples(sparse.x, labels))
    of_dense = CrossEntropy(dense_model)(turned, fs.Examples(dense.x, labels))
    np.testing.assert_allclose(found, of_dense, rtol=1e-5)


@pytest.mark.full_rows("-1")
@pytest.mark.parametrize("index", [-1, WORDS])
def test_an_index_outside_is_seen(index):
    """It would be another word's weight: the example's loss is NaN, and its client's message left out."""
    inside = CLIENTS[0][0]
    for field, bad in (("x", index), ("y", -1 if index < 0 else TAGS)):
        own = getattr(inside, field)
        indices = own.indices.astype(np.int32)
        indices[2, -1] = bad  # of an entry of padding, too
        outside = inside._replace(**{field: own._replace(indices=indices)})
        each = BinaryCrossEntropy(MODEL).each(MODEL.init(jax.random.key(0)), outside)
        assert np.flatnonzero(~np.isfinite(each)).tolist() == [2]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((np.eye(2), 2), "not a CSR matrix"),
        (
            (SimpleNamespace(indptr=[0, 1, 4], indices=[0, 1, 2, 3], data=np.ones(4)), 2),
            "row 1 has 3 entries",
        ),
        (
            (SimpleNamespace(indptr=[0], indices=[], data=[]), 0),
            "entries = 0 must be an integer of at least 1",
        ),
    ],
)
def test_what_is_no_sparse_matrix_is_refused(given, words):
    with pytest.raises(fs.InvalidInput, match=words):
        fs.SparseRows.from_csr(*given)
