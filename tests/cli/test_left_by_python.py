"""Folders of `fs.run` and `fs.compare` are shown; what cannot be run from them says so."""

from __future__ import annotations

import dataclasses
import json
import re
import threading

import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.cli.configuration.config import load
from fedsolve.cli.main import main
from fedsolve.engine import scheduler as at_once
from fedsolve.folders.files import STOP
from fedsolve.geometry import L1

DRAW = np.random.default_rng(0)
CLIENTS = [fs.Examples(DRAW.normal(size=(8, 3)), DRAW.normal(size=8)) for _ in range(4)]
TASK = fs.Task.from_arrays(
    lambda w, b: jnp.mean((b.x @ w["w"] - b.y) ** 2), {"w": np.zeros(3)}, CLIENTS, batch_size=4
)
METHODS = {"plain": fs.FedAvg(0.1), "own": fs.FedOpt(fs.client.SGD(0.1), fs.server.Adaptive(0.01))}


def compare(folder, **options):
    return fs.compare(METHODS, TASK, out=folder, **({"rounds": 4} | options))


def shown(capsys, folder):
    assert main(["show", str(folder), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.full
def test_a_comparison_is_shown(tmp_path, capsys):
    compare(tmp_path, seeds=2)
    document = shown(capsys, tmp_path)
    assert document["status"] == "finished"
    assert [m["label"] for m in document["methods"]] == [
        f"{label}, seed {seed}" for label in METHODS for seed in (0, 1)
    ]
    assert main(["show", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "method own: FedOpt(local=SGD(lr=0.1" in " ".join(text.split())
    assert "task: custom, 4 clients" in text
    assert "method plain" not in text


@pytest.mark.full
def test_what_a_run_had_is_in_its_configuration(tmp_path):
    fs.run(
        fs.FedAvg(0.1),
        TASK,
        rounds=3,
        sampling=fs.sampling.Bernoulli(0.5),
        dtype="float64",
        out=tmp_path / "a",
    )
    config = load(tmp_path / "a")
    assert (config.run.rounds, config.run.participation, config.run.dtype) == (3, 0.5, "float64")
    assert [m.name for m in config.method] == ["FedAvg"]
    weights = fs.sampling.Weighted(np.ones(4), 2)
    fs.run(fs.FedAvg(0.1), TASK, rounds=2, sampling=weights, out=tmp_path / "b")
    assert set(load(tmp_path / "b").unnamed) == {"task", "sampling"}


@pytest.mark.full
def test_an_interrupted_comparison_says_how_it_goes_on(tmp_path, capsys, monkeypatch):
    """The second method, which may run meanwhile, begins no round before the first is asked to stop."""
    asked, run_rounds = threading.Event(), at_once.run_rounds

    def callbacks(label):
        def stop(at):
            if at.round == 2:
                (tmp_path / "plain" / STOP).touch()
                asked.set()

        return [stop] if label == "plain" else []

    def own_waits(prepared, *rest):
        if prepared.label == "own":
            assert asked.wait(60)
            raise fs.Interrupted("before its first round")
        return run_rounds(prepared, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(at_once, "run_rounds", own_waits)
        with pytest.raises(fs.Interrupted):
            compare(tmp_path, callbacks=callbacks, eval_every=1)
    assert main(["show", str(tmp_path)]) == 0
    text = " ".join(capsys.readouterr().out.split())

    assert re.search(r"plain: unfinished, [23] of 4 rounds", text)
    assert "own: waiting" in text
    assert "resume=True" in text
    compare(tmp_path, resume=True, eval_every=1)
    assert shown(capsys, tmp_path)["status"] == "finished"


def test_it_is_not_run_from_its_configuration(tmp_path, capsys):
    compare(tmp_path)
    for words in (["compare", "--config", str(tmp_path)], ["compare", "--resume", str(tmp_path)]):
        assert main(words) == 2
        assert (
            "was written by a Python script, and a configuration cannot name its task, method own: run"
            in capsys.readouterr().err
        )


@pytest.mark.full
def test_what_the_catalogues_name_is_run_again_and_gone_on_with(tmp_path, capsys, no_pictures):
    """One of each: a held-out share, a partition, an option that is no default, a penalty, a rate by round."""
    task = fs.tasks.digits(20, partition=fs.data.Dirichlet(0.5), model="softmax").hold_out(0.1)
    method = fs.FedMiD(L1(1e-4).on("weight"), fs.schedules.Exponential(0.1, 0.9))
    options = {"rounds": 2, "sampling": fs.sampling.Bernoulli(0.5), "dtype": "float64"}
    fs.run(method, task, out=tmp_path / "one", seed=3, **options)
    assert main(["run", "--config", str(tmp_path / "one"), "--out", str(tmp_path / "two")]) == 0
    one, two = fs.load(tmp_path / "one"), fs.load(tmp_path / "two")
    for name in ("weight", "bias"):
        np.testing.assert_array_equal(one.params[name], two.params[name])
    assert one.history.final("validation_loss") == two.history.final("validation_loss")
    assert main(["run", "--resume", str(tmp_path / "one")]) == 0
    fs.compare({"a": method, "b": method}, task, out=tmp_path / "both", **options)
    assert main(["compare", "--resume", str(tmp_path / "both")]) == 0
    assert "finished before" in capsys.readouterr().err


def test_a_task_that_was_changed_afterwards_has_no_name(tmp_path):
    """`replace` may change anything; an option may be a model of the user's own."""
    task = fs.tasks.digits(20, model=fs.tasks.Softmax(64, 10))
    assert task.made_by.options.keys() == {"num_clients", "model"}
    fs.run(fs.FedAvg(), task, rounds=1, out=tmp_path / "own")
    assert set(load(tmp_path / "own").unnamed) == {"task option model"}
    assert dataclasses.replace(task, batch_size=3).made_by is None
    assert task.hold_out(0.1, by="client").made_by is task.hold_out(0.1, seed=1).made_by is None


def test_a_refused_run_leaves_the_folder_of_another_as_it_was(tmp_path):
    compare(tmp_path)
    before = (tmp_path / "config.toml").read_bytes()
    with pytest.raises(fs.InvalidInput, match="holds a comparison already"):
        compare(tmp_path, rounds=9)
    assert (tmp_path / "config.toml").read_bytes() == before
