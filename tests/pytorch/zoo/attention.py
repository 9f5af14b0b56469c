"""Attention in its forms, transformers, mixtures of experts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import Entry, Net, images, next_words, noted, refused, series, weight, words

OFF = {"dropout": 0.0, "batch_first": True}


def attend(run: Any, **parts: Any) -> nn.Module:
    """A function of a series, as classes by its mean over time."""
    return Net(lambda m, x: m.o(run(m, x).mean(1)), o=nn.Linear(4, 3), **parts)


def heads(x: Tensor, n: int) -> Tensor:
    return x.unflatten(-1, (n, -1)).transpose(1, 2)


def self_attention(**options: Any) -> nn.Module:
    return attend(
        lambda m, x: m.a(x, x, x, need_weights=False)[0], a=nn.MultiheadAttention(4, 2, **OFF, **options)
    )


def masked(m: Any, x: Tensor) -> Tensor:
    """Words attend to words; the last examples' queries see none at all, which gives zeros."""
    words_there = x != 0
    allowed = words_there[:, None, None, :].expand(-1, 2, 7, 7)
    y = m.e(x)
    out = F.scaled_dot_product_attention(heads(m.q(y), 2), heads(m.k(y), 2), heads(m.v(y), 2), allowed)
    return m.o((out.transpose(1, 2).flatten(2) * words_there[..., None]).mean(1))


class Encoder(nn.Module):
    """Words through layers of attention, padding masked out."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8, padding_idx=0), weight(7, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 12, **OFF, **options)
        self.layers, self.o = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(self.layers(self.words(x) + self.places, src_key_padding_mask=x == 0)[:, 0])


class Causal(nn.Module):
    """A language model by a causal encoder."""

    def __init__(self, *, told: bool, square: Any = nn.Transformer.generate_square_subsequent_mask) -> None:
        super().__init__()
        self.words, self.o, self.told = nn.Embedding(11, 8), nn.Linear(8, 11), told
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 12, **OFF), 1, enable_nested_tensor=False
        )
        self.register_buffer("mask", square(7))

    def forward(self, x: Tensor) -> Tensor:
        more = {"is_causal": True} if self.told else {}
        return self.o(self.layers(self.words(x), mask=self.mask, **more)).transpose(1, 2)


class Both(nn.Module):
    """Encoder and decoder of nn.Transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.o = nn.Embedding(11, 8), nn.Linear(8, 11)
        self.both = nn.Transformer(8, 2, 1, 1, 12, **OFF)

    def forward(self, x: Tensor) -> Tensor:
        y = self.words(x)
        mask = nn.Transformer.generate_square_subsequent_mask(7, dtype=y.dtype)
        return self.o(self.both(y.flip(1), y, tgt_mask=mask, tgt_is_causal=True)).transpose(1, 2)


class Rotary(nn.Module):
    """Rotated queries and keys, fewer heads of keys than of queries."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 3)
        angles = torch.arange(7.0)[:, None] * torch.tensor([1.0])
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def turned(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * self.cos - b * self.sin, a * self.sin + b * self.cos], -1)

    def forward(self, x: Tensor) -> Tensor:
        q, (k, v) = heads(self.q(x), 4), heads(self.kv(x), 4).chunk(2, 1)
        k, v = (t.repeat_interleave(2, 1) for t in (self.turned(k), v))
        out = F.scaled_dot_product_attention(self.turned(q), k, v, is_causal=True)
        return self.o(out.transpose(1, 2).flatten(2).mean(1))


class Alibi(nn.Module):
    """Scores lowered by distance, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(4, 24), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads(t, 2) for t in self.qkv(x).chunk(3, -1))
        t = torch.arange(x.shape[1])
        slope = torch.tensor([0.5, 0.25], dtype=x.dtype).view(1, 2, 1, 1)
        score = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 - slope * (t[:, None] - t).abs()
        score = score.masked_fill(t[:, None] < t, float("-inf"))
        return self.o((score.softmax(-1) @ v).transpose(1, 2).flatten(2)[:, -1])


class Experts(nn.Module):
    """The two best of four experts for each example, by dense products."""

    def __init__(self, *, balance: bool) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 4), nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.o, self.balance = nn.Linear(4, 3), balance

    def forward(self, x: Tensor) -> Any:
        x = x.mean(1)
        p = self.gate(x).softmax(-1)
        best, at = p.topk(2, -1)
        each = torch.stack([e(x).tanh() for e in self.experts], 1)
        chosen = each.gather(1, at[..., None].expand(-1, -1, 4))
        y = self.o((chosen * (best / best.sum(-1, keepdim=True))[..., None]).sum(1))
        return (y, (p.mean(0) ** 2).sum()) if self.balance else y


