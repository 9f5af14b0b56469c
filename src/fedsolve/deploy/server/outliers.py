"""Which replies are far beyond what is usual, and whose update was the largest. No Flower here.

The rule is `fedsolve.methods.robust.reductions`; here the usual norms are carried from round to round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.host_arrays import Buffers, norm
from fedsolve.deploy.server.server_state import Accepted
from fedsolve.deploy.site_names import numbered
from fedsolve.methods.robust.reductions import FACTOR, parts_of, usual_norm

LARGEST, WHOSE, MEDIAN = "largest_norm", "largest_norm_client", "median_norm"
"""Columns of the record: of the replies of a round that count, the largest norm, its client, and the median norm."""
SITE = "largest_norm_site"
"""Beside them in the log of rounds: the name of that client's site, if it has one."""
_WHOLE = "message"  # all fields together
_MOST = float(np.finfo(np.float64).max)


def part_norms(message: Any, buffers: Buffers) -> dict[str, float]:
    """The norms of a reply that are compared: of each field, of all together, of what is averaged beside the model."""
    norms = {name: norm(leaves) for name, leaves in parts_of(message).items()}
    norms[_WHOLE] = math.hypot(*norms.values())
    floats = {x for x, value in buffers.items() if value.dtype.kind == "f"}
    for name, some in (("buffers", floats), ("counters", set(buffers) - floats)):
        if some:
            # 0 counts as 1: one value where all others are 0 is no usual one, and no field is compared beside these
            norms[name] = norm([buffers[x].astype(np.float64) for x in sorted(some)]) or 1.0
    return {name: min(x, _MOST) for name, x in norms.items()}  # squares may overflow where no number does


def find_outliers(accepted: Mapping[int, Accepted], usual: Mapping[str, float]) -> dict[int, str]:
    """The clients of a round with a norm far beyond what was usual after the round before, each with the reason."""
    now, outliers = usual_after(accepted, usual), {}
    for client in sorted(accepted):
        ratios = {name: x / now[name] for name, x in accepted[client].parts.items() if now[name] > 0}
        name = max(ratios, key=lambda n: ratios[n], default="")
        if name and ratios[name] > FACTOR:
            what = "its norm" if name == _WHOLE else f"the norm of its {name}"
            outliers[client] = (
                f"{what} is {accepted[client].parts[name]:.6g}, more than {FACTOR:,.0f} times the {now[name]:.6g} "
                "that is usual in this round and in earlier ones; set norm_bound to go by a fixed bound instead"
            )
    return outliers


def usual_after(accepted: Mapping[int, Accepted], usual: Mapping[str, float]) -> dict[str, float]:
    """The usual norms after a round, by field; those before it if nobody's reply counts."""
    names = next(iter(accepted.values())).parts if accepted else ()
    rows = {name: np.array([reply.parts[name] for reply in accepted.values()]) for name in names}
    with np.errstate(over="ignore"):
        return {**usual, **{n: float(usual_norm(x, usual.get(n, 0.0), np)) for n, x in rows.items()}}


def check_usual(given: Any) -> dict[str, float]:
    """The usual norms of a checkpoint; none where it has none, as earlier versions wrote it.

    Raises:
        InvalidInput: what are no such norms.
    """
    usual = {} if given is None else given
    if not isinstance(usual, dict) or not all(
        isinstance(x, float) and 0 <= x < math.inf for x in usual.values()
    ):
        raise InvalidInput("its usual norms are not numbers by field: restore a copy, or start a new run")
    return usual


def norm_columns(accepted: Mapping[int, Accepted]) -> dict[str, float]:
    """The largest norm of the replies that count, whose it is, and their median; nothing if none counts."""
    if not accepted:
        return {}
    client = max(sorted(accepted), key=lambda i: accepted[i].norm)
    median = float(np.median([reply.norm for reply in accepted.values()]))
    return {LARGEST: accepted[client].norm, WHOSE: client, MEDIAN: median}


def largest_update(
    rounds: Mapping[str, Any], names: Callable[[int], str] = numbered
) -> tuple[int, str] | None:
    """The round of the update with the largest norm in a record, and a sentence that names its client."""
    norms = np.asarray(rounds.get(LARGEST, ()), np.float64)
    if not np.isfinite(norms).any():
        return None
    at = int(np.argmax(np.where(np.isfinite(norms), norms, -1.0)))
    number, client = int(rounds["round"][at]), int(rounds[WHOSE][at])
    return (
        number,
        f"the update with the largest norm, {norms[at]:.6g}, is of {names(client)} in round {number}",
    )
