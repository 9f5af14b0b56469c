"""`fedsolve verdict` without a name: the stored experiments of the repository, a line each."""

from __future__ import annotations

import json

from fedsolve.studies import reproduce as names


def test_verdicts_of_all_stored_experiments(call, monkeypatch, tmp_path):
    """A line each and their sum; what is asked of one needs its name; without a repository there are none."""
    folders = names.program_folders()
    few = {name: folders[name] for name in ("fw-averaging", "fw-split")}
    few |= {"vit": tmp_path}  # where no data is stored
    monkeypatch.setattr(names, "program_folders", lambda: few)
    ended = call("verdict")
    assert ended.code == 0
    rows = {line.split("│")[1].strip(): line for line in ended.out.splitlines() if "│" in line}
    assert set(rows) == {"fw-averaging", "fw-split", "all"}
    assert "3 reproduced" in rows["fw-split"]
    claims = call("verdict", "--json").document["claims"]
    stored = [json.loads((few[name] / "results.json").read_text())["claims"] for name in claims]
    assert list(claims.values()) == stored
    refused = call("verdict", "--full")
    assert (refused.code, "give its NAME" in refused.err) == (2, True)
    monkeypatch.setattr(names, "program_folders", dict)
    nowhere = call("verdict")
    assert (nowhere.code, "no stored studies here" in nowhere.err) == (2, True)
