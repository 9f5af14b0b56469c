"""What people do beside layers: own derivatives, hooks, checkpoints, closures, batch moments, odd outputs."""

from __future__ import annotations

import copy
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from zoo.entry import Entry, Net, noted, refused, series, vectors, weight


class Sign(torch.autograd.Function):
    """A sign whose gradient is passed straight through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.sign(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # pyright: ignore
        return g


class Reversed(torch.autograd.Function):
    """The identity, whose gradient is reversed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # pyright: ignore
        return -0.5 * g


class Slope(torch.autograd.Function):
    """A square whose gradient is of another function, in the newer style."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:  # pyright: ignore
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # pyright: ignore
        return 3 * ctx.saved_tensors[0] * g


class Exact(torch.autograd.Function):
    """A cube with its right gradient, written by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # pyright: ignore
        return 3 * ctx.saved_tensors[0] ** 2 * g


@dataclass
class Scored:
    """Outputs as some libraries give them."""

    scores: Tensor
    others: Any = None


class Own(OrderedDict[str, Any]):
    """A dictionary whose items are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


def two(run: Any, **parts: Any) -> nn.Module:
    """Two linear layers, `a` and `o`, with a function of them and what is between."""
    return Net(run, a=nn.Linear(6, 8), o=nn.Linear(8, 3), **parts)


def own(function: Any) -> nn.Module:
    return two(lambda m, x: m.o(function.apply(m.a(x))))


def hooked(kind: str) -> nn.Module:
    """A module whose hooks change what it does, or its gradients."""
    m = two(lambda m, x: m.o(m.a(x).tanh()))
    if kind == "backward":
        m.a.register_full_backward_hook(
            lambda _, down, up: tuple(None if g is None else 0.1 * g for g in down)
        )
        m.o.register_full_backward_hook(lambda _, down, up: (0.1 * down[0],))
    elif kind == "backward pre":
        m.a.register_full_backward_pre_hook(lambda _, up: (0.1 * up[0],))
    elif kind == "forward":
        m.a.register_forward_hook(lambda _, x, y: y * 2 + x[0].sum(1, keepdim=True))
    elif kind == "forward pre":
        m.a.register_forward_pre_hook(lambda _, x: (x[0].abs(),))
    else:
        m.a.weight.register_hook(lambda g: 0.1 * g)
    return m


def scaled_gradient(m: Any, x: Tensor) -> Tensor:
    h = m.a(x).tanh()
    if h.requires_grad:
        h.register_hook(lambda g: 0.1 * g)
    return m.o(h)


def clipped_in_loss(o: Tensor, y: Tensor) -> Tensor:
    if o.requires_grad:
        o.register_hook(lambda g: g.clamp(-0.01, 0.01))
    return F.cross_entropy(o, y)


def penalised(*, through: str = "weight") -> tuple[nn.Module, Any]:
    """A loss that closes over the module."""
    m = two(lambda m, x: m.o(m.a(x).tanh()))
    if through == "weight":
        return m, lambda o, y: F.cross_entropy(o, y) + m.a.weight.pow(2).sum()
    if through == "parameters":
        return m, lambda o, y: F.cross_entropy(o, y) + 0.1 * sum(p.abs().sum() for p in m.parameters())
    return m, lambda o, y: F.cross_entropy(o, y) + 0.1 * m.a(o.new_ones(1, 6)).pow(2).sum()


def loss_with_a_buffer() -> tuple[nn.Module, Any]:
    m = two(lambda m, x: m.o(m.a(x).tanh()), running=torch.zeros(()))

    def loss(o: Tensor, y: Tensor) -> Tensor:
        m.running.mul_(0.9).add_(0.1)
        return F.cross_entropy(o, y) * (1 + m.running)

    return m, loss


def teacher() -> tuple[nn.Module, Any]:
    """A copy of the module at the start, whose outputs are learned too."""
    m = two(lambda m, x: (m.o(m.a(x).tanh()), x))
    old = copy.deepcopy(m).double().requires_grad_(False)
    return m, lambda o, y: F.cross_entropy(o[0], y) + F.mse_loss(o[0], old(o[1])[0])


class OwnNorm(nn.Module):
    """Batch moments in training mode, kept averages in evaluation mode."""

    def __init__(self, *, keeps: bool = True) -> None:
        super().__init__()
        self.a, self.o = nn.Linear(6, 8), nn.Linear(8, 3)
        if keeps:
            self.register_buffer("mean", torch.zeros(8))
            self.register_buffer("square", torch.ones(8))
        self.keeps = keeps

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        if self.training:
            mean, square = h.mean(0), h.pow(2).mean(0)
            if self.keeps:
                self.mean.mul_(0.9).add_(0.1 * mean.detach())
                self.square.mul_(0.9).add_(0.1 * square.detach())
        else:
            mean, square = (self.mean, self.square) if self.keeps else (0.0, 1.0)
        return self.o(((h - mean) / (square + 0.1) ** 0.5).tanh())


def kept_mean(m: Any, x: Tensor) -> Tensor:
    h = m.a(x).tanh()
    if m.training:
        m.seen.mul_(0.9).add_(0.1 * h.detach().mean(0))
    return m.o(h - m.seen)


def counted(m: Any, x: Tensor) -> Tensor:
    if m.training:
        m.count += 1
    return m.o(m.a(x).tanh()) / (1 + 0.1 * m.count)


def counted_in_python(m: Any, x: Tensor) -> Tensor:
    m.calls = getattr(m, "calls", 0) + 1
    return m.o(m.a(x).tanh()) / m.calls


def with_mean(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    h = m.a(x).tanh()
    return m.o(h), (h**2).mean()


def both(o: Any, y: Tensor) -> Tensor:
    return F.cross_entropy(o[0], y) + 0.1 * o[1]


def by_grad(m: Any, x: Tensor) -> Tensor:
    """The gradient of an energy, as of a force field."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        energy = m.o(m.a(x).tanh()).sum()
        return torch.autograd.grad(energy, x, create_graph=True)[0][:, :3]


