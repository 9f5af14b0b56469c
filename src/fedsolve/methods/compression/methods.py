"""Control variates that are sent compressed: what SCALLION and SCAFCOM (Huang et al. 2024) have in common."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal, Unpack

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort, client_update_of, round_of
from fedsolve.core.building import by_name, class_by_name, integer, number
from fedsolve.core.errors import InvalidInput
from fedsolve.core.oracle import CorrectedOracle, Oracle
from fedsolve.core.schedules import Rate
from fedsolve.core.types import MessageBounds, Params, Scalar, Traced, Weighting, module, reduced, replace
from fedsolve.methods.client.sgd import ClientOptions, Gradient
from fedsolve.methods.compression.compressed import Compressed
from fedsolve.methods.compression.compressors import (
    EDEN,
    Chain,
    Compressor,
    TopK,
    adds_codes,
    check_compressor,
    decode_leaves,
    encode_leaves,
    round_key,
    with_field,
)
from fedsolve.methods.server.diloco import DiLoCo
from fedsolve.methods.server.fedopt import FedOpt
from fedsolve.methods.server.muon import ServerLMO
from fedsolve.methods.server.sgd import FedAvg
from fedsolve.methods.wrappers.control_variates import ControlVariates, ScaffoldBroadcast, ScaffoldServer
from fedsolve.methods.wrappers.wrapper import Wrapper


@module
class ControlledClient:
    """The inner client, c_i, and what else it keeps for the next change of c_i (shapes of the model, or `()`)."""

    inner: Any
    control: Params
    memory: Params = ()


@module
class ControlledMessage:
    """The inner message with q_i, the compressed change of c_i, in place of its client update; and K eta_l."""

    inner: Any
    rate_sum: Traced = reduced("average", MessageBounds(at_least=0))


class Controlled(Wrapper):
    """A method with control variates whose clients send nothing but their compressed changes.

        client:  h_i = c_i - c - D_i / (K eta_l), the mean of its own gradients along its steps
                 q_i = Q(a change of c_i towards h_i),   c_i <- c_i + q_i
        server:  q = mean over S of q_i,   D = -K eta_l (c + q),   inner update along D,   c <- c + (|S|/N) q

    Where clients take different numbers of steps, the server's K eta_l is their mean.
    """

    parts: ClassVar[tuple[type, ...]] = (
        ScaffoldServer,
        ScaffoldBroadcast,
        ControlledClient,
        ControlledMessage,
    )
    weighting: ClassVar[Weighting] = "uniform"
    only_mean: ClassVar[str] = "c must stay the mean of all clients' c_i"
    of_model_shape: ClassVar[bool] = True
    shrinks: ClassVar[bool]
    inner: Algorithm
    compressor: Compressor
    smallest: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_compressor(self.title, self.compressor)
        ControlVariates(self.inner)  # refuses what control variates cannot go around

    @abstractmethod
    def change(self, own: Params, client: ControlledClient) -> tuple[Params, Params]:
        """The change of c_i that is compressed, and the client's next memory, from h_i."""

    def init(self, params: Params) -> ScaffoldServer:
        return ScaffoldServer(self.inner.init(params), trees.zeros_like(params))

    def broadcast(self, server: ScaffoldServer, cohort: Cohort) -> ScaffoldBroadcast:
        return ScaffoldBroadcast(self.inner.broadcast(server.inner, cohort), server.control)

    def init_client(self, broadcast: ScaffoldBroadcast) -> ControlledClient:
        # the inner client's state, and c_i = 0
        return ControlledClient(self.inner.init_client(broadcast.inner), trees.zeros_like(broadcast.control))

    def train(
        self, broadcast: ScaffoldBroadcast, client: ControlledClient, oracle: Oracle
    ) -> tuple[ControlledMessage, ControlledClient]:
        # run the inner local work with corrected gradients, and compress the change of c_i
        correction = trees.sub(broadcast.control, client.control)
        corrected = CorrectedOracle(oracle, correction, self.model(broadcast))
        message, inner = self.inner.train(broadcast.inner, client.inner, corrected)
        round = round_of(broadcast)
        rate_sum: Any = self.local.rate_sum(oracle.steps, round)
        along = jax.tree.map(lambda d: (-d / rate_sum).astype(d.dtype), client_update_of(message))
        wanted, memory = self.change(trees.sub(along, correction), client)
        given = {"smallest": self.smallest, "title": self.name, "shrinks": self.shrinks}
        sent = encode_leaves(self.compressor, wanted, round_key(round), oracle.client, **given)
        control = trees.add(client.control, decode_leaves(sent, round_key(round)))
        rate_sum = jnp.asarray(rate_sum, trees.dtype_of(control))
        return ControlledMessage(with_field(message, "delta", sent), rate_sum), ControlledClient(
            inner, control, memory
        )

    def receive(
        self, broadcast: ScaffoldBroadcast, message: ControlledMessage, client: ControlledClient
    ) -> tuple[ControlledMessage, ControlledClient]:
        # decode the change of c_i, unless the sum of codes is enough: then `update` does
        if adds_codes(self.compressor, self.inner):
            return message, client
        change = decode_leaves(client_update_of(message), round_key(round_of(broadcast)))
        plain = with_field(message.inner, "delta", change)
        received, followed = self.inner.receive(broadcast.inner, plain, client.inner)
        control = trees.add(client.control, change)
        return ControlledMessage(received, message.rate_sum), ControlledClient(
            followed, control, client.memory
        )

    def update(self, server: ScaffoldServer, message: ControlledMessage, cohort: Cohort) -> ScaffoldServer:
        # apply the inner update along -K eta_l (c + q), and move c by |S|/N of q
        change = decode_leaves(client_update_of(message), round_key(cohort.round))
        along = trees.scale(-message.rate_sum, trees.add(server.control, change))
        inner = self.inner.update(server.inner, with_field(message.inner, "delta", along), cohort)
        return ScaffoldServer(inner, trees.axpy(cohort.size / cohort.population, change, server.control))


