"""A run's types are not PyTorch's: what needs 64 bits runs in PyTorch, and each number is compared by its own type."""

from __future__ import annotations

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import fedsolve as fs  # noqa: E402
from fedsolve.pytorch.translation.model import Model  # noqa: E402
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


class Hashed(nn.Module):
    """An embedding of a number that is computed from two of a row's."""

    def __init__(self, number, buffer=1):
        super().__init__()
        self.table, self.number = nn.Embedding(61, 3), number
        self.register_buffer("factor", torch.tensor(buffer))

    def forward(self, x):
        return self.table(self.number(x, self.factor) % 61)


IDS = np.zeros((40, 2), np.int64)  # large where the other is small, in every row
IDS[::2, 0], IDS[1::2, 1] = 50_000, 60_000
TIMES = 1.7e9 + DRAW.uniform(0, 1e6, (40, 1)).astype(np.float32)


class Seconds(nn.Module):
    """A cancellation that float64 stands and float32 does not."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(1, 3)

    def forward(self, x):
        return self.last(((x.double() + 0.25) - x.double()).to(x.dtype))


NEEDS_64_BITS = [
    pytest.param(lambda: Hashed(lambda x, _: x[:, 0] * 1000003 + x[:, 1]), IDS, marks=pytest.mark.full),
    pytest.param(lambda: Hashed(lambda x, _: x[:, 0] * 2654435761), IDS, marks=pytest.mark.full),
    (lambda: Hashed(lambda x, _: x[:, 0] * x[:, 1]), IDS),
    pytest.param(
        lambda: Hashed(lambda x, factor: x[:, 0].clamp(max=1) * factor, 2**33 + 5),
        IDS,
        marks=pytest.mark.full,
    ),
    (Seconds, TIMES),
]


@pytest.mark.full_rows("Seconds-x4")
@pytest.mark.parametrize(("made", "x"), NEEDS_64_BITS)
def test_what_needs_64_bits_is_not_translated(made, x):
    data = [(x, DRAW.integers(0, 3, len(x)))]
    with pytest.raises(
        fs.InvalidInput, match=r"in 32 bits, as runs in float32 compute, .*leave translate=True out"
    ):
        fs.tasks.from_torch(made(), F.cross_entropy, data, translate=True)


def both(x):
    return x[:, 0] + x[:, 1]


BOUNDS = [  # (a number of two integers, the largest of them, whether 32 bits hold it)
    (both, 2**30 - 1, True),
    (both, 2**30, False),
    (lambda x: x[:, 0] + x[:, 0] - 2, 2**30 - 1, False),
    (lambda x: torch.add(x[:, 0], x[:, 1], alpha=3), 7, False),
    (lambda x: x[:, 0] * x[:, 0], 46_340, True),
    (lambda x: x[:, 0] * x[:, 0], 46_341, False),
    (lambda x: 5 - x[:, 0], 2**31 - 6, True),
    (lambda x: 5 - x[:, 0], 2**31 - 1, False),
    (lambda x: x[:, :1].clamp(max=9)[:, 0] * 2**20, 2**11, False),
    (lambda x: x.cumsum(1)[:, 1], 2**30 - 1, True),
    (lambda x: x.cumsum(1)[:, 1], 2**30, False),
    (lambda x: x.sum(0)[None, 0] + 0 * x[:, 0], 127, True),
    (lambda x: x.sum(0)[None, 0] + 0 * x[:, 0], 128, False),
    (lambda x: (x > 3).sum() + 0 * x[:, 0], 5, True),
    (lambda x: (x[:, :1].repeat(1, 128) > 3).sum() + 9 + 0 * x[:, 0], 5, False),
    (lambda x: (x != x[:, :1]).cumsum(-1)[:, 1] + 9, 2**31 - 1, True),
    (lambda x: (x[:, 0] | x[:, 1]) + 1, 4, False),  # 5 of 1 and 4
    (lambda x: x.argmax(1) + 1, 4, False),
    (lambda x: (x[:, 0] * 0.5).long(), 4, False),
    (lambda x: x[:, 0] ** 3, 4, False),
    (lambda x: x[:, 0] + torch.arange(2)[x[:, 1]], 1, False),
    (lambda x: torch.where(x[:, 0] > 1, x[:, 0], 2**30) * 2, 4, False),
    (lambda x: torch.nn.functional.pad(x, (1, 0), value=2**30).sum(1), 4, False),
]


@pytest.mark.parametrize(("number", "largest", "fits"), BOUNDS)
def test_how_large_integers_may_become(number, largest, fits):
    module = Hashed(lambda x, _: number(x))
    model = Model(module, torch.ones((5, 2), dtype=torch.int64), largest=largest)
    assert model.wide is not fits


class Clock(nn.Module):
    """Minutes since a moment, of Unix time in float64."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(1, 3)

    def forward(self, x):
        return self.last(((x - 1.7e9) / 60).to(self.last.weight.dtype))


MOMENTS = 1.7e9 + DRAW.uniform(0, 90, (4, 1)), DRAW.integers(0, 3, 4)


def test_inputs_that_float32_rounds_are_told():
    words = "subtract from them a constant that all clients share, or run in float64"
    task = fs.tasks.from_torch(Clock(), F.cross_entropy, [MOMENTS])
    assert words in task.notes[0]
    fine = Clock(), F.cross_entropy, [tuple(map(torch.tensor, (MOMENTS[0] - 1.7e9, MOMENTS[1])))]
    rough = Clock(), F.cross_entropy, [tuple(map(torch.tensor, MOMENTS))]
    fs.flower.TorchOracle(*fine).begin(jax.random.key(0), 0, np.float32)
    with pytest.raises(fs.InvalidInput, match=words):
        fs.flower.TorchOracle(*rough).begin(jax.random.key(0), 0, np.float32)
    with jax.enable_x64(True):
        fs.flower.TorchOracle(*rough).begin(jax.random.key(0), 0, np.float64)


class Mixed(nn.Module):
    """Products in bfloat16, which autocast makes of float32 alone."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.last(x).to(x.dtype)


def test_autocast_is_compared_in_the_type_that_it_converts():
    assert fs.tasks.from_torch(Mixed(), F.cross_entropy, [(X, Y)]).notes == ()
