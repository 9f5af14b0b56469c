"""A user who has pyright in its strict mode is told of no unknown type of ours, and of arguments of a wrong type."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedsolve as fs
from fedsolve.config.catalogue import ALGORITHMS

HERE = Path(__file__).parent
NUMBERS = ("Rate", "Scalar", "Rate | None", "Scalar | None", "float", "float | None")


def told(text: str, folder: Path) -> list[tuple[int, str]]:
    """The lines, from 1, and the words of what pyright says of a user's file in its strict mode."""
    pyright = shutil.which("pyright", path=str(Path(sys.executable).parent))
    if pyright is None:
        pytest.skip("pyright is not installed")
    (folder / "user.py").write_text(text)
    settings = {
        "include": ["user.py"],
        "typeCheckingMode": "strict",
        "extraPaths": [str(HERE.parents[1] / "src")],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [pyright, "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True)
    found = json.loads(ended.stdout)
    assert found["summary"]["filesAnalyzed"] == 1
    return [(d["range"]["start"]["line"] + 1, d["message"]) for d in found["generalDiagnostics"]]


@pytest.mark.full
def test_a_users_file_has_no_unknown_types(tmp_path):
    assert told((HERE / "strict_user.py").read_text(), tmp_path) == []


@pytest.mark.full
def test_arguments_of_a_wrong_type_are_refused_and_no_others(tmp_path):
    """NumPy's numbers, traced ones, schedules and functions of the round are none of them."""
    text = (HERE / "wrong_user.py").read_text()
    wrong = {i for i, line in enumerate(text.splitlines(), 1) if line.endswith("# wrong")}
    assert len(wrong) > 20
    found = told(text, tmp_path)
    assert {line for line, _ in found} == wrong, [x for x in found if x[0] not in wrong]


@pytest.mark.full
def test_every_number_of_every_method_is_no_text(tmp_path):
    """Each argument of the catalogue that is a number or a rate, given as a text: pyright names it."""
    lines, asked = ["from typing import Any", "import fedsolve as fs", "some: Any = None"], {}
    for name in ALGORITHMS:
        arguments = inspect.signature(getattr(fs, name)).parameters
        needed = [n for n, p in arguments.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
        for argument in [n for n, p in arguments.items() if p.annotation in NUMBERS]:
            others = "".join(f", {n}=some" for n in needed if n != argument)
            lines.append(f'fs.{name}({argument}="x"{others})')
            asked[len(lines)] = f'parameter "{argument}"'
    assert len(asked) > 60
    found = told("\n".join(lines) + "\n", tmp_path)
    for line, words in asked.items():
        assert any(at == line and words in message for at, message in found), lines[line - 1]
