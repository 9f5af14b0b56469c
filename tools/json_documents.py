"""What the commands print with `--json`, as types; `docs/schemas.json` has their schemas, `docs/json.md` lists them.

The tests of the command line check what each command prints against its schema, which allows no other keys. A command
that fails prints a `Failed` instead.
"""

from __future__ import annotations

import json
from typing import Any, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict  # as pydantic asks of Python below 3.12

from fedsolve.data.column_statistics import CategoryStatistics, NumberStatistics
from fedsolve.studies.experiment import Claim
from fedsolve.studies.settings import KnownSetting

SCHEMAS = "docs/schemas.json"
Facts = dict[str, Any]
Files = dict[str, str]
Number = float | None


class Failed(TypedDict):
    """A command that failed: the status is `error`, `diverged` or `interrupted`, and the error one line."""

    status: str
    exit_code: int
    error: str


class Report(TypedDict):
    """What runs have in common; `files` has paths by kind."""

    status: str
    folder: str
    task: str
    rounds: int
    files: Files
    imports: NotRequired[list[str]]


class Method(TypedDict):
    """One of several methods, or one seed: `result` is its row of the table, null before the first evaluation."""

    label: str
    algorithm: NotRequired[str]
    folder: NotRequired[str]
    status: str
    rounds: NotRequired[int]
    result: Facts | None
    error: str | None


class Run(Report):
    """A run: `result` is the row of its table."""

    result: Facts
    notes: list[str]


class Comparison(Report):
    """Several methods; of `fedsolve show` also one."""

    methods: list[Method]
    notes: NotRequired[list[str]]


class UnfinishedSweep(Report):
    """A sweep that has not ended."""

    label: str


class Criterion(TypedDict):
    """The criterion of a sweep: a metric, over how many last rounds, and in words."""

    metric: str
    last: int
    rule: str


class Best(TypedDict):
    """The best setting of a sweep: its number, its scores by seed, and the command that runs it."""

    setting: int
    values: Facts
    score: float
    scores: list[float]
    command: str


class Ranked(TypedDict):
    """A setting of a sweep: scores are null where a seed diverged, first in `round`, or it stopped after `stopped`."""

    rank: int
    setting: int
    values: Facts
    score: Number
    lowest: Number
    highest: Number
    scores: list[Number]
    diverged: int
    stopped: int | None
    round: int | None


class Sweep(UnfinishedSweep):
    """A sweep: all settings, the best first."""

    grid: dict[str, list[Any]]
    search: Facts
    seeds: list[int]
    selection: Criterion
    best: Best | None
    share_within_5_percent: float
    ranking: list[Ranked]
    trials: int
    trials_diverged: int
    seconds: float
    notes: list[str]
    error: str | None


class Entry(TypedDict):
    """A name that `fedsolve list` lists; each kind has some of the other keys."""

    name: str
    summary: str
    citation: str
    paper: NotRequired[str]
    title: NotRequired[str]
    settings: NotRequired[Facts]
    options: NotRequired[Facts]
    parameters: NotRequired[list[str]]
    operations: NotRequired[list[str]]
    minutes: NotRequired[Number]
    sum_is_enough: NotRequired[bool]
    down: NotRequired[list[Facts]]
    up: NotRequired[list[Facts]]
    trained_client: NotRequired[bool | str]
    trained_client_needs: NotRequired[list[str]]


class DataSet(TypedDict):
    """A data set that can be fetched or converted."""

    name: str
    title: str
    home: str
    licence: str
    megabytes: float
    task: str
    run: str
    remark: str
    files: list[str]
    originals: list[dict[str, str | None]]
    converted: bool


class Converted(TypedDict):
    """The files that were written."""

    status: str
    files: list[str]


class Found(TypedDict):
    """A line of `fedsolve doctor`."""

    name: str
    found: bool
    words: str


class Predictions(TypedDict):
    """How many predictions are in the file."""

    status: str
    file: str
    predictions: int


Exported = TypedDict(
    "Exported",
    {
        "status": str,
        "file": str,
        "card": str,
        "parameters": int,
        "largest difference from PyTorch": NotRequired[float],
        "rows of this check": NotRequired[int],
    },
)
"""An exported model and its card."""


class Reproduced(TypedDict):
    """A study that has run: its page and its claims."""

    status: str
    quick: bool
    page: str
    seconds: float
    claims: list[Claim]


class Verdict(TypedDict):
    """The claims of a study."""

    status: str
    folder: str
    claims: list[Claim]


class Verdicts(TypedDict):
    """The claims of all stored studies by name."""

    status: str
    claims: dict[str, list[Claim]]


class ByClient(TypedDict):
    """A metric of a model over all examples and by client."""

    over_all_examples: Number
    by_client: list[Number]
    deciles: list[Number]
    worst: list[tuple[str, float]]


class Measured(TypedDict):
    """What the clients measured on one part of their examples."""

    clients: list[str]
    examples: list[int]
    metrics: dict[str, ByClient]


