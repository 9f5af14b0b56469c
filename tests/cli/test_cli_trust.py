"""A file names code: only what lies beside it, or what the user trusts, is imported, and nothing of Python's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cli_small import SMALL

import fedsolve as fs

OWN = """
from pathlib import Path
Path("imported").touch()

import os
from os import system
from functools import wraps
from fedsolve import build
from fedsolve.tasks import digits
import fedsolve as fs


def small(clients: int = 2) -> fs.Task:
    return fs.tasks.digits(clients, model="softmax")


def Slow(client_lr: float = 0.1) -> "fs.Algorithm":
    return fs.FedAvg(client_lr / 2)


def silent():
    Path("called").touch()


def unknown() -> "Nowhere":
    Path("called").touch()


@wraps(system)
def disguised(command: str) -> fs.Task:
    Path("called").touch()
"""
STUDY = '[[method]]\nname = "FedProx"\n[method.settings]\nclient_lr = 0.1\n'
COMMANDS = {
    "run": ("run", "--config", "c.toml"),
    "run of a folder": ("run", "--config", "."),
    "compare": ("compare", "--config", "c.toml"),
    "sweep": ("sweep", "--config", "c.toml"),
    "study": ("study", "c.toml"),
    "verdict": ("verdict", "c.toml"),
    "resumed run": ("run", "--resume", "."),
    "resumed comparison": ("compare", "--resume", "."),
    "resumed sweep": ("sweep", "--resume", "."),
}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's in a folder beside the current one, under a name of its own in each test."""
    name = f"trust_{tmp_path.name}".replace("-", "_")
    Path("home").mkdir()
    Path(f"home/{name}.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield name
    sys.modules.pop(name, None)


def write(command: str, task: str, method: str = "FedAvg", options: str = "", settings: str = "") -> None:
    """A configuration for a command, as a file and as what a folder has."""
    several = "study" in command or "compar" in command or "verdict" in command
    text = f'task = "{task}"\n[task_options]\n{options}\n[run]\nrounds = 1\n'
    text += f'[[method]]\nname = "{method}"\n[method.settings]\n{settings}\n'
    text += STUDY if several else "[sweep.grid]\nclient_lr = [0.1]\n" if "sweep" in command else ""
    for file in ("c.toml", "config.toml"):
        Path(file).write_text(text)


PYTHONS_OWN = [
    ("os:system", 'command = "touch called"'),
    ("subprocess:getoutput", 'cmd = "touch called"'),
    ("shutil:rmtree", 'path = "victim"'),
    ("builtins:exec", "source = \"open('called', 'w')\""),
    ("posix:system", 'command = "touch called"'),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_file_reaches_the_standard_library(call, command):
    """Not even where it is trusted; nothing is called, and nothing is written."""
    Path("victim").mkdir()
    for reference, options in PYTHONS_OWN:
        for parts in ({"task": reference, "options": options}, {"task": "digits", "method": reference}):
            if "method" in parts and "sweep" not in command:
                parts["settings"] = options
            write(command, **parts)
            for trust in ((), ("--trust", reference.partition(":")[0])):
                ended = call(*COMMANDS[command], *trust)
                assert ended.code == 2
                assert "Python's standard library" in ended.err
                assert ended.err.count("\n") == 1
    left = {path.name for path in Path().iterdir()} - {".lock"}
    assert left == {"victim", "c.toml", "config.toml"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_module_elsewhere_is_imported_by_name_alone(call, own, command, monkeypatch):
    """Not from the current path, not from what is installed; the line says what to type."""
    monkeypatch.syspath_prepend(str(Path("home").resolve()))
    for parts in (
        {"task": f"{own}:small"},
        {"task": "digits", "method": f"SCAFFOLD+{own}:Slow"},
        {"task": "digits", "method": f"{own}:Slow+FedAvg"},
    ):
        write(command, **parts)
        ended = call(*COMMANDS[command])
        assert ended.code == 2
        assert f"no {own}.py is beside it: give --trust {own} if you trust" in ended.err
        assert ended.err.count("\n") == 1
    assert own not in sys.modules
    assert not Path("imported").exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("system", "posix is of Python's standard library"),
        ("os.system", "posix is of Python's standard library"),
        ("disguised", "posix is of Python's standard library"),
        ("silent", "silent does not say that it returns a Task: write `def silent(...) -> fs.Task:`"),
        ("Slow", "Slow is annotated to return Algorithm, not a Task"),
        ("build", "build is annotated to return Algorithm, not a Task"),
        ("unknown", "what unknown is annotated to return cannot be resolved"),
        (
            "digits",
            "is defined in fedsolve.tasks.ready.digits: name it there, and give --trust fedsolve",
        ),
    ],
)
def test_what_a_module_beside_hands_on_is_refused_before_it_is_called(call, own, name, says):
    Path("home/c.toml").write_text(f'task = "{own}:{name}"\n[[method]]\nname = "FedAvg"\n')
    ended = call("run", "--config", "home/c.toml")
    assert ended.code == 2
    assert says in ended.err
    assert "Traceback" not in ended.err
    assert not Path("called").exists()


@pytest.mark.full
def test_what_lies_beside_a_file_runs_and_is_said(call, own, no_pictures):
    """Also where the current folder is another; the folder it leaves needs --trust, and says so."""
    Path("home/c.toml").write_text(
        f'task = "{own}:small"\n[run]\nrounds = 1\n[[method]]\nname = "SCAFFOLD+{own}:Slow"\n'
    )
    ended = call("run", "--config", "home/c.toml", "--out", "r")
    assert ended.code == 0
    assert (
        f"importing {Path('home', own).resolve()}.py for the task {own}:small of home/c.toml\n" in ended.err
    )
    assert (
        f"run again with: fedsolve run --config config.toml --trust {own}"
        in Path("r/config.toml").read_text()
    )
    shown = call("show", "r")
    assert shown.code == 0
    assert f"running or resuming it imports the task {own}:small, and runs its code" in shown.out
    assert call("show", "r", "--json").document["imports"] == [f"task {own}:small", f"algorithm {own}:Slow"]


def test_what_only_reads_a_folder_imports_nothing(call, own, finished, monkeypatch):
    """`show`, `cite`, `fs.load`, also of a finished sweep, whose best setting is shown with its command."""
    finished("sweep", "digits", "FedAvg", *SMALL, "--parallel-trials", "2", "--grid", "client_lr=0.1,0.2")
    monkeypatch.syspath_prepend(str(Path("home").resolve()))
    config = Path("r/config.toml")
    config.write_text(
        config.read_text().replace('"digits"', f'"{own}:small"').replace('"FedAvg"', f'"{own}:Slow"')
    )
    shown = call("show", "r")
    assert shown.code == 0
    assert f"run it   fedsolve run {own}:small {own}:Slow --set " in shown.out
    assert f"imports the algorithm {own}:Slow" in shown.out
    assert call("cite", "r").code == 0
    assert own not in sys.modules
    assert not Path("imported").exists()


def test_a_link_out_of_the_folder_and_another_module_of_the_name_are_refused(call, own):
    """The file that is named is the file that runs."""
    Path("here").mkdir()
    Path(f"here/{own}.py").symlink_to(Path(f"home/{own}.py").resolve())
    Path("here/c.toml").write_text(f'task = "{own}:small"\n[[method]]\nname = "FedAvg"\n')
    assert f"no {own}.py is beside it" in call("run", "--config", "here/c.toml").err
    assert not Path("imported").exists()
    Path(f"here/{own}.py").unlink()
    Path("here/package").mkdir()
    Path("here/package/__init__.py").touch()
    Path("here/package/part.py").symlink_to(Path(f"home/{own}.py").resolve())
    Path("here/c.toml").write_text('task = "package.part:small"\n[[method]]\nname = "FedAvg"\n')
    assert "no package/part.py is beside it" in call("run", "--config", "here/c.toml").err
    assert not Path("imported").exists()
    Path("here/c.toml").write_text(f'task = "{own}:small"\n[[method]]\nname = "FedAvg"\n')
    Path(f"here/{own}.py").write_text(OWN)
    sys.path.insert(0, str(Path("home").resolve()))
    __import__(own)
    ended = call("run", "--config", "here/c.toml")
    assert f"a module {own} of another folder is imported already" in ended.err


def test_trust_takes_the_names_of_modules(call, own):
    alone = call("run", "digits", "FedAvg", "--rounds", 1, "--trust", own)
    assert alone.code == 2
    assert "--trust says which modules a file may name" in alone.err
    write("run", f"{own}:small")
    assert (
        "--trust 'a b' must be the name of a module"
        in call("run", "--config", "c.toml", "--trust", "a b").err
    )
    with pytest.raises(fs.InvalidInput, match="standard library"):
        fs.tasks.build("os:system", command="touch called")
    with pytest.raises(fs.InvalidInput, match="standard library"):
        fs.build("subprocess:getoutput", {"cmd": "touch called"})
    assert not Path("called").exists()
