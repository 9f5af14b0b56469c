"""`docs/communication.md`: what a server and one client send each other in a round, of every method."""

from __future__ import annotations

import re

from fedsolve.deploy.communication import Payload, examples, payload


def page() -> str:
    """The page: methods of equal traffic in one row."""
    rows: dict[Payload, list[str]] = {}
    no_sums: dict[str, list[str]] = {}
    for name, algorithm in examples().items():
        found = payload(algorithm)
        rows.setdefault(found, []).append(f"`{name}`")
        if found.not_a_sum:
            no_sums.setdefault(found.not_a_sum, []).append(f"`{name}`")
    lines = [_INTRO, "| methods | download | upload |", "|---|---|---|"]
    for found, names in rows.items():
        down = "<br>".join(f"`{f.name}` {f.shape}" for f in found.down if not f.name.endswith("round"))
        up = "<br>".join(f"`{f.name}` {f.shape}, {f.reduced}" for f in found.up)
        lines.append(_typeset(f"| {', '.join(names)} | {down} | {up} |"))
    lines += ["", _SUMS]
    lines += [_typeset(f"* {', '.join(names)}: {reason}.") for reason, names in no_sums.items()]
    return "\n".join([*lines, ""])


def _typeset(row: str) -> str:
    """A row of the page: its introduction says that a field is one number and is averaged, where a row says nothing."""
    named = row.replace("mean by examples", "weighted").replace("mean 1/|S|", "mean")
    named = named.replace("a whole number", "(integer)").replace("is no sum", "is not a sum")
    named = named.replace(" one number", "").replace(", mean", "")
    return re.sub(r"\b(K d_s|K d|K|d_s|d) numbers", r"$\1$", named)


_SUMS = """## Sums

Secure aggregation gives the server only sums over the cohort. It cannot then exclude a client whose message is not
finite. These methods need more than sums:
"""

_INTRO = r"""# Communication

For users who plan bandwidth, secure aggregation or a privacy review. After this page you know which values one
client downloads and uploads in a round, for every method at its defaults. `fedsolve list communication` prints the
same table.

**Data are never sent.** However, a client update of few examples can reveal them
(`experiments/fedfw/fw_privacy/page.html`); `docs/privacy.md` has the remedies.

A field has the stated size, or is one number: $d$ is the number of model parameters, $d_s$ that of shared ones, and
$K$ the number of local steps. Every download also has the number of the round. The server averages a field over the
cohort, unless another reduction is stated. "Weighted" means by the numbers of examples $n_i$, which the server
receives with the message.

* `delta` is the client update. `loss` is the mean local loss, for logging only. The server step uses the other
  scalars; `search` has the results of a line search.
* **Frank-Wolfe methods** are shown with an $\ell_1$ ball, whose extreme point is one integer. `docs/composite.md` has
  the bytes for other sets.
* **Wrappers** add fields: `inner.delta` is the client update inside SCAFFOLD's message. `Robust+X`, `FedBuff+X` and
  `FedAsync+X` send the same fields as X.
"""
