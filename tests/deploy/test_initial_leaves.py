"""Leaves of the initial model on the wire: 8 bytes each, and a client whose model is another one is told."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from conformance.properties import COHORTS
from deploy_small import QUICK, clients_of, simulated
from deploy_small import deploy_quick as deploy
from fedsolve import wire
from harness import Listed, crossed

START = {"w": np.arange(34.0).reshape(2, 17) / 20}
MATRIX = replace(QUICK, init=lambda key: START, loss=lambda p, x: jnp.mean(jnp.square(x @ p["w"].T - 1)))
GIVEN = {"app": clients_of(MATRIX), "params": START}
PARAMS = {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones(3)}


def test_a_leaf_is_sent_by_name_and_digest():
    """The receiver's copy takes its place; another model, or none, is refused with the leaf's path."""
    sent = (wire.Initial(PARAMS["w"], "w"), jnp.ones(2))
    data, like = wire.encode(sent), jax.eval_shape(lambda: sent)
    assert len(data) == wire.size(sent) == wire.size(like) == 8 + 8
    leaf, numbers = wire.decode(data, like, PARAMS)
    np.testing.assert_array_equal(leaf.value, PARAMS["w"])
    np.testing.assert_array_equal(numbers, 1)
    for other in ({}, {"w": PARAMS["w"].at[0, 0].set(7)}, {"w": PARAMS["w"].astype(jnp.bfloat16)}):
        with pytest.raises(fs.InvalidInput, match=r"^w of the initial model is not the server's"):
            wire.decode(data, like, other)


@pytest.mark.full
@pytest.mark.parametrize("average", crossed(["A", "exact", "stack"], ["exact"]))
def test_low_rank_rounds_over_messages(average, tmp_path):
    """The model is the simulation's."""
    method = fs.LowRank(fs.FedAvg(0.3), 1, average, leaves="w")
    sampling = Listed.of(COHORTS)
    found, _, _ = deploy(method, tmp_path, sampling=sampling, **GIVEN)
    setup, state, _ = simulated(method, MATRIX, sampling=sampling)
    with jax.enable_x64(True):
        wanted = setup.algorithm.export(state.server)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


@pytest.mark.full
def test_a_server_with_another_initial_model_gets_no_update(tmp_path):
    """Its clients would train something else."""
    other = {"params": jax.tree.map(lambda x: x + 1, START)}
    with pytest.raises(fs.FedsolveError, match="of the initial model is not the server's"):
        deploy(fs.LowRank(fs.FedAvg(0.3), 1, leaves="w"), tmp_path, **GIVEN | other)
