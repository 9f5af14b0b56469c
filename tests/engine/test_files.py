"""Files: who may read them, what killed processes leave, folders that vanish, file systems without locks."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
import time
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.engine.checkpoint import Checkpoints
from fedsolve.engine.record import Recorder
from fedsolve.engine.sweep_rounds import SweepStore, TrialResults
from fedsolve.folders import files
from fedsolve.folders.files import locked
from fedsolve.folders.run_folder import save_tree


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
