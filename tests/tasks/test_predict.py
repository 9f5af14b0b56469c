"""Predictions of a task's model: those that its evaluations count, from whatever form the inputs have."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fedsolve as fs
from fedsolve.core.errors import InvalidInput
from fedsolve.tasks import build
from fedsolve.tasks.shared import windows

DATA = Path(os.environ.get("FEDSOLVE_DATA") or Path(__file__).parents[3] / "shared" / "data")
DIGITS = fs.tasks.digits()
RNG = np.random.default_rng(0)


def started(task, seed=0):
    """A model that is not at its start, where all classes may be alike."""
    params = task.init(jax.random.key(seed))
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda a: a + 0.1 * rng.normal(size=np.shape(a)).astype(np.float32), params)


@pytest.mark.full
def test_labels_are_those_that_the_run_counted():
    result = fs.run(fs.FedAvg(0.3), DIGITS, rounds=3, clients_per_round=10)
    labels = result.predict(DIGITS.test.x)
    assert labels.dtype == np.int32
    assert abs(np.mean(labels == DIGITS.test.y) - result.final("test_accuracy")) < 1e-6
    scores = DIGITS.predict(result.params, DIGITS.test.x, scores=True)
    (hidden, out), x = result.params, DIGITS.test.x
    by_hand = (
        np.maximum(x @ np.asarray(hidden.weight).T + hidden.bias, 0) @ np.asarray(out.weight).T + out.bias
    )
    np.testing.assert_allclose(scores, by_hand, atol=1e-5)


@pytest.mark.gate("regression")
@pytest.mark.parametrize("name", ["synthetic", "regression", "lasso", "lowrank"])
def test_made_tasks_predict_what_their_metrics_evaluate(name):
    task = build(name)
    params, (x, y) = started(task), task.data.examples
    x, y = x[:300], y[:300]
    predicted = task.predict(params, x)
    if name == "synthetic":
        assert (
            abs(np.mean(predicted == y) - float(task.metrics["accuracy"](params, fs.tasks.Examples(x, y))))
            < 1e-6
        )
    else:
        loss = float(task.loss(params, fs.tasks.Examples(x.astype(np.float32), y.astype(np.float32))))
        assert np.mean((predicted - y) ** 2) == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize(("name", "file"), [("libsvm", "libsvm"), ("voxels", "haxby2001_sub1_slice.npz")])
def test_binary_tasks_predict_zero_or_one(name, file):
    if not (DATA / file).exists():
        pytest.skip(f"no {file}")
    task = build(name, data_dir=DATA, **({"l2": 0.1} if name == "libsvm" else {}))
    params, test = started(task), jax.tree.map(lambda a: a[:500], task.test)
    accuracy = float(task.metrics["accuracy"](params, test))
    assert abs(np.mean(task.predict(params, test.x) == test.y) - accuracy) < 1e-6


@pytest.mark.full
def test_tokens_are_predicted_at_each_position():
    model = fs.tasks.LSTM(5, embedding=4, hidden=6)
    data, loss = windows(RNG.integers(1, 5, 60), 7), fs.tasks.NextToken(model)
    task = fs.Task.from_arrays(loss, model.init(jax.random.key(0)), [data])
    params = task.assemble(started(task))
    predicted, there = task.predict(params, data.x), data.y != 0
    assert predicted.shape == data.x.shape
    counted = float(fs.tasks.NextTokenAccuracy(model)(params, data))
    assert abs(np.mean((predicted == data.y)[there]) - counted) < 1e-6


def test_batches_change_no_prediction_and_few_are_compiled():
    task = fs.tasks.digits()
    params, x = started(DIGITS), np.concatenate([DIGITS.data.examples.x] * 2)
    before = np.stack([task.predict(params, row[None], scores=True)[0] for row in x[:7]])
    scores = task.predict(params, x, scores=True)
    np.testing.assert_allclose(scores[:7], before, atol=1e-5)
    np.testing.assert_allclose(scores[1438:], scores[:1438], atol=1e-5)
    for count in (300, 511, 1000, 256):
        assert len(task.predict(params, x[:count], scores=True)) == count
    assert task.inference._program._cache_size() == 2  # of one row, and of 256


def test_forms_of_inputs_give_one_result():
    params, x = started(DIGITS), DIGITS.test.x[:5]
    expected = DIGITS.predict(params, x, scores=True)
    for same in (x.tolist(), jnp.asarray(x), pd.DataFrame(x), x.astype(np.float64)):
        np.testing.assert_allclose(DIGITS.predict(params, same, scores=True), expected, atol=1e-6)
    whole = DIGITS.predict(params, (16 * x).astype(int), scores=True)  # integers, as a file may have them
    np.testing.assert_allclose(whole, DIGITS.predict(params, 16 * x, scores=True), rtol=1e-5)


def test_sparse_rows_of_any_length_and_tags():
    model = fs.tasks.SparseLinear(6, 3)
    dense = np.array([[0, 1, 0, 2, 0, 0], [3, 0, 0, 0, 0, 1], [0, 0, 0, 0, 1, 0]], np.float32)
    columns = np.array([[1, 3], [0, 5], [4, 0]], np.int32)
    rows = fs.SparseRows(columns, np.take_along_axis(dense, columns, 1) * [[1, 1], [1, 1], [1, 0]])
    tags = np.eye(3, dtype=np.int32)
    start = model.init(jax.random.key(0))
    task = fs.Task.from_arrays(fs.tasks.BinaryCrossEntropy(model), start, [(rows, tags)])
    params = started(task)
    margins = dense @ np.asarray(params.weight) + params.bias
    np.testing.assert_array_equal(task.predict(params, rows), margins > 0)
    wider = fs.SparseRows(*(np.pad(a, ((0, 0), (0, 2))) for a in rows))
    np.testing.assert_allclose(task.predict(params, wider, scores=True), margins, atol=1e-6)


def test_own_function_frozen_leaves_and_leaves_that_are_no_arrays():
    model = {"a": np.ones((3, 2)), "b": np.zeros(2), "act": jnp.tanh}

    def own(model, x):
        return {"out": model["act"](x @ model["a"] + model["b"])}

    def loss(model, batch):
        return jnp.mean((own(model, batch[0])["out"] - batch[1]) ** 2)

    x, y = RNG.normal(size=(9, 3)), RNG.normal(size=(9, 2))
    given = {"freeze": ("a",), "predict": own}
    task = fs.Task.from_arrays(loss, model, [(x, y)], **given)
    result = fs.run(fs.FedAvg(0.3), task, rounds=2, dtype="float64")
    expected = np.tanh(x @ model["a"] + np.asarray(result.params["b"]))
    np.testing.assert_allclose(result.predict(x)["out"], expected, atol=1e-14)
    seeds = fs.run(fs.FedAvg(0.3), task, rounds=2, seeds=2)
    assert seeds.predict(x)["out"].shape == (2, 9, 2)
    assert seeds[0].predict(x)["out"].dtype == np.float32
    without = fs.Task.from_arrays(loss, model, [(x, y)])
    with pytest.raises(InvalidInput, match=r"the task custom does not say how .* predict=f"):
        without.predict(model, x)


@pytest.mark.full
def test_inputs_that_are_a_pytree_and_buffers():
    def predict(params, x, buffers):
        return params * x["a"] + x["b"] + buffers

    def loss(params, batch, buffers):
        return jnp.mean((predict(params, batch[0], buffers) - batch[1]) ** 2), buffers + 1.0

    x = {"a": np.arange(4.0), "b": np.ones(4)}
    task = fs.Task.from_arrays(loss, jnp.zeros(()), [(x, x["a"])], buffers=jnp.zeros(()), predict=predict)
    result = fs.run(fs.FedAvg(0.1), task, rounds=1)
    np.testing.assert_allclose(
        result.predict(x), float(result.params) * x["a"] + 1 + result.buffers, rtol=1e-6
    )
    with pytest.raises(InvalidInput, match="x is one array, the inputs of custom are a dictionary of a, b"):
        result.predict(x["a"])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (DIGITS.test.x[0], r"one input of digits: give rows, such as x\[None\]"),
        (DIGITS.test.x[:, :5], r"x has rows of shape \(5,\), the inputs of digits have shape \(64,\)"),
        (DIGITS.test.x[:0], "x has 0 rows"),
        (np.full((3, 64), [np.nan]), "non-finite number in row 0"),
        (np.full((3, 64), "a"), "x has type <U1: give arrays of numbers"),
        (pd.DataFrame(DIGITS.test.x).astype({3: str}), "column 3 of x holds no numbers"),
        ([[1.0], [1.0, 2.0]], "not an array"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_inputs_are_one_line(x, message):
    with pytest.raises(InvalidInput, match=message) as error:
        DIGITS.predict(started(DIGITS), x)
    assert "\n" not in str(error.value)


def test_bytes_and_tokens_keep_their_type():
    image = RNG.integers(0, 256, (6, 28, 28, 1)).astype(np.uint8)
    model = fs.tasks.Autoencoder((784, 8, 4))
    task = fs.Task.from_arrays(
        fs.tasks.ReconstructionError(model), model.init(jax.random.key(0)), [(image, image)]
    )
    params = task.assemble(started(task))
    of_bytes = task.predict(params, image)
    assert of_bytes.shape == image.shape
    np.testing.assert_allclose(task.predict(params, image.astype(int)), of_bytes)
    np.testing.assert_allclose(task.predict(params, image / 255), of_bytes, atol=1e-5)
    with pytest.raises(InvalidInput, match="not uint8"):
        task.predict(params, image.astype(int) + 1)


@pytest.mark.full
def test_a_stored_ready_task_predicts_without_further_arguments(tmp_path):
    task = fs.tasks.digits(num_clients=7, partition={"name": "labels", "k": 3}, model="softmax").hold_out(0.2)
    result = fs.run(fs.FedAvg(0.3), task, rounds=2)
    result.save(tmp_path)
    np.testing.assert_array_equal(fs.load(tmp_path).predict(task.test.x), result.predict(task.test.x))
    np.testing.assert_array_equal(fs.load(tmp_path, task).predict(task.test.x), result.predict(task.test.x))
    with pytest.raises(InvalidInput, match="the task digits is not from PyTorch: use its model by predict"):
        fs.load(tmp_path).module()
    own = fs.tasks.digits(num_clients=7, model=fs.tasks.Softmax(64, 10))  # a model that has no name
    fs.run(fs.FedAvg(0.3), own, rounds=1).save(tmp_path / "own")
    with pytest.raises(InvalidInput, match=r"names no ready task: give fs.load\(folder, task=...\)"):
        fs.load(tmp_path / "own").predict(task.test.x)


@pytest.mark.parametrize(
    "method",
    [
        fs.Ditto(fs.FedAvg(0.3), lam=0.01),
        pytest.param(fs.FedRep("1.*", 0.3, passes=2), marks=pytest.mark.full),
    ],
)
@pytest.mark.full
def test_personal_models_are_those_of_their_clients(method, tmp_path):
    task = fs.tasks.digits(num_clients=5)
    result = fs.run(method, task, rounds=4, callbacks=[each := fs.callbacks.EachClient({4})])
    counted = each.found[4].metrics["accuracy"].tolist()
    for client in range(5):
        x, y = task.data.client(client)
        assert abs(np.mean(result.predict(x, client=client) == y) - counted[client]) < 1e-6
    assert len(set(counted)) > 1
    with pytest.raises(InvalidInput, match="has a model for each client: give client=0 to 4"):
        result.predict(task.test.x)
    with pytest.raises(InvalidInput, match="client = 5 of 5 clients: give 0 to 4"):
        result.predict(task.test.x, client=5)
    result.save(tmp_path)
    with pytest.raises(InvalidInput, match="which are not stored"):
        fs.load(tmp_path).predict(task.test.x, client=1)
    shared = fs.run(fs.FedAvg(0.3), task, rounds=1)
    with pytest.raises(InvalidInput, match="FedAvg has one model for all clients, leave client out"):
        shared.predict(task.test.x, client=1)


@pytest.mark.full
def test_an_equinox_model_predicts_by_its_call():
    equinox = pytest.importorskip("equinox")
    model, x = equinox.nn.MLP(3, 2, 4, 1, key=jax.random.key(0)), RNG.normal(size=(20, 3)).astype(np.float32)
    loss = fs.tasks.CrossEntropy(lambda model, x: jax.vmap(model)(x))
    task = fs.Task.from_arrays(loss, model, [(x, (x[:, 0] > 0).astype(int))])
    result = fs.run(fs.FedAvg(0.3), task, rounds=1)
    np.testing.assert_array_equal(result.predict(x), np.argmax(jax.vmap(result.params)(x), axis=1))
