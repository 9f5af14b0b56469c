"""Inputs of each operation: at least one call, and one for every rule that an operation has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

Rows = dict[str, list["Call"]]


@dataclass(frozen=True)
class Call:
    """Arguments of an operation, and what PyTorch should be asked in its place, where it has no gradient of its own."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    reference: Callable[..., Any] | None = None
    gradient: bool = True


def call(*args: Any, reference: Callable[..., Any] | None = None, **kwargs: Any) -> Call:
    return Call(args, kwargs, reference)


def values(*args: Any, **kwargs: Any) -> Call:
    """A call whose gradient is nothing to agree on, as at a NaN."""
    return Call(args, kwargs, gradient=False)


class Draw:
    """Seeded tensors in one floating type."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self._generator = dtype, torch.Generator().manual_seed(0)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=self._generator).to(self.dtype)

    def uniform(self, *shape: int, low: float = 0.1, high: float = 0.9) -> torch.Tensor:
        unit = torch.rand(shape, dtype=torch.float64, generator=self._generator)
        return (low + (high - low) * unit).to(self.dtype)

    def integers(self, *shape: int, low: int = -4, high: int = 5) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=self._generator)

    def mask(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self._generator) < 0.5

    def values(self, *values: float) -> torch.Tensor:
        return torch.tensor(values, dtype=self.dtype)


NAN, INF = float("nan"), float("inf")


def arithmetic(d: Draw) -> Rows:
    x, y, row, scalar = d.normal(2, 3), d.normal(2, 3), d.normal(3), d.normal()
    i, j, b = d.integers(2, 3), d.integers(2, 3, low=1, high=4) * torch.tensor([1, -1, 1]), d.mask(2, 3)
    double = torch.tensor(0.7, dtype=torch.float64)  # without axes: it does not widen a float32
    mixed = [call(x, y), call(x, row), call(x, i), call(i, x), call(x, double), call(i, scalar), call(b, x)]
    odd = d.values(1.0, -2.0, NAN, 0.5, INF), d.values(1.0, NAN, 1.0, 2.0, 3.0)
    small = i.to(torch.int32)
    places = d.values(-7.5, 7.5, -6.0, 6.0), d.values(2.0, -2.0, 3.0, -4.0)
    rounded = [
        call(*v, rounding_mode=m) for v in (places, (i, j), (places[0], 2)) for m in ("trunc", "floor", None)
    ]
    return {
        "aten.add.Tensor": [
            *mixed,
            call(x, y, alpha=2),
            call(i, j, alpha=3),
            call(b, b),
            call(i, 2.5),
            call(x, 2),
        ],
        "aten.add.Scalar": [call(x, 2), call(x, 2.5, 3), call(i, 2), call(small, 2), call(b, 1)],
        "aten.sub.Tensor": [*mixed[:-1], call(x, y, alpha=2), call(x, 1)],
        "aten.sub.Scalar": [call(x, 2), call(i, 2.5), call(x, 2.5, 3)],
        "aten.mul.Tensor": [*mixed, call(i, 2.5), call(b, b), call(small, i)],
        "aten.mul.Scalar": [call(x, 2), call(i, 2), call(i, 0.5), call(b, 2)],
        "aten.div.Tensor": [*(c for c in mixed if c.args[1] is not i), call(i, j), call(b, j), call(x, 2)],
        "aten.div.Scalar": [call(x, 2), call(i, 2), call(i, 2.5)],
        "aten.div.Tensor_mode": rounded,
        "aten.div.Scalar_mode": [call(i, 3, rounding_mode=m) for m in ("trunc", "floor")],
        "aten.remainder.Tensor": [call(*places), call(i, j), call(places[0], places[1][:1])],
        "aten.remainder.Scalar": [call(places[0], 4), call(i, -3), call(i, 2.5)],
        "aten.remainder.Scalar_Tensor": [
            call(v, w, reference=_remainder) for v, w in ((7, j), (7.5, places[1]))
        ],
        "aten.fmod.Tensor": [call(*places), call(i, j)],
        "aten.fmod.Scalar": [call(places[0], 4), call(i, -3)],
        "aten.pow.Tensor_Scalar": [
            *(call(x, p) for p in (2, 3, 1, 0, -1, 2.0)),
            *(call(x.abs(), p) for p in (0.5, 2.5, -0.5)),
            call(i, 2),
            call(i, 2.5),
            call(d.values(0.0, 1.0), 2.0),
            call(d.values(0.0, 4.0), 1),
        ],
        "aten.pow.Tensor_Tensor": [
            call(x.abs(), y),
            call(d.values(0.0, 2.0), d.values(0.0, 3.0)),
            call(i, j.abs()),
        ],
        "aten.pow.Scalar": [call(2, y), call(2.5, i), call(3, j.abs())],
        "aten.maximum.default": [call(x, y), values(*odd), call(i, j), call(x, x.clone()), call(x, i)],
        "aten.minimum.default": [call(x, y), values(*odd), call(i, j), call(x, x.clone())],
        "aten.atan2.default": [
            call(x, y),
            call(x, row),
            call(i, j),
            call(x * 0, row.clamp(min=0)),
            call(x, 0 * y),
        ],
        "aten.clamp.default": [
            *(call(x, *v) for v in ((-0.5, 0.5), (None, 0.3), (0.1, None), (0.5, -0.5))),
            call(d.values(-1.0, 0.0, 1.0), -1, 1),
            values(d.values(NAN, 2.0), -1, 1),
            call(i, -1, 2),
            call(i, -0.5, None),
        ],
        "aten.clamp.Tensor": [call(x, y, y + 1), call(x, None, row), call(x, y)],
    }


def _remainder(x: float, other: torch.Tensor) -> torch.Tensor:
    return torch.remainder(torch.tensor(x, dtype=other.dtype), other)


def comparison(d: Draw) -> Rows:
    x, y, i, j, b, c = (
        d.normal(2, 3),
        d.normal(2, 3),
        d.integers(2, 3),
        d.integers(2, 3),
        d.mask(2, 3),
        d.mask(2, 3),
    )
    y[0] = x[0]
    odd = d.values(0.0, NAN, INF, -INF, 2.0)
    compared = [call(x, y), call(i, j), call(x, i), call(odd, odd.flip(0)), call(b, c)]
    numbers = [call(x, 0), call(i, 0.5), call(i, 1), call(odd, 2), call(b, 1)]
    rows = {}
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        rows |= {f"aten.{name}.Tensor": compared, f"aten.{name}.Scalar": numbers}
    for name in ("and", "or", "xor"):
        rows[f"aten.bitwise_{name}.Tensor"] = [call(i, j), call(b, c), call(i, b)]
        rows[f"aten.bitwise_{name}.Scalar"] = [call(i, 3), call(b, True)]
        rows[f"aten.logical_{name}.default"] = [call(x, y), call(b, i), call(i, i[0])]
    return rows | {
        "aten.logical_not.default": [call(x), call(b), call(i), values(odd)],
        "aten.bitwise_not.default": [call(i), call(b)],
        "aten.isnan.default": [values(odd), call(i)],
        "aten.isinf.default": [values(odd), call(i)],
        "aten.where.self": [
            call(b, x, y),
            call(b, x, i),
            call(b[0], x, x[0]),
            call(b, x, d.normal()),
            call(b, i, j),
        ],
    }


def elementwise(d: Draw) -> Rows:
    x, unit, positive, i = d.normal(2, 3), d.uniform(2, 3), d.uniform(2, 3, high=3.0), d.integers(2, 3)
    every = [
        "atan",
        "cos",
        "cosh",
        "erf",
        "erfc",
        "exp",
        "exp2",
        "expm1",
        "sigmoid",
        "sin",
        "sinc",
        "sinh",
        "tan",
        "tanh",
    ]
    every += ["asinh"]
    above = ["log", "log10", "log1p", "log2", "sqrt", "rsqrt", "reciprocal", "lgamma"]
    rows = {f"aten.{name}.default": [call(x), call(i)] for name in every}
    rows |= {f"aten.{name}.default": [call(positive), call(i.abs() + 1)] for name in above}
    rows |= {f"aten.{name}.default": [call(unit)] for name in ("acos", "asin", "atanh")}
    odd = d.values(-2.5, -0.5, 0.0, 0.5, 1.5, 2.5)
    rows |= {
        f"aten.{n}.default": [values(odd), call(i)]
        for n in ("abs", "neg", "sign", "ceil", "floor", "trunc", "round")
    }
    rows["aten.sign.default"] += [call(d.values(NAN, INF))]
    rows["aten.acosh.default"] = [call(positive + 1)]
    rows["aten.alias.default"] = rows["aten.clone.default"] = rows["aten.lift_fresh_copy.default"] = [
        call(x),
        call(i),
    ]
    rows["aten.detach.default"] = [call(x)]
    return rows


def _hardsigmoid(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.hardtanh(x / 6 + 0.5, 0, 1)


def margins(d: Draw) -> Rows:
    x = d.normal(4, 3)
    named = torch.tensor([[2, 0, -1], [2, -1, 0], [-1, 1, 2], [0, 1, 2]])
    tied = torch.tensor([[1.0, 0.0, 2.0]], dtype=x.dtype)  # margins of exactly 0
    calls = [call(x, named, way) for way in (0, 1, 2)]
    calls += [call(x[0], named[0], 1), call(tied, named[:1], 1), call(x, named % 2, 1)]
    own = torch.tensor(
        [2]
    )  # PyTorch has no gradient by weights: those are among the losses of the collection
    others = [call(tied, own, *more) for more in ((), (2,), (1, 0.5), (1, 1, None, 0), (1, 1, None, 2))]
    others.append(call(tied[0], own[0]))
    return {"aten.multilabel_margin_loss.default": calls, "aten.multi_margin_loss.default": others}


def activations(d: Draw) -> Rows:
    x, kinks, scalar = d.normal(2, 3), d.values(-1.0, 0.0, 1.0, 30.0, -30.0), d.normal()
    halves = d.values(-INF, 0.0, 1.0)
    return {
        "aten.relu.default": [call(x), call(kinks), call(d.values(NAN, 1.0)), call(d.integers(3))],
        "aten.gelu.default": [call(x), call(x, approximate="tanh"), call(kinks)],
        "aten.elu.default": [call(x), call(x, 1.5, 1.05, 2), call(kinks)],
        "aten.leaky_relu.default": [call(x), call(x, 0.2), call(kinks)],
        "aten.hardtanh.default": [call(x), call(x, 0, 6), call(kinks), call(d.values(NAN, 1.0))],
        # PyTorch's gradient has 1/6 in float32, whatever the type
        "aten.hardsigmoid.default": [Call((v,), {}, _hardsigmoid) for v in (x, 3 * kinks)],
        "aten.hardswish.default": [call(x), call(3 * kinks)],
        "aten._softmax.default": [
            call(x, 1, False),
            call(x, 0, False),
            call(scalar, 0, False),
            call(halves, -1, False),
        ],
        "aten._log_softmax.default": [
            call(x, 1, False),
            call(x, -2, False),
            call(scalar, 0, False),
            call(kinks, 0, False),
        ],
    }


def reductions(d: Draw) -> Rows:
    x, i, b, odd = d.normal(2, 3, 4), d.integers(2, 3), d.mask(2, 3), d.values(1.0, NAN, 3.0)
    ties, scalar, zero = d.values(1.0, 3.0, 3.0), d.normal(), torch.zeros(2, 3, dtype=d.dtype)
    axes = [call(x, [1]), call(x, [0, -1], True), call(x, [-1])]
    extremes = [*axes, call(x, []), call(ties, [0]), values(odd, [0]), call(i, [1])]
    along = [call(x, 1), call(x, -1, True), call(ties, 0), values(odd, 0), call(i, 1), call(scalar, 0)]
    places = [call(x), call(x, 1), call(x, -1, True), call(ties), values(odd), call(x, None, True)]
    running = [call(x, 1), call(i, 0), call(x, -1, dtype=torch.float64), call(b, 1)]
    kinds = [
        call(x),
        call(x, 1),
        call(x, 2, [0, 2], True),
        call(x, 2.5, [1]),
        call(x, INF, [1]),
        call(x, -INF, [0]),
    ]
    return {
        "aten.sum.dim_IntList": [
            *axes,
            call(x, None),
            call(i, [1]),
            call(b, [1]),
            call(i, [1], dtype=d.dtype),
        ],
        "aten.mean.default": [call(x), call(scalar), call(i, dtype=d.dtype)],
        "aten.mean.dim": [*axes, call(x, None)],
        "aten.prod.default": [call(x), call(i), call(b)],
        "aten.prod.dim_int": [call(x, 1), call(i, -1, True)],
        "aten.var.dim": [call(x, [1]), call(x, [0, 2], False, True), call(x, None)],
        "aten.var.correction": [
            call(x),
            call(x, [1], correction=0),
            call(x, [0, 2], correction=2, keepdim=True),
        ],
        "aten.std.default": [call(x), call(x, False)],
        "aten.std.dim": [call(x, [1]), call(x, [0, 2], False, True), call(x * 0, [1])],
        "aten.std_mean.default": [call(x), call(x, False)],
        "aten.std_mean.dim": [call(x, [1]), call(x, [0, 2], False, True)],
        "aten.std.correction": [call(x), call(x, [1], correction=0, keepdim=True), call(x * 0, [1])],
        "aten.std_mean.correction": [call(x, [1], correction=0, keepdim=True), call(x * 0)],
        "aten.var_mean.correction": [call(x, [1], correction=0, keepdim=True), call(x)],
        "aten.amax.default": extremes,
        "aten.amin.default": extremes,
        "aten.max.default": [call(x), call(ties), values(odd), call(i)],
        "aten.min.default": [call(x), values(odd), call(i)],
        "aten.max.dim": along,
        "aten.min.dim": along,
        "aten.argmax.default": places,
        "aten.argmin.default": places,
        "aten.any.default": [call(x), call(b)],
        "aten.any.dim": [call(b, 1), call(i, -1, True)],
        "aten.any.dims": [call(b, [0, 1]), call(b, None)],
        "aten.cumsum.default": running,
        "aten.cumprod.default": running,
        "aten.linalg_vector_norm.default": [
            *kinds,
            call(zero, 2, [1]),
            call(x, 1),
            call(x, 0, [1]),
            call(zero, 3, [1]),
        ],
    }


def shapes(d: Draw) -> Rows:
    x, y, i, square = d.normal(2, 3, 4), d.normal(2, 5, 4), d.integers(2, 3), d.normal(4, 4)
    whole = 2**63 - 1
    return {
        "aten.view.default": [call(x, [6, -1]), call(x, [24])],
        "aten.expand.default": [call(x[:, :1], [-1, 3, 4]), call(x[0, 0], [2, -1])],
        "aten.permute.default": [call(x, [2, 0, 1]), call(x, [-1, 0, 1])],
        "aten.unsqueeze.default": [call(x, 0), call(x, -1)],
        "aten.squeeze.dim": [call(x[:, :1], 1), call(x, 1), call(x[:, :1], -2)],
        "aten.squeeze.dims": [call(x[:1, :1], [0, 1]), call(x[:1], [0, 2])],
        "aten.select.int": [call(x, 1, 2), call(x, -1, -1)],
        "aten.slice.Tensor": [
            call(x, 1, 1, whole),
            call(x, -1, 0, 4, 2),
            call(x, 2, -3, -1),
            call(x, 1, 5, 9),
            call(x),
        ],
        "aten.slice_scatter.default": [call(x, y[:, :2], 1, 1, 3), call(x, y[:, :2], 1, 0, whole, 2)],
        "aten.select_scatter.default": [call(x, y[:, 0], 1, -1)],
        "aten.cat.default": [call([x, y], 1), call([x, d.normal(0)], -1), call([i, d.normal(2, 2)], 1)],
        "aten.split_with_sizes.default": [call(x, [1, 3], -1), call(x, [2, 1], 1)],
        "aten.flip.default": [call(x, [0, 2]), call(x, [-1]), call(x, [])],
        "aten.repeat.default": [call(x, [2, 1, 3]), call(x[0], [2, 1, 2])],
        "aten.as_strided.default": [call(x, [2, 3], [4, 1], 2), call(x, [3, 2], [1, 1])],
        "aten.unfold.default": [call(x, 2, 2, 1), call(x, -2, 2, 2)],
        "aten.diagonal.default": [call(square), call(x, 1, 1, 2), call(x, -1, -2, -1)],
    }


def indexing(d: Draw) -> Rows:
    x, rows, ties = d.normal(4, 3, 5), torch.tensor([0, 2, -1]), d.values(2.0, 1.0, 2.0, 0.5)
    along = d.integers(2, 3, 2, low=0, high=5)
    return {
        "aten.index.Tensor": [
            call(x, [rows]),
            call(x, [None, rows]),
            call(x, [rows, None, rows]),
            call(x, [rows[:, None], rows]),
            call(x, [None, rows[:, None] * 0, rows]),
        ],
        "aten.index_select.default": [call(x, 1, torch.tensor([2, 0, 0])), call(x, -1, torch.tensor([3]))],
        "aten.gather.default": [
            call(x, 2, along),
            call(x, -1, along),
            call(ties, 0, torch.tensor([3, 3, 0])),
        ],
        "aten.sort.default": [call(x), call(x, 1, True), call(d.integers(2, 3), 0)],
        "aten.sort.stable": [call(ties, stable=True), call(ties, stable=True, dim=0, descending=True)],
        "aten.topk.default": [call(x, 2), call(x, 2, 1, False), call(x, 1, -2, True, True)],
    }


def scattering(d: Draw) -> Rows:
    x, src, index = d.normal(4, 3), d.normal(2, 3), torch.tensor([[0, 1, 2], [3, 3, 0]])
    once, rows = torch.tensor([[0, 1, 2], [3, 2, 0]]), torch.tensor([0, 2])
    mask, i = d.mask(4, 3), d.integers(4, 3)
    return {
        "aten.index_put.default": [
            call(x, [rows], d.normal(2, 3)),
            call(x, [None, rows], d.normal(4, 2)),
            call(x, [torch.tensor([1, 1])], d.normal(2, 3), True),
            call(x, [rows, rows], d.normal()),
            call(x, [mask], d.normal()),
            call(x, [mask[:, 0]], d.normal(), True),
            call(x, [mask[:, 0]], x[0]),
            call(x, [None, mask[0]], d.normal()),
        ],
        "aten.scatter.src": [call(x, 0, once, src), call(x, -1, torch.tensor([[2, 0]]), src[:1, :2])],
        "aten.scatter.value": [call(x, 0, index, 2.5), call(i, 1, index % 3, 7)],
        "aten.scatter_add.default": [call(x, 0, index, src), call(i, 1, index % 3, i)],
        "aten.scatter_reduce.two": [
            call(x, 0, index, src, reduce, include_self=own)
            for reduce in ("sum", "mean", "amax", "amin")
            for own in (True, False)
        ],
        "aten.masked_scatter.default": [call(x, mask, d.normal(12))],
    }


def linear(d: Draw) -> Rows:
    a, b, v = d.normal(2, 3), d.normal(3, 4), d.normal(3)
    x, y, near = d.normal(5, 2, 3), d.normal(5, 3, 4), d.normal(3, 4)
    bias = d.normal(4)
    nan = torch.full((2, 4), NAN, dtype=d.dtype)
    return {
        "aten.mm.default": [call(a, b)],
        "aten.bmm.default": [call(x, y)],
        "aten.addmm.default": [
            call(bias, a, b),
            call(d.normal(2, 4), a, b, beta=0.5, alpha=2),
            call(nan, a, b, beta=0),
        ],
        "aten.addmv.default": [call(d.normal(2), a, v), call(d.normal(2), a, v, beta=2, alpha=3)],
        "aten._trilinear.default": [
            call(a, d.normal(4, 3, 5), d.normal(2, 5), [1, 3], [0], [1, 2], [2, 3]),
            call(a, b, d.normal(2, 4), [2], [0], [1], [1]),
        ],
        "aten._cdist_forward.default": [
            call(near, d.normal(2, 4), p, None, reference=_cdist) for p in (1.0, 2.0, 3.0)
        ],
        "aten._pdist_forward.default": [call(near), call(near, 1.0), call(near, 3.0)],
    }


def _cdist(a: torch.Tensor, b: torch.Tensor, p: float, _: None) -> torch.Tensor:
    return torch.cdist(a, b, p, compute_mode="donot_use_mm_for_euclid_dist")


def convolutions(d: Draw) -> Rows:
    line, image, solid = d.normal(2, 4, 9), d.normal(2, 4, 7, 6), d.normal(1, 2, 4, 5, 4)
    up = d.normal(4, 3, 3, 2)
    one, none = [1, 1], [0, 0]
    return {
        "aten.convolution.default": [
            call(image, d.normal(6, 4, 3, 2), d.normal(6), one, none, one, False, none, 1),
            call(image, d.normal(6, 4, 3, 3), None, [2, 1], [1, 2], one, False, none, 1),
            call(image, d.normal(8, 2, 3, 3), d.normal(8), one, one, [2, 1], False, none, 2),
            call(image, d.normal(4, 1, 3, 3), d.normal(4), [2, 2], one, one, False, none, 4),
            call(line, d.normal(3, 4, 3), d.normal(3), [2], [1], [2], False, [0], 1),
            call(
                solid,
                d.normal(3, 2, 2, 3, 2),
                d.normal(3),
                [1, 2, 1],
                [1, 0, 1],
                [1, 1, 1],
                False,
                [0, 0, 0],
                1,
            ),
            call(image, up, d.normal(3), [2, 3], [1, 0], one, True, [1, 2], 1),
            call(image, up, None, [2, 2], [0, 1], [2, 1], True, [1, 0], 2),
            call(line, d.normal(4, 3, 3), d.normal(3), [2], [1], [1], True, [1], 1),
        ]
    }


def pooling(d: Draw) -> Rows:
    image, solid, odd = d.normal(2, 3, 7, 6), d.normal(1, 2, 5, 4, 6), d.normal(1, 5, 5)
    ties, nan = torch.ones(1, 1, 4, 4, dtype=d.dtype), d.normal(1, 1, 4, 4)
    nan[0, 0, 1, 1] = NAN
    means = [
        call(image, [2, 2]),
        call(image, [3, 2], [2, 1], [1, 1]),
        call(image, [3, 3], [2, 2], [1, 1], False, False),
        call(image, [3, 3], [2, 2], [1, 1], True),
        call(image, [2, 3], [2, 2], [0, 1], True, False),
        call(image, [2, 2], [2, 2], [0, 0], True, True, 3),
        call(odd, [2, 2], [3, 3], [0, 0], True),
        call(ties, [2], [2]),
    ]
    return {
        "aten.max_pool2d_with_indices.default": [
            call(image, [2, 2]),
            call(image, [3, 3], [2, 2], [1, 1]),
            call(image, [3, 2], [2, 2], [1, 1], [2, 1]),
            call(image, [3, 3], [2, 2], [1, 1], 1, True),
            call(odd, [2, 2], [3, 3], 0, 1, True),
            call(ties, [2, 2], [1, 1]),
            values(nan, [2], [2]),
            values(nan, [2], [1], 0, 2),
        ],
        "aten.max_pool3d_with_indices.default": [
            call(solid, [2, 2, 2]),
            call(solid, [2], [2], [1], [1], True),
        ],
        "aten.avg_pool2d.default": means,
        "aten.avg_pool3d.default": [
            call(solid, [2, 2, 3]),
            call(solid, [3, 2, 2], [2, 2, 2], [1, 0, 1], True, False),
        ],
        "aten._adaptive_avg_pool2d.default": [call(image, n) for n in ([1, 1], [3, 4], [7, 3])],
        "aten._adaptive_avg_pool3d.default": [call(solid, [1, 1, 1]), call(solid, [2, 3, 3])],
        "aten.adaptive_max_pool2d.default": [call(image, [1, 1]), call(image, [3, 4]), call(ties, [2, 3])],
        "aten.adaptive_max_pool3d.default": [call(solid, [2, 3, 1])],
    }


def normalisation(d: Draw) -> Rows:
    x, flat, w, b = d.normal(3, 4, 2, 5), d.normal(6, 4), d.normal(4), d.normal(4)
    mean, var, last = d.normal(4), d.uniform(4), d.normal(5)
    return {
        "aten.native_layer_norm.default": [
            call(x, [5], last, last + 1, 1e-5),
            call(x, [2, 5], None, None, 1e-3),
        ],
        "aten.layer_norm.default": [call(x, [5], last, last + 1, 1e-5), call(x, [2, 5]), call(flat, [4], w)],
        "aten.native_group_norm.default": [
            call(x, w, b, 3, 4, 10, 2, 1e-5),
            call(flat, None, None, 6, 4, 1, 1, 1e-3),
        ],
        "aten.group_norm.default": [call(x, 2, w, b), call(x, 1, w, b), call(flat, 1)],
        "aten._native_batch_norm_legit_no_training.default": [
            call(x, w, b, mean, var, 0.1, 1e-5, reference=_evaluated),
            call(flat, None, None, mean, var, 0.1, 1e-3, reference=_evaluated),
        ],
        "aten._native_batch_norm_legit.no_stats": [
            call(x, w, b, True, 0.1, 1e-5, reference=_of_batch),
            call(flat, None, None, True, 0.1, 1e-3, reference=_of_batch),
        ],
        "aten._native_batch_norm_legit_functional.default": [
            call(x, w, b, mean, var, True, 0.1, 1e-5, reference=_moved),
            call(flat, None, None, mean, var, True, 0.3, 1e-3, reference=_moved),
            call(x, w, b, mean, var, False, 0.1, 1e-5, reference=_moved),
        ],
    }


def _evaluated(x: Any, w: Any, b: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
    none = torch.zeros(0, dtype=x.dtype)
    y = torch.nn.functional.batch_norm(x, mean.detach(), var.detach(), w, b, False, momentum, eps)
    return y, none, none


def _of_batch(x: Any, w: Any, b: Any, training: bool, momentum: float, eps: float) -> Any:
    var, mean = torch.var_mean(x, [0, *range(2, x.ndim)], correction=0)
    y = torch.nn.functional.batch_norm(x, None, None, w, b, True, momentum, eps)
    return y, mean, (var + eps).rsqrt()


def _moved(x: Any, w: Any, b: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float) -> Any:
    """The running statistics are a module's buffers, which have no gradient."""
    mean, var = mean.detach().clone(), var.detach().clone()
    if not training:
        return *_evaluated(x, w, b, mean, var, momentum, eps), mean, var
    torch.nn.functional.batch_norm(x, mean, var, w, b, True, momentum, eps)
    return *_of_batch(x, w, b, True, momentum, eps), mean, var


