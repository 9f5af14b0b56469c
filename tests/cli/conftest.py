"""The command line called in this process, in an empty folder, with one cache of compiled programs."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass

import pytest

from fedsolve.cli.main import main


@dataclass(frozen=True)
class Ended:
    """How a call ended: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def document(self):
        return json.loads(self.out)


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("xdg")


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch, cache):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    for name in ("JAX_COMPILATION_CACHE_DIR", "FORCE_COLOR", "FEDSOLVE_DATA"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def call(capsys):
    """`call("run", "digits", ...)`: exit code, standard output and standard error."""

    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        code = main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return run


@pytest.fixture
def no_pictures(monkeypatch):
    """As where matplotlib is not installed, which saves seconds."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "matplotlib" else found(name, *a)
    )
