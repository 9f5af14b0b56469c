"""`module:name` on the command line: a user's own task and method, and one line for all that can be wrong with them."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import fedsolve as fs

ROOT = Path(__file__).parents[2]

OWN = """
from typing import Literal

import jax.numpy as jnp
import numpy as np
import fedsolve as fs
from fedsolve.core.types import module

number = 3


def line(clients: int = 3, scale: float = 1.0, kind: Literal["a", "b"] = "a", **more) -> fs.Task:
    x = np.ones((4, 2), np.float32)
    loss = lambda w, batch: jnp.mean((batch @ w - 1) ** 2)
    return fs.Task.from_arrays(loss, jnp.zeros(2), [scale * x] * clients, name="line")


def needs(rows: int) -> "fs.Task":
    return helper(rows)


def helper(rows):
    return np.ones(3) @ np.ones(rows)


def exits() -> fs.Task:
    raise SystemExit("no")


def lies() -> fs.Task:
    return np.ones(3)


def unknown_type() -> "Nowhere":
    return 3


def Halved(client_lr: float = 0.1, quiet: bool = True) -> fs.FedOpt:
    return fs.FedAvg(client_lr / 2)


def asks(rows: int) -> fs.Algorithm:
    return fs.FedAvg(rows)


start = fs.FedAvg(0.25)


@module
class Gentle(fs.Proximal):
    inner: fs.Algorithm = fs.FedAvg(0.1)
    mu: float = 0.3


@module
class Around(fs.Wrapper):
    title = "Around"
    inner: fs.Algorithm
    factor: float = 1.0

    def train(self, broadcast, client, oracle):
        return self.inner.train(broadcast, client, oracle.map_gradient(lambda w, g: self.factor * g))


