"""Any method with compressed client updates, and memories that make up for what the compression loses."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort, client_update_of, name_of, round_of
from fedsolve.core.building import choice, class_by_name, integer, number
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.oracle import Oracle
from fedsolve.core.sampling import check_everyone
from fedsolve.core.types import Params, Scalar, module, static
from fedsolve.methods.compression.compressors import (
    EDEN,
    QSGD,
    Cast,
    Compressor,
    adds_codes,
    check_compressor,
    decode_leaves,
    decoded_squared_norm,
    encode_leaves,
    field_of,
    round_key,
    with_field,
    with_squared_norm,
)
from fedsolve.methods.wrappers.wrapper import Wrapper

_DOWN = 0xD0  # apart from the leaves of client updates


@module
class CompressedServer:
    """The inner server, g, the mean of all clients' g_i (shapes of the model), and W with the round due, or `()`."""

    inner: Any
    memory: Params
    down: Any = ()


@module
class CompressedClient:
    """The inner client, its memory e_i or g_i, v_i of `momentum` (shapes of the model, or `()`), and the server's W."""

    inner: Any
    memory: Params
    momentum: Params = ()
    down: Any = ()


@class_by_name("Compressed")
@module
class Compressed(Wrapper):
    """Any method whose client updates are compressed (Q), with a memory for biased compressors.

        none:      c_i = Q(D_i)
        feedback:  c_i = Q(D_i + beta e_i),   e_i <- D_i + beta e_i - c_i
        ef21:      c_i = Q(D_i - g_i),   g_i <- g_i + c_i
        server:    g <- g + (1/N) sum over S of c_i
        momentum:  v_i <- (1 - eta) v_i + eta D_i  takes the place of D_i in `ef21`

    `feedback` is of Seide et al. 2014 (beta = 1), `ef21` of Richtarik et al. 2021: there `inner` steps along g, the
    mean of all g_i, otherwise along the mean of c_i. With `momentum` it is EF21-SGDM (Fatkhullin et al. 2023).

    D_i is the client update, the field `delta` of the inner message. Other fields are sent as they are. Each leaf is
    compressed on its own. With a memory an unbiased compressor is divided by 1 + omega, which makes it a contraction
    (RandomK then sends entries as they are). Memories start at 0.

    Args:
        inner: the method whose updates are compressed, such as `FedAvg` or `FedAdam`.
        compressor: of `fedsolve.compression`, such as `TopK(0.01)` or `EDEN(bits=2)`.
        memory: None, `feedback` or `ef21`; kept by each client. A biased compressor needs one to converge.
        down: compressor of the model that is broadcast (`Cast`, `QSGD` or `EDEN`), or None. Clients then train from
            Q(w), and the server keeps w itself. Of any other, with `ef21`, Q(w - W) is sent and added to W on both
            sides (Gruntkowska et al. 2025): all take part in each round, and train from W; who misses one is left out.
        momentum: eta in (0, 1], with `ef21`; None for none. 0.1 is where to begin.
        norms: which |D_i|^2 FedExP, FedDuA and their like step by. `exact`: that of D_i, which clients send and a
            deployment cannot check. `decoded`: |Q(D_i)|^2 / (1 + omega) of an unbiased compressor without a memory,
            which the server computes.
        smallest: leaves with fewer entries are sent as they are, such as biases.
        decay: beta of `feedback`, in [0, 1]; 1 forgets nothing.
        named: what tables call it; None: Compressed, and what it is around.

    Raises:
        InvalidInput: no compressor, or without `ef21` one for `down` that leaves out entries; an inner method that does
            not send client updates, whose clients must follow what the server makes of their messages (SCAFFOLD), or
            with central differential privacy, whose bound compression could break; `ef21` around a method that weighs
            clients by examples or reduces them otherwise; `momentum` without `ef21`, `decay` without `feedback`;
            `norms='decoded'` with a memory or a biased compressor.
            When a run begins: no leaf is large enough.
    """

    title: ClassVar[str] = "Compressed"
    of_model_shape: ClassVar[bool] = True
    parts: ClassVar[tuple[type, ...]] = (CompressedServer, CompressedClient)

    inner: Algorithm
    compressor: Compressor
    _: KW_ONLY
    memory: Literal["feedback", "ef21"] | None = choice(None, "feedback", "ef21", default=None)
    down: Compressor | None = None
    smallest: int = integer(default=256)
    momentum: Scalar | None = number(default=None, above=0, at_most=1, later=True)
    norms: Literal["exact", "decoded"] = choice("exact", "decoded", default="exact", later=True)
    decay: Scalar | None = number(default=None, at_least=0, at_most=1, later=True)
    named: str | None = static(default=None, later=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_compressor("Compressed", self.compressor)
        if self._sends_changes and not (isinstance(self.down, Compressor) and self.memory == "ef21"):
            raise InvalidInput(
                f"down = {shown(self.down)} must keep every entry, as EDEN, or has memory='ef21'"
            )
        if self.momentum is not None and self.memory != "ef21":
            raise InvalidInput(f"momentum = {self.momentum!r} needs memory='ef21'")
        if self.decay is not None and self.memory != "feedback":
            raise InvalidInput(f"decay = {self.decay!r} needs memory='feedback'")
        if self.norms == "decoded" and (self.memory is not None or not self.compressor.is_unbiased):
            raise InvalidInput("norms = 'decoded' needs an unbiased compressor and memory=None")
        name, traits = name_of(self.inner), self.inner.traits
        if isinstance(self.inner, Compressed):
            raise InvalidInput("Compressed around Compressed: compress once")
        if traits.only_mean:
            raise InvalidInput(f"Compressed cannot wrap {name}: {traits.only_mean}, and a code is not exact")
        if traits.privacy in ("central", "distributed"):
            raise InvalidInput(
                f"Compressed cannot wrap {name}: what is decoded may exceed its bound on the norm of updates"
            )
        if self.memory == "ef21" and (traits.reduction is not None or traits.weighting != "uniform"):
            raise InvalidInput(
                f"memory 'ef21' needs plain means over clients, and {name} has "
                + ("another reduction" if traits.reduction is not None else "weighting='examples'")
                + ": use weighting='uniform', or memory='feedback'"
            )

    @property
    def name(self) -> str:
        """The name given, or the title and the inner method's name."""
        return self.named or super().name

    @property
    def only_mean(self) -> str:
        """Why no other reduction will do."""
        return "g must stay the mean of all clients' g_i" if self.memory == "ef21" else ""

    def init(self, params: Params) -> Any:
        inner, down = self.inner.init(params), (params, jnp.int32(0)) if self._sends_changes else ()
        return CompressedServer(inner, trees.zeros_like(params), down) if self.memory == "ef21" else inner

    def check(self, sampling: Any, population: int) -> None:
        if self._sends_changes:
            check_everyone(self.name, sampling, population, "down=None")
        super().check(sampling, population)

    def broadcast(self, server: Any, cohort: Cohort) -> Any:
        # the inner broadcast, its model compressed by `down`
        sent = super().broadcast(server, cohort)
        if self.down is None:
            return sent
        # a key of its own: the way down must not share randomness with the codes that come up
        common = jax.random.fold_in(round_key(cohort.round), _DOWN)
        wanted, changes = self.inner.model(sent), self._sends_changes
        wanted = trees.sub(wanted, server.down[0]) if changes else wanted
        return with_field(sent, "params", self._encode(self.down, wanted, common, 0, changes))

    def model(self, broadcast: Any) -> Params:
        return self.inner.model(self._received(broadcast))

    def enrol(self, broadcast: Any, params: Params) -> Any:
        down = (params, round_of(broadcast)) if self._sends_changes else ()
        broadcast = with_field(broadcast, "params", params) if down else self._received(broadcast)
        if self.memory is None:
            return self.inner.enrol(broadcast, params)
        zeros = trees.zeros_like(self.inner.model(broadcast))
        momentum = () if self.momentum is None else zeros
        return CompressedClient(self.inner.init_client(broadcast), zeros, momentum, down)

    def init_client(self, broadcast: Any) -> Any:
        if self.memory is None:
            return self.inner.init_client(self._received(broadcast))
        return self.enrol(broadcast, self.model(broadcast))

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        broadcast = self._received(broadcast, client)
        message, inner = self.inner.train(broadcast, self.inner_part(client), oracle)
        update, common = client_update_of(message), round_key(round_of(broadcast))
        if self.memory is None:
            sent = self._encode(self.compressor, update, common, oracle.client)
            if self.norms == "decoded":
                message = with_squared_norm(message, ())
            return with_field(message, "delta", sent), inner
        v = client.momentum
        if self.momentum is not None:
            # EF21 with momentum: v_i <- v_i + eta (D_i - v_i), and v_i is compressed in place of D_i
            v = update = trees.axpy(self.momentum, trees.sub(update, v), v)
        feeds_back = self.memory == "feedback"
        # feedback adds what was lost so far; ef21 sends the difference from what the server has
        kept = client.memory if self.decay is None else trees.scale(self.decay, client.memory)
        wanted = trees.add(update, kept) if feeds_back else trees.sub(update, kept)
        sent = self._encode(self.compressor, wanted, common, oracle.client, shrinks=True)
        decoded = decode_leaves(sent, common)
        # feedback: the new loss; ef21: g_i, as the server knows it
        memory = trees.sub(wanted, decoded) if feeds_back else trees.add(client.memory, decoded)
        down = client.down and (field_of(broadcast, "params"), client.down[1] + 1)
        return with_field(message, "delta", sent), CompressedClient(inner, memory, v, down)

    def receive(self, broadcast: Any, message: Any, client: Any) -> tuple[Any, Any]:
        # decode the client update, unless the sum of codes is enough: then `update` does
        if self._adds_codes:
            return message, client
        broadcast, update = self._received(broadcast, client), client_update_of(message)
        common = round_key(round_of(broadcast))
        plain = with_field(message, "delta", decode_leaves(update, common))
        if self.norms == "decoded":
            plain = with_squared_norm(plain, decoded_squared_norm(update, common))
        received, followed = self.inner.receive(broadcast, plain, self.inner_part(client))
        return received, self._renewed(client, followed)

    def update(self, server: Any, message: Any, cohort: Cohort) -> Any:
        # the inner update, along the mean of what was decoded, or with `ef21` along g
        if self._adds_codes:
            update = decode_leaves(client_update_of(message), round_key(cohort.round))
            message = with_field(message, "delta", update)
        if self.memory != "ef21":
            return self.inner.update(server, message, cohort)
        share = cohort.size / cohort.population
        # g <- g + (|S|/N) mean of the differences: the mean of all clients' g_i
        memory, down = trees.axpy(share, client_update_of(message), server.memory), server.down
        if down:
            sent = self._received(self.broadcast(server, cohort), server)
            down = (field_of(sent, "params"), down[1] + 1)
        inner = self.inner.update(server.inner, with_field(message, "delta", memory), cohort)
        return CompressedServer(inner, memory, down)

    @property
    def _adds_codes(self) -> bool:
        """Whether the server decodes the mean of the codes, and no single one."""
        return self.norms == "exact" and adds_codes(self.compressor, self.inner)

    @property
    def _sends_changes(self) -> bool:
        """Whether the way down has a memory too."""
        return self.down is not None and not isinstance(self.down, Cast | QSGD | EDEN)

    def _received(self, broadcast: Any, state: Any = None) -> Any:
        """The inner broadcast as who has this state decodes it."""
        if self.down is None:
            return broadcast
        common = jax.random.fold_in(round_key(round_of(broadcast)), _DOWN)
        params = decode_leaves(field_of(broadcast, "params"), common)
        if self._sends_changes:
            if state is None:
                raise InvalidInput(
                    f"{self.name} sends changes of the model, and a wrapper needs it: put it inside"
                )
            held, due = state.down
            # without what was sent in a round that it missed a client has no model: it is left out of the mean
            known = trees.where(round_of(broadcast) == due, held, trees.scale(jnp.nan, held))
            params = trees.add(known, params)
        return with_field(broadcast, "params", params)

    def _encode(
        self, compressor: Compressor, update: Params, common: Any, client: Any, shrinks: bool = False
    ) -> Any:
        """An update or a model with codes in place of its large leaves."""
        given = {"smallest": self.smallest, "title": self.name, "shrinks": shrinks}
        return encode_leaves(compressor, update, common, client, **given)
