"""Tests share compiled programs: what one run of the tests compiled, the next one loads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

pytest.register_assert_rewrite("equations.cases", "conformance.properties")

collect_ignore_glob = ["conftest.py", "*/conftest.py"]  # for doctests they would all be a module of one name
CACHE = Path(os.environ.get("FEDSOLVE_TEST_CACHE", Path(__file__).parent.parent / ".cache" / "jax-tests"))


def pytest_configure(config: pytest.Config) -> None:
    jax.config.update("jax_compilation_cache_dir", str(CACHE))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(autouse=True, scope="module")
def few_programs_at_a_time() -> Iterator[None]:
    """Every compiled program holds mappings of memory; Linux allows a process 65,530, then XLA crashes."""
    yield
    jax.clear_caches()


@pytest.fixture
def subprocess_env() -> dict[str, str]:
    """The environment of a child process that shares the compilation cache and runs on the CPU."""
    return os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(CACHE),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_PLATFORMS": "cpu",
    }
