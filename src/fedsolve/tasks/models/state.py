"""What models keep beside their weights: statistics that no gradient step may move."""

from __future__ import annotations

from typing import Any

import jax

from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Params

_INSTEAD = "or take GroupNorm or LayerNorm instead of BatchNorm"


def refuse_state(params: Params) -> None:
    """Running statistics of flax (linen, nnx) or equinox among the parameters would be trained as weights.

    Raises:
        InvalidInput: where they are, and what to pass instead.
    """
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
    """flax's `nnx.BatchStat` and equinox's `nn.State`, by name: neither package need be installed."""
    names = {(c.__module__.split(".")[0], c.__name__) for c in type(leaf).__mro__}
    return bool(names & {("flax", "BatchStat"), ("equinox", "State")})
