"""Folders that version 0.1.0 left are read, or refused by a line that names the version that reads them."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from store import METHOD, problem

import fedsolve as fs
from fedsolve.cli.main import main

STORED = Path(__file__).parent / "0.1.0"


def command(*words: str | Path) -> int:
    """A command of fedsolve, in this process: its exit code."""
    return main([str(word) for word in words])


def test_a_result_is_the_run_of_today():
    loaded = fs.load(STORED / "result", problem())
    again = fs.run(METHOD, problem(), rounds=4, dtype="float64")
    np.testing.assert_allclose(loaded.params["w"], again.params["w"], rtol=1e-12)
    np.testing.assert_allclose(loaded.metrics["train_loss"], again.metrics["train_loss"], rtol=1e-12)
    assert loaded.history.total("bytes_up") == again.history.total("bytes_up")


def test_the_results_of_seeds_are_read():
    stored = fs.load(STORED / "seeds", problem())
    assert stored.seeds == (0, 1)
    again = fs.run(METHOD, problem(), rounds=4, seeds=2, dtype="float64")
    np.testing.assert_allclose(stored.final("train_loss"), again.final("train_loss"), rtol=1e-12)


def test_stored_data_are_read():
    data = fs.data.open(STORED / "data")
    assert list(data.names) == ["north", "south", "west"]
    for i in range(3):
        for left, right in zip(data.client(i), problem().data.client(i), strict=True):
            np.testing.assert_array_equal(left, right)


def test_a_sweep_is_shown(capsys):
    assert command("show", STORED / "sweep") == 0
    assert "client_lr" in capsys.readouterr().out
    assert fs.load(STORED / "sweep").selection.last == 100  # the rule that it was made with


def test_a_run_is_repeated_from_its_configuration(tmp_path, monkeypatch):
    monkeypatch.setattr("fedsolve.cli.folders.can_draw", lambda: False)
    assert command("run", "--config", STORED / "run" / "config.toml", "--out", tmp_path / "again") == 0
    left, right = (fs.load(folder).metrics["train_loss"] for folder in (STORED / "run", tmp_path / "again"))
    np.testing.assert_allclose(left, right, rtol=1e-4)


def test_a_run_is_not_gone_on_with_and_the_line_names_the_version(tmp_path, capsys):
    shutil.copytree(STORED / "run", tmp_path / "run")
    before = (tmp_path / "run" / "checkpoint.safetensors").read_bytes()
    assert command("run", "--resume", tmp_path / "run", "--rounds", "3") == 2
    assert "0.1.0" in capsys.readouterr().err
    assert (tmp_path / "run" / "checkpoint.safetensors").read_bytes() == before


@pytest.mark.full
def test_a_deployment_goes_on_with_the_bits_of_one_that_was_never_stopped(tmp_path):
    pytest.importorskip("flwr")
    from deploy_small import deploy

    shutil.copytree(STORED / "deployment", tmp_path / "stored")
    (tmp_path / "new").mkdir()
    models = []
    for name, resume in (("stored", True), ("new", False)):
        model, history, _ = deploy(fs.SCAFFOLD(0.1), tmp_path / name, rounds=5, resume=resume)
        assert list(history.rounds["round"]) == [1, 2, 3, 4, 5]
        assert history.rounds["participants"].sum() == 30
        models.append(model)
    for left, right in zip(*map(jax.tree.leaves, models), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-12)
