"""Paths, callbacks and types that are none: each is refused in one line that names the argument."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs

CLIENTS = [np.ones((4, 2), "f4"), np.zeros((3, 2), "f4")]


def loss(w, b):
    return jnp.mean((b @ w - 1.0) ** 2)


TASK = fs.Task.from_arrays(loss, jnp.zeros(2), CLIENTS)
NUL = "a\0b"


def run(**options):
    return fs.run(**{"algorithm": fs.FedAvg(), "task": TASK, "rounds": 1} | options)


def called_with(callback):
    return lambda: run(callbacks=[callback])


def task(**parts):
    return fs.Task.from_arrays(**{"loss": loss, "params": jnp.zeros(2), "clients": CLIENTS} | parts)


class EndsWith3:
    ended = 3

    def __call__(self, at):
        pass


CALLS = {
    "out": (lambda: run(out=NUL), "out = "),
    "KeepBest text": (lambda: fs.callbacks.KeepBest("train_loss", NUL), "folder = "),
    "KeepBest": (lambda: fs.callbacks.KeepBest("train_loss", 3), "folder = 3 must be a path"),
    "load": (lambda: fs.load(3), "folder = 3"),
    "load text": (lambda: fs.load(NUL), "folder = "),
    "load task": (lambda: fs.load("x", 3), "task = 3 must be a fedsolve.Task"),
    "open": (lambda: fs.data.open(3), "folder = 3"),
    "write": (lambda: fs.data.write(TASK.data, 3), "folder = 3"),
    "write names": (lambda: fs.data.write(CLIENTS, "x", names=3), "names are an int"),
    "npz": (lambda: fs.data.read_npz(3, ["x"]), "path = 3"),
    "data_dir": (lambda: fs.data.data_dir(3), "data_dir = 3"),
    "EachClient": (lambda: fs.callbacks.EachClient(rounds=3), "rounds = 3 must be a list"),
    "EachClient text": (lambda: fs.callbacks.EachClient(rounds="ab"), "rounds = 'ab'"),
    "EachClient flag": (lambda: fs.callbacks.EachClient(unseen=3), "unseen = 3"),
    "FineTuning": (lambda: fs.callbacks.FineTuning(1, 0.1, rounds=[0.5]), "a round = 0.5"),
    "a class": (called_with(fs.callbacks.EarlyStopping), r"EarlyStopping is a class: .*EarlyStopping\(\.\.\.\)"),
    "no argument": (called_with(lambda: None), "<lambda>.* must take one argument, the evaluation"),
    "two arguments": (called_with(lambda a, b: None), "must take one argument"),
    "ended": (called_with(EndsWith3()), "`ended` of .*EndsWith3"),
    "of no seed": (lambda: run(seeds=2, callbacks=lambda: []), "must be a function of the seed"),
    "complex loss": (lambda: run(task=task(loss=lambda w, b: 1j * jnp.mean(b @ w))), "type complex64"),
    "long": (lambda: task(clients=[np.ones((2, 2), np.longdouble)]), "convert it to float64"),
    "mixed keys": (lambda: task(params={"a": jnp.zeros(2), 1: jnp.zeros(2)}), "keys of several types"),
    "shapes": (lambda: task(params=jax.ShapeDtypeStruct((2,), jnp.float32)), "without values"),
    "groups": (
        lambda: fs.FederatedData.from_groups(np.ones(3), np.array([1, "a", 2.5], object)),
        "ids of several types",
    ),
    "groups NaN": (lambda: fs.FederatedData.from_groups(np.ones(3), np.array([1, 2, np.nan])), "example 2"),
    "metric": (lambda: task(metrics={"a\nb": loss}), "text on one line"),
    "alone": (lambda: fs.baselines.alone(TASK, "a"), "client = 'a'"),
    "fista": (lambda: fs.baselines.fista(3), "task = 3 must be a fedsolve.Task"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_refused_in_one_line(name):
    call, words = CALLS[name]
    with pytest.raises(fs.InvalidInput, match=words) as error:
        call()
    assert "\n" not in str(error.value)


def test_a_result_is_written_to_paths_alone(tmp_path):
    result = run()
    for write, path, words in (
        (result.save, 3, "folder = 3 must be a path"),
        (result.save, None, "folder = None"),
        (result.to_csv, 3, "path = 3"),
        (result.to_csv, "/", "cannot write to /: it is a folder"),
        (result.to_csv, tmp_path, "it is a folder"),
    ):
        with pytest.raises(fs.InvalidInput, match=words):
            write(path)


def test_parameters_without_numbers_run_beside_others():
    empty = task(params={"w": jnp.zeros(2), "none": jnp.zeros((0, 3))}, loss=lambda p, b: loss(p["w"], b))
    assert run(task=empty).params["none"].shape == (0, 3)


@pytest.mark.parametrize(
    ("kind", "package"),
    [("TensorBoard", "tensorboardX"), pytest.param("WandB", "wandb", marks=pytest.mark.full)],
)
def test_trackers_want_paths(kind, package):
    pytest.importorskip(package)
    with pytest.raises(fs.InvalidInput, match="folder = 3 must be a path"):
        getattr(fs.trackers, kind)(3)


@pytest.mark.parametrize(
    ("uri", "words"), [(3, "uri = 3 must be text"), ("nope://x", "MLflow does not take")]
)
def test_mlflow_wants_an_address_that_it_knows(uri, words):
    pytest.importorskip("mlflow")
    with pytest.raises(fs.InvalidInput, match=words):
        fs.trackers.MLflow(uri)
