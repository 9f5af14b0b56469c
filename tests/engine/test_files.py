"""Files that a run leaves, full disks, the folder of compiled programs, and what compiling counts as."""

import errno
import fcntl
import gc
import os
import stat
import subprocess
import sys
import threading
import time
import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedsolve as fs
from fedsolve.core import gc_paused
from fedsolve.core.xla import compiler
from fedsolve.core.xla.compiler import tidy, use_compile_cache
from fedsolve.engine import loop, streaming
from fedsolve.engine.checkpoint import Checkpoints
from fedsolve.engine.loop import CompileClock
from fedsolve.engine.record import Recorder
from fedsolve.engine.sweep_rounds import SweepStore, TrialResults
from fedsolve.folders import files, run_folder
from fedsolve.folders.files import locked
from fedsolve.folders.run_folder import save_tree
from fedsolve.tasks import CrossEntropy, Softmax
from harness import make_clients, make_task

# Files: who may read them, what killed processes leave, folders that vanish, file systems without locks.


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_who_may_read_a_file_follows_from_the_umask(tmp_path, umask, mode):
    """0666 less the umask, as of any file; 0600 on request."""
    before = os.umask(umask)
    try:
        text = files.write_atomically(tmp_path / "text", "x")
        secret = files.write_atomically(tmp_path / "secret", "x", private=True)
        save_tree(tmp_path / "tree", {"w": jnp.zeros(2)}, {})
        save_tree(tmp_path / "own", {"w": jnp.zeros(2)}, {}, private=True)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("text", "tree", "secret", "own")]
    assert modes == [mode, mode, 0o600 & ~umask, 0o600 & ~umask]
    assert (text.read_text(), secret.read_text()) == ("x", "x")


KILLED = """
import os, sys
from pathlib import Path
from fedsolve.folders.files import replace_atomically
replace_atomically(sys.argv[1], lambda new: (new.write_bytes(b"half"), os.kill(os.getpid(), 9)))
"""


def test_what_a_killed_process_left_is_cleared(tmp_path):
    """Killed between writing and replacing: the next process that writes there removes it; the old file stays."""
    path = tmp_path / "run" / "file"
    files.write_atomically(path, "old")
    child = subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    assert child.returncode == -9
    (left,) = path.parent.glob(".file.*.part")
    files._cleared.clear()  # as in a new process
    files.write_atomically(path.parent / "another", "new")
    assert not left.exists()
    assert path.read_text() == "old"


def test_what_another_still_writes_is_left_alone(tmp_path):
    """Of a live process, of another machine, of this process: they stay, unless a day old or of a former life."""
    host, other = files._HOST, "00000000"
    dead = subprocess.Popen(["true"])
    dead.wait()
    names = {
        f".a.{host}-{os.getppid()}-0123abcd.part": True,
        f".a.{other}-{dead.pid}-0123abcd.part": True,
        f".a.{host}-{os.getpid()}-0123abcd.part": True,
        f".a.{host}-{dead.pid}-0123abcd.part": False,
        f".a.{host}-99999999999999999999-0123abcd.part": True,
        ".hidden": True,
        "a.part": True,
        f"x.a.{host}-{dead.pid}-0123abcd.part": True,  # not hidden: not ours
    }
    ages = {
        f".old.{other}-1-0123abcd.part": (2 * 86400, False),
        f".own.{host}-{os.getpid()}-0123abcd.part": (3600, False),  # before this process began
    }
    for name in [*names, *ages]:
        (tmp_path / name).write_text("x")
    for name, (age, _) in ages.items():
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    files.write_atomically(tmp_path / "new", "x")
    for name, stays in {**names, **{n: s for n, (_, s) in ages.items()}}.items():
        assert (tmp_path / name).exists() == stays, name


class State(NamedTuple):
    round: Any


def save_run(kept):
    kept.save(State(jnp.int32(1)), Recorder())


def save_sweep(kept):
    kept.save(TrialResults((1, 1, 1), np.float32), [], {})


@pytest.mark.parametrize("again", [False, True], ids=["removed", "replaced"])
@pytest.mark.parametrize(("store", "save"), [(Checkpoints, save_run), (SweepStore, save_sweep)])
def test_a_folder_removed_during_a_run_is_not_made_again(tmp_path, store, save, again):
    """Removed, or replaced by another's, between two checkpoints: one line, and nothing is written there."""
    folder = tmp_path / "run"
    with store.at(folder, {}, False) as kept:
        save(kept)
        folder.rename(tmp_path / "gone")
        if again:
            folder.mkdir()
            (folder / ".lock").touch()
        with pytest.raises(fs.InvalidInput, match="removed or replaced") as caught:
            save(kept)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.glob("run/*")] == ([".lock"] if again else [])


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks(tmp_path, monkeypatch, code):
    """Nothing is in use there: the folder is held without a lock, and a warning says so."""

    def flock(file, how):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.warns(UserWarning, match="without locks"), locked(tmp_path / "run") as hold:
        hold.check()


def test_a_folder_in_use(tmp_path):
    with locked(tmp_path), pytest.raises(fs.InvalidInput, match="in use by another run"), locked(tmp_path):
        pass


