"""Which versions a client runs, and whether the server's fedsolve works with its one."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from fedsolve.core import __version__
from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.messages.records import facts_of
from fedsolve.deploy.messages.sanitize import sanitize

RECORD = "versions"
"""The record of an answer to `who`."""
_NAMES = ("fedsolve", "flwr", "python", "framework")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9 .+!_-]{0,63}")


def own_versions(framework: str) -> ConfigRecord:
    """The versions of this process, for the server.

    Args:
        framework: the distribution that the client's own code runs on, such as torch.
    """
    return ConfigRecord(
        {
            "fedsolve": __version__,
            "flwr": _installed("flwr"),
            "python": platform.python_version(),
            "framework": f"{framework} {_installed(framework)}",
        }
    )


def _installed(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def read_versions(answer: RecordDict) -> dict[str, str]:
    """The versions in the answer to `who`, by name.

    Raises:
        InvalidInput: its fedsolve does not work with this one, or what it reports are no versions.
    """
    record = answer.get(RECORD)
    fedsolve = record.get("fedsolve") if isinstance(record, ConfigRecord) else None
    if record is None:
        raise InvalidInput(
            f"it reports no version of fedsolve, so its one is older than 0.2, and the server has {__version__}: "
            f"{_remedy()}"
        )
    if isinstance(fedsolve, str) and not is_compatible(fedsolve, __version__):
        raise InvalidInput(
            f"it has fedsolve {sanitize(fedsolve, 40)}, and the server {__version__}: {_remedy()}"
        )
    versions: dict[str, Any] = facts_of(answer, RECORD, dict.fromkeys(_NAMES, str))
    for name, version in versions.items():
        if not _VERSION.fullmatch(version):
            raise InvalidInput(f"its version of {name} is {sanitize(repr(version), 80)}, which is no version")
    return versions


def is_compatible(one: str, other: str) -> bool:
    """Whether two versions of fedsolve understand each other's messages: of 0.x those of the same x, else of a major.

    >>> is_compatible("0.2.0", "0.2.7"), is_compatible("0.2.0", "0.3.0"), is_compatible("1.0.2", "1.4.0")
    (True, False, True)
    """
    return _series(one) == _series(other) != ""


def _series(version: str) -> str:
    """What versions that work together have in common; '' of what is no version."""
    match = re.match(r"(\d{1,9})\.(\d{1,9})(?![\d])", version)
    return "" if match is None else f"0.{int(match[2])}" if int(match[1]) == 0 else str(int(match[1]))


def _remedy() -> str:
    return f"install fedsolve {_series(__version__)} there, or the same version here and there"
