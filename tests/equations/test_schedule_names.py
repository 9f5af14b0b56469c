"""Schedules that a configuration names: those of optax are optax's, whatever round it is, and can be joined."""

from __future__ import annotations

import math

import jax
import numpy as np
import optax
import pytest

import fedsolve as fs
from fedsolve.config.build import build, recipe_of
from fedsolve.config.schedule_names import OPTAX, SCHEDULES
from fedsolve.deploy.method_spec import from_spec, to_spec

WARM = {"schedule": "linear", "init_value": 0.0, "end_value": 0.4, "transition_steps": 4}
COSINE = {"schedule": "cosine_decay", "init_value": 0.4, "decay_steps": 6}
JOINED = {"schedule": "join", "schedules": [WARM, COSINE, 0.05], "boundaries": [4, 10]}
GIVEN = {
    "constant": ({"value": 0.2}, lambda: optax.constant_schedule(0.2)),
    "cosine_decay": ({"init_value": 0.4, "decay_steps": 6}, lambda: optax.cosine_decay_schedule(0.4, 6)),
    "cosine_onecycle": (
        {"transition_steps": 8, "peak_value": 0.3},
        lambda: optax.cosine_onecycle_schedule(8, 0.3),
    ),
    "exponential_decay": (
        {"init_value": 0.4, "transition_steps": 2, "decay_rate": 0.5, "staircase": True},
        lambda: optax.exponential_decay(0.4, 2, 0.5, staircase=True),
    ),
    "linear": (
        {"init_value": 0.1, "end_value": 0.4, "transition_steps": 5},
        lambda: optax.linear_schedule(0.1, 0.4, 5),
    ),
    "linear_onecycle": (
        {"transition_steps": 8, "peak_value": 0.3},
        lambda: optax.linear_onecycle_schedule(8, 0.3),
    ),
    "piecewise_constant": (
        {"init_value": 0.4, "boundaries_and_scales": {"10": 0.5, "3": 0.1}},
        lambda: optax.piecewise_constant_schedule(0.4, {3: 0.1, 10: 0.5}),
    ),
    "piecewise_interpolate": (
        {"interpolate_type": "cosine", "init_value": 0.4, "boundaries_and_scales": {"4": 0.1}},
        lambda: optax.piecewise_interpolate_schedule("cosine", 0.4, {4: 0.1}),
    ),
    "polynomial": (
        {"init_value": 0.4, "end_value": 0.1, "power": 2, "transition_steps": 6},
        lambda: optax.polynomial_schedule(0.4, 0.1, 2, 6),
    ),
    "sgdr": (
        {"cosine_kwargs": [{"init_value": 0.0, "peak_value": 0.4, "warmup_steps": 2, "decay_steps": 6}] * 2},
        lambda: optax.sgdr_schedule(
            [{"init_value": 0.0, "peak_value": 0.4, "warmup_steps": 2, "decay_steps": 6}] * 2
        ),
    ),
    "warmup_constant": (
        {"init_value": 0.0, "peak_value": 0.4, "warmup_steps": 3},
        lambda: optax.warmup_constant_schedule(0.0, 0.4, 3),
    ),
    "warmup_cosine_decay": (
        {"init_value": 0.0, "peak_value": 0.4, "warmup_steps": 3, "decay_steps": 10},
        lambda: optax.warmup_cosine_decay_schedule(0.0, 0.4, 3, 10),
    ),
    "warmup_exponential_decay": (
        {"init_value": 0.0, "peak_value": 0.4, "warmup_steps": 3, "transition_steps": 2, "decay_rate": 0.5},
        lambda: optax.warmup_exponential_decay_schedule(0.0, 0.4, 3, 2, 0.5),
    ),
}


def test_all_of_them_are_tried():
    assert set(GIVEN) | {"join"} == set(OPTAX)


@pytest.mark.parametrize("name", GIVEN)
def test_named_schedules_are_those_of_optax(name):
    given, wanted = GIVEN[name]
    rate, want = SCHEDULES.build("FedAvg: client_lr", {"schedule": name, **given}), wanted()
    np.testing.assert_array_equal(*(jax.jit(jax.vmap(f))(np.arange(14)) for f in (rate, want)))


def test_joined_schedules_count_from_their_boundaries():
    """A line from 0 to 0.4 over 4 rounds, then half a cosine over 6, then 0.05."""
    rate = jax.jit(SCHEDULES.build("client_lr", JOINED))
    want = (
        [0.1 * t for t in range(4)] + [0.2 * (1 + math.cos(math.pi * t / 6)) for t in range(6)] + [0.05] * 3
    )
    np.testing.assert_allclose([rate(t) for t in range(13)], want, atol=1e-7)


def test_a_named_schedule_is_written_as_it_was_given_and_travels_to_clients():
    settings = {"client_lr": JOINED}
    method = build("FedAvg", settings)
    assert recipe_of(method) == ("FedAvg", settings)
    assert from_spec(to_spec(method)) == method
    assert repr(build("FedAvg", {"client_lr": COSINE}).local.lr) == (
        "optax.cosine_decay_schedule(decay_steps=6, init_value=0.4)"
    )


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"schedule": "cosine"}, "unknown schedule of FedAvg: client_lr 'cosine': did you mean 'cosine_decay'?"),
        ({"schedule": "cosine_decay", "init": 1}, "of cosine_decay 'init': did you mean 'init_value'?"),
        ({"schedule": "cosine_decay", "init_value": 0.1}, "cosine_decay needs decay_steps, as optax."),
        ({**COSINE, "decay_steps": 0}, "cosine_decay: decay_steps = 0 must be"),
        ({**COSINE, "decay_steps": 2.5}, "cosine_decay: decay_steps = 2.5 must be"),
        ({**COSINE, "init_value": "0.1"}, "cosine_decay: init_value = '0.1' must be"),
        ({**COSINE, "init_value": math.nan}, "must be finite numbers by name"),
        ({**JOINED, "boundaries": [4]}, "boundaries = [4] of 3 schedules must be 2 rounds in ascending order"),
        ({**JOINED, "boundaries": [10, 4]}, "must be 2 rounds in ascending order"),
        ({**JOINED, "schedules": [WARM, {"schedule": "lin"}, 1]}, "unknown schedule of join: schedules[1] 'lin'"),
        (
            {
                "schedule": "join",
                "boundaries": [3],
                "schedules": [
                    0.1,
                    {"schedule": "reduce_on_plateau", "initial": 0.1, "metric": "train_loss", "patience": 2},
                ],
            },
            "join: schedules[1]: reduce_on_plateau follows evaluations, so it cannot be joined",
        ),
        (
            {"schedule": "piecewise_constant", "init_value": 1, "boundaries_and_scales": {"x": 1}},
            "must be factors by round, such as {50 = 0.1}",
        ),
        (
            {"schedule": "piecewise_constant", "init_value": 1, "boundaries_and_scales": {"5": -1.0}},
            "piecewise_constant: optax.piecewise_constant_schedule refuses it",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(table, words):
    with pytest.raises(fs.InvalidInput) as caught:
        build("FedAvg", {"client_lr": table})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
