"""The interface of every method: a method is written once and runs in the compiled engine and over messages."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput, of_type
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Privacy, Scalar, Weighting, module

# What a method requests from whoever runs it: one record, which wrappers pass on whole.

RENAMED = {"remembers": "mutates_buffers", "message_mu": "gdp_mu"}
"""Traits of earlier versions, and what they are called now."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a method requests from an engine or a deployment.

    A method declares a trait as a class attribute, a field or a property of the same name; what it does not declare has
    the default, or in a wrapper the inner method's value.

    Attributes:
        name: what tables call the method.
        weighting: how clients count in a mean; every method declares one.
        reduction: None, or what takes the place of means: a pytree, called with a cohort's messages (leaves of shape
            (clients, ...)), weights and who is used, both of shape (clients,). It returns one message, zeros if nobody
            is used, whatever rows hold that are not (see `fedsolve.methods.robust`).
        only_mean: why no other reduction will do for this method, '' where another will; then neither will a
            client that has lost its state start with a new one.
        privacy: how what clients send is protected. A wrapper that sends more than such a method must refuse it.
        gdp_mu: sensitivity over standard deviation of the noise that a client adds to one message itself: the mu of
            Gaussian differential privacy.
        secure_sums: whether clients' messages may be added up alone: a deployment masks them.
        secret_cohorts: whether what it guarantees holds only against those who do not know who takes part.
        overlap: first local steps of a round during which messages still travel (simulated time).
        buffer: messages of an update on a clock, of a method whose clients may begin with older models; else 0.
        personal: whether clients have models of their own (`own_model`), with which they are measured.
        mutates_buffers: whether `train` writes mutable arrays (`fedsolve.core.buffers`).
        factors: whether client updates are factors of low rank, not of the model's shapes: '' if not, `averaged`, or
            `multiplied` by the server.
        updates_when_empty: whether `update` is due, on zeros, although nobody took part.
    """

    name: str
    weighting: Weighting = None  # pyright: ignore[reportAssignmentType] (`check_weighting` refuses it)
    reduction: Any = None
    only_mean: str = ""
    privacy: Privacy = ""
    gdp_mu: Any = math.inf
    secure_sums: bool = False
    secret_cohorts: bool = False
    overlap: int = 0
    buffer: int = 0
    personal: bool = False
    mutates_buffers: bool = False
    factors: Literal["", "averaged", "multiplied"] = ""
    updates_when_empty: bool = False


TRAITS = frozenset(field.name for field in fields(Traits))
"""Names under which methods declare traits."""


def merge_traits(inner: Traits, method: Any) -> Traits:
    """The traits of an inner method with those that a method declares itself in their place."""
    # traits that this version of the record does not have, of a subclass, are passed on too
    for old, new in RENAMED.items():
        if declares(method, old):
            raise InvalidInput(f"{type(method).__name__}.{old} is called {new} now: set that")
    names = [field.name for field in fields(inner)]
    return replace(inner, **{name: getattr(method, name) for name in names if declares(method, name)})


def check_shares(traits: Traits) -> None:
    """Raise `InvalidInput` where clients add noise in shares, each too small alone, without secure sums."""
    if traits.privacy == "distributed" and not traits.secure_sums:
        raise InvalidInput(
            f"{traits.name} adds noise in shares, which protect a sum and no single message: put fs.Secure around it"
        )


def declares(method: Any, name: str) -> bool:
    # not hasattr(method, name): a property that fails must raise, and not count as left out
    return name in vars(method) or hasattr(type(method), name)


SECRET_COHORT_NOTE = "epsilon assumes that the cohorts are secret"
"""What amplification by sampling rests on, said of a method with `secret_cohorts` wherever it runs: who knows that a
client took part learns as much as without sampling."""


@module
class Cohort:
    """Facts about a round that the server knows besides the reduced message.

    Attributes:
        round: number of the round, from 0 (a traced integer in a run).
        size: |S|: in `broadcast` the clients drawn, in `update` those whose message was used; 0 where there was none.
        population: N, all clients, at least 1.
        key: the server's own random key of the round, for noise that it adds; None where there is none.
        started: (ids, versions) in simulated time, where clients begin with models of different age: the clients
            whose messages the update uses, and the round whose broadcast each began with; None where all clients
            have this round's.
        noise: expected squared norm of the noise that protects the mean client update, shape (); None without any.
    """

    round: Scalar
    size: Scalar
    population: Scalar
    key: Any = None
    started: Any = None
    noise: Any = None


class Algorithm(ABC):
    """Base class of all federated methods.

    A method sees a client through an oracle only: no data, no model, no framework.

    Concrete classes are modules: frozen dataclasses whose hyper-parameters are leaves. Servers,
    broadcasts, clients and messages are modules of their own; a message's fields say how they are
    reduced over the cohort (see `fedsolve.core.types.reduced`).

    What it requests from the engine besides, its traits (how clients count in a mean, a reduction of its own, ...), it
    declares as class attributes, fields or properties under the names of `Traits`: a `weighting` always, the others
    where they differ from what that record has.
    """

    @property
    def traits(self) -> Traits:
        """The traits that the method declares: what it requests from the engine.

        Raises:
            InvalidInput: a trait under a name of an earlier version.
        """
        return merge_traits(Traits(name=type(self).__name__), self)

    if not TYPE_CHECKING:  # editors know traits by the record alone

        def __getattr__(self, name: str) -> Any:
            """The default of a trait that the method does not declare itself, or the inner method's."""
            if name in TRAITS and not declares(self, name):
                return getattr(self.traits, name)
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @abstractmethod
    def init(self, params: Params) -> Any:
        """The server's state before the first round: a module whose scalars marked `reported` are logged.

        Args:
            params: the initial model.

        Returns:
            The server's state, whatever pytree the other methods take; floating-point leaves in the model's type.

        Raises:
            InvalidInput: a model that the method cannot start from (outside its set or its mirror map's domain).
        """

    @abstractmethod
    def broadcast(self, server: Any, cohort: Cohort) -> Any:
        """The message that the server sends to every client of the cohort in a round.

        Args:
            server: the server's state.
            cohort: of the round: its number, the clients drawn, the population.

        Returns:
            A pytree of arrays, of the same shapes and types in every round.
        """

    @abstractmethod
    def init_client(self, broadcast: Any) -> Any:
        """A client's state before it first takes part; `()` if clients keep none.

        `broadcast` is that of the first round, whenever the client joins: all clients start alike.

        Args:
            broadcast: that of the first round.

        Returns:
            A pytree of arrays; every client of the population has one.
        """

    @abstractmethod
    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        """Run one client's local work.

        Args:
            broadcast: the server's broadcast of this round.
            client: the client's state, from `init_client` or the last round that it took part in.
            oracle: its data, seen through its loss; `oracle.steps` local steps are due.

        Returns:
            The message to the server, whose fields say how the cohort's messages are reduced to one, and the client's
            new state, of the shapes and types of the old one.
        """

    @abstractmethod
    def update(self, server: Any, message: Any, cohort: Cohort) -> Any:
        """The server's state after a round, with the shapes and types of the state before.

        Args:
            server: the server's state.
            message: the cohort's messages, reduced to one as the fields say (means weighted by `weighting`).
            cohort: of the round; its `size` counts the messages that were used.

        Returns:
            The server's next state.
        """

    @abstractmethod
    def export(self, server: Any) -> Params:
        """The model that is evaluated and returned, with the shapes and types of the initial one.

        Args:
            server: the server's state.

        Returns:
            A pytree of the model's structure.
        """

    def enrol(self, broadcast: Any, params: Params) -> Any:
        """The first state of a client that has a copy of the initial model.

        A method overrides it, in place of `init_client`, where parts of the model are never sent.

        Args:
            broadcast: that of the first round.
            params: the client's own copy of the initial model.

        Returns:
            The client's state, as from `init_client`.
        """
        return self.init_client(broadcast)

    def own_model(self, model: Params, client: Any) -> Params:
        """The model that a client is evaluated with, from the exported model and the client's state.

        Args:
            model: the model from `export`.
            client: the client's state after the last round that it took part in.

        Returns:
            A pytree of the model's structure; `model` itself for methods without personal models.
        """
        return model

    def receive(self, broadcast: Any, message: Any, client: Any) -> tuple[Any, Any]:
        """Decode one client's message on the server, before the messages are reduced.

        For messages that the server can read only together with what it knows already (an extreme point of a
        known set). `client` is the client's state before the round as far as the server can follow it from the
        messages alone; a simulation passes the state itself.

        Args:
            broadcast: the server's broadcast of the round.
            message: the message of one client.
            client: its state before the round.

        Returns:
            The message to reduce, and the client's next state; by default both are returned unchanged.
        """
        return message, client

    def is_finite(self, message: Any, client: Any) -> Array:
        """Whether the results of a client's local work are numbers; a client of which they are not counts for nothing.

        Integers cannot show that a client failed, nor what it never sends: its state does. A method whose failures
        show in few entries looks at those alone.

        Args:
            message: what `train` gave.
            client: the client's state that `train` gave.

        Returns:
            A boolean, shape (): by default, whether all entries of the message are finite, and those of the state where
            the message has integers or clients have models of their own (`Traits.personal`).
        """
        hidden = trees.has_codes(message) or self.traits.personal
        return trees.all_finite((message, client) if hidden else message)

    def model(self, broadcast: Any) -> Params:
        """The model in a broadcast, from which clients start and to which wrappers anchor.

        Args:
            broadcast: the server's broadcast.

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
        """Check that the method applies to a run; called once, before the run begins.

        Args:
            sampling: how cohorts are drawn (`fedsolve.sampling`).
            population: N, all clients.

        Raises:
            InvalidInput: the method does not apply; the message says what would.
        """
        return

    def with_versions(self, depth: int) -> Algorithm:
        """The method with its last `depth` broadcasts stored, for clients that started from an earlier one.

        Args:
            depth: broadcasts that are stored, at least 1.

        Returns:
            The method itself, unless it has a `buffer`.
        """
        return self

    def with_steps(self, steps: int | None) -> Algorithm:
        """The method for clients that all take the same number of local steps in every round.

        A simulation calls it before the first round; a client of a deployment calls it to have its own number checked.

        Args:
            steps: that number, at least 1; None where clients differ.

        Returns:
            The method itself, unless its clients can then send less.

        Raises:
            InvalidInput: a method that was told another number.
        """
        return self

    def diagnostics(self) -> tuple[Any, ...]:
        """Diagnostics that evaluations add for this method (`fedsolve.diagnostics`), such as a Frank-Wolfe gap.

        If the task has a diagnostic of the same name, the task's is used.

        Returns:
            Objects of `fedsolve.diagnostics`; `()` for none.
        """
        return ()


def name_of(algorithm: Algorithm) -> str:
    """The name of a method in tables: its trait `name`, or its class where it has none."""
    return algorithm.traits.name


def round_of(broadcast: Any) -> Scalar:
    """The number of the round in a broadcast, also inside wrappers' broadcasts."""
    return _field("broadcast", broadcast, "round")


def client_update_of(message: Any) -> Params:
    """The client update in a message, the field `delta`, wherever wrappers have put it."""
    return _field("message", message, "delta")


def search_of(message: Any) -> Any:
    """What a line search tells in a message, the field `search`, wherever wrappers have put it."""
    return _field("message", message, "search")


def _field(kind: str, whole: Any, name: str) -> Any:
    # a field of a broadcast or message, or of what its fields `inner` hold
    part = whole
    while not hasattr(part, name):
        if not hasattr(part, "inner"):
            raise InvalidInput(f"{of_type(part)} has no field `{name}`: give the {kind} one")
        part = part.inner
    return getattr(part, name)
