"""Asynchronous rounds of a deployment: the server updates whenever its buffer of replies is full."""

from __future__ import annotations

from typing import Any

from flwr.serverapp import Grid

from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.buffered.buffered_collect import BufferedCollector
from fedsolve.deploy.buffered.buffered_coordinator import BufferedCoordinator
from fedsolve.deploy.nodes.exchange import Replies
from fedsolve.deploy.server.deployed_rounds import DeployedRounds
from fedsolve.deploy.server.server_state import Accepted
from fedsolve.deploy.server.settings import Settings
from fedsolve.engine.simulated_time import check_outermost


class BufferedRounds(DeployedRounds):
    """Rounds of a method with a buffer: each is an update with the next replies, whatever model they began with.

    Replies of the buffer and orders are in memory alone: a run that is resumed begins with an empty buffer, and its
    clients are asked anew.

    Args:
        grid, coordinator, settings: as those of `DeployedRounds`.
        others: further arguments of `DeployedRounds`.
    """

    def __init__(
        self,
        grid: Grid,
        coordinator: BufferedCoordinator,
        settings: Settings,
        *others: Any,
    ) -> None:
        super().__init__(grid, coordinator, settings, *others)
        self._buffered = coordinator
        self._filling = BufferedCollector(
            grid, coordinator, settings, self._registry, self._phases, self._log
        )

    @property
    def _is_carried(self) -> bool:
        """Never: the orders of an update are sent at different times."""
        return False

    def _collect_replies(self, number: int) -> Replies[Accepted]:
        """The replies of the next full buffer."""
        size = self._buffered.buffer
        replies: Replies[Accepted] = Replies(f"round {number}", size, size)
        self._filling.fill(replies)
        self._reports.clients.succeeded(replies.accepted)
        return replies


def check_buffered(algorithm: Algorithm, settings: Settings) -> None:
    """Raise `InvalidInput` unless a method with a buffer can run with these settings; others pass."""
    check_outermost(algorithm, "on a federation")
    if not algorithm.traits.buffer:
        return
    name = name_of(algorithm)
    for option, given in (
        ("sampling", settings.sampling),
        ("over_select", settings.over_select),
        ("buffers", settings.buffers),
        ("shortfall = 'skip'", settings.shortfall == "skip"),
    ):
        if given:
            raise InvalidInput(f"{name} has no synchronous rounds, which {option} is for: leave it out")
    if algorithm.traits.buffer > settings.population:
        raise InvalidInput(
            f"buffer = {algorithm.traits.buffer} but the federation has {settings.population} clients, which have one "
            f"reply in it each: choose at most {settings.population}"
        )