class Sparse(nn.Module):
    """Experts that are given only the examples that chose them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts, self.o = (
            nn.Linear(4, 3),
            nn.ModuleList(nn.Linear(4, 4) for _ in range(3)),
            nn.Linear(4, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x.mean(1)
        p, at = self.gate(x).softmax(-1).max(-1)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            mine = at == i
            y[mine] = expert(x[mine])
        return self.o(y * p[:, None])


class Vision(nn.Module):
    """Patches, a token for the class, one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.first, self.places = nn.Conv2d(2, 8, 4, 4), weight(1, 1, 8), weight(5, 8)
        self.layer, self.o = (
            nn.TransformerEncoderLayer(8, 2, 12, activation="gelu", norm_first=True, **OFF),
            nn.Linear(8, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.cut(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.first.expand(y.shape[0], -1, -1), y], 1) + self.places
        return self.o(self.layer(y)[:, 0])


def balanced(outputs: Any, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs[0], y) + outputs[1]


def linear_attention(m: Any, x: Tensor) -> Tensor:
    q, k, v = (F.elu(m.q(x)) + 1, F.elu(m.k(x)) + 1, m.v(x))
    return (q @ (k.transpose(1, 2) @ v)) / (q @ k.sum(1)[:, :, None])


def over_examples(m: Any, x: Tensor) -> Tensor:
    q = m.q(x).mean(1)
    return ((q @ q.T).softmax(1) @ m.v(x).mean(1))[:, None]


def linears(*names: str) -> dict[str, nn.Module]:
    return {name: nn.Linear(4, 4) for name in names}


def bool_mask(size: int) -> Tensor:
    return torch.ones(size, size, dtype=torch.bool).triu(1)


ENTRIES = [
    Entry("attention", lambda: self_attention(), series),
    Entry("attention with added keys", lambda: self_attention(add_bias_kv=True, add_zero_attn=True), series),
    Entry(
        "attention across sizes",
        lambda: attend(
            lambda m, x: m.a(x, m.k[:, :3].expand(x.shape[0], -1, -1), m.k.expand(x.shape[0], -1, -1)[:, :3])[
                0
            ],
            a=nn.MultiheadAttention(4, 2, kdim=5, vdim=5, **OFF),
            k=weight(1, 4, 5),
        ),
        series,
    ),
    Entry(
        "attention and its weights",
        lambda: Net(
            lambda m, x: m.o(m.a(x, x, x, average_attn_weights=False)[1].flatten(1)),
            a=nn.MultiheadAttention(4, 2, **OFF),
            o=nn.Linear(98, 3),
        ),
        series,
    ),
    Entry(
        "attention with masked words",
        lambda: Net(masked, e=nn.Embedding(11, 4), **linears("q", "k", "v"), o=nn.Linear(4, 3)),
        words,
    ),
    Entry("linear attention", lambda: attend(linear_attention, **linears("q", "k", "v")), series),
    Entry(
        "attention over examples",
        lambda: attend(over_examples, **linears("q", "v")),
        series,
        verdict=refused("depend on the others"),
    ),
    Entry("attention lowered by distance", Alibi, series),
    Entry("rotated and grouped attention", Rotary, series),
    Entry(
        "latents as many as len(x)",
        lambda: attend(
            lambda m, x: m.a(m.z.expand(len(x), -1, -1), x, x)[0],
            z=weight(1, 2, 4),
            a=nn.MultiheadAttention(4, 1, **OFF),
        ),
        series,
        verdict=noted("not len"),
    ),
    Entry(
        "latents that attend",
        lambda: attend(
            lambda m, x: m.a(m.z.expand(x.shape[0], -1, -1), x, x)[0],
            z=weight(1, 2, 4),
            a=nn.MultiheadAttention(4, 1, **OFF),
        ),
        series,
    ),
    Entry("encoder with padding", Encoder, words),
    Entry("encoder with norms first", lambda: Encoder(norm_first=True, activation="gelu"), words),
    Entry("causal encoder", lambda: Causal(told=True), next_words),
    Entry("causal encoder by its mask alone", lambda: Causal(told=False), next_words, gate=True),
    Entry("causal encoder by a mask of truths", lambda: Causal(told=False, square=bool_mask), next_words),
    Entry("encoder and decoder of attention", Both, next_words),
    Entry(
        "decoder layer",
        lambda: attend(lambda m, x: m.d(x, x.flip(1)), d=nn.TransformerDecoderLayer(4, 2, 8, **OFF)),
        series,
    ),
    Entry("two best of four experts", lambda: Experts(balance=False), series),
    Entry(
        "experts in balance over the batch",
        lambda: Experts(balance=True),
        series,
        balanced,
        verdict=refused("depend on the others of the batch in evaluation"),
    ),
    Entry("experts given their examples alone", Sparse, series, verdict=noted("values of tensors")),
    Entry("vision transformer", Vision, images),
]
