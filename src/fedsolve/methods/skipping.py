"""Local steps until a coin ends them: Scaffnew (Mishchenko et al. 2022) and FedComLoc (Yi et al. 2025)."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.building import by_name, integer, number
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.oracle import CorrectedOracle, Oracle
from fedsolve.core.schedules import Rate, rate_at
from fedsolve.core.types import MessageBounds, Params, Scalar, Traced, Weighting, module, reduced
from fedsolve.methods.client.sgd import SGD
from fedsolve.methods.client.solver import StepWindow, geometric_draw
from fedsolve.methods.compression.compressors import (
    Compressor,
    check_compressor,
    decode_leaves,
    encode_leaves,
    round_key,
)


@module
class SkippingServer:
    """The model w and the control variate c (shapes of the model)."""

    params: Params
    control: Params


@module
class SkippingBroadcast:
    """w, c, and the number of the round, from which the number of local steps follows."""

    params: Params
    control: Params
    round: Scalar


@module
class SkippingClient:
    """c_i (shapes of the model)."""

    control: Params


@module
class SkippingMessage:
    """The client update, K_i, and the mean local loss."""

    delta: Params
    steps: Traced = reduced("average", MessageBounds(at_least=0))
    loss: Traced = reduced("mean")


@module
class ProbabilisticSkipping(Algorithm):
    """Scaffnew with local SGD: see `Scaffnew`."""

    name: ClassVar[str] = "Scaffnew"
    weighting: ClassVar[Weighting] = "uniform"
    only_mean: ClassVar[str] = "c must stay the mean of all clients' c_i"

    local: SGD
    _: KW_ONLY
    p: Scalar = number(default=0.1, above=0, at_most=1)

    def __post_init__(self) -> None:
        if not isinstance(self.local, SGD) or self.local.momentum is not None:
            raise InvalidInput(f"{self.name} takes client.SGD without momentum, not {shown(self.local)}")

    def init(self, params: Params) -> SkippingServer:
        return SkippingServer(params, trees.zeros_like(params))

    def broadcast(self, server: SkippingServer, cohort: Cohort) -> SkippingBroadcast:
        return SkippingBroadcast(server.params, server.control, cohort.round)

    def init_client(self, broadcast: SkippingBroadcast) -> SkippingClient:
        return SkippingClient(trees.zeros_like(broadcast.control))

    def train(self, broadcast: SkippingBroadcast, client: SkippingClient, oracle: Oracle) -> tuple[Any, Any]:
        # as many corrected steps as the coin says, and the change of c_i
        start, correction = broadcast.params, trees.sub(broadcast.control, client.control)
        steps, bound = (
            jnp.minimum(geometric_draw(broadcast.round, self.p), x) for x in (oracle.steps, oracle.bound)
        )
        corrected = CorrectedOracle(StepWindow(oracle, 0, steps, bound), correction, start)
        solution = self.local.solve(start, corrected, broadcast.round)
        numbers = [jnp.asarray(x, trees.dtype_of(start)) for x in (steps, solution.loss)]
        message, delta = self.sent(solution.params, broadcast, oracle.client, numbers)
        return message, self.after(delta, steps, broadcast, client)

    def sent(self, end: Params, broadcast: SkippingBroadcast, client: Scalar, numbers: list[Any]) -> Any:
        """The message of a client that ended there, and the client update that the server makes of it."""
        delta = trees.sub(end, broadcast.params)
        return SkippingMessage(delta, *numbers), delta

    def after(
        self, delta: Params, steps: Scalar, broadcast: SkippingBroadcast, client: SkippingClient
    ) -> SkippingClient:
        change = self._change(delta, steps, broadcast.control, broadcast.round)
        return SkippingClient(trees.add(client.control, change))

    def _change(self, delta: Params, steps: Scalar, control: Params, round: Scalar) -> Params:
        """-(p / eta_l) D - p K c, of a client or in the mean."""
        per: Any = -self.p / rate_at(self.local.lr, round)
        return jax.tree.map(lambda d, c: (per * d - self.p * steps * c).astype(c.dtype), delta, control)

    def update(self, server: SkippingServer, message: SkippingMessage, cohort: Cohort) -> SkippingServer:
        # w to the mean of the clients' models, and c by |S|/N of the mean change
        change = self._change(message.delta, message.steps, server.control, cohort.round)
        control = trees.axpy(cohort.size / cohort.population, change, server.control)
        return SkippingServer(trees.add(server.params, message.delta), control)

    def export(self, server: SkippingServer) -> Params:
        return server.params


@by_name("Scaffnew")
def Scaffnew(client_lr: Rate = 0.1, *, p: Scalar = 0.1) -> ProbabilisticSkipping:
    """Scaffnew (Mishchenko et al. 2022): clients communicate after each local step with probability p alone.

        all:            K = number of tosses up to the first success, each of probability p
        client i in S:  y <- y - eta_l (g_i(y) - c_i + c), K times from w
                        c_i <- c_i - (p / eta_l) (y - w) - p K c
        server:         w <- mean over S of y,   c <- c + (1/N) sum over S of the changes of c_i

    The paper's h_i is c_i - c: if all clients take part, h_i <- h_i + (p / eta_l) (mean of y - y). It treats that case
    alone. Where clients are drawn, those that are not keep c_i, and c is the mean of all c_i, as in SCAFFOLD: nothing
    is proved of it with random K. With K = 1 / p in every round it would be SCAFFOLD. p = 1 is gradient descent along
    the mean of g_i - c_i + c.

    Up: y - w (d numbers), K and the mean local loss. Down: w and c (2 d; where all take part clients could compute c
    themselves). Kept: c_i on each client (d), c on the server; all start at 0. K follows from the number of the round:
    all clients have the same, but no more than the run's local steps, so give a run several times 1 / p of them.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin; the theory has 1 / L of L-smooth
            losses.
        p: in (0, 1]; 0.1 is where to begin. The theory has the root of mu / L, of mu-strongly convex losses.

    Returns:
        The method, whose local solver is `client.SGD`.

    Raises:
        InvalidInput: a number out of its range.

    >>> Scaffnew(0.1, p=0.2).p
    0.2

    Reference: Mishchenko, Malinovsky, Stich and Richtarik, "ProxSkip: Yes! Local Gradient Steps Provably Lead to
    Communication Acceleration! Finally!", ICML 2022, Algorithm 2.
    """
    return ProbabilisticSkipping(SGD(client_lr), p=p)


# FedComLoc (Yi et al. 2025): Scaffnew whose clients send compressed models.


@module
class CodedMessage:
    """The client's model as it is sent, K_i, and the mean local loss."""

    params: Any
    steps: Traced = reduced("average", MessageBounds(at_least=0))
    loss: Traced = reduced("mean")


