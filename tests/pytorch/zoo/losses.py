"""Losses: PyTorch's own, weighted and with ignored targets, and what people write themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import (
    TRANSLATED,
    Draw,
    Drawn,
    Entry,
    Net,
    Verdict,
    next_words,
    noted,
    refused,
    regression,
    vectors,
)

WEIGHTS = [1.0, 3.0, 0.2]


def on(
    name: str,
    loss: Callable[..., Any],
    data: Any = vectors,
    *,
    verdict: Verdict = TRANSLATED,
    gate: bool = False,
) -> Entry:
    """A loss of three numbers of a linear layer."""
    return Entry(f"loss: {name}", lambda: nn.Linear(6, 3), data, loss, verdict, gate)


def made_with(name: str, make: Callable[[], Callable[..., Any]], data: Any = vectors, **more: Any) -> Entry:
    """The same for a loss that holds tensors, made in float64."""

    def pair() -> tuple[nn.Module, Any]:
        loss = make()
        return nn.Linear(6, 3), loss.double() if isinstance(loss, nn.Module) else loss

    return Entry(f"loss: {name}", pair, data, **more)


def targets(make: Callable[[Draw, int], Any]) -> Callable[[Draw, int], Drawn]:
    return lambda draw, n: (draw.normal(size=(n, 6)), make(draw, n))


def rarely(draw: Draw, n: int) -> Drawn:
    """The last class once, in the smallest client, and one example in the test."""
    y = draw.integers(0, 2, n)
    y[[6, -2]] = 2
    return draw.normal(size=(n, 6)), y


def rarely_ignored(draw: Draw, n: int) -> Drawn:
    x, y = rarely(draw, n)
    y[[5, -1]] = -100
    return x, y


def labels_of_a_set(draw: Draw, n: int) -> Drawn:
    """The classes that hold, then -1, in which what follows counts no more."""
    some = np.array([[2, 0, -1], [2, -1, 0], [1, -1, -1], [0, 1, 2], [0, -1, 1]])
    return draw.normal(size=(n, 6)), some[draw.integers(0, 5, n)]


def maps(draw: Draw, n: int) -> Drawn:
    y = draw.integers(0, 3, (n, 8, 8))
    y[draw.random((n, 8, 8)) < 0.2] = 255
    return draw.normal(size=(n, 2, 8, 8)), y


def masked_series(draw: Draw, n: int) -> Drawn:
    mask = (np.arange(3) < draw.integers(1, 4, n)[:, None]).astype(np.float64)
    return draw.normal(size=(n, 6)), {"y": draw.normal(size=(n, 3)), "mask": mask}


def triples(draw: Draw, n: int) -> Drawn:
    return tuple(draw.normal(size=(n, 6)) for _ in range(3)), draw.integers(0, 2, n) * 2.0 - 1


def signals(draw: Draw, n: int) -> Drawn:
    return draw.normal(size=(n, 6, 4)), (draw.integers(1, 4, (n, 2)), np.full(n, 2))


def ctc(outputs: Tensor, y: tuple[Tensor, Tensor]) -> Tensor:
    steps = torch.full_like(y[1], outputs.shape[1])
    return F.ctc_loss(outputs.log_softmax(-1).transpose(0, 1), y[0], steps, y[1])


def of_triples(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda o, y: loss(*o)


def embedding() -> nn.Module:
    return Net(lambda m, x: tuple(m.f(part) for part in x), f=nn.Sequential(nn.Linear(6, 5), nn.Tanh()))


def focal(o: Tensor, y: Tensor) -> Tensor:
    log_p = F.log_softmax(o, 1).gather(1, y[:, None])[:, 0]
    return (-((1 - log_p.exp()) ** 2) * log_p).mean()


def dice(o: Tensor, y: Tensor, axes: Any = 1) -> Tensor:
    p = o.sigmoid()
    return (1 - (2 * (p * y).sum(axes) + 1) / (p.sum(axes) + y.sum(axes) + 1)).mean()


def quantiles(o: Tensor, y: Tensor) -> Tensor:
    q = torch.tensor([0.1, 0.5, 0.9], dtype=o.dtype)
    return torch.maximum(q * (y - o), (q - 1) * (y - o)).mean()


def ordinal(o: Tensor, y: Tensor) -> Tensor:
    """Cumulative logits."""
    above = (y[:, None] > torch.arange(3)).to(o.dtype)
    return F.binary_cross_entropy_with_logits(o, above)


def smoothed(o: Tensor, y: Tensor) -> Tensor:
    one = F.one_hot(y, 3).to(o.dtype) * 0.9 + 0.1 / 3
    return -(one * o.log_softmax(1)).sum(1).mean()


def weighted_by_hand(o: Tensor, y: Tensor) -> Tensor:
    w = torch.tensor(WEIGHTS, dtype=o.dtype)[y]
    return (w * F.cross_entropy(o, y, reduction="none")).sum() / w.sum()


def masked_mean(o: Tensor, y: dict[str, Tensor]) -> Tensor:
    return ((o - y["y"]) ** 2 * y["mask"]).sum() / y["mask"].sum()


def masked_mean_of_each(o: Tensor, y: dict[str, Tensor]) -> Tensor:
    return (((o - y["y"]) ** 2 * y["mask"]).sum(1) / y["mask"].sum(1)).mean()


def contrast_in_batch(o: Tensor, y: Tensor) -> Tensor:
    z = F.normalize(o, dim=1)
    return F.cross_entropy(z @ z.T / 0.5, torch.arange(len(o)))


def ranked(o: Tensor, y: Tensor) -> Tensor:
    """The likelihood of an order (Plackett and Luce)."""
    s = o.gather(1, y.argsort(1, descending=True))
    return (torch.logcumsumexp(s.flip(1), 1).flip(1) - s).sum(1).mean()


def pairs_ranked(o: Tensor, y: Tensor) -> Tensor:
    above = (y[:, :, None] > y[:, None]).to(o.dtype)
    return (F.softplus(-(o[:, :, None] - o[:, None])) * above).sum((1, 2)).mean()


def gaussian(o: Tensor, y: Tensor) -> Tensor:
    return F.gaussian_nll_loss(o[:, :1], y[:, :1], F.softplus(o[:, 1:2]) + 0.1)


def mixture(o: Tensor, y: Tensor) -> Tensor:
    """A mixture density."""
    each = torch.distributions.Normal(o, 0.7, validate_args=False).log_prob(y[:, :1])
    return -torch.logsumexp(each + o.log_softmax(1), 1).mean()


def tasks(o: Tensor, y: Any) -> Tensor:
    return F.cross_entropy(o[:, :2], y[0]) + 0.3 * F.mse_loss(o[:, 2], y[1]) + 0.01 * o.abs().mean()


def real(draw: Draw, n: int) -> Any:
    return draw.normal(size=(n, 3))


def bits(draw: Draw, n: int) -> Any:
    return draw.integers(0, 2, (n, 3)).astype(np.float64)


def shares(draw: Draw, n: int) -> Any:
    return draw.dirichlet(np.ones(3), n)


def counts(draw: Draw, n: int) -> Any:
    return draw.integers(0, 5, (n, 3)).astype(np.float64)


def two(draw: Draw, n: int) -> Any:
    return draw.integers(0, 2, n), draw.normal(size=n)


def time_major(draw: Draw, n: int) -> Drawn:
    return draw.normal(size=(n, 5, 6)), draw.integers(0, 3, (5, n)).T


W = torch.tensor(WEIGHTS, dtype=torch.float64)
ENTRIES = [
    on("cross entropy, smoothed", nn.CrossEntropyLoss(label_smoothing=0.1)),
    on("cross entropy of shares", nn.CrossEntropyLoss(), targets(shares)),
    on("cross entropy of smoothed shares", nn.CrossEntropyLoss(label_smoothing=0.2), targets(shares)),
    made_with("class weights, a rare class", lambda: nn.CrossEntropyLoss(W), rarely),
    made_with("class weights and smoothing", lambda: nn.CrossEntropyLoss(W, label_smoothing=0.1), rarely),
    made_with("class weights of shares", lambda: nn.CrossEntropyLoss(W), targets(shares)),
    made_with("class weights by a function", lambda: lambda o, y: F.cross_entropy(o, y, weight=W), rarely),
    made_with(
        "class weights and ignored targets",
        lambda: nn.CrossEntropyLoss(W, ignore_index=-100),
        rarely_ignored,
    ),
    on("a rarely ignored target", nn.CrossEntropyLoss(), rarely_ignored),
    on("an ignored class", nn.CrossEntropyLoss(ignore_index=2), rarely),
    on(
        "ignored by a function, smoothed",
        lambda o, y: F.cross_entropy(o, y, ignore_index=-100, label_smoothing=0.1),
        rarely_ignored,
    ),
    made_with(
        "negative likelihood with weights", lambda: lambda o, y: F.nll_loss(o.log_softmax(1), y, W), rarely
    ),
    Entry(
        "loss: maps with ignored places",
        lambda: nn.Conv2d(2, 3, 3, padding=1),
        maps,
        nn.CrossEntropyLoss(ignore_index=255),
    ),
    Entry(
        "loss: maps with weights",
        lambda: (nn.Conv2d(2, 3, 3, padding=1), nn.CrossEntropyLoss(W, ignore_index=255)),
        maps,
    ),
    on("class weights by hand", weighted_by_hand, rarely),
    on("sum", nn.CrossEntropyLoss(reduction="sum"), verdict=refused("mean over examples")),
    on("a value for each example", nn.CrossEntropyLoss(reduction="none")),
    on("mean square", nn.MSELoss(), regression),
    on(
        "root of the mean square",
        lambda o, y: F.mse_loss(o, y).sqrt(),
        regression,
    ),
    on("absolute", nn.L1Loss(), regression),
    on("smooth absolute", nn.SmoothL1Loss(beta=0.5), regression),
    on("huber", nn.HuberLoss(delta=0.5), regression),
    on("logarithm of cosh", lambda o, y: (o - y).cosh().log().mean(), regression),
    on("quantiles", quantiles, regression, gate=True),
    on("binary", lambda o, y: F.binary_cross_entropy(o.sigmoid(), y), targets(bits)),
    made_with("binary with positive weights", lambda: nn.BCEWithLogitsLoss(pos_weight=W), targets(bits)),
    made_with("binary with weights", lambda: nn.BCEWithLogitsLoss(weight=W), targets(bits)),
    on("divergence", lambda o, y: F.kl_div(o.log_softmax(1), y, reduction="batchmean"), targets(shares)),
    on(
        "divergence of logarithms",
        lambda o, y: F.kl_div(o.log_softmax(1), y.log(), log_target=True, reduction="batchmean"),
        targets(shares),
    ),
    on("poisson", nn.PoissonNLLLoss(), targets(counts)),
    on("poisson in full", nn.PoissonNLLLoss(full=True), targets(counts)),
    on(
        "poisson of rates",
        lambda o, y: F.poisson_nll_loss(F.softplus(o), y, log_input=False),
        targets(counts),
    ),
    on("gaussian", gaussian, regression, verdict=noted("")),
    on("mixture of densities", mixture, regression),
    on("soft margin", nn.SoftMarginLoss(), targets(lambda d, n: bits(d, n) * 2 - 1)),
    on("margin of sets", nn.MultiLabelMarginLoss(), labels_of_a_set, gate=True),
    on("soft margin of sets", nn.MultiLabelSoftMarginLoss(), targets(bits)),
    on("margins", nn.MultiMarginLoss(p=2, margin=0.7)),
    made_with("margins with weights", lambda: nn.MultiMarginLoss(weight=W)),
    on("hinge", nn.HingeEmbeddingLoss(0.6), targets(lambda d, n: bits(d, n) * 2 - 1)),
    Entry("loss: triplets", embedding, triples, of_triples(nn.TripletMarginLoss(0.8))),
    Entry(
        "loss: triplets, swapped", embedding, triples, of_triples(nn.TripletMarginLoss(0.8, p=1, swap=True))
    ),
    Entry(
        "loss: triplets of cosines",
        embedding,
        triples,
        of_triples(
            nn.TripletMarginWithDistanceLoss(distance_function=lambda a, b: 1 - F.cosine_similarity(a, b))
        ),
    ),
    Entry(
        "loss: cosines", embedding, triples, lambda o, y: F.cosine_embedding_loss(o[0], o[1], y, margin=0.1)
    ),
    Entry(
        "loss: ranks",
        embedding,
        triples,
        lambda o, y: F.margin_ranking_loss(o[0].sum(1), o[1].sum(1), y, margin=0.3),
    ),
    Entry(
        "loss: contrast of pairs",
        embedding,
        triples,
        lambda o, y: torch.where(
            y > 0, (d := F.pairwise_distance(o[0], o[1])) ** 2, F.relu(1 - d) ** 2
        ).mean(),
    ),
    Entry("loss: words of signals", lambda: nn.Linear(4, 4), signals, ctc, verdict=noted("_ctc_loss")),
    Entry(
        "loss: next words",
        lambda: nn.Sequential(nn.Embedding(11, 6), nn.Tanh(), nn.Linear(6, 11)),
        next_words,
        lambda o, y: F.cross_entropy(o.transpose(1, 2), y),
    ),
    Entry(
        "loss: next words, all in one row",
        lambda: nn.Sequential(nn.Embedding(11, 6), nn.Tanh(), nn.Linear(6, 11)),
        next_words,
        lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()),
    ),
    on("focal", focal),
    on("dice of each", dice, targets(bits)),
    on("dice of all", lambda o, y: dice(o, y, (0, 1)), targets(bits), verdict=refused("mean over examples")),
    on("order of classes", ordinal),
    on("smoothed by hand", smoothed),
    on("masked mean", masked_mean, masked_series),
    on("masked mean of each", masked_mean_of_each, masked_series),
    on("contrast in the batch", contrast_in_batch, verdict=refused("mean over examples")),
    on("likelihood of an order", ranked, regression, verdict=noted("logcumsumexp")),
    on("pairs of an order", pairs_ranked, regression),
    on("several tasks", tasks, targets(two)),
    on(
        "labels of 8 bits",
        F.cross_entropy,
        targets(lambda d, n: d.integers(0, 3, n).astype(np.uint8)),
        gate=True,
    ),
    on(
        "labels of 8 bits with a sign",
        F.cross_entropy,
        targets(lambda d, n: d.integers(0, 3, n).astype(np.int8)),
    ),
    on(
        "products of 16 bits",
        lambda o, y: F.mse_loss(o[:, 0], (9000 * y * y).to(o.dtype) / 9000),
        targets(lambda d, n: d.integers(0, 9, n).astype(np.int16)),
        gate=True,
    ),
    on("labels of 32 bits", F.cross_entropy, targets(lambda d, n: d.integers(0, 3, n).astype(np.int32))),
    on(
        "binary of whole numbers",
        nn.BCEWithLogitsLoss(),
        targets(lambda d, n: d.integers(0, 2, (n, 3))),
        verdict=refused("loss .*int64"),
    ),
    on(
        "labels that are no whole numbers",
        nn.CrossEntropyLoss(),
        targets(lambda d, n: d.integers(0, 3, n) * 1.0),
        verdict=refused("loss .*float"),
    ),
    on(
        "labels out of range",
        nn.CrossEntropyLoss(),
        targets(lambda d, n: d.integers(1, 8, n)),
        verdict=refused("loss .*bounds|range"),
    ),
    on(
        "targets of another shape",
        nn.MSELoss(),
        targets(lambda d, n: d.normal(size=(n, 2))),
        verdict=refused("loss .*\\(31, 3\\)"),
    ),
    on(
        "a column against a row",
        lambda o, y: F.mse_loss(o[:, :1], y),
        targets(lambda d, n: d.normal(size=n)),
        verdict=refused("mean over examples"),
    ),
    on("a number of Python's", lambda o, y: 1.0, verdict=refused("is a float")),
    Entry(
        "loss: scores at the last axis",
        lambda: nn.Linear(6, 3),
        time_major,
        nn.CrossEntropyLoss(),
        refused("loss .*\\(31, 5, 3\\)"),
    ),
]
