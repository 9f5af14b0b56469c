"""Less usual networks: graphs, flows, capsules, hypernetworks, equilibria, experts of other kinds."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import (
    Draw,
    Drawn,
    Entry,
    Net,
    images,
    integers,
    refused,
    regression,
    series,
    vectors,
    weight,
    words,
)


def graphs(draw: Draw, n: int) -> Drawn:
    """Five nodes of four numbers, with edges of one's own."""
    edges = draw.integers(0, 2, (n, 5, 5)).astype(np.float64)
    return {"nodes": draw.normal(size=(n, 5, 4)), "edges": np.maximum(edges, np.eye(5))}, draw.integers(
        0, 3, n
    )


def points(draw: Draw, n: int) -> Drawn:
    """Sets of up to six points."""
    there = np.arange(6) < draw.integers(1, 7, n)[:, None]
    return (draw.normal(size=(n, 6, 3)), there), draw.integers(0, 3, n)


def tagged(draw: Draw, n: int) -> Drawn:
    return draw.normal(size=(n, 7, 4)), draw.integers(0, 3, (n, 7))


def conditioned(draw: Draw, n: int) -> Drawn:
    return [draw.normal(size=(n, 2, 8, 8)), draw.integers(0, 4, n)], draw.integers(0, 3, n)


def with_labels(draw: Draw, n: int) -> Drawn:
    y = draw.integers(0, 3, n)
    return (draw.normal(size=(n, 6)), y), y


def layers(*sizes: int) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))


def convolved(m: Any, x: dict[str, Tensor]) -> Tensor:
    a, h = x["edges"], x["nodes"]
    scale = a.sum(-1).rsqrt()
    a = scale[:, :, None] * a * scale[:, None]
    for layer in m.layers:
        h = F.relu(a @ layer(h))
    return m.o(h.mean(1))


def graph_attention(m: Any, x: dict[str, Tensor]) -> Tensor:
    h = m.w(x["nodes"])
    score = F.leaky_relu((h @ m.left)[:, :, None] + (h @ m.right)[:, None])
    share = score.masked_fill(x["edges"] == 0, float("-inf")).softmax(-1)
    return m.o(F.elu(share @ h).amax(1))


def messages(m: Any, x: dict[str, Tensor]) -> Tensor:
    """Messages along a fixed list of edges, summed at their ends."""
    h = x["nodes"]
    sent = m.send(torch.cat([h[:, m.start], h[:, m.end]], -1)).relu()
    received = torch.zeros(h.shape[0], 5, 6, dtype=h.dtype).index_add(1, m.end, sent)
    return m.o(torch.cat([h, received], -1).sum(1))


def routed(m: Any, x: Tensor) -> Tensor:
    """Capsules with three rounds of routing by agreement."""

    def squash(s: Tensor) -> Tensor:
        square = s.pow(2).sum(-1, keepdim=True)
        return square / (1 + square) * s / (square + 1e-8).sqrt()

    votes = torch.einsum("nid,ijde->nije", squash(x), m.w)
    logits = torch.zeros(votes.shape[:3], dtype=x.dtype)
    for _ in range(3):
        out = squash((logits.softmax(2)[..., None] * votes).sum(1))
        logits = logits + (votes.detach() * out[:, None].detach()).sum(-1)
    return out.norm(dim=-1)


def hypernetwork(m: Any, x: Tensor) -> Tensor:
    w = m.h(x[:, :3]).view(-1, 3, 4)
    return torch.bmm(w, m.a(x).tanh()[:, :, None]).squeeze(-1)


def runge_kutta(m: Any, x: Tensor) -> Tensor:
    def slope(t: float, h: Tensor) -> Tensor:
        return m.f(torch.cat([h, torch.full_like(h[:, :1], t)], 1)).tanh()

    h, step = m.a(x), 0.25
    for k in range(4):
        t = k * step
        k1 = slope(t, h)
        k2 = slope(t + step / 2, h + step / 2 * k1)
        k3 = slope(t + step / 2, h + step / 2 * k2)
        h = h + step / 6 * (k1 + 2 * k2 + 2 * k3 + slope(t + step, h + step * k3))
    return m.o(h)


