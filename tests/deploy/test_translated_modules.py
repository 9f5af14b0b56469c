"""A translated module in a deployment: the model and the statistics of the engine, and the module from them."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("flwr", reason="Flower is not installed")

from torch import nn  # noqa: E402

import fedsolve as fs  # noqa: E402
from deploy_small import clients_of, deploy  # noqa: E402
from fedsolve.deploy.oracles.jax import JaxOracle  # noqa: E402
from harness import Listed  # noqa: E402

COHORTS = [[0, 2], [1, 2]]


@pytest.mark.full
@pytest.mark.parametrize("frozen_dtype", [None, "int8"])
def test_a_deployed_module_is_the_simulated_one(tmp_path, frozen_dtype):
    """Uneven clients, BatchNorm, dropout and a frozen leaf, two rounds, clients one at a time: the same bits.

    Also of a module in bfloat16, whose frozen matrix is stored in 8 bits.
    """
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    frozen = "0.weight" if frozen_dtype else "0.bias"
    module.get_parameter(frozen).requires_grad_(False)
    module = module.bfloat16() if frozen_dtype else module
    draw = np.random.default_rng(0)
    clients = [(draw.normal(size=(n, 4)).astype(np.float32), draw.integers(0, 3, n)) for n in (6, 3, 5)]
    task = fs.tasks.from_torch(
        module, nn.CrossEntropyLoss(), clients, batch_size=3, translate=True, frozen_dtype=frozen_dtype
    )
    kept = []
    params, _, _ = deploy(
        fs.FedAvg(0.1),
        tmp_path,
        app=clients_of(task),
        sampling=Listed.of(COHORTS),
        params=task.init(None),
        population=3,
        rounds=2,
        buffers=JaxOracle.of_task(task, 0).buffers,
        evaluate=lambda model, buffers: kept.append(buffers) or {},
    )
    result = fs.run(fs.FedAvg(0.1), task, rounds=2, sampling=Listed.of(COHORTS), chunk=1)
    deployed, simulated = task.module(params, kept[-1]).state_dict(), result.module().state_dict()
    assert deployed.keys() == module.state_dict().keys()
    for name, value in simulated.items():
        assert torch.equal(deployed[name], value), name
        before = module.state_dict()[name]
        assert (deployed[name].dtype, value.dtype) == (before.dtype, before.dtype)
        moved = (value.double() - before.double()).abs().max()
        assert (moved > 0.008 * before.double().abs().max()) == (name not in ("0.bias", frozen)), name
