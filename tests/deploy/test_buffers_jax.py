"""A task with buffers on the fake grid: parameters and statistics are the compiled engine's."""

import numpy as np
import pytest

import fedsolve as fs
from deploy_small import clients_of, deploy
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.results.callbacks import FineTuning
from harness import Listed
from wrappers.test_keeps_buffers import CLIENTS, COHORTS, START, WEIGHTS, task


@pytest.mark.full
def test_a_federation_is_the_engine(tmp_path):
    """SCAFFOLD, three rounds of uneven clients: the server averages what clients send as the engine does."""
    problem, kept = task(), []
    deploy(
        fs.SCAFFOLD(0.05),
        tmp_path,
        app=clients_of(problem),
        sampling=Listed.of(COHORTS),
        params=WEIGHTS,
        population=4,
        buffers=JaxOracle.of_task(problem, 0).buffers,
        evaluate=lambda model, buffers: kept.append((model, buffers)) or {},
    )
    found = fs.run(fs.SCAFFOLD(0.05), problem, rounds=3, sampling=Listed.of(COHORTS), dtype="float64")
    model, buffers = kept[-1]
    np.testing.assert_allclose(model, found.params, rtol=1e-12)
    np.testing.assert_allclose(buffers["mean"], found.buffers["mean"], rtol=1e-12)
    assert buffers["seen"] == found.buffers["seen"] == 10
    assert buffers["seen"].dtype == np.asarray(START["seen"]).dtype


def test_clients_measure_with_buffers_and_leave_them(tmp_path):
    """Metrics around one round, and after local steps that move the statistics, are the engine's."""
    problem, rounds = task(clients=[(x, y) for x, y in CLIENTS if len(y) > 4]).hold_out(0.3), {"rounds": 1}
    oracles = [JaxOracle.of_task(problem, i) for i in range(3)]
    at_start = [oracle.buffers for oracle in oracles]
    mine, theirs = FineTuning(3, 0.05), FineTuning(3, 0.05)
    _, history, _ = deploy(
        fs.FedAvg(0.05),
        tmp_path,
        app=client_app(lambda node: oracles[node.client]),
        params=WEIGHTS,
        population=3,
        buffers=at_start[0],
        client_metrics="loss",
        callbacks=[mine, lambda at: left(oracles, at_start) if at.round == 0 else None],
        **rounds,
    )
    found = fs.run(fs.FedAvg(0.05), problem, dtype="float64", callbacks=[theirs], **rounds)
    for name in ("train_loss", "validation_loss", "client_loss_worst"):
        np.testing.assert_allclose(history.evaluations[name], found.metrics[name], rtol=1e-12)
    for done in (0, 1):
        for kind in ("before", "after"):
            ours, engines = (getattr(look, kind)[done].column("loss") for look in (mine, theirs))
            np.testing.assert_allclose(ours, engines, rtol=1e-12)


def left(oracles, at_start):
    for oracle, before in zip(oracles, at_start, strict=True):
        for name, value in before.items():
            np.testing.assert_array_equal(oracle.buffers[name], value)