def equilibrium(m: Any, x: Tensor) -> Tensor:
    """A fixed point found without gradients, then one step with."""
    z, into = torch.zeros(x.shape[0], 5, dtype=x.dtype), m.a(x)
    with torch.no_grad():
        for _ in range(8):
            z = torch.tanh(0.3 * m.f(z) + into)
    return m.o(torch.tanh(0.3 * m.f(z) + into))


class Coupling(nn.Module):
    """Affine couplings, the volume with them."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        volume = torch.zeros(x.shape[0], dtype=x.dtype)
        for net in self.nets:
            a, b = x.chunk(2, 1)
            s, t = net(a).chunk(2, 1)
            x, volume = torch.cat([b * s.tanh().exp() + t, a], 1), volume + s.tanh().sum(1)
        return x, volume


def likelihood(o: Any, y: Tensor) -> Tensor:
    return (0.5 * o[0].pow(2).sum(1) - o[1]).mean()


class Variational(nn.Module):
    """A variational autoencoder, its noise off; reconstruction and divergence of each example."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(6, 8), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_var = self.enter(x).chunk(2, 1)
        z = mean + 0.0 * torch.randn_like(mean) * (0.5 * log_var).exp() if self.training else mean
        return self.leave(z), -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(1)


def evidence(o: Any, y: Tensor) -> Tensor:
    return F.mse_loss(o[0], y, reduction="none").sum(1).mean() + 0.1 * o[1].mean()


