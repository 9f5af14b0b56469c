"""What a data folder says of itself: a small file in JSON that is sealed, and is the last to be written.

Arrays lie in `.npy` files of NumPy, little-endian, rows ordered by client; the description, and not their headers, says
what they hold. Containers of the examples are told by name, so that nothing is ever unpickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsolve.core.errors import InvalidInput, is_integer, shown, with_article
from fedsolve.core.types import Batch
from fedsolve.data.columns import Columns
from fedsolve.data.examples import Examples, SparseRows
from fedsolve.folders.sealed import LARGEST, checksum
from fedsolve.folders.untrusted import MALFORMED, check_shape, loads, read_text

DESCRIPTION = "fedsolve-data.json"
COUNTS, NAMES, NAME_ENDS = "counts.npy", "names.txt", "name-ends.npy"
_FORMAT = 1
_KINDS = "biufc"
_PAIRS = {pair.__name__: pair for pair in (Examples, SparseRows)}


@dataclass(frozen=True)
class Column:
    """One file of a folder.

    Attributes:
        file: its name.
        dtype: of its numbers, as NumPy writes it (`<f4`).
        shape: of one row.
        start: bytes before the first row.
        rows: their number.
        crc32: of the rows' bytes.
        low, high: the least and the largest number, of integers and truths; None where nobody noted them.
    """

    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    rows: int
    crc32: int
    low: int | None = None
    high: int | None = None

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class Description:
    """A whole folder.

    Attributes:
        clients, examples: how many.
        structure: the examples' containers, with the numbers of `leaves` for arrays (see `structure_of`).
        leaves: the examples' arrays.
        index: counts of the clients, and the file of names with their ends where there are names.
        columns: the names of the arrays' columns, as `FederatedData.columns` has them.
    """

    clients: int
    examples: int
    structure: Any
    leaves: tuple[Column, ...]
    index: tuple[Column, ...]
    columns: Columns = ()

    def text(self) -> str:
        """The file's text, with its seal."""
        facts = {"format": _FORMAT, **asdict(self)}
        for column in (*facts["leaves"], *facts["index"]):
            if column["low"] is None:  # then a folder from before there were ranges keeps its digest
                del column["low"], column["high"]
        if not self.columns:  # likewise
            del facts["columns"]
        body = json.dumps(facts, sort_keys=True)
        return json.dumps({"seal": checksum(body.encode()), "data": body}, indent=0) + "\n"


