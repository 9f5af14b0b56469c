"""What a method requests from whoever runs it: one record, which wrappers pass on whole."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Privacy, Weighting

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
    buffer: int = 0
    personal: bool = False
    mutates_buffers: bool = False
    factors: Literal["", "averaged", "multiplied"] = ""
    updates_when_empty: bool = False


TRAITS = frozenset(field.name for field in fields(Traits))
"""Names under which methods declare traits."""


def merge_traits(inner: Traits, method: Any) -> Traits:
    """The traits of an inner method with those that a method declares itself in their place.

    Traits that this version of the record does not have, of a subclass, are passed on too.

    Raises:
        InvalidInput: a trait under a name of an earlier version.
    """
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
    """Whether a method has a field, a class attribute or a property of a name."""
    # not hasattr(method, name): a property that fails must raise, and not count as left out
    return name in vars(method) or hasattr(type(method), name)
