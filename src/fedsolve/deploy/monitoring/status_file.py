"""The status of a run's clients in a file of its folder, which `fedsolve federate status` reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from pydantic import Field, ValidationError

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.messages.sanitize import sanitize
from fedsolve.deploy.monitoring.client_status import Checked, ClientStatus, ClientStatuses
from fedsolve.folders.files import write_atomically
from fedsolve.folders.untrusted import read_text

STATUS = "client-status.json"
"""The file, replaced after every round."""
_LARGEST = 2**26  # bytes of it that are read


class FederationStatus(Checked):
    """All clients of one run.

    Attributes:
        experiment: its name.
        label: the method's name.
        keeps_states: whether the method keeps a state on each client.
        round: rounds done.
        rounds: rounds of the run.
        time: when this was written, in seconds since 1970.
        clients: in the order of their numbers.
        refused: why nodes that are connected are refused, each reason once.
    """

    experiment: str
    label: str
    keeps_states: bool
    round: int = Field(ge=0)
    rounds: int = Field(ge=0)
    time: float = Field(ge=0)
    clients: list[ClientStatus]
    refused: list[str]


class StatusFile:
    """The status of a run's clients in its folder.

    Args:
        folder: the run's.
        experiment: its name.
        label: the method's name.
        rounds: of the run.
        keeps_states: whether the method keeps a state on each client.
        log: told in one line that the file cannot be read or written; nothing else follows from that.
    """

    def __init__(
        self,
        folder: Path,
        experiment: str,
        label: str,
        rounds: int,
        keeps_states: bool,
        log: Callable[[str], None],
    ) -> None:
        self._path, self._log = folder / STATUS, log
        self._about = {
            "experiment": experiment,
            "label": label,
            "rounds": rounds,
            "keeps_states": keeps_states,
        }

    def restore(self, population: int) -> ClientStatuses:
        """What is known of the run's clients: nothing of them if the file is damaged or of another experiment."""
        try:
            status = read_status(self._path) if self._path.exists() else None
        except InvalidInput as error:
            self._log(f"note: {error}")
            status = None
        is_same = status is not None and status.experiment == self._about["experiment"]
        return ClientStatuses(population, status.clients if status is not None and is_same else ())

    def save(self, statuses: ClientStatuses, round: int, last_used_round: Iterable[int]) -> None:
        """Replace the file.

        Args:
            statuses: of all clients.
            round: rounds done.
            last_used_round: by client, from 0; -1 for none.
        """
        clients = [
            status.changed(last_used_round=int(used) + 1)
            for status, used in zip(statuses.all(), last_used_round, strict=True)
        ]
        status = FederationStatus(
            **self._about, round=round, time=time.time(), clients=clients, refused=statuses.refused
        )
        if not self._path.parent.is_dir():  # it was removed during the run, which says so
            return
        try:
            write_atomically(self._path, status.model_dump_json(indent=1) + "\n")
        except InvalidInput as error:
            self._log(f"note: {error}")


def read_status(path: Path) -> FederationStatus:
    """The status in a file, which anybody may have written.

    Raises:
        InvalidInput: it cannot be read or is damaged; where.
    """
    try:
        status = FederationStatus.model_validate_json(read_text(path, _LARGEST, follow=False))
        if [one.client for one in status.clients] == list(range(len(status.clients))):
            return status
        what = "clients: their numbers are not 0, 1, ..."
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        what = f"{where}: {first['msg']}" if where else first["msg"]
    except UnicodeDecodeError:
        what = "it is no text"
    except OSError as error:
        what = error.strerror or str(error)
    raise InvalidInput(
        f"{path} is damaged ({sanitize(what)}): remove it, and a run writes it anew after its next round"
    )
