"""Programs in Core ATen operations: those that PyTorch makes of the whole program, and each operation once."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.fx.node import map_arg  # noqa: E402

from fedsolve.pytorch.translation import decomposition, export  # noqa: E402


def encoder(layers: int = 2) -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, 0.1, batch_first=True), layers)


class Sizes(nn.Module):
    """It computes with the number of examples, and with views, lists and types of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        few, many = torch.broadcast_tensors(x[:, :1], x)
        products = torch.einsum("bij,bkj->bik", few, many)
        rows = (products.reshape(n, -1) + products.transpose(1, 2).reshape(n, -1))[:, :24]
        halves = [part.double() for part in torch.chunk(rows, 2, dim=1)]
        return torch.cat([h.reshape(2 * n, -1).float().view(n, -1) for h in halves], 1) / n


class Stopped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = x.mean(-1, keepdim=True)
        return x * scale


class Similar(nn.Module):
    """PyTorch's own code of this loss writes to a tensor that it has just made."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.cosine_embedding_loss(x[:, 0], x[:, 1], x[:, 0, 0].sign())


class Statistics(nn.BatchNorm1d):
    """It writes its statistics without counting batches."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(x, self.running_mean, self.running_var, training=self.training)


def convolutions(norm: nn.Module, *, inplace: bool = False) -> nn.Module:
    first = nn.Conv1d(5, 4, 3, padding=1), norm, nn.ReLU(inplace), nn.Unflatten(2, (2, 2))
    return nn.Sequential(*first, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))


# with whether PyTorch decomposes the program itself, which writes to tensors or holds another program
CASES: dict[str, tuple[Any, bool, bool]] = {
    "attention": (encoder, True, False),
    "attention in evaluation": (encoder, False, False),
    "sizes": (Sizes, True, False),
    "written inside": (Similar, True, False),
    "group norm": (lambda: convolutions(nn.GroupNorm(2, 4)), True, False),
    "batch norm in evaluation": (lambda: convolutions(nn.BatchNorm1d(4)), False, False),
    "batch norm": (lambda: convolutions(nn.BatchNorm1d(4)), True, True),
    "statistics of this batch": (
        lambda: convolutions(nn.BatchNorm1d(4, track_running_stats=False)),
        True,
        False,
    ),
    "statistics": (lambda: convolutions(Statistics(4)), True, True),
    "in place": (lambda: convolutions(nn.Identity(), inplace=True), True, True),
    "no gradient": (Stopped, True, True),
}


def operations(program: Any) -> list[Any]:
    number: dict[Any, int] = {}
    rows = []
    for node in program.graph.nodes:
        number[node] = len(number)
        value = node.meta.get("val")
        shape = (str(value.shape), value.dtype) if isinstance(value, torch.Tensor) else None
        given = map_arg((node.args, node.kwargs), lambda n: f"%{number[n]}")
        if "_assert" in str(node.target):  # a check, by place or by name
            given = ()
        at = node.meta.get("stack_trace") if node.op == "call_function" and shape else None
        rows.append((node.op, node.op == "call_function" and node.target, str(given), shape, at))
    return rows


@pytest.mark.parametrize("case", CASES)
def test_as_pytorch_decomposes_the_whole(monkeypatch, case):
    make, training, whole = CASES[case]
    found: list[Any] = []

    def beside(program: Any) -> Any:
        found.append(program.run_decompositions(decomposition._table()))
        monkeypatch.setattr(
            type(program), "run_decompositions", lambda own, _: found.append(None) or found[0]
        )
        return decomposition.in_core_aten(program)

    monkeypatch.setattr(export, "in_core_aten", beside)
    with monkeypatch.context():
        program = export.export_module(make(), (torch.randn(7, 5, 4),), training)
    assert operations(program) == operations(found[0])
    assert (None in found) == whole


def test_equal_layers_are_decomposed_once(monkeypatch):
    counts = []
    trace = decomposition.make_fx
    monkeypatch.setattr(decomposition, "make_fx", lambda *a, **k: counts.append(1) or trace(*a, **k))
    numbers = []
    for layers in (2, 4):
        counts.clear()
        export.export_module(encoder(layers), (torch.randn(7, 5, 4),), True)
        numbers.append(len(counts))
    assert 0 < numbers[0] == numbers[1]
