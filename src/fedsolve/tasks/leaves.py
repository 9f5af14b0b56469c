"""Which leaves of a model train: floating-point arrays that are not frozen; the others are put back where they were."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.buffers import WithBuffers
from fedsolve.core.errors import InvalidInput, shown, with_article
from fedsolve.core.loss_checks import check_wide
from fedsolve.core.trees import dtype_of, matching, named_leaves
from fedsolve.core.types import Batch, Params, module, replace
from fedsolve.core.xla.narrow import is_narrow
from fedsolve.tasks.leaf_types import assembled, check_some_frozen, given_again, master, narrowed, widened
from fedsolve.tasks.loss_arguments import asked

_NEAR = 3  # paths that an error names
_INSTEAD = "or take GroupNorm or LayerNorm instead of BatchNorm"


@module
class WithFrozen:
    """A model in two parts: what loss and metrics of a task with frozen leaves are called with."""

    trained: Params  # the leaves that train, all that a method sees
    frozen: Params  # those that do not, `Task.frozen`


def with_frozen(params: Params, frozen: Params) -> Any:
    # buffers stay beside both; frozen leaves of fewer than 32 bits are widened to the type of those that train
    if isinstance(params, WithBuffers):
        return replace(params, params=with_frozen(params.params, frozen))
    if not jax.tree.leaves(frozen):
        return params
    widen = partial(widened, dtype=dtype_of(params))
    return WithFrozen(params, jax.tree.map(widen, frozen, is_leaf=is_narrow))


@dataclass(frozen=True)
class Leaves:
    """A model's leaves apart."""

    trained: Params  # those that train, in 32 bits or more
    frozen: Params  # those that do not, as they are stored, `()` if all do
    # trained (where leaves are frozen: `WithFrozen`) -> the model as it is computed with; None if it is `trained`
    merge: Callable[[Any], Params] | None
    own: tuple[Sequence[Any], Sequence[Any]]  # the types of the leaves of both as they were given

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # a function of the whole model as one of what the engine has
        return function if self.merge is None else Merged(function, self.merge)

    @property
    def assemble(self) -> Callable[[Params], Params]:
        return assembled(self._exact, self.own[0])

    def _exact(self, trained: Params) -> Params:
        if self.merge is None:
            return trained
        frozen = zip(jax.tree.leaves(self.frozen, is_leaf=is_narrow), self.own[1], strict=True)
        return self.merge(WithFrozen(trained, [given_again(x, dtype) for x, dtype in frozen]))


def split_leaves(params: Params, freeze: Sequence[str] = (), frozen_dtype: str | None = None) -> Leaves:
    # frozen are leaves whose path matches a pattern (see `fedsolve.core.trees`)
    paths, leaves = named_leaves(params)
    structure = jax.tree.structure(params)
    try:
        floating = [jnp.issubdtype(getattr(leaf, "dtype", object), jnp.floating) for leaf in leaves]
    except TypeError:  # a type of numbers that NumPy has not
        kind = next(
            type(x) for x in leaves if hasattr(x, "dtype") and not isinstance(x, np.ndarray | jax.Array)
        )
        raise InvalidInput(
            f"the parameters hold {with_article(f'{kind.__module__}.{kind.__name__}')}: give arrays of NumPy or JAX, "
            "or a PyTorch module to fs.tasks.from_torch"
        ) from None
    if not any(floating):
        raise InvalidInput("the parameters hold no floating-point array: nothing to train")
    still = _chosen([p for p, f in zip(paths, floating, strict=True) if f], freeze)
    kept = [f and p not in still for p, f in zip(paths, floating, strict=True)]
    if not any(kept):
        raise InvalidInput(f"freeze = {shown(list(freeze))} leaves nothing to train: freeze fewer leaves")
    check_some_frozen(frozen_dtype, still, "name some by freeze, or leave it out")
    arrays = [_array(x) if f else None for x, f in zip(leaves, floating, strict=True)]
    untrained = [f and not k for f, k in zip(floating, kept, strict=True)]
    own = _types(arrays, kept), _types(arrays, untrained)
    if all(kept):
        return Leaves(structure.unflatten(map(master, arrays)), (), None, own)
    merge = _merge(
        structure, [None if f else x for x, f in zip(leaves, floating, strict=True)], kept, untrained
    )
    if not still:
        return Leaves([master(x) for x in arrays if x is not None], (), merge, own)
    # each part has the model's structure, so that paths stay what they are
    trained, frozen = (
        structure.unflatten([x if here else None for x, here in zip(arrays, which, strict=True)])
        for which in (kept, untrained)
    )
    return Leaves(jax.tree.map(master, trained), narrowed(frozen, frozen_dtype), merge, own)


