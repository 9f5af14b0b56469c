"""Recurrent networks, and what people write around them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import rnn

from zoo.entry import TRANSLATED, Draw, Drawn, Entry, Net, Verdict, noted, series, weight, words


def last_of(layer: nn.Module, size: int) -> nn.Module:
    """Classes from a layer's results at the last time."""
    return Net(lambda m, x: m.o(m.r(x)[0][:, -1]), r=layer, o=nn.Linear(size, 3))


def with_lengths(draw: Draw, n: int) -> Drawn:
    return {"x": draw.normal(size=(n, 7, 4)), "lengths": draw.integers(1, 8, n)}, draw.integers(0, 3, n)


class Cells(nn.Module):
    """A loop of cells."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell, self.o = cell, nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return self.o(state[0] if isinstance(state, tuple) else state)


class Started(nn.Module):
    """A recurrent layer with learned initial states."""

    def __init__(self) -> None:
        super().__init__()
        self.r, self.o = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)
        self.h, self.c = weight(1, 1, 5), weight(1, 1, 5)

    def forward(self, x: Tensor) -> Tensor:
        h, c = (s.expand(-1, x.shape[0], -1).contiguous() for s in (self.h, self.c))
        return self.o(self.r(x, (h, c))[1][0][-1])


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.r, self.o = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        packed = rnn.pack_padded_sequence(x["x"], x["lengths"].cpu(), batch_first=True, enforce_sorted=False)
        return self.o(self.r(packed)[1][-1])


class Masked(nn.Module):
    """The last state of each sequence by its length, without packing."""

    def __init__(self) -> None:
        super().__init__()
        self.r, self.o = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        out = self.r(x["x"])[0]
        at = (x["lengths"] - 1).view(-1, 1, 1).expand(-1, 1, out.shape[2])
        return self.o(out.gather(1, at)[:, 0])


class Minimal(nn.Module):
    """A gated linear recurrence with a learned decay, as of state-space models."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.gate, self.decay, self.o = (
            nn.Linear(4, 5),
            nn.Linear(4, 5),
            weight(5),
            nn.Linear(5, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        a, b = torch.sigmoid(self.decay), self.into(x) * torch.sigmoid(self.gate(x))
        state = torch.zeros_like(b[:, 0])
        for value in b.unbind(1):
            state = a * state + (1 - a) * value
        return self.o(state)


class Decoder(nn.Module):
    """An encoder's states attended to, step by step, with its own output fed back."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.encoder = nn.Embedding(11, 5), nn.GRU(5, 5, batch_first=True)
        self.cell, self.o = nn.GRUCell(8, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        memory, state = self.encoder(self.words(x))
        hidden, said = state[0], torch.zeros(x.shape[0], 3, dtype=memory.dtype)
        for _ in range(3):
            score = torch.softmax((memory @ hidden[:, :, None])[:, :, 0], 1)
            read = (score[:, None] @ memory)[:, 0]
            hidden = self.cell(torch.cat([read, said], 1), hidden)
            said = torch.softmax(self.o(hidden), 1)
        return self.o(hidden)


def layer(name: str, make: Any, size: int, *, verdict: Verdict = TRANSLATED, gate: bool = False) -> Entry:
    return Entry(name, lambda: last_of(make(), size), series, verdict=verdict, gate=gate)


FIRST = {"batch_first": True}
ENTRIES = [
    layer("rnn", lambda: nn.RNN(4, 5, nonlinearity="relu", **FIRST), 5),
    layer("rnn of two layers and directions", lambda: nn.RNN(4, 5, 2, bidirectional=True, **FIRST), 10),
    layer("gru", lambda: nn.GRU(4, 5, **FIRST), 5),
    layer("gru of two layers and directions", lambda: nn.GRU(4, 5, 2, bidirectional=True, **FIRST), 10),
    layer("lstm", lambda: nn.LSTM(4, 5, **FIRST), 5),
    layer("lstm of two layers and directions", lambda: nn.LSTM(4, 5, 2, bidirectional=True, **FIRST), 10),
    layer("lstm with projection", lambda: nn.LSTM(4, 5, proj_size=2, **FIRST), 2),
    layer("lstm without bias", lambda: nn.LSTM(4, 5, bias=False, **FIRST), 5),
    Entry("lstm with learned start", Started, series),
    Entry("loop of lstm cells", lambda: Cells(nn.LSTMCell(4, 5)), series),
    Entry("loop of gru cells", lambda: Cells(nn.GRUCell(4, 5)), series),
    Entry("loop of rnn cells", lambda: Cells(nn.RNNCell(4, 5)), series),
    Entry(
        "time first",
        lambda: Net(lambda m, x: m.o(m.r(x.transpose(0, 1))[0][-1]), r=nn.LSTM(4, 5), o=nn.Linear(5, 3)),
        series,
    ),
    Entry("packed sequences", Packed, with_lengths, verdict=noted("")),
    Entry("sequences by their lengths", Masked, with_lengths),
    Entry("gated linear recurrence", Minimal, series),
    Entry("encoder and decoder", Decoder, words),
    Entry(
        "exponential averages over time",
        lambda: Net(lambda m, x: m.o(torch.cumsum(x * m.d.exp(), 1)[:, -1]), d=weight(4), o=nn.Linear(4, 3)),
        series,
    ),
    Entry(
        "running maximum",
        lambda: Net(
            lambda m, x: m.o(torch.cummax(m.a(x), 1)[0].mean(1)), a=nn.Linear(4, 5), o=nn.Linear(5, 3)
        ),
        series,
        verdict=noted(""),
    ),
    Entry(
        "running logarithm of sums",
        lambda: Net(
            lambda m, x: m.o(torch.logcumsumexp(m.a(x), 1).mean(1)), a=nn.Linear(4, 5), o=nn.Linear(5, 3)
        ),
        series,
        verdict=noted(""),
    ),
]
