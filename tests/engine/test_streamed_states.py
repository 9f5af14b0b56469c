"""Clients' states in a file: what was never written costs nothing, and a run killed anywhere goes on alike."""

import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.engine import streaming as stream
from fedsolve.engine.streaming import ClientStates
from fedsolve.folders import logs as row_file
from fedsolve.folders import run_folder
from harness import make_clients, make_task

FIRST = {"a": np.array([[1.5, -2.0]], np.float32), "b": (np.int8(3), np.array(True))}


def states(values):
    values = np.asarray(values)
    return {
        "a": np.stack([FIRST["a"] * np.float32(v) for v in values]),
        "b": (values.astype(np.int8), values > 2),
    }


def read(kept, clients):
    return kept.read(np.array(clients), len(clients))


def write(kept, clients, values):
    read(kept, clients)
    kept.write(states(values))


def same(found, wanted):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


def test_rows_come_back_and_who_never_came_has_none(tmp_path):
    kept = ClientStates(tmp_path, FIRST, 10**6, lasting=False)
    kept.begin()
    write(kept, [3, 4, 5, 70, 999_999], [1, 2, 3, 4, 5])
    write(kept, [4, 6, 999_999], [8, 9, 6])
    same(read(kept, [3, 999_999]), states([1, 6]))
    same(read(kept, [2, 4, 6]), jax.tree.map(lambda x, y: np.stack([x, *y]), FIRST, states([8, 9])))
    assert os.stat(tmp_path / "clients.states").st_size == 6 * ROW
    kept.close()


def opened(folder, known=None):
    kept = ClientStates(folder, FIRST, 100, lasting=True)
    if known is None:
        kept.begin()
    else:
        kept.restore(known)
    return kept


def checkpoint(kept):
    kept.commit()
    known = jax.tree.map(np.array, kept.known)
    kept.committed()
    return known


def begun(folder):
    """States with two checkpoints, behind which three clients have changed, two of them read before; what it knows."""
    kept = opened(folder)
    write(kept, [9, 2], [3, 3])
    checkpoint(kept)
    write(kept, [1, 2], [1, 2])
    known = checkpoint(kept)
    kept.write(states([5, 6]))
    write(kept, [2, 3], [7, 7])
    write(kept, [2], [8])
    kept.close()
    return known


def test_a_run_goes_on_with_what_its_checkpoint_knows(tmp_path):
    """Twice, since the second time rows are free that the first one left."""
    known = begun(tmp_path)
    for _ in range(2):
        kept = opened(tmp_path, jax.tree.map(np.array, known))
        same(read(kept, [1, 2, 9]), states([1, 2, 3]))
        same(read(kept, [3]), jax.tree.map(lambda x: np.stack([x]), FIRST))
        write(kept, [1, 2, 3, 9], [9, 9, 9, 9])
        kept.close()
    assert os.stat(tmp_path / "clients.states").st_size <= 7 * ROW


def test_rows_are_used_again(tmp_path):
    kept = opened(tmp_path)
    for value in range(20):
        write(kept, [1, 2, 3], [value, value + 1, value])
        checkpoint(kept)
    same(read(kept, [1, 2]), states([19, 20]))
    kept.close()
    assert os.stat(tmp_path / "clients.states").st_size == 6 * ROW


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 8
    path.write_bytes(content)


ROW = 10
DAMAGE = {
    "a flipped state": (lambda d: flip(d / "clients.states", 2), "the state of client 9"),
    "cut short": (lambda d: os.truncate(d / "clients.states", 35), "35 bytes, not 40"),
    "gone": (lambda d: (d / "clients.states").unlink(), "No such file"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named(tmp_path, case):
    known = begun(tmp_path)
    damage, words = DAMAGE[case]
    damage(tmp_path)
    with pytest.raises(fs.InvalidInput, match=words) as error:
        read(opened(tmp_path, known), [0, 1, 2, 9])
    assert "\n" not in str(error.value)


TASK = make_task(make_clients(sizes=[2, 3, 1, 4, 2, 5, 3, 2, 1, 2, 4, 3]))


class Killed(BaseException):
    pass


def run(folder, resume=False, residency="stream"):
    options = {"rounds": 12, "clients_per_round": 2, "eval_every": 4, "residency": residency}
    return fs.run(fs.SCAFFOLD(0.1), TASK, out=folder, resume=resume, **options)


@pytest.fixture
def often(monkeypatch):
    """A checkpoint after every call, windows of a few rounds, calls of one."""
    monkeypatch.setattr(run_folder.RunFolder, "due", property(lambda self: True))
    monkeypatch.setattr("fedsolve.engine.loop._CALL_SECONDS", 1e-9)
    monkeypatch.setattr(stream, "WINDOW_BYTES", 2**8)


@pytest.mark.full
def test_killed_anywhere_it_goes_on_with_the_same_bits(often, tmp_path, monkeypatch):
    """At every kind of writing, before, in the middle and after; killed and resumed until it is through."""
    whole = run(None)
    writes = 0

    def dying(at):
        calls = itertools.count()

        def write_all(file, content):
            call = next(calls)
            if call == at:
                file.write(memoryview(content)[: len(content) // 2])
                raise Killed
            file.write(content)

        return write_all

    for step in (5, 11, 17):
        folder, resume = tmp_path / str(step), False
        for kill in itertools.count():
            write_all = dying(step + kill % 3)
            with monkeypatch.context() as patch:
                patch.setattr(row_file, "write_all", write_all)
                try:
                    result = run(folder, resume)
                    break
                except Killed:
                    writes += 1
            resume = (folder / "checkpoint.safetensors").exists()
        same(result.params, whole.params)
        for name in ("train_loss", "client_loss_worst"):
            np.testing.assert_array_equal(result.metrics[name], whole.metrics[name])
    assert writes > 6


def test_a_checkpoint_and_its_states_belong_together(often, tmp_path):
    run(tmp_path / "run")
    with pytest.raises(fs.InvalidInput, match="give residency = 'stream'"):
        run(tmp_path / "run", resume=True, residency="device")
    os.truncate(tmp_path / "run" / "clients.states", 8)
    with pytest.raises(fs.InvalidInput, match="8 bytes, not"):
        run(tmp_path / "run", resume=True)


@pytest.mark.full
def test_two_runs_on_one_store_of_states(often, tmp_path):
    """The second is refused whatever it asks for, and the first goes on."""
    refused = []

    def second(at):
        for resume in (False, True):
            with pytest.raises(fs.InvalidInput, match="in use by another run"):
                run(tmp_path / "run", resume)
            refused.append(resume)

    options = {"rounds": 12, "clients_per_round": 2, "eval_every": 4, "residency": "stream"}
    result = fs.run(fs.SCAFFOLD(0.1), TASK, out=tmp_path / "run", callbacks=[second], **options)
    assert len(refused) >= 6
    same(result.params, run(None).params)


@pytest.mark.full
def test_a_full_disk_ends_the_run_in_words(often, tmp_path, monkeypatch):
    def full(file, content):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(row_file, "write_all", full)
        with pytest.raises(fs.InvalidInput, match="No space left"):
            run(tmp_path / "run")
    assert jnp.isfinite(run(tmp_path / "other").metrics["train_loss"]).all()
