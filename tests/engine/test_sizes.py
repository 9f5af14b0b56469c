"""What a run needs is compared with what there is before anything is compiled: refused with the remedy, or said."""

from __future__ import annotations

import shutil
from collections import namedtuple

import pytest

import fedsolve as fs
from fedsolve.engine.compute import layout
from fedsolve.engine.options import RunOptions
from fedsolve.engine.prepare import prepare
from harness import make_clients, make_task

MODEL = 4 * 15  # bytes of the harness's model, which has 15 numbers
SHORT = {
    # FedAdam's server keeps the model and two of its size, the run that before; a client its own and a gradient
    "a smaller model, or one in parts": (fs.FedAdam(0.1), {"clients_per_round": 1}, 6 * MODEL),
    "a smaller chunk": (fs.FedAvg(0.1), {"chunk": 5}, 2 * MODEL + 2 * 5 * MODEL),
    "fewer clients a round": (
        fs.robust.Robust(fs.FedAvg(0.1), fs.robust.Median()),
        {"chunk": 1},
        2 * MODEL + 2 * MODEL + 5 * MODEL,
    ),
    "residency = 'stream', or a method that keeps none": (
        fs.SCAFFOLD(0.1),
        {"chunk": 1, "clients_per_round": 1},
        (2 + 1 + 2 + 5) * MODEL,
    ),
}


@pytest.mark.parametrize("remedy", SHORT)
def test_a_run_that_no_memory_holds_is_refused(remedy, monkeypatch):
    """With the remedy for its largest part; with as much as its parts add up to it is not."""
    algorithm, options, enough = SHORT[remedy]
    work = make_task(make_clients())

    def tried(free: int) -> None:
        monkeypatch.setattr(layout, "free_bytes", lambda: free)
        prepare(algorithm, work, RunOptions(rounds=1, **options))

    tried(enough + 100)  # a few numbers beside the arrays of a model's size
    with pytest.raises(fs.InvalidInput, match=f"memory at least .* are free: take {remedy}"):
        tried(enough - 1)


def test_what_it_needs_is_said(monkeypatch):
    """In the run's notes where it is a part of the memory that matters, and not of a small run."""
    work = make_task(make_clients())
    assert not fs.run(fs.FedAvg(0.1), work, rounds=1).history.notes
    monkeypatch.setattr(layout, "total_bytes", lambda: 20_000)
    (note,) = fs.run(fs.SCAFFOLD(0.1), work, rounds=1, chunk=2).history.notes
    assert note.startswith("it needs 0.0 MB of 0.0 MB of memory at least: ")
    for part in ("examples", "the server's state and the model", "2 clients side by side", "clients' states"):
        assert f"for {part}" in note


@pytest.mark.full
def test_a_disk_without_room_is_refused(monkeypatch, tmp_path):
    """Before the first round: for a checkpoint, and for the states of as many clients as will take part."""
    work, usage = make_task(make_clients()), namedtuple("usage", "total used free")
    free = 10_000
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10**6, 0, free))
    fs.run(fs.SCAFFOLD(0.1), work, rounds=1, out=tmp_path / "fits")
    streamed = {"residency": "stream", "clients_per_round": 1}
    free = 4 * MODEL - 1  # 20 rounds of one of five: 4.94 clients are expected, each with a control variate
    with pytest.raises(fs.InvalidInput, match=r"for the states of clients that take part.*fewer rounds"):
        fs.run(fs.SCAFFOLD(0.1), work, rounds=20, **streamed)
    free = 2 * MODEL
    with pytest.raises(fs.InvalidInput, match=r"for a checkpoint\), and the disk of .*kept has"):
        fs.run(fs.FedAdam(0.1), work, rounds=1, out=tmp_path / "kept")
    free = 4 * MODEL - 1
    fs.run(fs.SCAFFOLD(0.1), work, rounds=1, **streamed)  # one client takes part