def attention(d: Draw) -> Rows:
    q, k, v = d.normal(2, 2, 3, 4), d.normal(2, 2, 5, 4), d.normal(2, 2, 5, 6)
    mask = d.mask(2, 1, 3, 5)
    mask[0, 0, 0] = False  # a query with nothing to attend to
    return {
        "aten.scaled_dot_product_attention.default": [
            call(q, k, v),
            call(q, k, v, mask),
            call(q, k, v, d.normal(3, 5)),
            call(q, k, v, None, 0.0, True),
            call(q, k, v, scale=0.3),
            call(q, k[:, :1], v[:, :1], enable_gqa=True),
        ]
    }


def recurrent(d: Draw) -> Rows:
    x = d.normal(3, 5, 2)  # batch, steps, features

    def layers(gates: int, count: int, ways: int, biases: bool = True, out: int = 4) -> list[torch.Tensor]:
        params = []
        for layer in range(count):
            for _ in range(ways):
                into = 2 if layer == 0 else out * ways
                params += [d.normal(gates * 4, into) / 2, d.normal(gates * 4, out) / 2]
                params += [d.normal(gates * 4), d.normal(gates * 4)] if biases else []
                params += [d.normal(out, 4)] if out != 4 else []
        return params

    def start(count: int, out: int = 4) -> torch.Tensor:
        return d.normal(count, 3, out)

    rest = 0.0, False
    rows = {
        "aten.lstm.input": [
            call(x, [start(2), start(2)], layers(4, 2, 1), True, 2, *rest, False, True),
            call(
                x.transpose(0, 1), [start(2), start(2)], layers(4, 1, 2, False), False, 1, *rest, True, False
            ),
            call(x, [start(1, 3), start(1)], layers(4, 1, 1, True, 3), True, 1, *rest, False, True),
        ]
    }
    for name, gates in {"gru": 3, "rnn_tanh": 1, "rnn_relu": 1}.items():
        rows[f"aten.{name}.input"] = [
            call(x, start(4), layers(gates, 2, 2), True, 2, *rest, True, True),
            call(x.transpose(0, 1), start(1), layers(gates, 1, 1, False), False, 1, *rest, False, False),
        ]
    return rows


