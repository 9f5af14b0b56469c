"""The log of arrivals: whose replies each update of an asynchronous run used, and the version each began with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput
from fedsolve.core.fleets.arrivals import Arrivals
from fedsolve.deploy.messages.spec import method_from_spec, to_spec
from fedsolve.folders.append_log import append_line
from fedsolve.folders.files import write_atomically
from fedsolve.folders.store import INTACT
from fedsolve.folders.untrusted import read_text

ARRIVALS = "arrivals.jsonl"
"""The file in a run's folder: a line on the run, then a line for each update."""
_LARGEST = 2**28


class _Line(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class _Head(_Line):
    """The first line: what is repeated."""

    method: dict[str, Any]
    population: int = Field(ge=1)
    seed: int = Field(ge=0)
    dtype: str = Field(pattern="^float(32|64)$")


class _Update(_Line):
    """A line of an update, from 1."""

    update: int = Field(ge=1)
    clients: list[int]
    versions: list[int]
    seconds: float = Field(ge=0)


class RecordedRun(NamedTuple):
    """What a log of arrivals says of its run.

    Attributes:
        method: the method, built from what the log says of it.
        seed: of the run.
        dtype: its floating-point type.
        arrivals: those of all updates.
    """

    method: Algorithm
    seed: int
    dtype: str
    arrivals: Arrivals


class ArrivalLog:
    """The log of a run that goes on.

    Args:
        folder: the run's.
        algorithm, population, seed, dtype: of the run.
        done: updates done; lines of later ones, whose checkpoint was never written, are removed.

    Raises:
        InvalidInput: a run that goes on has no such log, or a damaged one.
    """

    def __init__(
        self, folder: Path, algorithm: Algorithm, population: int, seed: int, dtype: str, done: int
    ) -> None:
        self._path = folder / ARRIVALS
        head = _Head(method=to_spec(algorithm), population=population, seed=seed, dtype=dtype)
        lines = [head.model_dump_json()]
        if done:
            lines += [update.model_dump_json() for update in _read(self._path, done)[1]]
        write_atomically(self._path, "\n".join(lines) + "\n")

    def append(self, update: int, versions: Mapping[int, int], seconds: float) -> None:
        """Write down an update, numbered from 0: its clients, each with the version that it began with."""
        line = _Update(
            update=update + 1, clients=list(versions), versions=list(versions.values()), seconds=seconds
        )
        append_line(self._path, line.model_dump_json(), INTACT)


def read_arrivals(folder: Path, trusted: Collection[Any] = ()) -> RecordedRun:
    """What the log in the folder of a run says.

    Args:
        folder: the run's.
        trusted: classes and functions of yours that the method may consist of.

    Raises:
        InvalidInput: there is none, as of synchronous rounds, or it is damaged.
    """
    path = folder / ARRIVALS
    head, updates = _read(path)
    if not updates:
        raise InvalidInput(f"{path} has no update yet: nothing can be repeated")
    try:
        arrivals = Arrivals(
            population=head.population,
            clients=[update.clients for update in updates],
            versions=[update.versions for update in updates],
            seconds=[update.seconds for update in updates],
        )
    except ValueError as error:  # rows of different lengths, or `InvalidInput`
        raise InvalidInput(f"{path} is damaged ({error}): restore a copy") from None
    return RecordedRun(method_from_spec(head.method, trusted), head.seed, head.dtype, arrivals)


def _read(path: Path, most: int | None = None) -> tuple[_Head, list[_Update]]:
    """The lines, of updates the first `most`, which must be there."""
    if not path.exists():
        raise InvalidInput(
            f"{path} is not there: its run had synchronous rounds, as runs of earlier versions have; start a new run"
        )
    try:
        lines = [line for line in read_text(path, _LARGEST, follow=False).splitlines() if line]
        head = _Head.model_validate_json(lines[0] if lines else "")
        updates = [_Update.model_validate_json(line) for line in lines[1:][:most]]
        if [u.update for u in updates] != list(range(1, (most or len(updates)) + 1)):
            raise ValueError("an update is missing")
    except (ValueError, OSError) as error:
        reason = f"{error.error_count()} wrong values" if isinstance(error, ValidationError) else error
        raise InvalidInput(f"{path} is damaged ({reason}): restore a copy") from None
    return head, updates