# SCAFCOM (Huang et al. 2024): control variates with momentum that are sent through any compressor.


@class_by_name("SCAFCOM")
@module
class Scafcom(Controlled):
    """SCAFCOM around any method with local SGD: SCAFFOLD with momentum, and one compressed vector up.

        client:  y <- y - eta_l (g_i(y) - c_i + c), K times from w;   h_i = c_i - c + (w - y) / (K eta_l)
                 v_i <- (1 - beta) v_i + beta h_i,   q_i = Q(v_i - c_i),   c_i <- c_i + q_i
        server:  q = mean over S of q_i,   inner update along  -K eta_l (c + q),   c <- c + (|S|/N) q

    Up: q_i and K eta_l. Down: the model and c. Kept: c_i and v_i; all start at 0. Without compression and with
    beta = 1 it is SCAFFOLD. An unbiased compressor is divided by 1 + omega, which makes it a contraction. All clients
    count alike; where they take different numbers of steps, the server's K eta_l is their mean.

    Args:
        inner: the method whose local steps are corrected, such as `FedAvg` or `FedAdam`.
        compressor: of `fedsolve.compression`, such as `TopK(0.01)` or `Sign()`.
        beta: in (0, 1], how far v_i moves. 0.2 is where to begin; it is not the paper's.
        smallest: leaves with fewer entries are sent as they are, such as biases.

    Raises:
        InvalidInput: no compressor, a number out of its range; an inner method that control variates cannot go around
            (`ControlVariates`, option II). When a run begins: no leaf is large enough.
    """

    title: ClassVar[str] = "SCAFCOM"
    shrinks: ClassVar[bool] = True

    inner: Algorithm
    compressor: Compressor
    _: KW_ONLY
    beta: Scalar = number(default=0.2, above=0, at_most=1)
    smallest: int = integer(default=256)

    def init_client(self, broadcast: ScaffoldBroadcast) -> ControlledClient:
        client = super().init_client(broadcast)
        return replace(client, memory=client.control)

    def change(self, own: Params, client: ControlledClient) -> tuple[Params, Params]:
        v = jax.tree.map(lambda v, h: (v + self.beta * (h - v)).astype(v.dtype), client.memory, own)
        return trees.sub(v, client.control), v