# Disks that are full or may only be read: a line that says so, and the same bits once there is room.

MODEL = Softmax(1000, 10)  # a client's state has 40 kB


def clients(number=24, rows=2):
    rng = np.random.default_rng(0)
    return [
        fs.Examples(rng.random((rows, 1000), np.float32), rng.integers(0, 10, rows, np.int32))
        for _ in range(number)
    ]


@pytest.fixture
def disk(tmp_path):
    """A disk of 400 kB, and how to mount it anew; those who may not mount one skip the test."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options):
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(place)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("only root mounts a disk")

    mount("size=400k")
    yield place, lambda options: mount(f"remount,{options}")
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_population_goes_on_where_its_disk_was_full(disk, tmp_path, monkeypatch):
    place, again = disk
    monkeypatch.setattr("fedsolve.data.writing._BETWEEN", 2**16)
    whole = fs.data.write(clients(80), tmp_path / "whole")
    with pytest.raises(fs.InvalidInput, match="No space left on device; written data are kept"):
        fs.data.write(clients(80), place / "d")
    with pytest.raises(fs.InvalidInput, match="holds no data"):
        fs.data.open(place / "d")
    again("size=4m")
    assert fs.data.write(clients(80), place / "d", resume=True).digest == whole.digest
    again("ro")
    assert fs.data.open(place / "d", verify=True).num_clients == 80
    with pytest.raises(fs.InvalidInput, match="Read-only file system"):
        fs.data.write(clients(2), place / "other")


def test_rows_to_group_that_do_not_fit_are_refused_before_they_are_written(disk, tmp_path):
    """Into mapped files they would kill the process."""
    place, _ = disk
    rows = {"user": np.arange(200) % 7, "x": list(np.ones((200, 1000), np.float32))}
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    with pytest.raises(fs.InvalidInput, match="No space left on device: free space"):
        fs.data.from_table(tmp_path / "t.parquet", client="user", x="x", folder=place / "d")
    assert not list(place.iterdir())


@pytest.mark.full
def test_a_run_goes_on_where_the_disk_of_its_states_was_full(disk, tmp_path, monkeypatch):
    place, again = disk
    monkeypatch.setattr(run_folder.RunFolder, "due", property(lambda self: True))
    monkeypatch.setattr("fedsolve.engine.loop._CALL_SECONDS", 1e-9)
    monkeypatch.setattr(streaming, "WINDOW_BYTES", 2**16)
    task = fs.Task("disks", MODEL.init, CrossEntropy(MODEL), fs.FederatedData.from_clients(clients()))
    options = {"clients_per_round": 2, "eval_every": 4, "residency": "stream"}

    def run(out, resume=False, rounds=3):
        return fs.run(fs.SCAFFOLD(0.1), task, rounds=rounds, out=out, resume=resume, **options)

    with pytest.raises(fs.InvalidInput, match=r"disk at least .* for the states of clients that take part"):
        run(place / "long", rounds=8)
    with pytest.raises(fs.InvalidInput, match="No space left on device") as error:
        run(place / "run")
    assert "\n" not in str(error.value)
    assert (place / "run" / "checkpoint.safetensors").exists()
    again("ro")
    with pytest.raises(fs.InvalidInput, match="Read-only file system"):
        run(place / "run", resume=True)
    again("rw,size=4m")
    resumed, whole = run(place / "run", resume=True), run(None)
    for a, b in zip(jax.tree.leaves(resumed.params), jax.tree.leaves(whole.params), strict=True):
        np.testing.assert_array_equal(a, b)


# The folder of compiled programs: who chooses it, how large it gets, and what is damaged.

SECONDS = "jax_persistent_cache_min_compile_time_secs"


def entry(folder, name: str, size: int = 100, age: float = 0.0, data: bytes | None = None):
    """An entry as JAX writes them, last used `age` seconds ago."""
    path = folder / f"jit_{name}-cache"
    whole = zlib.compress(np.random.default_rng(size).bytes(size))
    path.write_bytes(whole if data is None else data)
    used = time.time() - age
    os.utime(path, (used, used))
    return path


def test_damaged_entries_go_and_are_read_once(tmp_path):
    whole = entry(tmp_path, "whole")
    other = entry(tmp_path, "other", data=b"\x28\xb5\x2f\xfd of another compressor")
    cut = entry(tmp_path, "cut", data=whole.read_bytes()[:50])
    empty = entry(tmp_path, "empty", data=b"")
    tidy(tmp_path)
    assert [p.exists() for p in (whole, other, cut, empty)] == [True, True, False, False]
    old = entry(tmp_path, "old", data=b"\x78 damaged, but older than the last call", age=60)
    new = entry(tmp_path, "new", data=b"\x78 damaged", age=-60)
    tidy(tmp_path)
    assert old.exists()
    assert not new.exists()


def test_the_most_recently_used_ones_stay(tmp_path):
    tidy(tmp_path)  # reading a newer entry would count as its use
    files = [entry(tmp_path, str(i), size=1000, age=100 * (i + 1)) for i in range(8)]
    each = files[0].stat().st_size
    tidy(tmp_path, most_bytes=8 * each)
    assert all(path.exists() for path in files)
    tidy(tmp_path, most_bytes=7 * each)  # five of them have at most three quarters of it
    assert [path.exists() for path in files] == [True] * 5 + [False] * 3


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """JAX without a folder, and a user's cache in `tmp_path`; `use_compile_cache` as called for the first time."""
    before = {name: getattr(jax.config, name) for name in ("jax_compilation_cache_dir", SECONDS)}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", raising=False)
    jax.config.update("jax_compilation_cache_dir", None)
    yield use_compile_cache.__wrapped__
    for name, value in before.items():
        jax.config.update(name, value)


