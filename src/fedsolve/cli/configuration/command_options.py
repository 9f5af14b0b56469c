"""The arguments and options of the commands, with their help; a model for each command that trains."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_origin, get_type_hints

import typer

from fedsolve.cli.console import complete_algorithm, complete_task
from fedsolve.core.errors import check_range
from fedsolve.engine.options import WrittenOption, written_options


def _folder(text: str | Path) -> Path:
    # an empty text, such as a variable that is not set, would be the current folder
    if not str(text).strip():
        raise typer.BadParameter("it is empty: give a folder, or leave the option out")
    return Path(text)


FOLDER: dict[str, Any] = {"metavar": "PATH", "parser": _folder}
"""How an option takes a folder."""
DataDir = Annotated[
    Path | None,
    typer.Option(**FOLDER, help="Data folder, for tasks that read files (default: $FEDSOLVE_DATA)."),
]
Out = Annotated[
    Path | None, typer.Option(**FOLDER, help="Output folder (default: the next free one in runs/).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="TRACKER", help="Also log to tensorboard, mlflow or wandb; repeatable."),
]


def _executor(text: str | None) -> str | None:
    if text is not None:
        from fedsolve.engine.compute.workers import Workers

        Workers(text)  # refuses what is none before anything is made
    return text


Executor = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        callback=_executor,
        help="Where runs are computed: processes:4, dask:tcp://host:8786, slurm:partition=gpu,timeout_min=120, or mpi "
        "(default: in this process).",
    ),
]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="MODULE",
        help="Allow a configuration file to run code of this module; modules beside the file are allowed. Repeatable.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What every command that trains takes: a configuration, or what to lay over one, and how it is run and shown.

    `weighting` replaces what the file has, of each method too; `run` has keys of the section `[run]`, None where not
    typed. A field without an annotation for the command line is typed of some commands only.
    """

    swept: ClassVar[bool] = False
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK",
            help="Task (`fedsolve list tasks`), or your own as module:function.",
            autocompletion=complete_task,
        ),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Hyperparameter of the method. Repeatable."),
    ] = None
    seeds: Annotated[
        str | None,
        typer.Option(metavar="N|A,B,C", help="Number of seeds N (0 to N - 1), or a list (default: 1)."),
    ] = None
    validation: Annotated[
        float | None,
        typer.Option(help="Fraction of every client's examples held out for validation (default: none)."),
    ] = None
    task_set: Annotated[
        list[str] | None,
        typer.Option("--task-set", metavar="KEY=VALUE", help="Option of the task. Repeatable."),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option("--config", help="TOML file, or the folder of a run; options override its values."),
    ] = None
    data_dir: DataDir = None
    out: Out = None
    resume: Annotated[
        Path | None, typer.Option(**FOLDER, help="Continue the run in this folder; --rounds may be larger.")
    ] = None
    executor: Executor = None
    trust: Trust = None
    as_json: AsJson = False
    weighting: str | None = None
    run: Mapping[str, Any] = field(default_factory=dict)

    @property
    def methods(self) -> Sequence[str]:
        return ()


@dataclass(frozen=True, kw_only=True)
class OneMethodRequest(Request):
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Method (`fedsolve list algorithms`), SCAFFOLD+X, your own as module:Class, or LABEL=NAME.",
            autocompletion=complete_algorithm,
        ),
    ] = None

    @property
    def methods(self) -> Sequence[str]:
        return () if self.name is None else (self.name,)


Metrics = Annotated[
    str | None,
    typer.Option(
        metavar="A,B",
        help="Metrics whose final values the table shows, such as auc,f1 (default: the main ones).",
    ),
]


def _finite(target: float | None) -> float | None:
    check_range("target", target, optional=True)  # before anything runs
    return target


Target = Annotated[
    float | None,
    typer.Option(
        callback=_finite,
        help="Show the rounds until the main metric, or the first of --metrics, reaches this value (default: none).",
    ),
]


def metric_names(metrics: str | None) -> list[str] | None:
    return None if metrics is None else [name.strip() for name in metrics.split(",")]


@dataclass(frozen=True, kw_only=True)
class RunRequest(OneMethodRequest):
    tuned: Annotated[
        bool, typer.Option("--tuned", help="Use the best setting of the stored studies; --set overrides it.")
    ] = False
    processes: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of processes on this machine that share the run's devices (default: 1)."
        ),
    ] = None
    track: Track = None
    metrics: Metrics = None
    target: Target = None