@by_name("SCAFCOM")
def SCAFCOM(
    compressor: Compressor,
    client_lr: Rate = 0.1,
    *,
    beta: Scalar = 0.2,
    server_lr: Rate = 1.0,
    smallest: int = 256,
    **client: Unpack[ClientOptions],
) -> Scafcom:
    """SCAFCOM (Huang et al. 2024): SCAFFOLD with momentum and one vector up, through any compressor Q.

        client:  y <- y - eta_l (g_i(y) - c_i + c), K times from w
                 v_i <- (1 - beta) v_i + beta ((w - y) / (K eta_l) + c_i - c)
                 q_i = Q(v_i - c_i),   c_i <- c_i + q_i
        server:  q = mean over S of q_i,   w <- w - eta_g K eta_l (c + q),   c <- c + (1/N) sum over S of q_i

    Up: q_i (the code of d numbers), K eta_l and the mean local loss. Down: w and c (2 d). Kept: c_i and v_i on each
    client (2 d).

    Args:
        compressor: of `fedsolve.compression`.
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        beta: in (0, 1]. 0.2 is where to begin; it is not the paper's.
        server_lr: eta_g > 0, a number or a schedule by round.
        smallest: leaves with fewer entries are sent as they are.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        `Scafcom(FedAvg(...), compressor, beta=beta)`.

    Raises:
        InvalidInput: a number out of its range.

    Reference: Huang, Li and Li, "Stochastic Controlled Averaging for Federated Learning with Communication
    Compression", ICLR 2024.
    """
    inner = FedAvg(client_lr, server_lr=server_lr, weighting="uniform", **client)
    return Scafcom(inner, compressor, beta=beta, smallest=smallest)


# SCALLION (Huang et al. 2024): control variates that are sent through an unbiased compressor.