def embedding(d: Draw) -> Rows:
    table, at = d.normal(6, 3), torch.tensor([[0, 5, 2], [2, 2, 1]])
    offsets = torch.tensor([0, 2, 2, 5])
    bags = [
        call(table, at.reshape(-1), offsets, reference=_bag(0)),
        call(table, at.reshape(-1), offsets, False, 1, reference=_bag(1)),
        call(table, at.reshape(-1), offsets, False, 0, False, d.normal(6), reference=_bag(0)),
        call(table, at.reshape(-1), torch.tensor([0, 2, 6]), False, 0, False, None, True, reference=_bag(0)),
        call(table, at.reshape(-1), offsets, False, 1, False, None, False, 2, reference=_bag(1)),
    ]
    return {
        "aten.embedding.default": [call(table, at), call(table, at, 2), call(table, at[0, 0])],
        "aten._embedding_bag.default": bags,
        "aten._embedding_bag_forward_only.default": bags,
    }


def _bag(mode: int) -> Callable[..., Any]:
    def of(table: Any, at: Any, offsets: Any, *rest: Any) -> Any:
        _, _, _, weights, last, padding, *_ = (*rest, *(False, mode, False, None, False, -1)[len(rest) :])
        kind, padding = ("sum", "mean")[mode], None if padding < 0 else padding
        y = torch.nn.functional.embedding_bag(
            at,
            table,
            offsets,
            mode=kind,
            per_sample_weights=weights,
            include_last_offset=last,
            padding_idx=padding,
        )
        return y

    return of


