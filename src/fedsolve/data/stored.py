"""Federated data on disk: memory-mapped arrays, from which a run reads the clients that it needs."""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsolve.core.errors import InvalidInput, check_flag, check_path, is_integer, shown, with_article
from fedsolve.core.types import Batch
from fedsolve.data.columns import Columns, Numbered
from fedsolve.data.examples import Examples, SparseRows
from fedsolve.data.federated import FederatedData
from fedsolve.folders.logs import read_all
from fedsolve.folders.sealed import LARGEST, checksum
from fedsolve.folders.untrusted import MALFORMED, check_shape, loads, open_regular, read_text

# What a data folder says of itself: a small file in JSON that is sealed, and is the last to be written.
#
# Arrays lie in `.npy` files of NumPy, little-endian, rows ordered by client; the description, and not their headers,
# says what they hold. Containers of the examples are told by name, so that nothing is ever unpickled.


DESCRIPTION = "fedsolve-data.json"
COUNTS, NAMES, NAME_ENDS = "counts.npy", "names.txt", "name-ends.npy"
_FORMAT = 1
_KINDS = "biufc"
_PAIRS = {pair.__name__: pair for pair in (Examples, SparseRows)}


@dataclass
class Column:
    """One file of a folder."""

    file: str  # its name
    dtype: str  # of its numbers, as NumPy writes it (`<f4`)
    shape: tuple[int, ...] = ()  # of one row
    start: int = 0  # bytes before the first row
    rows: int = 0  # their number
    crc32: int = 0  # of the rows' bytes
    # low, high: the least and the largest number, of integers and truths; None where nobody noted them
    low: int | None = None
    high: int | None = None

    @property
    def width(self) -> int:
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class Description:
    """A whole folder."""

    clients: int  # clients, examples: how many
    examples: int
    structure: Any  # the examples' containers, with the numbers of `leaves` for arrays (see `structure_of`)
    leaves: tuple[Column, ...]  # the examples' arrays
    # counts of the clients, and the file of names with their ends where there are names
    index: tuple[Column, ...]
    columns: Columns = ()  # the names of the arrays' columns, as `FederatedData.columns` has them

    def text(self) -> str:
        # with its seal
        facts = {"format": _FORMAT, **asdict(self)}
        for column in (*facts["leaves"], *facts["index"]):
            if column["low"] is None:  # then a folder from before there were ranges keeps its digest
                del column["low"], column["high"]
        if not self.columns:  # likewise
            del facts["columns"]
        body = json.dumps(facts, sort_keys=True)
        return json.dumps({"seal": checksum(body.encode()), "data": body}, indent=0) + "\n"


def read_description(folder: Path) -> Description:
    # every field is checked
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
    # the containers as JSON has them, with numbers for the arrays in the order of JAX's leaves
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
    # the inverse of `structure_of`; a ValueError for what it does not give
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


_PIECE = 2**24  # bytes that are summed at once


@dataclass(frozen=True)
class StoredData(FederatedData):
    """Federated data of a folder that `fs.data.write` wrote; made by `fs.data.open`.

    Attributes:
        folder: where it lies.
        digest: what a checkpoint knows it by: of its description, hence of the sums of all its files.
    """

    folder: Path = Path()
    digest: str = ""
    _columns: tuple[Column, ...] = field(default=(), repr=False, compare=False)

    def _check(self) -> None:
        """Numbers were checked when they were written, sizes and the index when the folder was opened."""

    @cached_property
    def merged_in_float32(self) -> tuple[str, ...]:
        # looking for them would read all files
        return ()

    def read_into(self, clients: np.ndarray, arrays: Sequence[np.ndarray]) -> None:
        # neighbours are read at once, not through the map, whose pages would stay in memory
        ends = np.flatnonzero(np.diff(clients) != 1) + 1
        first = clients[np.concatenate([[0], ends])]
        last = clients[np.concatenate([ends, [len(clients)]]) - 1]
        starts = self.offsets[first]
        rows = self.offsets[last] + self.counts[last] - starts
        for column, array in zip(self._columns, arrays, strict=True):
            path = self.folder / column.file
            try:
                gather(path, column, starts, rows, array)
            except OSError as error:
                raise InvalidInput(
                    f"{path} cannot be read any more ({error.strerror or error}): check the folder"
                ) from None
        self.check_ranges([array[: int(rows.sum())] for array in arrays])

    def range_of(self, leaf: np.ndarray) -> tuple[int, int] | None:
        # of integers it was noted when the folder was written
        for array, column in zip(jax.tree.leaves(self.examples), self._columns, strict=True):
            if array is leaf and column.low is not None and column.high is not None:
                return column.low, column.high
        return None

    def check_ranges(self, arrays: Sequence[np.ndarray]) -> None:
        # a label that has changed on the disk might belong to no class
        for column, array in zip(self._columns, arrays, strict=True):
            if column.low is None or column.high is None or not array.size:
                continue
            low, high = int(array.min()), int(array.max())
            if low < column.low or high > column.high:
                raise damaged(
                    self.folder / column.file,
                    f"it holds {low if low < column.low else high}, and what was written lies between {column.low} and "
                    f"{column.high}",
                )


