"""Control variates on FEMNIST's network: the quick form without data, and the bar that the data give."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from experiments.client_drift.control_variates_femnist import study
from fedsolve.studies.reproduce import reproduce

FOLDER = Path(os.environ.get("FEDSOLVE_DATA") or Path(__file__).parents[3] / "shared" / "data")
DATA = FOLDER / "femnist_leaf_sample.npz"


@pytest.mark.full
def test_the_network_s_quick_run_needs_no_data(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDSOLVE_DATA", raising=False)
    assert reproduce("control-variates-femnist", tmp_path, quick=True).page.exists()


@pytest.mark.full
@pytest.mark.skipif(not DATA.exists(), reason=f"no {DATA.name} in FEDSOLVE_DATA or in ../shared/data")
def test_the_best_constant_prediction_of_the_writers():
    shares = np.bincount(np.concatenate([part.y for part in parts_of(study.writers(FOLDER))]))
    shares = shares[shares > 0] / shares.sum()
    assert -np.sum(shares * np.log(shares)) == pytest.approx(study.ENTROPY, abs=5e-3)


def parts_of(task):
    """Each client's examples."""
    return [task.data.client(i) for i in range(task.data.num_clients)]
