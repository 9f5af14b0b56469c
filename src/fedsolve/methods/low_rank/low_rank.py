"""Low-rank updates around any method: LoRA, averaged in four ways."""

from __future__ import annotations

from typing import Any, ClassVar

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort, client_update_of, round_of
from fedsolve.core.building import class_by_name
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, module
from fedsolve.core.wire import Initial
from fedsolve.methods.compression.encoding import with_field
from fedsolve.methods.compression.norms import updated_squared_norm
from fedsolve.methods.low_rank.checks import check_decoded, check_stacking
from fedsolve.methods.low_rank.factored import Factored
from fedsolve.methods.low_rank.factors import (
    FactorOracle,
    at_chosen,
    of_chosen,
)


@module
class LowRankServer:
    """The inner server, of factors, and the chosen leaves W0 to which their products are added."""

    inner: Any
    base: Params


@module
class LowRankBroadcast:
    """The inner broadcast, of factors, and W0: where it never changes, as leaves of the initial model."""

    inner: Any
    base: Any


@module
class LowRankMessage:
    """The inner message, and s dB_i dA_i of each chosen leaf, which the server computes."""

    inner: Any
    product: Params


@class_by_name("LowRank")
@module
class LowRank(Factored):
    """LoRA (Hu et al. 2022): `inner` trains factors B A of low rank in place of the chosen matrices.

        W = W0 + s B A,   s = alpha / rank,   B = 0 and A random at the start
        client i:  as `inner`, from (B, A):   dB_i, dA_i

        both    server:  as `inner` on the mean of (dB_i, dA_i)          LoRA by FedAvg, the usual practice
        A       A never trains, B alone is sent                          FFA-LoRA (Sun et al. 2024)
        exact   as both;   W0 <- W0 + s (mean dB_i dA_i - mean dB_i mean dA_i)   FedEx-LoRA (Singhal et al. 2025)
        stack   client i begins with B = 0 and A of its own draw;   server:  as `inner` on D = s mean B_i A_i,
                which is the product of all factors side by side         FLoRA (Wang et al. 2024)

    The mean of (B_i, A_i) does not have the mean of B_i A_i as its product: `both` misses it by s times the covariance
    of dB and dA, which is what `exact` adds. `A` and `stack` have no such error.

    Up: factors, rank (m + n) numbers for a matrix of m n; with `A` m rank. Down: the same and, since W0 is part of the
    initial model, 8 bytes that say which; with `exact` W0 besides, with `stack` the model alone. (The papers send the
    residual or all factors, to clients that never miss a round.) Kept: what `inner` keeps. Other leaves train in full,
    unless the task freezes them, and so do matrices no larger than their factors: with a rank that large this is
    `inner`. A leaf is the matrix of its first axis and all others; in PyTorch's linear layers A reads the inputs.
    Options of `inner` (momentum, clipping, a proximal term) act on factors.

    Args:
        inner: the method of the factors, such as `FedAvg`; with `exact` and `stack` one that sends client updates.
        rank: >= 1; PEFT begins with 8.
        average: as above.
        leaves: which leaves have factors: a pattern of paths, or several, as in `fedsolve.geometry`; all matrices.
        alpha: > 0; None is the rank, for s = 1, as in the paper and PEFT.

    Raises:
        InvalidInput: an `inner` that is no method, or cannot be averaged so; a rank, patterns or an alpha out of range.
            When a run begins: a pattern that matches no leaf, or vectors alone; with `stack` clients that keep a state.

    As in public code A is uniform in [-1, 1] / sqrt(n), and FLoRA's clients draw their own; from one fixed seed.

    Reference: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022. Averages: Sun et al.,
    arXiv:2403.12313 (A), Singhal et al., arXiv:2410.09432 (exact), Wang et al., arXiv:2409.05976 (stack).
    """

    parts: ClassVar[tuple[type, ...]] = (LowRankServer, LowRankBroadcast, LowRankMessage)

    def init(self, params: Params) -> Any:
        """The inner server's state of the factors, and W0; with `stack` that of the model."""
        base = self._chosen(params)
        if self.average == "stack":
            check_stacking(self.inner, params)
            return self.inner.init(params)
        start = at_chosen(lambda w, p, factors: self._trained(factors), base, params, self._draw(base))
        return LowRankServer(self.inner.init(start), base)

    def broadcast(self, server: Any, cohort: Cohort) -> Any:
        """The inner broadcast, and W0."""
        if self.average == "stack":
            return self.inner.broadcast(server, cohort)
        base = server.base if self.average == "exact" else Initial.leaves_of(server.base)
        return LowRankBroadcast(self.inner.broadcast(server.inner, cohort), base)

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        """Run the inner local work on factors; with `stack` the message has B_i and A_i themselves."""
        if self.average != "stack":
            base = Initial.values_of(broadcast.base)
            seen = FactorOracle(oracle, lambda factors: self._whole(base, factors))
            return self.inner.train(broadcast.inner, client, seen)
        model = self.inner.model(broadcast)
        base = self._chosen(model)
        drawn = self._draw(base, round_of(broadcast), oracle.client)
        start = at_chosen(lambda w, p, factors: factors, base, model, drawn)
        seen = FactorOracle(oracle, lambda factors: self._whole(base, factors))
        message, client = self.inner.train(with_field(broadcast, "params", start), client, seen)
        update = client_update_of(message)
        return _with_update(message, at_chosen(lambda w, d, f: trees.add(d, f), base, update, drawn)), client

    def receive(self, broadcast: Any, message: Any, client: Any) -> tuple[Any, Any]:
        """Decode the inner message; with `exact` and `stack` multiply its factors."""
        received, followed = self.inner.receive(self.inner_part(broadcast), message, client)
        if self.average in ("both", "A"):
            return received, followed
        update = client_update_of(received)
        check_decoded(self.inner, update)
        if self.average == "exact":
            return LowRankMessage(received, of_chosen(self._product, broadcast.base, update)), followed
        base = self._chosen(self.inner.model(broadcast))
        return _with_update(received, at_chosen(self._product, base, update)), followed

    def update(self, server: Any, message: Any, cohort: Cohort) -> Any:
        """The inner update; with `exact` W0 takes what the mean of factors misses."""
        updated = super().update(server, message, cohort)
        if self.average != "exact":
            return updated
        of_means = of_chosen(self._product, server.base, client_update_of(message.inner))
        residual = trees.sub(message.product, of_means)
        return LowRankServer(updated.inner, trees.add(server.base, residual))

    def model(self, broadcast: Any) -> Params:
        """The model: W0 + s B A in the place of factors."""
        if self.average == "stack":
            return self.inner.model(broadcast)
        return self._whole(Initial.values_of(broadcast.base), self.inner.model(broadcast.inner))

    def export(self, server: Any) -> Params:
        """The model: W0 + s B A in the place of factors."""
        if self.average == "stack":
            return self.inner.export(server)
        return self._whole(server.base, self.inner.export(server.inner))


def _with_update(message: Any, update: Params) -> Any:
    """A message with another client update, and its squared norm where the message has one."""
    changed = with_field(message, "delta", update)
    return updated_squared_norm(changed, trees.squared_norm(update))