# `fs.data.open` reads as the opposite of `fs.data.write`
def open(folder: str | Path, *, verify: bool = False) -> StoredData:
    """Open a folder that `fs.data.write` wrote; arrays are memory-mapped, so that only the index is read.

    The description is sealed, the size of every file and the sum of the index are checked each time, the sums of the
    arrays by `verify`: do that after copying a folder.

    Args:
        folder: where it lies; it is not written to.
        verify: whether to read all arrays and compare their sums (1 to 2 GB a second).

    Returns:
        Federated data whose leaves are read-only maps of the folder's files, and which runs take in place of data in
        memory.

    Raises:
        InvalidInput: a file that is missing, a symbolic link, of another size or another sum, or a description that is
            damaged.
    """
    folder = check_path("folder", folder)
    check_flag("verify", verify)
    description = read_description(folder)
    columns = (*description.leaves, *description.index)
    maps = [_mapped(folder, column) for column in columns]
    arrays = [_array(m, column) for m, column in zip(maps, columns, strict=True)]
    for number, (column, mapped) in enumerate(zip(columns, maps, strict=True)):
        if (verify or number >= len(description.leaves)) and _sum(mapped, column.start) != column.crc32:
            raise damaged(folder / column.file, "its sum is another")
    leaves, (counts, *names) = arrays[: len(description.leaves)], arrays[len(description.leaves) :]
    # one above all examples might make a sum that is right but for what does not fit 64 bits
    inside = int(counts.min()) >= 1 and int(counts.max()) <= description.examples
    if not inside or int(counts.sum()) != description.examples:
        raise damaged(folder / description.index[0].file, "its clients overlap or leave examples out")
    return StoredData(
        examples=with_structure(description.structure, leaves),
        counts=counts,
        names=_Names(*names) if names else Numbered(description.clients),  # pyright: ignore[reportArgumentType]
        folder=folder,
        columns=description.columns,
        digest=hashlib.sha256(description.text().encode()).hexdigest()[:16],
        _columns=description.leaves,
    )


def _mapped(folder: Path, column: Column) -> mmap.mmap:
    # a mapped file, which must have the size that the description says
    path, size = folder / column.file, column.start + column.rows * column.width
    try:
        with open_regular(path, follow=False) as file:
            actual_size = os.fstat(file.fileno()).st_size
            if actual_size != size:
                raise damaged(path, f"it has {actual_size:,} bytes, not {size:,}")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise InvalidInput(
            f"{path} does not exist, but {DESCRIPTION} beside it names it: restore a copy, or write the folder again"
        ) from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({error.strerror or error}): check the file") from None


def _array(mapped: mmap.mmap, column: Column) -> np.ndarray:
    numbers = np.frombuffer(mapped, np.dtype(column.dtype), offset=column.start)
    return numbers.reshape(column.rows, *column.shape)


def _sum(mapped: mmap.mmap, start: int) -> int:
    # CRC-32 of the rows; what was read is dropped from memory
    crc, content = 0, memoryview(mapped)
    for offset in range(start, len(content), _PIECE):
        crc = zlib.crc32(content[offset : offset + _PIECE], crc)
        mapped.madvise(mmap.MADV_DONTNEED)
    return crc


class _Names(Numbered):
    """Clients' names as they lie in a file, one after another."""

    def __init__(self, text: np.ndarray, ends: np.ndarray) -> None:
        super().__init__(len(ends))
        self._text, self._ends = text, ends

    def _name(self, client: int) -> str:
        start = int(self._ends[client - 1]) if client else 0
        return self._text[start : int(self._ends[client])].tobytes().decode("utf-8", "replace")


_DENSE = 2**16  # bytes of a file for each stretch of rows: about what one fault brings in
_PART = 2**26  # bytes of a map that are in memory at once
_IF_IN_MEMORY = getattr(os, "RWF_NOWAIT", 0)


def gather(path: Path, column: Column, starts: np.ndarray, counts: np.ndarray, into: np.ndarray) -> None:
    # put the rows starts[i] to starts[i] + counts[i] - 1, for one i after another, at the beginning of
    # `into`; an OSError where the file cannot be read, or has become shorter
    if not column.width:
        return
    size = column.start + column.rows * column.width
    with open_regular(path, follow=False, buffering=0) as file:
        if os.fstat(file.fileno()).st_size < size:  # a map would not say so
            raise OSError("it has become shorter")
        if size <= _DENSE * len(starts):
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapped:
                _read_mapped(mapped, column, starts, counts, into)
        else:
            content = into.reshape(-1).view(np.uint8).data
            offsets, sizes = column.start + starts * column.width, counts * column.width
            _read_by_calls(file.fileno(), offsets.tolist(), sizes.tolist(), content)


def _read_mapped(
    mapped: mmap.mmap, column: Column, starts: np.ndarray, counts: np.ndarray, into: np.ndarray
) -> None:
    # a part of the file after another
    all_rows = _array(mapped, column)
    ends = np.cumsum(counts)
    steps = np.flatnonzero(np.diff(starts * column.width // _PART)) + 1
    for first, stop in zip([0, *steps], [*steps, len(starts)], strict=True):
        begin, end = int(ends[first] - counts[first]), int(ends[stop - 1])
        before = ends[first:stop] - counts[first:stop]
        rows = np.repeat(starts[first:stop] - before, counts[first:stop]) + np.arange(begin, end)
        # "clip" checks no row, and buffers nothing
        np.take(all_rows, rows, axis=0, out=into[begin:end], mode="clip")
        mapped.madvise(mmap.MADV_DONTNEED)
    del all_rows


def _read_by_calls(file: int, places: list[int], sizes: list[int], content: memoryview) -> None:
    # what is in memory already comes at once; the rest is announced, so that the system fetches much of it
    # together
    missing, end = [], 0
    for place, size in zip(places, sizes, strict=True):
        part = content[end : end + size]
        end += size
        try:
            found = os.preadv(file, [part], place, _IF_IN_MEMORY)
        except OSError:  # it is not, or this file system does not say
            found = 0
        if found < size:
            missing.append((part, place))
    if hasattr(os, "posix_fadvise"):
        for part, place in missing:
            os.posix_fadvise(file, place, len(part), os.POSIX_FADV_WILLNEED)
    for part, place in missing:
        read_all(file, part, place)
