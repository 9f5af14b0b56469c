"""Losses and gradients computed by Python on the host, called from inside a compiled program."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.types import Params, Scalar
from fedsolve.core.xla.host_calls import HostCalls, is_wide, narrow, shape_of_words, to_words, widen

SMALL = 1 << 18
"""Entries of an array that is worth a copy. Measured: an array costs about 0.1 ms a call, a copy of 1 MB less."""


class Host(HostCalls):
    """Functions of the host, (params, words) -> result, that compiled programs call by name.

    A program holds this object's `number` alone, an array of shape (1,), and looks it up at each call
    (`HostFunction`): so one program serves every `Host` whose arrays have the same shapes, and keeps none of them in
    memory. Whoever runs a program holds on to the `Host` meanwhile. What functions are given lies in the program's
    memory, to be read until they return; they give back NumPy arrays.
    """

    def __init__(self, functions: Mapping[str, Callable[[Any, np.ndarray], Any]]) -> None:
        super().__init__()
        number = next(_NUMBERS)
        self.number = np.full(1, number, np.uint32)
        self.functions = functions
        _HOSTS[number] = self


_NUMBERS = count()
_HOSTS: WeakValueDictionary[int, Host] = WeakValueDictionary()


@dataclass(frozen=True)
class HostFunction:
    """A function of any `Host` as part of compiled programs; `view` makes a framework's arrays."""

    # Each call happens exactly once, after the calls that its arguments depend on, also in loops and branches; never
    # do two of one `Host` run at once. So its functions may keep a state, if they do not mind in which order they are
    # asked for what does not depend on one another.

    name: str
    view: Callable[[Array, bool], Any]

    def value(self, params: Params, words: Array) -> Scalar:
        """The function's result, a number of the parameters' type; `words` begin with the number of the `Host`."""
        return self._call(params, words, lambda packing, loss: [loss])[0]

    def value_and_grad(self, params: Params, words: Array) -> tuple[Scalar, Params]:
        """The function's result, a number and arrays like the parameters; `words` as for `value`."""
        leaves, tree = jax.tree.flatten(params)

        def results(packing: Packing, result: Any) -> list[Any]:
            return [result[0], *packing.pack(jax.tree.leaves(result[1]))]

        loss, *flat = self._call(params, words, results, gradient=True)
        return loss, tree.unflatten(Packing.of(leaves).unpack(flat))

    def _call(
        self,
        params: Params,
        words: Array,
        results: Callable[[Packing, Any], list[Any]],
        gradient: bool = False,
    ) -> list[Array]:
        leaves, tree = jax.tree.flatten(params)
        packing = Packing.of(leaves)
        flat = packing.pack(leaves, jnp.concatenate)
        shapes = [jax.ShapeDtypeStruct((), trees.dtype_of(params)), *(flat if gradient else [])]
        wide = [is_wide(x) for x in flat]

        def run(sent: list[Array], words: Array) -> list[np.ndarray]:
            given = np.asarray(words)
            host = _HOSTS[int(given[0])]
            with host.running():
                views = [self.view(x, was) for x, was in zip(sent, wide, strict=True)]
                result = host.functions[self.name](tree.unflatten(packing.unpack(views)), given[1:])
                return [to_words(x) for x in results(packing, result)]

        words_back = io_callback(run, [shape_of_words(s) for s in shapes], [narrow(x) for x in flat], words)
        return [widen(x, s) for x, s in zip(words_back, shapes, strict=True)]


@dataclass(frozen=True)
class Packing:
    """How a list of arrays is laid out in fewer ones, which are flat: each costs time on its way, whatever its size.

    `groups` are the numbers of the arrays that lie one after another in each flat one.
    """

    shapes: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, arrays: Sequence[Any]) -> Packing:
        """All small arrays of a type together, each large one alone.

        >>> Packing.of([np.zeros(3), np.zeros(1 << 19), np.zeros((2, 2))]).groups
        ((0, 2), (1,))
        """
        groups: dict[Any, list[int]] = {}
        for i, x in enumerate(arrays):
            groups.setdefault(x.dtype if math.prod(x.shape) <= SMALL else i, []).append(i)
        return cls(tuple(tuple(x.shape) for x in arrays), tuple(map(tuple, groups.values())))

    def pack(
        self, arrays: Sequence[Any], concatenate: Callable[[list[Any]], Any] = np.concatenate
    ) -> list[Any]:
        """The flat arrays; a large one of its own is only reshaped."""
        packed = []
        for group in self.groups:
            flat = [arrays[i].reshape(-1) for i in group]
            packed.append(concatenate(flat) if len(flat) > 1 else flat[0])
        return packed

    def unpack(self, flat: Sequence[Any]) -> list[Any]:
        arrays: list[Any] = [None] * len(self.shapes)
        for group, array in zip(self.groups, flat, strict=True):
            start = 0
            for i in group:
                stop = start + math.prod(self.shapes[i])
                arrays[i], start = array[start:stop].reshape(self.shapes[i]), stop
        return arrays
