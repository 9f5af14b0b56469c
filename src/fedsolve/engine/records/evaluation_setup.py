"""How a run is evaluated on its way, how often and for which callbacks: what may change when it is resumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput
from fedsolve.engine.reacting import reacts
from fedsolve.engine.records.fingerprint import function_name
from fedsolve.engine.records.identity import describe
from fedsolve.results.callbacks import Callback


@dataclass(frozen=True)
class EvaluationSetup:
    """The evaluations of a run, and what follows from them.

    Attributes:
        eval_every: rounds between them.
        reacting: whether a rate follows from them.
        deciding: callbacks that may end the run, in words.
        others: those that never do, in words, but trackers.
    """

    eval_every: int
    reacting: bool
    deciding: tuple[str, ...]
    others: tuple[str, ...]

    @classmethod
    def of(cls, eval_every: int, method: Algorithm, callbacks: Sequence[Callback]) -> EvaluationSetup:
        """Those of a run with a method and callbacks."""
        deciding = tuple(_words(c) for c in callbacks if not getattr(c, "observes_only", False))
        others = tuple(
            _words(c) for c in callbacks if getattr(c, "observes_only", False) and dataclasses.is_dataclass(c)
        )
        return cls(eval_every, reacts(method), deciding, others)

    def facts(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"eval_every": self.eval_every, "callbacks": [*self.deciding, *self.others]}

    def changed(self, path: Path, before: Mapping[str, Any], done: int) -> list[str]:
        """What differs from the part of a run that a checkpoint has, in words; nothing that decides a number may.

        Args:
            path: the checkpoint.
            before: its `facts`.
            done: rounds until there.

        Raises:
            InvalidInput: other rounds are evaluated, and a rate or a callback follows from that.
        """
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
    """A callback's words without the digest of what it does."""
    return words.partition("#")[0]


def _words(callback: Any) -> str:
    """A callback as it was made: fields that are given, or the function and what it does."""
    if dataclasses.is_dataclass(callback) and not isinstance(callback, type):
        given = (f for f in dataclasses.fields(callback) if f.init)
        parts = ", ".join(f"{f.name}={describe(getattr(callback, f.name))}" for f in given)
        return f"{type(callback).__name__}({parts})"
    return function_name(callback)
