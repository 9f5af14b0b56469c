"""What users of networks get wrong, as they meet it: one clear line each, before anything is compiled."""

from __future__ import annotations

import inspect

import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.errors import InvalidInput
from fedsolve.data.sources import VARIABLE
from fedsolve.tasks import Examples, NextToken, build
from fedsolve.tasks.catalogue import TASKS

RNG = np.random.default_rng(0)
CLIENTS = [(RNG.normal(size=(n, 3)), RNG.normal(size=n)) for n in (4, 2)]
MODEL = {"body": np.ones(3), "head": np.zeros(())}


def squared(model, batch):
    return jnp.mean((batch[0] @ model["body"] + model["head"] - batch[1]) ** 2)


def misspelt(model, batch, kye):
    return squared(model, batch)


def growing(model, batch, buffers, weights=None):
    return squared(model, batch), {"mean": jnp.zeros(4)}


def bigrams(params, x):
    return params["table"][x]


def sequences(*rows):
    y = np.array(rows)
    return Examples(y, y)


def next_tokens(clients, **more):
    return fs.Task.from_arrays(NextToken(bigrams), {"table": np.zeros((4, 4))}, clients, **more)


FULL, EMPTY = sequences([1, 2], [3, 0]), sequences([1, 2], [0, 0])

CASES = {
    "a misspelt key": (
        lambda: fs.run(fs.FedAvg(), fs.Task.from_arrays(misspelt, MODEL, CLIENTS), rounds=1),
        r"unknown argument of the loss.* 'kye': did you mean 'key'\?",
    ),
    "buffers that change shape": (
        lambda: fs.run(
            fs.FedAvg(),
            fs.Task.from_arrays(growing, MODEL, CLIENTS, buffers={"mean": np.zeros(3)}),
            rounds=1,
        ),
        r"the loss of task custom changes mean of its buffers from shape \(3,\) float32 to \(4,\) float32: ",
    ),
    "a frozen pattern that matches nothing": (
        lambda: fs.Task.from_arrays(squared, MODEL, CLIENTS, freeze=("bodi",)),
        r"freeze = 'bodi' matches no leaf of the model's 2 floating-point arrays: the nearest paths are body",
    ),
    "bfloat16 on a float64 run": (
        lambda: fs.run(
            fs.FedAvg(),
            fs.Task.from_arrays(squared, MODEL, CLIENTS),
            rounds=1,
            dtype="float64",
            matmul_dtype="bfloat16",
        ),
        r"matmul_dtype = 'bfloat16' in a run of dtype = 'float64'.* or run in float32",
    ),
    "a client's sequence of length 0": (
        lambda: next_tokens([FULL, EMPTY]),
        r"row 1 of client 1 is a sequence of length 0: drop it, or give its y a token besides padding",
    ),
    "beside frozen leaves": (
        lambda: fs.Task.from_arrays(
            NextToken(lambda p, x: p["table"][x] + p["bias"]),
            {"table": np.zeros((4, 4)), "bias": np.zeros(4)},
            [EMPTY],
            freeze=("bias",),
        ),
        r"row 1 of client 0 is a sequence of length 0",
    ),
    "of the test set": (
        lambda: next_tokens([FULL], test=EMPTY),
        r"row 1 of the test set is a sequence of length 0",
    ),
    "of an unseen client": (
        lambda: next_tokens([FULL], unseen=[FULL, FULL, EMPTY]),
        r"row 1 of unseen client 2 is a sequence of length 0",
    ),
    "sequences without a place": (
        lambda: next_tokens([Examples(np.zeros((2, 0), int), np.zeros((2, 0), int))]),
        r"row 0 of client 0 is a sequence of length 0",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_clear_line(name):
    call, message = CASES[name]
    with pytest.raises(InvalidInput, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", [n for n, e in TASKS.items() if "data_dir" in inspect.signature(e.builder).parameters]
)
def test_absent_data_say_where_they_come_from(name, tmp_path, monkeypatch):
    """An empty folder, and none at all."""
    with pytest.raises(InvalidInput, match=r"does not exist: .*`fedsolve data` says how") as caught:
        build(name, data_dir=tmp_path)
    assert str(tmp_path) in str(caught.value)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("fedsolve.tasks.ready.idx_images.DEBIAN", tmp_path / "none")
    with pytest.raises(InvalidInput, match=rf"{VARIABLE}.*`fedsolve data") as caught:
        build(name)
    assert "\n" not in str(caught.value)
