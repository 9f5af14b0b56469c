"""A finished part is read again, and says with what it was made; one with other settings is another."""

from __future__ import annotations

import re
import subprocess

import numpy as np

from fedsolve.engine import identity
from fedsolve.studies.experiment import Context


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
    package = tmp_path / "lib" / "fedsolve" / "engine" / "records"
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
    monkeypatch.setattr(
        identity, "__file__", str(tmp_path / "src" / "fedsolve" / "engine" / "records" / "identity.py")
    )
    assert re.fullmatch(r", commit [0-9a-f]{10}", identity._commit.__wrapped__())
    (tmp_path / "src" / "fedsolve" / "engine" / "new.py").touch()
    assert identity._commit.__wrapped__().endswith(" with changes")
