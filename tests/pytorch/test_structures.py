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


class Experts(nn.Module):
    """A mixture of two with the balance of their loads."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.router, self.experts = nn.Linear(4, 2), nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])

    def forward(self, x):
        gates = self.router(x).softmax(1)
        loads = F.one_hot(gates.argmax(1), 2).to(gates.dtype).mean(0)
        outputs = torch.stack([expert(x) for expert in self.experts], 2)
        return (outputs * gates[:, None]).sum(2), 2 * (loads * gates.mean(0)).sum()


def balanced(outputs, y):
    return F.cross_entropy(outputs[0], y) + 0.1 * outputs[1]


@pytest.mark.gate(
    "Experts-balanced-an output has no row for each example: compute what is of a whole batch in the loss-True"
)
@pytest.mark.parametrize(
    ("module", "loss", "words", "translate"),
    [
        (
            Experts,
            balanced,
            "an output has no row for each example: compute what is of a whole batch in the loss",
            True,
        ),
        (
            lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)),
            F.cross_entropy,
            "depend on the others of the batch in evaluation: compute what is of a whole batch in the loss",
            False,
        ),
    ],
)
def test_what_is_of_a_whole_batch_belongs_in_the_loss(module, loss, words, translate):
    with pytest.raises(fs.InvalidInput, match=words):
        fs.tasks.from_torch(module(), loss, [(X, Y)], translate=translate)
