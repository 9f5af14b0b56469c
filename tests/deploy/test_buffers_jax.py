"""A task with buffers on the fake grid: parameters and statistics are the compiled engine's."""

import numpy as np
from deploy_small import clients_of, deploy

import fedsolve as fs
from fedsolve.deploy.oracles.jax import JaxOracle
from harness import Listed
from wrappers.test_keeps_buffers import COHORTS, START, WEIGHTS, task


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
