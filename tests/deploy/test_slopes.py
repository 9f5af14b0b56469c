"""Methods whose clients rebuild the model from slopes, in a federation: the bits of a simulation, in tens of bytes."""

import jax
import numpy as np
import pytest

import fedsolve as fs
from conformance.properties import SAMPLING
from deploy_small import QUICK, QUICK_START, simulated
from deploy_small import deploy_quick as deploy
from fedsolve.core.errors import Unavailable
from harness import crossed

METHODS = {
    "FedKSeed": (fs.FedKSeed(0.03, seeds=8, most_steps=2), 2 * (1 + 8)),
    "DeComFL": (fs.DeComFL(0.03, directions=2, most_steps=2, history=4), 5 * 8),
}
ENVELOPE = 100
"""Bytes of a reply besides the message, at most."""


@pytest.mark.full
@pytest.mark.parametrize("name", crossed(METHODS, ["DeComFL"]))
def test_the_model_is_that_of_a_simulation(name, tmp_path):
    """Bit for bit, with clients that miss rounds."""
    method, up = METHODS[name]
    found, history, _ = deploy(method, tmp_path, sampling=SAMPLING)
    _, state, _ = simulated(method, QUICK, chunk=1)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(state.server.params), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    sent = history.rounds["bytes_up"] / history.rounds["participants"]
    assert ((up < sent) & (sent < up + ENVELOPE)).all()


def test_another_initial_model_is_refused(tmp_path):
    """Clients would rebuild another model than the server's."""
    params = jax.tree.map(lambda x: x + 0.1, QUICK_START)
    with pytest.raises(Unavailable, match="initial model is not the server's"):
        deploy(METHODS["DeComFL"][0], tmp_path, params=params, rounds=1, repeats=0)
