"""Validation examples: held out by example or by client, measured, stopped by, and the same for runs and sweeps."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.tasks import BinaryCrossEntropy, CrossEntropy, RecallAt, Softmax, SparseLinear
from harness import squares as loss

RNG = np.random.default_rng(0)
CLIENTS = [(RNG.normal(size=(n, 3)), RNG.normal(size=n)) for n in (10, 4, 7, 9)]


TASK = fs.Task.from_arrays(loss, np.zeros(3), CLIENTS, batch_size=4)
OPTIONS = {"rounds": 6, "eval_every": 2, "clients_per_round": 2, "dtype": "float64"}


def by_hand(w, examples):
    x, y = examples
    return np.mean((x @ np.asarray(w) - y) ** 2)


@pytest.mark.gate("client")
@pytest.mark.parametrize("by", ["example", "client"])
def test_what_is_held_out_is_measured_and_not_trained_on(by):
    task = TASK.hold_out(0.25, by=by)
    rows = np.concatenate([task.data.examples[1], task.validation[1]])
    assert sorted(rows) == sorted(np.concatenate([y for _, y in CLIENTS]))
    if by == "example":
        assert (TASK.data.counts - task.data.counts).tolist() == [2, 1, 2, 2]  # round(n / 4)
        owned = [np.isin(task.validation[1], y).nonzero()[0] for _, y in CLIENTS]
        assert [task.validation_clients[i].tolist() for i in owned] == [[0, 0], [1], [2, 2], [3, 3]]
    else:
        assert task.data.num_clients == 3
        assert any(np.array_equal(task.validation[1], y) for _, y in CLIENTS)
    result = fs.run(fs.FedAvg(0.1), task, **OPTIONS)
    assert result.metrics["validation_loss"][-1] == pytest.approx(
        by_hand(result.params, task.validation), rel=1e-12
    )
    if by == "example":
        alone = fs.Task("custom", task.init, loss, task.data, batch_size=4)
        np.testing.assert_array_equal(fs.run(fs.FedAvg(0.1), alone, **OPTIONS).params, result.params)


@pytest.mark.full
def test_runs_and_sweeps_hold_out_alike():
    task = TASK.hold_out(0.25)
    (one,) = fs.sweep("FedAvg", TASK, {"client_lr": [0.1]}, validation=0.25, **OPTIONS).metrics[
        "validation_loss"
    ]
    (two,) = fs.sweep("FedAvg", task, {"client_lr": [0.1]}, **OPTIONS).metrics["validation_loss"]
    np.testing.assert_array_equal(one, two)
    run = fs.run(fs.FedAvg(0.1), task, **OPTIONS)
    np.testing.assert_allclose(one[0], run.metrics["validation_loss"], rtol=1e-12)


@pytest.mark.full
def test_a_run_stops_by_them():
    worse = fs.Task.from_arrays(loss, np.zeros(3), CLIENTS, validation=(-CLIENTS[0][0], CLIENTS[0][1]))
    stop = [fs.callbacks.EarlyStopping("validation_loss", 1)]
    result = fs.run(fs.FedAvg(0.05), worse, **(OPTIONS | {"clients_per_round": 4}), callbacks=stop)
    assert "validation_loss was no better" in result.history.notes[-1]


def test_a_client_without_a_loss_is_left_out_of_them():
    clients = [*CLIENTS, (np.full((4, 3), 1e200), np.full(4, 1e200))]
    task = fs.Task.from_arrays(loss, np.ones(3), clients, batch_size=4).hold_out(0.25)
    result = fs.run(fs.FedAvg(0.1), task, **OPTIONS)
    assert "left out of all metrics" in result.history.notes[0]
    assert np.isfinite(result.metrics["validation_loss"]).all()
    assert result.metrics["validation_loss"][0] == pytest.approx(
        by_hand(np.ones(3), [a[task.validation_clients < 4] for a in task.validation]), rel=1e-12
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: TASK.hold_out(1.0), "validation = 1.0"),
        (lambda: TASK.hold_out(0.1, by="client"), "validation = 0.1 holds out 0 of 4 clients"),
        (
            lambda: TASK.hold_out(0.2, by="clients"),
            "unknown way to hold out 'clients': did you mean 'client'",
        ),
        (lambda: TASK.hold_out(0.25).hold_out(0.25), "has validation examples already"),
        (
            lambda: fs.Task("t", TASK.init, loss, TASK.data, validation=(np.ones((2, 3)), np.ones(3))),
            "validation set",
        ),
    ],
)
def test_what_cannot_be_held_out_is_one_line(call, words):
    with pytest.raises(fs.InvalidInput, match=words) as raised:
        call()
    assert "\n" not in str(raised.value)


# Sparse examples: a run has the numbers of one on the same examples made dense, in memory and from a folder.

WORDS, TAGS = 12, 5


def rows(n, columns, most, values):
    """Sparse rows with 0 to `most` entries, each column at most once, and the same dense."""
    dense = np.zeros((n, columns))
    for row in dense:
        own = RNG.permutation(columns)[: RNG.integers(0, most + 1)]
        row[own] = values(len(own))
    ends = np.concatenate([[0], np.cumsum((dense != 0).sum(axis=1))])
    csr = SimpleNamespace(indptr=ends, indices=np.nonzero(dense)[1].astype(np.uint16), data=dense[dense != 0])
    return fs.SparseRows.from_csr(csr, most + 1), dense


SPARSE_CLIENTS = [
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


def by_hand_sparse(rounds, lr):
    """FedAvg with full batches on the dense examples: weight, bias, and the mean loss at the end."""
    w, b = np.zeros((WORDS, TAGS)), np.zeros(TAGS)
    total = sum(len(dense.x) for _, dense in SPARSE_CLIENTS)
    for _ in range(rounds):
        new = np.zeros_like(w), np.zeros_like(b)
        for _, (x, y) in SPARSE_CLIENTS:
            error = 1 / (1 + np.exp(-(x @ w + b))) - y
            for mean, own, gradient in zip(new, (w, b), (x.T @ error, error.sum(axis=0)), strict=True):
                mean += len(x) / total * (own - lr * gradient / len(x))
        w, b = new
    losses = [np.logaddexp(0, np.where(y > 0, -1, 1) * (x @ w + b)).sum() for _, (x, y) in SPARSE_CLIENTS]
    return w, b, sum(losses) / total


@pytest.mark.full
def test_a_run_has_the_numbers_of_dense_examples(tmp_path):
    sparse = [own for own, _ in SPARSE_CLIENTS]
    stored = fs.data.write(sparse, tmp_path / "d")
    w, b, loss = by_hand_sparse(3, 0.7)
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
    sparse, dense = SPARSE_CLIENTS[2]
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
    inside = SPARSE_CLIENTS[0][0]
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
