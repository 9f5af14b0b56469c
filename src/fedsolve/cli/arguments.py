"""The arguments that commands share, each with its help; a default in brackets is that of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsolve.cli.help import complete_algorithm, complete_task

TaskName = Annotated[
    str | None,
    typer.Argument(
        metavar="TASK",
        help="A task (`fedsolve list tasks`), or your own as module:function.",
        autocompletion=complete_task,
    ),
]
Algorithm = Annotated[
    str | None,
    typer.Option(
        help="A method (`fedsolve list algorithms`), SCAFFOLD+X, FedProx+X or your own as module:Class.",
        autocompletion=complete_algorithm,
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAMES...", help="Two methods or more.", autocompletion=complete_algorithm),
]
Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME", help="A method (`fedsolve list algorithms`).", autocompletion=complete_algorithm
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
TaskOptions = Annotated[
    list[str] | None,
    typer.Option("--task-set", metavar="KEY=VALUE", help="An option of the task; repeatable."),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="A TOML file, or the folder of a run; options go over it.")
]
Rounds = Annotated[int | None, typer.Option(help="Rounds in all (100).")]
ClientsPerRound = Annotated[int | None, typer.Option(help="Cohort size, drawn without replacement (all).")]
Participation = Annotated[
    float | None, typer.Option(help="Instead: each client takes part with this chance.")
]
Seed = Annotated[int | None, typer.Option(help="Of initial model, cohorts and shuffles (0).")]
BatchSize = Annotated[str | None, typer.Option(help="Examples of a local step, or full (the task's).")]
Epochs = Annotated[int | None, typer.Option(help="Local epochs (the task's).")]
LocalSteps = Annotated[int | None, typer.Option(help="Local steps, instead of epochs.")]
EvalEvery = Annotated[int | None, typer.Option(help="Rounds between evaluations (a fiftieth).")]
Dtype = Annotated[str | None, typer.Option(help="float32 or float64 (float32).")]
Chunk = Annotated[int | None, typer.Option(help="Clients trained side by side (by the work of a step).")]
Devices = Annotated[int | None, typer.Option(help="Devices that share a cohort (1).")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of the data files, for tasks that read some.")]
Out = Annotated[Path | None, typer.Option(help="Folder to write (the next free one in runs/).")]
Resume = Annotated[Path | None, typer.Option(help="Continue the run in this folder; --rounds may grow.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
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
Lanes = Annotated[int | None, typer.Option(help="Settings x seeds side by side (by memory and cache).")]
ResumeSweep = Annotated[Path | None, typer.Option("--resume", help="Continue the sweep in this folder.")]
