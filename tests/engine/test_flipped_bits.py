"""No bit of what a result leaves can be flipped unseen; other programs, and results of before, are read as ever."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save

import fedsolve as fs
from fedsolve.folders.sealed import sealed, unsealed
from fedsolve.results import record_files
from fedsolve.results.clients import CLIENT_METRICS, read_client_metrics
from fedsolve.results.columns import dumps
from fedsolve.results.record_files import HISTORY, METRICS, MODEL, ROUNDS

CLIENTS = [(np.eye(2)[[i % 2]], np.ones(1)) for i in range(3)]
TASK = fs.Task.from_arrays(lambda w, b: jnp.mean((b[0] @ w - b[1]) ** 2), jnp.zeros(2), CLIENTS)


@pytest.fixture(scope="module")
def result():
    return fs.run(fs.FedAvg(0.1), TASK, rounds=2)


EVERY = [pytest.param(False, id="a-bit-of-each-byte"), pytest.param(True, id="every", marks=pytest.mark.full)]
HEAD = 60  # bytes, with the checksum and its name: all of their bits are always tried


def flipped(path: Path, read, every: bool, apart: int = 8) -> int:
    """Bits of a file flipped, one after another: `read` must refuse each in a line that names the file."""
    whole = path.read_bytes()
    for at in range(8 * len(whole)):
        if not every and at >= 8 * HEAD and at % apart != at // apart % 8:
            continue
        damaged = bytearray(whole)
        damaged[at // 8] ^= 1 << at % 8
        path.write_bytes(damaged)
        with pytest.raises(fs.InvalidInput) as error:
            read(path.parent)
        text = str(error.value)
        assert path.name in text, (at, text)
        assert len(text.splitlines()) == 1, (at, text)
    path.write_bytes(whole)
    return len(whole)


@pytest.mark.gate("rounds.npz-a-bit-of-each-byte")
@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("name", [HISTORY, METRICS, MODEL, ROUNDS])
def test_every_bit_of_a_result(result, tmp_path, monkeypatch, name, every):
    monkeypatch.setattr(record_files, "_IN_TEXT", 1)
    folder = fs.callbacks.KeepBest("train_loss", tmp_path / "kept").folder
    result.save(folder)
    assert flipped(Path(folder) / name, fs.load, every) > 90
    again = fs.load(folder, TASK)
    np.testing.assert_array_equal(again.params, result.params)
    assert again.history == result.history


@pytest.mark.full
@pytest.mark.parametrize("every", EVERY)
def test_every_bit_of_a_sweep(tmp_path, every):
    pytest.importorskip("pyarrow")
    from fedsolve.results.sweep import CURVES, SUMMARY, TRIALS, load
    from fedsolve.results.sweep import save as save_sweep

    found = fs.sweep("FedAvg", TASK, {"client_lr": [0.1]}, rounds=1)
    folder = save_sweep(found, tmp_path)
    for name in (SUMMARY, TRIALS, CURVES):
        assert flipped(folder / name, load, every, apart=8 if name == SUMMARY else 40) > 300
    assert load(folder).notes == found.notes


def test_every_bit_of_what_clients_found(tmp_path):
    """A line that is cut short is passed over, as before; one of before there were checksums is read."""
    path = tmp_path / CLIENT_METRICS
    facts = {
        "round": 1,
        "steps": 0,
        "part": "train",
        "names": ["a"],
        "examples": [2],
        "metrics": {"loss": [0.5]},
    }
    line = sealed(dumps(facts))
    for text in (line, dumps(facts)):
        path.write_text(f"{line[:60]}\n{text}\n{line[:90]}")
        assert read_client_metrics(tmp_path)[1].metrics["loss"] == [0.5]
    path.write_text(line)
    assert flipped(path, read_client_metrics, every=False) > 100


def test_other_programs_read_the_files(result, tmp_path, monkeypatch):
    monkeypatch.setattr(record_files, "_IN_TEXT", 1)
    result.save(tmp_path)
    np.testing.assert_array_equal(load_file(tmp_path / MODEL)["params"], result.params)
    assert json.loads((tmp_path / HISTORY).read_text())["label"] == "FedAvg"
    assert len([json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]) == 3
    with np.load(tmp_path / ROUNDS, allow_pickle=False) as rounds:
        np.testing.assert_array_equal(rounds["round"], [1, 2])


def test_what_was_written_without_checksums_is_read_with_a_note(result, tmp_path):
    result.save(tmp_path)
    text, files = unsealed(tmp_path / HISTORY, (tmp_path / HISTORY).read_bytes())
    assert list(files or ()) == [METRICS]
    (tmp_path / HISTORY).write_text(text)
    model = {"params": np.asarray(result.params)}
    (tmp_path / MODEL).write_bytes(save(model, {"fedsolve": json.dumps({"task": "a", "method": "b"})}))
    again = fs.load(tmp_path, TASK)
    np.testing.assert_array_equal(again.params, result.params)
    note = "history.json and model.safetensors have no checksum, as fedsolve wrote them before it had these"
    assert again.history.notes[-1].startswith(note)
    assert dataclasses.replace(again.history, notes=result.history.notes) == result.history
    result.save(tmp_path)
    assert fs.load(tmp_path, TASK).history.notes == result.history.notes


@pytest.mark.full
def test_a_sweep_of_before_has_a_note(tmp_path):
    pytest.importorskip("pyarrow")
    from fedsolve.results.sweep import SUMMARY, load
    from fedsolve.results.sweep import save as save_sweep

    folder = save_sweep(fs.sweep("FedAvg", TASK, {"client_lr": [0.1]}, rounds=1), tmp_path)
    (folder / SUMMARY).write_text(unsealed(folder / SUMMARY, (folder / SUMMARY).read_bytes())[0])
    assert "have no checksum" in load(folder).notes[-1]


def test_a_log_of_another_run_is_refused(result, tmp_path, monkeypatch):
    """As long as its own, and whole."""
    monkeypatch.setattr(record_files, "_IN_TEXT", 1)
    result.save(tmp_path)
    other = io.BytesIO()
    np.savez_compressed(other, **{k: x + 1 for k, x in result.rounds.items()})
    (tmp_path / ROUNDS).write_bytes(other.getvalue())
    with pytest.raises(
        fs.InvalidInput, match=rf"{ROUNDS}, is missing or damaged \(it is not what was written"
    ):
        fs.load(tmp_path)