def through_numpy(m: Any, x: Tensor) -> Tensor:
    return m.o(m.a(torch.as_tensor(np.tanh(x.numpy()))))


def in_place(m: Any, x: Tensor) -> Tensor:
    h = m.a(x).clone()
    h[:, :4] *= 2
    h[:, 4:].add_(1).clamp_(-1, 1)
    h[h > 1] = 1
    h.relu_()
    return m.o(h)


def compiled() -> nn.Module:
    return torch.compile(two(lambda m, x: m.o(m.a(x).tanh())), backend="eager")  # pyright: ignore


def functional(m: Any, x: Tensor) -> Tensor:
    doubled = {name: 2 * p for name, p in m.a.named_parameters()}
    return m.o(torch.func.functional_call(m.a, doubled, (x,)).tanh())


Pair = namedtuple("Pair", "scores hidden")


def of(name: str) -> Any:
    def loss(o: Any, y: Tensor) -> Tensor:
        return F.cross_entropy(o[name] if isinstance(o, dict) else getattr(o, name), y)

    return loss


def branching(m: Any, x: Tensor) -> Tensor:
    return m.o(m.a(x.nan_to_num() if x.isnan().any() else x).tanh())


def conditional(m: Any, x: Tensor) -> Tensor:
    return m.o(torch.cond(x.isfinite().all(), lambda h: h.tanh(), lambda h: h.sin(), (m.a(x),)))


