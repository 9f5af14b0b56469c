"""The one interface of every method: written once, run by the compiled engine and by messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from fedsolve.core.errors import InvalidInput, of_type
from fedsolve.core.oracle import Oracle
from fedsolve.core.traits import TRAITS, Traits, declares, merge_traits
from fedsolve.core.types import Params, Scalar, module

ASSUMED = "epsilon assumes that the cohorts are secret"
"""What amplification by sampling rests on, said of a method with `secret_cohorts` wherever it runs: who knows that a
client took part learns as much as without sampling."""


@module
class Cohort:
    """What the server knows of a round besides the reduced message.

    Attributes:
        round: number of the round, from 0 (a traced integer in a run).
        size: |S|: in `broadcast` the clients drawn, in `update` those whose message was used; 0 where nobody was.
        population: N, all clients, at least 1.
        key: the server's own randomness of the round, for noise that it adds; None where there is none.
        started: on a clock on which clients begin with models of different age, (ids, versions): whose messages
            the update takes, and the round whose broadcast each began with; None where all have this round's.
    """

    round: Scalar
    size: Scalar
    population: Scalar
    key: Any = None
    started: Any = None


class Algorithm(ABC):
    """A federated method. It never sees data, a model or a framework: only an oracle.

    Concrete classes are modules: frozen dataclasses whose hyper-parameters are leaves. Servers,
    broadcasts, clients and messages are modules of their own; a message's fields say how they are
    reduced over the cohort (see `fedsolve.core.types.reduced`).

    What it requests from the engine besides, its traits (how clients count in a mean, a reduction of its own, ...), it
    declares as class attributes, fields or properties under the names of `fedsolve.core.traits.Traits`: a `weighting`
    always, the others where they differ from what that record has.
    """

    @property
    def traits(self) -> Traits:
        """What the method requests, as it declares it.

        Raises:
            InvalidInput: a trait under a name of an earlier version.
        """
        return merge_traits(Traits(name=type(self).__name__), self)

    if not TYPE_CHECKING:  # editors know traits by the record alone

        def __getattr__(self, name: str) -> Any:
            """A trait that the method does not declare itself: its default, or the inner method's."""
            if name in TRAITS and not declares(self, name):
                return getattr(self.traits, name)
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @abstractmethod
    def init(self, params: Params) -> Any:
        """What the server keeps before the first round: a module whose scalars marked `reported` are logged.

        Args:
            params: the initial model.

        Returns:
            The server's state, whatever pytree the other methods take; floating-point leaves in the model's type.

        Raises:
            InvalidInput: a model that the method cannot start from (outside its set or its mirror map's domain).
        """

    @abstractmethod
    def broadcast(self, server: Any, cohort: Cohort) -> Any:
        """What travels down in a round, the same to every client of the cohort.

        Args:
            server: what it keeps.
            cohort: of the round: its number, the clients drawn, the population.

        Returns:
            A pytree of arrays, of the same shapes and types in every round.
        """

    @abstractmethod
    def init_client(self, broadcast: Any) -> Any:
        """A client's own state before it ever takes part; `()` if it keeps none.

        `broadcast` is that of the first round, whenever the client joins: all clients start alike.

        Args:
            broadcast: that of the first round.

        Returns:
            A pytree of arrays; every client of the population has one.
        """

    @abstractmethod
    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        """One client's local work.

        Args:
            broadcast: what travelled down.
            client: its own state, from `init_client` or the last round that it took part in.
            oracle: its data, seen through its loss; `oracle.steps` local steps are due.

        Returns:
            The message that travels up, whose fields say how the cohort's are reduced to one, and the client's new
            state, of the shapes and types of the old one.
        """

    @abstractmethod
    def update(self, server: Any, message: Any, cohort: Cohort) -> Any:
        """The server after a round, of the shapes and types of before.

        Args:
            server: what it kept.
            message: the cohort's messages, reduced to one as the fields say (means weighted by `weighting`).
            cohort: of the round; its `size` counts the messages that were used.

        Returns:
            The server's next state.
        """

    @abstractmethod
    def export(self, server: Any) -> Params:
        """The model that is evaluated and shipped, of the shapes and types of the initial one.

        Args:
            server: what it keeps.

        Returns:
            A pytree of the model's structure.
        """

    def enrol(self, broadcast: Any, params: Params) -> Any:
        """`init_client` for a client that has a copy of the initial model, `params`: parts of it may never travel.

        Args:
            broadcast: that of the first round.
            params: the client's own copy of the initial model.

        Returns:
            The client's state, as `init_client` has it.
        """
        return self.init_client(broadcast)

    def own_model(self, model: Params, client: Any) -> Params:
        """The model that a client is measured with: of what the server exports and its own state.

        Args:
            model: what `export` gives.
            client: the client's state after the last round that it took part in.

        Returns:
            A pytree of the model's structure; `model` itself for methods whose clients have none of their own.
        """
        return model

    def receive(self, broadcast: Any, message: Any, client: Any) -> tuple[Any, Any]:
        """What the server makes of one client's message before it is reduced, and the client's next state.

        For messages that mean something only together with what the server knows already (an extreme
        point of a known set). `client` is the client's state before the round as far as the server can
        follow it from the messages alone; a simulation hands in the state itself.

        Args:
            broadcast: what travelled down in the round.
            message: what one client sent.
            client: its state before the round.

        Returns:
            What is reduced, and the client's next state; the message and the state as they are by default.
        """
        return message, client

    def model(self, broadcast: Any) -> Params:
        """The model that a broadcast stands for: where clients begin, and the point that wrappers anchor to.

        Args:
            broadcast: what travelled down.

        Returns:
            A pytree of the model's structure.

        Raises:
            InvalidInput: a broadcast without a field `params`, of a method that does not define `model`.
        """
        if not hasattr(broadcast, "params"):
            own = f"{name_of(self)} broadcasts {of_type(broadcast)}"
            raise InvalidInput(f"{own} without a field `params`: define {type(self).__name__}.model")
        return broadcast.params

    def check(self, sampling: Any, population: int) -> None:
        """Whether a run is what the method claims; called once, before it begins.

        Args:
            sampling: how cohorts are drawn (`fedsolve.sampling`).
            population: N, all clients.

        Raises:
            InvalidInput: it is not; what would be.
        """
        return

    def with_versions(self, depth: int) -> Algorithm:
        """The method with its last `depth` broadcasts kept for clients that began with them, if it has a `buffer`.

        Args:
            depth: broadcasts that are kept, at least 1.

        Returns:
            The method itself, unless it has a `buffer`.
        """
        return self

    def diagnostics(self) -> tuple[Any, ...]:
        """Measures of its problem that evaluations add (`fedsolve.diagnostics`), such as a Frank-Wolfe gap.

        Where the task has one of the same name, evaluations have the task's.

        Returns:
            Objects of `fedsolve.diagnostics`; `()` for none.
        """
        return ()


def name_of(algorithm: Algorithm) -> str:
    """What tables call a method: its name, or its class where it has none."""
    return algorithm.traits.name


def round_of(broadcast: Any) -> Scalar:
    """The number of the round in a broadcast, wherever wrappers have put it.

    Raises:
        InvalidInput: a method that does not send it.
    """
    return _field("broadcast", broadcast, "round")


def client_update_of(message: Any) -> Params:
    """The client update in a message, the field `delta`, wherever wrappers have put it.

    Raises:
        InvalidInput: a method that does not send it.
    """
    return _field("message", message, "delta")


def _field(kind: str, whole: Any, name: str) -> Any:
    """A field of a broadcast or message, or of what its fields `inner` hold."""
    part = whole
    while not hasattr(part, name):
        if not hasattr(part, "inner"):
            raise InvalidInput(f"{of_type(part)} has no field `{name}`: give the {kind} one")
        part = part.inner
    return getattr(part, name)
