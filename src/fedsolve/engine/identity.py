"""What a run is known by: its identity in words, and digests of data and functions."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import subprocess
import types
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.config.build import Form, call_text, recipe_of, to_plain
from fedsolve.core import __version__
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.building import Made, is_default_of_added_field
from fedsolve.data.partitions import Partition
from fedsolve.engine.compute.layout import cores


def as_written(algorithm: Algorithm) -> str:
    """A method as a person writes it: by its name where it has one, without arguments that have their default.

    >>> import fedsolve as fs
    >>> as_written(fs.FedAvg(0.3)), describe(fs.client.SGD(0.1, momentum=0.9), brief=True)
    ('FedAvg(client_lr=0.3)', 'SGD(lr=0.1, momentum=0.9)')
    """
    recipe = recipe_of(algorithm)
    return describe(algorithm, brief=True) if recipe is None else call_text(*recipe)


def describe(value: object, brief: bool = False) -> str:
    """A readable identity of an algorithm or a sampling, the same in every process; `brief` leaves out defaults.

    >>> from fedsolve import server
    >>> describe(server.ServerSGD(0.5))
    'ServerSGD(lr=0.5, momentum=None, ema=False, nesterov=False)'
    """
    return _Words(brief).of(value)


class _Words(Form):
    def __init__(self, brief: bool) -> None:
        self.brief = brief

    def object(self, value: Any) -> str:
        given = [(f, getattr(value, f.name)) for f in dataclasses.fields(value)]
        fields = [(f, self.of(x)) for f, x in given if not is_default_of_added_field(f, x)]
        parts = [f"{f.name}={text}" for f, text in fields if not (self.brief and text == self._default(f))]
        return f"{type(value).__name__}({', '.join(parts)})"

    def array(self, value: Any) -> str:
        array = np.asarray(value)
        return repr(array.item()) if array.ndim == 0 else f"array{array.shape}#{_digest(array)}"

    def number(self, value: Any) -> str:
        return repr(value)

    def plain(self, value: Any) -> str:
        return repr(value)

    def sequence(self, value: Any) -> str:
        return f"({', '.join(super().sequence(value))})"

    def table(self, value: Any) -> str:
        return f"{{{', '.join(f'{key}: {self.of(part)}' for key, part in value.items())}}}"

    def other(self, value: Any) -> str:
        if isinstance(value, type) or not callable(value):
            return repr(value)
        return f"{_program(value)}.{getattr(value, '__qualname__', type(value).__name__)}"

    def _default(self, field: dataclasses.Field[Any]) -> str | None:
        if field.default is not dataclasses.MISSING:
            return self.of(field.default)
        factory = field.default_factory
        return None if factory is dataclasses.MISSING else self.of(factory())


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
    package = Path(__file__).resolve().parents[1]

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


# What arrays hold and what a function is, as short names that are the same in every process.
#
# A function is known by its name, its bytecode with constants and names, its defaults and what it closes over; not by
# where it stands in a file, nor by the functions and global values that it uses. Functions and classes of fedsolve are
# known by their names, without their module, and their version.


def arrays_digest(tree: Any) -> str:
    """A pytree of arrays by its structure, shapes, types and every number (CRC-32: some 2 GB/s)."""
    reader = _Reader()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        reader.put(jax.tree_util.keystr(path))
        reader.array(leaf)
    return reader.digest()


def code_digest(*values: Any) -> str:
    """Functions, or objects that are called, by their own code and values."""
    reader = _Reader()
    for value in values:
        reader.of(value)
    return reader.digest()


def function_name(function: Any) -> str:
    """A function as a reader knows it, and its digest: `losses.squared#1f0a3c5d7e9b`."""
    shown = function
    while isinstance(shown, functools.partial):
        shown = shown.func
    shown = shown if hasattr(shown, "__qualname__") else type(shown)
    return f"{_program(shown)}.{shown.__qualname__}#{code_digest(function)}"


class _Reader(Form):
    # takes in values one after another; nothing that it takes in depends on addresses or on hash seeds

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=6)
        self._seen: dict[int, Any] = {}  # with the object, so that its id stays its own

    def digest(self) -> str:
        return self._hash.hexdigest()

    def put(self, *texts: object) -> None:
        for text in texts:
            self._hash.update(f"{text!r};".encode())

    def array(self, value: Any) -> None:
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        x = np.ascontiguousarray(value)
        raw = repr(x.tolist()).encode() if x.dtype == object else x.reshape(-1).view(np.uint8).data
        self.put(x.shape, x.dtype.str, x.dtype.name, zlib.crc32(raw))

    def number(self, value: Any) -> None:
        self.put(type(value).__name__, value)

    def plain(self, value: Any) -> None:
        self.object(value) if isinstance(value, enum.Enum) else self.number(value)

    def sequence(self, value: Any) -> None:
        self.put(type(value).__name__, len(value))
        super().sequence(value)

    def table(self, value: Any) -> None:
        self.put("dict", len(value))
        for key, item in value.items():
            self.of(key)
            self.of(item)

    def other(self, value: Any) -> None:
        if isinstance(value, complex | bytes | types.EllipsisType) and not isinstance(value, enum.Enum):
            self.number(value)
        elif isinstance(value, set | frozenset):  # whatever the order of their hashes
            self.put("set", sorted(code_digest(item) for item in value))
        elif isinstance(value, types.CodeType):
            self.put(value.co_code, value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
            self.of(value.co_consts)
        else:
            self.object(value)

    def object(self, value: Any) -> None:
        if id(value) in self._seen:
            self.put("as before")
            return
        self._seen[id(value)] = value
        try:
            self._object(value)
        except Exception:  # a stranger's attribute that raises, or nests too deep, is no reason not to run
            self.put("unreadable", type(value).__qualname__)

    def _object(self, value: Any) -> None:
        if isinstance(value, enum.Enum):
            self.put(type(value).__qualname__, value.name)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType | functools.partial):
            parts = (value.__func__, value.__self__) if isinstance(value, types.MethodType) else (
                value.func, value.args, value.keywords
            )  # fmt: skip
            self.of(parts)
        elif isinstance(value, type):
            self.put("class", _program(value), value.__qualname__)
        elif isinstance(value, types.ModuleType):
            self.put("module", value.__name__)
        elif "__wrapped__" in getattr(value, "__dict__", {}):  # compiled by jax.jit, or cached
            self.of(value.__wrapped__)
        else:
            self.of(type(value))
            self.of(_parts(value))
            call = getattr(type(value), "__call__", None)  # noqa: B004 (its code, not whether it has any)
            if isinstance(call, types.FunctionType) and _program(call) != "fedsolve":
                self.of(call)

    def _function(self, function: types.FunctionType) -> None:
        self.put(function.__qualname__)
        if _program(function) != "fedsolve":
            self.of(function.__code__)
        self.of(function.__defaults__)
        self.of(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            with_value = [cell.cell_contents] if _filled(cell) else []
            self.of(with_value)


def _program(named: Any) -> str:
    """The module of a class or function; that of all of fedsolve's is "fedsolve"."""
    module = named.__module__ or ""
    return "fedsolve" if module.startswith("fedsolve.") else module


def _parts(value: Any) -> dict[str, Any]:
    """What an object is made of: the fields of a dataclass, else its public attributes."""
    # A field that came later (`ADDED_LATER`) counts where it is not at its default: older records have none.
    if is_dataclass(value):
        given = {f: getattr(value, f.name, None) for f in fields(value)}
        return {f.name: x for f, x in given.items() if not is_default_of_added_field(f, x)}
    return {k: v for k, v in getattr(value, "__dict__", {}).items() if not k.startswith("_")}


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # a function that is not defined yet
        return False
    return True


def task_table(made: Made, unnamed: dict[str, str]) -> dict[str, Any]:
    """The keys of a task that a catalogue's builder made; options that have no names come into `unnamed`, in words."""
    options: dict[str, Any] = {}
    for name, value in made.options.items():
        given = {"name": value.name, **vars(value)} if isinstance(value, Partition) else value
        given = str(given) if isinstance(given, Path) else given
        if isinstance(given, bool | int | float | str | Mapping):
            options[name] = to_plain(given)
        elif given is not None:
            unnamed[f"task option {name}"] = describe(value)
    held_out = {} if made.validation is None else {"validation": made.validation}
    return {"task": made.name, **held_out, "task_options": options}
