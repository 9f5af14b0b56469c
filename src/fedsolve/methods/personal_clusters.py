"""FedBN (Li et al. 2021) and IFCA (Ghosh et al. 2020): layers that stay on clients, and models for clusters of them."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal, Unpack

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.building import by_name, checked, choice, class_by_name, integer
from fedsolve.core.errors import InvalidInput, of_type
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate, as_rate, rate_at
from fedsolve.core.trees import matching, named_leaves
from fedsolve.core.types import Params, Scalar, Traced, Weighting, module, reported, static
from fedsolve.methods.client.sgd import ClientOptions, local_sgd
from fedsolve.methods.client.solver import LocalSolver, StepWindow, refuse_stateful
from fedsolve.methods.server.sgd import FedAvg
from fedsolve.methods.wrappers.personal import Personal, PersonalClient, split

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
        shared, personal = self.divide(params)
        none = jnp.asarray(not jax.tree.leaves(personal), trees.dtype_of(params))
        return LocalNormalizationServer(self.inner.init(shared), personal, none)

    def divide(self, params: Params) -> tuple[Params, Params]:
        # the shared and the personal leaves, by the patterns that match; none of the second where none does
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


# IFCA (Ghosh et al. 2020): several models, of which each client takes the one with the least loss.

Averaging = Literal["models", "gradients"]
"""What a cluster's clients send: their models after local steps, or one gradient each."""


@module
class ClusterServer:
    """The clusters' models, leaves of shape (clusters, ...); the clients that each has had, in shares of a cohort; and
    the share of the largest cluster in the last round.
    """

    params: Params
    members: Traced
    largest_cluster: Traced = reported()


@module
class ClusterBroadcast:
    """The clusters' models, leaves of shape (clusters, ...), and the number of the round."""

    models: Params
    round: Scalar


@module
class ClusterClient:
    """The model that the client took last (the shapes of the model)."""

    personal: Params


@module
class ClusterReply:
    """What a client sends: its update (the shapes of the model), the number of its cluster and the mean local loss."""

    delta: Params
    cluster: Traced
    loss: Traced


@module
class ClusterMessage:
    """What is averaged: updates in the row of the client's cluster, leaves of shape (clusters, ...), 1 there, the loss.

    Rows of other clusters are 0.
    """

    delta: Params
    members: Traced
    loss: Traced


@module
class Clusters(Algorithm):
    """IFCA with any local solver: see `IFCA`."""

    name: ClassVar[str] = "IFCA"
    personal: ClassVar[bool] = True
    sends_client_update: ClassVar[bool] = False

    local: LocalSolver
    _: KW_ONLY
    clusters: int = integer(default=2)
    averaging: Averaging = choice("models", "gradients", default="models", kind="averaging")
    first_rounds: int = integer(at_least=0, default=20)
    server_lr: Rate = checked(as_rate, default=1.0)
    weighting: Weighting = choice("uniform", "examples", default="uniform")

    def __post_init__(self) -> None:
        refuse_stateful(self.name, self.local)

    def init(self, params: Params) -> ClusterServer:
        # every cluster begins with the initial model
        zero = jnp.zeros((), trees.dtype_of(params))
        models = jax.tree.map(lambda x: jnp.stack([x] * self.clusters), params)
        return ClusterServer(models, jnp.zeros(self.clusters, zero.dtype), zero)

    def broadcast(self, server: ClusterServer, cohort: Cohort) -> ClusterBroadcast:
        return ClusterBroadcast(server.params, cohort.round)

    def model(self, broadcast: ClusterBroadcast) -> Params:
        return _row(broadcast.models, 0)

    def init_client(self, broadcast: ClusterBroadcast) -> ClusterClient:
        return ClusterClient(self.model(broadcast))

    def train(
        self, broadcast: ClusterBroadcast, client: Any, oracle: Oracle
    ) -> tuple[ClusterReply, ClusterClient]:
        losses = jnp.stack([oracle.full(_row(broadcast.models, j))[0] for j in range(self.clusters)])
        given = jnp.asarray(oracle.client, jnp.int32) % self.clusters
        chosen = jnp.where(broadcast.round < self.first_rounds, given, jnp.argmin(losses).astype(jnp.int32))
        start = _row(broadcast.models, chosen)
        if self.averaging == "gradients":
            one = 1 if isinstance(oracle.steps, int) else jnp.minimum(oracle.steps, 1)
            oracle = StepWindow(oracle, 0, one, 1)
        solution = self.local.solve(start, oracle, broadcast.round)
        delta = trees.sub(solution.params, start)
        return ClusterReply(delta, chosen, jnp.asarray(solution.loss)), ClusterClient(start)

    def receive(self, broadcast: ClusterBroadcast, message: Any, client: Any) -> tuple[ClusterMessage, Any]:
        mine = jnp.arange(self.clusters) == message.cluster

        def rows(x: Any) -> Any:
            return jnp.where(mine.reshape(-1, *[1] * x.ndim), x[None], 0).astype(x.dtype)

        dtype = trees.dtype_of(message.delta)
        return ClusterMessage(jax.tree.map(rows, message.delta), mine.astype(dtype), message.loss), client

    def update(self, server: ClusterServer, message: ClusterMessage, cohort: Cohort) -> ClusterServer:
        # every cluster's step along the mean of its clients' updates; one without clients stays
        lr, share = rate_at(self.server_lr, cohort.round), message.members
        weight = jnp.where(share > 0, share, 1) if self.averaging == "models" else jnp.ones_like(share)

        def step(w: Any, d: Any) -> Any:
            return (w + lr * d / weight.reshape(-1, *[1] * (w.ndim - 1))).astype(w.dtype)

        counted = jnp.where(cohort.round < self.first_rounds, 0, share)
        params = jax.tree.map(step, server.params, message.delta)
        return ClusterServer(params, server.members + counted, jnp.max(share))

    def export(self, server: ClusterServer) -> Params:
        # the model of the cluster that has had the most clients
        return _row(server.params, jnp.argmax(server.members))

    def own_model(self, model: Params, client: ClusterClient) -> Params:
        return client.personal


