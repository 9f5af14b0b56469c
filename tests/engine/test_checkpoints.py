"""Checkpoints that cannot be used are refused in words; nothing that exists is overwritten."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.engine.checkpoint import CHECKPOINT
from fedsolve.lock import locked
from harness import FEATURES, make_clients, make_task

TASK = make_task(make_clients())


def run(folder, algorithm=None, task=TASK, rounds=2, **options):
    algorithm = fs.FedAvgM(0.1) if algorithm is None else algorithm
    return fs.run(algorithm, task, **({"rounds": rounds, "eval_every": 2, "out": folder} | options))


@pytest.fixture
def folder(tmp_path):
    run(tmp_path / "run")
    return tmp_path / "run"


def refused(match, folder, **options):
    before = (folder / CHECKPOINT).read_bytes() if (folder / CHECKPOINT).exists() else None
    with pytest.raises(fs.InvalidInput, match=match):
        run(folder, rounds=4, resume=True, **options)
    if before is not None:
        assert (folder / CHECKPOINT).read_bytes() == before


def test_resume_continues(folder):
    """Two rounds, resumed to four: the log has rounds 1 to 4 and the evaluations 0, 2, 4."""
    result = run(folder, rounds=4, resume=True)
    np.testing.assert_array_equal(result.rounds["round"], [1, 2, 3, 4])
    np.testing.assert_array_equal(result.metrics["round"], [0, 2, 4])


def test_another_spacing_of_evaluations_is_the_same_run(folder):
    """Evaluations decide no number: resumed with eval_every 3 instead of 2, the model has the same bits."""
    for a, b in zip(
        *(
            jax.tree.leaves(r.params)
            for r in (run(folder, rounds=4, resume=True, eval_every=3), run(None, rounds=4))
        ),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_a_finished_run_resumed_is_itself(folder):
    """Nothing left to do: same model, same record."""
    again = run(folder, resume=True)
    fresh = run(None)
    for a, b in zip(jax.tree.leaves(again.params), jax.tree.leaves(fresh.params), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(again.metrics["train_loss"], fresh.metrics["train_loss"])


def test_corrupt(folder):
    (folder / CHECKPOINT).write_bytes(b"not a checkpoint at all" * 100)
    refused("corrupt", folder)


@pytest.mark.parametrize("keep", [0, 4, 60, 0.5, -1])
def test_cut_short(folder, keep):
    """Cut to nothing, inside the header's length, inside the header, in the middle, before the last byte."""
    content = (folder / CHECKPOINT).read_bytes()
    size = int(keep * len(content)) if isinstance(keep, float) else keep
    (folder / CHECKPOINT).write_bytes(content[:size])
    refused("corrupt", folder)


def test_another_algorithm(folder):
    """FedAvgM saved it; FedAdam, and FedAvgM with another rate, may not continue it: the difference is
    named.
    """
    refused("algorithm", folder, algorithm=fs.FedAdam(0.1))
    refused("algorithm", folder, algorithm=fs.FedAvgM(0.2))


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"dtype": "float64"}, {"clients_per_round": 2}, {"epochs": 1}, {"batch_size": 2}],
)
def test_another_run(folder, change):
    """Whatever decides the numbers must be as it was; the first difference is named."""
    words = {"clients_per_round": "sampling"}
    refused(words.get(next(iter(change)), next(iter(change))), folder, **change)


def test_changed_shapes(folder):
    """The same clients with another model under the same name: the first leaf that differs, with both
    shapes.
    """

    def init(key):
        return {"weight": np.zeros((FEATURES, 3)), "more": np.zeros(2)}

    def loss(params, batch):
        return jax.numpy.mean(batch.x @ params["weight"]) + params["more"].sum()

    refused("belongs to another method or model", folder, task=replace(TASK, init=init, loss=loss))

    def wide(key):
        old = TASK.init(key)
        return old._replace(bias=np.zeros((2, 3)))

    def wide_loss(params, batch):
        return TASK.loss(params._replace(bias=params.bias.sum(axis=0)), batch)

    refused(r"bias has shape \(3,\)", folder, task=replace(TASK, init=wide, loss=wide_loss))


def test_a_folder_in_use(folder):
    with locked(folder):
        refused("in use", folder)


def test_a_folder_that_holds_a_run(folder):
    """Without resume the old run is not overwritten."""
    with pytest.raises(fs.InvalidInput, match="holds a run already"):
        run(folder)


def test_resume_without_a_folder():
    with pytest.raises(fs.InvalidInput, match="give out"):
        run(None, resume=True)


def test_resume_from_an_empty_folder(tmp_path):
    with pytest.raises(fs.InvalidInput, match="no checkpoint"):
        run(tmp_path / "new", resume=True)


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(fs.InvalidInput, match="cannot write"):
        run(tmp_path / "file")
