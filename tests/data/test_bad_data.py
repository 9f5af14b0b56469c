"""Data that would be cut, wrapped or misread are refused in one line, before anything is compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.errors import check_seed
from fedsolve.data.federated import FederatedData
from fedsolve.engine.compute.casting import cast
from fedsolve.engine.compute.clients import on_device

X = np.arange(6.0)
MASKED = np.ma.masked_less(X, 1)


def of_rows(*parts):
    return lambda: FederatedData.from_partition(X, parts)


REFUSED = {
    "a boolean mask": (of_rows(X > 2, X <= 2), "flatnonzero"),
    "floats": (of_rows([0.0, 1.7], [2, 3]), "float64, not row numbers"),
    "a row beyond the last": (of_rows([0, 6]), "hold 6"),
    "a negative row": (of_rows([0, -1]), "hold -1"),
    "a table of rows": (of_rows([[0, 1]]), "shape"),
    "a part that is a number": (of_rows(3), "shape"),
    "parts that are a number": (lambda: FederatedData.from_partition(X, 3), "parts = an int"),
    "fields of other lengths": (lambda: FederatedData.from_partition((X, X[:2]), [[0]]), "lengths"),
    "too few group ids": (lambda: FederatedData.from_groups(X, np.array([0, 1, 1])), "3 group ids for 6"),
    "too many group ids": (lambda: FederatedData.from_groups(X, np.zeros(7)), "7 group ids for 6"),
    "masked examples": (lambda: FederatedData.from_clients([MASKED]), "masked"),
    "masked fields": (lambda: FederatedData((X, MASKED), np.array([6])), "masked"),
    "masked counts": (lambda: FederatedData(X, np.ma.masked_equal([6, 2], 2)), "masked"),
    "masked groups": (lambda: FederatedData.from_groups(X, MASKED), "masked"),
    "masked rows": (of_rows(np.ma.masked_equal([1, 2], 1)), "masked"),
    "masked test": (lambda: fs.Task("t", TASK.init, TASK.loss, TASK.data, test=MASKED), "masked"),
    "counts that are no whole numbers": (lambda: FederatedData(X, np.array([3.5, 2.5])), "counts"),
    "text": (lambda: FederatedData.from_clients([np.array(["a", "b"])]), "numbers"),
    "objects": (lambda: FederatedData.from_clients([np.array([None, {}])]), "numbers"),
    "rows of different lengths": (
        lambda: FederatedData.from_clients(
            [np.array([1.0]), np.array([[1, 2], [3, 4]], object)],
        ),
        "numbers",
    ),
    "no array": (lambda: FederatedData({}, np.array([2])), "no array"),
    "two clients of one name": (
        lambda: FederatedData.from_clients([X, X, X], ["a", "b", "a"]),
        "clients 0 and 2 are both called 'a'",
    ),
    "a name that is no text": (
        lambda: FederatedData.from_clients([X, X], ["a", 1]),
        "client 1 has an int: give text",
    ),
    "groups that have no order": (
        lambda: FederatedData.from_groups(X[:2], np.array([1, "a"], object)),
        "ids of several types",
    ),
    "no list of clients": (lambda: FederatedData.from_clients(7), "clients = an int"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    make, words = REFUSED[case]
    with pytest.raises(fs.InvalidInput, match=words) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("bad", "dtype"),
    [(np.array([2**31]), "float32"), (np.array([-(2**31) - 1]), "float32"), (np.array([1e39]), "float32")],
)
def test_numbers_that_the_device_would_wrap(bad, dtype):
    """64-bit integers beyond 32 bits, and floats beyond float32's, in a float32 run; in float64 they fit."""
    with pytest.raises(fs.InvalidInput, match=r"\[1\] of the examples holds"):
        on_device((np.zeros(1), bad), jnp.dtype(dtype))
    with jax.enable_x64(True):
        np.testing.assert_array_equal(on_device(bad, jnp.dtype("float64")), bad)
    fits = np.array([2**31 - 1, -(2**31)])
    np.testing.assert_array_equal(on_device(fits, jnp.dtype("float32")), fits)


@pytest.mark.parametrize("bad", [2**32, 2**64 + 1, -1, 1.0, True, "1", None, 10**400])
def test_seeds(bad):
    """A key has 32 bits of it in a float32 run: two seeds that differ above would be one replicate."""
    with pytest.raises(fs.InvalidInput, match="seed"):
        check_seed(bad)
    with pytest.raises(fs.InvalidInput, match="seed"):
        fs.sweep("FedAvg", TASK, {"client_lr": [0.1]}, rounds=1, seeds=[bad])
    assert check_seed(2**32 - 1) == 2**32 - 1


TASK = fs.Task.from_arrays(lambda w, batch: jnp.mean(w * batch), jnp.zeros(()), [X, X])


@pytest.mark.parametrize("name", ["loss", "loss_averaged", "a_averaged", "", 3, "two\nlines", "a\0b"])
def test_names_of_metrics(name):
    """`train_loss` is the loss's own, `train_a_averaged` that of a metric a."""
    metrics = {"a": TASK.loss, name: TASK.loss}
    with pytest.raises(fs.InvalidInput, match="metric"):
        fs.Task("t", TASK.init, TASK.loss, TASK.data, metrics=metrics)


@pytest.mark.parametrize("bad", [1e-46, 1e-40, 1e39, np.array(1e-46)])
def test_rates_that_float32_does_not_have(bad):
    """Below its least normal number a step would be 0 or lose its digits, above its largest infinite."""
    with pytest.raises(fs.InvalidInput, match=r"^client_lr = "):
        cast(fs.FedAvg(bad), jnp.dtype("float32"))
    with jax.enable_x64(True):
        assert float(cast(fs.FedAvg(bad), jnp.dtype("float64")).local.lr) == float(bad)


@pytest.mark.filterwarnings("error")
def test_arrays_and_models_that_float32_does_not_have():
    """Without a warning of NumPy's before the error; what is small in an array may vanish."""
    with pytest.raises(fs.InvalidInput, match=r"weights = -1e\+39 of Weighted is infinite in float32"):
        cast(fs.sampling.Weighted(np.array([1.0, -1e39]), 1), jnp.dtype("float32"))
    assert cast(fs.sampling.Weighted(np.array([1.0, 1e-60]), 1), jnp.dtype("float32")).weights[1] == 0
    task = fs.Task.from_arrays(TASK.loss, np.array(-1e300), [X])
    with pytest.raises(fs.InvalidInput, match=r"gives 1e\+300, which is infinite in float32"):
        fs.run(fs.FedAvg(0.1), task, rounds=1)


@pytest.mark.parametrize("deviation", ["alpha", "beta"])
def test_synthetic_data_whose_labels_would_be_rounding(deviation):
    with pytest.raises(fs.InvalidInput, match=f"{deviation} = 1e.200 must be finite and >= 0 and <= 1000000"):
        fs.tasks.synthetic(**{deviation: 1e200})