@class_by_name("SCALLION")
@module
class Scallion(Controlled):
    """SCALLION around any method with local SGD: SCAFFOLD with one compressed vector up.

        client:  y <- y - eta_l (g_i(y) - c_i + c), K times from w;   h_i = c_i - c + (w - y) / (K eta_l)
                 q_i = Q(alpha (h_i - c_i)),   c_i <- c_i + q_i
        server:  q = mean over S of q_i,   inner update along  -K eta_l (c + q),   c <- c + (|S|/N) q

    Up: q_i and K eta_l. Down: the model and c. Kept: c_i; c and c_i start at 0. Without compression and with alpha = 1
    it is SCAFFOLD. All clients count alike; where they take different numbers of steps, the server's K eta_l is their
    mean. A norm that `inner` steps by is that of y - w.

    Args:
        inner: the method whose local steps are corrected, such as `FedAvg` or `FedAdam`.
        compressor: an unbiased one of `fedsolve.compression`, such as `EDEN(bits=1)` or `RandomK(0.1)`.
        alpha: in (0, 1], how far c_i moves. None: 1 / (1 + omega), with which alpha Q is a contraction.
        smallest: leaves with fewer entries are sent as they are, such as biases.

    Raises:
        InvalidInput: no compressor or a biased one, a number out of its range; an inner method that control variates
            cannot go around (`ControlVariates`, option II). When a run begins: no leaf is large enough.
    """

    title: ClassVar[str] = "SCALLION"

    inner: Algorithm
    compressor: Compressor
    _: KW_ONLY
    alpha: Scalar | None = number(default=None, above=0, at_most=1)
    smallest: int = integer(default=256)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.compressor.is_unbiased:
            raise InvalidInput(
                f"SCALLION needs an unbiased compressor such as fs.compression.EDEN(1), not {self.compressor!r}: "
                "SCAFCOM takes this one"
            )

    @property
    def shrinks(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether codes are divided by 1 + omega."""
        return self.alpha is None

    def change(self, own: Params, client: ControlledClient) -> tuple[Params, Params]:
        towards = trees.sub(own, client.control)
        return (towards if self.alpha is None else trees.scale(self.alpha, towards)), ()


@by_name("SCALLION")
def SCALLION(
    compressor: Compressor,
    client_lr: Rate = 0.1,
    *,
    alpha: Scalar | None = None,
    server_lr: Rate = 1.0,
    smallest: int = 256,
    **client: Unpack[ClientOptions],
) -> Scallion:
    """SCALLION (Huang et al. 2024): SCAFFOLD with one vector up, through an unbiased compressor Q.

        client:  y <- y - eta_l (g_i(y) - c_i + c), K times from w
                 q_i = Q(alpha ((w - y) / (K eta_l) - c)),   c_i <- c_i + q_i
        server:  q = mean over S of q_i,   w <- w - eta_g K eta_l (c + q),   c <- c + (1/N) sum over S of q_i

    Up: q_i (the code of d numbers), K eta_l and the mean local loss. Down: w and c (2 d). Kept: c_i on each client (d).

    Args:
        compressor: an unbiased one of `fedsolve.compression`.
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        alpha: in (0, 1]; None is 1 / (1 + omega) of the compressor.
        server_lr: eta_g > 0, a number or a schedule by round.
        smallest: leaves with fewer entries are sent as they are.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        `Scallion(FedAvg(...), compressor, alpha=alpha)`.

    Raises:
        InvalidInput: a biased compressor, a number out of its range.

    Reference: Huang, Li and Li, "Stochastic Controlled Averaging for Federated Learning with Communication
    Compression", ICLR 2024.
    """
    inner = FedAvg(client_lr, server_lr=server_lr, weighting="uniform", **client)
    return Scallion(inner, compressor, alpha=alpha, smallest=smallest)


@by_name("SparseLoCo")
def SparseLoCo(
    client_lr: Rate = 4e-4,
    *,
    weight_decay: Scalar = 0.1,
    share: float = 64 / 4096,
    block: int | None = 4096,
    bits: int | None = 2,
    decay: Scalar = 0.95,
    server_lr: Rate = 1.0,
    smallest: int = 256,
) -> Compressed:
    """SparseLoCo (Sarfi et al. 2025): DiLoCo whose clients send the largest entries in few bits, with feedback.

        client i in S:  H steps of AdamW from w, as in `DiLoCo`;   e_i <- beta e_i + (y - w)
                        q_i = Q(TopK of each block of e_i),   e_i <- e_i - q_i
        server:         w <- w + alpha / |S| sum over S of q_i

    Outer momentum is replaced by the memories e_i. H is the run's local work: `local_steps=30`. The paper's 2-bit
    quantiser could not be read: Q is `compression.EDEN`. Up: of a block of 4,096 entries 64, with 12 bits for a place
    and 2 for a value, and the mean local loss. Down: w. Kept: AdamW's moments and count and e_i on each client (3 d
    numbers and a count); those of a client that is absent stay as they are.

    Args:
        client_lr: eta_l > 0 of AdamW, a number or a schedule by round.
        weight_decay: of AdamW, at least 0; decoupled.
        share: of a block's entries that is sent, in (0, 1] (64 of 4,096; the paper has 1 to 3 %).
        block: entries of a block, at least 1; None for a whole leaf.
        bits: of a value, 1 to 8; None sends values as they are.
        decay: beta in [0, 1] (0.95).
        server_lr: alpha > 0, a number or a schedule by round (1).
        smallest: leaves with fewer entries are sent as they are.

    Returns:
        A `Compressed(DiLoCo(..., momentum=0), Chain(TopK(share, block), EDEN(bits)), memory="feedback", decay=decay)`.

    Raises:
        InvalidInput: a number out of its range. When a run begins: no leaf is large enough.

    >>> SparseLoCo().compressor
    Chain(first=TopK(share=0.015625, block=4096), second=EDEN(bits=2))

    Reference: Sarfi, Thérien, Lidin and Belilovsky, "Communication Efficient LLM Pre-training with SparseLoCo",
    arXiv:2508.15706, 2025; update and constants as two public codes have them.
    """
    inner = DiLoCo(client_lr, weight_decay=weight_decay, server_lr=server_lr, momentum=0.0)
    largest = TopK(share, block)
    code = largest if bits is None else Chain(largest, EDEN(bits))
    return Compressed(inner, code, memory="feedback", decay=decay, smallest=smallest, named="SparseLoCo")


@by_name("EF21Muon")
def EF21Muon(
    compressor: Compressor,
    server_lr: Rate = 0.02,
    *,
    down: Compressor | None = None,
    momentum: Scalar = 0.1,
    ball: Literal["spectral", "euclidean"] = "spectral",
    vector_scale: Scalar = 0.1,
    newton_schulz: int = 5,
    vectors: str | tuple[str, ...] = (),
    smallest: int = 256,
) -> Compressed:
    """EF21-Muon (Gruntkowska et al. 2025): Muon on the server, gradients and model compressed with EF21's memories.

        server:  S = Q(w - W),   W <- W + S on the server and on all clients
        client:  M_i <- (1 - beta) M_i + beta g_i(W),   R_i = Q_i(M_i - G_i),   G_i <- G_i + R_i
        server:  G <- G + 1/N sum_i R_i,   w <- w + eta_g LMO(G)    (a linear minimisation oracle of a unit ball)

    g_i is the mean gradient of the client's minibatches: `local_steps=1` is the paper's. The oracle is that of
    `server.LMO`: -s polar(G) of a matrix, -vector_scale sign(G) of another leaf, or -G / |G| of the whole model,
    which is EF21-SGDM with normalised steps. All memories start at 0, and W at w.

    Up: R_i (a code) and the mean loss. Down: S (a code), or w. Kept: M_i, G_i, W on each client, G and W on the server.

    Args:
        compressor: Q_i, such as `TopK(0.1)` or `PowerSGD(4)`.
        server_lr: eta_g > 0, the length of a step in the norm of the ball, a number or a schedule by round.
        down: Q such as `TopK(0.1)`: all take part in each round. None sends w; `Cast`, `QSGD` and `EDEN` send Q(w).
        momentum: beta in (0, 1]; 0.1 is where to begin.
        ball: `spectral`, a ball for each leaf, or `euclidean`, one for the model.
        vector_scale: radius of the balls of leaves that are no matrices, in units of eta_g, > 0.
        newton_schulz: iterations, 5 (Muon's); 0 is exact.
        vectors: further leaves that count as no matrices, by patterns of their paths, such as embeddings.
        smallest: leaves with fewer entries are sent as they are.

    Returns:
        A `Compressed(FedOpt(client.Gradient(), server.LMO(...)), compressor, memory="ef21", ...)`.

    Raises:
        InvalidInput: a number out of its range, no compressor. When a run begins: no large leaf.

    Reference: Gruntkowska, Gaponov, Tovmasyan and Richtarik, "Error Feedback for Muon and Friends", ICLR 2026
    (arXiv:2510.00643), as two notes on it have the update.
    """
    rule = ServerLMO(
        server_lr, ball=ball, vector_scale=vector_scale, newton_schulz=newton_schulz, vectors=vectors
    )
    inner, given = FedOpt(Gradient(), rule, weighting="uniform"), {"momentum": momentum, "smallest": smallest}
    return Compressed(inner, compressor, memory="ef21", down=down, named="EF21Muon", **given)
