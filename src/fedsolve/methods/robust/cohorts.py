"""How many messages a method's reduction needs, and the refusal of cohorts that never have so many."""

from __future__ import annotations

import math

import jax

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput
from fedsolve.core.trees import is_not_traced
from fedsolve.core.types import Scalar
from fedsolve.methods.robust.reduction import Reduction


def fewest_messages(algorithm: Algorithm) -> Scalar:
    """The fewest messages of a round that a method's own reduction is meant for, 1 for a mean."""
    return getattr(algorithm.traits.reduction, "fewest", 1)


def check_cohorts(reduction: Reduction, clients: float | None) -> None:
    """Raise `InvalidInput` if cohorts of at most, or on average, so many clients are too few for a reduction.

    Args:
        reduction: whose guarantee is meant; one whose numbers are traced passes.
        clients: of a round, None where nobody knows.
    """
    if clients is None or not all(is_not_traced(x) for x in jax.tree.leaves(reduction)):
        return
    fewest = math.ceil(float(reduction.fewest))
    if clients < fewest:
        raise InvalidInput(
            f"{reduction!r} protects where {reduction.condition}, so from n = {fewest} clients a round on, and a round "
            f"has {clients:g}: give more clients a round, or a reduction for fewer"
        )
