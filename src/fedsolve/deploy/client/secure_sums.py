"""A client's part in secure sums: what its owner demands of them, and what it sends under them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import RecordDict

from fedsolve.core import wire
from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.errors import InvalidInput, check_flag, check_integer, check_path
from fedsolve.core.types import replace
from fedsolve.deploy.codec import record_to_request, to_record
from fedsolve.deploy.message import ProtocolReply, ProtocolRequest, Request, check_first
from fedsolve.deploy.oracles.node_oracle import LocalProblem, NodeContext
from fedsolve.deploy.reply_checks import check_metric_names
from fedsolve.deploy.sanitize import about_request, reading
from fedsolve.deploy.secure.sums import Counts, Measured, count_words, to_words
from fedsolve.deploy.signature import precision_of
from fedsolve.folders.untrusted import loads

LEAST_SUM = 3
"""Clients of a sum, at least: of two, each could subtract its own message."""

_Log = Callable[[str], None]


class SumOrder(NamedTuple):
    """What a client is to add to. `request` is the digest of what it was asked, None where it is not known yet."""

    experiment: str
    client: int
    kind: str
    round: int | None
    request: bytes | None
    masks: bytes | None


@dataclass(frozen=True)
class SecureSums:
    """A client's part in secure sums."""

    # clients whose sum the server may see, at least; the client then sends nothing but messages of such sums. None: it
    # takes part in sums of at least `LEAST_SUM`, and in methods whose messages are read.
    min_sum: int | None = None
    # file with the public keys of all clients; None to trust the first that are sent
    peers: str | Path | None = None
    second_sums: bool = True  # whether the sum of a round may be opened a second time

    def __post_init__(self) -> None:
        if self.min_sum is not None:
            check_integer("min_sum", self.min_sum, LEAST_SUM)
        check_flag("second_sums", self.second_sums)
        if self.peers is not None:
            from fedsolve.deploy.secure.keys import read_peers

            read_peers(check_path("peers", self.peers))

    def check(self, method: Algorithm, request: Request) -> None:
        """Raise `InvalidInput` unless the reply to a request is sent as method and owner want it."""
        name, is_summed = name_of(method), method.traits.secure_sums
        if self.min_sum is not None and not is_summed:
            raise InvalidInput(
                f"{name} sends messages that the server reads, and this client allows sums of at least "
                f"{self.min_sum} clients alone (min_sum): wrap the method in fs.Secure"
            )
        of: Any = method
        needed = of.inner.min_sum if is_summed and method.traits.privacy == "distributed" else LEAST_SUM
        if needed > (allowed := self.min_sum or LEAST_SUM):
            raise InvalidInput(
                f"the noise of {name} is for sums of at least {needed} clients, and this client allows sums of "
                f"{allowed}: give client_app min_sum={needed}"
            )
        if is_summed != (request.masks is not None):
            have = "nothing to mask the reply by" if is_summed else "masks, and the method needs none"
            raise InvalidInput(f"the {request.NAME} of {name} has {have}: another version of fedsolve?")
        check_first(request)

    def answer(
        self,
        node: NodeContext,
        folder: Path,
        record: RecordDict,
        problem: Callable[[], AbstractContextManager[LocalProblem]],
        log: _Log,
    ) -> RecordDict:
        """What the client answers to a question of the protocol, such as what the metrics of its `problem` are."""
        question, client = record_to_request(ProtocolRequest, record), node.client
        if question.step == "metrics":
            with reading("the question"):
                names = check_metric_names(loads(question.data))
            with problem() as own, precision_of(own.params):
                data = Measured.of(own.measure(own.params, names), names).to_bytes()
            return to_record(ProtocolReply(client, data))
        secrets = self._secrets(folder, question.experiment, client, log)
        data = b""
        if question.step == "hello":
            log(f"this client's line of a file of peers: {secrets.peer_line}")
            data = secrets.hello()
        elif question.step == "roster":
            data = secrets.enrol(question.data)
        elif question.step == "coins":
            secrets.reveal(question.data)
        else:
            data = secrets.unmask(question.data)
        return to_record(ProtocolReply(client, data))

    def masked(self, folder: Path, order: SumOrder, method: Any, message: Any, log: _Log) -> bytes:
        """A message of ring elements as the server is sent it, with a share of noise where the method has one."""
        if method.traits.privacy == "distributed":
            message = with_share_of_noise(method, message)
        return self.mask(folder, order, to_words(message), count_words(message), log)

    def check_order(self, folder: Path, order: SumOrder, log: _Log) -> None:
        """Raise `InvalidInput` if the protocol refuses an order, whatever is added; there may be none."""
        if order.masks is not None:
            self._masked(folder, order, None, Counts(0, 0), log)

    def mask(self, folder: Path, order: SumOrder, words: bytes, counts: Counts, log: _Log) -> bytes:
        try:
            return self._masked(folder, order, words, counts, log)
        except InvalidInput as error:
            raise InvalidInput(str(error)) from None

    def _masked(self, folder: Path, order: SumOrder, words: bytes | None, counts: Counts, log: _Log) -> bytes:
        from fedsolve.deploy.secure.attempt import Words

        secrets = self._secrets(folder, order.experiment, order.client, log)
        return secrets.mask(order.masks, Words(words, *counts, order.kind, order.round, order.request))

    @about_request()
    def _secrets(self, folder: Path, experiment: str, client: int, log: _Log) -> Any:
        # The client's keys in an experiment, kept below a folder of the node.
        from fedsolve.deploy.secure.client import NodeSecrets

        least = self.min_sum or LEAST_SUM
        return NodeSecrets(folder, experiment, client, least, self.peers, self.second_sums, log)


def with_share_of_noise(method: Any, message: Any) -> Any:
    """A message with the client's share of noise on its client update, from bits that nobody can predict."""
    from fedsolve.deploy.secure.primitives import skellam_share

    variance = float(method.inner.update_coder.variance)
    first = message.structure.num_leaves - len(method.coded(message.structure))
    noisy = []
    for ring in message.sums[first:]:
        words = wire.ring_words(ring)
        share = skellam_share(words.size, variance) if variance else np.zeros(words.size, np.int64)
        noisy.append(wire.ring_of_words(words + share.astype(words.dtype), ring))  # modulo the ring's size
    return replace(message, sums=(*message.sums[:first], *noisy))
