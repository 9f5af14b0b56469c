"""Clients of very different sizes: grouped, each pays for itself, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import fedsolve as fs
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.engine.compute.clients import local_work
from fedsolve.engine.compute.round import simulate
from fedsolve.engine.compute.sharding import works_by_size
from fedsolve.engine.options import RunOptions
from fedsolve.engine.prepare import prepare
from harness import make_clients, make_task

SIZES = (3, 90, 5, 4, 7, 3, 5, 90, 6, 4, 3, 5)
"""Two clients of 90 examples among ten of at most 7: padded alike 12 x 90 rows, grouped 2 x 90 + 10 x 7."""
CLIENTS = make_clients(SIZES)


def works(counts, **local):
    local = {"batch_size": 4, "epochs": None, "local_steps": None} | local
    counts = np.array(counts)
    work, steps = local_work(counts, None, **local)
    return works_by_size(work, counts, steps)


def test_sizes_are_cut_where_the_least_is_padded():
    """A cut at 7 leaves 250 rows of 1,080; one million rows, a few hundred and a few make three groups."""
    assert [w.rows for w in works(SIZES, epochs=1)] == [90, 7]
    assert [w.rows for w in works([10**6] + [300] * 20 + [5] * 2000, epochs=1)] == [10**6, 300, 5]


@pytest.mark.parametrize("counts", [(60, *[3] * 50), (90, 80, 70, 60), (90, 90, 90)])
def test_sizes_that_are_not_worth_a_program(counts):
    """At most 64 examples, or less than three quarters of the padding to save."""
    (work,) = works(counts, epochs=1)
    assert work.rows == max(counts)


def test_the_work_of_each_group():
    """Batches stay what they are; steps and passes are a group's own, but a client of one batch has an order for each
    pass of any client.

    10 steps of 4 are one pass and two batches of 90 rows (23 a pass), and five passes of 7 rows (2 a pass).
    """
    long, short = works(SIZES, local_steps=10)
    assert (long.passes, short.passes) == (1, 5)
    assert long.batch_size == short.batch_size == 4
    long, short = works(SIZES, epochs=2)
    assert (long.max_steps, short.max_steps) == (46, 4)
    long, short = works(SIZES, epochs=1, batch_size=None)
    assert (long.batch_size, short.batch_size, long.passes, short.passes) == (90, 7, 0, 0)


METHODS = {
    "FedAvg": lambda: fs.FedAvg(0.1),
    "SCAFFOLD": lambda: fs.SCAFFOLD(0.1),
    "median": lambda: fs.robust.Robust(fs.FedAvg(0.1), fs.robust.Median()),
}
LOCAL = {"epochs": {"epochs": 2}, "steps": {"local_steps": 3}, "all": {"epochs": 2, "batch_size": "full"}}


def run(method, sampling, *, grouped, **options):
    """Three rounds; everything that a run carries as one vector, and the logs."""
    with jax.enable_x64(True):
        given = RunOptions(rounds=3, sampling=sampling, dtype="float64", **options)
        prepared = prepare(METHODS[method](), make_task(CLIENTS), given)
        assert len(prepared.program.groups) == 2
        if not grouped:
            prepared = replace(prepared, program=replace(prepared.program, groups=()))
        state, logs = prepared.advance(prepared.state, 3)
        return np.asarray(ravel_pytree((state.server, state.clients))[0]), logs


@pytest.mark.parametrize(
    ("method", "local", "sampling", "chunk"),
    [
        pytest.param("FedAvg", "epochs", fs.sampling.Uniform(6), None, marks=pytest.mark.full),
        ("SCAFFOLD", "steps", fs.sampling.Bernoulli(0.4), 2),
        pytest.param("median", "all", fs.sampling.Uniform(12), None, marks=pytest.mark.full),
        pytest.param("SCAFFOLD", "all", fs.sampling.Uniform(7), 1, marks=pytest.mark.full),
    ],
)
def test_groups_change_nothing(method, local, sampling, chunk):
    """The same rounds with all clients padded to 90 examples, to 64-bit rounding: models, client states, logs."""
    options = LOCAL[local] | {"chunk": chunk}
    found, logs = run(method, sampling, grouped=True, **options)
    want, same = run(method, sampling, grouped=False, **options)
    np.testing.assert_allclose(found, want, rtol=1e-11, atol=1e-13)
    for name, log in logs.items():
        np.testing.assert_allclose(log, same[name], rtol=1e-11)
    assert logs["participants"].sum() > 0
    assert not logs["dropped"].any()


@pytest.mark.full
def test_trials_side_by_side_are_the_runs_alone():
    """Seeds draw the long clients in different rounds: their loops run as often as any of the seeds needs."""
    with jax.enable_x64(True):
        given = RunOptions(rounds=3, clients_per_round=4, dtype="float64", chunk=2)
        p = prepare(fs.FedAvg(0.1), make_task(CLIENTS, local_steps=1), given)

        @jax.jit
        def of_key(key):
            state, _ = simulate(p.program, p.algorithm, p.sampling, p.packed, key, p.state, 3)
            return ravel_pytree(state.server)[0]

        keys = jax.random.split(jax.random.key(0), 3)
        alone = np.stack([of_key(key) for key in keys])
        np.testing.assert_allclose(jax.vmap(of_key)(keys), alone, rtol=1e-11, atol=1e-13)


def test_a_deployed_client_is_padded_to_its_own_group():
    """Batches of everything: the client of 7 examples sees 7 rows, the one of 90 sees 90."""
    task = make_task(CLIENTS, batch=None)
    assert [JaxOracle.of_task(task, i).begin(jax.random.key(0), i, "float32").work.rows for i in (4, 1)] == [
        7,
        90,
    ]
