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
from fedsolve.pytorch.loss_analysis import analyse, refuse_coupled  # noqa: E402
from fedsolve.tasks.inference import in_batches  # noqa: E402

DRAW = np.random.default_rng(0)
CLIENTS = [(DRAW.normal(size=(n, 4)).astype(np.float32), DRAW.integers(0, 3, n)) for n in (6, 3)]
FAR = 1e3  # no gradient of the sample is so large


@pytest.fixture(autouse=True)
def seeded():
    """The same weights in every order of tests."""
    torch.manual_seed(0)


def linear(outputs):
    torch.manual_seed(0)
    return nn.Linear(4, outputs)


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


@pytest.mark.full_rows("<lambda>-cross_entropy-'last' .Linear. has a backward hook0")
@pytest.mark.parametrize(
    ("module", "loss", "words"),
    [
        (parameter, F.cross_entropy, "parameter 'last.weight' has a hook"),
        (lambda: backward(True), F.cross_entropy, "'last' .Linear. has a backward hook"),
        pytest.param(
            lambda: backward(False),
            F.cross_entropy,
            "'last' .Linear. has a backward hook",
            marks=pytest.mark.full,
        ),
        (lambda: Net(on_outputs), F.cross_entropy, "a tensor has a hook"),
        (lambda: Net(lambda _, h: Clipping.apply(h)), F.cross_entropy, "torch.autograd.Function Clipping"),
        pytest.param(Net, of_loss, "torch.autograd.Function Clipping", marks=pytest.mark.full),
        pytest.param(Net, hooked_loss, "a tensor has a hook", marks=pytest.mark.full),
        pytest.param(
            lambda: Net(dropped),
            F.cross_entropy,
            "Python's or NumPy's random numbers",
            marks=pytest.mark.full,
        ),
        (lambda: Net(noisy), F.cross_entropy, "Python's or NumPy's random numbers"),
    ],
)
def test_what_the_sample_does_not_show_runs_in_pytorch(module, loss, words):
    task = fs.tasks.from_torch(module(), loss, CLIENTS)
    assert len(task.notes) == 1
    assert words.replace(".Linear.", "(Linear)") in task.notes[0]
    assert "runs in PyTorch" in task.notes[0]


def sampled(own, h):
    both = torch.poisson(torch.ones_like(h)) + np.random.standard_normal()  # noqa: NPY002
    return h * (1 + both) if own.training else h


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


@pytest.mark.parametrize("translate", [None, pytest.param(False, marks=pytest.mark.full)])
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


def keeping(own, h):
    own.mean = h.mean(1, keepdim=True).detach()
    return h - own.mean


class Centred(nn.Module):
    """A loss with a centre that moves, as DINO's, in place or not."""

    def __init__(self, in_place):
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))
        self.in_place = in_place

    def forward(self, outputs, y):
        moved = 0.9 * self.centre + 0.1 * outputs.detach().mean(0)
        loss = F.cross_entropy(outputs - self.centre, y)
        if self.in_place:
            self.centre.copy_(moved)
        else:
            self.centre = moved
        return loss


def state_of(*modules):
    found = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # noqa: NPY002
    return found + [(sorted(vars(m)), m.training, m.state_dict().__repr__()) for m in modules]


@pytest.mark.parametrize("in_place", [True, False])
def test_an_oracle_leaves_no_trace_when_it_is_made(in_place):
    module, loss = Net(dropped).eval(), Centred(in_place)
    generator = torch.Generator().manual_seed(3)
    data = torch.utils.data.TensorDataset(*map(torch.as_tensor, CLIENTS[0]))
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, generator=generator)
    before, drawn = state_of(module, loss), generator.get_state()
    fs.flower.TorchOracle(module, loss, loader)
    assert state_of(module, loss) == before
    assert torch.equal(generator.get_state(), drawn)


