"""Functions of the host that a compiled program calls.

A callback may run in a thread of the runtime, where 64-bit types are off whatever this thread says: float64 would lose
half its digits on the way, and a counter in int64 would be refused. They travel as pairs of 32-bit words, which costs
no arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import getLogger
from threading import RLock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback
from jaxtyping import Array

from fedsolve.core.errors import FedsolveError

# JAX logs what a callback raises with all its own frames; an error of ours, raised again, has its one line
getLogger("jax._src.callback").addFilter(
    lambda r: not isinstance(r.exc_info and r.exc_info[1], FedsolveError)
)


def is_wide(x: Any) -> bool:
    # 64-bit arrays travel as pairs of 32-bit words (see the module's docstring)
    return x.dtype in (np.float64, np.int64, np.uint64)


def narrow(x: Any) -> Array:
    return lax.bitcast_convert_type(x, jnp.uint32) if is_wide(x) else x


def widen(x: Array, like: Any) -> Array:
    # the inverse of `narrow`; `like` has the type
    return lax.bitcast_convert_type(x, like.dtype) if is_wide(like) else x


def shape_of_words(x: Any) -> jax.ShapeDtypeStruct:
    wide = is_wide(x)
    return jax.ShapeDtypeStruct((*x.shape, 2) if wide else x.shape, jnp.uint32 if wide else x.dtype)


def to_words(x: np.ndarray) -> np.ndarray:
    return np.asarray(x, order="C")[..., None].view(np.uint32) if is_wide(x) else x


class HostCalls:
    """What functions of the host that programs call have in common: one runs at a time, and what it raises is kept."""

    def __init__(self) -> None:
        self._lock, self._failure = RLock(), None

    @contextmanager
    def running(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except Exception as error:
            self._failure = error
            raise

    @contextmanager
    def failing_plainly(self) -> Iterator[None]:
        """What a function raises inside a compiled program leaves this block as it was raised."""
        # The block must wait for the program's results (`jax.block_until_ready`).
        self._failure = None
        try:
            yield
        except jax.errors.JaxRuntimeError:
            if self._failure is None:
                raise
            raise self._failure from None


CALLS = HostCalls()  # of functions that `call_host` takes


def call_host(function: Callable[..., Any], results: Any, *arguments: Any, once: bool = False) -> Any:
    """What a function of the host gives, as part of a compiled program; side by side it is called one after another.

    The function takes NumPy arrays in the place of the leaves of `arguments`, and returns such, of the shapes and
    types of `results`. With `once` it is called exactly once where the program comes by, since it changes something;
    else it may be left out or called again.
    """
    leaves, tree = jax.tree.flatten(arguments)
    leaves = [jnp.asarray(x) for x in leaves]
    shapes, form = jax.tree.flatten(results)

    def host(*sent: Any) -> list[np.ndarray]:
        arrays = [
            np.asarray(x).view(own.dtype)[..., 0] if is_wide(own) else np.asarray(x)
            for x, own in zip(sent, leaves, strict=True)
        ]
        try:
            found = form.flatten_up_to(function(*tree.unflatten(arrays)))
        except Exception as error:
            CALLS._failure = error
            raise
        return [to_words(np.asarray(x, s.dtype)) for x, s in zip(found, shapes, strict=True)]

    words, sent = [shape_of_words(s) for s in shapes], map(narrow, leaves)
    back = (
        io_callback(host, words, *sent)
        if once
        else jax.pure_callback(host, words, *sent, vmap_method="sequential")
    )
    return form.unflatten([widen(x, s) for x, s in zip(back, shapes, strict=True)])
