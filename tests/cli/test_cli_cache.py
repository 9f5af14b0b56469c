"""The tests' cache of compiled programs is the one that is used, whatever the command line does in this process."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import jax
import pytest
from cli_small import SMALL

from programs import ProgramsDropped, cache_folder, mappings


def kept(name: str) -> list[Path]:
    return [path for path in cache_folder().iterdir() if name in path.name]


def test_a_command_leaves_the_cache_where_it_is(call, no_pictures):
    """A program compiled after a run on the command line lies in the tests' folder, however fast it compiled.

    JAX opens one cache a process, at its first program: were a command to redirect it, all that this worker compiles
    afterwards would be thrown away.
    """
    assert call("run", "digits", "FedAvg", *SMALL, "--out", "r").code == 0
    name = f"f{uuid.uuid4().hex}"

    def f(x):
        return x + 1

    f.__name__ = name
    assert float(jax.jit(f)(1.0)) == 2.0
    found = kept(name)
    assert found
    for path in found:  # nobody will ask for it again
        path.unlink()


def test_the_folder_is_the_users_and_of_this_jax(monkeypatch):
    """A second clone finds what the first compiled; a variable chooses another folder."""
    monkeypatch.delenv("FEDSOLVE_TEST_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path(f"/somewhere/fedsolve/tests-jax-{jax.__version__}")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "fedsolve" / f"tests-jax-{jax.__version__}"
    monkeypatch.setenv("FEDSOLVE_TEST_CACHE", "/chosen")
    assert cache_folder() == Path("/chosen")


@pytest.mark.skipif(
    not os.path.exists("/proc/self/maps"), reason="only Linux limits mappings so low, and tells them"
)
def test_programs_are_dropped_when_the_process_holds_too_many_mappings(monkeypatch):
    """Not below the limit; above it the compiled function compiles anew at its next call."""
    f = jax.jit(lambda x: x * 3 + 1)
    f(1.0)
    dropped = ProgramsDropped()
    monkeypatch.setattr(ProgramsDropped, "MOST", mappings() + 10_000)
    dropped.pytest_runtest_teardown()
    assert f._cache_size() == 1
    assert 0 < dropped.tests_to_go <= 20
    monkeypatch.setattr(ProgramsDropped, "MOST", mappings() - 10)
    dropped.tests_to_go = 0
    dropped.pytest_runtest_teardown()
    assert f._cache_size() == 0
