"""What is typed of each command that trains: one model a command, whose fields are its arguments and options."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeVar, get_origin, get_type_hints

import typer

from fedsolve.cli.configuration import arguments as arg


@dataclass(frozen=True, kw_only=True)
class Request:
    """What every command takes: a configuration, or what to lay over one, and how it is run and shown.

    Attributes:
        task: name of the task; another than the file's drops the options of the file's task.
        settings: `key=value` for every method that has the key, or `label.key=value` for one.
        seeds: how many or which, in place of the file's seed or seeds.
        validation: share of every client's examples that is held out of training.
        task_set: `key=value` for the task.
        config: the TOML file.
        data_dir: the data folder, for tasks that read files.
        out: the folder to write.
        resume: the folder to go on in.
        trust: modules that the file may name though they do not lie beside it.
        watch: whether a page is served that follows it.
        as_json: whether one JSON document is printed in place of text.
        weighting: how all methods weigh clients; it replaces what the file has, of each method too.
        run: keys of the section `[run]`; None where not typed.
    """

    swept: ClassVar[bool] = False
    task: arg.TaskName = None
    settings: arg.Settings = None
    seeds: arg.Seeds = None
    validation: arg.Validation = None
    task_set: arg.TaskOptions = None
    config: arg.ConfigFile = None
    data_dir: arg.DataDir = None
    out: arg.Out = None
    resume: arg.Resume = None
    trust: arg.Trust = None
    watch: arg.Watch = False
    as_json: arg.AsJson = False
    weighting: str | None = None
    run: Mapping[str, Any] = field(default_factory=dict)

    @property
    def methods(self) -> Sequence[str]:
        """Methods; of those that the file has, by label or name, its settings are kept."""
        return ()


@dataclass(frozen=True, kw_only=True)
class RunRequest(Request):
    """What `fedsolve run` takes: one method, the processes that share it, and trackers."""

    name: arg.Name = None
    processes: arg.Processes = None
    track: arg.Track = None

    @property
    def methods(self) -> Sequence[str]:
        """The method, if one was named."""
        return () if self.name is None else (self.name,)


@dataclass(frozen=True, kw_only=True)
class CompareRequest(Request):
    """What `fedsolve compare` takes: methods, one weighting of all, and trackers."""

    names: arg.Names = None
    settings: arg.SettingsOfEach = None
    weighting: arg.Weighting = None
    track: arg.Track = None

    @property
    def methods(self) -> Sequence[str]:
        """The methods, if some were named."""
        return self.names or ()


@dataclass(frozen=True, kw_only=True)
class SweepRequest(Request):
    """What `fedsolve sweep` takes: one method, and `grid`, `select` and `parallel_trials` of a section `[sweep]`."""

    swept: ClassVar[bool] = True
    name: arg.Name = None
    grid: arg.Grid = None
    select: arg.Select = None
    parallel_trials: arg.ParallelTrials = None
    resume: arg.ResumeSweep = None

    @property
    def methods(self) -> Sequence[str]:
        """The method, if one was named."""
        return () if self.name is None else (self.name,)


R = TypeVar("R", bound=Request)


def takes(model: type[R]) -> Callable[[Callable[[typer.Context, R], None]], Callable[..., None]]:
    """Let a command take the options of a model, and those of a run or of a sweep, as one object."""

    def decorate(command: Callable[[typer.Context, R], None]) -> Callable[..., None]:
        parameters = list(_parameters(model))
        names = {parameter.name for parameter in parameters}

        @functools.wraps(command)
        def call(context: typer.Context, **typed: Any) -> None:
            own = {name: typed.pop(name) for name in names}
            command(context, model(**own, run=typed))

        first = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        at = 1 + [parameter.name for parameter in parameters].index("config")
        options = arg.run_options(swept=model.swept)
        signature = inspect.Signature([first, *parameters[:at], *options, *parameters[at:]])
        call.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        return call

    return decorate


def _parameters(model: type[Request]) -> Iterator[inspect.Parameter]:
    """A model's fields that are annotated for the command line: the task, what is the command's own, what all have."""
    hints = get_type_hints(model, include_extras=True)
    shared = [f.name for f in dataclasses.fields(Request)]
    known = [f for f in dataclasses.fields(model) if get_origin(hints[f.name]) is Annotated]
    own = [f for f in known if f.name not in shared]
    rest = [f for f in known if f.name in shared and f.name != "task"]
    for f in (*(f for f in known if f.name == "task"), *own, *rest):
        yield inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name]
        )
