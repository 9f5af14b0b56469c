"""Tests share compiled programs: what one run of the tests compiled, the next one loads, in any clone."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Generator
from typing import Any

import jax
import pytest
from _pytest.doctest import DoctestModule

from ending import Ending, LeftOut, missing_parts
from programs import (
    ProgramsDropped,
    cache_folder,
    collect_seldom,
    compile_quickly,
    draw_the_same,
    lower_shortly,
    make_scheduler,
    one_thread_each,
    trace_shortly,
)

pytest.register_assert_rewrite("equations.cases", "conformance.properties")

# every file is run, as doctests are looked for in it: `conftest`s would all be a module of one name, the other is for
# pyright alone and trains models
collect_ignore_glob = ["conftest.py", "*/conftest.py", "structure/strict_user.py"]


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "compile as for users, not for tests: twice the time"
    parser.addoption("--production-compile", action="store_true", help=text)
    text = "processor time, of all processes together, beyond which the run fails; more on a slower machine"
    parser.addoption("--most-processor-seconds", type=float, default=0.0, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """JAX's own variables, as child processes and the command line respect them: JAX opens one cache a process."""
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache_folder())
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", "1")  # results of tests do not depend on the machine's cores
    jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    if not config.getoption("--production-compile"):
        compile_quickly()
    collect_seldom()
    draw_the_same()
    trace_shortly()
    lower_shortly()
    one_thread_each()
    config.pluginmanager.register(ProgramsDropped())
    if missing := missing_parts():
        config.pluginmanager.register(LeftOut(missing))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Ending(config, cache_folder()))


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, Any, Any]:
    """Below tests/ no file has doctests."""
    return [collector for collector in (yield) if not isinstance(collector, DoctestModule)]


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Rows that `make test` leaves out are `full`."""
    for item in items:
        row, gate, full = (
            getattr(item, "callspec", None),
            *map(item.get_closest_marker, ("gate", "full_rows")),
        )
        if row is not None and ((gate and row.id not in gate.args) or (full and row.id in full.args)):
            item.add_marker(pytest.mark.full)


@pytest.hookimpl(optionalhook=True)  # there is none where one process runs all
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What shares programs shares a worker, unless another distribution is asked for."""
    return make_scheduler(config, log) if config.getvalue("dist") == "load" else None


@pytest.fixture
def no_pictures(monkeypatch):
    """As where matplotlib is not installed, which saves seconds."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "matplotlib" else found(name, *a)
    )


@pytest.fixture
def subprocess_env() -> dict[str, str]:
    """The environment of a child process that runs on the CPU; the cache is in it already."""
    return os.environ | {"JAX_PLATFORMS": "cpu"}
