"""What is compared with PyTorch before a task trains: what export leaves out runs in PyTorch, padding never counts."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import fedsolve as fs  # noqa: E402
from fedsolve.core.loss_checks import informative_rows  # noqa: E402
from fedsolve.pytorch.reference import gradients  # noqa: E402
from fedsolve.pytorch.translation import arrays  # noqa: E402
from fedsolve.tasks.task import Examples  # noqa: E402
from fedsolve.tasks.torch_modules import agreement  # noqa: E402
from fedsolve.tasks.torch_modules.agreement import Agreement  # noqa: E402

COUNTS, RATE, STEPS = (5, 3, 4), 0.2, 2


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, g):
        return g


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.double()

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


class Signs(Base):
    def forward(self, x):
        return self.last(StraightThrough.apply(self.first(x)))


class Hooked(Base):
    def forward(self, x):
        h = self.first(x)
        if h.requires_grad:
            h.register_hook(lambda g: 0.1 * g)
        return self.last(h)


class Moments(Base):
    """Everything that knows of padding: moments, extremes and products over the batch, its length, and buffers."""

    def __init__(self):
        super().__init__()
        self.norm = nn.InstanceNorm1d(2, affine=True, track_running_stats=True).double()
        self.register_buffer("seen", torch.zeros(6, dtype=torch.float64))

    def forward(self, x):
        h = self.norm(self.first(x).reshape(-1, 2, 3)).flatten(1)
        if self.training:
            self.seen = 0.9 * self.seen + 0.1 * h.detach().sum(0) / x.shape[0]
            h = (h - h.mean(0)) / (1 + h.var(0)) + h @ (h.T @ h) / len(h.T)
        return self.last(h - self.seen), h.square().mean()


class Ordered(Base):
    def forward(self, x):
        h = self.first(x)
        return self.last(h + h.sort(0)[0] if self.training else h)


def clients():
    draw = np.random.default_rng(0)
    return [(draw.normal(size=(n, 4)), draw.integers(0, 3, n)) for n in COUNTS]


def task_of(module, loss=F.cross_entropy, **given):
    return fs.tasks.from_torch(module, loss, clients(), batch_size=None, local_steps=STEPS, **given)


def check_round(module, loss, task):
    """A round of FedAvg on clients of several sizes against PyTorch's by hand, in float64."""
    result = fs.run(fs.FedAvg(client_lr=RATE), task, rounds=1, clients_per_round=3, dtype="float64")
    start = {n: t.clone() for n, t in module.state_dict().items()}
    after = []
    for x, y in clients():
        module.load_state_dict(start)
        module.train()
        for _ in range(STEPS):
            module.zero_grad()
            loss(module(torch.tensor(x)), torch.tensor(y)).backward()
            with torch.no_grad():
                for p in module.parameters():
                    p -= 0 if p.grad is None else RATE * p.grad
        after.append({n: t.clone() for n, t in module.state_dict().items()})
    module.load_state_dict(start)
    shares = {n: np.array(COUNTS) / sum(COUNTS) for n, _ in module.named_parameters()}
    for name in start:
        share = shares.get(name, np.ones(len(COUNTS)) / len(COUNTS))
        wanted = sum(s * c[name].double() for s, c in zip(share, after, strict=True)).numpy()
        ours = {**result.params, **(result.buffers or {})}.get(name, start[name])
        np.testing.assert_allclose(ours, wanted, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.full
def test_padding_counts_in_no_moment_and_the_module_is_left_as_it_was():
    def loss(outputs, y):
        return F.cross_entropy(outputs[0], y) + 0.1 * outputs[1]

    module = Moments().eval()
    module.last.weight.grad = torch.full_like(module.last.weight, 7.0)
    before = {n: t.clone() for n, t in module.state_dict().items()}
    buffer, state = module.seen, torch.get_rng_state()
    task = task_of(module, loss, metrics={})
    assert task.notes == ()
    assert not module.training
    assert module.seen is buffer
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(module.last.weight.grad, torch.full_like(module.last.weight, 7.0))
    assert module.first.weight.grad is None
    assert all(torch.equal(t, before[n]) for n, t in module.state_dict().items())
    check_round(module, loss, task)


def test_what_export_leaves_out_runs_in_pytorch():
    """A hook of a parameter, which a copy loses, and a loss that refers to the module: the module itself runs."""
    module = Signs()
    module.first.bias.register_hook(lambda g: 3 * g)

    def loss(outputs, y):
        return F.cross_entropy(outputs, y) + 0.5 * module.first.weight.square().sum()

    task = task_of(module, loss)
    assert "would differ from PyTorch's by" in task.notes[0]
    assert "parameter 'first.bias' has a hook (register_hook)" in task.notes[0]
    assert all(p.grad is None for p in module.parameters())
    check_round(module, loss, task)


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Signs, "gradient of 'first.*' would differ .* 1 times .*torch.autograd.Function StraightThrough is"),
        (Hooked, "by 9 times .*a tensor has a hook"),
        (Ordered, "loss in training would differ from PyTorch's .* mixes examples, and padding would count"),
    ],
)
def test_the_note_says_how_much_and_why(kind, words):
    with pytest.raises(fs.InvalidInput, match=words) as caught:
        task_of(kind(), translate=True)
    assert "\n" not in str(caught.value)


def late():
    module = Base()
    module.last.weight.register_post_accumulate_grad_hook(lambda p: None)
    return module, F.cross_entropy


