"""The record of a run while it grows, in memory and on disk, and the bytes that travel in a round.

A save appends the rows that are new, and the checkpoint that is written after them says how many bytes of the file
are its record and what their checksum is. What a killed process appended beyond that is cut off when the next
rows are written. So a save costs what is new, and an older checkpoint finds its record in the same file.
"""

from __future__ import annotations

import dataclasses
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput
from fedsolve.core.fleets import Timeline
from fedsolve.engine.checks.methods import Traffic
from fedsolve.engine.compute.round import SENT
from fedsolve.engine.feedback_schedules import has_feedback
from fedsolve.engine.identity import describe, function_name
from fedsolve.folders.logs import AppendLog
from fedsolve.folders.untrusted import loads
from fedsolve.results.callbacks import Callback
from fedsolve.results.history import History

# How a run is evaluated on its way, how often and for which callbacks: what may change when it is resumed.


@dataclass(frozen=True)
class EvaluationSetup:
    """The evaluations of a run, and what follows from them."""

    # `reacting`: whether a rate does; `deciding` are the callbacks that may end the run, in words, and `others` those
    # that never do, but trackers.

    eval_every: int
    reacting: bool
    deciding: tuple[str, ...]
    others: tuple[str, ...]

    @classmethod
    def of(cls, eval_every: int, method: Algorithm, callbacks: Sequence[Callback]) -> EvaluationSetup:
        deciding = tuple(_words(c) for c in callbacks if not getattr(c, "observes_only", False))
        others = tuple(
            _words(c) for c in callbacks if getattr(c, "observes_only", False) and dataclasses.is_dataclass(c)
        )
        return cls(eval_every, has_feedback(method), deciding, others)

    def facts(self) -> dict[str, Any]:
        return {"eval_every": self.eval_every, "callbacks": [*self.deciding, *self.others]}

    def changed(self, path: Path, before: Mapping[str, Any], done: int) -> list[str]:
        """What differs from the part of a run that a checkpoint has, in words; nothing that decides a number may."""
        # before: its `facts`
        notes = []
        if before["eval_every"] != self.eval_every:
            follows = "its rate reacts to evaluations" if self.reacting else ""
            if not follows and self.deciding:
                follows = f"its callback {_without_digest(self.deciding[0])} may end the run at an evaluation"
            if follows:
                raise InvalidInput(
                    f"the checkpoint {path} has eval_every = {before['eval_every']}, this run {self.eval_every}, and "
                    f"{follows}: give eval_every = {before['eval_every']}, or start again in another folder"
                )
            notes.append(
                f"evaluated every {before['eval_every']} rounds up to round {done}, from there on every "
                f"{self.eval_every}"
            )
        now = [*self.deciding, *self.others]
        if before["callbacks"] != now:
            was, goes_on = (
                ", ".join(map(_without_digest, names)) or "none" for names in (before["callbacks"], now)
            )
            same = " (which does something else)" if was == goes_on else ""
            notes.append(f"callbacks up to round {done}: {was}; from there on: {goes_on}{same}")
        return notes


def _without_digest(words: str) -> str:
    # a callback's words without the digest of what it does
    return words.partition("#")[0]


def _words(callback: Any) -> str:
    # a callback as it was made: fields that are given, or the function and what it does
    if dataclasses.is_dataclass(callback) and not isinstance(callback, type):
        given = (f for f in dataclasses.fields(callback) if f.init)
        parts = ", ".join(f"{f.name}={describe(getattr(callback, f.name))}" for f in given)
        return f"{type(callback).__name__}({parts})"
    return function_name(callback)


RECORD = "record.bin"
_PARTS = ("evaluations", "rounds", "totals")
_INTEGER, _FLOAT = "q", "d"  # as `array` calls int64 and float64
_SUMMED = ("participants", "dropped", "rejected", "asked", "bytes_up", "bytes_down")


class Rows:
    """Columns that grow by rows, int64 where every value is an integer; what a row lacks is NaN."""

    def __init__(self) -> None:
        self.columns: dict[str, array] = {}
        self.count = 0

    def add(self, values: Mapping[str, Any]) -> None:
        """Further rows: numbers for one, or arrays of one length for several."""
        given = {name: np.atleast_1d(np.asarray(x)) for name, x in values.items()}
        more = len(next(iter(given.values())))
        for name in {**self.columns, **given}:
            rows = given[name] if name in given else np.full(more, np.nan)
            kind = _FLOAT if np.issubdtype(rows.dtype, np.inexact) else _INTEGER
            column = self.columns.get(name)
            if column is None:
                column = array(_FLOAT, [float("nan")]) * self.count if self.count else array(kind)
            if column.typecode != kind:
                column, kind = array(_FLOAT, column), _FLOAT
            column.frombytes(rows.astype(kind).tobytes())
            self.columns[name] = column
        self.count += more

    def arrays(self, first: int = 0) -> dict[str, np.ndarray]:
        return {name: np.array(x[first:], x.typecode) for name, x in self.columns.items()}


