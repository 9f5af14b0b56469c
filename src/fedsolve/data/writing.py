"""Writing federated data to a folder: one pass over the clients, in the memory of one client.

The description is written last, so that a folder without one is unfinished. What an interrupted writing is sure to have
is told by a file of progress, replaced after every 64 MB; what lies beyond is cut off when it goes on.
"""

from __future__ import annotations

import io
import itertools
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from fedsolve.core.errors import InvalidInput, check_flag, check_path, of_type
from fedsolve.core.types import Batch
from fedsolve.data.columns import Columns, Numbered, check_names, check_written_names, named_arrays
from fedsolve.data.federated import FederatedData, first_nonfinite_row
from fedsolve.data.stored import (
    COUNTS,
    DESCRIPTION,
    NAME_ENDS,
    NAMES,
    Column,
    Description,
    StoredData,
    structure_of,
)
from fedsolve.data.stored import open as open_stored
from fedsolve.folders.files import locked, write_atomically
from fedsolve.folders.logs import open_to_append, sync
from fedsolve.folders.sealed import LARGEST
from fedsolve.folders.untrusted import MALFORMED, loads, open_regular, read_bytes

PROGRESS = "writing.json"


class Part(Column):
    """A file that grows, as far as it is noted."""

    def open(self, folder: Path) -> BinaryIO:
        # what lies beyond the noted rows is cut off; a new file gets its header
        file = open_to_append(folder / self.file, self.end)
        if not self.start and self.file != NAMES:
            self.start = file.write(self.header())
        return file

    @property
    def end(self) -> int:
        # bytes of the file as far as it is noted
        return self.start + self.rows * self.width

    def header(self) -> bytes:
        # NumPy's; of one length, whatever the number of rows
        text = io.BytesIO()
        facts = {"descr": self.dtype, "fortran_order": False, "shape": (self.rows, *self.shape)}
        np.lib.format.write_array_header_1_0(text, facts)
        return text.getvalue()

    def append(self, file: BinaryIO, rows: np.ndarray) -> int:
        # returns the bytes written
        content = np.ascontiguousarray(rows).view(np.uint8).reshape(-1).data if rows.size else b""
        file.write(content)
        self.crc32 = zlib.crc32(content, self.crc32)
        if rows.dtype.kind in "iub" and rows.size and (self.low is not None or not self.rows):
            low, high = int(rows.min()), int(rows.max())
            self.low = low if self.low is None else min(self.low, low)
            self.high = high if self.high is None else max(self.high, high)
        self.rows += len(rows)
        return len(content)


@dataclass
class Progress:
    """What is sure to lie in the folder."""

    clients: int  # how many
    structure: Any  # of their examples
    parts: list[Part] = field(default_factory=list)  # the files: arrays, counts, and those of names
    columns: Columns = ()  # the names of the arrays' columns, as `FederatedData.columns` has them

    @classmethod
    def read(cls, folder: Path) -> Progress | None:
        # None if nothing was noted
        path = folder / PROGRESS
        if not path.exists():
            return None
        try:
            found = loads(read_bytes(path, LARGEST, follow=False))
            parts = [Part(**{**part, "shape": tuple(part["shape"])}) for part in found["parts"]]
            columns = tuple(None if own is None else tuple(own) for own in found.get("columns", ()))
            return cls(found["clients"], found["structure"], parts, columns)
        except (OSError, *MALFORMED) as error:
            raise InvalidInput(f"{path} is damaged ({error}): remove {folder} and write it again") from None

    def note(self, folder: Path, files: Sequence[BinaryIO]) -> None:
        # files first, then the note that says so
        for file in files:
            sync(file)
        write_atomically(folder / PROGRESS, json.dumps(asdict(self)))


_BETWEEN = 2**26  # bytes between two notes of progress


