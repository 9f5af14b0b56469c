"""What the server keeps and what is sent where messages are added up as whole numbers."""

from __future__ import annotations

from typing import Any

from fedsolve.core.types import Traced, module, reduced, reported, static
from fedsolve.core.wire import Ring


@module
class SecureServer:
    """The inner server, and how many numbers of the last round's messages were clipped; 0 where noise protects them."""

    inner: Any
    clipped: Traced = reported(
        "numbers of messages exceeded their bounds and were clipped: raise bound, bounds or max_examples"
    )


@module
class SecureMessage:
    """A message as ring elements that are added up.

    Attributes:
        sums: of each leaf of the inner message.
        weight: the number of examples, `()` where clients count alike.
        clipped: how many numbers of this client were clipped, `()` where noise protects the message.
        structure: of the inner message.
    """

    sums: tuple[Ring, ...] = reduced("sum")
    weight: Any = reduced("sum")
    clipped: Any = reduced("sum")
    structure: Any = static()
