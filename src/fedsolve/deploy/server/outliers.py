"""Which replies are far beyond what is usual, and which update a failure began with. No Flower here.

The rule is `fedsolve.methods.robust.outliers`; here the usual norms are carried from round to round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.host_arrays import Buffers, norm
from fedsolve.deploy.server.server_state import Accepted
from fedsolve.deploy.site_names import numbered
from fedsolve.methods.robust.outliers import FACTOR, parts_of, usual_norm

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


def why_most_rose(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """What is said of a round in which most replies were far beyond the usual, so that they count; "" of any other."""
    rose = {name: x for name, x in after.items() if 0 < FACTOR * before.get(name, 0.0) < x}
    if not rose:
        return ""
    name = max(rose, key=lambda n: rose[n] / before[n])
    whose = "the norm" if name == _WHOLE else f"the norm of {name}"
    return (
        f"{whose} has the median {after[name]:.6g}, more than {FACTOR:,.0f} times the {before[name]:.6g} that "
        "was usual before: most clients changed, so they count"
    )


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


@dataclass(frozen=True)
class Rise:
    """The update that was largest next to all before it and, in the first round, to the others.

    Attributes:
        round: rounds done when it was used.
        client: whose it was.
        norm: of its message.
        median: of the norms of that round.
        names: what a client is called.
    """

    round: int
    client: int
    norm: float
    median: float
    names: Callable[[int], str] = numbered

    def __str__(self) -> str:
        return (
            f"norms rose most in round {self.round}, by the update of {self.names(self.client)}: its norm was "
            f"{self.norm:.6g}, the median of that round {self.median:.6g}"
        )


def sharpest_rise(rounds: Mapping[str, Any], names: Callable[[int], str] = numbered) -> Rise | None:
    """Where the norms in a record rose most, which is where a model that became too large was spoiled."""
    columns = [np.asarray(rounds.get(name, ()), np.float64) for name in ("round", WHOSE, LARGEST, MEDIAN)]
    rows = [row for row in zip(*columns, strict=False) if np.isfinite(row).all()]
    sharpest, before, steepest = None, 0.0, 0.0
    for number, client, largest, median in rows:
        rise = largest / (before or median or 1.0)
        if sharpest is None or rise > steepest:
            sharpest = Rise(int(number), int(client), float(largest), float(median), names)
            steepest = rise
        before = max(before, largest)
    return sharpest