def _types(arrays: list[Any], here: list[bool]) -> list[Any]:
    return [x.dtype for x, chosen in zip(arrays, here, strict=True) if chosen]


def refuse_halves(of: str, params: Params) -> None:
    # floating numbers of 16 bits or fewer; the first leaf is named
    typed = [(path, getattr(leaf, "dtype", None)) for path, leaf in zip(*named_leaves(params), strict=True)]
    types = (
        (path, str(dtype), dtype.itemsize)
        for path, dtype in typed
        if isinstance(dtype, np.dtype) and jnp.issubdtype(dtype, jnp.floating)
    )
    check_wide(of, types, "convert it")


def refuse_state(params: Params) -> None:
    # running statistics of flax (linen, nnx) or equinox would be trained as weights
    try:
        leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=_is_state)
    except ValueError:
        raise InvalidInput(
            "the parameters are a dictionary with keys of several types, which have no order: make them all text"
        ) from None
    for path, leaf in leaves:
        where = jax.tree_util.keystr(path)
        if any(getattr(part, "key", None) == "batch_stats" for part in path):
            raise InvalidInput(
                f"the parameters hold running statistics, {where}, which a gradient step would move: give "
                f"variables['params'] alone and apply the model with use_running_average=True, {_INSTEAD}"
            )
        if _is_state(leaf):
            raise InvalidInput(
                f"the parameters hold state, {where or type(leaf).__name__} of type {type(leaf).__name__}, which a "
                f"gradient step would move: give the weights alone (flax: nnx.split(model, nnx.Param, ...); equinox: "
                f"the model without its State), {_INSTEAD}"
            )


def _is_state(leaf: Any) -> bool:
    # flax's `nnx.BatchStat` and equinox's `nn.State`, by name: neither package need be installed
    names = {(c.__module__.split(".")[0], c.__name__) for c in type(leaf).__mro__}
    return bool(names & {("flax", "BatchStat"), ("equinox", "State")})


def _merge(structure: Any, fixed: list[Any], kept: list[bool], cold: list[bool]) -> Callable[[Any], Params]:
    # trained leaves go to the places `kept`, frozen ones to those of `cold`, all others are as in `fixed`

    def merge(values: Any) -> Params:
        trained, frozen = (values.trained, values.frozen) if isinstance(values, WithFrozen) else (values, ())
        left, rest = iter(jax.tree.leaves(trained)), iter(jax.tree.leaves(frozen))
        return structure.unflatten(
            [next(left) if k else next(rest) if c else x for x, k, c in zip(fixed, kept, cold, strict=True)]
        )

    return merge


def _chosen(paths: list[str], freeze: Sequence[str]) -> set[str]:
    if isinstance(freeze, str) or not all(isinstance(pattern, str) for pattern in freeze):
        raise InvalidInput(f"freeze = {shown(freeze)} must be patterns of paths, such as ('encoder.*',)")
    chosen: set[str] = set()
    for pattern in freeze:
        here = {paths[i] for i in matching(paths, pattern)}
        if not here:
            near = difflib.get_close_matches(pattern, paths, _NEAR, cutoff=0) or paths[:_NEAR]
            raise InvalidInput(
                f"freeze = '{pattern}' matches no leaf of the model's {len(paths)} floating-point arrays: the nearest "
                f"paths are {', '.join(near)}"
            )
        chosen |= here
    return chosen


def _array(leaf: Any) -> Any:
    # one of NumPy stays, since a float64 run wants all its digits
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise InvalidInput(
            f"the parameters hold the shape {leaf.shape} without values: give arrays, as the model's `init` makes them"
        )
    return np.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else jnp.asarray(leaf)


@dataclass(frozen=True)
class Merged:
    """A function of the whole model as a function of the leaves that the engine has; it asks for what that asks for."""

    function: Any
    merge: Callable[[Any], Params]

    @property
    def asks(self) -> frozenset[str]:
        return asked(self.function)

    @property
    def each(self) -> Merged:
        # an `AttributeError` where the function has no such form: then this has none
        return Merged(self.function.each, self.merge)

    @property
    def targets(self) -> Callable[[Any, Batch], Any]:
        # an `AttributeError` where the function does not say
        says = self.function.targets
        return lambda params, batch: says(self.merge(params), batch)

    def __getattr__(self, name: str) -> Any:
        # what does not depend on the model, and only where the function has it
        if name not in (
            "columns",
            "counts",
            "empty",
            "metric",
            "moving",
            "of_sums",
            "size",
            "totals",
            "width",
        ):
            raise AttributeError(name)
        return getattr(self.function, name)

    def __call__(self, params: Any, batch: Batch, **given: Any) -> Any:
        return self.function(self.merge(params), batch, **given)
