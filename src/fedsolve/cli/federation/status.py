"""`fedsolve federate status`: the clients of a federation, by what the server wrote down of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedsolve.cli.terminal.console import emit, emit_json, emit_table
from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.run_log import FAILED, read_reason
from fedsolve.deploy.site_names import numbered
from fedsolve.deploy.status import STATUS, ClientStatus, FederationStatus, read_status
from fedsolve.folders.files import held
from fedsolve.report.style import human_time
from fedsolve.results.record_files import HISTORY

_HEADS = ("client", "site", "connected", "last heard", "failures", "in a row", "last used round", "fedsolve", "Flower",
          "Python", "framework")  # fmt: skip
_NAMES = ("fedsolve", "flwr", "python", "framework")


def status_command(folder: Path, as_json: bool) -> None:
    """Print the status of the clients of a run, or of all runs in a folder.

    Raises:
        InvalidInput: there is none, or one is damaged.
    """
    runs = list(_runs(folder))
    if as_json:
        emit_json({"folder": str(folder), "runs": [run.document() for run in runs]})
        return
    for number, run in enumerate(runs):
        if number:
            emit("")
        _print(run)


class _Run(NamedTuple):
    """A run's folder, how the run stands, why it failed ('' if it did not), and its clients."""

    folder: Path
    state: str
    error: str
    clients: FederationStatus

    def document(self) -> dict[str, Any]:
        """All of it as plain data."""
        about = {"folder": str(self.folder), "status": self.state, "error": self.error or None}
        return about | self.clients.model_dump(mode="json")


def _runs(folder: Path) -> Iterator[_Run]:
    """The run of a folder, or those of the folders in it.

    Raises:
        InvalidInput: there is none, or a status is damaged.
    """
    found = [folder / STATUS] if (folder / STATUS).exists() else sorted(folder.glob(f"*/{STATUS}"))
    if not found:
        raise InvalidInput(
            f"{folder} holds no run of a federation: no {STATUS} is in it or in a folder of it"
        )
    for path in found:
        clients = read_status(path)
        state, error = _state(path.parent, clients)
        yield _Run(path.parent, state, error, clients)


def _state(folder: Path, clients: FederationStatus) -> tuple[str, str]:
    """How a run stands, and why it failed."""
    if held(folder):
        return "running", ""
    if (folder / FAILED).exists():
        return "failed", read_reason(folder)
    history = folder / HISTORY  # of a run that went on and was interrupted it is older than the status
    is_newest = history.exists() and history.stat().st_mtime >= (folder / STATUS).stat().st_mtime
    return ("finished" if is_newest or clients.round >= clients.rounds > 0 else "interrupted"), ""


def _print(run: _Run) -> None:
    known = run.clients
    connected = sum(one.connected for one in known.clients)
    error = f" ({run.error})" if run.error else ""
    emit(
        f"{known.label} in {run.folder}: {run.state}{error}, {known.round} of {known.rounds} rounds, "
        f"{connected} of {len(known.clients)} clients connected"
    )
    emit_table(_HEADS, [_row(one) for one in known.clients], len(_HEADS))
    for one in known.clients:
        if one.last_cause is not None:
            emit(f"last failure of {one.site or numbered(one.client)}: {one.last_reason}")
    for reason in known.refused:
        emit(f"refused: {reason}")
    emit(
        "each client keeps a state: that after its last used round"
        if known.keeps_states
        else "clients keep no state between rounds"
    )


def _row(one: ClientStatus) -> tuple[str, ...]:
    heard = "never" if one.last_heard is None else f"{human_time(max(time.time() - one.last_heard, 0))} ago"
    counts = map(str, (one.failures, one.consecutive_failures, one.last_used_round or "none"))
    versions = (one.versions.get(name, "") for name in _NAMES)
    return (str(one.client), one.site, "yes" if one.connected else "no", heard, *counts, *versions)
