"""Functions of numbers: corners, ties, edges of domains, types, indices, sums along parts, matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import Draw, Drawn, Entry, Net, integers, noted, series, vectors, weight, words


def zeros_and_ones(draw: Draw, n: int) -> Drawn:
    """Rows of zeros among them, and equal entries."""
    x = draw.integers(0, 2, (n, 6)).astype(np.float64)
    x[::3] = 0
    return x, draw.integers(0, 3, n)


def scaled(run: Any, out: int = 6, **parts: Any) -> nn.Module:
    """A function of inputs times ones that train, so that corners are met exactly, and a linear layer behind it."""
    return Net(
        lambda m, x: m.o(run(m, x * m.scale)), scale=nn.Parameter(torch.ones(6)), o=nn.Linear(out, 3), **parts
    )


def corners(m: Any, x: Tensor) -> Tensor:
    y = x.abs() + x.clamp(-2, 2) + x.clamp_min(1) + torch.maximum(x, x.flip(1)) + torch.minimum(x, -x)
    y = y + x.relu() * x.sign() + F.relu6(x + 2) + F.threshold(x, 0, 0.5)
    return y + x.remainder(3) + torch.fmod(x, 3) + x.round() * 0.1


def tied(m: Any, x: Tensor) -> Tensor:
    y = [x.amax(1), x.amin(1), x.max(1).values, x.min(1).values, x.quantile(0.4, 1)]
    return torch.stack([*y, x.sort(1).values[:, 2], x.norm(float("inf"), 1), x.logsumexp(1)], 1)


def at_zero(m: Any, x: Tensor) -> Tensor:
    y = [
        x.norm(dim=1),
        F.normalize(x, dim=1).sum(1),
        x.norm(1, 1),
        x.prod(1),
        (x**2).sum(1),
        x.std(1, unbiased=False),
    ]
    return torch.stack(
        [*y, x.cumprod(1)[:, -2], F.cosine_similarity(x, x.flip(1)), torch.xlogy(x, x + 1).sum(1)], 1
    )


def special(m: Any, x: Tensor) -> Tensor:
    u, p = x.sigmoid() * 0.8 + 0.1, x.exp() + 0.1
    y = (
        u.logit()
        + torch.sinc(x)
        + torch.sinc(0 * x)
        + torch.atan2(0 * x, 0 * p)
        + torch.special.entr(u)
        + p.lgamma()
        + u.asin()
        + u.acos()
    )
    y = y + torch.log1p(p) + torch.expm1(x) + torch.logaddexp(x, p) + torch.erfc(x) + p.rsqrt() + x.atan2(p)
    return y + torch.special.expit(x) + torch.lerp(x, p, 0.3) + torch.addcmul(x, p, u, value=2)


def digammas(m: Any, x: Tensor) -> Tensor:
    return (x.exp() + 0.5).digamma()


def products(m: Any, x: Tensor) -> Tensor:
    a = x[:, :4].view(-1, 2, 2)
    y = torch.baddbmm(a, a, a.mT, beta=0.5, alpha=2) + torch.einsum("nij,kj->nik", a, m.k) + a @ m.k
    y = (
        y
        + torch.tensordot(a, m.k, ([2], [0]))
        + a.diagonal(dim1=1, dim2=2).diag_embed()
        + a.tril()
        + a.triu(1)
    )
    outer = torch.linalg.cross(x[:, :3], x[:, 3:]) + (x[:, :3, None] * x[:, None, 3:]).sum(2)
    return torch.cat([y.flatten(1), outer[:, :2]], 1)


def matrices(name: str) -> Any:
    """A function of a positive definite matrix made of each example."""

    def run(m: Any, x: Tensor) -> Tensor:
        a = x[:, :4].view(-1, 2, 2)
        a = a @ a.mT + torch.eye(2, dtype=x.dtype)
        made = getattr(torch.linalg, name)(a)
        first = made if isinstance(made, Tensor) else made[0]
        return (
            m.k * first.reshape(x.shape[0], -1).sum(1, keepdim=True)
            if first.ndim > 1
            else first[:, None] * m.k
        )

    return run


def by_index(m: Any, x: Tensor) -> Tensor:
    at = torch.tensor([0, 2, 2, 5])
    y = (
        x[:, at].sum(1)
        + x.index_select(1, at).prod(1)
        + x.gather(1, x.sort(dim=1, stable=True).indices)[:, 1]
    )
    added = torch.zeros_like(x).index_add(1, at, x[:, :4]).scatter_add(1, (x > 0).long(), x)
    put = x.scatter(1, at[:3].expand(x.shape[0], -1)[:, :1], m.k[0].expand(x.shape[0], 1))
    put = put.masked_fill(x > 1, 0.3)
    return (y[:, None] * m.k[:6] + added + put + x.roll(2, 1).flip(1) + x.index_fill(1, at[:2], 1.0)).tanh()


def along(m: Any, x: Tensor) -> Tensor:
    y = [
        x.diff(dim=1).sum(1),
        torch.trapezoid(x, dim=1),
        x.cumsum(1)[:, -2],
        x.unfold(1, 3, 2).amax(2).sum(1),
    ]
    y += [x.var(1), torch.var_mean(x, 1)[1], x.logsumexp(1), x.nanmean(1), x.count_nonzero(1).to(x.dtype)]
    return torch.stack(y, 1)


def in_other_types(m: Any, x: Tensor) -> Tensor:
    whole = x.long()
    y = (whole // 2 + whole % 3 + (whole & 3)).to(x.dtype) + (x > 0) * 2 + whole.bool().to(x.dtype)
    return y * x + torch.where(x > 0, 1, x) + whole * 0.5 + whole / 3 + whole.sum(1, keepdim=True)


def rounded_within(m: Any, x: Tensor) -> Tensor:
    """Numbers in float32 in between, as language models norm them."""
    return F.layer_norm(x.float(), (6,)).to(x.dtype)


def learned_steps(m: Any, x: Tensor) -> Tensor:
    """Quantised with a learned step, rounding straight through."""
    step = m.step.abs() + 0.1
    y = (x / step).clamp(-4, 3)
    return ((y.round() - y).detach() + y) * step


def tokens_counted(m: Any, x: Tensor) -> Tensor:
    one = F.one_hot(x, 11).to(m.w.dtype)
    return (one.sum(1) / (x != 0).sum(1, keepdim=True)) @ m.w + (one.cumsum(1)[:, -1] @ m.w).tanh()


def segments(m: Any, x: Tensor) -> Tensor:
    """Sums of the same words' vectors."""
    vectors = m.e(x)
    total = torch.zeros(x.shape[0], 11, 4, dtype=vectors.dtype)
    total = total.scatter_reduce(1, x[..., None].expand(-1, -1, 4), vectors, "mean", include_self=False)
    return m.o(total.amax(1))


