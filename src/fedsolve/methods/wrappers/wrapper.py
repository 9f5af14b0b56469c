"""The base class of wrappers: methods and traits that a wrapper does not define are the inner method's."""

from __future__ import annotations

from typing import Any, ClassVar

from fedsolve.core.algorithm import Algorithm, Cohort, Traits, declares, merge_traits, name_of
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, replace


class Wrapper(Algorithm):
    """Base class of wrappers: methods around another method.

    Methods and traits that a subclass does not define are the inner method's.

    A subclass that keeps or sends more than `inner` has classes of its own for that, each with the inner method's part
    in a field `inner`, and names them in `parts`. It defines the methods that make them; all others find the inner
    method's part there, and put the next one in its place.

    Attributes:
        inner: the method that is wrapped.
        title: what the wrapper puts before the inner method's name.
        parts: the wrapper's own classes of server state, broadcast, client state and message.

    Raises:
        InvalidInput: `inner` is no method, or hides what it sends (`fs.Secure`, which goes around all others).
    """

    inner: Algorithm
    title: ClassVar[str]
    parts: ClassVar[tuple[type, ...]] = ()
    around_all: ClassVar[bool] = (
        False  # whether it also goes around methods whose clients have models of their own
    )

    of_model_shape: ClassVar[bool] = False  # whether client updates must have the model's shapes

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Algorithm):
            raise InvalidInput(
                f"{self.title} wraps an algorithm such as FedAvg(client_lr=0.1), not {shown(self.inner)}"
            )
        if self.inner.traits.secure_sums:
            other = name_of(self.inner)
            raise InvalidInput(
                f"{self.title} cannot wrap {other}, which hides what it sends: build Secure around {self.title}"
            )
        if self.inner.traits.factors and self.of_model_shape:
            raise InvalidInput(
                f"{self.title} cannot wrap {name_of(self.inner)}, whose client updates are factors: build LowRank "
                f"around {self.title}"
            )
        if self.inner.traits.personal and not self.around_all:
            other = name_of(self.inner)
            both = declares(self, "personal")
            remedy = "one of the two is enough" if both else f"build {other} around {self.title}"
            raise InvalidInput(
                f"{self.title} cannot wrap {other}, whose clients have personal models: {remedy}"
            )

    @property
    def name(self) -> str:
        """The wrapper's title, followed by the inner method's name unless it is FedAvg."""
        inner = name_of(self.inner)
        return self.title if inner == "FedAvg" else f"{self.title}+{inner}"

    @property
    def traits(self) -> Traits:
        return merge_traits(self.inner.traits, self)

    @property
    def local(self) -> Any:
        """The inner method's local solver, or None."""
        return getattr(self.inner, "local", None)

    def init(self, params: Params) -> Any:
        return self.inner.init(params)

    def broadcast(self, server: Any, cohort: Cohort) -> Any:
        return self.inner.broadcast(self.inner_part(server), cohort)

    def init_client(self, broadcast: Any) -> Any:
        return self.inner.init_client(self.inner_part(broadcast))

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        # run the inner local work; the wrapper's part of the client state is unchanged
        message, trained = self.inner.train(self.inner_part(broadcast), self.inner_part(client), oracle)
        return message, self._renewed(client, trained)

    def receive(self, broadcast: Any, message: Any, client: Any) -> tuple[Any, Any]:
        # decode the inner message; the wrapper's parts are unchanged
        received, followed = self.inner.receive(*map(self.inner_part, (broadcast, message, client)))
        return self._renewed(message, received), self._renewed(client, followed)

    def update(self, server: Any, message: Any, cohort: Cohort) -> Any:
        # apply the inner update; the wrapper's part of the server state is unchanged
        updated = self.inner.update(self.inner_part(server), self.inner_part(message), cohort)
        return self._renewed(server, updated)

    def model(self, broadcast: Any) -> Params:
        return self.inner.model(self.inner_part(broadcast))

    def export(self, server: Any) -> Params:
        return self.inner.export(self.inner_part(server))

    def check(self, sampling: Any, population: int) -> None:
        self.inner.check(sampling, population)

    def with_steps(self, steps: int | None) -> Algorithm:
        inner = self.inner.with_steps(steps)
        return self if inner is self.inner else replace(self, inner=inner)

    def diagnostics(self) -> tuple[Any, ...]:
        return self.inner.diagnostics()

    def inner_part(self, part: Any) -> Any:
        """The inner method's part of a server state, broadcast, client state or message.

        Args:
            part: one of `parts`, or an object of the inner method.

        Returns:
            The field `inner` of one of `parts`; any other object is returned unchanged.
        """
        return part.inner if isinstance(part, self.parts) else part

    def _renewed(self, part: Any, inner: Any) -> Any:
        return replace(part, inner=inner) if isinstance(part, self.parts) else inner


class OwnModels(Wrapper):
    """A wrapper whose clients keep a model of their own, or parts of one, with which they are measured."""

    personal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner.traits.buffer:
            raise InvalidInput(
                f"{self.title} cannot wrap {name_of(self.inner)}: its clients start from models of different "
                "age; take a method with synchronous rounds"
            )
