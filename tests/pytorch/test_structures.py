"""Modules whose outputs have another structure in training than in evaluation, as deep supervision has."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import fedsolve as fs  # noqa: E402

DRAW = np.random.default_rng(0)
X, Y = DRAW.normal(size=(6, 4)), DRAW.integers(0, 3, 6)


class TwoHeads(nn.Module):
    """A second head in training alone."""

    def __init__(self, outputs):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.outputs = nn.Linear(4, 3), nn.Linear(4, 3), outputs
        self.double()

    def forward(self, x):
        return self.outputs(self.first(x), self.second(x)) if self.training else self.first(x)


def supervised(outputs, y):
    heads = list(outputs.values()) if isinstance(outputs, dict) else outputs
    if isinstance(heads, torch.Tensor):
        return F.cross_entropy(heads[:, :3], y)
    return F.cross_entropy(heads[0], y) + 0.4 * F.cross_entropy(heads[1], y)


@pytest.mark.parametrize(
    "outputs",
    [
        lambda a, b: (a, b),
        pytest.param(lambda a, b: {"out": a, "aux": b}, marks=pytest.mark.full),
        pytest.param(lambda a, b: torch.cat([a, b], 1), marks=pytest.mark.full),
    ],
)
def test_another_structure_in_training_runs_in_pytorch(outputs):
    module = TwoHeads(outputs)
    task = fs.tasks.from_torch(module, supervised, [(X, Y)], test=(X, Y), batch_size=None)
    assert (
        "outputs have another structure in training than in evaluation; it runs in PyTorch" in task.notes[0]
    )
    result = fs.run(fs.FedAvg(client_lr=0.5), task, rounds=1, dtype="float64")
    supervised(module(torch.tensor(X)), torch.tensor(Y)).backward()
    for name, p in module.named_parameters():
        step = 0 if p.grad is None else 0.5 * p.grad
        np.testing.assert_allclose(result.params[name], (p - step).detach().numpy(), rtol=1e-10, atol=1e-12)