class Recorder:
    """Rows of evaluations and of rounds; turns into a `History` at the end."""

    # Counts of rounds are summed as they come (`sums` of all so far, `totals` at each evaluation), so that no total
    # depends on which rounds have a row.

    def __init__(self) -> None:
        self.seconds = 0.0
        self.evaluations = Rows()
        self.rounds = Rows()
        self.totals = Rows()
        self.sums: dict[str, int] = {}

    @property
    def evaluated(self) -> bool:
        return self.evaluations.count > 0

    @property
    def latest(self) -> dict[str, float]:
        return {name: values[-1] for name, values in self.evaluations.columns.items()}

    def evaluation(self, round: int, seconds: float, metrics: dict[str, float]) -> None:
        self.evaluations.add({"round": round, "seconds": seconds, **metrics})
        if self.sums:
            self.totals.add({"round": round, **self.sums})

    def log(
        self,
        first: int,
        last: int,
        logs: dict[str, np.ndarray],
        traffic: Traffic,
        timeline: Timeline | None = None,
    ) -> None:
        """Add the logs of rounds `first` to `last` (exclusive, from 0), with their times where there is a clock."""
        count = last - first
        # logs have room for the longest call: rows beyond `count` are of no round
        columns = {name: log[:count] for name, log in logs.items() if name != SENT}
        columns["round"] = np.arange(first + 1, last + 1)
        # (rounds, variants) @ (variants,): messages of each form by the bytes of one
        columns["bytes_up"] = logs[SENT][:count].astype(np.int64) @ np.array(traffic.up)
        # without a clock whoever is drawn takes part; on one, some are late or drop out
        asked = columns["participants"].astype(np.int64)
        if timeline is not None:
            asked = timeline.asked[first:last]
            columns |= {
                "asked": asked,
                "time": timeline.time[first:last],
                "waited": timeline.waited[first:last],
            }
            if timeline.joules is not None:
                columns["energy"] = timeline.joules[first:last]
        columns["bytes_down"] = traffic.down * asked
        self._sum(columns)
        self.rounds.add(columns)

    def entry(self, values: Mapping[str, float]) -> None:
        """Add the log of one round; a column that other rounds have is NaN in a round without it."""
        self._sum(values)
        self.rounds.add(values)

    def _sum(self, columns: Mapping[str, Any]) -> None:
        for name in _SUMMED:
            if name in columns:
                self.sums[name] = self.sums.get(name, 0) + int(np.sum(columns[name]))

    def count_again(self) -> None:
        """Sums and totals from the rows, of a record that was written without them: every round has a row there."""
        rounds = self.rounds.arrays()
        for done in self.evaluations.columns["round"]:
            before = rounds["round"] <= done
            if before.any():
                self.totals.add(
                    {"round": done, **{n: int(rounds[n][before].sum()) for n in _SUMMED if n in rounds}}
                )
        self._sum(rounds)

    def last(self, name: str) -> float:
        """The last value of a per-round column, NaN if there is none."""
        column = self.rounds.columns.get(name)
        return float(column[-1]) if column else float("nan")

    def total(self, name: str) -> int:
        return self.sums.get(name, 0)

    def any(self, name: str) -> bool:
        return any(self.rounds.columns.get(name, ()))

    def history(
        self, label: str, task: str, settings: dict[str, Any], compile_seconds: float, notes: tuple[str, ...]
    ) -> History:
        rounds = self.rounds.arrays() or {"round": np.zeros(0, np.int64)}
        totals = self.totals.arrays()
        if self.sums and (not totals or totals["round"][-1] != rounds["round"][-1]):
            after = Rows()
            if totals:  # none before the second evaluation
                after.add(totals)
            after.add({"round": rounds["round"][-1], **self.sums})
            totals = after.arrays()
        if "epsilon" in rounds:
            notes = (*notes, f"epsilon = {self.last('epsilon'):.4g} after all rounds, at the method's delta")
        return History(
            label=label,
            task=task,
            settings=settings,
            evaluations=self.evaluations.arrays(),
            rounds=rounds,
            seconds=self.seconds,
            compile_seconds=compile_seconds,
            notes=notes,
            totals=totals,
        )


class RecordFile:
    """The file of one record, in the folder of its checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._log = AppendLog(folder / RECORD)
        self._counts: dict[str, int] = dict.fromkeys(_PARTS, 0)

    @property
    def path(self) -> Path:
        return self._log.path

    def append(self, recorder: Recorder) -> dict[str, Any]:
        """Write the rows that are new; what a checkpoint keeps of it, for `restore`."""
        parts = {name: getattr(recorder, name) for name in _PARTS}
        self._log.append(_encode({name: part.arrays(self._counts[name]) for name, part in parts.items()}))
        self._counts = {name: part.count for name, part in parts.items()}
        facts = {"bytes": self._log.bytes, "checksum": self._log.checksum, **self._counts}
        return {**facts, "seconds": recorder.seconds, "sums": dict(recorder.sums)}

    def restore(self, facts: dict[str, Any]) -> Recorder:
        """The record that a checkpoint speaks of; what is appended next follows it."""
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
    # rows as bytes: a line that names the columns of each part, their types and their number of rows; the
    # columns
    columns = [x for part in parts.values() for x in part.values()]
    line = {
        part: {name: [x.dtype.str, len(x)] for name, x in columns.items()} for part, columns in parts.items()
    }
    return b"".join([json.dumps(line).encode(), b"\n", *(x.tobytes() for x in columns)])


def _decode(text: bytes, at: int, parts: dict[str, Rows]) -> int:
    # add the rows that were written at a place; the place after them
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
