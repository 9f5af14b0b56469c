"""Pictures of a large module, with their channels last between convolutions: the same numbers, fewer turned arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from fedsolve.pytorch.translation.arrays import tensor_to_array  # noqa: E402
from fedsolve.pytorch.translation.export import export_module  # noqa: E402
from fedsolve.pytorch.translation.translate import Program  # noqa: E402


class Residual(nn.Module):
    """Norms, a shortcut, strides, dilation, and channels scaled by what their means give."""

    def __init__(self, space: int) -> None:
        super().__init__()
        conv = nn.Conv1d if space == 1 else nn.Conv2d
        self.first, self.second = conv(2, 6, 3, padding=2, dilation=2), conv(6, 6, 3, padding=1, bias=False)
        self.norm, self.plain = nn.GroupNorm(3, 6), nn.GroupNorm(2, 6, affine=False)
        self.down, self.scale = conv(6, 4, 3, stride=2), conv(6, 6, 1)
        self.axes = tuple(range(2, 2 + space))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.norm(self.first(x)))
        y = F.relu(self.plain(self.second(y)) + y)
        y = y * torch.sigmoid(self.scale(y.mean(self.axes, keepdim=True))) / 2
        return torch.tanh(self.down(y)).flatten(1)


class Others(nn.Module):
    """What has no form with channels last stands between: groups, pooling, another norm, a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.grouped = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.norm, self.up = nn.InstanceNorm2d(4), nn.ConvTranspose2d(4, 2, 2)
        self.shift = nn.Parameter(torch.randn(4, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.grouped(F.relu(self.first(x)) + self.shift)
        return self.up(F.max_pool2d(self.norm(F.group_norm(y, 2)), 2)) * 3


MODULES: dict[str, tuple[Any, tuple[int, ...], int, int]] = {
    # constructor, shape of the inputs; convolutions with channels last, arrays that are turned there and back
    "pictures": (lambda: Residual(2), (5, 2, 9, 8), 4, 4),
    "series": (lambda: Residual(1), (5, 2, 9), 4, 4),
    "others": (Others, (5, 2, 8, 8), 1, 3),
}


@pytest.mark.parametrize("name", MODULES)
def test_same_numbers(name: str) -> None:
    """Outputs, gradients and products with the Hessian; PyTorch's outputs, too."""
    make, shape, last, turned = MODULES[name]
    torch.manual_seed(0)
    module, x = make().double(), torch.randn(shape, dtype=torch.float64)
    own = {n: tensor_to_array(p) for n, p in module.named_parameters()}
    exported = export_module(module, (x,), True)
    weights = np.random.default_rng(0).standard_normal(module(x).shape)

    def of(last: bool) -> Any:
        program = Program(exported, torch.float64, channels_last=last)

        def loss(params: Any, x: Any) -> Any:
            outputs = program(params, [x])[0][0]
            return jnp.sum(jnp.sin(outputs) * weights), outputs

        def every(params: Any, x: Any) -> Any:
            slope = jax.grad(loss, (0, 1), has_aux=True)
            return jax.jvp(lambda p: slope(p, x), (params,), (jax.tree.map(jnp.cos, params),))

        return every, loss

    with jax.enable_x64(True):
        found, expected = (jax.jit(of(last)[0])(own, x.numpy()) for last in (True, False))
        forward = jax.make_jaxpr(of(True)[1])(own, x.numpy())
    np.testing.assert_allclose(found[0][1], module(x).detach(), rtol=1e-11, atol=1e-12)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11)
    kinds = [e.primitive.name for e in forward.eqns]
    specs = [e.params["dimension_numbers"].out_spec for e in forward.eqns if "conv" in e.primitive.name]
    assert sum(spec[1] == len(shape) - 1 for spec in specs) == last
    assert kinds.count("transpose") == turned


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("padded", [False, True])
def test_batch_norm(training: bool, padded: bool) -> None:
    """Statistics of the examples that count, new buffers, and gradients; no array is turned in between."""
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 3, 2),
        nn.BatchNorm2d(3, affine=False),
    )
    module, x = nn.Sequential(*layers).double(), torch.randn(6, 2, 7, 6, dtype=torch.float64)
    exported = export_module(module, (x,), training)
    own = {n: tensor_to_array(t) for n, t in (*module.named_parameters(), *module.named_buffers())}
    buffers = {n: own.pop(n) + 0.5 for n in [*own] if "running" in n or "batches" in n}
    counts = np.array([1, 1, 0, 1, 0, 1] if padded else [1] * 6)

    def of(last: bool) -> Any:
        program = Program(exported, torch.float64, channels_last=last)

        def loss(params: Any) -> Any:
            outputs, written = program({**buffers, **params}, [x.numpy()], None, jnp.asarray(counts))
            return jnp.sum(jnp.sin(outputs[0]).mean((1, 2, 3)) * counts), written

        return loss

    with jax.enable_x64(True):
        found, expected = (jax.jit(jax.value_and_grad(of(last), has_aux=True))(own) for last in (True, False))
        kinds = [e.primitive.name for e in jax.make_jaxpr(of(True))(own).eqns]
    assert kinds.count("transpose") == 2  # inputs and outputs
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


def test_halves_have_sums_in_float32() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 1), nn.GroupNorm(2, 4)).bfloat16()
    x = torch.randn(3, 1, 40, 40).bfloat16()
    nn.init.constant_(module[0].bias, 30)  # a mean that a half has in steps of 1/8
    own = {n: tensor_to_array(p) for n, p in module.named_parameters()}
    exported = export_module(module, (x,), True)
    found, plain = (
        np.asarray(Program(exported, torch.bfloat16, channels_last=last)(own, [tensor_to_array(x)])[0][0])
        for last in (True, False)
    )
    assert found.dtype == plain.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(float), plain.astype(float), rtol=0.02, atol=0.02)
