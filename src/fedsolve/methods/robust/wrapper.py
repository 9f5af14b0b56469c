"""Any method with a robust reduction in place of its mean."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort, name_of
from fedsolve.core.building import class_by_name
from fedsolve.core.errors import InvalidInput
from fedsolve.core.trees import is_not_traced
from fedsolve.core.types import Params, Scalar, Traced, converted, module, reported
from fedsolve.methods.robust.vectors import Reduction
from fedsolve.methods.wrappers.wrapper import Wrapper


@module
class RobustServer:
    """The inner server, and whether the last round had too few messages for the reduction (1) or not (0)."""

    inner: Any
    too_few: Traced = reported(
        "in some rounds fewer messages could be used than the robust reduction needs: they left the model as it was "
        "(column too_few)"
    )


def _reduction(reduction: Reduction) -> Any:
    """As it is kept: a wrapper's own reduction is a property."""
    return reduction


@class_by_name("Robust")
@module
class Robust(Wrapper):
    """Robust aggregation around any method: a reduction that tolerates malicious clients replaces the mean.

        server:  m <- reduction(m_i for i in S)        in place of  m <- mean over S of m_i, as each field says
                 nothing changes where S has fewer clients than the reduction's guarantee needs

    Travels and is kept: what `inner` sends and keeps. The server needs every message as it is, not only their
    sum: memory is the cohort's messages, and secure aggregation is impossible.

    Each reduction says of how many clients its guarantee holds (`Reduction.condition`). Cohorts that are always
    smaller are refused before a run. Where their size varies (Bernoulli cohorts, traces, clients that fail or come too
    late), a round with too few messages leaves the server as it is, counts in the column `too_few`, and the run ends
    with a note; Bernoulli cohorts that are too small on average are refused.

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
    parts: ClassVar[tuple[type, ...]] = (RobustServer,)
    inner: Algorithm
    reduction: Annotated[Any, Reduction] = converted(converter=_reduction)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner.traits.only_mean:
            raise InvalidInput(f"Robust cannot wrap {name_of(self.inner)}: {self.inner.traits.only_mean}")
        if self.inner.traits.privacy in ("central", "distributed"):
            raise InvalidInput(
                f"Robust cannot wrap {name_of(self.inner)}: its noise is measured for a mean of clipped messages"
            )
        if self.inner.traits.reduction is not None:
            raise InvalidInput(
                f"Robust cannot wrap {name_of(self.inner)}: a cohort is reduced once, give one reduction"
            )
        if not isinstance(self.reduction, Reduction):
            raise InvalidInput(f"reduction = {self.reduction!r} must be one such as Median() or Krum(3)")

    def check(self, sampling: Any, population: int) -> None:
        super().check(sampling, population)
        check_cohorts(self.reduction, sampling.at_best(population))

    def init(self, params: Params) -> RobustServer:
        return RobustServer(self.inner.init(params), jnp.zeros((), trees.dtype_of(params)))

    def update(self, server: RobustServer, message: Any, cohort: Cohort) -> RobustServer:
        # apply the inner update, unless too few messages were reduced
        enough = cohort.size >= self.reduction.fewest
        after = self.inner.update(server.inner, message, cohort)
        return RobustServer(
            trees.where(enough, after, server.inner), jnp.where(enough, 0, 1).astype(server.too_few.dtype)
        )


def fewest_messages(algorithm: Algorithm) -> Scalar:
    """The fewest messages of a round that a method's own reduction is meant for, 1 for a mean."""
    return getattr(algorithm.traits.reduction, "fewest", 1)


def check_cohorts(reduction: Reduction, clients: float | None) -> None:
    """Raise `InvalidInput` if cohorts of at most, or on average, so many clients are too few for a reduction."""
    # A reduction whose numbers are traced passes, and so do cohorts of a size that nobody knows (None).
    if clients is None or not all(is_not_traced(x) for x in jax.tree.leaves(reduction)):
        return
    fewest = math.ceil(float(reduction.fewest))
    if clients < fewest:
        raise InvalidInput(
            f"{reduction!r} protects only if {reduction.condition}, i.e. with at least n = {fewest} clients a round, "
            f"and a round has {clients:g}: give more clients a round, or a reduction for fewer"
        )
