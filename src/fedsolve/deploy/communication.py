"""What a server and one client send each other in a round, and whether the server needs more than a sum.

Derived from the methods themselves on a small model: what `broadcast` and `train` return, what `receive` makes of a
message, and how each field says it is reduced. `tools/communication_page.py` makes `docs/communication.md` of it.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedsolve.core import introspect, trees
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.types import is_module, reductions
from fedsolve.core.wire import Index, Initial, OneOf
from fedsolve.methods.compression.compressors import is_compressed
from fedsolve.methods.secure.secure import why_not_a_sum

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
        return f"down: {_listed(self.down)}; up: {_listed(self.up)}"


def payload(algorithm: Algorithm) -> Payload:
    """What is sent, from the shapes of the method's results.

    >>> from fedsolve.methods.server.sgd import FedAvg
    >>> payload(FedAvg()).up[0]
    Field(name='delta', shape='d numbers', reduced='mean by examples')
    """
    server = algorithm.init(MODEL)  # not traced: a set checks the start
    cohort = introspect.first_cohort(4)
    broadcast = jax.eval_shape(lambda: algorithm.broadcast(server, cohort))
    client = jax.eval_shape(algorithm.enrol, broadcast, MODEL)
    sent = introspect.message_shape(algorithm, broadcast, client, STEPS)
    received = introspect.received_shape(algorithm, broadcast, sent, client)
    by = "by examples" if algorithm.traits.weighting == "examples" else "1/|S|"
    words = {"mean": f"mean {by}", "average": "mean 1/|S|", "max": "maximum", "sum": "sum"}
    as_sent = introspect.is_forwarded(algorithm, broadcast, sent, client)
    how = {path: jax.tree.leaves(by)[0] for path, by in _fields(reductions(received))} if as_sent else {}
    own = "" if algorithm.traits.reduction is None else type(algorithm.traits.reduction).__name__

    def reduced(name: str) -> str:
        return own or (words[how[name]] if as_sent else f"changed by the server, then {words['mean']}")

    up = tuple(Field(name, _shape(value), reduced(name)) for name, value in _fields(sent))
    down = tuple(Field(name, _shape(value)) for name, value in _fields(broadcast))
    return Payload(down, up, why_not_a_sum(algorithm, as_sent, received))


def _fields(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    # The fields of a message by path: what has the model's shapes is one field, so is a code.
    if not jax.tree.leaves(value):
        return
    if is_module(value) and not isinstance(value, Index | OneOf):
        for f in dataclasses.fields(value):
            if not f.metadata.get("static"):
                yield from _fields(getattr(value, f.name), f"{path}.{f.name}" if path else f.name)
        return
    yield path, value


def _shape(value: Any) -> str:
    if isinstance(value, OneOf):
        return "a code of one of several sets"
    if is_compressed(value):
        return "a code of d numbers"
    leaves, structure = jax.tree.flatten(value, is_leaf=lambda x: isinstance(x, Index | Initial))
    if any(isinstance(x, Initial) for x in leaves):
        return "8 bytes for each leaf"
    if any(isinstance(x, Index) or not jnp.issubdtype(x.dtype, jnp.inexact) for x in leaves):
        whole = sum(getattr(x, "value", x).size for x in leaves)
        is_number = whole == 1 and not isinstance(leaves[0], Index)
        return "a whole number" if is_number else f"a code ({whole} integer)"
    shapes = [x.shape for x in leaves]
    model = [x.shape for x in jax.tree.leaves(MODEL)]
    if isinstance(value, dict) and value.keys() == MODEL.keys() and None in value.values():
        return "d_s numbers"
    if structure == jax.tree.structure(MODEL) and shapes == model:
        return "d numbers"
    if structure == jax.tree.structure(MODEL) and shapes == [(STEPS, *s) for s in model]:
        return "K d numbers"
    if shapes == [()]:
        return "one number"
    d = trees.size(MODEL)
    if shapes == [(d * (d + 1) // 2,)]:
        return "d(d + 1)/2 numbers"
    if shapes == [(-(-d // 3),)]:  # of three fragments
        return "d/P numbers"
    return "K numbers" if shapes == [(STEPS,)] else f"{trees.size(value)} numbers"


def _listed(fields: tuple[Field, ...]) -> str:
    return ", ".join(f"{f.name} ({f.shape}{', ' if f.reduced else ''}{f.reduced})" for f in fields)


def examples() -> dict[str, Algorithm]:
    """Every method of the catalogue, and compositions whose traffic is another, with the examples of the catalogue."""
    from fedsolve.config.build import build, example_of
    from fedsolve.config.catalogue import ALGORITHMS

    def example(name: str, **more: Any) -> Algorithm:
        return build(name, example_of(name) | more)

    coded = ("SCALLION", "SCAFCOM", "FedComLoc", "SparseLoCo", "EF21Muon")
    codes = {name: {"smallest": 4} for name in coded}  # of the small model
    methods = {name: example(name, **codes.get(name, {})) for name in ALGORITHMS} | {
        "FedDualAvg, averaged": example("FedDualAvg", averaged=True),
        "FedFW, step": example("FedFW", sends="step"),
        "FedLiLS, max": example("FedLiLS", server="max"),
        "SCAFFOLD, equal_steps": example("SCAFFOLD", equal_steps=STEPS),
        "SCALLION, RandomK": example("SCALLION", compressor={"name": "RandomK", "share": 0.1}, smallest=4),
        "Personal+SCAFFOLD": example("Personal+SCAFFOLD"),
        "FedExProx, StoPS": example("FedExProx", extrapolation="StoPS"),
    }
    for name in ("SCAFFOLD", "SCAFFOLD+FedDuAdam", "FedProx", "Ditto", "Robust", "LocalDP"):
        composed = name if "+" in name else f"{name}+FedAdam"
        methods[composed] = example(composed)
    if importlib.util.find_spec("dp_accounting") is None:
        return methods
    # the cohort of `payload`
    private = partial(example, "DP+FedAdam", cohort=4, population=4, sampling="none")
    return methods | {
        "DP+FedAdam": private(),
        "DP+FedAdam, at = client": private(at="client"),
        "DP+FedAdam, at = client, adaptive": private(at="client", clipping="adaptive"),
    }
