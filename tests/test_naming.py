"""The name and the settings of a method are those that it was made of, or none are."""

from __future__ import annotations

import dataclasses

import jax
import pytest

import fedsolve as fs
from fedsolve.config.build import arguments, build, example_of, recipe_of
from fedsolve.config.catalogue import ALGORITHMS, WRAPPERS
from fedsolve.core.algorithm import name_of
from fedsolve.core.building import Made, record_of
from fedsolve.core.types import module
from fedsolve.engine.identity import describe
from fedsolve.geometry import L1

NAMES = [
    *ALGORITHMS,
    *(f"{wrapper}+FedAvg" for wrapper in WRAPPERS),
    "SCAFFOLD+FedDuAdam",
]
OTHER = {"client_lr": 0.037, "weighting": "uniform"}


@pytest.mark.parametrize("name", NAMES)
def test_every_method_of_the_catalogue_is_built_again(name):
    """With a rate and a weighting that are no defaults, where it takes them."""
    settings = example_of(name) | {key: value for key, value in OTHER.items() if key in arguments(name)}
    method = build(name, settings)
    found = recipe_of(method)
    row = name.removesuffix("+FedAvg")
    assert found is not None, (
        f"no name and settings build {name} again: put @by_name({row!r}) on its function, and on a wrapper's class "
        f"@class_by_name({row!r}); give its settings types that a configuration can write"
    )
    assert describe(build(*found)) == describe(method)
    if name in ALGORITHMS:
        assert name_of(method) == name, (
            f"tables call {name} {name_of(method)}: give a FedOpt name={name!r}, a wrapper a `title` equal to {name!r}"
        )


def test_objects_are_told_as_a_configuration_writes_them():
    rate = fs.schedules.Exponential(0.1, 0.9)
    name, settings = recipe_of(fs.FedMiD(L1(0.01).on("w") + L1(0.3).on("b"), rate))
    assert name == "FedMiD"
    assert settings["psi"] == [
        {"name": "L1", "weight": 0.01, "on": "w"},
        {"name": "L1", "weight": 0.3, "on": "b"},
    ]
    assert settings["client_lr"] == {"schedule": "exponential", "initial": 0.1, "decay": 0.9}
    rate = fs.schedules.ReduceOnPlateau(0.1, "train_loss", 3, factor=0.5)
    _, settings = recipe_of(fs.FedAdam(rate, server_lr=fs.schedules.InverseSqrt(0.2)))
    assert settings["client_lr"] == {
        "schedule": "reduce_on_plateau", "initial": 0.1, "metric": "train_loss", "patience": 3, "factor": 0.5,
        "min_delta": 0.0, "min_lr": 1e-8,
    }  # fmt: skip
    assert settings["server_lr"] == {"schedule": "inverse_sqrt", "initial": 0.2}
    assert recipe_of(fs.FedYogi(preset="google-research", tau=1e-2)) == (
        "FedYogi",
        {"preset": "google-research", "tau": 0.01},
    )


def test_no_name_is_better_than_a_wrong_one():
    """A method put together from parts of its own, by no name or by that of another; inside a wrapper as well."""
    method = fs.FedOpt(fs.client.SGD(0.1), fs.server.Adaptive(0.1))
    called = dataclasses.replace(fs.FedAvg(0.1), server_optimizer=fs.server.Adaptive(0.1))
    assert called.name == "FedAvg"
    assert [recipe_of(m) for m in (method, called, fs.ControlVariates(called))] == [None] * 3


def test_a_record_is_beside_the_method_and_never_lies():
    """No part of equality, of the pytree or of what is printed; gone wherever a part may have been replaced."""
    method = fs.FedAdam(0.05, client_momentum=0.9)
    assert record_of(method) == Made("FedAdam", {"client_lr": 0.05, "client_momentum": 0.9})
    assert method == fs.FedAdam(client_lr=0.05, client_momentum=0.9)
    assert "made_by" not in repr(method)
    assert record_of(dataclasses.replace(method, name="mine")) is None
    assert record_of(jax.tree.map(lambda x: 2 * x, method)) is None
    assert record_of(jax.jit(lambda m: m)(method)) is None
    wrapped = fs.ControlVariates(method)
    assert recipe_of(wrapped) == ("SCAFFOLD+FedAdam", {"client_lr": 0.05, "client_momentum": 0.9})
    assert recipe_of(dataclasses.replace(wrapped, inner=fs.FedAvg(0.2))) == (
        "SCAFFOLD+FedAvg",
        {"client_lr": 0.2},
    )


def test_what_a_class_fills_in_itself_is_no_setting():
    method = fs.privacy.LocalDifferentialPrivacy(fs.FedAvg(weighting="uniform"), 0.5, epsilon=8.0, delta=1e-5)
    settings = {"clip_norm": 0.5, "epsilon": 8.0, "delta": 1e-5, "weighting": "uniform"}
    assert recipe_of(method) == ("LocalDP+FedAvg", settings)


def test_a_class_of_ones_own_with_a_name_of_the_catalogue_is_not_taken_for_it():
    @module
    class L1(fs.geometry.L1):
        pass

    assert recipe_of(fs.FedMiD(L1(0.1))) is None
