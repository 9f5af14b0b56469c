"""The one interface of every method: written once, run by the compiled engine and by messages."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

from fedsolve.core.checks import is_one_of
from fedsolve.core.errors import InvalidInput, of_type
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Scalar, module

Weighting = Literal["uniform", "examples"]
"""How clients count in a mean: all alike (1/|S|), or by their number of examples (n_i / sum of n)."""
Privacy = Literal["", "central", "local"]
"""How what clients send is protected: noise on the cohort's sum, each client's own noise, or not at all."""
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

    Attributes:
        weighting: how clients count in a mean.
        name: what tables call it.
        reduction: None, or what takes the place of those means: a pytree, called with a cohort's messages
            (leaves of shape (clients, ...)), weights and who is used, both of shape (clients,). It returns
            one message, zeros if nobody is used, whatever rows hold that are not (see `fedsolve.methods.wrappers`).
        only_mean: why no other reduction will do for this method, '' where another will; then neither will a
            client that has lost its state start with a new one.
        secret_cohorts: whether what it guarantees holds only against those who do not know who takes part.
        buffer: messages of an update on a clock, of a method whose clients may begin with older models; else 0.
        personal: whether clients have models of their own (`own_model`), with which they are measured.
        message_mu: sensitivity over standard deviation of the noise that a client adds to one message itself.
    """

    weighting: Weighting
    name: str
    reduction: Any = None
    only_mean: ClassVar[str] = ""
    privacy: Privacy = ""  # a wrapper that sends more than such a method must refuse it
    secret_cohorts: bool = False
    buffer: int = 0
    message_mu: float = math.inf
    personal: ClassVar[bool] = False
    remembers: ClassVar[bool] = False  # whether `train` writes mutable arrays (`fedsolve.core.buffers`)
    updates_when_empty: bool = False  # whether `update` is due, on zeros, although nobody took part

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
        """
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
    return getattr(algorithm, "name", type(algorithm).__name__)


def round_of(broadcast: Any) -> Scalar:
    """The number of the round in a broadcast, wherever wrappers have put it.

    Raises:
        InvalidInput: a method that does not send it.
    """
    found = broadcast
    while not hasattr(found, "round"):
        if not hasattr(found, "inner"):
            raise InvalidInput(f"{of_type(broadcast)} has no field `round`: give the broadcast one")
        found = found.inner
    return found.round


def check_weighting(value: object) -> None:
    """Raise `InvalidInput` unless value is a known weighting."""
    if not is_one_of(value, ("uniform", "examples")):
        raise InvalidInput(f"weighting = {value!r} must be 'uniform' or 'examples'")