def Around2(inner: fs.Algorithm, factor: float = 2.0) -> fs.Algorithm:
    return Around(inner, factor)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's in the current folder, under a name of its own in each test."""
    name = f"own_{tmp_path.name}".replace("-", "_")
    Path(f"{name}.py").write_text(OWN)
    Path(f"{name}_broken.py").write_text("def f(:\n")
    Path(f"{name}_raises.py").write_text("import math\n\nmath.sqrt(-1)\n")
    Path(f"{name}_lacks.py").write_text("import no_such_module\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


@pytest.mark.full
def test_the_page_s_example_runs_is_recorded_and_goes_on(call, no_pictures, monkeypatch):
    """The file and the commands of docs/own-data.md do what it says; the folder is resumed by its configuration."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    page = (ROOT / "docs" / "own-data.md").read_text()
    (source,) = [b for b in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def thermometers" in b]
    Path("mine.py").write_text(source)
    lines = [
        line.split() for line in page.splitlines() if line.startswith("    fedsolve") and "mine:" in line
    ]
    assert [words[1] for words in lines] == ["run", "compare"]
    for number, (_, command, *rest) in enumerate(lines):
        assert call(command, *rest, "--rounds", 2, "--out", f"r{number}").code == 0
    saved = tomllib.loads(Path("r0/config.toml").read_text())
    assert saved["task"] == "mine:thermometers"
    assert saved["task_options"] == {"rooms": 12}
    assert saved["method"][0]["name"] == "mine:Careful"
    refused = call("run", "--resume", "r0", "--rounds", 3)
    assert refused.code == 2
    assert "no mine.py is beside it: give --trust mine if you trust what that module runs" in refused.err
    assert call("run", "--resume", "r0", "--rounds", 3, "--trust", "mine").code == 0
    assert len(Path("r0/metrics.jsonl").read_text().splitlines()) == 4
    cited = call("cite", "r0")
    assert cited.code == 0
    assert "bradbury2018jax" in cited.out
    assert cited.err == (
        "note: no paper is known of the task mine:thermometers, the algorithm mine:Careful; add the BibTeX yourself\n"
    )


def test_what_a_reference_may_be(own):
    """A function, a class, inside a wrapper; its arguments and their defaults are the catalogue's business."""
    found = fs.build(f"SCAFFOLD+{own}:Halved", {"client_lr": 0.4})
    assert float(found.inner.local.lr) == 0.2
    assert fs.build(f"{own}:Gentle", {"mu": 0.5}).mu == 0.5
    assert float(fs.build(f"{own}:start").local.lr) == 0.25
    found = fs.build(f"{own}:Around+{own}:Halved", {"client_lr": 0.4, "factor": 3.0})
    assert (found.factor, float(found.inner.local.lr), found.name) == (3.0, 0.2, "Around")
    found = fs.build(f"FedProx+{own}:Around2+FedExP", {"mu": 0.5})
    assert (found.mu, found.inner.factor, found.inner.inner.name) == (0.5, 2.0, "FedExP")
    task = fs.tasks.build(f"{own}:line", clients=5, scale=2)
    np.testing.assert_array_equal(task.data.counts, [4] * 5)


WRONG = [
    (
        "{m}:lin",
        {},
        "unknown name in {m} 'lin': did you mean 'line'? Known: Around, Around2, Gentle, Halved, asks, exits, ",
    ),
    ("{m}:", {}, "task '{m}:' must be written module:name, such as mine:task"),
    ("{m}:a:b", {}, "must be written module:name"),
    ("{m}/x:a", {}, "must be written module:name"),
    (
        "no_such.module:f",
        {},
        "no module no_such in {here} or among the installed packages: start where no_such.py",
    ),
    ("{m}:number", {}, "task '{m}:number' is an int: name a function that returns it, or its class"),
    ("{m}:Halved", {}, "task '{m}:Halved': Halved is annotated to return FedOpt, not a Task: write"),
    ("{m}:helper", {}, "helper does not say that it returns a Task: write `def helper(...) -> fs.Task:`"),
    ("{m}:Gentle", {}, "task '{m}:Gentle' is a class but not a fedsolve Task: name one that is"),
    ("{m}:lies", {}, "task {m}:lies gave a ndarray, not a fedsolve.Task"),
    ("{m}:unknown_type", {}, "what unknown_type is annotated to return cannot be resolved (NameError: "),
    ("{m}:np.load", {}, "load does not say that it returns a Task"),
    ("{m}:exits", {}, "task {m}:exits: SystemExit: no ({here}/{m}.py, line 27)"),
    ("{m}:needs", {}, "task {m}:needs needs rows: give --task-set rows=..."),
    ("{m}:needs", {"rows": 4}, "(size 4 is different from 3) ({here}/{m}.py, line 23)"),
    ("{m}:needs", {"rows": True}, "task {m}:needs: rows = True must be an integer"),
    ("{m}:line", {"scale": "big"}, "task {m}:line: scale = 'big' must be a number"),
    ("{m}:line", {"kind": "c"}, "task {m}:line: kind = 'c' must be 'a' or 'b'"),
    ("{m}:line", {"client": 3}, "unknown option of the task {m}:line 'client': did you mean 'clients'?"),
    ("{m}_broken:f", {}, "importing {m}_broken: SyntaxError: invalid syntax ({here}/{m}_broken.py, line 1)"),
    ("{m}_raises:f", {}, "importing {m}_raises: ValueError: "),
    ("{m}_raises:f", {}, "({here}/{m}_raises.py, line 3)"),
    (
        "{m}_lacks:f",
        {},
        "ModuleNotFoundError: No module named 'no_such_module' ({here}/{m}_lacks.py, line 1)",
    ),
]


def test_what_is_wrong_with_a_task_is_one_line(own):
    for reference, options, expected in WRONG:
        words = {"m": own, "here": Path.cwd()}
        with pytest.raises(fs.InvalidInput) as error:
            fs.tasks.build(reference.format(**words), **options)
        assert expected.format(**words) in str(error.value)
        assert "\n" not in str(error.value)


def test_what_is_wrong_with_a_method_is_one_line(call, own):
    """Refused before anything is written."""
    for method, setting, expected in [
        (f"{own}:Halvd", (), "did you mean 'Halved'?"),
        (f"{own}:line", (), f"algorithm '{own}:line': line is annotated to return Task, not an Algorithm"),
        (f"{own}:Halved", ("--set", "client_lr=fast"), f"{own}:Halved: client_lr = 'fast' must be a number"),
        (f"{own}:Halved", ("--set", "quiet=1"), f"{own}:Halved: quiet = 1 must be true or false"),
        (f"{own}:Gentle", ("--set", "mu=big"), f"{own}:Gentle: mu = 'big' must be a number"),
        (f"{own}:Gentle", ("--set", "inner=FedAvg"), f"{own}:Gentle: inner = 'FedAvg' must be an Algorithm"),
        (f"{own}:Halved", ("--set", "lr=1"), f"unknown setting of {own}:Halved 'lr'"),
        (f"{own}:Halved", ("--set", "client_lr=-1"), "client_lr = -0.5 must be finite and > 0"),
        (f"{own}:Halved+FedAvg", (), f"{own}:Halved has no argument `inner`, the method that it wraps"),
        (f"{own}:Around", (), f"{own}:Around wraps a method: write {own}:Around+FedAvg, or another"),
        (f"{own}:Around+FedAvgg", (), "did you mean 'FedAvg'?"),
        (f"{own}:Around+{own}:Around+FedAvg", (), f"{own}:Around comes twice"),
        (f"{own}:asks", (), f"{own}:asks needs rows, which has no default: give --set rows=..."),
    ]:
        ended = call("run", "digits", method, *setting)
        assert ended.code == 2
        assert expected in ended.err
        assert ended.err.count("\n") == 1
    assert not Path("runs").exists()
