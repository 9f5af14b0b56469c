"""Cross-entropy of logits and labels, with the examples of all clients and trials as one long axis.

XLA on a CPU (JAX 0.10.2) is slow at it in two ways. Its loops follow the shapes of arrays: batches of ten examples make
loops of ten, in which exponentials are computed one by one, nine times slower than in vectors. And its library takes up
to 18 times as long for a sum over classes as a loop that adds their rows.

So `vmap` puts its axis beside the examples' instead of before the classes', few classes are added row by row, and each
step is a function that XLA does not inline: it would follow the shapes of the next step, and add anew for each class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

from fedsolve.core.xla.compiler import not_inlined

_FEW = 128  # classes: with more, a program of rows takes long to compile


def cross_entropy(logits: Array, labels: Array) -> Array:
    """-log softmax(logits)[label] of each example."""
    # logits: shape (classes, n)
    # labels: integers, shape (n,). With one that is no class the result is log(sum(exp(logits)))
    # returns shape (n,)
    if logits.shape[1:] != labels.shape:
        raise ValueError(f"logits of shape {logits.shape} for labels of shape {labels.shape}")
    return _cross_entropy.bind(logits, labels, gradient=False)[0]


def _plainly(logits: Array, labels: Array, gradient: bool) -> list[Array]:
    # the result, shape (n,), and where asked its gradient softmax(logits) - is label, shape (classes, n)
    is_label, total = _is_label(logits, labels), jax.nn.logsumexp(logits, axis=0)
    result = total - jnp.sum(jnp.where(is_label, logits, 0), axis=0)
    return [result, jnp.exp(logits - total) - is_label] if gradient else [result]


def _in_vectors(logits: Array, labels: Array, gradient: bool) -> list[Array]:
    # the same in steps that are functions of their own
    largest, own = _largest_and_own(logits, labels)
    powers = _powers(logits, largest)
    result, total = _result(powers, largest, own)
    return [result, _slopes(powers, total, labels)] if gradient else [result]


@not_inlined
def _largest_and_own(logits: Array, labels: Array) -> tuple[Array, Array]:
    zeros = lax.full_like(logits, 0)
    largest = _over_classes(jnp.max, lax.max, logits)
    finite = lax.select(lax.is_finite(largest), largest, zeros[0])  # inf - inf would be NaN
    return finite, _over_classes(jnp.sum, lax.add, lax.select(_is_label(logits, labels), logits, zeros))


@not_inlined
def _powers(logits: Array, largest: Array) -> Array:
    return lax.exp(logits - largest)


@not_inlined
def _result(powers: Array, largest: Array, own: Array) -> tuple[Array, Array]:
    total = _over_classes(jnp.sum, lax.add, powers)
    return lax.log(total) + largest - own, total


@not_inlined
def _slopes(powers: Array, total: Array, labels: Array) -> Array:
    return powers / total - _is_label(powers, labels).astype(powers.dtype)


def _is_label(logits: Array, labels: Array) -> Array:
    return labels == jnp.arange(len(logits))[:, None]


def _over_classes(reduction: Callable[..., Array], operation: Callable[..., Array], x: Array) -> Array:
    # a reduction of the first axis: of few classes row by row, in vectors of examples
    if len(x) > _FEW:
        return reduction(x, axis=0)
    return reduce(operation, [lax.index_in_dim(x, i, keepdims=False) for i in range(len(x))])


def _shapes(logits: ShapedArray, labels: ShapedArray, gradient: bool) -> list[ShapedArray]:
    result = ShapedArray(logits.shape[1:], logits.dtype)
    return [result, ShapedArray(logits.shape, logits.dtype)] if gradient else [result]


def _derivatives(
    values: Sequence[Array], changes: Sequence[Any], gradient: bool
) -> tuple[list[Array], list[Array]]:
    result, slopes = _cross_entropy.bind(*values, gradient=True)
    change = jnp.sum(slopes * changes[0], axis=0)
    if not gradient:
        return [result], [change]
    softmax = slopes + _is_label(*values)
    return [result, slopes], [change, softmax * (changes[0] - jnp.sum(softmax * changes[0], axis=0))]


def _side_by_side(
    values: Sequence[Array], axes: Sequence[Any], gradient: bool
) -> tuple[list[Array], list[int]]:
    # the examples of all as one axis: logits (classes, many n), labels (many n,)
    many = next(x.shape[axis] for x, axis in zip(values, axes, strict=True) if axis is not None)
    logits = batching.bdim_at_front(values[0], axes[0], many)
    labels = batching.bdim_at_front(values[1], axes[1], many)
    each = jnp.moveaxis(logits, 0, 1)
    results = _cross_entropy.bind(each.reshape(len(each), -1), labels.ravel(), gradient=gradient)
    shapes = [labels.shape, each.shape][: len(results)]
    return [x.reshape(shape) for x, shape in zip(results, shapes, strict=True)], [0, 1][: len(results)]


def _lowered(context: mlir.LoweringRuleContext, *values: Any, gradient: bool) -> Any:
    function = _plainly if _may_divide(context.module_context.axis_context) else _in_vectors
    return mlir.lower_fun(function, multiple_results=True)(context, *values, gradient=gradient)


def _may_divide(axes: Any) -> bool:
    # whether XLA may divide arrays among devices: the rows of divided classes would be sent around one by one
    if hasattr(axes, "manual_axes"):  # in `shard_map` the other axes' devices compute parts of their own
        return not axes.manual_axes.issuperset(axes.mesh.axis_names)
    return axes.num_devices > 1


_cross_entropy: Any = Primitive("cross_entropy")
_cross_entropy.multiple_results = True
_cross_entropy.def_abstract_eval(_shapes)
_cross_entropy.def_impl(jax.jit(_cross_entropy.bind, static_argnames="gradient"))
ad.primitive_jvps[_cross_entropy] = _derivatives
batching.primitive_batchers[_cross_entropy] = _side_by_side
mlir.register_lowering(_cross_entropy, _lowered)
for _platform in ("cuda", "rocm"):
    mlir.register_lowering(
        _cross_entropy, mlir.lower_fun(_plainly, multiple_results=True), platform=_platform
    )
