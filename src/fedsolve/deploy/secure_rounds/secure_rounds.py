"""The rounds of a deployment under secure sums: clients enrol once, and each round ends with the opening of its sum."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.client.secure_sums import LEAST_SUM
from fedsolve.deploy.monitoring.client_status import Cause
from fedsolve.deploy.nodes.exchange import Replies
from fedsolve.deploy.secure.byte_reader import RoundIsOver, SumNotOpened
from fedsolve.deploy.secure_rounds.secure_coordinator import SecureCoordinator
from fedsolve.deploy.secure_rounds.server_keys import KEYS_FILE, ServerKeys
from fedsolve.deploy.secure_rounds.summed_evaluation import SummedEvaluation
from fedsolve.deploy.server.collect import ReplyCollector
from fedsolve.deploy.server.deployed_rounds import DeployedRounds
from fedsolve.deploy.server.server_state import Accepted
from fedsolve.deploy.server.settings import Settings


class SecureCollector(ReplyCollector):
    """Asks clients that have pre-keys, and nobody where they are too few for a sum."""

    keys: ServerKeys

    def _connected(
        self, clients: list[int], replies: Replies[Accepted], is_retry: bool
    ) -> tuple[list[int], dict[int, int]]:
        """The clients that are asked now, and the node of each that is connected."""
        for client in set(clients) & set(self.keys.left_out):
            self.reject(replies, client, Cause.INVALID, self.keys.left_out[client])
        clients = [client for client in clients if client not in self.keys.left_out]
        asked, connected = super()._connected(clients, replies, is_retry)
        asked = self.keys.ready(asked, replies.needed)
        return (asked if len(asked) >= LEAST_SUM else []), connected


class SecureRounds(DeployedRounds):
    """Rounds of a method under `fs.Secure`: an attempt asks its whole cohort, since masks are of one attempt.

    Args:
        grid, coordinator, settings, others: as those of `DeployedRounds`.
    """

    _collectors = SecureCollector
    _evaluations = SummedEvaluation

    def __init__(self, grid: Grid, coordinator: SecureCoordinator, settings: Settings, *others: Any) -> None:
        super().__init__(grid, coordinator, settings, *others)
        self._secure = coordinator
        path = Path(settings.out) / KEYS_FILE
        keys = ServerKeys(
            path, grid, self._registry, coordinator.experiment, settings.round_seconds, self._log
        )
        coordinator.keys = keys
        self._collector.keys = keys  # pyright: ignore[reportAttributeAccessIssue] (of `_collectors`)

    def _clients_are_there(self) -> None:
        """All clients enrol, unless this run goes on."""
        settings = self._settings
        self._secure.keys.load_or_enrol(settings.population, settings.connect_seconds)

    def _ask(self, cohort: list[int], replies: Replies[Accepted], is_retry: bool) -> None:
        """Ask all of a cohort, and open the sum of their messages if enough came."""
        replies.accepted.clear()
        super()._ask(cohort, replies, is_retry)
        if not replies.is_enough:
            replies.accepted.clear()
            return
        try:
            self._secure.open()
        except SumNotOpened as error:
            self._log(f"{replies.title}: {error}")
            replies.accepted.clear()
            replies.is_over = isinstance(error, RoundIsOver)


def check_secure(algorithm: Algorithm, settings: Settings) -> None:
    """Raise `InvalidInput` unless a method under secure sums can run with these settings; others pass."""
    if not algorithm.traits.secure_sums:
        return
    name = name_of(algorithm)
    if settings.population < LEAST_SUM:
        raise InvalidInput(
            f"{name} needs at least {LEAST_SUM} clients: of two, each could subtract its own message; population = "
            f"{settings.population}"
        )
    for option, none in (("norm_bound", (None, math.inf)), ("max_share", (None, 1)), ("buffers", (None, {}))):
        if getattr(settings, option) not in none:
            raise InvalidInput(
                f"{option} looks at single messages, which {name} hides: leave it out, `bound` clips"
            )
