"""Models whose numbers are of 16 bits are refused, and those of several types are told: no type changes in silence."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.deploy.signature import float_type

X = np.ones((4, 3), np.float32)
HALVES = [jnp.bfloat16, np.float16]


def loss(params, x):
    return jnp.mean((x @ params["w"].astype(x.dtype) + params["b"].astype(x.dtype) - 1) ** 2)


def params(w, b=np.float32):
    return {"b": jnp.zeros((), b) if b is not np.float64 else np.zeros(()), "w": jnp.zeros(3, w)}


def run(start, **options):
    task = fs.Task("mine", lambda key: start, loss, fs.FederatedData.from_clients([X, X]))
    return fs.run(fs.FedAvg(0.1), task, rounds=1, batch_size=2, **options)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_models_of_16_bits_are_refused(half, dtype):
    words = f"the model of task mine has {np.dtype(half)} numbers in w: runs are in float32 or float64; convert it"
    with pytest.raises(fs.InvalidInput, match=words) as error:
        run(params(half), dtype=dtype)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("freeze", [(), ("b",)])
def test_also_beside_others_and_where_they_do_not_train(half, freeze):
    with pytest.raises(fs.InvalidInput, match=f"the model has {np.dtype(half)} numbers in b: "):
        fs.Task.from_arrays(loss, params(np.float32, half), [X], freeze=freeze)
    with pytest.raises(fs.InvalidInput, match=f"the model has {np.dtype(half)} numbers in b: "):
        float_type(params(np.float32, half))


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_modules_of_pytorch(name):
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(3, 2).to(getattr(torch, name))
    with pytest.raises(fs.InvalidInput, match=f"the module has {name} numbers in weight: runs are in"):
        fs.tasks.from_torch(module, torch.nn.functional.cross_entropy, [(X, np.array([0, 1, 0, 1]))])


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.full)])
def test_several_types_are_told(dtype):
    note = f"the model's leaves are of float32 and float64: all of them are {dtype} in this run"
    assert note in run(params(np.float32, np.float64), dtype=dtype).history.notes
    assert not run(params(np.float32), dtype=dtype).history.notes