def padding(d: Draw) -> Rows:
    x, solid = d.normal(2, 3, 4, 5), d.normal(1, 2, 3, 3, 4)
    return {
        "aten.constant_pad_nd.default": [
            call(x, [1, 2]),
            call(x, [1, 0, 0, 2], 1.5),
            call(x, [-1, 1, 2, -2], 3),
        ],
        "aten.reflection_pad1d.default": [call(x[0], [2, 1])],
        "aten.reflection_pad2d.default": [call(x, [2, 1, 0, 3])],
        "aten.reflection_pad3d.default": [call(solid, [2, 1, 0, 1, 2, 1])],
        "aten.replication_pad2d.default": [call(x, [2, 1, 0, 3])],
        "aten.replication_pad3d.default": [call(solid, [2, 1, 0, 1, 2, 1])],
        "aten.col2im.default": [
            call(d.normal(2, 12, 12), [4, 5], [2, 2], [1, 1], [0, 0], [1, 1]),
            call(d.normal(18, 6), [5, 4], [3, 3], [1, 1], [1, 1], [2, 2]),
        ],
    }


def resizing(d: Draw) -> Rows:
    x = d.normal(2, 3, 4, 5)
    return {
        "aten.upsample_nearest2d.vec": [
            call(x, [8, 10], None),
            call(x, [3, 7], None),
            call(x, None, [1.5, 2.2]),
        ],
        "aten.upsample_bilinear2d.vec": [
            call(x, [8, 10], False, None),
            call(x, [7, 3], True, None),
            call(x, None, False, [1.5, 2.2]),
            call(x, None, True, [2.0, 1.0]),
            call(x, [1, 1], True, None),
        ],
    }


