"""Which client sits at which node: asked once of every node that appears, by our own numbers, not Flower's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsolve.deploy.message import compare_forms
from fedsolve.deploy.policy import Unavailable
from fedsolve.deploy.post import Post
from fedsolve.errors import InvalidInput

_ASK_SECONDS = 120.0
_LOOK_SECONDS = 0.5


class Roster:
    """The clients that are connected, by number.

    Args:
        grid: Flower's grid.
        population: clients in all; another number is refused.
        form: shapes and types of the server's model; a client with another model is refused.
        log: told in one line what happens.
    """

    def __init__(self, grid: Grid, population: int, form: str, log: Callable[[str], None]) -> None:
        self._grid, self._population, self._form, self._log = grid, population, form, log
        self._known: dict[int, int | None] = {}  # node -> client; None for one that was refused
        self._reasons: dict[int, str] = {}
        self._post = Post(grid)

    def look(self) -> dict[int, int]:
        """Clients that are connected now, each with its node; nodes that are new are asked who they are.

        Nobody is waited for: a node that died lately is still on Flower's list, and would not answer.
        """
        nodes = set(self._grid.get_node_ids())
        for gone in (set(self._known) | set(self._reasons)) - nodes:
            self._known.pop(gone, None)
            self._reasons.pop(gone, None)
        for gone in set(self._post.waiting) - nodes:
            self._post.give_up(gone)
        new = sorted(nodes - set(self._known) - set(self._post.waiting))
        question = {
            n: Message(RecordDict({"who": ConfigRecord({})}), n, "query", ttl=_ASK_SECONDS) for n in new
        }
        unsent = [(node, "the question who it is could not be sent") for node in self._post.send(question)]
        for node, answer in [*unsent, *self._post.collect()]:
            if isinstance(answer, str):  # it said nothing, perhaps its process died: it is asked again
                self._refuse(node, answer)
                continue
            try:
                self._admit(node, answer)
            except InvalidInput as error:
                self._known[node] = None
                self._refuse(node, str(error))
        return {client: node for node, client in self._known.items() if client is not None}

    def wait(self, clients: Iterable[int] | int, seconds: float) -> dict[int, int]:
        """Wait for these clients, or for so many, until the deadline; then give who is there."""
        end = time.monotonic() + seconds
        while True:
            here = self.look()
            enough = len(here) >= clients if isinstance(clients, int) else set(clients) <= set(here)
            if enough or time.monotonic() >= end:
                return here
            time.sleep(_LOOK_SECONDS)

    def gather(self, quorum: int, seconds: float) -> dict[int, int]:
        """Wait for a quorum before the first round.

        Raises:
            Unavailable: fewer clients than the quorum at the deadline; who is missing, who was refused and why.
        """
        here = self.wait(quorum, seconds)
        if len(here) < quorum:
            missing = sorted(set(range(self._population)) - set(here))
            refused = "".join(f"; refused: {reason}" for reason in sorted(set(self._reasons.values())))
            if waiting := len(self._post.waiting):
                refused += f"; {waiting} nodes have not said yet who they are"
            raise Unavailable(
                f"{len(here)} of {quorum} clients connected within {seconds:g} s (missing: "
                f"{', '.join(map(str, missing))}){refused}: start their SuperNodes or lower the quorum"
            )
        return here

    def _admit(self, node: int, answer: RecordDict) -> None:
        if "refused" in answer:
            raise InvalidInput(str(answer.config_records["refused"]["why"]))
        facts: dict[str, Any] = dict(answer.config_records["client"])
        client = int(facts["client"])
        if client >= self._population:
            raise InvalidInput(
                f"client {client} is none of the {self._population} clients, numbered from 0: mend its client-id"
            )
        compare_forms(str(facts["form"]), self._form, client)
        for other, who in self._known.items():
            if who == client:  # a SuperNode that was started again, or two of one number
                self._known[other] = None
                self._refuse(
                    other, f"client {client} is also at a node that came later, which counts instead"
                )
        self._known[node] = client
        self._reasons.pop(node, None)
        self._log(f"client {client} is connected")

    def _refuse(self, node: int, reason: str) -> None:
        self._reasons[node] = reason
        self._log(f"node {node} is refused: {reason}")
