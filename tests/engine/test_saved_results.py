"""A result saved and read again: equal, in the task's structure or by names; what is damaged or another's is named."""

from __future__ import annotations

import dataclasses
import shutil
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fedsolve as fs
from fedsolve.results.record_files import HISTORY, MODEL, ROUNDS

RNG = np.random.default_rng(0)
CLIENTS = [fs.Examples(RNG.normal(size=(8, 3)), RNG.normal(size=8)) for _ in range(4)]
START = [{"w": np.zeros(3)}, (np.zeros(()), np.zeros(2))]


def loss(m, b):
    return jnp.mean((b.x @ m[0]["w"] + m[1][0] - b.y) ** 2) + jnp.sum(m[1][1] ** 2)


def with_mean(m, b, buffers):
    value = jnp.mean((b.x @ m["w"] - buffers["mean"] - b.y) ** 2)
    return value, {"mean": 0.9 * buffers["mean"] + 0.1 * jnp.mean(b.y)}


TASK = fs.Task.from_arrays(loss, START, CLIENTS, batch_size=4)
KEEPING = fs.Task.from_arrays(
    with_mean, {"w": np.zeros(3)}, CLIENTS, batch_size=4, buffers={"mean": np.zeros(())}
)


@pytest.fixture
def saved(tmp_path):
    result = fs.run(fs.FedAvg(0.1), TASK, rounds=2)
    return result, result.save(tmp_path / "new" / "run")


@pytest.mark.full
def test_in_the_structure_of_the_task(saved):
    result, folder = saved
    again = fs.load(folder, TASK)
    assert again.history == result.history
    for a, b in ((again.params[0]["w"], result.params[0]["w"]), (again.params[1][0], result.params[1][0])):
        np.testing.assert_array_equal(a, b)
    assert isinstance(again.params[1], tuple)
    assert again.plot("loss") is not None


def test_by_names(saved):
    result, folder = saved
    params = fs.load(folder).params
    assert sorted(params) == ["0.w", "1.0", "1.1"]
    np.testing.assert_array_equal(params["0.w"], result.params[0]["w"])


@pytest.mark.full
def test_what_a_model_keeps(tmp_path):
    result = fs.run(fs.FedAvg(0.1), KEEPING, rounds=2)
    assert float(result.buffers["mean"]) != 0
    for task in (KEEPING, None):
        again = fs.load(result.save(tmp_path), task)
        np.testing.assert_array_equal(again.buffers["mean"], result.buffers["mean"])
        np.testing.assert_array_equal(again.params["w"], result.params["w"])
    with pytest.raises(fs.InvalidInput, match="has buffers, unlike the task"):
        fs.load(tmp_path, fs.Task.from_arrays(lambda m, b: jnp.mean(m["w"]), {"w": np.zeros(3)}, CLIENTS))


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize(
    ("damage", "task", "words"),
    [
        (lambda f: (f / HISTORY).unlink(), None, f"holds no {HISTORY}: give the folder of a finished run"),
        (lambda f: cut(f / HISTORY), None, rf"{HISTORY} is damaged \(it is not what was written"),
        (lambda f: (f / MODEL).unlink(), None, f"{MODEL} does not exist"),
        (lambda f: cut(f / MODEL), None, r"the model .* is corrupt \(it has"),
        (lambda f: (f / MODEL).write_bytes(b"{}"), None, "is not a model that fedsolve wrote, or is damaged"),
        (lambda f: None, KEEPING, "has no buffers, unlike the task"),
        (
            lambda f: None,
            fs.Task.from_arrays(lambda m, b: jnp.mean(m["w"]), {"w": np.zeros(3)}, CLIENTS),
            "has an unknown 0.w: it is of another task or model",
        ),
        (
            lambda f: None,
            fs.Task.from_arrays(loss, [{"w": np.zeros(4)}, (np.zeros(()), np.zeros(2))], CLIENTS),
            r"0.w has shape \(3,\) in .*, in the task \(4,\)",
        ),
    ],
)
def test_what_is_not_a_result_is_named(saved, damage, task, words):
    folder = saved[1]
    damage(folder)
    with pytest.raises(fs.InvalidInput, match=words) as raised:
        fs.load(folder, task)
    assert "\n" not in str(raised.value)


def test_the_log_of_many_rounds_is_a_file_of_its_own(saved):
    """A few bytes a round, the same numbers and types; a folder written again with fewer has none."""
    result, folder = saved
    count = 10_001
    rates = np.random.default_rng(0).random(count)
    rates[3] = np.nan
    rounds = {"round": np.arange(1, count + 1), "server_lr": rates, "participants": np.full(count, 4)}
    long = dataclasses.replace(result, history=dataclasses.replace(result.history, rounds=rounds))
    long.save(folder)
    assert (folder / HISTORY).stat().st_size < 3000
    found = fs.load(folder).rounds
    assert {name: x.dtype for name, x in found.items()} == {name: x.dtype for name, x in rounds.items()}
    for name, values in rounds.items():
        np.testing.assert_array_equal(found[name], values)
    for damage in (cut, lambda path: path.unlink()):
        long.save(folder)
        damage(folder / ROUNDS)
        with pytest.raises(fs.InvalidInput, match=rf"{ROUNDS}, is missing or damaged .*: restore a copy"):
            fs.load(folder)
    result.save(folder)
    assert not (folder / ROUNDS).exists()
    assert fs.load(folder).history == result.history