def fitted(name: str, run: Any, data: Any = vectors, out: int = 6, **more: Any) -> Entry:
    return Entry(f"numbers: {name}", lambda: scaled(run, out, k=weight(6)), data, **more)


ENTRIES = [
    fitted("corners", corners, integers),
    fitted("ties", tied, integers, 8),
    fitted("roots and norms at zero", at_zero, zeros_and_ones, 9),
    fitted("special functions", special),
    fitted("digamma", digammas, verdict=noted("digamma")),
    Entry("numbers: products", lambda: scaled(products, k=weight(2, 2)), vectors),
    *(
        fitted(f"linalg.{name}", matrices(name), verdict=noted("linalg|no equivalent|_linalg"))
        for name in ("inv", "cholesky", "det", "eigvalsh", "qr")
    ),
    fitted("indices", by_index, integers),
    fitted(
        "taken along an axis",
        lambda m, x: x.take_along_dim(x.sort(dim=1, stable=True).indices, 1),
        verdict=noted("one size"),
    ),
    fitted("along an axis", along, integers, 9),
    fitted("other types", in_other_types, integers),
    fitted("float32 in between", rounded_within, tolerance=1e-5),
    Entry(
        "numbers: learned steps",
        lambda: scaled(learned_steps, step=nn.Parameter(torch.tensor(0.4))),
        vectors,
    ),
    fitted(
        "quantised by PyTorch",
        lambda m, x: torch.fake_quantize_per_tensor_affine(x, 0.25, 0, -8, 7),
        verdict=noted("fake_quantize|no equivalent|gradient"),
    ),
    Entry("numbers: tokens counted", lambda: Net(tokens_counted, w=weight(11, 3)), words),
    Entry(
        "numbers: means of equal words",
        lambda: Net(segments, e=nn.Embedding(11, 4), o=nn.Linear(4, 3)),
        words,
    ),
    Entry(
        "numbers: path by a parameter",
        lambda: scaled(
            lambda m, x: x.tanh() if m.alpha > 0 else x.sin(), alpha=nn.Parameter(torch.tensor(0.02))
        ),
        vectors,
        verdict=noted("values of tensors"),
    ),
    Entry(
        "numbers: slices of a series",
        lambda: Net(
            lambda m, x: m.o(x[:, 1::2].sum(1) * x[:, -3:, :].amax(1) + x[..., [0, 0, 1, 3]][:, 2]),
            o=nn.Linear(4, 3),
        ),
        series,
    ),
]
