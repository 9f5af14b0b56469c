"""FedComLoc (Yi et al. 2024): Scaffnew with compressed models, sent by the clients or by the server."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.building.build_record import by_name
from fedsolve.core.checks import check_integer, is_one_of
from fedsolve.core.errors import InvalidInput
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Claim, Params, Scalar, Traced, module, reduced, replace, static
from fedsolve.methods.client.sgd import SGD
from fedsolve.methods.compression.compressor import Compressor
from fedsolve.methods.compression.encoding import check_compressor, decode_leaves, encode_leaves, round_key
from fedsolve.methods.skipping.scaffnew import (
    ProbabilisticSkipping,
    SkippingBroadcast,
    SkippingClient,
    SkippingMessage,
    SkippingServer,
)

_DOWN = 0xD1  # apart from the leaves of clients' models


@module
class CodedModel:
    """A model as the server sends it, and from which round its randomness follows."""

    code: Any
    made: Traced


@module
class CodedMessage:
    """The client's model as it is sent, K_i, and the mean local loss."""

    params: Any
    steps: Traced = reduced("average", Claim(at_least=0))
    loss: Traced = reduced("mean")


@module
class CompressedSkipping(ProbabilisticSkipping):
    """FedComLoc with local SGD: see `FedComLoc`.

    Args:
        local: the clients' `client.SGD`, without momentum.
        compressor: of `fedsolve.compression`.
        p: probability that a local step is the last, in (0, 1].
        variant: `com` compresses what clients send, `global` what the server sends.
        smallest: leaves with fewer entries are sent as they are.

    Raises:
        InvalidInput: as `FedComLoc`.
    """

    name: ClassVar[str] = "FedComLoc"

    compressor: Compressor
    _: KW_ONLY
    variant: Literal["com", "global"] = static(default="com")
    smallest: int = static(default=256)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_compressor(self.name, self.compressor)
        if not is_one_of(self.variant, ("com", "global")):
            raise InvalidInput(f"variant = {self.variant!r} must be 'com' or 'global'")
        check_integer("smallest", self.smallest, 1)

    def _encode(self, params: Params, common: Any, client: Scalar) -> Any:
        """A model with codes in place of its large leaves."""
        return encode_leaves(self.compressor, params, common, client, smallest=self.smallest, title=self.name)

    def init(self, params: Params) -> SkippingServer:
        """w (with `global` as clients decode it), and c = 0."""
        server = super().init(params)
        return server if self.variant == "com" else self._sent(params, server, 0)

    def broadcast(self, server: SkippingServer, cohort: Cohort) -> SkippingBroadcast:
        """w or its code, and c."""
        sent = super().broadcast(server, cohort)
        return sent if self.variant == "com" else replace(sent, params=server.coded)

    def model(self, broadcast: SkippingBroadcast) -> Params:
        """w, as clients decode it."""
        sent = broadcast.params
        return decode_leaves(sent.code, _down(sent.made)) if isinstance(sent, CodedModel) else sent

    def sent(self, end: Params, broadcast: SkippingBroadcast, client: Scalar, numbers: list[Any]) -> Any:
        """The code of a client's model (with `global` its update), and the client update that it stands for."""
        if self.variant == "global":
            return super().sent(end, broadcast, client, numbers)
        message = CodedMessage(self._encode(end, round_key(broadcast.round), client), *numbers)
        return message, self._delta(message, broadcast)

    def receive(
        self, broadcast: SkippingBroadcast, message: Any, client: SkippingClient
    ) -> tuple[Any, SkippingClient]:
        """Decode a client's model to its update."""
        if self.variant == "global":
            return message, client
        delta = self._delta(message, broadcast)
        after = self.after(delta, message.steps, broadcast, client)
        return SkippingMessage(delta, message.steps, message.loss), after

    def _delta(self, message: CodedMessage, broadcast: SkippingBroadcast) -> Params:
        """The client update that a coded model stands for."""
        return trees.sub(decode_leaves(message.params, round_key(broadcast.round)), self.model(broadcast))

    def arrived(self, mean: Params, server: SkippingServer, cohort: Cohort) -> SkippingServer:
        """The server with the clients' mean model, with `global` as it is sent."""
        if self.variant == "com":
            return super().arrived(mean, server, cohort)
        return self._sent(mean, server, cohort.round + 1)

    def _sent(self, params: Params, server: SkippingServer, made: Any) -> SkippingServer:
        """The server with the code of a model, and with what clients decode."""
        made = jnp.asarray(made, jnp.int32)
        code = self._encode(params, _down(made), 0)
        return SkippingServer(decode_leaves(code, _down(made)), server.control, CodedModel(code, made))


def _down(made: Scalar) -> Any:
    """Randomness of a broadcast that everybody knows."""
    return jax.random.fold_in(round_key(made), _DOWN)


@by_name("FedComLoc")
def FedComLoc(
    compressor: Compressor,
    client_lr: Rate = 0.1,
    *,
    p: Scalar = 0.1,
    variant: Literal["com", "global"] = "com",
    smallest: int = 256,
) -> CompressedSkipping:
    """FedComLoc (Yi et al. 2024): Scaffnew with compressed models (C).

        all:            K = number of tosses up to the first success, each of probability p
        client i in S:  y <- y - eta_l (g_i(y) - c_i + c), K times from w;   `com`: y <- C(y)
                        c_i <- c_i - (p / eta_l) (y - w) - p K c
        server:         x = mean over S of y,   `global`: x <- C(x)
                        c <- c - (|S|/N) ((p / eta_l) (x - w) + p K c),   w <- x

    Models are compressed, not updates: with TopK clients or the server send sparse models, and train from such. The
    paper's third variant computes gradients at compressed models, and sends as much as `Scaffnew`: it is not here.
    Without compression it is `Scaffnew`; see there of h_i = c_i - c, of clients that are drawn, and of K.

    Up: y (`com`: its code), K and the mean local loss. Down: w (`global`: its code) and c. Kept: c_i on each client,
    c on the server; all start at 0. With `global` the initial model is compressed as well.

    Args:
        compressor: of `fedsolve.compression`, such as `TopK(0.3)` or `QSGD(8)`: those of the paper.
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        p: in (0, 1]; 0.1 is where to begin.
        variant: `com` or `global` (FedComLoc-Com, FedComLoc-Global).
        smallest: leaves with fewer entries are sent as they are, such as biases.

    Returns:
        The method, whose local solver is `client.SGD`.

    Raises:
        InvalidInput: no compressor, a number out of its range, an unknown variant. When a run begins: no leaf is large
            enough.

    Reference: Yi, Meinhardt, Condat and Richtarik, "FedComLoc: Communication-Efficient Distributed Training of Sparse
    and Quantized Models", TMLR 2025, Algorithm 1.
    """
    return CompressedSkipping(SGD(client_lr), compressor, p=p, variant=variant, smallest=smallest)
