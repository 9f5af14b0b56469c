"""The words of a run's identity, which a checkpoint must share with the run that goes on from it."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsolve.config.build import call_text, named
from fedsolve.core import __version__
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.types import is_at_later_default
from fedsolve.engine.compute.layout import cores


def as_written(algorithm: Algorithm) -> str:
    """A method as a person writes it: by its name where it has one, without arguments that have their default.

    >>> import fedsolve as fs
    >>> as_written(fs.FedAvg(0.3)), describe(fs.client.SGD(0.1, momentum=0.9), brief=True)
    ('FedAvg(client_lr=0.3)', 'SGD(lr=0.1, momentum=0.9)')
    """
    recipe = named(algorithm)
    return describe(algorithm, brief=True) if recipe is None else call_text(*recipe)


def describe(value: object, brief: bool = False) -> str:
    """A readable identity of an algorithm or a sampling, the same in every process; `brief` leaves out defaults.

    >>> from fedsolve import server
    >>> describe(server.ServerSGD(0.5))
    'ServerSGD(lr=0.5, momentum=None, ema=False, nesterov=False)'
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = [(f, getattr(value, f.name)) for f in dataclasses.fields(value)]
        fields = [(f, describe(x, brief)) for f, x in given if not is_at_later_default(f, x)]
        parts = [f"{f.name}={text}" for f, text in fields if not (brief and text == _default(f))]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, np.ndarray | jax.Array):
        array = np.asarray(value)
        return repr(array.item()) if array.ndim == 0 else f"array{array.shape}#{_digest(array)}"
    if isinstance(value, Callable) and not isinstance(value, type):
        home = getattr(value, "__module__", "")
        home = "fedsolve" if home.startswith("fedsolve.") else home  # where its functions are may change
        return f"{home}.{getattr(value, '__qualname__', type(value).__name__)}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {describe(v, brief)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(describe(v, brief) for v in value) + ")"
    return repr(value)


def _default(field: dataclasses.Field[Any]) -> str | None:
    """A field's default in words; None if it has none."""
    if field.default is not dataclasses.MISSING:
        return describe(field.default, brief=True)
    return (
        None
        if field.default_factory is dataclasses.MISSING
        else describe(field.default_factory(), brief=True)
    )


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:12]


def digest(text: str) -> str:
    """A short name of a long text, the same in every process."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def versions() -> str:
    """What a run may not change where it goes on: the versions and the kind of device."""
    return f"fedsolve {__version__}, jax {jax.__version__}, {jax.default_backend()}"


def provenance() -> str:
    """The versions, fedsolve's commit where it runs from its repository, and the device, for what is saved."""
    device = f"cpu, {cores()} cores" if jax.default_backend() == "cpu" else jax.devices()[0].device_kind
    return f"fedsolve {__version__}{_commit()}, jax {jax.__version__}, {device}"


_PROGRAMS = (":/experiments/*.py",)  # the studies of the papers: what a run of one did follows from them too


@cache
def _commit() -> str:
    package = Path(__file__).resolve().parents[2]

    def git(*words: str) -> str:
        command = ["git", "-C", str(package), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout

    try:
        prefix, commit = git("rev-parse", "--show-prefix", "--short=10", "HEAD").split()
        if prefix != "src/fedsolve/":  # installed into somebody's own repository
            return ""
        changes = git("status", "--porcelain", "--", ".", *_PROGRAMS)
        return f", commit {commit}{' with changes' if changes else ''}"
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