class Evaluation(TypedDict):
    """An evaluated model."""

    status: str
    folder: str
    method: str
    rounds: int
    train: NotRequired[Measured]
    validation: NotRequired[Measured]
    files: Files


class Statistics(TypedDict):
    """Statistics of the clients' columns by name, and why a column has none."""

    status: str
    folder: str
    columns: dict[str, NumberStatistics | CategoryStatistics]
    unreported: dict[str, str]
    notes: list[str]
    files: Files


class Analysis(TypedDict):
    """A model or a curve over sites, as `fs.stats` stores it."""

    status: str
    folder: str
    result: Facts


class Demo(TypedDict):
    """The rows of the table of the demo's methods."""

    status: str
    folder: str
    results: list[Facts]
    files: Files


class FederationRun(TypedDict):
    """A run of a federation, with its clients."""

    folder: str
    status: str
    error: str | None
    experiment: str
    label: str
    keeps_states: bool
    round: int
    rounds: int
    time: float
    clients: list[Facts]
    refused: list[str]


class Federation(TypedDict):
    """The runs of a federation."""

    folder: str
    runs: list[FederationRun]


COMMANDS: dict[str, Any] = {
    "run": Run,
    "compare": Comparison,
    "sweep": Sweep,
    "show": Comparison | Sweep | UnfinishedSweep | Statistics | Analysis,
    "list": list[Entry],
    "settings": list[KnownSetting],
    "data": list[DataSet] | DataSet | Converted,
    "doctor": list[Found],
    "predict": Predictions,
    "export": Exported,
    "reproduce": Reproduced,
    "study": Reproduced,
    "verdict": Verdict | Verdicts,
    "federate demo": Demo,
    "federate evaluate": Evaluation,
    "federate statistics": Statistics,
    "federate glm": Analysis,
    "federate cox": Analysis,
    "federate km": Analysis,
    "federate status": Federation,
}
"""What each command prints where it succeeds."""
_TEXT = {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]}


def schemas() -> dict[str, Any]:
    """A JSON schema for each command by name, and under `$defs` what they share."""
    adapter: Any = TypeAdapter  # the types are values here
    adapters = [(name, "serialization", adapter(made | Failed)) for name, made in COMMANDS.items()]
    by_command, shared = adapter.json_schemas(adapters)
    found = {name: schema for (name, _), schema in by_command.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_strict(shared),
        "commands": _strict(found),
    }


def _strict(schema: Any) -> Any:
    # no keys but those named; a number may be one that is not finite, as text; no titles, which repeat the names
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "number":
        return {"anyOf": [{"type": "number"}, _TEXT]}
    known = {
        key: _strict(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }
    if "description" in known and isinstance(known["description"], str):
        known["description"] = known["description"].partition("\n")[0]
    if "properties" not in schema:
        return known
    # what has a default in Python is written all the same
    always = [
        k for k, part in schema["properties"].items() if "default" in part or k in schema.get("required", ())
    ]
    return known | {"required": always, "additionalProperties": False}


def text() -> str:
    """`docs/schemas.json`."""
    return json.dumps(schemas(), indent=1, ensure_ascii=False) + "\n"


PAGE = """# Output as JSON

For programs and agents that call fedsolve: the document that each command prints with `--json`, by its keys.

A command prints one document on standard output, and remarks on standard error. Its exit code is 0, or one that its
document has: `{"status": "error", "exit_code": 2, "error": "..."}`. `fedsolve COMMAND --help` lists the codes.
Numbers that are not finite are the text `"NaN"`, `"Infinity"` or `"-Infinity"`. Later versions may add keys.

[schemas.json](schemas.json) has a JSON schema for each command, under `commands` by name. The tests check the output
of the commands with it.
"""


def page() -> str:
    """`docs/json.md`: the documents and their keys."""
    found = schemas()
    lines = [PAGE]
    for command, schema in found["commands"].items():
        names = [name for name in _names(schema) if name != "Failed"]
        lines.append(f"* `fedsolve {command}`: {'; '.join(names)}")
    lines += [
        "",
        "The keys of each document, with a question mark where one may be missing:",
        "",
    ]
    for name, schema in found["$defs"].items():
        if "properties" not in schema:  # a mean with its interval
            continue
        keys = [key if key in schema.get("required", ()) else f"{key}?" for key in schema["properties"]]
        about = schema.get("description", "").rstrip(".")
        lines.append(f"* **{name}**{about and f' ({about})'}: `{', '.join(keys)}`")
    return "\n".join([*lines, ""])


def _names(schema: Any) -> list[str]:
    # the documents that a command may print
    if "anyOf" in schema:
        return [name for part in schema["anyOf"] for name in _names(part)]
    if schema.get("type") == "array":
        return [f"list of {name}" for name in _names(schema["items"])]
    return [schema["$ref"].rpartition("/")[2]]
