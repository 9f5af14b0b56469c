"""How a federation deals with clients that are late, lost or wrong: stated once, checked at the start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedsolve.errors import FedsolveError, InvalidInput, check_range


class Unavailable(FedsolveError):
    """Too few clients were there, or answered well, by the deadline; the last checkpoint is kept."""

    exit_code = 4


@dataclass(frozen=True)
class Policy:
    """Deadlines, and what happens when too few replies of a round count.

    Attributes:
        quorum: clients that must be connected before the first round; None for all.
        connect_seconds: how long to wait for them, and in a round for those of its cohort.
        round_seconds: how long to wait for the replies of a round.
        min_replies: replies that must count for a round to be used; None for half of its cohort, rounded up.
        shortfall: what is done with a round of fewer: "repeat" asks again those whose reply is missing or
            did not count; "skip" leaves the model as it is and goes on to the next round.
        repeats: how often one round is asked for again before the run ends.

    Raises:
        InvalidInput: a deadline that is not positive, or a number that fits no cohort.
    """

    quorum: int | None = None
    connect_seconds: float = 120.0
    round_seconds: float = 600.0
    min_replies: int | None = None
    shortfall: Literal["repeat", "skip"] = "repeat"
    repeats: int = 3

    def __post_init__(self) -> None:
        check_range("connect_seconds", self.connect_seconds, above=0)
        check_range("round_seconds", self.round_seconds, above=0)
        check_range("quorum", self.quorum, at_least=1)
        check_range("min_replies", self.min_replies, at_least=1)
        check_range("repeats", self.repeats, at_least=0)
        if self.shortfall not in ("repeat", "skip"):
            raise InvalidInput(f"shortfall = {self.shortfall!r} must be 'repeat' or 'skip'")

    def check(self, population: int) -> None:
        """Raise `InvalidInput` if a number exceeds the clients that there are."""
        for name in ("quorum", "min_replies"):
            value = getattr(self, name)
            if value is not None and value > population:
                raise InvalidInput(f"{name} = {value} but the federation has {population} clients")

    def needed(self, cohort: int) -> int:
        """Replies that must count in a round of this cohort."""
        return -(-cohort // 2) if self.min_replies is None else min(self.min_replies, cohort)
