"""Rows of files, grouped by client in two passes (count, then copy), so that rows may be in any order.

Memory holds a number and a name a client, and some rows; the examples of a population that is written to a folder lie
in mapped files beside it on their way.
"""

from __future__ import annotations

import itertools
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput, check_flag, check_path, shown
from fedsolve.core.trees import side_by_side
from fedsolve.core.types import Batch
from fedsolve.data.examples import Examples
from fedsolve.data.federated import FederatedData
from fedsolve.data.tables import Table, check_whole, numbers
from fedsolve.data.writing import write
from fedsolve.folders.untrusted import to_nfc

Columns = str | Sequence[str]
"""One column, whose rows may be lists, or several of single numbers that stand side by side."""


def from_table(
    path: str | Path,
    *,
    client: str,
    x: Columns,
    y: Columns | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
) -> FederatedData:
    """Read federated data from Parquet or Arrow files with a column that names the client of each row.

    Clients stand in the order of their ids, each one's rows in the order of the files: rows need no order. Files are
    read twice. Needs `fedsolve[arrow]`.

    Args:
        path: a file, a folder of files (`.parquet`, `.arrow`, `.feather`), or one that Hugging Face's
            `Dataset.save_to_disk` wrote.
        client: the column of ids, integers or text.
        x: the inputs: a column of numbers or of lists of one length (nested lists are further axes), or a list of
            columns of single numbers, which stand side by side.
        y: the targets likewise; None if the examples are the inputs alone.
        folder: where to write the data as `fs.data.write` does, in constant memory and with as much room again beside
            it for a while; None keeps them in memory.
        resume: go on with an interrupted writing to `folder`; rows are grouped anew.

    Returns:
        Data whose examples are `fs.Examples(x, y)`, or x alone; the names are the ids.

    Raises:
        InvalidInput: a file or column that is missing, damaged or of another type, nulls (the file, row group and
            column are named), lists of different lengths, numbers that are not finite, or what `fs.data.write` refuses.
    """
    for name, given in {"x": x, **({} if y is None else {"y": y})}.items():
        several = [given] if isinstance(given, str) else list(given) if isinstance(given, Sequence) else []
        if not several or not all(isinstance(column, str) for column in several):
            raise InvalidInput(f"{name} = {shown(given)} must be the name of a column, or a list of names")
    if not isinstance(client, str):
        raise InvalidInput(f"client = {shown(client)} must be the name of a column")
    check_flag("resume", resume)
    table = Table.at(check_path("path", path))
    counts = _counts(table, client)
    ids = sorted(counts)
    names, sizes = [str(i) for i in ids], np.array([counts[i] for i in ids], np.int64)
    columns = (x,) if y is None else (x, y)
    labels = tuple(None if isinstance(c, str) else tuple(c) for c in columns)
    labels = labels if any(labels) else ()
    if folder is None:
        leaves = _grouped(table, client, columns, ids, sizes, _Room(None))
        return FederatedData(leaves[0] if y is None else Examples(*leaves), sizes, tuple(names), labels)
    above = check_path("folder", folder).absolute().parent
    try:
        above.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=above, prefix=".grouping-") as beside:
            room = _Room(Path(beside))
            leaves = _grouped(table, client, columns, ids, sizes, room)
            return write(_clients(leaves, sizes, room), folder, names=names, resume=resume, columns=labels)
    except OSError as error:
        raise InvalidInput(
            f"cannot write to {above}: {error.strerror or error}: free space or choose another folder"
        ) from None


class _Room:
    """Where grouped rows lie: in memory, or in files of a folder that are mapped."""

    def __init__(self, folder: Path | None) -> None:
        self._folder, self._maps = folder, []

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        # there is room on the disk for all of it
        if self._folder is None:
            return np.empty(shape, dtype)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        with (self._folder / str(len(self._maps))).open("w+b") as file:
            # a mapped file that met a full disk while it is written to would kill the process
            os.posix_fallocate(file.fileno(), 0, size)
            self._maps.append(mmap.mmap(file.fileno(), size))
        return np.frombuffer(self._maps[-1], dtype).reshape(shape)

    def let_go(self) -> None:
        # to the system's page cache
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)


