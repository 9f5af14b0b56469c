"""Wrappers, samplers and hooks that act outside of what fedsolve calls: used, named in a note, or refused."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils import data  # noqa: E402

import fedsolve as fs  # noqa: E402
from fedsolve.deploy.oracles.torch import TorchOracle  # noqa: E402

X = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
Y = np.arange(9) % 3
ITEMS = data.TensorDataset(torch.as_tensor(X), torch.as_tensor(Y))
PLAIN = [(torch.as_tensor(X), torch.as_tensor(Y))]


def linear():
    torch.manual_seed(0)
    return nn.Linear(4, 3)


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


class Shared(Wrapper, nn.parallel.DistributedDataParallel):
    """As `DistributedDataParallel`, without its processes."""

    def __init__(self, module):
        nn.Module.__init__(self)
        self.module = module


def per_sample(module):
    """As Opacus leaves a module that it wraps."""
    for p in module.parameters():
        p.grad_sample = None
    return Wrapper(module)


def stepping(module):
    """An optimiser that steps in the backward pass."""
    optimiser = torch.optim.SGD(module.parameters(), 0.1)
    module.weight.register_post_accumulate_grad_hook(lambda p: optimiser.step())
    return module


def diverged(module):
    """A frozen weight that is no number, which attention of PyTorch may hide."""
    module.weight.requires_grad_(False).fill_(np.nan)
    return module


REFUSED = {
    "another process": (Shared, r"the module \(Shared\) shares gradients .*: give the module that it wraps"),
    "a part of another process": (lambda m: nn.Sequential(Shared(m)), r"'0' \(Shared\) shares gradients"),
    "a privacy engine": (per_sample, r"parameter 'module.weight' belongs to a privacy engine .*fs.privacy"),
    "an optimiser in a hook": (stepping, "parameter 'weight' has a hook by register_post_accumulate"),
    "a weight that is no number": (diverged, "parameter 'weight' has a number that is not finite"),
}


@pytest.mark.full_rows("an optimiser in a hook-from_torch")
@pytest.mark.parametrize("way", ["TorchOracle", "from_torch"])
@pytest.mark.parametrize("name", REFUSED)
def test_wrappers_that_would_not_act_are_refused(name, way):
    wrap, words = REFUSED[name]
    given = wrap(linear()), F.cross_entropy
    with pytest.raises(fs.InvalidInput, match=words):
        TorchOracle(*given, PLAIN) if way == "TorchOracle" else fs.tasks.from_torch(*given, [(X, Y)])


class Masked(Wrapper):
    """A mask that does not train, as a parameter."""

    def __init__(self, module):
        super().__init__(module)
        self.mask = nn.Parameter(torch.tensor([0.0, 0.0, -torch.inf]), requires_grad=False)

    def forward(self, x):
        return (self.module(x) + self.mask)[:, :2]


def test_a_frozen_mask_may_be_infinite():
    task = fs.tasks.from_torch(Masked(linear()), F.cross_entropy, [(X, Y % 2)], translate=True)
    result = fs.run(fs.FedAvg(0.1), task, rounds=1)
    assert np.isfinite(result.metrics["train_loss"]).all()
    np.testing.assert_array_equal(result.params["mask"], [0, 0, -np.inf])


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda m: torch.compile(m, backend="eager"), Wrapper])
def test_wrappers_that_compute_the_same_are_used(wrap):
    """Also where the values are others than the module's own."""
    oracles = (
        TorchOracle(linear(), F.cross_entropy, PLAIN),
        TorchOracle(wrap(linear()), F.cross_entropy, PLAIN),
    )
    found = []
    for oracle in oracles:
        params = {name: torch.as_tensor(p) + 0.3 for name, p in oracle.params.items()}
        found.append(oracle._module.step(params, np.zeros(3, np.uint32)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    for a, b in zip(found[0][1].values(), found[1][1].values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def of_rank(dataset):
    return data.DistributedSampler(dataset, num_replicas=3, rank=0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: data.DataLoader(ITEMS, 4, shuffle=True, drop_last=True), None),
        (lambda: data.DataLoader(ITEMS, 4, sampler=data.SubsetRandomSampler([0, 1, 2])), None),
        (
            lambda: data.DataLoader(
                ITEMS, batch_sampler=data.BatchSampler(data.SequentialSampler(ITEMS), 4, True)
            ),
            None,
        ),
        (
            lambda: data.DataLoader(ITEMS, 4, sampler=data.WeightedRandomSampler([1.0] * 9, 6)),
            "WeightedRandomSampler draws 6 of 9 examples in a pass, some several times: full gradients",
        ),
        (
            lambda: data.DataLoader(ITEMS, 4, sampler=data.RandomSampler(ITEMS, replacement=True)),
            "RandomSampler draws 9 of 9 examples in a pass, some several times",
        ),
        (
            lambda: data.DataLoader(ITEMS, 4, sampler=of_rank(ITEMS)),
            "DistributedSampler draws 3 of 9 examples in a pass: ",
        ),
    ],
)
def test_samplers_that_do_not_see_each_example_once_are_noted(make, words):
    notes = TorchOracle(linear(), F.cross_entropy, make()).notes
    assert len(notes) == (words is not None)
    assert all(words in note for note in notes)


@pytest.mark.parametrize("handed", [torch.optim.SGD(linear().parameters(), 0.1), "cross_entropy"])
def test_what_is_no_loss_is_refused(handed):
    with pytest.raises(fs.InvalidInput, match=r"not callable|must be a function"):
        TorchOracle(linear(), handed, PLAIN)