ENTRIES = [
    Entry(
        "own derivative: straight through",
        lambda: own(Sign),
        vectors,
        verdict=noted("autograd.Function|gradient"),
    ),
    Entry(
        "own derivative: reversed",
        lambda: own(Reversed),
        vectors,
        verdict=noted("autograd.Function|gradient"),
    ),
    Entry(
        "own derivative: another slope",
        lambda: own(Slope),
        vectors,
        verdict=noted("autograd.Function|gradient"),
    ),
    Entry(
        "own derivative that is the right one",
        lambda: own(Exact),
        vectors,
        verdict=noted("backward of torch.autograd"),
    ),
    Entry(
        "own derivative in the loss",
        lambda: two(lambda m, x: m.o(m.a(x).tanh())),
        vectors,
        lambda o, y: F.cross_entropy(Reversed.apply(o), y),
        noted("autograd.Function|gradient"),
    ),
    Entry(
        "straight through by detach",
        lambda: two(lambda m, x: m.o((h := m.a(x)) + (h.sign() - h).detach())),
        vectors,
    ),
    Entry(
        "hook on an activation",
        lambda: two(scaled_gradient),
        vectors,
        verdict=noted("hook|gradient"),
    ),
    Entry("hook on a module's gradient", lambda: hooked("backward"), vectors, verdict=noted("hook|gradient")),
    Entry(
        "hook before a module's gradient",
        lambda: hooked("backward pre"),
        vectors,
        verdict=noted("hook|gradient"),
    ),
    Entry("hook on a parameter", lambda: hooked("parameter"), vectors, verdict=noted("hook|gradient")),
    Entry("hook after a module", lambda: hooked("forward"), vectors),
    Entry("hook before a module", lambda: hooked("forward pre"), vectors),
    Entry(
        "hook in the loss",
        lambda: two(lambda m, x: m.o(m.a(x).tanh())),
        vectors,
        clipped_in_loss,
        noted("hook|gradient"),
    ),
    Entry(
        "checkpoint", lambda: two(lambda m, x: m.o(checkpoint(m.a, x, use_reentrant=False).tanh())), vectors
    ),
    Entry(
        "reentrant checkpoint",
        lambda: two(lambda m, x: m.o(checkpoint(lambda h: h.tanh(), m.a(x), use_reentrant=True))),
        vectors,
        verdict=noted("gradient|autograd.Function"),
    ),
    Entry(
        "penalty on a weight in the loss",
        penalised,
        vectors,
        verdict=noted("gradient|parameter|closes|module"),
    ),
    Entry(
        "penalty on all weights in the loss",
        lambda: penalised(through="parameters"),
        vectors,
        verdict=noted("gradient|parameter|closes|module"),
    ),
    Entry(
        "module called in the loss",
        lambda: penalised(through="call"),
        vectors,
        verdict=noted("gradient|parameter|closes|module"),
    ),
    Entry(
        "loss that counts its calls", loss_with_a_buffer, vectors, verdict=refused("mean over examples|again")
    ),
    Entry("teacher in the loss", teacher, vectors),
    Entry("no gradient inside", lambda: two(lambda m, x: m.o(m.a(x).tanh() * _still(m, x))), vectors),
    Entry("detached", lambda: two(lambda m, x: m.o(m.a(x) * m.a(x).detach().sigmoid())), vectors),
    Entry(
        "values by .data",
        lambda: two(lambda m, x: m.o(m.a(x) * m.a(x).data.sigmoid())),
        vectors,
        verdict=noted(""),
    ),
    Entry("gradient inside", lambda: two(by_grad), vectors, verdict=noted("")),
    Entry(
        "gradient inside by a function",
        lambda: two(
            lambda m, x: m.o(torch.func.vmap(torch.func.grad(lambda r: m.a(r).tanh().sum()))(x) @ m.w),
            w=weight(6, 8),
        ),
        vectors,
        verdict=noted(""),
    ),
    Entry("vmapped layer", lambda: two(lambda m, x: m.o(torch.func.vmap(m.a)(x).tanh())), vectors),
    Entry("arrays of NumPy inside", lambda: two(through_numpy), vectors, verdict=noted("numpy")),
    Entry("written in place", lambda: two(in_place), vectors),
    Entry("inputs written in place", lambda: two(lambda m, x: m.o(m.a(x.mul_(2)).tanh())), vectors),
    Entry("compiled by PyTorch", compiled, vectors),
    Entry("parallel by PyTorch", lambda: nn.DataParallel(two(lambda m, x: m.o(m.a(x).tanh()))), vectors),
    Entry(
        "scripted",
        lambda: torch.jit.script(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))),
        vectors,
        verdict=noted("ScriptModule"),
        gate=True,
    ),
    Entry("called with other weights", lambda: two(functional), vectors),
    Entry("own batch norm", OwnNorm, vectors),
    Entry(
        "own batch norm without averages",
        lambda: OwnNorm(keeps=False),
        vectors,
    ),
    Entry(
        "own mean of a batch kept",
        lambda: two(kept_mean, seen=torch.zeros(8)),
        vectors,
    ),
    Entry(
        "steps counted in a buffer",
        lambda: two(counted, count=torch.zeros((), dtype=torch.long)),
        vectors,
    ),
    Entry("calls counted in Python", lambda: two(counted_in_python), vectors, verdict=refused("again")),
    Entry(
        "mean of a batch among the outputs",
        lambda: two(with_mean),
        vectors,
        both,
    ),
    Entry(
        "batch centred",
        lambda: two(lambda m, x: m.o(m.a(x - x.mean(0)).tanh())),
        vectors,
        verdict=refused("depend on the others"),
    ),
    Entry(
        "batch rolled",
        lambda: two(lambda m, x: m.o(m.a(x.roll(1, 0)).tanh())),
        vectors,
        verdict=refused("depend on the others"),
    ),
    Entry(
        "batch summed as it comes",
        lambda: two(lambda m, x: m.o(m.a(x.cumsum(0)).tanh())),
        vectors,
        verdict=refused("depend on the others"),
    ),
    Entry(
        "dictionary of outputs",
        lambda: two(lambda m, x: {"scores": m.o(h := m.a(x).tanh()), "hidden": h}),
        vectors,
        lambda o, y: F.cross_entropy(o["scores"], y) + 0.1 * o["hidden"].pow(2).mean(),
    ),
    Entry(
        "named tuple of outputs",
        lambda: two(lambda m, x: Pair(m.o(h := m.a(x).tanh()), h)),
        vectors,
        of("scores"),
    ),
    Entry(
        "outputs in a dataclass, one of them none",
        lambda: two(lambda m, x: Scored(m.o(m.a(x).tanh()))),
        vectors,
        of("scores"),
        gate=True,
    ),
    Entry(
        "outputs in a dictionary of one's own",
        lambda: two(lambda m, x: Own(scores=m.o(m.a(x).tanh()))),
        vectors,
        of("scores"),
    ),
    Entry(
        "outputs of which one is none and one a number",
        lambda: two(lambda m, x: (None, m.o(m.a(x).tanh()), 3)),
        vectors,
        lambda o, y: F.cross_entropy(o[1], y) * o[2],
        gate=True,
    ),
    Entry(
        "outputs in an object",
        lambda: two(lambda m, x: SimpleNamespace(scores=m.o(m.a(x).tanh()))),
        vectors,
        of("scores"),
        refused("gives a SimpleNamespace without tensors"),
        gate=True,
    ),
    Entry(
        "inputs in a dictionary",
        lambda: Net(
            lambda m, x: m.a(x["left"]) * m.b(x["right"]).tanh(), a=nn.Linear(6, 3), b=nn.Linear(2, 3)
        ),
        lambda d, n: ({"right": d.normal(size=(n, 2)), "left": d.normal(size=(n, 6))}, d.integers(0, 3, n)),
    ),
    Entry("path by values", lambda: two(branching), vectors, verdict=noted("values of tensors")),
    Entry("path by torch.cond", lambda: two(conditional), vectors, verdict=refused("use torch.where")),
    Entry(
        "median and kth value",
        lambda: two(
            lambda m, x: (
                m.o(m.a(x).tanh())
                + m.a(x).median(1).values[:, None] * m.w
                + m.a(x).kthvalue(3, 1).values[:, None]
            ),
            w=weight(3),
        ),
        vectors,
        verdict=noted(""),
    ),
    Entry(
        "solve and determinant",
        lambda: Net(
            lambda m, x: (
                torch.linalg.solve(m.k @ m.k.T + torch.eye(6, dtype=x.dtype), x.T).T[:, :3]
                + torch.linalg.slogdet(m.k)[1]
            ),
            k=weight(6, 6),
        ),
        vectors,
        verdict=noted(""),
    ),
    Entry(
        "buckets",
        lambda: Net(
            lambda m, x: m.e(torch.bucketize(x, m.edges)).flatten(1) @ m.w,
            e=nn.Embedding(4, 2),
            edges=torch.tensor([-1.0, 0.0, 1.0]),
            w=weight(12, 3),
        ),
        vectors,
        verdict=noted("bucketize"),
    ),
    Entry("module without data", lambda: nn.Linear(6, 3, device="meta"), vectors, verdict=refused("meta")),
    Entry(
        "layers of unknown size",
        lambda: nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 3)),
        vectors,
        verdict=refused("azy|no shape|batch first"),
    ),
    Entry(
        "scores of a series in one row",
        lambda: Net(lambda m, x: m.o(x).flatten(0, 1)[:: x.shape[1]], o=nn.Linear(4, 3)),
        series,
    ),
]


def _still(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return m.a(x).sigmoid()
