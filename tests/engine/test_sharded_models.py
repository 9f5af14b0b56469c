"""Models in parts on several devices: the trajectory is that of whole ones, and no device holds a whole array."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fedsolve as fs
from harness import make_clients, make_task

CODE = """
import re, sys, tempfile
import jax, jax.numpy as jnp, numpy as np
import fedsolve as fs
from fedsolve.engine.prepare import prepare
from fedsolve.engine.compute.round import compiled_advance
from fedsolve.engine.options import RunOptions
from fedsolve.tasks import MLP, CrossEntropy, Examples

rng = np.random.default_rng(0)
clients = [Examples(rng.random((n, 6)), rng.integers(0, 4, n, np.int32)) for n in (3, 5, 4, 6, 2, 4)]
model = MLP((6, 34, 4))
task = fs.Task("parts", model.init, CrossEntropy(model), fs.FederatedData.from_clients(clients))
mesh = {"clients": 2, "model": 2}
cases = {
    "FedAvg": (fs.FedAvg(0.3), {}),
    "FedAdam": (fs.FedAdam(0.3), {}),
    "SCAFFOLD": (fs.SCAFFOLD(0.3), {"clients_per_round": 3, "chunk": 1}),
    "DiLoCo": (fs.DiLoCo(0.01), {"chunk": 1}),
}
method, options = cases[sys.argv[1]]
given = {"rounds": 4, "eval_every": 2, "batch_size": 2, "dtype": "float64"} | options
whole, parts = fs.run(method, task, **given), fs.run(method, task, mesh=mesh, **given)
for a, b in zip(jax.tree.leaves(whole.params), jax.tree.leaves(parts.params)):
    np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
for column in set(whole.metrics) - {"seconds"}:
    np.testing.assert_allclose(whole.metrics[column], parts.metrics[column], rtol=1e-10)

with jax.enable_x64(True):
    setup = prepare(method, task, RunOptions(mesh=mesh, **given))
    program = (setup.program, setup.algorithm, setup.sampling, setup.shared, setup.key, setup.state, jnp.int32(2))
    compiled = compiled_advance(setup.program.on_one_core).lower(*program).compile().as_text()
    assert re.search(r"f64\\[(?:[0-9],)*17,6\\]", compiled)
    assert not re.search(r"f64\\[(?:[0-9],)*34,6\\]", compiled)
    state, _ = setup.advance(setup.state, 1)
    state, _ = setup.advance(state, 1)
leaves = [(x, x.shape) for x in jax.tree.leaves((state.server, state.previous))]
leaves += [(x, x.shape[1:]) for x in jax.tree.leaves(state.clients)]
for x, shape in leaves:
    divided = any(d % 2 == 0 for d in shape)
    assert {part.data.nbytes for part in x.addressable_shards} == {x.nbytes // (2 if divided else 1)}, x.sharding
assert any(34 in shape for _, shape in leaves)

with tempfile.TemporaryDirectory() as out:
    fs.run(method, task, mesh=mesh, out=out, **(given | {"rounds": 2}))
    resumed = fs.run(method, task, mesh=mesh, out=out, resume=True, **given)
for a, b in zip(jax.tree.leaves(parts.params), jax.tree.leaves(resumed.params)):
    assert (np.asarray(a) == np.asarray(b)).all()
print("same")
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "method",
    ["FedAvg", *(pytest.param(name, marks=pytest.mark.full) for name in ("FedAdam", "SCAFFOLD", "DiLoCo"))],
)
def test_a_model_in_parts_is_a_whole_one(method, subprocess_env):
    """To 1e-10 in model and metrics; what is kept lies in halves, a round has no whole array; resumed to its bits."""
    env = subprocess_env | {"JAX_NUM_CPU_DEVICES": "4"}
    command = [sys.executable, "-c", CODE, method]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "same"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mesh": {"clients": 2}}, "must be a table of clients and model"),
        ({"mesh": {"clients": 0, "model": 2}}, "mesh.clients = 0"),
        ({"mesh": {"clients": 4, "model": 2}}, "devices = 8 must be between 1 and"),
        ({"mesh": {"clients": 1, "model": 1}, "devices": 1}, "give devices or mesh, not both"),
    ],
)
def test_what_is_no_mesh(options, words):
    with pytest.raises(fs.InvalidInput, match=words):
        fs.run(fs.FedAvg(), make_task(make_clients()), rounds=1, **options)


@pytest.mark.full
def test_a_model_on_one_device_is_no_other_run():
    """A table with one device for each model says what `devices` does."""
    task = make_task(make_clients())
    one, other = (
        fs.run(fs.FedAvg(), task, rounds=1, **o) for o in ({}, {"mesh": {"clients": 1, "model": 1}})
    )
    assert one.history.settings == other.history.settings
