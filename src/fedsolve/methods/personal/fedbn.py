"""FedBN (Li et al. 2021): normalisation layers, with their statistics, stay on each client."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.building import by_name, class_by_name
from fedsolve.core.errors import InvalidInput, of_type
from fedsolve.core.schedules import Rate
from fedsolve.core.trees import matching, named_leaves
from fedsolve.core.types import Params, Traced, Weighting, module, reported, static
from fedsolve.methods.server.sgd import FedAvg
from fedsolve.methods.wrappers.leaf_parts import split
from fedsolve.methods.wrappers.personal import Personal, PersonalClient

NORMALIZATION = ("*bn*", "*norm*", "*Norm*", "ln_*", "*.ln_*")
"""Patterns of the leaves of normalisation layers, by their usual names: bn1, norm, LayerNorm_0, ln_1."""
_NONE = (
    "FedBN found no leaf of a normalisation layer by its name, so that all parameters were averaged, as by FedAvg: "
    "give leaves=('1.*',), or leaves=fs.normalization_leaves(module)"
)


@module
class LocalNormalizationServer:
    """The inner server, of the shared leaves; the personal ones that every client begins with; 1 if there are none."""

    inner: Any
    personal: Params
    no_normalization: Traced = reported(_NONE)


@class_by_name("FedBN")
@module
class LocalNormalization(Personal):
    """FedBN (Li et al. 2021) around any method: `Personal` whose leaves are those of normalisation layers.

        (g, h) = gradient of f_i at (y, v_i):   `inner`'s local step of y along g,   v_i <- v_i - eta_v h

    Down and up: what `inner` sends for a model of the other leaves alone. Kept: v_i on each client, and its buffers,
    such as BatchNorm's statistics, which are not averaged; besides what `inner` keeps. A model without such leaves
    trains as `inner` would train it, and the run says so at its end. The server's model has the initial v and buffers.

    Args:
        inner: the method of the other leaves.
        leaves: which leaves are those of normalisation layers, by patterns of their paths. The default goes by the
            usual names, bn, norm, Norm and ln_; `fs.normalization_leaves(module)` gives those of a PyTorch module.
        personal_lr: eta_v > 0, a number or a schedule by round. 0.1 is where to begin.
        passes: 0, together (the paper's); P trains v_i first, as `Personal` does.

    Raises:
        InvalidInput: an `inner` that is no method, has models of its clients' own already or begins with older
            models; patterns that are none, or match all leaves; a number out of its range.
    """

    title: ClassVar[str] = "FedBN"  # pyright: ignore[reportIncompatibleMethodOverride, reportIncompatibleVariableOverride]
    parts: ClassVar[tuple[type, ...]] = (LocalNormalizationServer, PersonalClient)
    local_buffers: ClassVar[bool] = True
    inner: Algorithm
    leaves: str | tuple[str, ...] = static(default=NORMALIZATION)
    _: KW_ONLY
    personal_lr: Rate = 0.1
    passes: int = static(default=0)

    def init(self, params: Params) -> Any:
        """The inner server's state, and the personal leaves of the initial model."""
        shared, personal = self.divide(params)
        none = jnp.asarray(not jax.tree.leaves(personal), trees.dtype_of(params))
        return LocalNormalizationServer(self.inner.init(shared), personal, none)

    def divide(self, params: Params) -> tuple[Params, Params]:
        """The shared and the personal leaves, by the patterns that match; none of the second where none does."""
        paths, _ = named_leaves(params)
        found = [pattern for pattern in self.leaves if matching(paths, pattern)]
        return split(params, found) if found else (params, jax.tree.map(lambda _: None, params))


def normalization_leaves(model: Any) -> tuple[str, ...]:
    """Patterns of the parameters of a PyTorch module's normalisation layers: `("1.*",)` if layer 1 is a BatchNorm1d.

    Args:
        model: a `torch.nn.Module`. Layers count whose class has Norm in its name.

    Returns:
        Patterns for `FedBN` and `Personal`, one for each such layer that has parameters, in the module's order.

    Raises:
        InvalidInput: no such module, or one without such layers.
    """
    if not hasattr(model, "named_modules"):
        raise InvalidInput(
            f"model = {of_type(model)} must be a PyTorch module; give patterns such as 'norm.*'"
        )
    layers = [(name, layer) for name, layer in model.named_modules() if "Norm" in type(layer).__name__]
    found = tuple(f"{name}.*" for name, layer in layers if name and list(layer.parameters()))
    if not found:
        raise InvalidInput(f"{of_type(model)} has no normalisation layer with parameters: take FedAvg")
    return found


@by_name("FedBN")
def FedBN(
    client_lr: Rate = 0.1,
    *,
    leaves: str | tuple[str, ...] = NORMALIZATION,
    server_lr: Rate = 1.0,
    weighting: Weighting = "uniform",
) -> LocalNormalization:
    """FedBN (Li et al. 2021): FedAvg whose normalisation layers stay on each client, for inputs that look different.

        client:  (y, v_i) <- (y, v_i) - eta_l grad f_i(y, v_i), K times from (w, v_i);   D_i = y - w;   v_i is kept
        server:  w <- w + eta_g sum_i p_i D_i

    Up: D_i (of the leaves outside of normalisation layers) and the mean local loss. Down: w. Kept: v_i and the buffers
    on each client. It is `LocalNormalization(FedAvg(client_lr), leaves, personal_lr=client_lr)`. A model without such
    leaves makes it FedAvg, and the run says so at its end. A deployment has no place for buffers of clients' own:
    there, models with buffers are refused.

    Args:
        client_lr: eta_l > 0 of all leaves, a number or a schedule by round. 0.1 is where to begin; the authors' code
            has 0.01.
        leaves: which leaves are those of normalisation layers, by patterns of their paths. The default goes by the
            usual names, bn, norm, Norm and ln_ (the authors' code: bn); `fs.normalization_leaves(module)` gives those
            of a PyTorch module.
        server_lr: eta_g > 0, a number or a schedule by round (1, the paper's).
        weighting: p_i `uniform` (the paper's) or by `examples`.

    Returns:
        `LocalNormalization(FedAvg(...), leaves, personal_lr=client_lr)`.

    Raises:
        InvalidInput: patterns that are none or match all leaves, a rate that is not positive, an unknown weighting.

    Reference: Li, Jiang, Zhang, Kamp and Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch
    Normalization", ICLR 2021, Algorithm 1.
    """
    inner = FedAvg(client_lr, server_lr=server_lr, weighting=weighting)
    return LocalNormalization(inner, leaves, personal_lr=client_lr)
