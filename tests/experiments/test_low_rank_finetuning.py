"""Fine-tuning six ways: what is sent is counted from MiniLM's shapes, rules read made-up accuracies."""

import numpy as np
import pytest

from experiments.networks.low_rank_finetuning import study
from fedsolve.engine.options import RunOptions
from fedsolve.engine.sweep_grid import build_methods
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells
from fedsolve.studies.cells import Cell
from fedsolve.studies.reproduce import reproduce

HEAD = 20 * 385
FACTORS = 4 * (12 * 2 * 4 * 384 + HEAD + 1)
SENT = {
    ("update", "FedFW"): 4 * (12 * 2 * 384 + HEAD),  # two vectors a matrix
    ("update", "LoRA"): FACTORS,
    ("update", "FedEx-LoRA"): FACTORS,
    ("update", "FFA-LoRA"): 4 * (12 * 4 * 384 + HEAD + 1),  # one factor of two
    ("update", "FLoRA"): FACTORS,
    ("all", "FedAvg"): 4 * (22_572_692 + 1),
}
"""Bytes up of a client in a round: float32 numbers, a loss beside those of FedAvg and of factors."""


def first(method):
    """The first setting of a method's grid."""
    return {axis: values[0] for axis, values in method.grid.items()}


def made_up(finals):
    """Cells whose test accuracy ends at `finals`, one value a seed, at the settings that are run."""

    def cell(problem, method):
        axes = {k: (v,) for k, v in first(study.methods(problem)[method]).items()}
        curves = np.stack([np.zeros(3), finals[problem, method]], axis=1)[None]
        return Cell(
            SweepRecord(method, "t", axes, (0, 1, 2), np.array([0, 8]), {"test_accuracy": curves}, np.full((1, 3), -1),
                  Selection("x", 1)), None, None,
        )  # fmt: skip

    return Cells(study.STUDY.problems, (0, 1, 2), {key: cell(*key) for key in SENT})


def judge(which=slice(None), **ends):
    spread = np.array([0.0, 0.004, 0.008])
    finals = {key: 0.5 + spread for key in SENT} | {
        tuple(name.split("_")): np.asarray(value) for name, value in ends.items()
    }
    return [s.decide(made_up(finals)) for s in study.STUDY.statements[which]]


@pytest.mark.full
def test_bytes_are_those_of_the_shapes():
    for key, expected in SENT.items():
        method = study.methods(key[0])[key[1]]
        assert study.bytes_up(key[0], method.make(**first(method)), 6) == expected
    # the two cores' form has one layer
    assert (
        f"FedFW on updates W - W0 of query and value matrices {4 * (2 * 2 * 384 + HEAD):,}" in judge()[0].ours
    )


@pytest.mark.full
def test_rules_need_the_whole_interval():
    assert [found.verdict for found in judge()] == ["reproduced"] * 5
    worse = judge(
        update_FedFW=[0.3, 0.31, 0.3],
        **{"update_FedEx-LoRA": [0.1, 0.5, 0.9]},
        update_LoRA=[0.5, 0.51, np.nan],
    )
    assert [found.verdict for found in worse] == [
        "reproduced",
        *["not learnt"] * 3,  # beside what diverged on a seed
        "not reproduced",
    ]
    assert judge(slice(1, 2), update_FedFW=[0.3, 0.31, 0.3])[0].verdict == "not reproduced"
    assert judge(slice(2, 3), **{"update_FedEx-LoRA": [0.3, 0.5, 0.7]})[0].verdict == "underpowered"
    assert judge(slice(3, 4), **{"update_FFA-LoRA": [0.3, 0.31, 0.3]})[0].verdict == "not reproduced"


def test_every_method_has_as_many_settings_and_no_test_post_chooses_one():
    for problems in (study.STUDY.problems, study.STUDY.full):
        assert list(problems) == ["update", "all"]
        for name, problem in problems.items():
            options = dict(problem.options)
            assert 0 < options.pop("validation") < 1
            RunOptions(**options)
            assert problem.select.startswith("validation_")
            for method in study.methods(name).values():
                assert len(build_methods(method.make, method.grid)) == len(study.RATES)


@pytest.mark.full
def test_the_quick_form_runs_without_data_and_package(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDSOLVE_DATA", raising=False)
    found = reproduce("low-rank-finetuning", tmp_path, quick=True)
    assert found.page.exists()
    assert {p.stem for p in tmp_path.glob("*.png")} == {"bytes"}
