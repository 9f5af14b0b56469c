"""Checkpoints that cannot be used are refused in words; nothing that exists is overwritten."""

from __future__ import annotations

import re
from dataclasses import replace

import jax
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.sampling import Uniform
from fedsolve.data.federated import FederatedData
from fedsolve.engine.checkpoint import Checkpoints
from fedsolve.engine.options import RunOptions
from fedsolve.engine.prepare import prepare
from fedsolve.engine.record import EvaluationSetup, Recorder
from fedsolve.folders import run_folder
from fedsolve.folders.files import locked
from fedsolve.folders.run_folder import RUN, RunFolder
from harness import make_clients, make_task

CHECKPOINT = RUN.file
TASK = make_task(make_clients())
LOOKS = EvaluationSetup(1, False, (), ())


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


@pytest.mark.full
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


@pytest.mark.full
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


def other_loss(params, batch):
    return TASK.loss(params, batch) * 1.0


def other_data(task):
    examples = task.data.examples
    x = examples.x.copy()
    x[5, 1] = np.nextafter(x[5, 1], 9.0)
    return replace(task, data=replace(task.data, examples=examples._replace(x=x)))


TASKS = {
    "data": other_data(TASK),
    "sizes": replace(TASK, data=replace(TASK.data, counts=np.array([7, 3, 12, 6, 8]))),
    "test": replace(TASK, test=TASK.data.client(0)),
    "start": replace(TASK, init=lambda key: jax.tree.map(lambda x: x * 1.5, TASK.init(key))),
    "loss": replace(TASK, loss=other_loss),
    "metrics": replace(TASK, metrics={"again": TASK.loss}),
    "eval_examples": replace(TASK, eval_examples=20),
}


@pytest.mark.full_rows("metrics", "test", "loss")
@pytest.mark.parametrize("what", TASKS)
def test_another_problem(folder, what):
    """One number of the data in its last bit, other sizes of the same sum, and so on: named, nothing is written."""
    refused(f"has {what} = .* resume as it was, or start again in another folder", folder, task=TASKS[what])


def test_another_version(folder, monkeypatch):
    """Another JAX is named as any difference is; of another fedsolve the one that reads the folder is named, first."""
    ours = f"fedsolve {fs.__version__}, jax 0, cpu"
    monkeypatch.setattr("fedsolve.engine.prepare.versions", lambda: ours)
    refused("has versions = python 3.* this run python 3.* jax 0, cpu: resume as it was", folder)
    monkeypatch.setattr("fedsolve.engine.prepare.versions", lambda: "fedsolve 9.9, jax 0, cpu")
    before = rf"written by fedsolve {re.escape(fs.__version__)}, and this is fedsolve 9\.9, whose results may differ"
    refused(
        f"{before}: resume it with fedsolve {re.escape(fs.__version__)}, or start again", folder, batch_size=3
    )


def test_another_commit_goes_on(folder, monkeypatch):
    """Whoever works on something else may resume: the version, the method's code and the data are compared."""
    monkeypatch.setattr("fedsolve.engine.identity._commit", lambda: ", commit 0123456789")
    assert run(folder, rounds=4, resume=True).rounds["round"][-1] == 4


def test_fewer_rounds_than_done(folder):
    """A run of 2 rounds is no run of 1: nothing is cut off."""
    before = (folder / CHECKPOINT).read_bytes()
    with pytest.raises(
        fs.InvalidInput, match="has done 2 rounds, rounds = 1 are asked for: ask for at least 2"
    ):
        run(folder, rounds=1, resume=True)
    assert (folder / CHECKPOINT).read_bytes() == before


@pytest.mark.full
def test_another_sweep(tmp_path):
    """Of a sweep likewise, and of the examples that it holds out."""
    task = replace(TASK, data=FederatedData.from_clients(make_clients((20, 30))))
    options = {"rounds": 2, "out": tmp_path / "sweep", "validation": 0.2}
    fs.sweep("FedAvg", task, {"client_lr": [0.1]}, **options)
    _, held_out = task.data.hold_out(0.2)
    row = int(np.flatnonzero((task.data.examples.x == held_out.x[0]).all(axis=1))[0])
    x = task.data.examples.x.copy()
    x[row] += 1
    other = replace(task, data=replace(task.data, examples=task.data.examples._replace(x=x)))
    for name, changed in {"held_out": other, "loss": replace(task, loss=other_loss)}.items():
        with pytest.raises(fs.InvalidInput, match=f"has {name} ="):
            fs.sweep("FedAvg", changed, {"client_lr": [0.1]}, resume=True, **options)


def test_a_folder_in_use(folder):
    with locked(folder):
        refused("in use", folder)


def test_a_folder_that_holds_a_run(folder):
    """Without resume the old run is not overwritten."""
    with pytest.raises(fs.InvalidInput, match="holds a run already"):
        run(folder)


@pytest.mark.parametrize(("name", "message"), [(None, "give out"), ("new", "no checkpoint")])
def test_resume_without_a_checkpoint(name, message, tmp_path):
    with pytest.raises(fs.InvalidInput, match=message):
        run(name and tmp_path / name, resume=True)


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(fs.InvalidInput, match="cannot write"):
        run(tmp_path / "file")


def test_saving_takes_a_twentieth_of_the_time_at_most(monkeypatch):
    """After a saving of 3 s the next is due 60 s later; after a short one in 2 s."""
    folder = RunFolder(hold=None, kind=RUN, identity={}, resume=False, _last=100.0, _took=3.0)
    for seconds, due in ((59, False), (61, True)):
        monkeypatch.setattr(run_folder.time, "monotonic", lambda now=100.0 + seconds: now)
        assert folder.due == due
    folder._took = 0.01
    assert folder.due


def test_a_resumed_run_holds_its_states_once(tmp_path):
    """The start that a checkpoint takes the place of is deleted before the file is read."""
    options = RunOptions(rounds=2, sampling=Uniform(2))
    prepared = prepare(fs.SCAFFOLD(0.1), make_task(make_clients()), options)
    with Checkpoints.at(tmp_path, {}, False) as checkpoints:
        checkpoints.save(prepared.state, Recorder())
    want = jax.tree.map(np.array, prepared.state)
    with Checkpoints.at(tmp_path, {}, True) as checkpoints:
        loaded, _ = checkpoints.restore(prepared.state, Recorder(), 2, LOOKS)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(prepared.state))
    for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(a, b)
