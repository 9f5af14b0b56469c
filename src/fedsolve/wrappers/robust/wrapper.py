"""Any method with a robust reduction where it takes a mean."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, ClassVar

from fedsolve.algorithm import Algorithm, name_of
from fedsolve.errors import InvalidInput
from fedsolve.types import module
from fedsolve.wrappers.base import Wrapper
from fedsolve.wrappers.robust.base import Reduction


@module
class Robust(Wrapper):
    """The method `inner` on a cohort's message reduced so that some clients may send what they like.

        server:  m <- reduction(m_i for i in S)        in place of  m <- mean over S of m_i, as each field says

    Travels and is kept: what `inner` sends and keeps. The server needs every message as it is, not only their
    sum: memory is the cohort's messages, and secure aggregation is impossible.

    A reduction is not the mean even if all clients are honest: where clients differ it leaves out what only
    few of them know, and a server optimiser that compares the mean with its parts (FedExP, FedDuA) steps by
    medians of those parts.

    Attributes:
        inner: the method; a message of it must make sense reduced otherwise than by a mean.
        reduction: such as `Median()`, `TrimmedMean(0.2)` or `Krum(attackers=3)`.

    Raises:
        InvalidInput: a method that needs the mean, or has a reduction already; what is no reduction.
    """

    title: ClassVar[str] = "Robust"
    inner: Algorithm
    reduction: Annotated[Any, Reduction] = dataclasses.field()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner.only_mean:
            raise InvalidInput(f"Robust cannot wrap {name_of(self.inner)}: {self.inner.only_mean}")
        if self.inner.privacy == "central":
            raise InvalidInput(
                f"Robust cannot wrap {name_of(self.inner)}: its noise is measured for a mean of clipped messages"
            )
        if self.inner.reduction is not None:
            raise InvalidInput(
                f"Robust cannot wrap {name_of(self.inner)}: a cohort is reduced once, give one reduction"
            )
        if not isinstance(self.reduction, Reduction):
            raise InvalidInput(f"reduction = {self.reduction!r} must be one such as Median() or Krum(3)")