def write(
    clients: FederatedData | Iterable[Batch],
    folder: str | Path,
    *,
    names: Iterable[str] = (),
    resume: bool = False,
    columns: Columns = (),
) -> StoredData:
    """Write clients' examples to a folder for `fs.data.open`; one client is in memory at a time.

    Args:
        clients: a pytree of arrays for each client, their first axis its examples, all of one structure, with the same
            types; a list, or a generator. Containers are `fs.Examples`,
            `fs.SparseRows`, tuples, lists and dicts.
        folder: a new folder, or the one of an interrupted writing.
        names: one for each client, an iterable too; by default those of `FederatedData`, else `client 0` and so on.
        resume: go on with an interrupted writing: the clients that the folder has are passed over (of a list they are
            not looked at), and the last of them must be as it was.
        columns: names of the columns of each array, as `FederatedData.columns` has them, None for one without; by
            default those of `FederatedData`, else of the first client's tables. Later tables are put in their order.

    Returns:
        The data of the folder, opened.

    Raises:
        InvalidInput: the folder holds data or an unfinished writing already, cannot be written, or its disk is full
            (what was written stays, and `resume` goes on); clients that differ in structure, types or shapes; a client
            without examples or with a number that is not finite; two clients of one name.
    """
    folder = check_path("folder", folder)
    check_flag("resume", resume)
    if not isinstance(names, Iterable) or isinstance(names, str):
        raise InvalidInput(f"names are {of_type(names)}: give a list of names, one for each client")
    if isinstance(clients, FederatedData):
        names = names or (() if type(clients.names) is Numbered else clients.names)
        columns = clients.columns
    elif isinstance(clients, str | bytes) or not isinstance(clients, Iterable):
        raise InvalidInput(f"clients = {of_type(clients)} must be a list or a generator of pytrees of arrays")
    if isinstance(names, Sequence):  # what is drawn one by one is compared when all of it was written
        check_names(names)
    with locked(folder):
        if (folder / DESCRIPTION).exists():
            raise InvalidInput(f"{folder} holds data already: open it, or choose another folder")
        if (folder / PROGRESS).exists() and not resume:
            raise InvalidInput(
                f"{folder} holds unfinished data: continue with resume=True, or choose another folder"
            )
        try:
            _write(clients, iter(names) if names else None, folder, columns)
        except OSError as error:
            raise InvalidInput(
                f"cannot write to {folder}: {error.strerror or error}; written data are kept: free space and continue "
                "with resume=True"
            ) from None
    return open_stored(folder)


def _write(
    clients: FederatedData | Iterable[Batch], names: Iterator[str] | None, folder: Path, columns: Columns
) -> None:
    progress = Progress.read(folder)
    have = 0 if progress is None else progress.clients
    rest = iter(_clients_from(clients, max(have - 1, 0)))
    if names is not None:
        next(itertools.islice(names, have, have), None)
    if progress is not None:
        _check_last(folder, progress, rest)
    first = next(rest, None)
    if first is None and progress is None:
        raise InvalidInput("there are no clients: give at least one")
    if progress is None:
        leaves, columns = _leaves(0, first, columns)
        progress = Progress(0, structure_of(first), columns=columns)
        parts = [Part(f"examples-{i}.npy", a.dtype.str, a.shape[1:]) for i, a in enumerate(leaves)]
        progress.parts = [*parts, Part(COUNTS, "<i8")]
        if names is not None:
            progress.parts += [Part(NAMES, "|u1"), Part(NAME_ENDS, "<i8")]
    files = [part.open(folder) for part in progress.parts]
    try:
        pending = 0
        if isinstance(clients, FederatedData):
            blocks = _blocks(clients, progress.clients)
        else:
            blocks = _one_by_one(itertools.chain([] if first is None else [first], rest), progress)
        for leaves, counts in blocks:
            pending += _append(progress, files, leaves, counts, names)
            if pending >= _BETWEEN:
                progress.note(folder, files)
                pending = 0
        progress.note(folder, files)
        for part, file in zip(progress.parts, files, strict=True):
            if part.start:
                file.seek(0)
                file.write(part.header())
                sync(file)
    finally:
        for file in files:
            file.close()
    arrays = sum(part.file.startswith("examples-") for part in progress.parts)
    leaves, index = tuple(progress.parts[:arrays]), tuple(progress.parts[arrays:])
    facts = progress.clients, leaves[0].rows, progress.structure
    described = Description(*facts, leaves, index, progress.columns)
    if names is not None:
        text, ends = (np.memmap(folder / c.file, c.dtype, "r", c.start) for c in index[1:])
        check_written_names(text.data, ends)
    write_atomically(folder / DESCRIPTION, described.text())
    (folder / PROGRESS).unlink()


def _clients_from(clients: FederatedData | Iterable[Batch], start: int) -> Iterable[Batch]:
    # clients before `start` are not made where they can be left alone
    if isinstance(clients, FederatedData):
        return map(clients.client, range(start, clients.num_clients))
    if isinstance(clients, Sequence):
        return (clients[i] for i in range(start, len(clients)))
    return itertools.islice(clients, start, None)


