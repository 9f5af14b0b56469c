"""The folder of compiled programs: who chooses it, how large it gets, and what is damaged."""

from __future__ import annotations

import os
import time
import zlib

import jax
import numpy as np
import pytest

from fedsolve.core.xla import compiler
from fedsolve.core.xla.compiler import tidy, use_compile_cache

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
