"""Run an experiment by its name and write its page, or evaluate the claims of an earlier run again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedsolve.core.errors import InvalidInput
from fedsolve.studies.experiment import Claim, Context, Experiment, Outcome, command
from fedsolve.studies.names import find
from fedsolve.studies.parts import has_parts


@dataclass(frozen=True)
class Reproduced:
    """What was found, the page that shows it, and the seconds of all parts (NaN if those of a kept one are lost)."""

    outcome: Outcome
    page: Path
    seconds: float


def _check_folder(folder: Path) -> None:
    """Raise `InvalidInput` if a folder cannot be written, without making it."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        why = "Permission denied" if there.is_dir() else f"{there} is a file"
        raise InvalidInput(f"cannot write to {folder}: {why}; choose another folder")


def _check_full(name: str, experiment: Experiment, full: bool) -> None:
    if full and not experiment.full:
        raise InvalidInput(f"{name} has one size: leave out full")


def evaluate_claims(
    name: str, folder: str | Path, *, full: bool = False, experiment: Experiment | None = None
) -> Sequence[Claim]:
    """The claims of an experiment with verdicts, computed again from what an earlier run kept; nothing is run.

    Args:
        name: one of `fedsolve list experiments`, or `module:function` of a study.
        folder: of the earlier run, with its `parts/` or `parts.zip`.
        full: whether that was of the paper's size.
        experiment: what the name stands for where `find` does not know it, such as that of a file.

    Raises:
        InvalidInput: an unknown name, a part that is not kept, `full` of an experiment of one size.
    """
    experiment = experiment or find(name)
    _check_full(name, experiment, full)
    if not has_parts(Path(folder)):
        raise InvalidInput(f"{folder} keeps no data of {name}: run {command(name)} into it first")
    return experiment.run(Context(Path(folder), full=full, stored_only=True)).claims


def reproduce(
    name: str,
    folder: str | Path,
    *,
    data_dir: str | Path | None = None,
    quick: bool = False,
    full: bool = False,
    experiment: Experiment | None = None,
    say: Callable[[str, int, int], None] = lambda part, done, total: None,
) -> Reproduced:
    """Run an experiment into a folder: results, pictures and a page of claim / theirs / ours / deviations.

    Parts that are finished stay in `parts/`; the same call goes on where an interrupted one was.

    Args:
        name: one of `fedsolve list experiments`, or `module:function` of a study.
        folder: where to; it is made.
        data_dir: the data folder, default FEDSOLVE_DATA.
        quick: a few rounds and settings, to see that it works; its numbers mean nothing and get no verdict.
        full: the paper's size, of an experiment that has one beside that which two cores finish.
        experiment: what the name stands for where `find` does not know it, such as that of a file.
        say: called with (part, done, total).

    Raises:
        InvalidInput: an unknown name, missing data or matplotlib, a folder that cannot be written, `full` with `quick`
            or of an experiment that has one size.
        Interrupted: Ctrl-C.
    """
    from fedsolve.data import sources
    from fedsolve.engine.identity import provenance
    from fedsolve.report.plots import require_matplotlib
    from fedsolve.studies.pages.page import write_results

    experiment = experiment or find(name)
    require_matplotlib()
    if full and quick:
        raise InvalidInput("quick and full are two sizes: give one of them")
    _check_full(name, experiment, full)
    if experiment.needs_data and not quick:
        sources.data_dir(data_dir)
    folder = Path(folder)
    _check_folder(folder)
    begun = time.process_time()
    data = None if data_dir is None else Path(data_dir)
    context = Context(folder, data, quick, full, say=say)
    outcome = experiment.run(context)
    if quick:
        claims = [replace(claim, verdict=None, reason="") for claim in outcome.claims]
        outcome = replace(outcome, claims=claims)
    seconds = time.process_time() - begun + sum(context.earlier)
    made = "; ".join(sorted(context.made_with)) or provenance()
    page = write_results(folder, name, experiment, outcome, seconds, made, quick)
    return Reproduced(outcome, page, seconds)
