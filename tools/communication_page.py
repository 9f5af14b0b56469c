"""`docs/communication.md`: what a server and one client send each other in a round, of every method."""

from __future__ import annotations

import re

from fedsolve.deploy.communication import Payload, examples, payload


def page() -> str:
    """The page: methods of equal traffic in one row."""
    rows: dict[Payload, list[str]] = {}
    for name, algorithm in examples().items():
        rows.setdefault(payload(algorithm), []).append(name)
    lines = [
        _INTRO,
        "| methods | download | upload, reduction | sum sufficient |",
        "|---|---|---|---|",
    ]
    for found, names in rows.items():
        down = "<br>".join(f"`{f.name}` {f.shape}" for f in found.down if not f.name.endswith("round"))
        up = "<br>".join(f"`{f.name}` {f.shape}, {f.reduced}" for f in found.up)
        enough = f"no: {found.not_a_sum}" if found.not_a_sum else "yes"
        lines.append(_typeset(f"| {', '.join(f'`{n}`' for n in names)} | {down} | {up} | {enough} |"))
    return "\n".join([*lines, ""])


def _typeset(row: str) -> str:
    """A row of the page, whose sizes are formulas and whose means are named as its introduction names them."""
    named = row.replace("mean by examples", "weighted mean").replace("mean 1/|S|", "mean")
    named = (
        named.replace("one number", "1")
        .replace("a whole number", "1 integer")
        .replace("is no sum", "is not a sum")
    )
    return re.sub(r"\b(K d_s|K d|K|d_s|d) numbers", r"$\1$", named)


_INTRO = r"""# Communication

For users who plan bandwidth, secure aggregation or a privacy review. After this page you know which values one
client downloads and uploads in a round, for every method at its defaults. `fedsolve list communication` prints the
same table.

**Data are never sent.** However, a client update of few examples can reveal them
(`experiments/fedfw/fw_privacy/page.html`); `docs/privacy.md` has the remedies.

Symbols: $d$ is the number of model parameters, $K$ the number of local steps, $D_i$ the update of client $i$
(`delta`), and $d_s$ the number of shared parameters. Personal layers (`FedPer`, `FedRep`) are never sent. The
table has the size of every field in numbers, and its reduction on the server. Every download also has the number
of the round.

* **Scalars**: most methods also upload the mean local loss (`loss`), for logging only. `squared_norm`, `f`,
  `excess` and `rate_sum` are used by the server step, and `search` has the results of a line search.
* **Weighted mean**: clients are weighted by their number of examples $n_i$. The server needs $\sum_i n_i D_i$ and
  $\sum_i n_i$. It receives $n_i$ with the message; a client can also weight its own message, so that sums are
  sufficient. "Mean" weights all clients equally.
* **Sum sufficient**: whether the method works with sums over the cohort, as secure aggregation provides them. A
  server that sees only sums cannot exclude a client whose message is not finite.
* **Frank-Wolfe methods** are shown with an $\ell_1$ ball, whose extreme point is one integer. `docs/composite.md`
  has the bytes for other sets. The server reconstructs each client's iterate from its messages.
* **Wrappers** add fields: `inner.delta` is the client update inside SCAFFOLD's message. `Robust+X`, `FedBuff+X`
  and `FedAsync+X` send the same fields as X.
"""
