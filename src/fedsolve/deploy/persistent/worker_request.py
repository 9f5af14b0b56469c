"""What the shim asks of the worker, and what the worker answers."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from dataclasses import dataclass
from typing import Any

from fedsolve.deploy.persistent import shim
from fedsolve.folders.untrusted import loads


@dataclass
class Request:
    """A message as the shim hands it on.

    Attributes:
        arguments: of Flower's program.
        cwd: the folder that it was started in.
        parent: the process that started it, with which the worker ends.
        more: what was read after the request.
        pulled: what an earlier process has pulled of it already, b"" if nothing.
    """

    arguments: list[str]
    cwd: str
    parent: int
    more: bytes = b""
    pulled: bytes = b""

    @classmethod
    def read(cls, data: bytes) -> Request:
        """The request of a line, and what comes after it.

        Raises:
            ValueError: it is none.
        """
        line, _, more = data.partition(b"\n")
        document = loads(line)
        match document:
            case {"arguments": list(arguments), "cwd": str(cwd), "parent": int(parent)}:
                if all(isinstance(word, str) for word in arguments) and parent > 0:
                    return cls(arguments, cwd, parent, more)
        raise ValueError("a line that is no request")


def receive(connection: socket.socket) -> Request | None:
    """The request of a connection, whose outputs become this process's; None if there is none."""
    data, descriptors, _, _ = socket.recv_fds(connection, shim.LONGEST, 2)
    try:
        while data and b"\n" not in data and len(data) < shim.LONGEST:
            data += (more := connection.recv(shim.LONGEST))
            if not more:
                break
        if not data:
            return None
        if len(descriptors) != 2:
            raise ValueError("a request without its two outputs")
        request = Request.read(data)
        os.chdir(request.cwd)
        for number, descriptor in enumerate(descriptors, start=1):
            os.dup2(descriptor, number)
        return request
    except (ValueError, OSError) as error:
        answer(connection, {"refused": f"the node's worker was asked wrongly ({error})"})
        return None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def answer(connection: socket.socket, document: dict[str, Any]) -> None:
    """Say a line to the shim, if it still listens."""
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(document).encode() + b"\n")
