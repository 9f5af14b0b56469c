"""What a client has told under local differential privacy: counted over all experiments, bounded by its own owner.

One file per client holds the sum of all mu^2 and the last reply, written before that reply is sent: a round that is
asked for again gets the same bytes, which tell nothing new, also from a process that was started since. Anything else
is a new message, and costs: t messages of a client are one Gaussian mechanism with mu^2 = mu_1^2 + ... + mu_t^2.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.checks import check_range
from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.messages.message import TrainReply, TrainRequest
from fedsolve.folders.lock import locked
from fedsolve.folders.store import load_tree, read_manifest, save_tree
from fedsolve.methods.privacy.gaussian import epsilon_of

LEDGER = "ledger.safetensors"
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class PrivacyBudget:
    """The most privacy that a client spends: (max_epsilon, delta) over all of its messages, None for no bound.

    Raises:
        InvalidInput: max_epsilon is not above 0, or delta not in (0, 1).
    """

    max_epsilon: float | None = None
    delta: float = 1e-5

    def __post_init__(self) -> None:
        check_range("max_epsilon", self.max_epsilon, above=0, optional=True)
        check_range("delta", self.delta, above=0, below=1)

    def check(self, method: Algorithm) -> None:
        """Raise `InvalidInput` if a method sends what no noise of the client's own protects."""
        if self.max_epsilon is not None and not math.isfinite(method.traits.gdp_mu):
            raise InvalidInput(
                f"{name_of(method)} sends client updates without local noise; this client has "
                f"max_epsilon = {self.max_epsilon:g} and takes part in LocalDP only"
            )


class Ledger:
    """The ledger of one client, held while an order is worked on."""

    def __init__(self, folder: Path, client: int, budget: PrivacyBudget) -> None:
        self._folder, self._client, self._budget = folder / f"client-{client}-sent", client, budget
        self.path = self._folder / LEDGER

    def send(
        self, order: TrainRequest, mu: float, make: Callable[[], TrainReply], log: Callable[[str], None]
    ) -> TrainReply:
        """The reply to an order: the one that it had already, or what `make` gives, once it is counted and kept.

        `mu` is that of one message, its sensitivity over the standard deviation of its noise.

        Raises:
            InvalidInput: the bound would be exceeded, the ledger is damaged or in use, or cannot be written.
        """
        with locked(self._folder):
            facts, last = self._read()
            fingerprint = _fingerprint(order)
            if last is not None and facts["order"] == fingerprint:
                log(f"round {order.round + 1} is asked for again: client {self._client} sends what it sent")
                return last
            squared, delta = facts["squared_mu"] + mu**2, self._budget.delta
            spent = epsilon_of(math.sqrt(squared), delta)
            self._check(spent)
            reply = make()
            messages = facts["messages"] + 1
            self._write({"squared_mu": squared, "messages": messages, "order": fingerprint}, reply)
            log(
                f"client {self._client} has sent {messages} messages: epsilon = {spent:.4g} at delta = {delta:g}"
            )
            return reply

    def _check(self, spent: float) -> None:
        max_epsilon, delta = self._budget.max_epsilon, self._budget.delta
        if max_epsilon is not None and not spent <= max_epsilon * _ROUNDING:
            raise InvalidInput(
                f"client {self._client} would have spent epsilon = {spent:.4g} at delta = {delta:g} with this message, "
                f"above its max_epsilon = {max_epsilon:g}: it sends no more"
            )

    def _read(self) -> tuple[dict[str, Any], TrainReply | None]:
        if not self.path.exists():
            return {"squared_mu": 0.0, "messages": 0, "order": ""}, None
        try:
            facts = read_manifest(self.path)
            like = {"message": np.zeros(facts["bytes"], np.uint8)}
            message = np.asarray(load_tree(self.path, like)["message"]).tobytes()
        except InvalidInput as error:
            raise InvalidInput(
                f"client {self._client} sends nothing, as the epsilon that it has spent is not known: {error}"
            ) from None
        reply = facts["reply"]
        if "form" in reply:  # as earlier versions called it
            reply["signature"] = reply.pop("form")
        return facts, TrainReply(**reply, message=message, buffers={})

    def _write(self, facts: dict[str, Any], reply: TrainReply) -> None:
        fields = {f.name: getattr(reply, f.name) for f in dataclasses.fields(reply)}
        message, _ = fields.pop("message"), fields.pop("buffers")  # a private method sends none
        content = {"message": np.frombuffer(message, np.uint8)}
        save_tree(self.path, content, facts | {"reply": fields, "bytes": len(message)}, private=True)


def _fingerprint(order: TrainRequest) -> str:
    """A digest of all that a reply without client state depends on."""
    names = ("experiment", "round", "client", "population", "key", "method", "signature")
    facts = [getattr(order, name) for name in names]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    digest.update(order.broadcast)
    return digest.hexdigest()