@dataclass(frozen=True, kw_only=True)
class CompareRequest(Request):
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAMES...",
            help="Two or more methods, each as NAME or LABEL=NAME.",
            autocompletion=complete_algorithm,
        ),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Hyperparameter of all methods that have it, or of one: FedAvg.client_lr=0.1. Repeatable.",
        ),
    ] = None
    weighting: Annotated[
        str | None,
        typer.Option(
            metavar="uniform|examples", help="Client weighting for all methods (default: each method's)."
        ),
    ] = None
    track: Track = None
    metrics: Metrics = None
    target: Target = None

    @property
    def methods(self) -> Sequence[str]:
        return self.names or ()


@dataclass(frozen=True, kw_only=True)
class SweepRequest(OneMethodRequest):
    swept: ClassVar[bool] = True
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="AXIS=VALUES",
            help="Hyperparameter and values: 1e-3:1:7log (log scale), 0:1:5 (linear scale) or 0.1,1,10; of a random "
            "search a range: 1e-3:1:log, 0:1 or 1:8:int. Repeatable.",
        ),
    ] = None
    search: Annotated[
        str | None, typer.Option(metavar="grid|random", help="How settings are chosen (default: grid).")
    ] = None
    trials: Annotated[int | None, typer.Option(help="Number of settings of a random search.")] = None
    search_seed: Annotated[int | None, typer.Option(help="Seed of a random search (default: 0).")] = None
    halving: Annotated[int | None, typer.Option(help="Factor of successive halving (default: none).")] = None
    select: Annotated[
        str | None,
        typer.Option(
            metavar="CRITERION",
            help="Selection criterion: METRIC:LAST, validation-accuracy, ... (default: train_loss, last 10 %).",
        ),
    ] = None
    parallel_trials: Annotated[
        int | None,
        typer.Option(
            help="Number of trials (settings x seeds) run in parallel (default: by memory and cache)."
        ),
    ] = None
    resume: Annotated[
        Path | None, typer.Option("--resume", **FOLDER, help="Continue the sweep in this folder.")
    ] = None


R = TypeVar("R", bound=Request)


def with_request(model: type[R]) -> Callable[[Callable[[typer.Context, R], None]], Callable[..., None]]:
    """Let a command take the options of a model, and those of a run or of a sweep, as one object."""

    def decorate(command: Callable[[typer.Context, R], None]) -> Callable[..., None]:
        parameters = list(_parameters(model))
        names = {parameter.name for parameter in parameters}

        @functools.wraps(command)
        def call(context: typer.Context, **typed: Any) -> None:
            of_command = {name: typed.pop(name) for name in names}
            command(context, model(**of_command, run=typed))

        first = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        at = 1 + [parameter.name for parameter in parameters].index("config")
        signature = inspect.Signature([first, *parameters[:at], *_run_options(model.swept), *parameters[at:]])
        call.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        return call

    return decorate


def _parameters(model: type[Request]) -> Iterator[inspect.Parameter]:
    # the task, what is the command's own, what all have
    hints = get_type_hints(model, include_extras=True)
    shared = [f.name for f in dataclasses.fields(Request) if f.name != "task"]
    known = [f for f in dataclasses.fields(model) if get_origin(hints[f.name]) is Annotated]
    for f in sorted(known, key=lambda f: f.name in shared):  # the task is the first field of all
        yield inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name]
        )


def _run_options(swept: bool) -> list[inspect.Parameter]:
    return [
        inspect.Parameter(o.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(o))
        for o in written_options()
        if (o.about.swept or not swept) and not o.about.axes  # tables are for a file
    ]


def _annotation(option: WrittenOption) -> Any:
    about = option.about
    kind = float if about.share or about.positive else str if about.words or about.flag else int
    default = about.otherwise or option.default
    text = f"{about.text[0].upper()}{about.text[1:]}".replace("`", "")
    end = "" if default is None else f" (default: {default})"
    flags, metavar = ((about.flag,), "PATH") if about.flag else ((), None)
    return Annotated[kind | None, typer.Option(*flags, help=f"{text}{end}.", metavar=metavar)]
