"""Parts of studies that are kept: read again, packed in one file, and judged again; and the file of margins."""

import json
import re
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest

from experiments import margins
from fedsolve.core.errors import InvalidInput
from fedsolve.engine import identity
from fedsolve.studies import experiment as parts
from fedsolve.studies.experiment import ARCHIVE, PARTS, Context, has_parts
from fedsolve.studies.reproduce import evaluate_claims
from tools.keep import pack

# A finished part is read again, and says with what it was made; one with other settings is another.


def must_not_run():
    raise AssertionError("the kept part was computed again")


def test_a_part_with_other_settings_is_another(tmp_path):
    context = Context(tmp_path)
    context.part("FedMiDOSP", {"rounds": 5}, lambda: {"loss": np.zeros(1)})
    assert context.part("FedMiDOSP", {"rounds": 6}, lambda: {"loss": np.ones(1)})["loss"] == 1
    assert context.part("FedMiDOSP", {"rounds": 6}, must_not_run)["loss"] == 1
    assert context.part("FedMiD", {"rounds": 5}, lambda: {"loss": np.full(1, 2)})["loss"] == 2


def test_a_part_says_with_what_it_was_made(tmp_path, monkeypatch):
    """Whoever judges it later has the version and the commit of then."""
    monkeypatch.setattr(identity, "provenance", lambda: "fedsolve 0.1.0, commit abc")
    Context(tmp_path).part("one", {}, lambda: {"loss": np.zeros(1)})
    monkeypatch.undo()
    later = Context(tmp_path)
    later.part("one", {}, must_not_run)
    later.part("two", {}, lambda: {"loss": np.zeros(1)})
    assert later.made_with == {"fedsolve 0.1.0, commit abc", identity.provenance()}
    (kept,) = (path for path in (tmp_path / "parts").iterdir() if path.name.startswith("one"))
    np.savez(kept, loss=np.zeros(1))  # as before commits were kept
    old = Context(tmp_path, stored_only=True)
    old.part("one", {}, must_not_run)
    assert old.made_with == {"an earlier commit, which was not kept"}


def test_the_commit_is_that_of_a_repository_of_fedsolve_alone(tmp_path, monkeypatch):
    """Not of a user's repository that has fedsolve in its environment."""
    package = tmp_path / "lib" / "fedsolve" / "engine"
    package.mkdir(parents=True)
    for words in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "a"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    monkeypatch.setattr(identity, "__file__", str(package / "identity.py"))
    assert identity._commit.__wrapped__() == ""
    (tmp_path / "src").mkdir()
    (tmp_path / "lib" / "fedsolve").rename(tmp_path / "src" / "fedsolve")
    monkeypatch.setattr(identity, "__file__", str(tmp_path / "src" / "fedsolve" / "engine" / "identity.py"))
    assert re.fullmatch(r", commit [0-9a-f]{10}", identity._commit.__wrapped__())
    (tmp_path / "src" / "fedsolve" / "engine" / "new.py").touch()
    assert identity._commit.__wrapped__().endswith(" with changes")


# Parts in one file: read as before, beside further ones; equal parts make equal files; damage is said.


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        Context(tmp_path).part(f"part {number}", {"n": number}, lambda n=number: {"x": np.full(2, n)})
    pack(tmp_path)
    return tmp_path


def test_packed_parts_are_read_and_others_added(folder):
    assert [path.name for path in folder.iterdir()] == [ARCHIVE]
    context = Context(folder)
    for _ in range(2):
        assert has_parts(folder)
        for number in range(3):
            assert context.part(f"part {number}", {"n": number}, must_not_run)["x"].tolist() == [number] * 2
        context.part("part 3", {"n": 3}, lambda: {"x": np.ones(1)})
        if (folder / PARTS).exists():
            pack(folder)
    assert context.part("part 3", {"n": 3}, must_not_run)["x"] == 1
    assert not (folder / PARTS).exists()


def test_a_new_part_stands_in_front_of_the_packed_one(folder):
    """As one that another version made, which is computed anew."""
    context = Context(folder)
    assert context.part("part 1", {"n": 1}, lambda: {"x": np.zeros(1)}, version="new")["x"] == 0
    assert context.part("part 1", {"n": 1}, must_not_run, version="new")["x"] == 0
    pack(folder)
    assert context.part("part 1", {"n": 1}, must_not_run, version="new")["x"] == 0


def test_equal_parts_make_equal_archives(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / PARTS).mkdir()
    before = (folder / ARCHIVE).read_bytes()
    Context(folder).part("part 3", {}, lambda: {"x": np.ones(1)})
    pack(folder)
    assert (folder / ARCHIVE).read_bytes() != before
    with pytest.raises(SystemExit, match="holds no parts"):
        pack(other)


@pytest.mark.parametrize(
    ("name", "settings"), [("part 1", {"n": 1}), ("part 9", {})], ids=["archive", "file"]
)
def test_damage_is_said(folder, name, settings):
    if name == "part 9":
        Context(folder).part(name, settings, lambda: {"x": np.ones(1)})
    damaged = next((folder / PARTS).iterdir()) if name == "part 9" else folder / ARCHIVE
    damaged.write_bytes(damaged.read_bytes()[:-40])
    with pytest.raises(InvalidInput, match="is damaged: remove it to compute it again"):
        Context(folder).part(name, settings, must_not_run)


# Verdicts of studies whose data lie in experiments/: computed again from the data, they are those of the page.

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


# The file of margins: each has a value, its unit and a reason, and a study that reads it.

PROGRAMS = sorted(Path(margins.__file__).parent.rglob("*.py"))


def test_every_margin_is_explained_and_read():
    text = "\n".join(path.read_text(encoding="utf-8") for path in PROGRAMS)
    for study, named in margins.margins().items():
        for name, margin in named.items():
            assert set(margin) == {"value", "unit", "reason"}, (study, name)
            assert margins.margin(study, name) > 0
            assert f'margin("{study}", ' in text, study
            assert f'"{name}"' in text, name
