"""The study of central, shared and local noise: all methods have spent the same epsilon after the last round."""

from __future__ import annotations

import math
from typing import Any

import pytest

from experiments.privacy.privacy_utility import study
from fedsolve.methods.privacy.accounting import epsilon_of
from fedsolve.studies.reproduce import reproduce
from harness import crossed


@pytest.mark.full
@pytest.mark.parametrize("name", crossed(study.CASES, ["FEMNIST, epsilon 8"]))
def test_epsilon_is_equal(name):
    """To a promille, by each method's own account; the sums of fewer clients cost shared noise nothing more."""
    _, epsilon = study.CASES[name]
    made: Any = {label: method.make(**method.published) for label, method in study.methods(name).items()}
    spent = {
        study.CENTRAL: made[study.CENTRAL].epsilon_after(study.ROUNDS),
        study.BY_RENYI: made[study.BY_RENYI]._renyi_after(study.ROUNDS),
        study.SHARED: made[study.SHARED].inner.epsilon_after(study.ROUNDS),
        study.FEWER: made[study.FEWER].inner.epsilon_after(study.ROUNDS),
        study.LOCAL: epsilon_of(made[study.LOCAL].gdp_mu * math.sqrt(study.ROUNDS), study.DELTA),
    }
    assert {label: float(x) for label, x in spent.items()} == pytest.approx(
        dict.fromkeys(spent, epsilon), rel=2e-3
    )


@pytest.mark.full
def test_a_quick_run(tmp_path):
    assert not reproduce("privacy-utility", tmp_path, quick=True).outcome.claims
