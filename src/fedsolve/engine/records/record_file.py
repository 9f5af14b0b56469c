"""The record of a run on the disk: a file that only grows, beside the checkpoint.

A save appends the rows that are new, and the checkpoint that is written after them says how many bytes of the file
are its record and what their checksum is. What a killed process appended beyond that is cut off when the next
rows are written. So a save costs what is new, and an older checkpoint finds its record in the same file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.engine.records.record import Recorder, Rows
from fedsolve.folders.append_log import AppendLog
from fedsolve.folders.untrusted import loads

RECORD = "record.bin"
_PARTS = ("evaluations", "rounds", "totals")


class RecordFile:
    """The file of one record, in the folder of its checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._log = AppendLog(folder / RECORD)
        self._counts: dict[str, int] = dict.fromkeys(_PARTS, 0)

    @property
    def path(self) -> Path:
        """The file."""
        return self._log.path

    def append(self, recorder: Recorder) -> dict[str, Any]:
        """Write the rows that are new; what a checkpoint keeps of it, for `restore`.

        Raises:
            InvalidInput: the disk is full, or the file cannot be written.
        """
        parts = {name: getattr(recorder, name) for name in _PARTS}
        self._log.append(_encode({name: part.arrays(self._counts[name]) for name, part in parts.items()}))
        self._counts = {name: part.count for name, part in parts.items()}
        facts = {"bytes": self._log.bytes, "checksum": self._log.checksum, **self._counts}
        return {**facts, "seconds": recorder.seconds, "sums": dict(recorder.sums)}

    def restore(self, facts: dict[str, Any]) -> Recorder:
        """The record that a checkpoint speaks of; what is appended next follows it.

        Raises:
            InvalidInput: the file is missing, cut short or damaged.
        """
        log = AppendLog(self.path, facts["bytes"], facts["checksum"])
        text = log.read("the record")
        recorder = Recorder()
        recorder.seconds, recorder.sums = facts["seconds"], dict(facts.get("sums", {}))
        parts: dict[str, Rows] = {name: getattr(recorder, name) for name in _PARTS}
        at = 0
        while at < len(text):
            at = _decode(text, at, parts)
        self._log, self._counts = log, {name: facts.get(name, 0) for name in _PARTS}
        if "sums" not in facts:  # of a checkpoint from before there were any
            recorder.count_again()
        return recorder


def _encode(parts: dict[str, dict[str, np.ndarray]]) -> bytes:
    """Rows as bytes: a line that names the columns of each part, their types and their number of rows; the columns."""
    columns = [x for part in parts.values() for x in part.values()]
    line = {
        part: {name: [x.dtype.str, len(x)] for name, x in columns.items()} for part, columns in parts.items()
    }
    return b"".join([json.dumps(line).encode(), b"\n", *(x.tobytes() for x in columns)])


def _decode(text: bytes, at: int, parts: dict[str, Rows]) -> int:
    """Add the rows that were written at a place; the place after them."""
    end = text.index(b"\n", at)
    line, at = loads(text[at:end]), end + 1
    for part, columns in line.items():
        rows = {}
        for name, (kind, count) in columns.items():
            rows[name] = np.frombuffer(text, kind, count, at)
            at += rows[name].nbytes
        if rows:
            parts[part].add(rows)
    return at
