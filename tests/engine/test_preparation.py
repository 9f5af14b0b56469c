"""The five steps that make a run ready, each by itself: its record has what the step before gave and one thing more."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.fleets import Fleet
from fedsolve.engine.compute.casting import in_run
from fedsolve.engine.evaluation.eval_sets import choose_eval_sets
from fedsolve.engine.evaluation.example_metrics import EvalClients
from fedsolve.engine.options import RunOptions
from fedsolve.engine.placement import Budget, DeviceData, Plan, budget, plan, put_on_devices
from fedsolve.engine.resolve import ResolvedRun, resolve
from harness import EPOCHS, FEATURES, SIZES, make_clients, make_task

TASK = make_task(make_clients())


def steps(method: fs.Algorithm, **options: Any) -> tuple[ResolvedRun, DeviceData, Plan, Budget]:
    """All records of a run."""
    requested = resolve(method, TASK, RunOptions(rounds=3, **options))
    placed = put_on_devices(requested)
    planned = plan(requested, placed)
    return requested, placed, planned, budget(placed, planned)


@pytest.mark.parametrize("record", [ResolvedRun, DeviceData, Plan, Budget])
def test_records_are_frozen(record):
    """No later step can change what an earlier one decided."""
    assert record.__dataclass_params__.frozen  # pyright: ignore[reportAttributeAccessIssue]


def test_what_is_requested_has_every_default_filled_in():
    """Local work and the interval between evaluations are the task's; the method and its numbers are the user's."""
    method = fs.FedAvg(0.1)
    requested = resolve(method, TASK, RunOptions(rounds=100))
    assert requested.algorithm is method
    assert requested.label == "FedAvg"
    assert (requested.options.epochs, requested.options.local_steps) == (EPOCHS, None)
    assert requested.eval_every == 2
    assert requested.options.devices == 1
    assert requested.fleet is None
    assert requested.sampling == fs.sampling.Uniform(len(SIZES))
    assert requested.steps.tolist() == [EPOCHS * -(-size // 4) for size in SIZES]
    assert requested.identity["algorithm"].startswith("FedOpt(")
    assert resolve(method, TASK, RunOptions(rounds=1), "mine").label == "mine"


def test_a_request_places_nothing(monkeypatch):
    """What does not fit is refused before any data are copied to a device."""
    monkeypatch.setattr(jax, "device_put", None)
    monkeypatch.setattr(jnp, "asarray", None)
    with pytest.raises(fs.InvalidInput, match="choose at most 5"):
        resolve(fs.FedAvg(0.1), TASK, RunOptions(rounds=1, clients_per_round=len(SIZES) + 1))


def test_what_is_placed_is_in_the_type_of_the_run():
    """Method, model and examples; where clients are streamed a few of them lie on the device."""
    _, placed, _, _ = steps(fs.FedAvg(0.1))
    floating = [x for x in jax.tree.leaves((placed.params, placed.clients.examples)) if x.dtype.kind == "f"]
    assert {x.dtype for x in floating} == {np.dtype("float32")}
    assert placed.population is None
    assert placed.clients.examples.x.shape == (sum(SIZES), FEATURES)
    assert placed.state_bytes == 0
    assert not placed.remarks
    _, streamed, _, _ = steps(fs.FedAvg(0.1), residency="stream", clients_per_round=1)
    assert streamed.population is not None
    assert streamed.remarks[0].startswith("clients are streamed")


def test_eval_sets_are_chosen_of_what_is_placed():
    """The training metrics of clients on the device are of the arrays that train."""
    requested, placed, _, _ = steps(fs.FedAvg(0.1))
    sets, remarks = choose_eval_sets(requested, placed)
    assert isinstance(sets.training, EvalClients)
    assert sets.training.packed is placed.clients
    assert not remarks


def test_a_plan_has_the_program_and_what_travels():
    """The longest call is an interval between evaluations; chunk and late broadcasts are part of the identity."""
    _, placed, planned, _ = steps(fs.FedAvg(0.1), eval_every=2, chunk=2)
    assert (planned.program.chunk, planned.program.capacity, planned.cohort) == (2, 2, len(SIZES))
    assert planned.algorithm is placed.algorithm
    assert planned.identity == {"chunk": 2}
    assert planned.traffic.down > 4 * (FEATURES + 1) * 3
    assert planned.stream is None


def test_a_plan_on_a_clock_keeps_broadcasts_of_late_clients():
    """The method of a fleet has the last broadcasts around it, and its cohorts are written down."""
    fleet = Fleet(clients=5, step_seconds=[1, 2, 4, 8, 16], download=1e6, upload=1e6)
    _, placed, planned, _ = steps(fs.FedBuff(0.1, buffer=1), systems=fleet, clients_per_round=5)
    assert planned.timed is not None
    assert getattr(planned.algorithm, "inner", None) is placed.algorithm
    assert planned.identity["versions"] == planned.timed.depth
    assert planned.sampling is planned.timed.sampling


def test_a_budget_counts_the_states_of_the_clients_on_the_device():
    """All of them where none are streamed."""
    _, placed, _, memory = steps(fs.SCAFFOLD(0.1))
    states = {need.what: need.bytes for need in memory.needs}["clients' states"]
    assert memory.slots == len(SIZES)
    assert states == len(SIZES) * placed.state_bytes > 0
    assert memory.examples == sum(x.nbytes for x in jax.tree.leaves(placed.clients.examples))
    assert dataclasses.replace(memory, remark="") == memory


def test_a_sweep_trains_the_methods_of_runs():
    """Numbers in the run's type, as `place` has them."""
    _, placed, _, _ = steps(fs.FedAvg(0.3))
    assert jax.tree.leaves(in_run(fs.FedAvg(0.3), TASK, jnp.float32)) == jax.tree.leaves(placed.algorithm)
