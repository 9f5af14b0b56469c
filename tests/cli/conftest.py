"""The command line called in this process, in an empty folder."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import shutil
from dataclasses import dataclass

import pytest
import typer.main

import printed
from fedsolve.cli.main import main

# the parser that typer makes anew at each call, 0.08 s, is always the same one
typer.main.get_command = functools.cache(typer.main.get_command)


@dataclass(frozen=True)
class Ended:
    """How a call ended: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def document(self):
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "FEDSOLVE_DATA"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def call(capsys):
    """`call("run", "digits", ...)`: exit code, standard output, which fits its schema, and standard error."""

    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        code = main([str(a) for a in arguments])
        captured = capsys.readouterr()
        if "--json" in arguments:
            printed.document(arguments, captured.out)
        return Ended(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def _made(tmp_path_factory):
    """Folders of finished commands, by the command: each is run once."""
    return tmp_path_factory.mktemp("made"), {}


@pytest.fixture
def finished(_made, no_pictures):
    """`finished(*arguments)`: a copy named `to` of the folder that the finished command left."""
    home, known = _made

    def copy(*arguments: object, to: str = "r") -> None:
        if arguments not in known:
            folder = home / str(len(known))
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                assert main([*map(str, arguments), "--out", str(folder)]) == 0
            known[arguments] = folder
        shutil.copytree(known[arguments], to)

    return copy


@pytest.fixture
def bare_env(subprocess_env, tmp_path_factory):
    """The environment of child processes that are `no_pictures`, too."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['matplotlib'] = None\n")
    paths = [str(folder), *filter(None, [subprocess_env.get("PYTHONPATH")])]
    return subprocess_env | {"PYTHONPATH": os.pathsep.join(paths)}