def _row(models: Params, j: Scalar) -> Params:
    return jax.tree.map(lambda x: x[j], models)


@by_name("IFCA")
def IFCA(
    client_lr: Rate = 0.1,
    *,
    clusters: int = 2,
    averaging: Averaging = "models",
    first_rounds: int = 20,
    server_lr: Rate = 1.0,
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> Clusters:
    """IFCA (Ghosh et al. 2020): k models; each client takes the one with the least loss and trains it with its like.

        client i:  j = argmin f_i(w_j) on all examples,   y = w_j, then K times y <- y - eta_l g_i(y);   D_i = y - w_j
        server:    models:     w_j <- w_j + eta_g (sum over S_j of p_i D_i) / (sum over S_j of p_i),   S_j: took w_j
                   gradients:  w_j <- w_j + eta_g sum over S_j of p_i D_i,   with K = 1

    Up: D_i, j and the mean local loss (d + 2 numbers). Down: all w_j (k d numbers). Kept: all w_j on the server, on
    each client the w_j that it took last, with which it is measured. The test set and unseen clients are measured with
    the model that most clients have taken. One cluster is FedAvg. A round costs a client k passes over its examples.

    The paper begins with k random models. Here all begin with the task's, and in the first rounds client i is in
    cluster i mod k, which makes them different: the authors' code for FEMNIST, where groups are drawn at random.

    Args:
        client_lr: eta_l > 0, the paper's gamma, a number or a schedule by round. 0.1 is where to begin.
        clusters: k, at least 1. 2 is where to begin: the paper has 2 to 4.
        averaging: `models` or `gradients`, the paper's two options, as above; with the second a client takes one step.
        first_rounds: rounds in which clients are in clusters by their number, at least 0; 20, the authors' code. With
            0 all clients take the first model.
        server_lr: eta_g > 0, a number or a schedule by round (1, the paper's).
        weighting: p_i `uniform` (the paper's) or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        The method, whose local solver is `client.SGD`.

    Raises:
        InvalidInput: a number out of its range, an unknown averaging or weighting.

    >>> IFCA(0.1, clusters=3).clusters
    3

    Reference: Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning", NeurIPS
    2020, Algorithm 1.
    """
    return Clusters(
        local_sgd(client_lr, client), clusters=clusters, averaging=averaging, first_rounds=first_rounds,
        server_lr=server_lr, weighting=weighting,
    )  # fmt: skip