def _blocks(data: FederatedData, start: int) -> Iterator[tuple[list[np.ndarray], np.ndarray]]:
    # many clients at once: they were checked when the data were made
    arrays = jax.tree.leaves(data.examples)
    rows = max(1, _BETWEEN // max(1, sum(a.nbytes for a in arrays) // data.num_examples))
    ends = data.offsets + data.counts
    while start < data.num_clients:
        first = int(data.offsets[start])
        stop = max(start + 1, int(np.searchsorted(ends, first + rows, side="right")))
        yield [_little_endian(a[first : int(ends[stop - 1])]) for a in arrays], data.counts[start:stop]
        start = stop


def _one_by_one(
    clients: Iterable[Batch], progress: Progress
) -> Iterator[tuple[list[np.ndarray], np.ndarray]]:
    # each must have the types and shapes of the first
    for i, client in enumerate(clients, progress.clients):
        leaves, progress.columns = _leaves(i, client, progress.columns)
        if structure_of(client) != progress.structure:
            raise InvalidInput(f"client {i} has fields unlike those of client 0: give all the same")
        for part, a in zip(progress.parts, leaves, strict=False):
            if (a.dtype.str, a.shape[1:]) != (part.dtype, part.shape):
                raise InvalidInput(
                    f"{part.file}: client {i} has rows of shape {a.shape[1:]} and type {a.dtype}, client 0 "
                    f"{part.shape} and {np.dtype(part.dtype)}: give all the same"
                )
        yield leaves, np.array([len(leaves[0])])


def _append(
    progress: Progress,
    files: Sequence[BinaryIO],
    leaves: Sequence[np.ndarray],
    counts: np.ndarray,
    names: Iterator[str] | None,
) -> int:
    # returns the bytes written
    rows = [*leaves, counts.astype("<i8")]
    if names is not None:
        found = list(itertools.islice(names, len(counts)))
        for i in range(len(counts)):
            if i >= len(found) or not isinstance(found[i], str) or not found[i]:
                given = found[i] if i < len(found) else None
                raise InvalidInput(
                    f"names: client {progress.clients + i} has {of_type(given)}: give text for each client"
                )
        texts = [name.encode() for name in found]
        ends = progress.parts[-2].rows + np.cumsum([len(text) for text in texts])
        rows += [np.frombuffer(b"".join(texts), np.uint8), ends.astype("<i8")]
    written = [part.append(file, own) for part, file, own in zip(progress.parts, files, rows, strict=True)]
    progress.clients += len(counts)
    return sum(written)


def _leaves(i: int, client: Any, columns: Columns) -> tuple[list[np.ndarray], Columns]:
    # with as many rows each, at least one, of finite numbers; and the names of their columns
    arrays, columns = named_arrays(f"client {i}:", client, columns)
    given = jax.tree_util.tree_leaves_with_path(arrays)
    lengths = {len(a) if a.ndim else 0 for _, a in given}
    if len(lengths) != 1 or 0 in lengths:
        raise InvalidInput(
            f"client {i} has fields of lengths {sorted(lengths)}: give all one length, at least 1"
        )
    for path, a in given:
        where = f"field {jax.tree_util.keystr(path) or 'of examples'} of client {i}"
        if a.dtype.kind == "V":
            raise InvalidInput(
                f"{where} has type {a.dtype}, which NumPy's files do not have: give float16 or float32"
            )
        if (row := first_nonfinite_row(a)) is not None:
            raise InvalidInput(
                f"{where} holds a number that is not finite in row {row}: clean the data first"
            )
    return [_little_endian(a) for _, a in given], columns


def _little_endian(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _check_last(folder: Path, progress: Progress, rest: Iterator[Batch]) -> None:
    # the last client that the folder has must be the one that is given in its place
    i = progress.clients - 1
    given = next(rest, None)
    leaves = [] if given is None else _leaves(i, given, progress.columns)[0]
    same = given is not None and structure_of(given) == progress.structure
    for part, a in zip(progress.parts, leaves, strict=False):
        with open_regular(folder / part.file, follow=False) as file:
            file.seek(part.end - a.nbytes if a.nbytes <= part.end else 0)
            same &= (a.dtype.str, a.shape[1:]) == (part.dtype, part.shape)
            same &= file.read(a.nbytes) == np.ascontiguousarray(a).tobytes()
    if not same:
        raise InvalidInput(
            f"client {i} is not the one that {folder} has: resume with the clients that it was begun with, or write to "
            "another folder"
        )
