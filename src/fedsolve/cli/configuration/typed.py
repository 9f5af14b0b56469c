"""Options of the command line over the configuration file: the file first, then what was typed."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_origin, get_type_hints

import typer

from fedsolve.cli.configuration.config import (
    CONFIG,
    Config,
    MethodSection,
    check_runnable,
    load,
    parse,
    read_toml,
    to_table,
)
from fedsolve.cli.configuration.trust import admit
from fedsolve.cli.configuration.values import (
    EXAMPLE,
    check_labels,
    parse_assignments,
    parse_grid,
    parse_seeds,
    typed_method,
)
from fedsolve.cli.console import complete_algorithm, complete_task
from fedsolve.config.build import arguments
from fedsolve.config.catalogue import current_name
from fedsolve.config.references import is_reference
from fedsolve.core.errors import InvalidInput, unknown
from fedsolve.engine.options import WrittenOption, exclusive_options, written_options
from fedsolve.tasks.catalogue import entry

# The arguments and options of the commands, with their help; a model for each command that trains.


def _folder(text: str | Path) -> Path:
    """A folder as it is typed; an empty text, such as a variable that is not set, would be the current one."""
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
    Path | None,
    typer.Option(**FOLDER, help="Output folder (default: the next free one in runs/)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="TRACKER", help="Also log to tensorboard, mlflow or wandb; repeatable."),
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
        typer.Option(metavar="N|A,B,C", help="Number of seeds (0, 1, ...), or a list (default: 1)."),
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
    trust: Trust = None
    as_json: AsJson = False
    weighting: str | None = None
    run: Mapping[str, Any] = field(default_factory=dict)

    @property
    def methods(self) -> Sequence[str]:
        """Methods; of those that the file has, by label or name, its settings are kept."""
        return ()


@dataclass(frozen=True, kw_only=True)
class OneMethodRequest(Request):
    """What a command of one method takes."""

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
        """The method, if one was named."""
        return () if self.name is None else (self.name,)


Metrics = Annotated[
    str | None,
    typer.Option(
        metavar="A,B",
        help="Metrics whose final values the table shows, such as auc,f1 (default: the main ones).",
    ),
]
Target = Annotated[
    float | None,
    typer.Option(
        help="Show the rounds until the main metric, or the first of --metrics, reaches this value (default: none)."
    ),
]


def names_of(metrics: str | None) -> list[str] | None:
    """The metrics that are typed with commas between them; None where none are."""
    return None if metrics is None else [name.strip() for name in metrics.split(",")]


@dataclass(frozen=True, kw_only=True)
class RunRequest(OneMethodRequest):
    """What `fedsolve run` takes: one method, the processes that share it, and trackers."""

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
    """What `fedsolve compare` takes: methods, one weighting of all, and trackers."""

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
            help="Hyperparameter of every method that has it, or of one, as FedAvg.client_lr=0.1. Repeatable.",
        ),
    ] = None
    weighting: Annotated[
        str | None,
        typer.Option(
            metavar="uniform|examples",
            help="Client weighting for all methods (default: each method's).",
        ),
    ] = None
    track: Track = None
    metrics: Metrics = None
    target: Target = None

    @property
    def methods(self) -> Sequence[str]:
        """The methods, if some were named."""
        return self.names or ()


@dataclass(frozen=True, kw_only=True)
class SweepRequest(OneMethodRequest):
    """What `fedsolve sweep` takes: one method, and `grid`, `select` and `parallel_trials` of a section `[sweep]`."""

    swept: ClassVar[bool] = True
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="AXIS=VALUES",
            help="Hyperparameter and values: 1e-3:1:7log (log scale), 0:1:5 (linear scale) or 0.1,1,10. Repeatable.",
        ),
    ] = None
    select: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="Selection criterion: METRIC:LAST, validation-accuracy, ... (default: train_loss, its last tenth).",
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


def takes(model: type[R]) -> Callable[[Callable[[typer.Context, R], None]], Callable[..., None]]:
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
    """A model's fields that are annotated for the command line: the task, what is the command's own, what all have."""
    hints = get_type_hints(model, include_extras=True)
    shared = [f.name for f in dataclasses.fields(Request) if f.name != "task"]
    known = [f for f in dataclasses.fields(model) if get_origin(hints[f.name]) is Annotated]
    for f in sorted(known, key=lambda f: f.name in shared):  # the task is the first field of all
        yield inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name]
        )


def _run_options(swept: bool) -> list[inspect.Parameter]:
    """The options of a run (those of a sweep if `swept`) as parameters of a command."""
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
    end = "" if default is None else f" (default: {default})"
    return Annotated[kind | None, typer.Option(help=f"{text}{end}.")]


_HERE = "command line"


def from_options(request: Request) -> Config:
    """The configuration that a command runs: of the folder that it resumes, or of a file with what was typed over it.

    Raises:
        InvalidInput: no task, method or grid, something unknown or ill-typed, code named by a file that may not run,
            or a sweep where a run is meant or the other way round.
    """
    swept = isinstance(request, SweepRequest)
    if request.resume is not None:
        config = _of_folder(request.resume, request.run.get("rounds"), request.trust)
        if swept and config.sweep is None:
            command = "run" if len(config.method) == 1 else "compare"
            raise InvalidInput(
                f"{request.resume} holds no sweep: resume it with `fedsolve {command} --resume {request.resume}`"
            )
    else:
        config = _swept(request) if swept else _over_file(request)
    if config.sweep is not None and not swept:
        given = f"--resume {request.resume}" if request.resume else f"--config {request.config}"
        raise InvalidInput(f"this is the configuration of a sweep: use `fedsolve sweep {given}`")
    return config


def _of_folder(folder: Path, rounds: int | None, trust: Sequence[str] | None) -> Config:
    """The configuration of a folder that is to be continued, with more rounds if asked.

    Raises:
        InvalidInput: there is no run, it has more rounds than are asked for, or it names code that may not run.
    """
    if not (folder / CONFIG).is_file():
        raise InvalidInput(f"{folder} holds no run to resume: it has no {CONFIG}")
    config = check_runnable(load(folder), folder)
    admit(config, folder, trust)
    if rounds is None:
        return config
    if rounds < config.run.rounds:
        raise InvalidInput(f"--rounds {rounds} is less than the {config.run.rounds} of the run: give more")
    return parse(to_table(config) | {"run": {**to_table(config)["run"], "rounds": rounds}}, _HERE)


def _over_file(request: Request) -> Config:
    """The configuration in a file (if any) with everything typed laid over it.

    Raises:
        InvalidInput: no task or method, something unknown or ill-typed, or code named by the file that may not run.
    """
    path = request.config
    if path is None and request.trust:
        raise InvalidInput(
            "--trust says which modules a file may name: give it with --config, or leave it out"
        )
    file = {} if path is None else read_toml(path)
    config = _named(request, file)
    table = to_table(config)
    task_options = {} if request.task not in (None, file.get("task")) else table.get("task_options", {})
    table["task_options"] = task_options | _typed_task_options(request, config.task)
    in_file = config.method if "method" in file else ()
    named = [typed_method(text, [m.shown for m in in_file]) for text in request.methods]
    methods = _chosen(in_file, named)
    if path is not None:
        used = config.model_copy(update={"method": [MethodSection(**method) for method in methods]})
        tasks = [request.task] if request.task else []
        admit(used, path, request.trust, [*tasks, *(method["name"] for method in named)])
    if request.weighting is not None:
        table["weighting"] = request.weighting
        for method in methods:
            method.get("settings", {}).pop("weighting", None)
    table["method"] = _with_settings(methods, parse_assignments(request.settings or (), "--set"))
    table = _with_seeds(table | {"run": _with_run(table.get("run", {}), request.run)}, request)
    if request.validation is not None:
        table["validation"] = request.validation
    return parse(table, _HERE)


def _named(request: Request, file: Mapping[str, Any]) -> Config:
    """What a file has, with the task and the methods that were named where it has none, checked.

    Raises:
        InvalidInput: neither has a task or a method, or what the file has cannot be run.
    """
    names = request.methods
    if "task" not in file and not request.task:
        raise InvalidInput("no task: give TASK or a --config with one (see `fedsolve list tasks`)")
    if "method" not in file and not names:
        raise InvalidInput(
            "no method: name one after the task or give a --config with one (see `fedsolve list algorithms`)"
        )
    origin = _HERE if request.config is None else str(request.config)
    methods = file.get("method") or [typed_method(text) for text in names]
    table = {**file, "task": request.task or file.get("task"), "method": methods}
    return check_runnable(parse(table, origin), Path(origin))


def _typed_task_options(request: Request, task: str) -> dict[str, Any]:
    """Options of the task from `--task-set` and `--data-dir`.

    Raises:
        InvalidInput: a text that is none, or a data folder for a task of the catalogue that reads no files.
    """
    found = parse_assignments(request.task_set or (), "--task-set")
    if request.data_dir is None:
        return found
    if not is_reference(task) and "data_dir" not in inspect.signature(entry(task).builder).parameters:
        raise InvalidInput(f"--data-dir: the task {task} reads no data files: leave it out")
    return found | {"data_dir": str(request.data_dir)}


def _with_seeds(table: dict[str, Any], request: Request) -> dict[str, Any]:
    """A configuration with the seed or the seeds that were typed in place of what it has.

    Raises:
        InvalidInput: both were typed, or seeds that cannot be read.
    """
    one = request.run.get("seed")
    if request.seeds is not None and one is not None:
        raise InvalidInput("give --seed or --seeds, not both")
    if request.seeds is not None:
        run = {key: value for key, value in table["run"].items() if key != "seed"}
        return table | {"run": run, "seeds": parse_seeds(request.seeds)}
    return table if one is None else {key: value for key, value in table.items() if key != "seeds"}


def _swept(request: SweepRequest) -> Config:
    """The configuration of a sweep: what a file has, and over it what was typed.

    Raises:
        InvalidInput: no grid, several methods, or something unknown or ill-typed.
    """
    grid = parse_grid(request.grid or [])
    for axis in grid:
        if axis in parse_assignments(request.settings or [], "--set"):
            raise InvalidInput(f"{axis} is given by --set and by --grid: give one of them")
    # seeds and validation are of [sweep] here
    config = _over_file(dataclasses.replace(request, seeds=None, validation=None))
    if len(config.method) > 1:
        labels = ", ".join(m.shown for m in config.method)
        raise InvalidInput(f"{len(config.method)} methods ({labels}): name the one to sweep")
    table = to_table(config)
    section = dict(table.get("sweep", {}))
    if grid:
        section["grid"] = grid
    if "grid" not in section:
        raise InvalidInput(f"no grid: give at least one axis, such as {EXAMPLE}")
    if request.seeds is not None:
        section["seeds"] = parse_seeds(request.seeds)
    typed = {name: getattr(request, name) for name in ("select", "validation", "parallel_trials")}
    section |= {name: value for name, value in typed.items() if value is not None}
    origin = _HERE if request.config is None else str(request.config)
    return parse(table | {"sweep": section}, origin)


def _chosen(methods: Sequence[MethodSection], named: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    """The methods named, from the file where it has them; all of the file if none is named.

    Raises:
        InvalidInput: two of one label.
    """
    if not named:
        return [m.model_dump(exclude_none=True) for m in methods]
    chosen: list[dict[str, Any]] = []
    for typed in named:
        name = current_name(typed["name"])
        in_file = [m for m in methods if m.shown == typed["name"]] or [m for m in methods if m.name == name]
        # the label that was typed replaces the file's; the name may be a label of the file
        label = {key: value for key, value in typed.items() if key == "label"}
        chosen += [m.model_dump(exclude_none=True) | label for m in in_file] or [typed | {"name": name}]
    check_labels(_HERE, [m.get("label") or m["name"] for m in chosen])
    return chosen


def _with_settings(methods: list[dict[str, Any]], assigned: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Methods with typed settings: each key goes to every method that has it, or to the one it names."""
    known = {m.get("label") or m["name"]: arguments(m["name"]) for m in methods}
    result = {m.get("label") or m["name"]: {**m, "settings": dict(m.get("settings", {}))} for m in methods}
    for key, value in assigned.items():
        takers, name = _takers(key, known)
        for taker in takers:
            result[taker]["settings"][name] = value
    return list(result.values())


def _takers(key: str, known: Mapping[str, Collection[str]]) -> tuple[list[str], str]:
    """The labels of the methods that a key of `--set` goes to, and the setting.

    Raises:
        InvalidInput: no such method, or a setting that it has not (the nearest match is named).
    """
    label, dot, name = key.rpartition(".")
    if dot and label not in known:
        raise unknown("method of --set", label, known)
    takers = [label] if dot else [shown for shown, keys in known.items() if name in keys]
    if not takers or name not in known[takers[0]]:
        raise unknown(f"setting of {label or ', '.join(known)}", name, {k for v in known.values() for k in v})
    return takers, name


def _with_run(section: Mapping[str, Any], typed: Mapping[str, Any]) -> dict[str, Any]:
    """The section [run] with typed values; one of two that exclude each other replaces the other."""
    given = {key: _as_number(value) for key, value in typed.items() if value is not None}
    result = dict(section)
    for pair in exclusive_options():
        if any(key in given for key in pair):
            result = {key: value for key, value in result.items() if key not in pair}
    return result | given


def _as_number(value: Any) -> Any:
    """What was typed for an option that takes numbers and words: a number where it is one."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value) else value
