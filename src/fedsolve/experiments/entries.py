"""Experiments by name: the entry points of the group `fedsolve.studies`, ours and those of other distributions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from configparser import ConfigParser
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from typing import Any

from fedsolve.config.references import failed
from fedsolve.core.errors import InvalidInput, of_type
from fedsolve.studies.experiment import Experiment

GROUP = "fedsolve.studies"
_NAME = re.compile(r"\w[\w+.-]*")  # it names a folder too


def _ours() -> dict[str, EntryPoint]:
    """From the file that installing copies into the metadata, so that a source tree needs no installing."""
    file = ConfigParser(delimiters="=")
    file.read_string((files("fedsolve.experiments") / "entry_points.txt").read_text())
    return {name: EntryPoint(name, value, GROUP) for name, value in file[GROUP].items()}


EXPERIMENTS: Mapping[str, EntryPoint] = _ours()
"""This package's experiments by name: the papers' figures and tables, and what stands beside them."""


@cache
def entries() -> Mapping[str, EntryPoint]:
    """Every experiment's entry point by name: ours, then those of other distributions, none of which takes a name."""
    others = {e.name: e for e in entry_points(group=GROUP) if e.dist is None or e.dist.name != "fedsolve"}
    return {**EXPERIMENTS, **{name: entry for name, entry in others.items() if name not in EXPERIMENTS}}


def loaded(entry: EntryPoint) -> Experiment:
    """What an entry point names: a `Study`, an `Experiment`, a function that returns one, or a mapping with its name.

    Raises:
        InvalidInput: its name is no folder's, it cannot be loaded, or is something else; what and whose it is.
    """
    from fedsolve.studies import Study
    from fedsolve.studies.runner import experiment

    whose = f" of {entry.dist.name} {entry.dist.version}" if entry.dist else ""
    what = f"experiment {entry.name!r}{whose} ({entry.value})"
    if not _NAME.fullmatch(entry.name):
        raise InvalidInput(f"{what}: a name has letters, digits, '.', '+', '-' and '_'; rename it")
    try:
        found: Any = entry.load()
        found = found[entry.name] if isinstance(found, Mapping) else found
        found = found() if callable(found) else found
    except (Exception, SystemExit) as error:
        raise failed(what, error) from None
    if isinstance(found, Study):
        return experiment(found)
    if not isinstance(found, Experiment):
        raise InvalidInput(f"{what} is {of_type(found)}: name a fedsolve.studies.Study")
    return found
