"""A finished part is read again, under the names too that methods, fields and options had when it was kept."""

from __future__ import annotations

import numpy as np
import pytest

from fedsolve.studies.experiment import Context

RENAMED = [  # part and setting as they were kept, and as they are asked for
    ("FedMiD-OSP", {"grid": [[0.1, 1.0]]}, "FedMiDOSP", {"grid": [[0.1, 1.0]]}),
    ("l2-FedFW+", {"contender": "FedFW+"}, "l2-FedFWPlus", {"contender": "FedFWPlus"}),
    ("ball--FedFW--0-1", {"row": "ball, FedFW+"}, "ball--FedFWPlus-0-1", {"row": "ball, FedFWPlus"}),
    ("a9a-FedLi-LU-grid", {"method": "FedLi-LU"}, "a9a-FedLiLU-grid", {"method": "FedLiLU"}),
    ("mean", {"rule": "FedOpt(rule=S())"}, "mean", {"rule": "FedOpt(server_optimizer=S())"}),
    ("digits", {"options": [["lanes", 1]]}, "digits", {"options": [["parallel_trials", 1]]}),
]


def must_not_run():
    raise AssertionError("the kept part was computed again")


@pytest.mark.parametrize(("former", "settings", "name", "asked"), RENAMED)
def test_a_part_kept_under_former_names_is_read(tmp_path, former, settings, name, asked):
    context = Context(tmp_path)
    context.part(former, settings, lambda: {"loss": np.arange(3.0)})
    assert context.part(name, asked, must_not_run)["loss"].tolist() == [0, 1, 2]
    assert len(context.earlier) == 1
    assert context.earlier[0] >= 0


def test_a_part_with_other_settings_is_another(tmp_path):
    context = Context(tmp_path)
    context.part("FedMiD-OSP", {"rounds": 5}, lambda: {"loss": np.zeros(1)})
    assert context.part("FedMiDOSP", {"rounds": 6}, lambda: {"loss": np.ones(1)})["loss"] == 1
    assert context.part("FedMiDOSP", {"rounds": 6}, must_not_run)["loss"] == 1
    assert context.part("FedMiD", {"rounds": 5}, lambda: {"loss": np.full(1, 2)})["loss"] == 2
