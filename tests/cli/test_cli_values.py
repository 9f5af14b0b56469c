"""Values of settings as they are typed: types, choices and names, without a run."""

from __future__ import annotations

import pytest

import fedsolve as fs
from fedsolve.cli.configuration.prepare import with_defaults


def test_defaults_are_filled_in_and_numbers_kept():
    assert with_defaults("FedAvg", {"client_lr": 0.3})["server_lr"] == 1.0
    found = fs.build("FedAvg", {"client_lr": 0.3, "weighting": "uniform"})
    assert found == fs.FedAvg(0.3, weighting="uniform")
    rate = {"schedule": "exponential", "initial": 1.0, "decay": 0.5}
    assert fs.build("FedAvg", {"client_lr": rate}) == fs.FedAvg(fs.schedules.Exponential(1.0, 0.5))


def test_a_server_optimiser_is_a_table():
    table = {"name": "Adaptive", "lr": 0.01, "second": "yogi"}
    found = fs.build("DiLoCo", {"server_optimizer": table})
    assert found.server_optimizer == fs.server.Adaptive(0.01, second="yogi")
    plain = fs.build("DiLoCo", {"server_optimizer": "DoublyAdaptive"})
    assert plain.server_optimizer == fs.server.DoublyAdaptive()
    for table, words in (
        ({"name": "Adaptiv"}, "did you mean 'Adaptive'"),
        ({"name": "Adaptive"}, "needs lr"),
        (0.1, "a table"),
    ):
        with pytest.raises(fs.InvalidInput, match=words):
            fs.build("DiLoCo", {"server_optimizer": table})


@pytest.mark.parametrize("given", ["1.*", ["1.weight", "1.bias"]])
def test_patterns_of_leaves_are_texts(given):
    leaves = fs.build("Personal+FedAdam", {"leaves": given, "passes": 2}).leaves
    assert leaves == (tuple(given) if isinstance(given, list) else (given,))
    with pytest.raises(fs.InvalidInput, match="leaves = 3 must be a text or a list"):
        fs.build("FedPer", {"leaves": 3})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"client_lr": True}, "FedAvg: client_lr = True must be a number"),
        ({"client_lr": "fast"}, "client_lr = 'fast' must be a number"),
        ({"weighting": "all"}, "weighting = 'all' must be one of uniform, examples"),
        ({"client_rl": 1}, "unknown setting of FedAvg 'client_rl': did you mean 'client_lr'"),
        ({"client_lr": {"schedule": "exponentail"}}, "did you mean 'exponential'"),
    ],
)
def test_what_is_refused(settings, message):
    with pytest.raises(fs.InvalidInput) as error:
        fs.build("FedAvg", settings)
    assert message in str(error.value)
