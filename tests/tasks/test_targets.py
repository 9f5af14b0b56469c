"""Labels that a loss has no class for are refused when a task is made, wherever its examples lie."""

import hashlib
import json
import zlib

import jax
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.tasks import (
    LSTM,
    BinaryCrossEntropy,
    BitsPerToken,
    CrossEntropy,
    Linear,
    Logistic,
    NextToken,
    Ridge,
    Softmax,
    SparseLinear,
    SquaredError,
)

MODEL = Softmax(2, 3)
GOOD = (np.array([0, 1, 2]), np.array([2, 0]))


def examples(y):
    return fs.Examples(np.ones((len(y), 2), np.float32), np.asarray(y))


def task(loss=None, labels=GOOD, model=MODEL, **more):
    data = fs.FederatedData.from_clients([examples(y) for y in labels], ["ann", "bob"])
    return fs.Task("labels", model.init, CrossEntropy(model) if loss is None else loss, data, **more)


FROM_ONE = np.array([1, 2, 3])
SIDES = Linear(2)
SETS = {
    "training": (
        lambda: task(labels=([0, 2], [1, 3])),
        "row 1 of bob has label 3, .* training examples range from 0 to 3: the loss takes 0 to 2 for .* 3 outputs",
    ),
    "below": (
        lambda: task(labels=([0, -1], [1, 1])),
        "row 1 of ann has label -1, .* training examples range from -1 to 1",
    ),
    "beyond all": (lambda: task(labels=([3, 4], [5])), "row 0 of ann has label 3, .* range from 3 to 5"),
    "no integer": (lambda: task(labels=([0.0, 1.0], [0.5])), "row 0 of bob has label a float, .* 0.0 to 1.0"),
    "test": (
        lambda: task(test=examples(FROM_ONE)),
        "row 2 of the test set has label 3, .* test set range from 1 to 3",
    ),
    "validation": (lambda: task(validation=examples(FROM_ONE)), "row 2 of the validation set has label 3"),
    "unseen": (
        lambda: task(unseen=fs.FederatedData.from_clients([examples(GOOD[1]), examples(FROM_ONE)])),
        "row 2 of unseen client 1 has label 3, .* the unseen clients range from 0 to 3",
    ),
    "two sides": (
        lambda: task(Logistic(SIDES), ([1, 2], [2]), SIDES),
        "row 1 of ann has label 2, .* range from 1 to 2: the loss takes 0 and 1, or -1 and 1",
    ),
    "-1, 0 and 1": (lambda: task(Logistic(SIDES), ([1, -1], [0]), SIDES), "row 0 of bob has label 0"),
    "a share": (
        lambda: task(Ridge(Logistic(SIDES), 0.1), ([1.0, 0.0], [0.3]), SIDES),
        "bob has label a float",
    ),
    "tags": (
        lambda: task(BinaryCrossEntropy(MODEL), ([[0, 1, 0]], [[0, 1, 2]])),
        "row 0 of bob has label 2, .* range from 0 to 2",
    ),
}


@pytest.mark.parametrize("case", SETS)
def test_a_label_without_a_class(case):
    make, words = SETS[case]
    with pytest.raises(fs.InvalidInput, match=words) as error:
        make()
    assert "\n" not in str(error.value)


def test_labels_that_are_taken():
    """Also such as are no integers by their type, and targets of losses that have no classes."""
    for dtype in (np.int8, np.uint8, np.int64, np.float32, np.float64):
        task(labels=[y.astype(dtype) for y in GOOD], test=examples(GOOD[0].astype(dtype)))
    for pair in ([0, 1], [-1, 1], [False, True], [1.0, 0.0]):
        task(Logistic(SIDES), (pair, pair[:1]), SIDES)
    task(SquaredError(SIDES), ([7, -3], [0.5]), SIDES)


def sequences(*rows):
    y = np.array(rows)
    return [fs.Examples(np.ones_like(y), y)]


def test_tokens_outside_the_vocabulary_but_for_padding():
    """Padding may lie outside: nothing is looked up by it."""
    model = LSTM(5, embedding=2, hidden=2, layers=1)

    def made(padding, *rows):
        data = fs.FederatedData.from_clients(sequences(*rows))
        metrics = {"bits": BitsPerToken(model, padding)}
        return fs.Task("tokens", model.init, NextToken(model, padding), data, metrics=metrics)

    made(0, [1, 4, 0], [2, 0, 0])
    made(5, [1, 4, 5], [2, 5, 5])
    with pytest.raises(fs.InvalidInput, match=r"row 1 of client 0 has label 5, .*0 to 4 .* 5 outputs;"):
        made(0, [1, 4, 0], [2, 5, 0])
    with pytest.raises(fs.InvalidInput, match=r"label 6, .*0 to 4 .* 5 outputs, and 5 for padding"):
        made(5, [1, 4, 5], [2, 6, 5])


