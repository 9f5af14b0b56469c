"""The record on the disk: a save costs what is new, and whatever a kill leaves, a checkpoint finds its record."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.engine.checks.methods import Traffic
from fedsolve.engine.compute.round import SENT
from fedsolve.engine.record import RECORD, Recorder, RecordFile, Rows
from harness import make_clients, make_task

TRAFFIC = Traffic((8, 3), 5)


def grow(recorder, rounds):
    """Some rounds and an evaluation more."""
    done = recorder.rounds.count
    logs = {
        "server_lr": np.linspace(0.1, 0.7, rounds, dtype=np.float32) + done,
        "participants": np.arange(rounds, dtype=np.int32) + 2,
        "empty": np.arange(rounds) % 2 == 1,
        SENT: np.ones((rounds, 2), np.int32) * np.arange(rounds)[:, None],
    }
    recorder.log(done, done + rounds, logs, TRAFFIC)
    recorder.seconds += 1.5
    recorder.evaluation(done + rounds, recorder.seconds, {"train_loss": 1.0 / 3 + done})
    return recorder


def history(recorder):
    return recorder.history("m", "t", {}, 0.0, ())


def test_columns():
    """Counts stay integers, rates are those of the program, bytes are counted by what each client sent."""
    got = history(grow(grow(Recorder(), 3), 2))
    np.testing.assert_array_equal(got.rounds["round"], [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(got.rounds["bytes_up"], [0, 11, 22, 0, 11])
    np.testing.assert_array_equal(got.rounds["bytes_down"], [10, 15, 20, 10, 15])
    np.testing.assert_array_equal(got.rounds["server_lr"][:3], np.linspace(0.1, 0.7, 3, dtype=np.float32))
    np.testing.assert_array_equal(got.evaluations["seconds"], [1.5, 3.0])
    kinds = {name: x.dtype.kind for name, x in got.rounds.items()}
    assert kinds == {k: "i" for k in kinds} | {"server_lr": "f"}


def test_a_column_that_comes_later_is_nan_before(tmp_path):
    """Also when the rows before were written without it, and where an integer column meets a row without it."""
    recorder, file = Recorder(), RecordFile(tmp_path)
    recorder.entry({"round": 1, "replies": 3})
    recorder.evaluation(1, 0.1, {"train_loss": 1.0})
    file.append(recorder)
    recorder.entry({"round": 2, "clip": 0.5})
    kept = RecordFile(tmp_path).restore(file.append(recorder))
    assert history(kept) == history(recorder)
    np.testing.assert_array_equal(history(kept).rounds["replies"], [3, np.nan])
    np.testing.assert_array_equal(history(kept).rounds["clip"], [np.nan, 0.5])


def test_totals_are_of_every_round():
    """Whatever has a row, and after the last evaluation too; a round without a count counts as 0 of it."""
    recorder = grow(grow(Recorder(), 3), 2)
    recorder.entry({"round": 6, "participants": 4, "rejected": 1, "bytes_up": 7})
    got = history(recorder)
    assert {name: x.tolist() for name, x in got.totals.items()} == {
        "round": [3, 5, 6],
        "participants": [9, 14, 18],
        "bytes_up": [33, 44, 51],
        "bytes_down": [45, 70, 70],
        "rejected": pytest.approx([np.nan, np.nan, 1], nan_ok=True),
    }
    assert (got.total("rejected"), got.total("bytes_up"), got.total("dropped")) == (1, 51, 0)
    assert recorder.total("participants") == 18


def test_a_record_from_before_there_were_totals(tmp_path):
    """Its rounds are counted again: each has a row."""
    recorder, file = grow(grow(Recorder(), 3), 2), RecordFile(tmp_path)
    recorder.totals, sums = Rows(), recorder.sums
    facts = {name: value for name, value in file.append(recorder).items() if name not in ("totals", "sums")}
    kept = RecordFile(tmp_path).restore(facts)
    assert kept.sums == sums
    assert history(kept) == history(grow(grow(Recorder(), 3), 2))
    assert history(grow(kept, 2)) == history(grow(grow(grow(Recorder(), 3), 2), 2))


def test_a_save_writes_what_is_new(tmp_path):
    recorder, file = grow(Recorder(), 1000), RecordFile(tmp_path)
    file.append(recorder)
    before = (tmp_path / RECORD).stat().st_size
    facts = file.append(grow(recorder, 1))
    assert (tmp_path / RECORD).stat().st_size == facts["bytes"] < before + 500
    assert len(str(facts)) < 200  # all of it that lies in the checkpoint


@pytest.mark.full
def test_killed_at_any_byte(tmp_path):
    """The file ends anywhere within the rows appended last: the checkpoint before them resumes, and goes on as if
    nothing had happened; the one after them is refused unless all is there.
    """
    recorder, file = grow(Recorder(), 3), RecordFile(tmp_path)
    first, want = file.append(recorder), history(recorder)
    second = file.append(grow(recorder, 2))
    content = (tmp_path / RECORD).read_bytes()
    assert len(content) == second["bytes"] > first["bytes"]
    for size in range(first["bytes"], second["bytes"]):
        (tmp_path / RECORD).write_bytes(content[:size])
        with pytest.raises(fs.InvalidInput, match="corrupt"):
            RecordFile(tmp_path).restore(second)
        again = RecordFile(tmp_path)
        kept = again.restore(first)
        assert history(kept) == want
        assert again.append(grow(kept, 2)) == second
        assert (tmp_path / RECORD).read_bytes() == content


def test_a_flipped_bit_is_found(tmp_path):
    file = RecordFile(tmp_path)
    facts = file.append(grow(Recorder(), 4))
    content = (tmp_path / RECORD).read_bytes()
    for i in range(0, len(content), 5):
        damaged = bytearray(content)
        damaged[i] ^= 1 << (i % 8)
        (tmp_path / RECORD).write_bytes(damaged)
        with pytest.raises(fs.InvalidInput, match=r"corrupt.*restore a copy, or start a new run") as caught:
            file.restore(facts)
        assert str(tmp_path / RECORD) in str(caught.value)
    (tmp_path / RECORD).unlink()
    with pytest.raises(fs.InvalidInput, match="cannot read the record"):
        file.restore(facts)


def test_a_new_run_starts_a_new_record(tmp_path):
    """What a run left that was killed before its first checkpoint is cut off."""
    RecordFile(tmp_path).append(grow(Recorder(), 9))
    file = RecordFile(tmp_path)
    facts = file.append(grow(Recorder(), 1))
    assert (tmp_path / RECORD).stat().st_size == facts["bytes"]
    assert history(RecordFile(tmp_path).restore(facts)) == history(grow(Recorder(), 1))


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    """What was written before is intact, and the next save goes on from there."""
    import os

    recorder, file = grow(Recorder(), 2), RecordFile(tmp_path)
    first = file.append(recorder)
    grow(recorder, 2)

    def full(handle):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(fs.InvalidInput, match="No space left on device; what was saved before is intact"):
            file.append(recorder)
    assert RecordFile(tmp_path).restore(first).rounds.count == 2
    assert RecordFile(tmp_path).restore(file.append(recorder)).rounds.count == 4


def test_seconds_of_a_resumed_run_go_on(tmp_path, monkeypatch):
    """The first part took hours by its clock: evaluations after it come later still."""
    hours = itertools.count(0.0, 3600.0)
    task = make_task(make_clients())
    with monkeypatch.context() as patch:
        patch.setattr("fedsolve.engine.loop.time", SimpleNamespace(perf_counter=lambda: next(hours)))
        first = fs.run(fs.FedAvg(0.3), task, rounds=2, eval_every=1, out=tmp_path / "run")
    both = fs.run(fs.FedAvg(0.3), task, rounds=4, eval_every=1, out=tmp_path / "run", resume=True)
    seconds = both.history.evaluations["seconds"]
    np.testing.assert_array_equal(seconds[:3], first.history.evaluations["seconds"])
    assert seconds[2] >= 3600
    assert (np.diff(seconds) >= 0).all()
