"""Activations, normalisations, embeddings, shared and reparametrised weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune

from zoo.entry import (
    Draw,
    Drawn,
    Entry,
    Net,
    around,
    images,
    integers,
    next_words,
    noted,
    refused,
    series,
    vectors,
    weight,
    words,
)


def smooth() -> list[nn.Module]:
    first = [
        nn.GELU(),
        nn.GELU("tanh"),
        nn.SiLU(),
        nn.Mish(),
        nn.Softplus(2.0, 1.0),
        nn.Softsign(),
        nn.Tanh(),
    ]
    return [
        *first,
        nn.Tanhshrink(),
        nn.LogSigmoid(),
        nn.Sigmoid(),
        nn.Softmin(1),
        nn.Softmax(1),
        nn.LogSoftmax(1),
    ]


def cornered() -> list[nn.Module]:
    first = [
        nn.ReLU(),
        nn.LeakyReLU(0.2),
        nn.ELU(1.5),
        nn.SELU(),
        nn.CELU(0.7),
        nn.ReLU6(),
        nn.Hardtanh(-2, 1),
    ]
    shrunk = [nn.Softshrink(1.0), nn.Hardshrink(1.0), nn.Threshold(1.0, 0.5)]
    return [*first, *shrunk, nn.PReLU(), nn.RReLU(0.2, 0.2)]


def all_of(kinds: list[nn.Module]) -> nn.Module:
    """Each activation of the scaled inputs, so that its corners are met exactly, times a weight of its own."""
    return Net(
        lambda m, x: m.last(sum(w * k(x * m.scale) for w, k in zip(m.each, m.kinds, strict=True))),
        kinds=nn.ModuleList(kinds),
        each=weight(len(kinds)),
        scale=nn.Parameter(torch.ones(6)),
        last=nn.Linear(6, 3),
    )


def bags(draw: Draw, n: int) -> Drawn:
    return draw.integers(0, 11, (n, 4)), draw.integers(0, 3, n)


def over_time(x: Tensor, norm: nn.Module) -> Tensor:
    return norm(x.flatten(0, 1)).view_as(x)


def embedded(embedding: nn.Module) -> nn.Module:
    return nn.Sequential(embedding, nn.Flatten(), nn.Linear(7 * 5, 3))


class Tied(nn.Module):
    """A language model whose head is its embedding, scores at the second axis."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.middle, self.head = nn.Linear(6, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.middle(self.words(x)))).transpose(1, 2)


class Symmetric(nn.Module):
    """A parametrisation of one's own."""

    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).T


def symmetric() -> nn.Module:
    layer = nn.Linear(8, 8)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return around(layer)


def pruned() -> nn.Module:
    module = around(nn.Linear(8, 8))
    prune.l1_unstructured(module[1], "weight", 0.5)
    return module


def half_frozen() -> nn.Module:
    module = around(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()))
    for p in module[0].parameters():
        p.requires_grad_(False)
    return module


class EvaluatedNorm(nn.BatchNorm1d):
    """It keeps its statistics by staying in evaluation mode."""

    def train(self, mode: bool = True) -> nn.Module:
        return super().train(False)