def outside():
    scale = nn.Parameter(torch.ones(1, dtype=torch.float64))
    return Signs(), lambda outputs, y: F.cross_entropy(scale * outputs, y)


@pytest.mark.full
@pytest.mark.parametrize(
    ("made", "words"),
    [
        (late, "parameter 'last.weight' has a hook by register_post_accumulate_grad_hook"),
        (outside, r"parameter of shape \(1,\) that is none of Signs and would not be trained"),
    ],
)
def test_what_no_path_can_train(made, words):
    with pytest.raises(fs.InvalidInput, match=words):
        task_of(*made())


def test_a_large_module_is_compared_with_fewer_rows(monkeypatch):
    """At both points too, and again where another way to run it is tried."""
    monkeypatch.setattr(arrays, "_LARGE", 40)  # parameters; Base has 51
    with pytest.raises(fs.InvalidInput, match=r"gradient of 'first.*' would differ .* 1 times"):
        task_of(Signs(), translate=True)
    with pytest.raises(fs.InvalidInput, match="mixes examples, and padding would count"):
        task_of(Ordered(), translate=True)


@pytest.mark.parametrize(("length", "rows"), [(16, 6), (17, 4)])
def test_rows_of_a_large_module_with_adapters(monkeypatch, length, rows):
    """Its frozen parameters count as well, which the comparison of such a one took 5 GB for; texts have fewer rows."""
    monkeypatch.setattr(arrays, "_LARGE", 40)
    body, head = nn.Embedding(9, 8), nn.Linear(8, 3)
    module = nn.Sequential(body.requires_grad_(False), nn.AvgPool2d((length, 1)), nn.Flatten(), head)
    text = np.random.default_rng(0).integers(0, 9, (20, length))
    examples = Examples(text, np.zeros(20, np.float32))
    found = Agreement(module, {"loss": lambda o, y: (o.sum(1) - y).square().mean()}, examples, torch.float64)
    assert len(found.start.counts) == rows


@pytest.mark.full
def test_a_large_module_runs(monkeypatch):
    monkeypatch.setattr(arrays, "_LARGE", 40)
    assert task_of(Base(), translate=True).notes == ()
    check_round(module := Signs(), F.cross_entropy, task_of(module))


def test_rows_that_tell_something():
    y = np.tile(np.array([0, 1, 2, 0, 1]), 200)
    y[777], y[333] = -100, 9
    sequences = np.full((1000, 6), 5)
    sequences[:, 4:] = 0
    sequences[500], sequences[501, 1:] = 5, 0
    rows = informative_rows((sequences,), y, 8, 12)
    assert len(rows) == 8
    assert {777, 333, 500, 501} <= set(rows.tolist())
    assert set(y[rows]) == {0, 1, 2, 9, -100}
    x = np.random.default_rng(0).normal(size=(1000, 4))
    x[200], x[300], x[400, 1:] = 0, 0.5, 0
    assert {200, 300} <= set(informative_rows(x, np.arange(1000), 8, 16).tolist())  # beside as many classes
    assert len(informative_rows((np.zeros((3, 2)),), np.zeros(3), 8, 12)) == 8
    assert len(informative_rows((np.zeros((50, 2)),), np.arange(50), 8, 12)) == 12


def test_gradients_of_what_two_checkpoints_share():
    """A reentrant checkpoint has a backward pass of its own: both parts count, and unused parameters have 0."""
    module, x = Base(), torch.randn(3, 4, dtype=torch.float64)
    again = nn.Linear(6, 6).double()

    def value(run):
        h = run(again, torch.tanh(run(again, module.first(x))))
        return module.last(h).square().mean()

    params = {**dict(module.named_parameters()), "again": again.weight, "unused": nn.Parameter(torch.ones(2))}
    expected = torch.autograd.grad(value(lambda f, h: f(h)), list(params.values()), allow_unused=True)
    reentrant = partial(checkpoint, use_reentrant=True)
    for dtype, rounding in ((None, 1e-13), (torch.float32, 1e-6)):
        found = gradients(value(reentrant), params, dtype)
        assert {g.dtype for g in found.values()} == {dtype or torch.float64, torch.float32}
        for (name, gradient), own in zip(found.items(), expected, strict=True):
            other = torch.zeros(2) if own is None else own
            np.testing.assert_allclose(gradient, other, rtol=rounding, atol=rounding, err_msg=name)
    assert all(p.grad is None for p in params.values())


def test_frozen_parameters_are_no_constants_of_the_program(monkeypatch):
    """As such a base of 28 million parameters took 0.9 GB while the program was compiled."""
    sizes, compared = [], agreement._all_of

    def recorded(*given):
        def run(*values):
            sizes.extend(np.size(c) for c in jax.make_jaxpr(compared(*given))(*values).consts)
            return compared(*given)(*values)

        return run

    monkeypatch.setattr(agreement, "_all_of", recorded)
    module = nn.Sequential(nn.Linear(4, 300), nn.Tanh(), nn.Linear(300, 3))
    module[0].requires_grad_(False)
    draw = np.random.default_rng(0)
    clients = [(draw.normal(size=(6, 4)).astype(np.float32), draw.integers(0, 3, 6)) for _ in range(2)]
    task = fs.tasks.from_torch(module, nn.CrossEntropyLoss(), clients)
    assert task.frozen
    assert not task.notes
    assert max(sizes, default=0) < 300
