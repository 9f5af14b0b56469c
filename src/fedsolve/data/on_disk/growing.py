"""The files of a folder that is being written, and what of them is sure to be there after an interruption."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.data.columns import Columns
from fedsolve.data.on_disk.description import NAMES, Column
from fedsolve.folders.append_log import open_to_append, sync
from fedsolve.folders.files import write_atomically
from fedsolve.folders.untrusted import loads

PROGRESS = "writing.json"


@dataclass
class Part:
    """A file that grows, as far as it is noted: see `Column`."""

    file: str
    dtype: str
    shape: tuple[int, ...] = ()
    start: int = 0
    rows: int = 0
    crc32: int = 0
    low: int | None = None
    high: int | None = None

    def open(self, folder: Path) -> BinaryIO:
        """The file behind the rows that are noted, what lies beyond cut off; a new one gets its header."""
        file = open_to_append(folder / self.file, self.end)
        if not self.start and self.file != NAMES:
            self.start = file.write(self.header())
        return file

    @property
    def end(self) -> int:
        """Bytes of the file as far as it is noted."""
        return self.start + self.rows * Column(**asdict(self)).width

    def header(self) -> bytes:
        """What NumPy puts before so many rows: of one length, whatever their number."""
        text = io.BytesIO()
        facts = {"descr": self.dtype, "fortran_order": False, "shape": (self.rows, *self.shape)}
        np.lib.format.write_array_header_1_0(text, facts)
        return text.getvalue()

    def append(self, file: BinaryIO, rows: np.ndarray) -> int:
        """Write rows behind the others; their bytes."""
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
    """What is sure to lie in the folder.

    Attributes:
        clients: how many.
        structure: of their examples.
        parts: the files: arrays, counts, and those of names.
        columns: the names of the arrays' columns, as `FederatedData.columns` has them.
    """

    clients: int
    structure: Any
    parts: list[Part] = field(default_factory=list)
    columns: Columns = ()

    @classmethod
    def read(cls, folder: Path) -> Progress | None:
        """What was noted in a folder; None if nothing was."""
        path = folder / PROGRESS
        if not path.exists():
            return None
        try:
            found = loads(path.read_text("utf-8"))
            parts = [Part(**{**part, "shape": tuple(part["shape"])}) for part in found["parts"]]
            columns = tuple(None if own is None else tuple(own) for own in found.get("columns", ()))
            return cls(found["clients"], found["structure"], parts, columns)
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidInput(f"{path} is damaged ({error}): remove {folder} and write it again") from None

    def note(self, folder: Path, files: Sequence[BinaryIO]) -> None:
        """Bring the files to the disk, and then say so."""
        for file in files:
            sync(file)
        write_atomically(folder / PROGRESS, json.dumps(asdict(self)))
