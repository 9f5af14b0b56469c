"""FedComLoc (Yi et al. 2025): Scaffnew whose clients send compressed models."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar

from fedsolve.core import trees
from fedsolve.core.building import by_name
from fedsolve.core.errors import check_integer
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Claim, Params, Scalar, Traced, module, reduced, static
from fedsolve.methods.client.sgd import SGD
from fedsolve.methods.compression.compressor import Compressor
from fedsolve.methods.compression.encoding import check_compressor, decode_leaves, encode_leaves, round_key
from fedsolve.methods.skipping.scaffnew import (
    ProbabilisticSkipping,
    SkippingBroadcast,
    SkippingClient,
    SkippingMessage,
)


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
        smallest: leaves with fewer entries are sent as they are.

    Raises:
        InvalidInput: as `FedComLoc`.
    """

    name: ClassVar[str] = "FedComLoc"

    compressor: Compressor
    _: KW_ONLY
    smallest: int = static(default=256)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_compressor(self.name, self.compressor)
        check_integer("smallest", self.smallest, 1, bits=31)

    def sent(self, end: Params, broadcast: SkippingBroadcast, client: Scalar, numbers: list[Any]) -> Any:
        """The code of a client's model, and the client update that it stands for."""
        given = {"smallest": self.smallest, "title": self.name}
        code = encode_leaves(self.compressor, end, round_key(broadcast.round), client, **given)
        return CodedMessage(code, *numbers), self._delta(code, broadcast)

    def receive(
        self, broadcast: SkippingBroadcast, message: CodedMessage, client: SkippingClient
    ) -> tuple[SkippingMessage, SkippingClient]:
        """Decode a client's model to its update."""
        delta = self._delta(message.params, broadcast)
        after = self.after(delta, message.steps, broadcast, client)
        return SkippingMessage(delta, message.steps, message.loss), after

    def _delta(self, code: Any, broadcast: SkippingBroadcast) -> Params:
        """The client update that a coded model stands for."""
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