# A run that begins with a saved model: a new run, of which only the model is the former's.


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_a_run_begins_with_a_saved_model(saved, tmp_path):
    """A folder, a result and its parameters give the same bits: those of a task whose parameters they are."""
    result, folder = saved
    own = fs.Task.from_arrays(loss, result.params, CLIENTS, batch_size=4)
    wanted = fs.run(fs.FedAvg(0.1), own, rounds=3)
    for start in (str(folder), result, result.params, fs.load(folder), fs.load(folder).params):
        assert same(fs.run(fs.FedAvg(0.1), TASK, rounds=3, start=start).params, wanted.params)
    begun = fs.run(fs.FedAvg(0.1), TASK, rounds=3, start=folder, out=tmp_path / "b")
    assert begun.metrics["train_loss"][0] == pytest.approx(result.final("train_loss"), rel=1e-6)
    assert begun.notes[0] == "began with the model of run (FedAvg on custom, 2 rounds)"
    assert begun.history.settings["start"] == str(folder)
    assert tomllib.loads((tmp_path / "b" / "config.toml").read_text())["run"]["start"] == str(folder)
    assert "began with the model of run" in (tmp_path / "b" / "page.html").read_text()
    both = fs.compare([fs.FedAvg(0.1), fs.FedAdam(0.1)], TASK, rounds=3, start=folder)
    assert same(both["FedAvg"].params, wanted.params)


@pytest.mark.parametrize("in_memory", [False, True])
def test_it_is_resumed_without_the_former_folder(saved, in_memory, tmp_path):
    result, folder = saved
    start, out = result if in_memory else folder, tmp_path / "b"
    whole = fs.run(fs.FedAvg(0.1), TASK, rounds=3, start=start)
    fs.run(fs.FedAvg(0.1), TASK, rounds=1, start=start, out=out)
    with pytest.raises(fs.InvalidInput, match="b holds a run already"):
        fs.run(fs.FedAvg(0.1), TASK, rounds=3, start=start, out=out)
    shutil.rmtree(folder)
    resumed = fs.run(fs.FedAvg(0.1), TASK, rounds=3, start=start, out=out, resume=True)
    assert same(resumed.params, whole.params)
    assert resumed.notes[0] == whole.notes[0]
    other = [{"w": np.ones(3)}, (np.zeros(()), np.zeros(2))]
    with pytest.raises(fs.InvalidInput, match="has start = "):
        fs.run(fs.FedAvg(0.1), TASK, rounds=3, start=other, out=out, resume=True)
    assert same(fs.load(out, TASK).params, whole.params)
    # what a refused call was given has not replaced the copy
    again = fs.run(fs.FedAvg(0.1), TASK, rounds=4, start=tmp_path / "gone", out=out, resume=True)
    assert again.notes[0] == whole.notes[0]


def test_what_a_start_keeps_beside_its_parameters(tmp_path):
    result = fs.run(fs.FedAvg(0.1), KEEPING, rounds=2, out=tmp_path / "a")
    begun = fs.run(fs.FedAvg(0.1), KEEPING, rounds=1, start=tmp_path / "a")
    assert begun.metrics["train_loss"][0] == pytest.approx(result.final("train_loss"), rel=1e-6)
    frozen = fs.Task.from_arrays(loss, START, CLIENTS, freeze=("0.*",))
    trained = fs.run(fs.FedAvg(0.1), frozen, rounds=2)
    assert same(trained.params[0], START[0])
    assert not same(trained.params[1], START[1])
    began = fs.run(fs.FedAvg(0.1), frozen, rounds=1, start=trained)
    assert began.metrics["train_loss"][0] == pytest.approx(trained.final("train_loss"), rel=1e-6)


def other(**more):
    return fs.Task.from_arrays(loss, [{"w": np.ones(3)}, START[1]], CLIENTS, **more)


HUGE = [{"w": np.full(3, 1 + 1e-12)}, START[1]]
TABLES = [pd.DataFrame(CLIENTS[0].x, columns=list("abc")), pd.DataFrame(CLIENTS[0].x, columns=list("cba"))]
COLUMNS = [
    fs.Task.from_arrays(loss, START, [fs.Examples(x, CLIENTS[0].y)], predict=lambda m, x: x @ m[0]["w"])
    for x in TABLES
]


@pytest.mark.parametrize(
    ("task", "start", "words"),
    [
        (TASK, lambda: "nowhere", "start = 'nowhere': there is no such folder"),
        (TASK, lambda: {"w": np.zeros(3)}, "start has no 0.w: it is of another task or model"),
        (TASK, lambda: [{"w": np.zeros(4)}, START[1]], r"0.w has shape \(4,\) in start, in the task \(3,\)"),
        (TASK, lambda: HUGE, "0.w of start is float64, and float32 cannot hold it: round it, or train in float64"),
        (TASK, lambda: [{"w": np.full(3, np.nan)}, START[1]], "0.w of start has a number that is not finite"),
        (other(freeze=("0.*",)), lambda: START, "0.w does not train in the task custom and differs in start"),
        (TASK, lambda: fs.run(fs.FedAvg(0.1), TASK, rounds=1, seeds=2), "start has several runs or a sweep"),
        (KEEPING, lambda: fs.Result({"w": np.zeros(3)}, fs.run(fs.FedAvg(0.1), KEEPING, rounds=1).history, {}),
         "start has no mean"),
        (COLUMNS[1], lambda: fs.run(fs.FedAvg(0.1), COLUMNS[0], rounds=1), "was trained on the columns"),
    ],
)  # fmt: skip
def test_a_start_that_does_not_fit_is_refused(task, start, words):
    with pytest.raises(fs.InvalidInput, match=words):
        fs.run(fs.FedAvg(0.1), task, rounds=1, start=start())
