"""SCAFFOLD with one vector up in a federation whose clients are said to take the same number of local steps."""

import jax
import numpy as np
import pytest

import fedsolve as fs
from conformance.properties import task
from deploy_small import POPULATION, clients_of, deploy
from fedsolve.core.errors import Unavailable


@pytest.mark.full
def test_the_model_is_that_of_a_simulation(tmp_path):
    """Bit for bit; a simulation finds the number of steps by itself."""
    problem = task((8,) * POPULATION)
    found, _, _ = deploy(fs.SCAFFOLD(0.1, equal_steps=2), tmp_path, app=clients_of(problem), rounds=2)
    alone = fs.run(fs.SCAFFOLD(0.1), problem, rounds=2, chunk=1, dtype="float64", progress=False)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(alone.params), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_clients_with_other_steps_refuse(tmp_path):
    with pytest.raises(Unavailable, match=r"SCAFFOLD\(equal_steps=3\): local steps are 2"):
        deploy(fs.SCAFFOLD(0.1, equal_steps=3), tmp_path, rounds=1, repeats=0)


def test_secure_sums_do_not_find_out():
    """A simulation with secure sums has the messages of a federation, unless the method is told."""
    secure = fs.Secure(fs.SCAFFOLD(0.1), bound=1.0, max_clients=4)
    assert secure.with_steps(2) is secure
    with pytest.raises(fs.InvalidInput, match="local steps are 3"):
        fs.Secure(fs.SCAFFOLD(0.1, equal_steps=2), bound=1.0, max_clients=4).with_steps(3)
