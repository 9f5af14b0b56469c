"""What acts on other values or at another step than those that `from_torch` compares: noted or refused, never lost."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import fedsolve as fs  # noqa: E402

DRAW = np.random.default_rng(0)
CLIENTS = [(DRAW.normal(size=(n, 4)).astype(np.float32), DRAW.integers(0, 3, n)) for n in (6, 3)]
FAR = 1e3  # no gradient of the sample is so large


def clipped(g):
    return g.clamp(-FAR, FAR)


class Clipping(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, *g):
        return clipped(g[0])


class Net(nn.Module):
    """A layer, after which `after` is called with its outputs and the module."""

    def __init__(self, after=lambda own, h: h):
        super().__init__()
        self.last, self.after, self.step, self.seen = nn.Linear(4, 3), after, 0, SimpleNamespace(calls=0)

    def forward(self, x):
        return self.after(self, self.last(x))


def parameter():
    module = Net()
    module.last.weight.register_hook(clipped)
    return module


def backward(before):
    module = Net()
    if before:
        module.last.register_full_backward_pre_hook(lambda _, up: (clipped(up[0]),))
    else:
        module.last.register_full_backward_hook(lambda _, down, up: None)
    return module


def on_outputs(own, h):
    if h.requires_grad:
        h.register_hook(clipped)
    return h


def of_loss(outputs, y):
    return F.cross_entropy(Clipping.apply(outputs), y)


def hooked_loss(outputs, y):
    return F.cross_entropy(on_outputs(None, outputs), y)


def dropped(own, h):
    return h * 2 if own.training and random.random() < 1e-6 else h


def noisy(own, h):
    return h + np.random.standard_normal() * 0 if own.training else h  # noqa: NPY002


@pytest.mark.parametrize(
    ("module", "loss", "words"),
    [
        (parameter, F.cross_entropy, "parameter 'last.weight' has a hook"),
        (lambda: backward(True), F.cross_entropy, "'last' .Linear. has a backward hook"),
        (lambda: backward(False), F.cross_entropy, "'last' .Linear. has a backward hook"),
        (lambda: Net(on_outputs), F.cross_entropy, "a tensor has a hook"),
        (lambda: Net(lambda _, h: Clipping.apply(h)), F.cross_entropy, "torch.autograd.Function Clipping"),
        (Net, of_loss, "torch.autograd.Function Clipping"),
        (Net, hooked_loss, "a tensor has a hook"),
        (lambda: Net(dropped), F.cross_entropy, "Python's or NumPy's random numbers"),
        (lambda: Net(noisy), F.cross_entropy, "Python's or NumPy's random numbers"),
    ],
)
def test_what_the_sample_does_not_show_runs_in_pytorch(module, loss, words):
    task = fs.tasks.from_torch(module(), loss, CLIENTS)
    assert len(task.notes) == 1
    assert words.replace(".Linear.", "(Linear)") in task.notes[0]
    assert "runs in PyTorch" in task.notes[0]


def sampled(own, h):
    return h * (1 + torch.poisson(torch.ones_like(h))) if own.training else h


def test_modules_that_draw_by_other_operations_are_called():
    task = fs.tasks.from_torch(Net(sampled), F.cross_entropy, CLIENTS, translate=False)
    assert "runs in PyTorch" in task.notes[0]


def counted(own, h):
    own.step += own.training
    return h * (own.step < 50)


def counted_inside(own, h):
    own.seen.calls += own.training
    return h


def remembering():
    calls = 0

    def loss(outputs, y):
        nonlocal calls
        calls += 1
        return F.cross_entropy(outputs, y)

    return loss


@pytest.mark.parametrize("translate", [None, False])
@pytest.mark.parametrize(
    ("module", "loss", "words"),
    [
        (lambda: Net(counted), F.cross_entropy, "attribute 'step' of the module changes"),
        (lambda: Net(counted_inside), F.cross_entropy, "attribute 'seen' of the module changes"),
        (Net, remembering(), "attribute 'calls' of the loss changes"),
    ],
)
def test_attributes_that_matter_at_a_later_step_are_refused(module, loss, words, translate):
    with pytest.raises(fs.InvalidInput, match=words):
        fs.tasks.from_torch(module(), loss, CLIENTS, translate=translate)