def creation(d: Draw) -> Rows:
    x, i = d.normal(2, 3), d.integers(2, 3)
    return {
        "aten._to_copy.default": [
            call(x),
            call(x * 3, dtype=torch.int64),
            call(i, dtype=d.dtype),
            call(x, dtype=torch.bool),
        ],
        "aten.full.default": [call([2, 3], 1), call([], 2.5), call([2], True), call([2], 1, dtype=d.dtype)],
        "aten.full_like.default": [call(x, 2), call(i, 3), call(x, 1, dtype=torch.bool)],
        "aten.fill.Scalar": [call(x, 2), call(i, 3)],
        "aten.copy.default": [call(*v, reference=_copied) for v in ((x, i), (i, x * 3), (x, x[0]))],
        "aten.scalar_tensor.default": [call(2), call(2.5), call(2, dtype=torch.int64), call(-INF)],
        "aten.arange.start_step": [
            call(0, 5),
            call(1, 7, 2),
            call(0, 1, 0.25),
            call(3, 0, -1),
            call(0, 4, dtype=d.dtype),
        ],
    }


def fourier(d: Draw) -> Rows:
    x, pairs = d.normal(2, 3, 4), d.normal(3, 5, 2)
    z = torch.view_as_complex(pairs)
    return {
        "aten._fft_r2c.default": [
            *(call(x, [2], code, True) for code in (0, 1, 2)),
            call(x, [0, 1], 1, True),
            call(x, [2, 1], 0, False),
        ],
        "aten._fft_c2c.default": [
            *(call(z, [0, 1], code, forward) for code in (0, 1, 2) for forward in (True, False))
        ],
        "aten._fft_c2r.default": [
            *(call(z, [1], code, 8) for code in (0, 1, 2)),
            call(z, [1], 0, 9),
            call(z, [0, 1], 2, 8),
        ],
        "aten.view_as_real.default": [call(z)],
        "aten.view_as_complex.default": [call(pairs)],
        "aten.complex.default": [call(x, x * 2 + 1)],
        "aten.polar.default": [call(x.abs(), x)],
        "aten.angle.default": [call(z), call(x)],
        "aten._conj.default": [call(z)],
        "aten.conj_physical.default": [call(z)],
        "aten.abs.default": [call(z), call(z * 0)],
    }


def _copied(x: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    return x.clone().copy_(src)


SHAPE_ALONE = {
    "aten.empty.memory_format": [call([2, 3]), call([2], dtype=torch.int64)],
    "aten.empty_permuted.default": [call([2, 3], [1, 0]), call([2, 3], [1, 0], layout=torch.strided)],
    "aten.empty_strided.default": [call([2, 3], [1, 2]), call([2, 3], [1, 2], layout=torch.strided)],
}
"""Of entries that PyTorch leaves undefined."""

FAMILIES = (
    arithmetic,
    comparison,
    elementwise,
    activations,
    reductions,
    shapes,
    indexing,
    scattering,
    linear,
    margins,
    convolutions,
    pooling,
    normalisation,
    attention,
    recurrent,
    embedding,
    padding,
    resizing,
    creation,
    fourier,
)
