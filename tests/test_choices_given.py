"""A choice that is an array, a list or a table, which Python and NumPy cannot look up, is refused in words."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.config.build import arguments, build, example_of
from fedsolve.config.catalogue import ALGORITHMS
from fedsolve.core.fleets import profile
from fedsolve.data import FederatedData, checksum, read_idx

INNER = fs.FedAvg(0.1, weighting="uniform")
PRIVATE = {"cohort": 2, "population": 4, "delta": 1e-3}
CALLS = {
    "weighting": lambda x: fs.FedAvg(0.1, weighting=x),
    "option": lambda x: fs.ControlVariates(INNER, option=x),
    "staleness": lambda x: fs.FedAsync(0.1, staleness=x),
    "solver of FedDR": lambda x: fs.FedDR(0.1, solver=x),
    "solver of FedExProx": lambda x: fs.FedExProx(0.1, solver=x),
    "extrapolation": lambda x: fs.FedExProx(0.1, extrapolation=x),
    "start": lambda x: fs.FedFW(fs.geometry.L1Ball(1.0), start=x),
    "variant": lambda x: fs.frank_wolfe.FrankWolfe(fs.geometry.L1Ball(1.0), variant=x),
    "reset": lambda x: fs.client.Armijo(reset=x),
    "second": lambda x: fs.server.Adaptive(0.1, second=x),
    "preconditioner": lambda x: fs.server.DoublyAdaptive(preconditioner=x),
    "preset": lambda x: fs.FedLiLU(preset=x),
    "f": lambda x: fs.FedLiLU(f=x),
    "loss_weights": lambda x: fs.FedLiLU(loss_weights=x),
    "direction": lambda x: fs.attacks.MinMax(direction=x),
    "scale": fs.attacks.SignFlip,
    "sampling": lambda x: fs.privacy.epsilon(1.0, 10, **PRIVATE, sampling=x),
    "accountant": lambda x: fs.privacy.epsilon(1.0, 10, **PRIVATE, accountant=x),
    "profile": lambda x: profile(x, 3),
    "tracker": lambda x: fs.trackers.tracker(x, Path()),
    "task": fs.tasks.build,
    "data set": lambda x: fs.tasks.libsvm(dataset=x),
    "names": lambda x: FederatedData.from_clients([np.zeros((2, 1)), np.zeros((2, 1))], names=x),
    "checksum": lambda x: checksum(x, "0" * 64),
    "idx": read_idx,
}


@pytest.mark.parametrize(
    "value", [np.ones(2), ["a", 3], {"a": 1}, 3.5], ids=["array", "list", "table", "number"]
)
@pytest.mark.parametrize("call", CALLS)
def test_what_names_nothing_is_refused_in_one_line(call, value):
    if call == "scale" and isinstance(value, float):
        pytest.skip("a scale")
    with pytest.raises(fs.InvalidInput) as error:
        CALLS[call](value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if "weighting" in arguments(name)])
def test_no_weighting_is_the_methods_own_or_refused(name):
    """None is not another weighting than the one that the method has when it is left out."""
    own, found = build(name, example_of(name)).traits.weighting, []
    with contextlib.suppress(fs.InvalidInput):
        found.append(build(name, example_of(name) | {"weighting": None}).traits.weighting)
    assert found in ([], [own])


@pytest.mark.parametrize(
    ("method", "name"),
    [
        (fs.FedKSeed, "seeds"),
        (fs.DeComFL, "directions"),
        (fs.FedZO, "directions"),
        (fs.IFCA, "clusters"),
        (fs.pFedMe, "personal_steps"),
        (fs.FedBuff, "buffer"),
        (fs.SPPMAS, "local_rounds"),
    ],
)
def test_a_count_is_one_that_jax_can_count(method, name):
    with pytest.raises(fs.InvalidInput, match=rf"{name} = 1000000000000 must be below 2\^31"):
        method(0.1, **{name: 10**12})
