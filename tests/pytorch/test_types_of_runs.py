"""A run's types are not PyTorch's: what needs 64 bits runs in PyTorch, and each number is compared by its own type."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from fedsolve.tasks.task import Examples  # noqa: E402
from fedsolve.tasks.torch_modules.agreement import Agreement  # noqa: E402

DRAW = np.random.default_rng(0)
X, Y = DRAW.normal(size=(9, 4)).astype(np.float32), DRAW.integers(0, 3, 9)


class Branches(nn.Module):
    """A path in the module's type beside one in a coarser type."""

    def __init__(self, coarse):
        super().__init__()
        torch.manual_seed(0)
        self.fine, self.rough, self.coarse = nn.Linear(4, 3), nn.Linear(4, 3), coarse

    def forward(self, x):
        return self.fine(x), self.rough(x).to(self.coarse).to(x.dtype)


def apart(outputs, y):
    return F.cross_entropy(outputs[0], y) + F.mse_loss(outputs[1], F.one_hot(y, 3).to(outputs[1].dtype))


def differing(agreement, name, by):
    """Whether a gradient that is off by a share of itself is noticed."""

    def evaluate(point, batch):
        found = agreement.results(point)
        slope = {n: g * (1 + by * (n == name)) for n, g in found.training.gradient.items()}
        return found._replace(training=found.training._replace(gradient=slope))

    return agreement.difference(evaluate) is not None


@pytest.mark.parametrize("coarse", [torch.float16, torch.bfloat16])
def test_a_coarse_type_loosens_nothing_beside_it(coarse):
    agreement = Agreement(Branches(coarse), {"loss": apart}, Examples(X, Y), torch.float64)
    unit = torch.finfo(coarse).eps
    assert differing(agreement, "fine.weight", 1e-5)
    assert not differing(agreement, "rough.weight", unit)
    assert differing(agreement, "rough.weight", 0.2)
