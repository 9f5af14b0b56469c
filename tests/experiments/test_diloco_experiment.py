"""DiLoCo on a small transformer: verdicts on made-up losses, and a quick run where the data are."""

from __future__ import annotations

import os

import numpy as np
import pytest

from fedsolve.data.sources import VARIABLE
from fedsolve.experiments import diloco_claims as made
from fedsolve.experiments.catalogue import reproduce
from fedsolve.experiments.diloco import FULL, QUICK, RULES
from fedsolve.studies.experiment import VERDICTS

EVERY = FULL.every


def part(loss):
    """Three seeds that end about a loss."""
    return {
        "test_loss": np.array([[3.0, loss - 0.01], [3.0, loss], [3.0, loss + 0.01]]),
        "rate": np.array(0.7),
    }


def found(nesterov, adam=2.3):
    losses = {"Nesterov": nesterov, "FedAdam": [adam] * 5, "FedDuAdam": [2.2] * 5}
    return {(rule, H): part(x) for rule, of in losses.items() for H, x in zip(EVERY, of, strict=True)}


@pytest.mark.parametrize(
    ("nesterov", "adam", "verdicts"),
    [
        ([2.0, 2.0, 2.0, 2.01, 2.04], 2.3, ("reproduced", "reproduced", "reproduced")),
        ([2.0, 2.0, 2.0, 2.04, 2.08], 2.05, ("partly", "partly", "partly")),
        ([2.0, 2.0, 2.2, 2.3, 2.5], 2.1, ("not reproduced", "not reproduced", "not reproduced")),
        ([2.0, 2.0, 2.0, 2.0, np.inf], 2.3, ("partly", "not reproduced", "partly")),
    ],
)
def test_verdicts_follow_the_numbers(nesterov, adam, verdicts):
    """AdamW in every step ends at 2.0; a seed that diverged counts as infinite."""
    claims = made.claims(EVERY, found(nesterov, adam), part(2.0))
    assert tuple(claim.verdict for claim in claims[:3]) == verdicts
    assert claims[3].verdict == "not comparable"
    assert {claim.verdict for claim in claims} <= set(VERDICTS)
    table = made.table(EVERY, tuple(RULES), found(nesterov, adam), part(2.0))
    assert len(table.rows) == 1 + 3 * len(EVERY)


@pytest.mark.full
def test_quick_run(tmp_path):
    """Two H, two seeds, a page; a second call finds every part."""
    if VARIABLE not in os.environ:
        pytest.skip(f"{VARIABLE} is not set: Shakespeare's roles are not here")
    first = reproduce("diloco", tmp_path, quick=True)
    assert {claim.verdict for claim in first.outcome.claims} == {None}
    parts = sorted((tmp_path / "parts").iterdir())
    assert len(parts) == 1 + len(RULES) * len(QUICK.every)
    kept: list[str] = []
    reproduce("diloco", tmp_path, quick=True, say=lambda name, done, total: kept.append(name))
    assert len(kept) == len(parts)
    assert all(name.endswith("(kept)") for name in kept)
