"""The plan that is accounted for: what its rounds cost, and whether a run keeps to it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedsolve.core import trees
from fedsolve.core.checks import check_range, is_plain_number
from fedsolve.core.errors import InvalidInput
from fedsolve.methods.privacy.accounting import gaussian_table
from fedsolve.methods.privacy.loss_distributions import constant_table
from fedsolve.methods.privacy.renyi import renyi
from fedsolve.methods.privacy.skellam import skellam_renyi

_UNKNOWN = {"losses": constant_table(math.inf)}


def account(method: Any) -> dict[str, Any]:
    """`renyi` and `losses` of a private method, of numbers that were just given; a run's arrays bring theirs along."""
    z, delta, found = method.noise_multiplier, method.delta, {}
    if not trees.is_not_traced(delta):  # the table is that of another delta
        found |= _UNKNOWN
    if not trees.is_not_traced(z):
        return found
    setting: Any = {"population": method.population, "cohort": method.cohort, "sampling": method.sampling}
    new = is_plain_number(z) or method.renyi is None
    if method.at == "distributed":
        # no privacy loss distribution is known in many dimensions
        return found | ({"renyi": np.array(skellam_renyi(float(z), **setting))} if new else {}) | _UNKNOWN
    if new:
        found["renyi"] = renyi(float(z), **setting)
    if trees.is_not_traced(delta) and (new or method.losses is None or is_plain_number(delta)):
        found["losses"] = gaussian_table(float(z), delta=float(delta), **setting)
    return found


def check_given(method: Any) -> None:
    """Raise `InvalidInput` unless what `DP` was given besides the accounted setting is in its range."""
    check_range("clip_norm", method.clip_norm, above=0)
    check_range("share", method.share, above=0, below=1)
    check_range("quantile", method.quantile, at_least=0, at_most=1)
    check_range("quantile_lr", method.quantile_lr, above=0)
    for name, value, known in (
        ("clipping", method.clipping, ("fixed", "adaptive")),
        ("at", method.at, ("server", "client", "distributed")),
    ):
        if value not in known:
            raise InvalidInput(f"{name} = {value!r} must be one of {', '.join(known)}")


def check_plan(method: Any, sampling: Any, population: int) -> None:
    """Raise `InvalidInput` unless a run draws cohorts as a private method accounts for them."""
    check_population(method, population)
    scheme, drawn = getattr(sampling, "scheme", "other"), type(sampling).__name__
    if method.sampling not in ("none", scheme):
        raise InvalidInput(
            f"DP accounts for sampling = {method.sampling!r} but the run draws cohorts by {drawn}, which is "
            f"{scheme!r}: give sampling = {(scheme if scheme != 'other' else 'none')!r}"
        )
    expected = sampling.expected(population)
    if expected is not None and abs(expected - method.cohort) > 1e-6 * method.cohort:
        raise InvalidInput(f"DP accounts for cohort = {method.cohort} but the run draws {expected:g} clients")


def check_population(method: Any, population: Any) -> None:
    """Raise `InvalidInput` unless a run has the clients that a private method accounts for, where that is known."""
    if trees.is_not_traced(population) and int(population) != method.population:
        raise InvalidInput(
            f"DP accounts for population = {method.population} but the run has {int(population)} clients"
        )


def check_size(method: Any, size: Any) -> None:
    """Raise `InvalidInput` if more clients took part than a private method accounts for, where that is known."""
    if method.sampling == "fixed" and trees.is_not_traced(size) and int(size) > method.cohort:
        raise InvalidInput(f"DP accounts for cohort = {method.cohort} but {int(size)} clients took part")
