"""How a federation deals with clients that are late, lost or wrong: stated once, checked at the start."""

from __future__ import annotations

import math
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
        grace: seconds that a round stays open once so many count; None or infinity for all of `round_seconds`.
        shortfall: what is done with a round of fewer: "repeat" asks again those whose reply is missing or
            did not count; "skip" leaves the model as it is and goes on to the next round.
        repeats: how often one round is asked for again before the run ends.
        over_select: share by which more clients are asked than `clients_per_round`; the first replies count.
        takeover: whether a client's number may go to another node once the node that had it is no longer connected.
            A node without a key of its own (`--auth-supernode-private-key`) is another one after each start.

    Raises:
        InvalidInput: a deadline that is not positive, or a number that fits no cohort.
    """

    quorum: int | None = None
    connect_seconds: float = 120.0
    round_seconds: float = 600.0
    min_replies: int | None = None
    grace: float | None = None
    shortfall: Literal["repeat", "skip"] = "repeat"
    repeats: int = 3
    over_select: float = 0.0
    takeover: bool = True

    def __post_init__(self) -> None:
        check_range("connect_seconds", self.connect_seconds, above=0)
        check_range("round_seconds", self.round_seconds, above=0)
        check_whole("quorum", self.quorum, 1, "None for all")
        check_whole("min_replies", self.min_replies, 1, "None for half of a cohort")
        check_whole("repeats", self.repeats, 0)
        check_range("over_select", self.over_select, at_least=0)
        if self.grace is not None and self.grace != math.inf:
            check_range("grace", self.grace, at_least=0)
        if self.shortfall not in ("repeat", "skip"):
            raise InvalidInput(f"shortfall = {self.shortfall!r} must be 'repeat' or 'skip'")
        if not isinstance(self.takeover, bool):
            raise InvalidInput(f"takeover = {self.takeover!r} must be true or false")

    def check(self, population: int) -> None:
        """Raise `InvalidInput` if a number exceeds the clients that there are."""
        for name in ("quorum", "min_replies"):
            value = getattr(self, name)
            if value is not None and value > population:
                raise InvalidInput(f"{name} = {value} but the federation has {population} clients")

    def needed(self, cohort: int) -> int:
        """Replies that must count in a round of this cohort."""
        return -(-cohort // 2) if self.min_replies is None else min(self.min_replies, cohort)


def check_whole(name: str, value: object, least: int, otherwise: str = "") -> None:
    """Raise `InvalidInput` unless a setting is a whole number; None passes where `otherwise` says what it means."""
    if value is None and otherwise:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        more = f", or {otherwise}" if otherwise else ""
        raise InvalidInput(f"{name} = {value!r} must be a whole number of at least {least}{more}")
