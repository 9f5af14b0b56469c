"""Any method with compressed client updates, and memories that make up for what the compression loses."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort, client_update_of, name_of, round_of
from fedsolve.core.building.build_record import class_by_name
from fedsolve.core.checks import check_integer, is_one_of
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Scalar, module, replace, static
from fedsolve.methods.compression.compressor import Compressor, Encoded
from fedsolve.methods.wrappers.wrapper import Wrapper

_SEED = 0xC0DE  # of random numbers that nobody need hide: the same in simulation and deployment


@module
class CompressedServer:
    """The inner server and g, the mean of all clients' g_i (shapes of the model)."""

    inner: Any
    memory: Params


@module
class CompressedClient:
    """The inner client and its memory, e_i or g_i (shapes of the model)."""

    inner: Any
    memory: Params


@class_by_name("Compressed")
@module
class Compressed(Wrapper):
    """Any method whose client updates are compressed (Q), with a memory for biased compressors.

        none:      c_i = Q(D_i)
        feedback:  c_i = Q(D_i + e_i),   e_i <- D_i + e_i - c_i
        ef21:      c_i = Q(D_i - g_i),   g_i <- g_i + c_i
        server:    g <- g + (1/N) sum over S of c_i

    `feedback` is of Seide et al. 2014, `ef21` of Richtarik et al. 2021: there `inner` steps along g, the mean of all
    g_i, otherwise along the mean of c_i.

    D_i is the client update, the field `delta` of the inner message. Other fields are sent as they are: a norm that
    FedExP or FedDuA steps by is that of D_i itself, which a deployment cannot check. Each leaf is compressed on its
    own. With a memory an unbiased compressor is divided by 1 + omega, which makes it a contraction (RandomK then sends
    entries as they are). Memories start at 0.

    Args:
        inner: the method whose updates are compressed, such as `FedAvg` or `FedAdam`.
        compressor: of `fedsolve.compression`, such as `TopK(0.01)` or `EDEN(bits=2)`.
        memory: None, `feedback` or `ef21`; kept by each client. A biased compressor needs one to converge.
        smallest: leaves with fewer entries are sent as they are, such as biases.

    Raises:
        InvalidInput: no compressor; an inner method that does not send client updates, whose clients must follow what
            the server makes of their messages (SCAFFOLD), or with central differential privacy, whose bound
            compression could break; `ef21` around a method that weighs clients by examples or reduces them otherwise.
            When a run begins: no leaf is large enough.
    """

    title: ClassVar[str] = "Compressed"
    parts: ClassVar[tuple[type, ...]] = (CompressedServer, CompressedClient)

    inner: Algorithm
    compressor: Compressor
    _: KW_ONLY
    memory: Literal["feedback", "ef21"] | None = static(default=None)
    smallest: int = static(default=256)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.compressor, Compressor):
            raise InvalidInput(
                f"Compressed needs a compressor such as fs.compression.TopK(0.01), not {shown(self.compressor)}"
            )
        if self.memory is not None and not is_one_of(self.memory, ("feedback", "ef21")):
            raise InvalidInput(f"memory = {self.memory!r} must be None, 'feedback' or 'ef21'")
        check_integer("smallest", self.smallest, 1)
        name, traits = name_of(self.inner), self.inner.traits
        if isinstance(self.inner, Compressed):
            raise InvalidInput("Compressed around Compressed: compress once")
        if traits.only_mean:
            raise InvalidInput(f"Compressed cannot wrap {name}: {traits.only_mean}, and a code is not exact")
        if traits.privacy == "central":
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
    def only_mean(self) -> str:
        """Why no other reduction will do."""
        return "g must stay the mean of all clients' g_i" if self.memory == "ef21" else ""

    def init(self, params: Params) -> Any:
        """The inner server's state, and with `ef21` g = 0."""
        inner = self.inner.init(params)
        return CompressedServer(inner, trees.zeros_like(params)) if self.memory == "ef21" else inner

    def init_client(self, broadcast: Any) -> Any:
        """The inner client's state, and a memory of zeros."""
        inner = self.inner.init_client(broadcast)
        if self.memory is None:
            return inner
        return CompressedClient(inner, trees.zeros_like(self.inner.model(broadcast)))

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        """Run the inner local work and compress its client update."""
        message, inner = self.inner.train(broadcast, self.inner_part(client), oracle)
        update, common = client_update_of(message), _common(round_of(broadcast))
        if self.memory is None:
            return _with_update(message, self._encode(update, common, oracle.client)), inner
        feeds_back = self.memory == "feedback"
        wanted = trees.add(update, client.memory) if feeds_back else trees.sub(update, client.memory)
        sent = self._encode(wanted, common, oracle.client)
        decoded = _decode(sent, common)
        memory = trees.sub(wanted, decoded) if feeds_back else trees.add(client.memory, decoded)
        return _with_update(message, sent), CompressedClient(inner, memory)

    def receive(self, broadcast: Any, message: Any, client: Any) -> tuple[Any, Any]:
        """Decode the client update, unless the sum of codes is enough: then `update` does."""
        if self._adds_codes:
            return message, client
        plain = _with_update(message, _decode(client_update_of(message), _common(round_of(broadcast))))
        received, followed = self.inner.receive(broadcast, plain, self.inner_part(client))
        return received, self._renewed(client, followed)

    def update(self, server: Any, message: Any, cohort: Cohort) -> Any:
        """The inner update, along the mean of what was decoded, or with `ef21` along g."""
        if self._adds_codes:
            message = _with_update(message, _decode(client_update_of(message), _common(cohort.round)))
        if self.memory != "ef21":
            return self.inner.update(server, message, cohort)
        share = cohort.size / cohort.population
        memory = trees.axpy(share, client_update_of(message), server.memory)
        return CompressedServer(
            self.inner.update(server.inner, _with_update(message, memory), cohort), memory
        )

    @property
    def _adds_codes(self) -> bool:
        """Whether codes are added up as they are: they are linear, and no inner method reads single messages."""
        inner: Any = self.inner
        while isinstance(inner, Wrapper) and type(inner).receive is Wrapper.receive:
            inner = inner.inner
        return self.compressor.is_linear and type(inner).receive is Algorithm.receive

    def _encode(self, update: Params, common: Any, client: Any) -> Any:
        """The update with codes in place of its large leaves; randomness follows from round, client and leaf."""
        leaves, structure = jax.tree.flatten(update)
        chosen = [x.size >= self.smallest and self.compressor.fits(x.shape) for x in leaves]
        if not any(chosen):
            raise InvalidInput(
                f"{self.name} compresses nothing: no leaf of the model has {self.smallest} entries"
                " and a smaller code; set smallest="
            )
        shrinks = self.memory is not None and self.compressor.is_unbiased
        encoded = []
        for i, (x, is_chosen) in enumerate(zip(leaves, chosen, strict=True)):
            if not is_chosen:
                encoded.append(x)
                continue
            of_leaf = jax.random.fold_in(common, i)
            own = jax.random.fold_in(of_leaf, jnp.asarray(client, jnp.uint32))
            factor = 1 / (1 + self.compressor.error(x.size)) if shrinks else 1.0
            encoded.append(Encoded.of(self.compressor, x, own, of_leaf, factor))
        return structure.unflatten(encoded)


def _decode(update: Any, common: Any) -> Params:
    """The arrays that stand for codes; those that were sent as they are."""
    leaves, structure = jax.tree.flatten(update, is_leaf=lambda x: isinstance(x, Encoded))
    decoded = [
        x.decode(jax.random.fold_in(common, i)) if isinstance(x, Encoded) else x for i, x in enumerate(leaves)
    ]
    return structure.unflatten(decoded)


def _common(round: Scalar) -> Any:
    """Randomness of a round that everybody knows."""
    return jax.random.fold_in(jax.random.key(_SEED), jnp.asarray(round, jnp.uint32))


def _with_update(message: Any, update: Any) -> Any:
    """A message with another client update, wherever wrappers have put it."""
    if hasattr(message, "inner"):
        return replace(message, inner=_with_update(message.inner, update))
    return replace(message, delta=update)
