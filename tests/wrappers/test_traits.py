"""Traits: what a method declares reaches whoever runs it, through every wrapper, known to the wrapper or not."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.algorithm import RENAMED, Algorithm, Traits, merge_traits, name_of
from fedsolve.core.buffers import Buffers
from fedsolve.core.types import module, static
from fedsolve.methods.algorithms.fedexprox import ExtrapolatedProximal
from fedsolve.methods.compression.methods import Scafcom, Scallion
from fedsolve.methods.server.fedopt import FedOpt
from fedsolve.methods.sharpness import AgreedSharpness, SharpRegularization
from fedsolve.methods.wrappers.asynchronous import KeepsVersions
from fedsolve.methods.wrappers.buffers import KeepsBuffers, KeepsLocalBuffers
from fedsolve.methods.wrappers.wrapper import Wrapper


@dataclass(frozen=True, kw_only=True)
class Later(Traits):
    """A record of a later version, with a trait that no wrapper knows."""

    unheard_of: str = ""


@module
class Method(FedOpt):
    """A method that requests it."""

    @property
    def traits(self) -> Later:
        return Later(**{**vars(super().traits), "unheard_of": "yes"})


INNER = Method(fs.client.SGD(0.1), fs.server.ServerSGD(), weighting="uniform")
AROUND = {
    "Proximal": lambda a: fs.Proximal(a, 0.1),
    "ExtrapolatedProximal": lambda a: ExtrapolatedProximal(a, 0.1),
    "ControlVariates": fs.ControlVariates,
    "Subgradient": lambda a: fs.Subgradient(a, fs.geometry.L1(0.1)),
    "Robust": lambda a: fs.robust.Robust(a, fs.robust.Median()),
    "Attacked": lambda a: fs.attacks.Attacked(a, fs.attacks.SignFlip(), (0,)),
    "Colluding": lambda a: fs.attacks.Colluding(a, fs.attacks.InnerProductManipulation(2.0), (0,)),
    "DifferentialPrivacy": lambda a: fs.privacy.DifferentialPrivacy(
        a, 1.0, 0.5, cohort=5, population=10, delta=1e-5, scalars={"loss": 0}
    ),
    "LocalDifferentialPrivacy": lambda a: fs.privacy.LocalDifferentialPrivacy(a, 0.5, 1.0, delta=1e-5),
    "Personal": lambda a: fs.Personal(a, "bias"),
    "Scallion": lambda a: Scallion(a, fs.compression.EDEN(1)),
    "Scafcom": lambda a: Scafcom(a, fs.compression.Sign()),
    "Compressed": lambda a: fs.Compressed(a, fs.compression.Sign()),
    "LowRank": lambda a: fs.LowRank(a, 2),
    "Secure": lambda a: fs.Secure(a, bound=1.0, max_clients=4),
    "ProximalPoint": fs.ProximalPoint,
    "Sharpness": fs.Sharpness,
    "SharpMomentum": fs.SharpMomentum,
    "SharpRegularization": SharpRegularization,
    "EstimatedSharpness": fs.EstimatedSharpness,
    "Ditto": fs.Ditto,
    "Moreau": fs.Moreau,
    "Meta": fs.Meta,
    "LocalNormalization": fs.LocalNormalization,
    "KeepsLocalBuffers": lambda a: KeepsLocalBuffers(a, Buffers.of({"mean": np.zeros(2)})),
    "Buffered": fs.Buffered,
    "Mixing": fs.Mixing,
    "KeepsVersions": lambda a: KeepsVersions(fs.Buffered(a), 2),
    "KeepsBuffers": lambda a: KeepsBuffers(a, Buffers.of({"mean": np.zeros(2)})),
}


def wrappers(of: type[Wrapper] = Wrapper) -> set[type[Wrapper]]:
    """All wrapper classes of the package that can be built."""
    found = {c for c in of.__subclasses__() if c.__module__.startswith("fedsolve.")}
    return found.union(*(wrappers(c) for c in found))


def test_every_wrapper_is_tried():
    """A new one needs a row."""
    known = {type(around(INNER)) for around in AROUND.values()}
    assert {c.__name__ for c in wrappers() - known} == {
        "Adapts",
        AgreedSharpness.__name__,  # goes around FedDyn alone
        "Asynchronous",
        "Controlled",
        "Factored",  # the base class of LowRank
        "OwnModels",
    }


@pytest.mark.full_rows("DifferentialPrivacy")
@pytest.mark.parametrize("name", AROUND)
def test_a_trait_that_a_wrapper_does_not_know_is_passed_on(name):
    """So is every trait that it does not declare itself."""
    outer = AROUND[name](INNER)
    traits = outer.traits
    assert isinstance(traits, Later)
    assert traits.unheard_of == "yes"
    own = {
        field.name
        for field in fields(Traits)
        if hasattr(type(outer), field.name) or field.name in vars(outer)
    }
    for field in {field.name for field in fields(Traits)} - own:
        assert getattr(traits, field) == getattr(outer.inner.traits, field)


@module
class Plain(FedOpt):
    """A method of a user's own, with the attributes that earlier versions documented."""

    privacy = "local"
    secret_cohorts = True
    updates_when_empty = True
    only_mean = "it must stay one"
    reduction: Any = static(default=None)


def test_class_attributes_fields_and_properties_are_traits():
    """Of a method of a user's own, through a wrapper, and read under their own names as ever."""
    method = Plain(fs.client.SGD(0.1), fs.server.ServerSGD(), weighting="examples")
    for given in (method, fs.Proximal(method, 0.1)):
        traits = given.traits
        assert (traits.weighting, traits.privacy, traits.secret_cohorts) == ("examples", "local", True)
        assert (traits.updates_when_empty, traits.only_mean) == (True, "it must stay one")
        assert (traits.buffer, traits.personal, traits.mutates_buffers) == (0, False, False)
        assert given.privacy == "local"  # pyright: ignore[reportAttributeAccessIssue]
        assert given.buffer == 0  # pyright: ignore[reportAttributeAccessIssue]
    assert name_of(fs.Proximal(method, 0.1)) == "FedProx+FedOpt"


@pytest.mark.parametrize("old", RENAMED)
def test_a_trait_under_an_earlier_name_is_refused_with_its_name(old):
    """In one line, before anything runs: silence would drop it."""
    method = module(type("Own", (FedOpt,), {old: True}))(fs.client.SGD(0.1), fs.server.ServerSGD())
    with pytest.raises(fs.InvalidInput, match=f"^Own.{old} is called {RENAMED[old]} now: set that$"):
        _ = method.traits


def test_a_property_that_fails_is_not_taken_for_a_trait_left_out():
    """Not even by an AttributeError, which hasattr would hide."""

    class Broken(Algorithm):
        @property
        def privacy(self) -> str:
            raise AttributeError("a slip")

    Broken.__abstractmethods__ = frozenset()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError):
        merge_traits(Traits(name="x"), Broken())  # pyright: ignore[reportAbstractUsage]
