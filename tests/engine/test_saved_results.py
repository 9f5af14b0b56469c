"""A result saved and read again: equal, in the task's structure or by names; what is damaged or another's is named."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
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
