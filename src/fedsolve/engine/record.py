"""The record of a run while it grows: evaluations and per-round logs, saved inside the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsolve.engine.round import SENT
from fedsolve.engine.traffic import Traffic
from fedsolve.report.history import History


class Recorder:
    """Rows of evaluations and columns of rounds; turns into a `History` at the end."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._evaluations: list[dict[str, float]] = []
        self._rounds: dict[str, list[float]] = {}

    @property
    def evaluated(self) -> bool:
        """Whether there is an evaluation."""
        return bool(self._evaluations)

    @property
    def latest(self) -> dict[str, float]:
        """The last evaluation."""
        return self._evaluations[-1]

    def evaluation(self, round: int, seconds: float, metrics: dict[str, float]) -> None:
        """Add an evaluation after `round` rounds."""
        self._evaluations.append({"round": round, "seconds": seconds, **metrics})

    def log(self, first: int, last: int, logs: dict[str, np.ndarray], traffic: Traffic) -> None:
        """Add the logs of rounds `first` to `last` (exclusive, from 0)."""
        count = last - first
        columns = {name: log[:count].tolist() for name, log in logs.items() if name != SENT}
        columns["round"] = list(range(first + 1, last + 1))
        columns["bytes_up"] = (logs[SENT][:count].astype(np.int64) @ np.array(traffic.up)).tolist()
        columns["bytes_down"] = [traffic.down * int(n) for n in columns["participants"]]
        for name, values in columns.items():
            self._rounds.setdefault(name, []).extend(values)

    def entry(self, values: Mapping[str, float]) -> None:
        """Add the log of one round; a column that other rounds have is NaN in a round without it."""
        done = len(self._rounds.get("round", []))
        for name in {**self._rounds, **values}:
            column = self._rounds.setdefault(name, [float("nan")] * done)
            column.append(values.get(name, float("nan")))

    def last(self, name: str) -> float:
        """The last value of a per-round column, NaN if there is none."""
        return float(self._rounds.get(name, [float("nan")])[-1])

    def total(self, name: str) -> int:
        """The sum of a per-round count."""
        return int(sum(self._rounds.get(name, [])))

    def any(self, name: str) -> bool:
        """Whether a per-round column was ever non-zero."""
        return any(self._rounds.get(name, []))

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {"seconds": self.seconds, "evaluations": self._evaluations, "rounds": self._rounds}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Recorder:
        """What `to_dict` gave."""
        recorder = cls()
        recorder.seconds, recorder._evaluations, recorder._rounds = (
            data["seconds"],
            data["evaluations"],
            data["rounds"],
        )
        return recorder

    def history(
        self, label: str, task: str, settings: dict[str, Any], compile_seconds: float, notes: tuple[str, ...]
    ) -> History:
        """The finished record."""
        columns = {name: np.array([e[name] for e in self._evaluations]) for name in self._evaluations[0]}
        rounds = {name: np.array(values) for name, values in self._rounds.items()}
        if "epsilon" in rounds:
            notes = (*notes, f"epsilon = {self.last('epsilon'):.4g} after all rounds, at the method's delta")
        return History(
            label=label,
            task=task,
            settings=settings,
            evaluations=columns,
            rounds=rounds,
            seconds=self.seconds,
            compile_seconds=compile_seconds,
            notes=notes,
        )
