"""What arrays hold and what a function is, as short names that are the same in every process.

A function is known by its name, its bytecode with constants and names, its defaults and what it closes over; not by
where it stands in a file, nor by the functions and global values that it uses. Functions and classes of fedsolve are
known by their names, without their module, and their version.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import types
import zlib
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.types import is_at_later_default

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), np.generic)


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
        reader.read(value)
    return reader.digest()


def function_name(function: Any) -> str:
    """A function as a reader knows it, and its digest: `losses.squared#1f0a3c5d7e9b`."""
    shown = function
    while isinstance(shown, functools.partial):
        shown = shown.func
    shown = shown if hasattr(shown, "__qualname__") else type(shown)
    return f"{_program(shown)}.{shown.__qualname__}#{code_digest(function)}"


class _Reader:
    """Takes in values one after another; nothing that it takes in depends on addresses or on hash seeds."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=6)
        self._seen: dict[int, Any] = {}  # with the object, so that its id stays its own

    def digest(self) -> str:
        return self._hash.hexdigest()

    def put(self, *texts: object) -> None:
        for text in texts:
            self._hash.update(f"{text!r};".encode())

    def array(self, x: Any) -> None:
        if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        x = np.ascontiguousarray(x)
        raw = repr(x.tolist()).encode() if x.dtype == object else x.reshape(-1).view(np.uint8).data
        self.put(x.shape, x.dtype.str, x.dtype.name, zlib.crc32(raw))

    def read(self, value: Any) -> None:
        if isinstance(value, _PLAIN) and not isinstance(value, enum.Enum):
            self.put(type(value).__name__, value)
        elif isinstance(value, np.ndarray | jax.Array):
            self.array(value)
        elif isinstance(value, tuple | list):
            self.put(type(value).__name__, len(value))
            for item in value:
                self.read(item)
        elif isinstance(value, set | frozenset):
            self.put("set", sorted(code_digest(item) for item in value))
        elif isinstance(value, dict):
            self.put("dict", len(value))
            for key, item in value.items():
                self.read(key)
                self.read(item)
        elif isinstance(value, types.CodeType):
            self.put(value.co_code, value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
            self.read(value.co_consts)
        elif id(value) not in self._seen:
            self._seen[id(value)] = value
            try:
                self._object(value)
            except (
                Exception
            ):  # a stranger's attribute that raises, or nests too deep, is no reason not to run
                self.put("unreadable", type(value).__qualname__)
        else:
            self.put("as before")

    def _object(self, value: Any) -> None:
        if isinstance(value, enum.Enum):
            self.put(type(value).__qualname__, value.name)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType | functools.partial):
            parts = (value.__func__, value.__self__) if isinstance(value, types.MethodType) else (
                value.func, value.args, value.keywords
            )  # fmt: skip
            self.read(parts)
        elif isinstance(value, type):
            self.put("class", _program(value), value.__qualname__)
        elif isinstance(value, types.ModuleType):
            self.put("module", value.__name__)
        elif "__wrapped__" in getattr(value, "__dict__", {}):  # compiled by jax.jit, or cached
            self.read(value.__wrapped__)
        else:
            self.read(type(value))
            self.read(_parts(value))
            call = getattr(type(value), "__call__", None)  # noqa: B004 (its code, not whether it has any)
            if isinstance(call, types.FunctionType) and _program(call) != "fedsolve":
                self.read(call)

    def _function(self, function: types.FunctionType) -> None:
        self.put(function.__qualname__)
        if _program(function) != "fedsolve":
            self.read(function.__code__)
        self.read(function.__defaults__)
        self.read(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            with_value = [cell.cell_contents] if _filled(cell) else []
            self.read(with_value)


def _program(named: Any) -> str:
    """The module of a class or function; that of all of fedsolve's is "fedsolve"."""
    module = named.__module__ or ""
    return "fedsolve" if module.startswith("fedsolve.") else module


def _parts(value: Any) -> dict[str, Any]:
    """What an object is made of: the fields of a dataclass, else its public attributes.

    A field that came later (`LATER`) counts where it is not at its default: older records have none.
    """
    if is_dataclass(value):
        given = {f: getattr(value, f.name, None) for f in fields(value)}
        return {f.name: x for f, x in given.items() if not is_at_later_default(f, x)}
    return {k: v for k, v in getattr(value, "__dict__", {}).items() if not k.startswith("_")}


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # a function that is not defined yet
        return False
    return True
