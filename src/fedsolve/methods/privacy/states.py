"""What the server keeps and what is sent where noise is added to a sum."""

from __future__ import annotations

from typing import Any

from fedsolve.core.types import Claim, Scalar, Traced, claimed, module, reported


@module
class PrivateServer:
    """The inner server, epsilon of all rounds so far, also by Renyi's bound, and the clip norm if it adapts."""

    inner: Any
    epsilon: Traced = reported()
    epsilon_renyi: Traced = reported()
    clipping: Any = ()


@module
class ClipNorm:
    """The clip norm C of the next round."""

    clip_norm: Traced = reported()


@module
class PrivateBroadcast:
    """The inner broadcast and the clip norm C of the round."""

    inner: Any
    clip_norm: Scalar


@module
class PrivateMessage:
    """The clipped inner message, and with adaptive clipping 1 if the client update was within C, else 0."""

    inner: Any
    within: Any = claimed(Claim(at_least=0, at_most=1, whole=True))