@pytest.mark.full
def test_a_task_leaves_no_trace_of_tensors_as_attributes():
    module = Net(keeping).eval()
    before = state_of(module)
    fs.tasks.from_torch(module, F.cross_entropy, CLIENTS)
    assert state_of(module) == before
    assert not hasattr(module, "mean")


class Noisy(torch.utils.data.Dataset):
    def __init__(self, noise):
        self.noise = noise

    def __len__(self):
        return 6

    def __getitem__(self, i):
        return torch.as_tensor(CLIENTS[0][0][i]) + self.noise * torch.randn(4), int(CLIENTS[0][1][i])


@pytest.mark.full_rows("0.0")
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_dataset_with_random_items_is_named_in_a_note(noise):
    task = fs.tasks.from_torch(Net(), F.cross_entropy, [Noisy(0.0), Noisy(noise)])
    assert [("client 1" in note and "self.training" in note) for note in task.notes] == [True] * (noise > 0)


def summed(outputs, y):
    return F.cross_entropy(outputs, y, reduction="sum")


def weighted(outputs, y):
    return F.cross_entropy(outputs, y, weight=torch.tensor([1.0, 2.0, 3.0]))


REAL = [(torch.as_tensor(CLIENTS[0][0]), torch.arange(6.0))]
CLASSES = [tuple(map(torch.as_tensor, CLIENTS[0]))]


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(
    ("module", "loss", "loader", "words"),
    [
        (
            linear(1),
            F.mse_loss,
            REAL,
            r"broadcasts outputs of shape \(6, 1\) against targets of shape \(6,\)",
        ),
        (linear(3), summed, CLASSES, "of a batch of 6 it is .*, with each of them twice"),
        (
            linear(3).bfloat16(),
            F.cross_entropy,
            CLASSES,
            "the module has bfloat16 numbers in weight: runs are in float32",
        ),
        (linear(1), lambda outputs, y: F.mse_loss(outputs[:, 0], y), REAL, None),
        (linear(3), weighted, CLASSES, None),
    ],
)
def test_an_oracle_refuses_what_a_task_refuses(module, loss, loader, words):
    if words is None:
        fs.flower.TorchOracle(module, loss, loader)
        return
    with pytest.raises(fs.InvalidInput, match=words):
        fs.flower.TorchOracle(module, loss, loader)
    if "bfloat16" in words:  # of which a task has copies in float32
        return
    with pytest.raises(fs.InvalidInput):
        fs.tasks.from_torch(module, loss, [tuple(t.numpy() for t in loader[0])], translate=False)


def loader(x, y, size=4):
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=size)


NORMED = nn.Sequential(linear(3), nn.BatchNorm1d(3))
X, Y = torch.as_tensor(np.tile(CLIENTS[0][0], (2, 1))[:9]), torch.arange(9) % 3


@pytest.mark.parametrize(
    ("module", "loss", "batches", "words"),
    [
        (
            NORMED,
            F.cross_entropy,
            loader(X, Y),
            "has one example: Sequential fails in training .* or drop_last",
        ),
        (NORMED, F.cross_entropy, [(X[:4], Y[:4]), (X[:1], Y[:1])], "a batch of the loader has one example"),
        (
            linear(1),
            lambda outputs, y: F.binary_cross_entropy_with_logits(outputs[:, 0], y),
            loader(X, Y % 2),
            "Float can't be cast",
        ),
        (linear(3), F.cross_entropy, loader(X, Y + 1), "the targets of a batch are 1 to 3"),
        (
            linear(3),
            F.cross_entropy,
            loader(X * np.nan, Y),
            "the inputs of a batch hold a number that is not",
        ),
        (
            linear(1),
            lambda outputs, y: F.mse_loss(outputs[:, 0], y),
            loader(X, torch.tensor([np.nan] + 8 * [1.0])),
            "the targets of a batch hold a number that is not finite",
        ),
        (
            nn.Linear(5, 3),
            F.cross_entropy,
            loader(X, Y),
            r"Linear fails in training on inputs of shape \(4, 4\)",
        ),
    ],
)
def test_an_oracle_tells_what_is_wrong_with_a_batch(module, loss, batches, words):
    with pytest.raises(fs.InvalidInput, match=words):
        fs.flower.TorchOracle(module, loss, batches)


