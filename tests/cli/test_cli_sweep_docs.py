"""docs/sweep.md does what it says: its Python runs, its commands and its file are understood, its files are there."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from fedsolve.cli import runs as sweeps
from fedsolve.cli.configuration.config import parse
from fedsolve.cli.configuration.prepare import prepare_sweep
from fedsolve.cli.configuration.values import parse_grid
from fedsolve.results.sweep import SELECTIONS, Selection

PAGE = (Path(__file__).parents[2] / "docs" / "sweep.md").read_text()


@pytest.mark.full
def test_the_python_runs_and_writes_the_files_that_are_named():
    for module in ("pyarrow", "matplotlib", "sklearn"):
        pytest.importorskip(module)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)
    assert names["same"].best_settings == names["found"].best_settings
    assert Path("client_lr.png").exists()
    left = {p.name for p in Path("my-sweep").iterdir()}
    named = set(re.findall(r"`(\w+\.(?:html|parquet))`", PAGE[PAGE.index("## Output files") :]))
    assert len(named) == 3
    assert named < left


def test_the_commands_are_understood(call, monkeypatch):
    asked = []
    monkeypatch.setattr(sweeps, "sweep_command", lambda config, *a: asked.append(prepare_sweep(config)) or 0)
    lines = re.findall(r"^    (fedsolve sweep .*)$", PAGE, re.MULTILINE)
    assert len(lines) == 3
    for line in lines[:2]:
        ended = call(*shlex.split(line)[1:])
        assert ended.code == 0, ended.err
    assert [len(p.grid["client_lr"]) for p in asked] == [7, 3]
    assert asked[0].section.seeds == [0, 1, 2, 3, 4]
    assert asked[1].section.validation == 0.1


def test_the_file_is_a_sweep():
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    found = prepare_sweep(parse(tomllib.loads(text), "page"))
    assert found.config.run.rounds == 200
    assert found.grid["client_lr"][1] == pytest.approx(10**-2.5)


def test_the_tables_say_what_is_so():
    axes = re.findall(r"^\* `(\w[\w.]*=[^`]+)`", PAGE, re.MULTILINE)
    assert len(axes) == 6
    sizes = [len(values) for axis in axes for values in parse_grid([axis]).values()]
    assert sizes == [7, 4, 3, 2, 3, 4]
    for name, rule in SELECTIONS.items():
        (row,) = re.findall(rf"^\* .*`{name}`.*: (.*?) \(", PAGE, re.MULTILINE)
        assert row.endswith(f"of the last {rule.last} rounds")
        assert rule.most == (name in ("validation-accuracy", "f1"))
    assert Selection.parse("training-loss") == SELECTIONS["training-loss"]
