"""What a run of an app is for, by its configuration, and the folder of one that trains nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsolve.core.errors import FedsolveError, InvalidInput, check_flag, check_known
from fedsolve.data.column_statistics.pooled import Minimum, check_summable
from fedsolve.data.column_statistics.replies import Request
from fedsolve.data.column_statistics.statistics import asked_columns
from fedsolve.deploy.messages.sanitize import sanitize
from fedsolve.deploy.run_log import FAILED, say, write_failure
from fedsolve.folders.files import locked
from fedsolve.folders.run_folder import DEPLOYMENT
from fedsolve.results.record_files import HISTORY

TRAIN, EVALUATE, STATISTICS = "train", "evaluate", "statistics"
JOBS = (TRAIN, EVALUATE, STATISTICS)
STATISTICS_FILE = "statistics.json"
"""The statistics, in the folder of their run."""


@dataclass(frozen=True)
class Job:
    """What a run is for.

    Attributes:
        name: `train`, `evaluate` or `statistics`.
        model: the folder of a run, or a model's file, to evaluate; a relative path starts where the SuperLink did.
        columns: what is asked about each column, by name; all that clients allow if there are none.
        minimum: of clients and rows that a statistic must be of.
        secure: whether statistics are sums of which the server sees no client's part.
    """

    name: str
    model: Path
    columns: dict[str, Request]
    minimum: Minimum
    secure: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Job:
        """The job that a run's configuration names: `job`, with `model`, or `columns`, minimums and `secure`.

        Raises:
            InvalidInput: an unknown job, an evaluation without a model, columns or minimums that are none, or a sum of
                columns without a range.
        """
        name, model = config.get("job", TRAIN), config.get("model", "")
        check_known("job", name, JOBS)
        if name == EVALUATE and (not isinstance(model, str) or not model):
            raise InvalidInput(
                'job = "evaluate" needs model: the folder of a run, or the file of a model, such as model="run"'
            )
        least = Minimum()
        minimum = Minimum(config.get("min-clients", least.clients), config.get("min-rows", least.rows))
        secure = config.get("secure", False)
        check_flag("secure", secure)
        columns = asked_columns(config.get("columns", ""))
        if name == STATISTICS and secure:
            check_summable(columns)
        return cls(name, Path(model), columns, minimum, secure)


@contextlib.contextmanager
def job_folder(folder: Path) -> Iterator[None]:
    """Hold a new folder for a job; how the job fails is said in the log and in the folder.

    Raises:
        InvalidInput: the folder holds a run already, is in use or cannot be written.
    """
    is_ours = False
    try:
        with locked(folder):
            names = (DEPLOYMENT.file, DEPLOYMENT.previous, HISTORY, STATISTICS_FILE)
            if any((folder / name).exists() for name in names):
                raise InvalidInput(f"{folder} holds a run already: choose another folder (out)")
            is_ours = True
            (folder / FAILED).unlink(missing_ok=True)
            yield
    except Exception as error:
        reason = (
            str(error) if isinstance(error, FedsolveError) else sanitize(f"{type(error).__name__}: {error}")
        )
        say(f"error: {reason}")
        if is_ours:
            write_failure(folder, reason)
        raise
