"""Verdicts of studies whose data lie in experiments/: computed again from the data, they are those of the page."""

import json
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from fedsolve.studies import experiment as parts
from fedsolve.studies.reproduce import evaluate_claims

ROOT = Path(__file__).parents[2]
KEPT = sorted(path.parent for path in (ROOT / "experiments").glob("*/*/parts.zip"))
# of large archives, whose rules and whose kinds of program those of other studies are, too
LONG = {"phase_diagram", "tuning_free_league", "robustness", "fw_convex", "fw_rates"}
LONG |= {"lasso_1", "lasso_2", "lasso_3", "lowrank_2", "lowrank_3", "lowrank_4"}
FOLDERS = [
    pytest.param(folder, id=folder.name, marks=[pytest.mark.full] * (folder.name in LONG)) for folder in KEPT
]


@pytest.mark.gate(
    "first_round",
    "fw_averaging",
    "fw_privacy",
    "fw_split",
    "muon_bias",
    "fleet_clock",
    "control_variates_femnist",
    "fairness",
    "feddua_synthetic",
    "feddua_theorems",
    "fedli_neural",
    "autoencoder",
    "cifar",
    "diloco",
    "low_rank_finetuning",
    "next_word",
    "shakespeare",
    "vit",
    "personal_writers",
)
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_verdicts_follow_from_the_kept_data(folder, monkeypatch):
    """And of all that is kept: whoever reads the archive finds one part for each setting."""
    read, original = set(), parts.read_part

    def read_part(of, name):
        if of == folder:  # a study may read another one's, too
            read.add(name)
        return original(of, name)

    monkeypatch.setattr("fedsolve.studies.experiment.read_part", read_part)
    told = json.loads((folder / "results.json").read_text())
    assert [vars(claim) for claim in evaluate_claims(told["experiment"], folder)] == told["claims"]
    assert set(zipfile.ZipFile(folder / parts.ARCHIVE).namelist()) == read


def test_kept_data_name_a_commit_of_the_history():
    """So that whoever doubts a number can run the programs that gave it."""

    def git(*words):
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True).stdout

    if not (ROOT / ".git").exists() or "false" not in git("rev-parse", "--is-shallow-repository"):
        pytest.skip("the history is not here")
    history = {line[:10] for line in git("rev-list", "HEAD").splitlines()}
    without = set()
    for folder in KEPT:
        told = json.loads((folder / "results.json").read_text())
        for made in told["made_with"].split("; "):
            commit = re.search(r"commit ([0-9a-f]{10})[0-9a-f]*,", made)  # a comma, not "with changes"
            if not commit or commit[1] not in history:
                without.add(told["experiment"])
    assert not without
