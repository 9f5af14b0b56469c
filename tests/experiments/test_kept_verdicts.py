"""Verdicts of studies whose data lie in experiments/: computed again from the data, they are those of the page."""

import json
from pathlib import Path

import pytest

from fedsolve.studies.reproduce import evaluate_claims

KEPT = sorted(path.parent for path in (Path(__file__).parents[2] / "experiments").glob("*/*/parts.zip"))


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_the_verdicts_follow_from_the_kept_data(folder):
    told = json.loads((folder / "results.json").read_text())
    assert [vars(claim) for claim in evaluate_claims(told["experiment"], folder)] == told["claims"]