def _clients(leaves: Sequence[np.ndarray], sizes: np.ndarray, room: _Room) -> Iterator[Batch]:
    end = 0
    for i, size in enumerate(sizes.tolist()):
        end += size
        arrays = [leaf[end - size : end] for leaf in leaves]
        yield arrays[0] if len(arrays) == 1 else Examples(*arrays)
        if i % 1024 == 0:
            room.let_go()


def _counts(table: Table, client: str) -> dict[Any, int]:
    counts: dict[Any, int] = {}
    for where, batch in table.rows([client]):
        ids, rows = _ids(batch[client], f"{where}, column {client}")
        for name, count in zip(ids, np.bincount(rows, minlength=len(ids)).tolist(), strict=True):
            if count:  # a dictionary may have ids that no row has
                counts[name] = counts.get(name, 0) + count
    if not counts:
        raise InvalidInput(f"{table.files[0]} has no rows: there are no clients")
    return counts


def _ids(column: Any, where: str) -> tuple[list[Any], np.ndarray]:
    # the different ids of a column, and which of them each row has
    import pyarrow as arrow

    check_whole(column, where)
    coded = column if arrow.types.is_dictionary(column.type) else column.dictionary_encode()
    kind = coded.type.value_type
    texts = (arrow.types.is_string, arrow.types.is_large_string, arrow.types.is_string_view)
    if not (arrow.types.is_integer(kind) or any(is_text(kind) for is_text in texts)):
        raise InvalidInput(f"{where} has type {kind}: client ids must be integers or text")
    check_whole(coded.dictionary, where)
    ids = [to_nfc(name) if isinstance(name, str) else name for name in coded.dictionary.to_pylist()]
    return ids, coded.indices.to_numpy().astype(np.int64)


def _grouped(
    table: Table, client: str, columns: Sequence[Columns], ids: Sequence[Any], sizes: np.ndarray, room: _Room
) -> list[np.ndarray]:
    # an array for each of `columns` with all rows, client after client
    groups = [[group] if isinstance(group, str) else list(group) for group in columns]
    numbered = {name: number for number, name in enumerate(ids)}
    ends = np.cumsum(sizes)
    free = ends - sizes  # the next row of each client
    leaves: list[np.ndarray] = []
    for where, batch in table.rows([client, *itertools.chain(*groups)]):
        batch_ids, rows = _ids(batch[client], where)
        clients = np.array([numbered.get(name, -1) for name in batch_ids], np.int64)
        to = _places(clients[rows], free, ends, where)
        parts = [_array(group, batch, where) for group in columns]
        leaves = leaves or [room.empty((int(ends[-1]), *a.shape[1:]), a.dtype) for a in parts]
        for leaf, part, group in zip(leaves, parts, groups, strict=True):
            if part.shape[1:] != leaf.shape[1:]:
                raise InvalidInput(
                    f"{where}, column {group[0]} has rows of shape {part.shape[1:]}, before {leaf.shape[1:]}: bring "
                    "them to one shape"
                )
            leaf[to] = part
        room.let_go()
    if (free != ends).any():
        raise _changed(table.files[-1])
    return leaves


def _places(clients: np.ndarray, free: np.ndarray, ends: np.ndarray, where: str) -> np.ndarray:
    # the rows of `clients` go to the next free places of theirs, and `free` moves on
    # rows of one client keep their order: its k-th row here belongs k rows behind the client's next free one
    order = np.argsort(clients, kind="stable")
    ascending = clients[order]
    before = np.arange(len(order)) - np.searchsorted(ascending, ascending)
    to = np.empty(len(order), np.int64)
    to[order] = free[ascending] + before
    if ascending[0] < 0 or (to >= ends[clients]).any():
        raise _changed(where)
    np.add.at(free, clients, 1)
    return to


def _array(columns: Columns, found: dict[str, Any], where: str) -> np.ndarray:
    # one column, or several side by side
    if isinstance(columns, str):
        return numbers(found[columns], f"{where}, column {columns}")
    arrays = [numbers(found[name], f"{where}, column {name}") for name in columns]
    for name, array in zip(columns, arrays, strict=True):
        if array.ndim > 1:
            raise InvalidInput(
                f"{where}, column {name} holds lists and cannot be combined with other columns: give it alone"
            )
    return side_by_side([f"{where}, column {name}" for name in columns], arrays)


def _changed(where: object) -> InvalidInput:
    return InvalidInput(f"{where} changed while it was read: read files that no process writes to")
