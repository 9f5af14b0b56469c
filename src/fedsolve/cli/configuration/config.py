"""The configuration of a run or a comparison: TOML, checked by pydantic, written back with all defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args

import tomli_w
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    field_validator,
)

from fedsolve.cli.configuration.values import check_labels
from fedsolve.config.catalogue import current_name
from fedsolve.core.errors import SEED_BITS, InvalidInput, unknown
from fedsolve.engine.options import RunOptions, WrittenOption, exclusive_options, written_options
from fedsolve.folders.untrusted import read_user_toml
from fedsolve.results.record_files import CONFIG

Positive = Annotated[int, Field(ge=1, lt=2**31)]
Seed = Annotated[int, Field(ge=0, lt=2**SEED_BITS)]
_LARGEST = 2**20


class Section(BaseModel):
    """A table of a configuration: nothing unknown, nothing of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _as_pydantic(option: WrittenOption) -> tuple[Any, Any]:
    # type, range and default of an option, as `create_model` takes a field
    about, kinds = option.about, []
    if about.least is not None:
        kinds.append(Annotated[int, Field(ge=about.least, lt=2**about.bits)])
    if about.share:
        kinds.append(Annotated[float, Field(gt=0, le=1)])
    if about.positive:
        kinds.append(Annotated[float, Field(gt=0)])
    if about.axes:
        kinds.append(dict[Literal[about.axes], Positive])
    if about.words:
        kinds.append(Literal[about.words])
    if about.flag:
        kinds.append(str)
    if option.default is None:
        kinds.append(None)
    return Union[tuple(kinds)], option.default  # noqa: UP007 (their number is known only here)


if TYPE_CHECKING:

    class RunSection(RunOptions, Section):  # pyright: ignore[reportGeneralTypeIssues] (frozen, as Section is)
        """What is made below, as type checkers see it."""

        rounds: int = 100
        participation: float | None = None

else:
    RunSection = create_model(
        "RunSection",
        __base__=Section,
        __module__=__name__,
        __doc__="The section `[run]`: the options of a run as text has them, under the same names.",
        **{option.name: _as_pydantic(option) for option in written_options()},
    )


class MethodSection(Section):
    """A section `[[method]]`: a name of the catalogue, how it is called in tables, and its settings."""

    name: str
    label: str | None = None
    settings: dict[str, Any] = {}

    @field_validator("name")
    @classmethod
    def _spelled_as_now(cls, name: str) -> str:
        # a stored configuration may have a former spelling
        return current_name(name)

    @property
    def shown(self) -> str:
        return self.label or self.name


class SweepSection(Section):
    """The section `[sweep]`: one method at settings of a grid or at random, with several seeds."""

    grid: dict[str, Any] = Field(min_length=1)
    search: Literal["grid", "random"] | None = None
    trials: Positive | None = None
    search_seed: Seed | None = None
    halving: int | None = Field(default=None, ge=2)
    seeds: Positive | list[Seed] | None = None
    select: str | None = None
    validation: float | None = Field(default=None, gt=0, lt=1)
    parallel_trials: Positive | None = Field(
        default=None,
        validation_alias=AliasChoices("parallel_trials", "lanes"),  # the former name, in folders kept since
    )

    @property
    def axes(self) -> dict[str, Any]:
        # as `fedsolve.sweep` takes them
        listed = {axis: values for axis, values in self.grid.items() if not isinstance(values, str)}
        return self.grid | {a: [None if v == "none" else v for v in x] for a, x in listed.items()}


class Configured(Section):
    """What all configurations have: a task, how it is run, and methods.

    `weighting` is that of all methods; without it each has its own.
    """

    task: str
    title: str = ""
    weighting: Literal["uniform", "examples"] | None = None
    task_options: dict[str, Any] = {}
    run: RunSection = RunSection()
    method: Sequence[MethodSection]


class Config(Configured):
    """A whole configuration: one method is a run, several are a comparison, one with `[sweep]` is a sweep.

    `seeds` is how many (0, 1, ...) or which, of each method, in place of `run.seed`; `validation` the share of every
    client's examples that is held out of training. `unnamed` tells in words what a run from Python had and no
    configuration can name: such a file can be shown, and not run.
    """

    unnamed: dict[str, str] = {}
    how_tuned: str = ""
    seeds: Positive | list[Seed] | None = None
    validation: float | None = Field(default=None, gt=0, lt=1)
    method: list[MethodSection] = Field(min_length=1)  # pyright: ignore[reportIncompatibleVariableOverride] (frozen)
    sweep: SweepSection | None = None


C = TypeVar("C", bound=Configured)


def parse(table: Mapping[str, Any], origin: str) -> Config:
    """A checked configuration from plain data; `origin` is named in errors."""
    config = parse_as(Config, table, origin)
    for name in ("seeds", "validation"):
        if getattr(config, name) is not None and config.sweep is not None:
            raise InvalidInput(f"{origin}: {name} of a sweep is sweep.{name}: write it there")
    if config.seeds is not None and config.run.seed:
        raise InvalidInput(f"{origin}: give seeds or run.seed, not both")
    return config