ENTRIES = [
    Entry("linear", lambda: nn.Linear(6, 3), vectors),
    Entry("smooth activations", lambda: all_of(smooth()), vectors),
    Entry("activations at their corners", lambda: all_of(cornered()), integers),
    Entry(
        "hard swish and hard sigmoid",
        lambda: all_of([nn.Hardswish(), nn.Hardsigmoid()]),
        integers,
        gate=True,
        tolerance=1e-7,
    ),
    Entry("glu", lambda: around(nn.GLU(), out=4), vectors),
    Entry(
        "maxout",
        lambda: Net(
            lambda m, x: m.o(m.a(x).unflatten(1, (4, 2)).amax(2)), a=nn.Linear(6, 8), o=nn.Linear(4, 3)
        ),
        integers,
    ),
    Entry(
        "bilinear",
        lambda: Net(lambda m, x: m.b(m.a(x), x), a=nn.Linear(6, 5), b=nn.Bilinear(5, 6, 3)),
        vectors,
    ),
    Entry("layer norm", lambda: around(nn.LayerNorm(8)), vectors),
    Entry("rms norm", lambda: around(nn.RMSNorm(8)), vectors),
    Entry("group norm", lambda: around(nn.GroupNorm(2, 8)), vectors),
    Entry("batch norm", lambda: around(nn.BatchNorm1d(8)), vectors),
    Entry("batch norm without scale", lambda: around(nn.BatchNorm1d(8, affine=False)), vectors),
    Entry(
        "batch norm without statistics",
        lambda: around(nn.BatchNorm1d(8, track_running_stats=False)),
        vectors,
        verdict=refused("depend on the others of the batch in evaluation"),
    ),
    Entry(
        "batch norm of cumulative statistics",
        lambda: around(nn.BatchNorm1d(8, momentum=None)),
        vectors,
        verdict=noted(""),
    ),
    Entry("batch norm that stays in evaluation", lambda: around(EvaluatedNorm(8)), vectors),
    Entry(
        "batch norm over time",
        lambda: Net(
            lambda m, x: m.o(m.n(x.transpose(1, 2)).tanh().mean(2)), n=nn.BatchNorm1d(4), o=nn.Linear(4, 3)
        ),
        series,
    ),
    Entry(
        "batch norm over batch times time",
        lambda: Net(
            lambda m, x: m.o(over_time(x, m.n).tanh().mean(1)), n=nn.BatchNorm1d(4), o=nn.Linear(4, 3)
        ),
        series,
    ),
    Entry(
        "instance norm",
        lambda: Net(
            lambda m, x: m.o(m.n(m.c(x)).relu().amax((2, 3))),
            c=nn.Conv2d(2, 4, 3),
            n=nn.InstanceNorm2d(4, affine=True),
            o=nn.Linear(4, 3),
        ),
        images,
    ),
    Entry(
        "instance norm with statistics",
        lambda: Net(
            lambda m, x: m.o(m.n(m.c(x)).relu().amax((2, 3))),
            c=nn.Conv2d(2, 4, 3),
            n=nn.InstanceNorm2d(4, track_running_stats=True),
            o=nn.Linear(4, 3),
        ),
        images,
    ),
    Entry(
        "local response norm",
        lambda: Net(
            lambda m, x: m.o(m.n(m.c(x)).amax((2, 3))),
            c=nn.Conv2d(2, 4, 3),
            n=nn.LocalResponseNorm(3),
            o=nn.Linear(4, 3),
        ),
        images,
    ),
    Entry(
        "dropouts that keep all",
        lambda: around(nn.Sequential(nn.Dropout(0.0), nn.AlphaDropout(0.0), nn.ReLU())),
        vectors,
    ),
    Entry("embedding with padding", lambda: embedded(nn.Embedding(11, 5, padding_idx=0)), words),
    Entry("embedding with sparse gradients", lambda: embedded(nn.Embedding(11, 5, sparse=True)), words),
    Entry(
        "embedding of bounded norm",
        lambda: embedded(nn.Embedding(11, 5, max_norm=0.5)),
        words,
        verdict=refused(""),
    ),
    Entry(
        "embedding scaled by frequency",
        lambda: embedded(nn.Embedding(11, 5, scale_grad_by_freq=True)),
        words,
        verdict=refused(""),
    ),
    Entry("bag of words: mean", lambda: nn.Sequential(nn.EmbeddingBag(11, 5), nn.Linear(5, 3)), bags),
    Entry(
        "bag of words: sum", lambda: nn.Sequential(nn.EmbeddingBag(11, 5, mode="sum"), nn.Linear(5, 3)), bags
    ),
    Entry(
        "bag of words: maximum",
        lambda: nn.Sequential(nn.EmbeddingBag(11, 5, mode="max"), nn.Linear(5, 3)),
        bags,
        verdict=refused("mode='max'"),
    ),
    Entry("tied language model with ignored targets", Tied, next_words),
    Entry(
        "one layer used twice",
        lambda: Net(lambda m, x: m.o(m.a(m.a(x).tanh())), a=nn.Linear(6, 6), o=nn.Linear(6, 3)),
        vectors,
    ),
    Entry(
        "weight used transposed",
        lambda: Net(
            lambda m, x: m.o(F.linear(F.linear(x, m.w).relu(), m.w.T)), w=weight(8, 6), o=nn.Linear(6, 3)
        ),
        vectors,
    ),
    Entry(
        "spectral norm", lambda: around(parametrizations.spectral_norm(nn.Linear(8, 8))), vectors, gate=True
    ),
    Entry("weight norm", lambda: around(parametrizations.weight_norm(nn.Linear(8, 8))), vectors),
    Entry(
        "weight norm of old",
        lambda: around(nn.utils.weight_norm(nn.Linear(8, 8))),
        vectors,
    ),
    Entry(
        "orthogonal weights",
        lambda: around(parametrizations.orthogonal(nn.Linear(8, 8))),
        vectors,
        verdict=noted(""),
    ),
    Entry("symmetric weights", symmetric, vectors),
    Entry("pruned weights", pruned, vectors, gate=True),
    Entry("half frozen", half_frozen, vectors),
    Entry(
        "parameters in lists",
        lambda: Net(
            lambda m, x: sum(x @ w for w in m.ws) + m.d["bias"],
            ws=nn.ParameterList([weight(6, 3) for _ in range(3)]),
            d=nn.ParameterDict({"bias": weight(3)}),
        ),
        vectors,
    ),
    Entry(
        "cosines and distances",
        lambda: Net(
            lambda m, x: m.o(
                torch.stack(
                    [F.cosine_similarity(x, m.k), F.pairwise_distance(x, m.k), (x - m.k).norm(dim=1)], 1
                )
            ),
            k=weight(6),
            o=nn.Linear(3, 3),
        ),
        vectors,
    ),
    Entry(
        "distances to centres",
        lambda: Net(lambda m, x: -torch.cdist(m.a(x), m.k), a=nn.Linear(6, 4), k=weight(3, 4)),
        vectors,
    ),
    Entry(
        "all weights frozen",
        lambda: nn.Linear(6, 3).requires_grad_(False),
        vectors,
        verdict=refused("no trainable parameter"),
    ),
    Entry(
        "complex weights",
        lambda: Net(
            lambda m, x: (m.o(x) * m.c).abs(),
            o=nn.Linear(6, 3),
            c=nn.Parameter(torch.ones(3, dtype=torch.complex128)),
        ),
        vectors,
        verdict=refused("is complex"),
    ),
]
