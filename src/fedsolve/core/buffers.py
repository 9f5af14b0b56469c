"""State beside a model's parameters, such as BatchNorm's statistics: as a task gives it, as the engine carries it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Params, module, static


@module
class Buffers:
    """What a model keeps beside its parameters, every number as a floating-point one of the run's type.

    `integers` names each leaf's integer type, '' where the task gave a floating-point one.
    """

    values: Any
    integers: tuple[str, ...] = static(default=())

    @classmethod
    def of(cls, given: Any) -> Buffers:
        leaves, structure = jax.tree.flatten(given)
        kinds = [np.dtype(getattr(x, "dtype", object)) for x in leaves]
        floating = [bool(jnp.issubdtype(kind, jnp.floating)) for kind in kinds]
        if not leaves or not all(
            f or jnp.issubdtype(k, jnp.integer) for f, k in zip(floating, kinds, strict=True)
        ):
            raise InvalidInput(
                "buffers of the task must be arrays of floating-point numbers or integers, at least one, in any tree"
            )
        values = [x if f else np.asarray(x, np.float64) for x, f in zip(leaves, floating, strict=True)]
        return cls(
            structure.unflatten(values),
            tuple("" if f else k.name for k, f in zip(kinds, floating, strict=True)),
        )

    def given(self) -> Any:
        """As the loss takes them: integers as such, rounded."""

        def leaf(x: Any, kind: str) -> Any:
            return jnp.round(x).astype(jax.dtypes.canonicalize_dtype(np.dtype(kind))) if kind else x

        return self._map(leaf)

    def rounded(self) -> Buffers:
        return Buffers(self._map(lambda x, kind: jnp.round(x) if kind else x), self.integers)

    def _map(self, function: Any) -> Any:
        leaves, structure = jax.tree.flatten(self.values)
        return structure.unflatten([function(*pair) for pair in zip(leaves, self.integers, strict=True)])


@module
class WithBuffers:
    """A model and its buffers: what is evaluated. `fedsolve.tasks.loss_arguments.call` takes it apart."""

    params: Params
    buffers: Buffers


def with_buffers(params: Params, given: Any) -> Any:
    """The parameters with a task's buffers in their type; as they are where it has none (None)."""
    if given is None:
        return params
    dtype = jnp.result_type(*jax.tree.leaves(params))
    return WithBuffers(params, jax.tree.map(lambda x: jnp.asarray(x, dtype), Buffers.of(given)))


def bare(model: Any) -> Params:
    return model.params if isinstance(model, WithBuffers) else model


class Memory:
    """Buffers of one client during its local work: mutable arrays, so that no method has to carry them."""

    def __init__(self, buffers: Buffers) -> None:
        self._refs = jax.tree.map(lambda x: jax.new_ref(x), buffers)

    def read(self) -> Buffers:
        return jax.tree.map(lambda ref: ref[...], self._refs)

    def write(self, new: Any, when: Any) -> None:
        """Take over what a loss returned, `when` that is no step beyond the client's last."""

        def leaf(ref: Any, x: Any) -> None:
            x = jnp.asarray(x).astype(ref.dtype)
            ref[...] = x if when is True else jnp.where(when, x, ref[...])

        for ref, x in zip(jax.tree.leaves(self._refs.values), jax.tree.leaves(new), strict=True):
            leaf(ref, x)
