"""What depends on the batch: its size and moments, buffers of sums and extremes, bounded weights, state outside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import TRANSLATED, Entry, Net, noted, refused, regression, series, vectors, weight

PADDED = "mixes examples, and padding would count"


def two(run: Any, **parts: Any) -> nn.Module:
    return Net(run, a=nn.Linear(6, 8), o=nn.Linear(8, 3), **parts)


def kept(update: Any, start: Tensor) -> nn.Module:
    """A buffer that training updates from a batch, and evaluation uses."""

    def run(m: Any, x: Tensor) -> Tensor:
        h = m.a(x).tanh()
        if m.training:
            update(m.kept, h.detach())
        return m.o(h * (1 + 0.1 * m.kept))

    return two(run, kept=start)


def averaged_weights(m: Any, x: Tensor) -> Tensor:
    """The average of the weights so far, used in evaluation."""
    if m.training:
        with torch.no_grad():
            m.mean.mul_(0.9).add_(m.a.weight, alpha=0.1)
        return m.o(m.a(x).tanh())
    return m.o(F.linear(x, m.mean, m.a.bias).tanh())


def two_views(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """A network and its average, both of the example."""
    if m.training:
        with torch.no_grad():
            m.mean.lerp_(m.a.weight, 0.5)
    with torch.no_grad():
        goal = F.linear(x.flip(1), m.mean)
    return m.o(m.a(x)), goal[:, :3]


def alike(o: Any, y: Tensor) -> Tensor:
    return (2 - 2 * F.cosine_similarity(o[0], o[1])).mean()


def started_by_data(m: Any, x: Tensor) -> Tensor:
    """Scales that the first batch sets (ActNorm), without a path by values."""
    h = m.a(x)
    if m.training:
        first = (m.calls == 0).to(h.dtype)
        m.scale.copy_(first * h.detach().std(0) + (1 - first) * m.scale)
        m.calls.add_(1)
    return m.o((h / (m.scale + 0.1)).tanh())


def annealed(m: Any, x: Tensor) -> Tensor:
    h = m.a(x) / (0.5 + 0.5**m.calls)
    if m.training:
        m.calls.add_(1)
    return m.o(torch.where(m.calls > 1, h.tanh(), h.sin()))


def bounded(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.a.weight.clamp_(-0.2, 0.2)
    return m.o(m.a(x).tanh())


def remembered(m: Any, x: Tensor) -> Tensor:
    """What the call before left, outside of any buffer."""
    h = m.a(x).tanh()
    before = m.__dict__.get("before", torch.zeros(8, dtype=h.dtype))
    m.__dict__["before"] = h.detach().mean(0)
    return m.o(h + before)


def reweighted(o: Tensor, y: Tensor) -> Tensor:
    each = F.cross_entropy(o, y, reduction="none")
    return (each * each.detach() / each.detach().mean()).mean()


def hardest(o: Tensor, y: Tensor) -> Tensor:
    each = F.cross_entropy(o, y, reduction="none")
    return each.topk(2).values.mean() if len(each) > 2 else each.mean()


def survival(o: Tensor, y: Tensor) -> Tensor:
    """The partial likelihood of Cox."""
    order = y[:, 0].argsort(descending=True)
    s = o[order, 0]
    return -(s - s.logsumexp(0)).mean()


class Centres(nn.Module):
    """Distances to centres beside the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.o, self.centres = nn.Linear(6, 4), nn.Linear(4, 3), weight(3, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.a(x).tanh()
        return self.o(h), (h[:, None] - self.centres).pow(2).sum(2)


def to_centres(o: Any, y: Tensor) -> Tensor:
    return F.cross_entropy(o[0], y) + 0.1 * o[1].gather(1, y[:, None]).mean()


def paired(m: Any, x: Tensor) -> Tensor:
    """Each example with a neighbour in the batch."""
    return m.o((m.a(x) + 0.1 * m.a(x)[torch.arange(x.shape[0]).flip(0)]).tanh())


def row_by_row(m: Any, x: Tensor) -> Tensor:
    return torch.stack([m.o(m.a(row).tanh()) for row in x])


def drops_none(m: Any, x: Tensor) -> Tensor:
    """Paths kept at random, all of them here."""
    h = m.a(x).tanh()
    return m.o((torch.rand(x.shape[0], 1) < 1.0).to(x.dtype) * h if m.training else h)


def made(name: str, run: Any, verdict: Any = None, **parts: Any) -> Entry:
    more = {} if verdict is None else {"verdict": verdict}
    return Entry(f"batch: {name}", lambda: two(run, **{n: p() for n, p in parts.items()}), vectors, **more)


def loss(name: str, function: Any, data: Any = vectors, words: str = "mean over examples") -> Entry:
    return Entry(f"batch: {name}", lambda: nn.Linear(6, 3), data, function, refused(words))


def kept_by(name: str, update: Any, verdict: Any = TRANSLATED) -> Entry:
    return Entry(f"batch: {name}", lambda: kept(update, torch.zeros(8)), vectors, verdict=verdict)


ENTRIES = [
    made(
        "its size in training",
        lambda m, x: m.o(m.a(x).tanh() * ((x.shape[0] if m.training else 5) / 5)),
    ),
    made("its size", lambda m, x: m.o(m.a(x).tanh() * (x.shape[0] / 5)), refused("depend on the others")),
    kept_by("sums kept", lambda b, h: b.mul_(0.9).add_(h.sum(0))),
    kept_by("extremes kept", lambda b, h: b.copy_(torch.maximum(b, h.amax(0)))),
    kept_by("smallest kept", lambda b, h: b.copy_(torch.minimum(b, h.amin(0)))),
    kept_by("sizes kept", lambda b, h: b.add_(h.shape[0] / 10)),
    kept_by("last example kept", lambda b, h: b.copy_(h[-1]), noted(PADDED)),
    kept_by("deviations kept", lambda b, h: b.copy_(h.std(0))),
    kept_by("counts kept", lambda b, h: b.add_((h > 0).to(h.dtype).sum(0))),
    made("average of the weights", averaged_weights, mean=lambda: torch.zeros(8, 6)),
    Entry(
        "batch: average of the weights as a goal",
        lambda: Net(two_views, a=nn.Linear(6, 8), o=nn.Linear(8, 3), mean=torch.randn(8, 6)),
        vectors,
        alike,
    ),
    made(
        "scales by the first",
        started_by_data,
        scale=lambda: torch.ones(8),
        calls=lambda: torch.zeros((), dtype=torch.long),
    ),
    made("calls in a buffer", annealed, calls=lambda: torch.zeros((), dtype=torch.long)),
    made("weights bounded in place", bounded, refused("writes to its parameter")),
    made("state outside of buffers", remembered, refused("again")),
    made("pairs", paired, refused("depend on the others")),
    made("rows in a loop", row_by_row, noted("one size alone")),
    made("paths at random, all kept", drops_none),
    made(
        "half of the examples",
        lambda m, x: m.o(m.a(x[:2].repeat(x.shape[0], 1)[: x.shape[0]]).tanh()),
        refused("depend on the others"),
    ),
    made("centred in training", lambda m, x: m.o(m.a(x - x.mean(0) if m.training else x).tanh())),
    made(
        "noise scaled by moments",
        lambda m, x: m.o(m.a(x).tanh() + (0.1 * m.a(x).detach().std(0) if m.training else 0)),
    ),
    Entry("batch: losses by their mean", lambda: nn.Linear(6, 3), vectors, reweighted),
    loss("the two hardest", hardest),
    loss("partial likelihood", survival, regression),
    loss("largest loss", lambda o, y: F.cross_entropy(o, y, reduction="none").max()),
    loss(
        "correlation",
        lambda o, y: 1 - torch.corrcoef(torch.stack([o.flatten(), y.flatten()]))[0, 1],
        regression,
    ),
    loss("spread of outputs", lambda o, y: F.mse_loss(o, y) + o.var(0).mean(), regression),
    Entry(
        "batch: balance of classes",
        lambda: nn.Linear(6, 3),
        vectors,
        lambda o, y: F.cross_entropy(o, y) - 0.1 * torch.special.entr(o.softmax(1).mean(0)).sum(),
    ),
    loss("sum over five", lambda o, y: F.cross_entropy(o, y, reduction="sum") / 5),
    Entry(
        "batch: sum over its size",
        lambda: nn.Linear(6, 3),
        vectors,
        lambda o, y: F.cross_entropy(o, y, reduction="sum") / y.shape[0],
    ),
    Entry(
        "batch: sum over len",
        lambda: nn.Linear(6, 3),
        vectors,
        lambda o, y: F.cross_entropy(o, y, reduction="sum") / len(y),
        noted("one size alone"),
    ),
    Entry(
        "batch: mean of the norm over time",
        lambda: Net(
            lambda m, x: m.o(((x - x.mean(1, keepdim=True)) * m.g).amax(1)), g=weight(4), o=nn.Linear(4, 3)
        ),
        series,
    ),
    Entry("batch: centres", Centres, vectors, to_centres),
]
