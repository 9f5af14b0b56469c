"""A process that answers several messages: programs are compiled once."""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle_small import key, local_work, same, train

import fedsolve as fs

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from fedsolve.deploy.oracles.torch import TorchOracle  # noqa: E402

RNG = np.random.default_rng(0)
X, Y = torch.tensor(RNG.standard_normal((20, 6)), dtype=torch.float32), torch.tensor(RNG.integers(0, 3, 20))


def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 3))


def torch_oracle(scale=1.0):
    loader = DataLoader(TensorDataset(X * scale, Y), batch_size=4, shuffle=True, generator=torch.Generator())
    return TorchOracle(module(), nn.functional.cross_entropy, loader)


def test_one_program_serves_every_oracle_of_the_same_sizes():
    """Each with its own examples; a program keeps no oracle in memory, and the oracle of a round keeps its problem."""
    first, second = torch_oracle(), torch_oracle(2.0)
    found = [local_work(fs.FedAvg(0.1), problem, problem.params) for problem in (first, second, first)]
    programs = train._cache_size()
    gone = weakref.ref(torch_oracle())
    gc.collect()
    assert gone() is None
    again = [local_work(fs.FedAvg(0.1), torch_oracle(s), first.params) for s in (1.0, 2.0, 1.0)]
    assert train._cache_size() == programs
    assert all(same(a, b) for a, b in zip(found, again, strict=True))
    assert not same(found[0], found[1])
    alone, w = torch_oracle().begin(key(), 5, "float32"), jax.tree.map(jnp.asarray, first.params)
    gc.collect()
    assert float(alone.loss(w, 0)) == float(first.begin(key(), 5, "float32").loss(w, 0))
