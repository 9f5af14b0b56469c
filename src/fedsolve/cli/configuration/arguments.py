"""The arguments that commands share, each with its help; a default in brackets is that of the run."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsolve.cli.terminal.help import complete_algorithm, complete_task
from fedsolve.engine.options import WrittenOption, written_options


def _folder(text: str | Path) -> Path:
    """A folder as it is typed; an empty text, such as a variable that is not set, would be the current one."""
    if not str(text).strip():
        raise typer.BadParameter("it is empty: give a folder, or leave the option out")
    return Path(text)


FOLDER: dict[str, Any] = {"metavar": "PATH", "parser": _folder}
"""How an option takes a folder."""

TaskName = Annotated[
    str | None,
    typer.Argument(
        metavar="TASK",
        help="A task (`fedsolve list tasks`), or your own as module:function.",
        autocompletion=complete_task,
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAMES...", help="Two methods or more.", autocompletion=complete_algorithm),
]
Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="A method (`fedsolve list algorithms`), SCAFFOLD+X, FedProx+X or your own as module:Class.",
        autocompletion=complete_algorithm,
    ),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the method; repeatable.")
]
SettingsOfEach = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting of every method that has it, or of one as FedAvg.client_lr=0.1; repeatable.",
    ),
]
Weighting = Annotated[
    str | None,
    typer.Option(
        metavar="uniform|examples",
        help="Client weighting for all methods (default: each method's).",
    ),
]
TaskOptions = Annotated[
    list[str] | None,
    typer.Option("--task-set", metavar="KEY=VALUE", help="An option of the task; repeatable."),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="A TOML file, or the folder of a run; options go over it.")
]
DataDir = Annotated[
    Path | None, typer.Option(**FOLDER, help="Folder of the data files, for tasks that read some.")
]

Out = Annotated[
    Path | None,
    typer.Option(**FOLDER, help="Folder to write (the next free one in runs/)."),
]
Resume = Annotated[
    Path | None, typer.Option(**FOLDER, help="Continue the run in this folder; --rounds may grow.")
]
Processes = Annotated[
    int | None,
    typer.Option(min=1, help="Processes on this machine that share the run's devices, for a trial (1)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Watch = Annotated[bool, typer.Option("--watch", help="Serve a page that follows it, on this machine alone.")]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="TRACKER", help="Also log to tensorboard, mlflow or wandb; repeatable."),
]
Grid = Annotated[
    list[str] | None,
    typer.Option(
        "--grid",
        metavar="AXIS=VALUES",
        help="A setting and its values: 1e-3:1:7log (by equal factors), 0:1:5 (by equal steps) or 0.1,1,10.",
    ),
]
Seeds = Annotated[
    str | None, typer.Option(metavar="N|A,B,C", help="How many seeds (0, 1, ...), or which (1).")
]
Select = Annotated[
    str | None,
    typer.Option(
        metavar="RULE", help="training-loss, validation-accuracy, METRIC:LAST, ... (training-loss)."
    ),
]
Validation = Annotated[
    float | None, typer.Option(help="Share of every client's examples held out of training (none).")
]
ParallelTrials = Annotated[
    int | None, typer.Option(help="Settings x seeds side by side (by memory and cache).")
]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="MODULE",
        help="A module that a file may name as code to run, besides those beside the file; repeatable.",
    ),
]
ResumeSweep = Annotated[
    Path | None, typer.Option("--resume", **FOLDER, help="Continue the sweep in this folder.")
]


def run_options(*, swept: bool = False) -> list[inspect.Parameter]:
    """The options of a run (those of a sweep with `swept`) as parameters of a command."""
    return [
        inspect.Parameter(o.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(o))
        for o in written_options()
        if (o.about.swept or not swept) and not o.about.axes  # tables are for a file
    ]


def _annotation(option: WrittenOption) -> Any:
    """The type and the help of an option of a run."""
    about = option.about
    kind = float if about.share or about.positive else str if about.words else int
    default = about.otherwise or option.default
    text = f"{about.text[0].upper()}{about.text[1:]}".replace("`", "")
    return Annotated[kind | None, typer.Option(help=f"{text}{'' if default is None else f' ({default})'}.")]