@module
class CompressedSkipping(ProbabilisticSkipping):
    """FedComLoc with local SGD: see `FedComLoc`."""

    name: ClassVar[str] = "FedComLoc"

    compressor: Compressor
    _: KW_ONLY
    smallest: int = integer(default=256)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_compressor(self.name, self.compressor)

    def sent(self, end: Params, broadcast: SkippingBroadcast, client: Scalar, numbers: list[Any]) -> Any:
        given = {"smallest": self.smallest, "title": self.name}
        code = encode_leaves(self.compressor, end, round_key(broadcast.round), client, **given)
        return CodedMessage(code, *numbers), self._delta(code, broadcast)

    def receive(
        self, broadcast: SkippingBroadcast, message: CodedMessage, client: SkippingClient
    ) -> tuple[SkippingMessage, SkippingClient]:
        delta = self._delta(message.params, broadcast)
        after = self.after(delta, message.steps, broadcast, client)
        return SkippingMessage(delta, message.steps, message.loss), after

    def _delta(self, code: Any, broadcast: SkippingBroadcast) -> Params:
        return trees.sub(decode_leaves(code, round_key(broadcast.round)), broadcast.params)


@by_name("FedComLoc")
def FedComLoc(
    compressor: Compressor, client_lr: Rate = 0.1, *, p: Scalar = 0.1, smallest: int = 256
) -> CompressedSkipping:
    """FedComLoc (Yi et al. 2025): Scaffnew whose clients send compressed models C(y).

        all:            K = number of tosses up to the first success, each of probability p
        client i in S:  y <- y - eta_l (g_i(y) - c_i + c), K times from w;   y <- C(y)
                        c_i <- c_i - (p / eta_l) (y - w) - p K c
        server:         w <- mean over S of y,   c <- c + (1/N) sum over S of the changes of c_i

    It is the paper's FedComLoc-Com. Models are compressed, not updates: with TopK, clients send sparse models. What is
    lost is not sent later: it enters c_i, p / eta_l times as large. Without compression it is `Scaffnew`; see there of
    h_i = c_i - c, of clients that are drawn, and of K. The paper's other variants send as much as `Scaffnew` on the way
    up: one computes gradients at compressed models, one compresses the server's.

    Up: y (the code of d numbers), K and the mean local loss. Down: w and c (2 d). Kept: c_i on each client (d), c on
    the server; all start at 0.

    Args:
        compressor: of `fedsolve.compression`, such as `TopK(0.3)` or `QSGD(8)`: the paper takes these two kinds.
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        p: in (0, 1]; 0.1 is where to begin.
        smallest: leaves with fewer entries are sent as they are, such as biases.

    Returns:
        The method, whose local solver is `client.SGD`.

    Raises:
        InvalidInput: no compressor, a number out of its range. When a run begins: no leaf is large enough.

    Reference: Yi, Meinhardt, Condat and Richtarik, "FedComLoc: Communication-Efficient Distributed Training of Sparse
    and Quantized Models", TMLR 2025, Algorithm 1.
    """
    return CompressedSkipping(SGD(client_lr), compressor, p=p, smallest=smallest)
