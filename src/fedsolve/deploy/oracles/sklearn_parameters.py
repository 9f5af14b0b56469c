"""Which parameters of scikit-learn's linear models `SklearnOracle` uses, which it names in a note, which it refuses."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput, shown

USED = frozenset({"class_weight", "fit_intercept", "loss"})
"""What the loss and the parameters are made of (`loss` and class weights are checked there)."""

PENALTY = ("penalty", "C", "alpha", "l1_ratio")
"""The estimator's own penalty, which is noted wherever it would act: a method brings its own."""

SOLVER = frozenset(
    {
        "copy_X",
        "dual",
        "epsilon",
        "eta0",
        "intercept_scaling",
        "learning_rate",
        "max_iter",
        "n_iter_no_change",
        "n_jobs",
    }
    | {"power_t", "random_state", "shuffle", "solver", "tol", "validation_fraction", "verbose", "warm_start"}
)
"""How scikit-learn's own solver goes on, which does not run: noted where it is not the default."""

REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = MappingProxyType(
    {
        "average": ((False,), "what a run ends with is the model of its last round"),
        "early_stopping": ((False,), "the server ends a run, by callbacks=[fs.EarlyStopping(...)]"),
        "multi_class": (("ovr",), "take LogisticRegression for one loss of all classes"),
        "positive": ((False,), "a method may have constraints"),
    }
)
"""What would make another model: the values that are taken, and what there is instead."""


def parameter_notes(estimator: Any) -> tuple[str, ...]:
    """What is to be said of an estimator's parameters: those that play no part.

    Raises:
        InvalidInput: one that would make another model, or an estimator with others than scikit-learn's.
    """
    name, given = type(estimator).__name__, estimator.get_params(deep=False)
    defaults = {p.name: p.default for p in inspect.signature(type(estimator).__init__).parameters.values()}
    unknown = sorted(given.keys() - USED - SOLVER - REFUSED.keys() - set(PENALTY))
    if unknown:
        raise InvalidInput(
            f"{name} has parameters that nothing here would use, {', '.join(unknown)}: give one of scikit-learn's "
            "estimators without them"
        )
    for parameter, (taken, instead) in REFUSED.items():
        if parameter in given and given[parameter] not in taken:
            raise InvalidInput(
                f"{name}({parameter}={shown(given[parameter])}) is not supported: leave {parameter} out; {instead}"
            )
    notes = []
    if _penalises(given):
        own = _listed(given, [p for p in PENALTY if p in given and given[p] not in (None, "deprecated")])
        notes.append(
            f"{name} has a penalty of its own ({own}), which is not part of what is minimised: a method brings one, "
            "such as FedDualAvg(L1(...)) or weight decay"
        )
    idle = [p for p in sorted(SOLVER & given.keys()) if given[p] != defaults[p]]
    if idle:
        notes.append(f"the solver of {name} does not run: {_listed(given, idle)} has no effect")
    return tuple(notes)


def _penalises(given: Mapping[str, Any]) -> bool:
    """Whether the estimator's penalty would act."""
    if given.get("penalty", "l2") is None:
        return False
    if "C" in given:
        return not math.isinf(given["C"])
    return "alpha" in given and bool(np.any(np.asarray(given["alpha"]) != 0))


def _listed(given: Mapping[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name} = {shown(given[name])}" for name in names)