def parse_as(model: type[C], table: Mapping[str, Any], origin: str) -> C:
    try:
        config = model.model_validate(dict(table))
    except ValidationError as error:
        raise InvalidInput(describe_problems(error, model, origin)) from None
    for first, second in exclusive_options():
        if getattr(config.run, first) is not None and getattr(config.run, second) is not None:
            raise InvalidInput(f"{origin}: give {first} or {second}, not both")
    check_labels(origin, [method.shown for method in config.method])
    return config


def read_toml(path: str | Path) -> dict[str, Any]:
    """The plain data of a TOML file, which may be a link, or of that in the folder of a run, which may not."""
    path = Path(path)
    inside = path.is_dir()
    path = path / CONFIG if inside else path
    try:
        if path.stat().st_size > _LARGEST:
            raise InvalidInput(
                f"{path} has {path.stat().st_size:,} bytes: a configuration has at most {_LARGEST:,}"
            )
        return read_user_toml(path, _LARGEST, follow=not inside)
    except OSError as error:
        raise InvalidInput(f"cannot read the configuration {path}: {error.strerror}") from None


def load(path: str | Path) -> Config:
    path = Path(path)
    return parse(read_toml(path), str(path / CONFIG if path.is_dir() else path))


def check_runnable(config: Config, origin: Path) -> Config:
    """The configuration itself; `InvalidInput` where a run from Python left it, of which it names only a part."""
    if config.unnamed:
        raise InvalidInput(
            f"{origin} was written by a Python script, and a configuration cannot name its "
            f"{', '.join(config.unnamed)}: run the script again, with resume=True to continue"
        )
    return config


def to_table(config: Config) -> dict[str, Any]:
    table = config.model_dump(exclude_none=True)
    return {key: value for key, value in table.items() if value not in ("", {})}


def to_toml(config: Config, comment: str = "") -> str:
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    return lines + tomli_w.dumps(to_table(config))


_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "string_type": "a text",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "too_short": "given at least once, as [[method]] with a name",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than": ("> {gt}", "gt"),
    "greater_than_equal": (">= {ge}", "ge"),
    "less_than": ("< {lt}", "lt"),
    "less_than_equal": ("<= {le}", "le"),
}


def describe_problems(error: ValidationError, root: type[BaseModel], origin: str) -> str:
    # a value that fits no type of a union gives one error a type, all at one place: they become one line
    places: dict[tuple[str | int, ...], list[Any]] = {}
    for item in error.errors():
        loc = item["loc"]
        if item["type"] != "extra_forbidden":
            loc = tuple(part for part in loc if not _is_branch(part))
        places.setdefault(loc, []).append(item)
    place, items = next(iter(places.items()))
    more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
    return f"{origin}: {_describe(place, items, root)}{more}"


def _is_branch(part: str | int) -> bool:
    # a part of a place that names a branch of a union of types is no key
    return isinstance(part, str) and (part in ("int", "constrained-int", "float") or "[" in part)


def _describe(place: Sequence[str | int], items: Sequence[Any], root: type[BaseModel]) -> str:
    # an unknown key is compared with those of its own table
    first = items[0]
    if first["type"] == "extra_forbidden":
        section = _section(place[:-1], root)
        where = f"key in {_name(place[:-1])}" if place[:-1] else "key"
        return str(unknown(where, str(place[-1]), section.model_fields))
    if first["type"] == "missing":
        return f"{_name(place)} is missing"
    expected = " or ".join(dict.fromkeys(_expected(item) for item in items))
    return f"{_name(place)} = {first['input']!r} must be {expected}"


def _expected(item: Any) -> str:
    kind = item["type"]
    if kind in _BOUNDS:
        text, name = _BOUNDS[kind]
        return text.format(**{name: item["ctx"][name]})
    if kind == "list_type":
        name = item["loc"][-1]
        return f"a list of tables, written [[{name}]]" if name in ("method", "claim") else "a list"
    if kind == "literal_error":
        return str(item["ctx"]["expected"])
    return _EXPECTED.get(kind) or str(item["msg"])


def _name(place: Sequence[str | int]) -> str:
    """A place as it is written: run.rounds, or method 2 for an element of [[method]].

    >>> _name(("method", 1, "label"))
    'method 2: label'
    """
    text = ""
    for part in place:
        joint = " " if isinstance(part, int) or text.endswith(":") else "." if text else ""
        text += f"{joint}{part + 1}:" if isinstance(part, int) else f"{joint}{part}"
    return text.removesuffix(":")


def _section(place: Sequence[str | int], root: type[BaseModel]) -> type[BaseModel]:
    model = root
    for part in place:
        if isinstance(part, str):
            hint: Any = model.model_fields[part].annotation
            kinds = [hint, *get_args(hint)]
            model = next(k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel))
    return model
