"""Small data files of the formats that the tasks read, and where the real ones are."""

import hashlib
import importlib
import os
from pathlib import Path

import numpy as np
import pytest

DATA = Path(os.environ.get("FEDSOLVE_DATA") or Path(__file__).parents[3] / "shared" / "data")


def needs(name):
    return pytest.mark.skipif(
        not (DATA / name).exists(), reason=f"no {name} in FEDSOLVE_DATA or in ../shared/data"
    )


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


MODULES = {
    "news": "newsgroups",
    "femnist": "characters",
    "handwriting": "characters",
    "mnist": "idx_images",
    "shakespeare": "texts",
}
SUFFIXES = {"handwriting": "_UNIPEN"}


def module_of(task):
    """The module of a task that reads a file: in `fedsolve.tasks` the function hides its name."""
    return importlib.import_module(f"fedsolve.tasks.ready.{MODULES.get(task, task)}")


def write(monkeypatch, folder, task, which="", **fields):
    """A small file of a task, whose check sum the task then expects; `which` ends the names of file and sum."""
    module, which = module_of(task), which or SUFFIXES.get(task, "")
    path = folder / getattr(module, f"FILE{which}")
    np.savez_compressed(path, **fields)
    monkeypatch.setattr(module, f"SHA256{which}", sha256(path))
    return folder