def read_description(folder: Path) -> Description:
    """The description in a folder, every field of it checked.

    Raises:
        InvalidInput: there is none, or it is damaged or not of this format.
    """
    path = folder / DESCRIPTION
    try:
        text = read_text(path, LARGEST, follow=False)
    except FileNotFoundError:
        raise InvalidInput(
            f"{folder} holds no data: there is no {DESCRIPTION}, which fs.data.write writes last; write the folder, or "
            "continue an interrupted one with resume=True"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(path, str(error)) from None
    try:
        outer = loads(text)
        body = outer["data"]
        if outer["seal"] != checksum(body.encode()):
            raise damaged(path, "its seal is another")
        return _checked(loads(body))
    except MALFORMED as error:
        if isinstance(error, InvalidInput):
            raise
        raise damaged(path, f"{type(error).__name__}: {error}") from None


def damaged(path: Path, what: str) -> InvalidInput:
    """The error for a file of a data folder that is not what was written."""
    return InvalidInput(f"{path} is damaged ({what}): restore a copy, or write the folder again")


def _checked(given: dict[str, Any]) -> Description:
    if given.pop("format") != _FORMAT:
        raise ValueError("another format")
    clients, examples = _number(given["clients"], 1), _number(given["examples"], 1)
    leaves, index = (tuple(_column(c) for c in given[name]) for name in ("leaves", "index"))
    numbers = jax.tree.leaves(with_structure(given["structure"], range(len(leaves))))
    if sorted(numbers) != list(range(len(leaves))) or not leaves:
        raise ValueError("arrays and structure do not fit")
    if any(c.rows != examples for c in leaves):
        raise ValueError("arrays of another length")
    files = [c.file for c in (*leaves, *index)]
    named = files[len(leaves) :]
    if len(set(files)) < len(files) or named not in ([COUNTS], [COUNTS, NAMES, NAME_ENDS]):
        raise ValueError("files of another name")
    for column, dtype in zip(index, ("<i8", "|u1", "<i8"), strict=False):
        if (column.dtype, column.shape) != (dtype, ()) or (dtype == "<i8" and column.rows != clients):
            raise ValueError("an index of another form")
    return Description(clients, examples, given["structure"], leaves, index, _names(given, leaves))


def _names(given: dict[str, Any], leaves: tuple[Column, ...]) -> Columns:
    """The names of the arrays' columns, where they were noted."""
    names = given.get("columns", [])
    if names and len(names) != len(leaves):
        raise ValueError("names of columns of another number of arrays")
    for own, leaf in zip(names, leaves, strict=False):
        if own is not None and (not all(isinstance(n, str) for n in own) or leaf.shape != (len(own),)):
            raise ValueError("names of another number of columns")
    return tuple(None if own is None else tuple(own) for own in names)


def _column(given: dict[str, Any]) -> Column:
    file, dtype = given["file"], np.dtype(given["dtype"])
    if not isinstance(file, str) or Path(file).name != file or file in ("", ".", ".."):
        raise ValueError(f"{shown(file)} is no name of a file")
    if dtype.kind not in _KINDS or dtype.str != given["dtype"] or dtype.str.startswith(">"):
        raise ValueError(f"type {dtype}")
    shape = tuple(_number(n, 0) for n in given["shape"])
    start, rows, crc32 = (_number(given[name], 0) for name in ("start", "rows", "crc32"))
    check_shape((rows, *shape))
    return Column(file, dtype.str, shape, start, rows, crc32, *_ends(given, dtype))


def _ends(given: dict[str, Any], dtype: np.dtype) -> tuple[int, int] | tuple[None, None]:
    """The least and the largest number of a column, where they were noted."""
    if "low" not in given:
        return None, None
    least, most = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    low, high = given["low"], given["high"]
    if not (is_integer(low) and is_integer(high) and least <= low <= high <= most):
        raise ValueError(f"a range from {shown(low)} to {shown(high)}")
    return low, high


def _number(value: Any, least: int) -> int:
    if not is_integer(value) or not least <= value < 2**63:
        raise ValueError(f"{shown(value)} where a number stands")
    return value


def structure_of(examples: Batch) -> Any:
    """The containers of examples as JSON has them, with numbers for the arrays in the order of JAX's leaves.

    Raises:
        InvalidInput: a container that is no `fs.Examples`, `fs.SparseRows`, tuple, list or dict with text for keys.
    """
    numbers = jax.tree.unflatten(jax.tree.structure(examples), range(jax.tree.structure(examples).num_leaves))
    return _written(numbers)


def _written(node: Any) -> Any:
    if is_integer(node):
        return node
    kind = type(node).__name__
    if type(node) in (*_PAIRS.values(), tuple, list):
        return [kind, *map(_written, node)]
    if type(node) is dict and all(isinstance(key, str) for key in node):
        return [kind, {key: _written(part) for key, part in node.items()}]
    raise InvalidInput(
        f"examples in {with_article(kind)} cannot be written: give fs.Examples, fs.SparseRows, tuples, "
        "lists or dicts with text for keys"
    )


def with_structure(structure: Any, leaves: Sequence[Any]) -> Batch:
    """The examples of a structure, `leaves` in the places of its numbers.

    Raises:
        ValueError: no structure that `structure_of` gives.
    """
    if is_integer(structure):
        if not 0 <= structure < len(leaves):
            raise ValueError(f"array {structure} of {len(leaves)}")
        return leaves[structure]
    if not isinstance(structure, list) or not structure:
        raise ValueError(f"{shown(structure)} where a structure stands")
    kind, *parts = structure
    if kind == "dict" and len(parts) == 1 and isinstance(parts[0], dict):
        return {key: with_structure(part, leaves) for key, part in parts[0].items()}
    if kind not in (*_PAIRS, "tuple", "list") or (kind in _PAIRS and len(parts) != 2):
        raise ValueError(f"{shown(kind)} where a container stands")
    found = [with_structure(part, leaves) for part in parts]
    return _PAIRS[kind](*found) if kind in _PAIRS else tuple(found) if kind == "tuple" else found