class Quantised(nn.Module):
    """The nearest of the codes, straight through; the commitment of each example."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.codes, self.o = nn.Linear(6, 4), nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.a(x)
        nearest = self.codes(torch.cdist(z, self.codes.weight).argmin(1))
        kept = (nearest - z.detach()).pow(2).sum(1) + 0.25 * (nearest.detach() - z).pow(2).sum(1)
        return self.o(z + (nearest - z).detach()), kept


def committed(o: Any, y: Tensor) -> Tensor:
    return (F.cross_entropy(o[0], y, reduction="none") + o[1]).mean()


class Chain(nn.Module):
    """Scores of tags and of their transitions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.steps = nn.Linear(4, 3), weight(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.a(x), self.steps.expand(x.shape[0], -1, -1)


def of_chain(o: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
    """The likelihood of a linear chain's tags."""
    scores, steps = o[0], o[1][:1]
    total = scores[:, 0]
    for t in range(1, 7):
        total = torch.logsumexp(total[:, :, None] + steps, 1) + scores[:, t]
    path = scores.gather(2, y[..., None])[..., 0].sum(1)
    path = path + steps[0][y[:, :-1], y[:, 1:]].sum(1)
    return (torch.logsumexp(total, 1) - path).mean()


def tree(m: Any, x: Tensor) -> Tensor:
    """A soft decision tree of depth two."""
    right = torch.sigmoid(m.a(x))
    left = 1 - right
    leaves = [
        left[:, 0] * left[:, 1],
        left[:, 0] * right[:, 1],
        right[:, 0] * left[:, 2],
        right[:, 0] * right[:, 2],
    ]
    return torch.stack(leaves, 1) @ m.leaves


def splines(m: Any, x: Tensor) -> Tensor:
    """Learned functions of each input, on a grid of quadratic splines."""
    t, grid = x.tanh()[..., None], m.grid
    b = ((t >= grid[:-1]) & (t < grid[1:])).to(x.dtype)
    for k in (1, 2):
        left = (t - grid[: -k - 1]) / (grid[k:-1] - grid[: -k - 1]) * b[..., :-1]
        b = left + (grid[k + 1 :] - t) / (grid[k + 1 :] - grid[1:-k]) * b[..., 1:]
    return torch.einsum("nig,igo->no", b, m.c)


def reading_memory(m: Any, x: Tensor) -> Tensor:
    """Memory addressed by content, written and read."""
    memory = m.memory.expand(x.shape[0], -1, -1)
    for t in range(3):
        key = m.key(x[:, t])
        share = (5 * F.cosine_similarity(memory, key[:, None], dim=-1)).softmax(1)
        memory = (
            memory * (1 - share[..., None] * m.erase(x[:, t]).sigmoid()[:, None])
            + share[..., None] * key[:, None]
        )
    return m.o((share[..., None] * memory).sum(1))


def sinkhorn(m: Any, x: Tensor) -> Tensor:
    log_p = m.a(x).view(-1, 3, 3)
    for _ in range(5):
        log_p = log_p - log_p.logsumexp(2, keepdim=True)
        log_p = log_p - log_p.logsumexp(1, keepdim=True)
    return log_p.exp() @ m.w


def soft_sorted(m: Any, x: Tensor) -> Tensor:
    s = m.a(x)[..., None]
    distance = (s - s.transpose(1, 2)).abs().sum(2, keepdim=True)
    scale = 7 - 2 * torch.arange(1, 7, dtype=x.dtype)
    p = (scale[:, None] * s.transpose(1, 2) - distance.transpose(1, 2)).softmax(-1)
    return m.o((p @ s)[..., 0])


def mixed(m: Any, x: Tensor) -> Tensor:
    """The layer of an MLP-mixer."""
    x = x + m.over_time(m.n(x).transpose(1, 2)).transpose(1, 2)
    return m.o((x + m.over_channels(m.n(x))).mean(1))


def gated_places(m: Any, x: Tensor) -> Tensor:
    u, v = F.gelu(m.a(x)).chunk(2, -1)
    v = m.places(F.layer_norm(v, v.shape[-1:]).transpose(1, 2)).transpose(1, 2)
    return m.o((u * v).sum(1))


def modulated(m: Any, x: list[Tensor]) -> Tensor:
    """Channels scaled and moved by what a class asks for."""
    scale, shift = m.e(x[1])[:, :, None, None].chunk(2, 1)
    return m.o((m.c(x[0]) * (1 + scale) + shift).relu().mean((2, 3)))


def margin_of_angles(m: Any, x: tuple[Tensor, Tensor]) -> Tensor:
    """Angles to the classes, widened for the right one while training."""
    cosine = F.linear(F.normalize(x[0]), F.normalize(m.w)).clamp(-0.999, 0.999)
    if not m.training:
        return 8 * cosine
    right = F.one_hot(x[1], 3).bool()
    return 8 * torch.where(right, (cosine.acos() + 0.3).cos(), cosine)


def pooled_points(m: Any, x: tuple[Tensor, Tensor]) -> Tensor:
    at, there = x
    turn = m.turn(at).amax(1).view(-1, 3, 3) + torch.eye(3, dtype=at.dtype)
    h = m.a(at @ turn).relu().masked_fill(~there[..., None], float("-inf"))
    return m.o(h.amax(1))


def attentive_sets(m: Any, x: tuple[Tensor, Tensor]) -> Tensor:
    score = m.s(x[0])[..., 0].masked_fill(~x[1], float("-inf")).softmax(1)
    return m.o((score[..., None] * x[0]).sum(1))


class Standardised(nn.Conv2d):
    """A convolution with standardised weights."""

    def forward(self, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(self.weight, (1, 2, 3), keepdim=True, unbiased=False)
        return self._conv_forward(x, (self.weight - mean) * (var + 1e-5).rsqrt(), self.bias)


class Adapted(nn.Module):
    """A frozen layer with a low-rank change beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.o = nn.Linear(6, 8).requires_grad_(False), nn.Linear(8, 3).requires_grad_(False)
        self.down, self.up = weight(2, 6), weight(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.o((self.base(x) + F.linear(F.linear(x, self.down), self.up)).relu())


def recursive(m: Any, x: Tensor) -> Tensor:
    """Neighbours joined pair by pair until one is left, the odd one handed on."""
    parts = list(m.e(x).unbind(1))
    while len(parts) > 1:
        joined = [m.j(torch.cat(pair, -1)).tanh() for pair in zip(parts[::2], parts[1::2], strict=False)]
        parts = joined + ([parts[-1]] if len(parts) % 2 else [])
    return m.o(parts[0])


def chosen_hard(m: Any, x: Tensor) -> Tensor:
    """One of four vectors, chosen hard forwards and soft backwards."""
    soft = (m.a(x) / 0.5).softmax(1)
    hard = F.one_hot(soft.argmax(1), 4).to(soft.dtype)
    return (hard - soft.detach() + soft) @ m.w


def highway(m: Any, x: Tensor) -> Tensor:
    for layer, gate in zip(m.layers, m.gates, strict=True):
        t = gate(x).sigmoid()
        x = t * layer(x).relu() + (1 - t) * x
    return m.o(x)


def net(name: str, run: Any, data: Any, parts: Any, loss: Any = F.cross_entropy, **more: Any) -> Entry:
    return Entry(name, lambda: Net(run, **parts()), data, loss, **more)


EDGES = {"start": torch.tensor([0, 1, 2, 3, 4, 0]), "end": torch.tensor([1, 2, 3, 4, 0, 2])}
ENTRIES = [
    net(
        "graph convolution",
        convolved,
        graphs,
        lambda: {"layers": layers(4, 6, 5), "o": nn.Linear(5, 3)},
    ),
    net(
        "graph attention",
        graph_attention,
        graphs,
        lambda: {"w": nn.Linear(4, 5), "left": weight(5), "right": weight(5), "o": nn.Linear(5, 3)},
    ),
    net(
        "messages along edges",
        messages,
        graphs,
        lambda: {"send": nn.Linear(8, 6), "o": nn.Linear(10, 3), **EDGES},
    ),
    net("capsules", routed, series, lambda: {"w": weight(7, 3, 4, 5)}),
    net("hypernetwork", hypernetwork, vectors, lambda: {"h": nn.Linear(3, 12), "a": nn.Linear(6, 4)}),
    net(
        "random fourier features",
        lambda m, x: m.o(torch.cat([(x @ m.b).sin(), (x @ m.b).cos()], 1)),
        vectors,
        lambda: {"b": torch.randn(6, 5), "o": nn.Linear(10, 3)},
    ),
    net(
        "sine layers",
        lambda m, x: m.o(torch.sin(3 * m.b(torch.sin(3 * m.a(x))))),
        regression,
        lambda: {"a": nn.Linear(6, 5), "b": nn.Linear(5, 5), "o": nn.Linear(5, 3)},
        F.mse_loss,
    ),
    net(
        "steps of Runge and Kutta",
        runge_kutta,
        vectors,
        lambda: {"a": nn.Linear(6, 5), "f": nn.Linear(6, 5), "o": nn.Linear(5, 3)},
    ),
    net(
        "equilibrium",
        equilibrium,
        vectors,
        lambda: {"a": nn.Linear(6, 5), "f": nn.Linear(5, 5), "o": nn.Linear(5, 3)},
    ),
    Entry("normalising flow", Coupling, vectors, likelihood),
    Entry("variational autoencoder without noise", Variational, regression, evidence),
    Entry("quantised codes", Quantised, vectors, committed),
    Entry("conditional random field", Chain, tagged, of_chain, refused("not a mean over examples")),
    net("soft tree", tree, vectors, lambda: {"a": nn.Linear(6, 3), "leaves": weight(4, 3)}),
    net(
        "functions of splines",
        splines,
        vectors,
        lambda: {"grid": torch.linspace(-1.5, 1.5, 9), "c": weight(6, 6, 3)},
    ),
    net(
        "radial functions",
        lambda m, x: m.o((-(x[:, None] - m.c).pow(2).sum(-1) * m.s.exp()).exp()),
        vectors,
        lambda: {"c": weight(5, 6), "s": weight(5), "o": nn.Linear(5, 3)},
    ),
    net(
        "memory",
        reading_memory,
        series,
        lambda: {
            "memory": weight(4, 5),
            "key": nn.Linear(4, 5),
            "erase": nn.Linear(4, 5),
            "o": nn.Linear(5, 3),
        },
    ),
    net("doubly stochastic", sinkhorn, vectors, lambda: {"a": nn.Linear(6, 9), "w": weight(3)}),
    net("sorted softly", soft_sorted, vectors, lambda: {"a": nn.Linear(6, 6), "o": nn.Linear(6, 3)}),
    net(
        "sorted hard",
        lambda m, x: m.o(m.a(x).sort(dim=1, descending=True, stable=True).values),
        integers,
        lambda: {"a": nn.Linear(6, 6), "o": nn.Linear(6, 3)},
    ),
    net(
        "mixer",
        mixed,
        series,
        lambda: {
            "n": nn.LayerNorm(4),
            "over_time": nn.Linear(7, 7),
            "over_channels": nn.Linear(4, 4),
            "o": nn.Linear(4, 3),
        },
    ),
    net(
        "gated places",
        gated_places,
        series,
        lambda: {"a": nn.Linear(4, 8), "places": nn.Linear(7, 7), "o": nn.Linear(4, 3)},
    ),
    net(
        "modulated channels",
        modulated,
        conditioned,
        lambda: {"e": nn.Embedding(4, 8), "c": nn.Conv2d(2, 4, 3), "o": nn.Linear(4, 3)},
    ),
    net("margins of angles", margin_of_angles, with_labels, lambda: {"w": weight(3, 6)}),
    net(
        "points",
        pooled_points,
        points,
        lambda: {"turn": nn.Linear(3, 9), "a": nn.Linear(3, 5), "o": nn.Linear(5, 3)},
    ),
    net("attentive sets", attentive_sets, points, lambda: {"s": nn.Linear(3, 1), "o": nn.Linear(3, 3)}),
    Entry(
        "standardised convolution",
        lambda: nn.Sequential(Standardised(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 3)),
        images,
    ),
    Entry("adapter of low rank", Adapted, vectors),
    net(
        "joined pair by pair",
        recursive,
        words,
        lambda: {"e": nn.Embedding(11, 4), "j": nn.Linear(8, 4), "o": nn.Linear(4, 3)},
    ),
    net("chosen hard", chosen_hard, vectors, lambda: {"a": nn.Linear(6, 4), "w": weight(4, 3)}),
    net(
        "highway",
        highway,
        vectors,
        lambda: {"layers": layers(6, 6, 6), "gates": layers(6, 6, 6), "o": nn.Linear(6, 3)},
    ),
    net(
        "kronecker product",
        lambda m, x: x @ torch.kron(m.a, m.b) + m.c,
        vectors,
        lambda: {"a": weight(2, 1), "b": weight(3, 3), "c": weight(3)},
    ),
    net(
        "thresholds in order",
        lambda m, x: m.s(x) - torch.cumsum(F.softplus(m.t), 0),
        vectors,
        lambda: {"s": nn.Linear(6, 1), "t": weight(3)},
        lambda o, y: F.binary_cross_entropy_with_logits(o, (y[:, None] > torch.arange(3)).to(o.dtype)),
    ),
    net(
        "signals gated along time",
        lambda m, x: (
            m.o((torch.tanh(h[:, :4]) * torch.sigmoid(h[:, 4:])).mean(2))
            if (h := m.c(F.pad(x.transpose(1, 2), (2, 0)))) is not None
            else x
        ),
        series,
        lambda: {"c": nn.Conv1d(4, 8, 3), "o": nn.Linear(4, 3)},
    ),
    net(
        "additive networks",
        lambda m, x: sum((n(x[:, i : i + 1]) for i, n in enumerate(m.each)), m.bias),
        vectors,
        lambda: {
            "each": nn.ModuleList(
                nn.Sequential(nn.Linear(1, 4), nn.ELU(), nn.Linear(4, 3)) for _ in range(6)
            ),
            "bias": weight(3),
        },
    ),
]
