"""`make gpu` where there is none: a part that fails does not end the others, and what went well is not done again."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy
import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = [str(ROOT / "benchmarks"), str(ROOT / "benchmarks" / "gpu")]
sys.path += FOLDERS

import gpu_parts as run  # noqa: E402
import layouts  # noqa: E402

del sys.path[-2:]  # other tests ask whether a name is a module's


@pytest.fixture(autouse=True)
def _folders(monkeypatch):
    """What the programs import when they run."""
    for folder in FOLDERS:
        monkeypatch.syspath_prepend(folder)


FOUND = """import json, os; print('{"rows": {"speed": "1"}}'); print("and more")
work = {"key": "X1", "about": "work", "unit": "ms", "base": "A", "times": {"A": [1.0, 3.0, 2.0]}}
print(json.dumps(work), file=open(os.environ["FEDSOLVE_BENCH_LINES"], "a"))"""
PARTS = {
    "good": run.Part(("-c", FOUND), 60, ()),
    "bad": run.Part(("-c", 'print(\'{"rows": {"half": "2"}}\'); raise SystemExit(\'no kernel\')'), 60, ()),
    "slow": run.Part(("-c", "import time; time.sleep(60)"), 0.5, ()),
    "last": run.Part(("-c", 'print("{\\"rows\\": {}, \\"limits\\": {\\"bytes\\": 7}}")'), 60, ()),
}


@pytest.fixture
def out(tmp_path):
    return tmp_path / "gpu.json"


@pytest.mark.full
def test_each_part_fails_alone_and_the_next_run_goes_on(out, capsys):
    assert run.main(["--cpu", "--out", str(out)], PARTS) == 1
    result = json.loads(out.read_text())
    assert {name: part["ok"] for name, part in result["parts"].items()} == {
        "good": True, "bad": False, "slow": False, "last": True,
    }  # fmt: skip
    assert result["parts"]["good"]["rows"] == {"X1": "A 2 ms"}
    assert result["works"]["X1"]["times"] == {"A": [1.0, 3.0, 2.0]}
    assert result["works"]["X1"]["versions"]["numpy"] == numpy.__version__
    assert result["parts"]["bad"]["rows"] == {"half": "2"}
    assert result["parts"]["bad"]["why"].endswith("no kernel")
    assert "took longer than 0 s" in result["parts"]["slow"]["why"]
    assert result["layout"] == {"cpu": {"bytes": 7}}
    assert "2 of 4 parts went well" in capsys.readouterr().out
    repaired = PARTS | {"good": PARTS["bad"], "bad": PARTS["good"]}  # what went well is not run again
    assert run.main(["--cpu", "--out", str(out), "good", "bad", "slow"], {**PARTS, "bad": PARTS["good"]}) == 1
    assert run.main(["--cpu", "--out", str(out)], repaired | {"slow": PARTS["last"]}) == 0
    assert "4 of 4 parts went well" in capsys.readouterr().out
    assert run.main(["--cpu", "--out", str(out), "--minutes", "0", "--fresh"], PARTS) == 1
    assert "no time was left" in json.loads(out.read_text())["parts"]["good"]["why"]


def test_parts_that_measure_no_time_run_side_by_side(out, tmp_path):
    wait = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); end = time.monotonic() + 30"
    wait += "\nwhile not pathlib.Path(sys.argv[2]).exists():\n    assert time.monotonic() < end"
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    parts = {
        "timed": run.Part(("-c", "import os, sys; sys.exit(len(os.listdir(sys.argv[1])) < 3)", str(tmp_path)), 60, ()),
        "first": run.Part(("-c", wait, first, second), 60, (), timed=False),
        "second": run.Part(("-c", wait, second, first), 60, (), timed=False),
    }  # fmt: skip
    assert run.main(["--cpu", "--out", str(out)], parts) == 0


def test_another_device_begins_anew(out):
    run.write(out, run.empty("Some GPU") | {"parts": {"good": {"ok": True}, "old": {"ok": True}}})
    assert run.main(["--cpu", "--out", str(out), "good"], PARTS) == 0
    assert [*json.loads(out.read_text())["parts"]] == ["good"]


def test_a_machine_without_a_gpu_is_told_so(capsys, out):
    assert run.main(["--python", "/no/python", "--out", str(out)], PARTS) == 1
    assert "no GPU was found" in capsys.readouterr().out
    assert not out.exists()
    with pytest.raises(SystemExit):
        run.main(["--cpu", "nothing"], PARTS)
    assert "no part is called nothing" in capsys.readouterr().err


@pytest.mark.full
def test_a_real_part_runs_on_a_cpu(out):
    """The cheapest one, and every script of the others is there."""
    assert run.main(["--cpu", "--out", str(out), "device"]) == 0
    assert "float32 exact" in out.read_text()
    assert all((ROOT / part.command[0]).exists() for part in run.PARTS.values())


def test_limits_are_those_that_lose_least():
    """Two clients side by side fit best where the model is large; small ones want all."""
    large = layouts.Point(2**20, 2**22, {1: 10.0, 2: 5.0, 10: 20.0})
    small = layouts.Point(2**10, 2**12, {1: 10.0, 2: 5.0, 10: 1.0})
    limits = layouts.fitted([large, small])
    assert large.chosen(limits["step_bytes"] or math.inf, limits["bytes"]) == 5.0
    assert small.chosen(limits["step_bytes"] or math.inf, limits["bytes"]) == 1.0
    alone = layouts.Point(2**20, 2**22, {1: 1.0, 2: 5.0})
    limits = layouts.fitted([alone, small])
    assert limits["step_bytes"] is None or 2**10 + 2**12 <= limits["step_bytes"] < 2**20 + 2**22
    assert alone.chosen(limits["step_bytes"] or math.inf, limits["bytes"]) == 1.0