def test_tags_of_sparse_rows():
    model = SparseLinear(2, 3)

    def made(tags, values):
        sparse = fs.SparseRows(np.array(tags), np.array(values, np.float32))
        x = fs.SparseRows(np.zeros((2, 1), np.int32), np.ones((2, 1), np.float32))
        data = fs.FederatedData.from_clients([fs.Examples(x, sparse)])
        return fs.Task("tags", model.init, BinaryCrossEntropy(model), data)

    made([[0, 2], [1, 0]], [[1, 1], [1, 0]])
    with pytest.raises(fs.InvalidInput, match=r"row 1 of client 0 has label 3, .* tags 0 to 2"):
        made([[0, 2], [3, 0]], [[1, 1], [1, 0]])
    with pytest.raises(fs.InvalidInput, match=r"row 0 of client 0 has label 2\.0, .* each with the value 1"):
        made([[0, 2], [1, 0]], [[1, 2], [1, 0]])


def test_the_classes_of_any_model_are_its_outputs():
    """Of a function whose number of outputs is known from its shapes alone, of leaves that are put back, of an `init`
    that needs numbers and cannot be traced, and with leaves that do not train."""
    params = {"w": np.zeros((2, 3), np.float32), "name": "head", "b": np.zeros(3, np.float32)}
    loss = CrossEntropy(lambda p, x: x @ p["w"] + p["b"])
    clients = [examples([0, 1, 3])]
    for freeze in ((), ("b",)):
        with pytest.raises(fs.InvalidInput, match="0 to 2 for the model's 3 outputs"):
            fs.Task.from_arrays(loss, params, clients, freeze=freeze)

    def by_numpy(key):
        return MODEL.init(jax.random.key(int(np.asarray(jax.random.key_data(key)).sum())))

    data = fs.FederatedData.from_clients(clients)
    with pytest.raises(fs.InvalidInput, match="0 to 2 for the model's 3 outputs"):
        fs.Task("by NumPy", by_numpy, CrossEntropy(MODEL), data)


def test_what_does_not_fit_is_left_to_the_run():
    """A model of other inputs is no matter of labels."""
    other = Softmax(5, 3)
    made = task(CrossEntropy(other), model=other)
    with pytest.raises(Exception, match=r"(?i)shape|contract"):
        fs.run(fs.FedAvg(0.1), made, rounds=1)


def test_labels_of_a_folder_have_a_range(tmp_path):
    """Their range is noted when they are written; a folder from before that is read, and keeps its digest."""
    wrong = [examples(GOOD[0]), examples(FROM_ONE)]  # one after another
    for name, data in (("right", task().data), ("wrong", wrong)):
        stored = fs.data.write(data, tmp_path / name)
        assert fs.data.open(tmp_path / name).digest == stored.digest
        assert stored.range_of(stored.examples.y) == (0, 2 if name == "right" else 3)
        assert stored.range_of(stored.examples.x) is None
    with pytest.raises(fs.InvalidInput, match=r"row 2 of client 1 has label 3, .* range from 0 to 3"):
        fs.Task("stored", MODEL.init, CrossEntropy(MODEL), fs.data.open(tmp_path / "wrong"))
    path = tmp_path / "wrong" / "fedsolve-data.json"
    body = json.loads(json.loads(path.read_text())["data"])
    for column in (*body["leaves"], *body["index"]):
        column.pop("low", None)
        column.pop("high", None)
    text = json.dumps(body, sort_keys=True)
    path.write_text(json.dumps({"seal": f"{zlib.crc32(text.encode()):08x}", "data": text}, indent=0) + "\n")
    old = fs.data.open(tmp_path / "wrong")
    assert old.range_of(old.examples.y) is None
    assert old.digest == hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    with pytest.raises(fs.InvalidInput, match=r"row 2 of client 1 has label 3, .* range from 0 to 3"):
        fs.Task("stored", MODEL.init, CrossEntropy(MODEL), old)


@pytest.mark.parametrize("residency", ["device", "stream"])
def test_a_label_that_changes_on_the_disk(residency, tmp_path):
    """It was in its class when it was written: a task reads none, and a run refuses it when it does."""
    fs.data.write([examples([i % 3, 1]) for i in range(6)], tmp_path / "d")
    path = tmp_path / "d" / "examples-1.npy"
    content = bytearray(path.read_bytes())
    content[-8] = 7
    path.write_bytes(content)
    made = fs.Task("stored", MODEL.init, CrossEntropy(MODEL), fs.data.open(tmp_path / "d"))
    with pytest.raises(fs.InvalidInput, match=r"examples-1.npy is damaged .it holds 7, .* between 0 and 2"):
        fs.run(fs.FedAvg(0.1), made, rounds=4, residency=residency, clients_per_round=5, dtype="float64")


def test_a_client_of_a_deployment():
    """Its examples are its own; a task knows no more of them."""
    from fedsolve.deploy.oracles.jax import JaxOracle

    params, work = MODEL.init(jax.random.key(0)), {"batch_size": None, "epochs": 1}
    with pytest.raises(fs.InvalidInput, match=r"row 2 of this client has label 3, .* 0 to 2"):
        JaxOracle(CrossEntropy(MODEL), params, examples(FROM_ONE), **work)
    with pytest.raises(fs.InvalidInput, match=r"row 2 of the validation set has label 3"):
        JaxOracle(CrossEntropy(MODEL), params, examples(GOOD[0]), validation=examples(FROM_ONE), **work)