def test_the_users_folder_unless_it_is_off_or_another(fresh, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSOLVE_CACHE", "off")
    assert fresh() is None
    assert jax.config.jax_compilation_cache_dir is None
    assert not list(tmp_path.iterdir())
    monkeypatch.delenv("FEDSOLVE_CACHE")
    assert fresh() == tmp_path / "fedsolve" / "jax"
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "fedsolve" / "jax")
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 0
    assert (tmp_path / "fedsolve" / "jax").stat().st_mode & 0o077 == 0
    monkeypatch.setenv("FEDSOLVE_CACHE", str(tmp_path / "mine"))
    assert fresh() == tmp_path / "fedsolve" / "jax"  # what JAX has been given stands
    jax.config.update("jax_compilation_cache_dir", None)
    assert fresh() == tmp_path / "mine"


def test_a_folder_that_cannot_be_made_keeps_nothing(fresh, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDSOLVE_CACHE", str(tmp_path / "file" / "jax"))
    assert fresh() is None
    monkeypatch.delenv("FEDSOLVE_CACHE")
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        assert fresh() is None
    finally:
        jax.config.update("jax_enable_compilation_cache", True)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other backends have no options")
def test_options_that_the_compiler_does_not_know_are_left_out(monkeypatch):
    monkeypatch.setattr(compiler, "_ON_CPU", {"xla_no_such_option": 1, **compiler._ON_CPU})
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_prefer_vector_width=256")  # what is given stands
    found = compiler.compiler_options()
    assert found == {"xla_backend_optimization_level": 1, "xla_cpu_copy_insertion_use_region_analysis": True}
    assert jax.jit(lambda x: 2 * x, compiler_options=found)(3) == 6


# Compilation is counted once, however deep its reports are nested.


def test_reports_inside_a_report_count_once():
    """Spans 1-2 and 2-3 lie inside 0.5-4 and are covered by it: 3.5 s; 5-6 comes after it: 4.5 s in all."""
    clock = CompileClock()
    clock.add(2.0, 1.0)
    clock.add(3.0, 1.0)
    assert clock.seconds == pytest.approx(2.0)
    clock.add(4.0, 3.5)
    assert clock.seconds == pytest.approx(3.5)
    clock.add(6.0, 1.0)
    assert clock.seconds == pytest.approx(4.5)


def test_the_first_call_is_of_one_round_and_the_next_of_about_a_second(monkeypatch):
    """Nothing is known: one round, so that progress and Ctrl-C wait for no interval; then by what a round took."""
    now = iter([0.0, 0.5, 10.0, 14.0])
    monkeypatch.setattr(loop.time, "perf_counter", lambda: next(now))
    calls = loop.CallLength(CompileClock())
    assert [calls.rounds(1), calls.rounds(100_000)] == [1, 1]
    for count, rounds in ((10, 20), (2, 1)):  # 0.05 s a round, then two seconds
        with calls.timed(count):
            pass
        assert calls.rounds(100_000) == rounds


# Python's garbage collector while programs are traced: paused, and as it was before afterwards.


def test_it_is_on_again_after_the_last_of_several():
    """Pauses of two threads that overlap, of which the first ends first; and one that ends by an error."""
    begun, go_on = threading.Event(), threading.Event()

    def pause():
        with gc_paused():
            begun.set()
            go_on.wait(60)

    other = threading.Thread(target=pause)
    with gc_paused():
        other.start()
        assert begun.wait(60)
    while_other = gc.isenabled()
    go_on.set()
    other.join()
    assert (while_other, gc.isenabled()) == (False, True)
    with pytest.raises(ZeroDivisionError), gc_paused():
        _ = 1 / 0
    assert gc.isenabled()


def test_one_that_is_off_stays_off():
    """As a program may have it."""
    gc.disable()
    try:
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.full
def test_a_run_traces_without_it_and_calls_back_with_it():
    """The loss, which is traced, sees it off; a callback between evaluations sees it on."""
    traced, called = [], []
    task = make_task(make_clients())

    def loss(params, batch):
        traced.append(gc.isenabled())
        return task.loss(params, batch)

    ours = fs.Task("ours", task.init, loss, task.data, batch_size=4, epochs=1)
    before = len(traced)
    fs.run(fs.FedAvg(0.1), ours, rounds=2, eval_every=1, callbacks=[lambda _: called.append(gc.isenabled())])
    assert traced[before:]
    assert not any(traced[before:])
    assert called[-1]
