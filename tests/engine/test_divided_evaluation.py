"""Examples that several devices evaluate: every metric is that of one device."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsolve.engine.evaluation.eval_sets import is_faster_sharded
from fedsolve.tasks import CNN, GRU, MLP, CrossEntropy, Examples, NextToken

CODE = """
import jax, jax.numpy as jnp, numpy as np
import fedsolve as fs
from fedsolve.engine.options import RunOptions
from fedsolve.engine.prepare import prepare
assert len(jax.devices()) == 3
rng = np.random.default_rng(0)

def examples(n):
    return rng.normal(size=(n, 3)), np.sign(rng.normal(size=n))

def outputs(params, x):  # with a loop: without one, or a convolution, one device evaluates all
    x = jax.lax.fori_loop(0, 3, lambda i, x: x + i, x) - 3
    return jnp.tanh(x @ params["fixed"] + params["w"])[:, 0] + params["b"]

def loss(params, batch):
    x, y = batch
    return jnp.mean(jnp.log1p(jnp.exp(-y * outputs(params, x))) + 0 * jnp.sum(x**2, axis=1))

def hits(params, batch):
    return jnp.mean((outputs(params, batch[0]) * batch[1] > 0).astype(float))

start = {"fixed": rng.normal(size=(3, 2)), "w": np.ones(2), "b": np.zeros(())}
clients = [examples(n) for n in (9, 4, 6, 5, 1)]  # 25, and 28 with the lost ones: the third device has padding
lost = (np.full((3, 3), 1e200), np.ones(3))  # whose squares are not finite

def make(clients):
    return fs.Task.from_arrays(
        loss, start, clients, test=examples(2), validation=examples(7), unseen=[examples(3), examples(2)],
        metrics={"hits": hits, "auc": fs.metrics.AUC()}, predict=outputs, freeze=["fixed"], batch_size=4,
        whole={"spread": jax.jit(lambda params, batch: jnp.std(outputs(params, batch[0])))})

task = make([*clients[:2], lost, *clients[2:]])
options = {"rounds": 4, "eval_every": 2, "clients_per_round": 3, "dtype": "float64"}
one, three = (fs.run(fs.FedAvg(0.3), task, devices=d, **options) for d in (1, 3))
assert set(one.metrics) == set(three.metrics)
assert {"unseen_auc", "validation_hits_averaged", "test_spread", "client_loss_p90"} <= set(one.metrics)
for name in set(one.metrics) - {"seconds"}:
    assert "auc" in name or np.isfinite(one.metrics[name]).all(), name
    np.testing.assert_allclose(three.metrics[name], one.metrics[name], rtol=1e-12, atol=1e-15, err_msg=name)
assert len([note for note in three.history.notes if "left out of all metrics" in note]) == 1
with jax.enable_x64(True):
    prepared = prepare(fs.FedAvg(0.3), make(clients), RunOptions(rounds=1, dtype="float64", devices=3))
rows = {name: [len(part.data) for part in x[0].addressable_shards] for name, x in prepared.divided.sets.items()}
assert rows == {"train": [9] * 3, "test": [1] * 3, "validation": [3] * 3, "unseen": [2] * 3}, rows
print("same")
"""


def test_all_metrics_are_those_of_one_device(subprocess_env):
    """To 1e-12: uneven clients, sets with fewer examples than devices, frozen leaves, clients that have no loss."""
    env = subprocess_env | {"JAX_NUM_CPU_DEVICES": "3"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "same"


CASES = {
    "a convolution": (CrossEntropy(CNN(4)), (28, 28, 1), jnp.float32, True),
    "a recurrence": (NextToken(GRU(5, hidden=4)), (3,), jnp.int32, True),
    "dense layers": (CrossEntropy(MLP((6, 5, 4))), (6,), jnp.float32, False),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_faster_in_parts(case):
    """Convolutions and recurrences, of which XLA computes a part on one core; not products alone."""
    loss, shape, dtype, expected = CASES[case]
    model = jax.eval_shape(loss.model.init, jax.eval_shape(jax.random.key, 0))
    labels = np.zeros((7, *shape) if dtype == jnp.int32 else 7, np.int32)
    assert is_faster_sharded(loss, model, Examples(np.zeros((7, *shape), dtype), labels)) == expected
