"""What a server and one client send each other in a round, and whether the server needs more than a sum.

Derived from the methods themselves on a small model: what `broadcast` and `train` return, what `receive` makes of a
message, and how each field says it is reduced. `docs/communication.md` is `page()`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedsolve.core import introspect, trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.types import is_module, reductions
from fedsolve.core.wire import Index, OneOf

MODEL = {"weight": jnp.zeros((3, 4)), "bias": jnp.zeros(4)}
"""The small model; d is its number of entries, whatever they are."""
STEPS = 2


class Field(NamedTuple):
    """A field of a broadcast or a message: its path, its shape in words, how it is reduced ('' if it is not)."""

    name: str
    shape: str
    reduced: str = ""


class Payload(NamedTuple):
    """What one client receives and sends in a round.

    Attributes:
        down, up: the fields of the broadcast and of the message; `up` says how each is reduced.
        not_a_sum: why the server needs each message and not only sums over the cohort, '' if sums will do.
    """

    down: tuple[Field, ...]
    up: tuple[Field, ...]
    not_a_sum: str

    @property
    def summary(self) -> str:
        """Both ways in one line."""
        return f"down: {_listed(self.down)}; up: {_listed(self.up)}"


def payload(algorithm: Algorithm) -> Payload:
    """What is sent, from the shapes of the method's results.

    >>> from fedsolve.methods.server.sgd import FedAvg
    >>> payload(FedAvg()).up[0]
    Field(name='delta', shape='d numbers', reduced='mean by examples')
    """
    server = algorithm.init(MODEL)  # not traced: a set checks the start
    first = Cohort(jnp.int32(0), jnp.int32(4), 4)
    broadcast = jax.eval_shape(lambda: algorithm.broadcast(server, first))
    client = jax.eval_shape(algorithm.enrol, broadcast, MODEL)
    sent = introspect.message_shape(algorithm, broadcast, client, STEPS)
    received = introspect.received_shape(algorithm, broadcast, sent, client)
    by = "by examples" if algorithm.traits.weighting == "examples" else "1/|S|"
    words = {"mean": f"mean {by}", "average": "mean 1/|S|", "max": "maximum"}
    as_sent = introspect.is_forwarded(algorithm, broadcast, sent, client)
    how = dict(_paths(reductions(received), received))
    own = type(algorithm.traits.reduction).__name__ if algorithm.traits.reduction is not None else ""
    up = []
    for name, value in _fields(sent):
        if own:
            up.append(Field(name, _shape(value), own))
        elif as_sent:
            up.append(Field(name, _shape(value), words[how[name]]))
        else:
            up.append(Field(name, _shape(value), "changed by the server, then " + words["mean"]))
    down = tuple(Field(name, _shape(value)) for name, value in _fields(broadcast))
    return Payload(down, tuple(up), _not_a_sum(algorithm, as_sent, set(how.values())))


def _not_a_sum(algorithm: Algorithm, as_sent: bool, how: set[str]) -> str:
    if algorithm.traits.reduction is not None:
        return "a robust reduction looks at each message"
    if not as_sent:
        return "the server changes each message before it adds them up"
    return "a maximum is no sum" if "max" in how else ""


def _fields(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a message by path: what has the model's shapes is one field, so is a code."""
    if not jax.tree.leaves(value):
        return
    if is_module(value) and not isinstance(value, Index | OneOf):
        for f in dataclasses.fields(value):
            if not f.metadata.get("static"):
                yield from _fields(getattr(value, f.name), f"{path}.{f.name}" if path else f.name)
        return
    yield path, value


def _paths(how: Any, like: Any) -> list[tuple[str, str]]:
    """The reduction of each field, by path."""
    return (
        [(path, jax.tree.leaves(value)[0]) for path, value in _fields(how)] if jax.tree.leaves(like) else []
    )