def test_a_later_batch_with_nan_is_told_in_its_step():
    bad = torch.cat([X[:4], X[4:8] * np.nan])
    oracle = fs.flower.TorchOracle(linear(3), F.cross_entropy, loader(bad, Y[:8]))
    with pytest.raises(fs.InvalidInput, match="the inputs of a batch hold a number that is not finite"):
        oracle._module.trial(
            {n: torch.as_tensor(p) for n, p in oracle.params.items()}, np.array([0, 0, 1], np.uint32)
        )


def test_an_oracle_takes_batches_that_end_with_none_left_out():
    data = torch.utils.data.TensorDataset(X, Y)
    dropping = torch.utils.data.DataLoader(data, batch_size=4, drop_last=True)
    fs.flower.TorchOracle(NORMED, F.cross_entropy, dropping)
    fs.flower.TorchOracle(
        nn.Sequential(linear(3)), F.cross_entropy, loader(X, Y)
    )  # one row, and no statistics


class OwnLoss(nn.Module):
    """A module that gives its loss, as those of Hugging Face."""

    def __init__(self):
        super().__init__()
        self.last = linear(3)

    def forward(self, x):
        return F.cross_entropy(self.last(x["x"]), x["labels"])


@pytest.mark.parametrize("translate", [None, False])
def test_a_module_that_gives_its_loss_is_refused(translate):
    clients = [({"x": x, "labels": y}, y) for x, y in CLIENTS]
    with pytest.raises(fs.InvalidInput, match="OwnLoss gives a number for a whole batch"):
        fs.tasks.from_torch(OwnLoss(), lambda outputs, y: outputs, clients, translate=translate)
    batches = [({"x": X, "labels": Y}, Y)]
    fs.flower.TorchOracle(OwnLoss(), lambda outputs, y: outputs, batches)


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.w = nn.Linear(2, 1), nn.Parameter(torch.ones(4, 2))

    def forward(self, x):
        return (x @ torch.view_as_complex(self.w)[:, None].abs())[:, 0]


def test_pairs_of_packed_parameters_are_taken_for_complex_numbers():
    oracle = fs.flower.TorchOracle(Complex(), F.mse_loss, [(X, Y.float())])
    packed = torch.ones(11)
    params = {"first.weight": packed[:2].view(1, 2), "first.bias": packed[2:3], "w": packed[3:].view(4, 2)}
    loss, gradient = oracle._module.step(params, np.zeros(3, np.uint32))
    assert np.isfinite(loss)
    assert np.any(gradient["w"])


class Penalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = linear(3)

    def forward(self, x):
        return self.last(x), x.mean()


def test_predictions_of_a_number_for_a_batch_are_its_mean_over_rows():
    x = CLIENTS[0][0]
    _, penalty = in_batches(Penalised(), x, len(x), None, 4)
    assert np.isclose(penalty, x.mean())


def test_distances_of_all_pairs_are_no_mean_over_rows():
    """Also where all outputs lie above all targets, so that by chance the two are one number."""
    outputs, targets = 10 + torch.arange(5.0).reshape(5, 1), torch.arange(5.0)
    with pytest.raises(fs.InvalidInput, match="not a mean over examples"):
        analyse(
            "the loss", lambda o, y: (o - y).abs().mean(), outputs, targets, torch.float32, only_means=True
        )
    with pytest.raises(fs.InvalidInput, match="broadcasts"):
        refuse_coupled(lambda o, y: (o - y).abs().mean(), outputs, targets, torch.float32)
    refuse_coupled(lambda o, y: (o[:, 0] - y).abs().mean(), outputs, targets, torch.float32)
