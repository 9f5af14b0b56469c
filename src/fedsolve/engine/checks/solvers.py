"""What a run says of a method's solvers before it begins: that they stand still, or which leaves are not for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedsolve.core.types import Params


def on_solvers(algorithm: Any, params: Params, steps: int, rounds: int) -> Iterator[str]:
    """What is to be said of a method, of its clients' solver and its server optimiser.

    Args:
        algorithm: the method, its numbers of the run's type.
        params: the initial model.
        steps: local steps of a client in a round, at most.
        rounds: of the run.
    """
    ask = getattr(getattr(algorithm, "local", None), "why_it_stands_still", None)
    if ask is not None and (why := ask(params, steps, rounds)):
        yield f"the clients' solver {why}"
    said = []
    while algorithm is not None:
        for part in (
            algorithm,
            getattr(algorithm, "local", None),
            getattr(algorithm, "server_optimizer", None),
        ):
            ask = getattr(part, "on_leaves", None)
            said.append(ask(params) if ask else "")
        algorithm = getattr(algorithm, "inner", None)
    yield from filter(None, dict.fromkeys(said))