def _shape(value: Any) -> str:
    """The shape of a field in words."""
    if isinstance(value, OneOf):
        return "a code of one of several sets"
    leaves, structure = jax.tree.flatten(value, is_leaf=lambda x: isinstance(x, Index))
    if any(isinstance(x, Index) or not jnp.issubdtype(x.dtype, jnp.inexact) for x in leaves):
        whole = sum(getattr(x, "value", x).size for x in leaves)
        return (
            "a whole number"
            if whole == 1 and not isinstance(leaves[0], Index)
            else f"a code ({whole} integer)"
        )
    shapes = [x.shape for x in leaves]
    model = [x.shape for x in jax.tree.leaves(MODEL)]
    if isinstance(value, dict) and value.keys() == MODEL.keys() and None in value.values():
        return "d_s numbers"
    if structure == jax.tree.structure(MODEL) and shapes == model:
        return "d numbers"
    if structure == jax.tree.structure(MODEL) and shapes == [(STEPS, *s) for s in model]:
        return "K d numbers"
    return (
        "one number"
        if shapes == [()]
        else "K numbers"
        if shapes == [(STEPS,)]
        else f"{trees.size(value)} numbers"
    )


def _listed(fields: tuple[Field, ...]) -> str:
    return ", ".join(f"{f.name} ({f.shape}{', ' if f.reduced else ''}{f.reduced})" for f in fields)


def examples() -> dict[str, Algorithm]:
    """Every method of the catalogue, and compositions whose traffic is another, with the examples of the catalogue."""
    from fedsolve.config.build import build, example_of
    from fedsolve.config.catalogue import ALGORITHMS

    def example(name: str, **more: Any) -> Algorithm:
        return build(name, example_of(name) | more)

    found = {name: example(name) for name in ALGORITHMS} | {
        "FedDualAvg, averaged": example("FedDualAvg", averaged=True),
        "FedLiLS, max": example("FedLiLS", server="max"),
        "Personal+SCAFFOLD": example("Personal+SCAFFOLD"),
        "FedExProx, StoPS": example("FedExProx", extrapolation="StoPS"),
    }
    for name in ("SCAFFOLD", "SCAFFOLD+FedDuAdam", "FedProx", "Ditto", "Robust", "LocalDP"):
        composed = name if "+" in name else f"{name}+FedAdam"
        found[composed] = example(composed)
    if importlib.util.find_spec("dp_accounting") is None:
        return found
    private = partial(
        example, "DP+FedAdam", cohort=4, population=4, sampling="none"
    )  # the cohort of `payload`
    return found | {
        "DP+FedAdam": private(),
        "DP+FedAdam, at = client": private(at="client"),
        "DP+FedAdam, at = client, adaptive": private(at="client", clipping="adaptive"),
    }


def page() -> str:
    """`docs/communication.md`: methods of equal traffic in one row."""
    rows: dict[Payload, list[str]] = {}
    for name, algorithm in examples().items():
        rows.setdefault(payload(algorithm), []).append(name)
    lines = [
        _INTRO,
        "| methods | download | upload, and its reduction on the server | sum sufficient |",
        "|---|---|---|---|",
    ]
    for found, names in rows.items():
        down = "<br>".join(f"`{f.name}` {f.shape}" for f in found.down)
        up = "<br>".join(f"`{f.name}` {f.shape}, {f.reduced}" for f in found.up)
        enough = f"no: {found.not_a_sum}" if found.not_a_sum else "yes"
        lines.append(_typeset(f"| {', '.join(f'`{n}`' for n in names)} | {down} | {up} | {enough} |"))
    return "\n".join([*lines, ""])


def _typeset(row: str) -> str:
    """A row of the page, whose counts are formulas and whose means are named as its introduction names them."""
    named = row.replace("mean by examples", "weighted mean").replace("mean 1/|S|", "mean")
    named = named.replace("a whole number", "an integer")
    return re.sub(r"\b(K d_s|K d|K|d_s|d)(?= numbers)", r"$\1$", named)


_INTRO = r"""# Communication

For users who plan bandwidth, secure aggregation or a privacy review. After this page you know which values one
client downloads and uploads in a round, for every method at its defaults. `fedsolve list communication` prints the
same table.

**Data are never sent.** However, a client update of few examples can reveal them
(`experiments/fedfw/fw_privacy/page.html`); `docs/privacy.md` has the remedies.

Symbols: $d$ is the number of model parameters, $K$ the number of local steps, $D_i$ the update of client $i$
(`delta`), and $d_s$ the number of shared parameters. Personal layers (`FedPer`, `FedRep`) are never sent.

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
