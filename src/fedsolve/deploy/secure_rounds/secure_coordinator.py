"""The server's side of a round whose messages are masked: it adds up what it cannot read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from fedsolve.core import wire
from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.messages.fact_checks import check_train_reply
from fedsolve.deploy.messages.message import TrainReply, TrainRequest
from fedsolve.deploy.messages.request_digest import first_digest, request_digest
from fedsolve.deploy.messages.signature import signature_digest
from fedsolve.deploy.secure.byte_reader import RoundIsOver
from fedsolve.deploy.secure_rounds.server_keys import ServerKeys
from fedsolve.deploy.secure_rounds.words import count_words, from_words
from fedsolve.deploy.server.coordinator import Coordinator
from fedsolve.deploy.server.server_state import Accepted

ROOM = 2**24
"""Bytes that a masked reply has besides its words, at most: shares of masks and new pre-keys."""


class SecureCoordinator(Coordinator):
    """A coordinator of a method under `fs.Secure`.

    Attributes:
        keys: the server's side of the protocol; given before the first round.
        run_config: the configuration of Flower's run, which clients have too.
        attempt: the sum that the current orders are for, None before there is one.
    """

    keys: ServerKeys
    run_config: Mapping[str, Any] = MappingProxyType({})
    attempt: Any = None

    def begin_attempt(self, clients: Sequence[int]) -> None:
        """Begin a sum over these clients; what an earlier attempt of the round has gathered is worth nothing."""
        self._opened: Any = None
        self.attempt = None
        if clients:
            counts = count_words(self.method.zero_message)
            digest = request_digest(self._unmasked_request(clients[0]), self.run_config)
            self.attempt = self.keys.begin("train", self.state.round, clients, *counts, digest)

    @property
    def max_message_bytes(self) -> int:
        """Bytes of the longest message that a client may send: its words and shares of its masks."""
        return count_words(self.method.zero_message).bytes + ROOM

    def train_request(self, client: int) -> TrainRequest:
        """What a client of the cohort is asked to do, and how it masks its reply."""
        return dataclasses.replace(self._unmasked_request(client), masks=self.attempt.order(client))

    def _unmasked_request(self, client: int) -> TrainRequest:
        return dataclasses.replace(super().train_request(client), first_digest=self.first_digest)

    @cached_property
    def first_digest(self) -> bytes | None:
        """What clients are told of the first broadcast, where they begin from it."""
        return first_digest(wire.encode(self.method.first_broadcast)) if self.method.is_stateful else None

    def validate_reply(self, client: int, reply: TrainReply) -> Accepted:
        """Add a reply to the sum, if it is what the client signed.

        Raises:
            InvalidInput: why it does not count.
        """
        check_train_reply(reply, self.experiment, self.state.round, client)
        if reply.signature != signature_digest(self.method.zero_message):
            raise InvalidInput("its message has other shapes or types than the server's")
        if reply.buffers:
            raise InvalidInput("it has buffers beside its message, which the server would see")
        self.attempt.add(client, reply.message)
        return Accepted(1.0, 0.0, {}, {})

    def open(self) -> tuple[int, ...]:
        """Open the sum; the clients whose messages are in it.

        Raises:
            SumNotOpened: too few clients, or members of the committee, have answered.
            RoundIsOver: the sum is none of such messages.
        """
        opened = self.keys.open(self.attempt)
        message = from_words(opened.words, self.method.zero_message)
        try:
            secure: Any = self.method.algorithm
            with self.precision():
                secure.check_sums(message, len(opened.clients), self.model)
        except InvalidInput as error:
            raise RoundIsOver(f"the sum is refused: {error}") from None
        self._opened = opened.clients, message
        return opened.clients

    @property
    def _compares_norms(self) -> bool:
        """Never: no message is seen."""
        return False

    def _reduced(self, accepted: Mapping[int, Accepted]) -> Any:
        """The sum of the messages."""
        if not accepted:
            return super()._reduced(accepted)
        clients, message = self._opened
        if sorted(accepted) != list(clients):
            raise RuntimeError("the sum is over other clients than those that count")
        return jax.tree.map(jnp.asarray, message)
