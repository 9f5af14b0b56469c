"""Flower's grid without a network: messages go through Flower's own bytes, and clients answer in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Tamper = Callable[[int, str, RecordDict], RecordDict | None]
"""(node, type of the message, the client's answer) -> what arrives; None for nothing at all."""


def over_the_wire(content: RecordDict) -> RecordDict:
    return recorddict_from_proto(ProtoRecordDict.FromString(recorddict_to_proto(content).SerializeToString()))


class FakeGrid(Grid):
    """Nodes 101, 102, ... with a client app each.

    `tamper` may change or drop what they answer, and `dishonest` what they are sent.
    """

    def __init__(
        self,
        app: ClientApp,
        clients: list[Any],
        folder: Path,
        tamper: Tamper | None = None,
        dishonest: Tamper | None = None,
        run_config: dict[str, Any] | None = None,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.app, self.folder, self.tamper, self.dishonest = app, folder, tamper, dishonest
        self.run_config = run_config or {}
        configs = [client if isinstance(client, dict) else {"client-id": client} for client in clients]
        self.nodes = {101 + i: config for i, config in enumerate(configs)}
        self.asked: list[tuple[int, str]] = []
        self.deaf: set[tuple[int, int]] = set()  # (node, round): the order is lost on its way
        self.slow: dict[
            tuple[int, int], int
        ] = {}  # (node, round): looks in vain for the answer to its first order
        self.keys: dict[int, bytes] = {}  # node -> its public key
        self.starts: dict[int, str] = {}  # node -> when it was started last
        self._answers: dict[str, Message | None] = {}
        self._looks: dict[str, int] = {}

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def get_nodes(self) -> list[NodeInfo]:
        return [
            NodeInfo(node_id=n, public_key=self.keys.get(n, b""), last_activated_at=self.starts.get(n, ""))
            for n in self.nodes
        ]

    def push_messages(self, messages: Any) -> list[str]:
        numbers = []
        for message in messages:
            number = f"message-{len(self._answers)}"
            message.metadata.__dict__["_message_id"] = number
            self._answers[number] = self._deliver(message)
            at = (message.metadata.dst_node_id, int(message.metadata.group_id or 0) - 1)
            self._looks[number] = self.slow.pop(at, 0)
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Any) -> list[Message]:
        asked = list(reversed(list(message_ids)))
        ready = [n for n in asked if self._looks[n] <= 0]
        for number in asked:
            self._looks[number] -= 1
        return [answer for n in ready if (answer := self._answers[n]) is not None]

    def _deliver(self, message: Message) -> Message | None:
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        self.asked.append((node, kind))
        config = self.nodes[node] | {"state-dir": str(self.folder / f"node-{node}")}
        content = over_the_wire(message.content)
        if self.dishonest is not None:
            changed = self.dishonest(node, kind, content)
            if changed is None:
                return None
            content = over_the_wire(changed)
        sent = Message(content, dst_node_id=node, message_type=kind)
        sent.metadata.__dict__["_message_id"] = message.metadata.message_id
        if kind == "train" and (node, sent.content["order"]["round"]) in self.deaf:
            return None
        try:
            answer = self.app(sent, Context(1, node, config, RecordDict(), dict(self.run_config)))
        except Exception as error:  # as Flower's runtime does
            return Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=sent)
        content = answer.content
        if self.tamper is not None:
            try:
                changed = self.tamper(node, kind, content)
            except OSError as error:  # the client's process dies
                return Message(Error(8, str(error)), reply_to=sent)
            if changed is None:
                return None
            content = changed
        return Message(over_the_wire(content), reply_to=sent)

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        raise NotImplementedError

    create_message = set_run = run = send_and_receive
