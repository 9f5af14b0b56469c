"""Repeated blocks of a module, computed again for the gradient or compiled once: which they are, and equal numbers."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from torch import nn  # noqa: E402

import fedsolve as fs  # noqa: E402
from fedsolve.core.xla.products import with_half_products  # noqa: E402
from fedsolve.pytorch.reference import fixed_draws  # noqa: E402
from fedsolve.pytorch.translation.arrays import tensor_to_array  # noqa: E402
from fedsolve.pytorch.translation.blocks import compiling_one_block  # noqa: E402
from fedsolve.pytorch.translation.export import export_module  # noqa: E402
from fedsolve.pytorch.translation.translate import Program  # noqa: E402

WORDS, WIDTH, PLACES, DROP = 11, 4, 5, 0.2


class Layer(nn.Module):
    """A layer of a decoder: attention with a mask, dropout, and a buffer of its own that is read."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mixed = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.after, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(DROP)
        self.register_buffer("size", torch.rand(WIDTH))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mixed(self.norm(x)).chunk(3, -1)
        scores = torch.softmax(q @ k.transpose(1, 2) + mask, -1)
        return x + self.drop(self.after(torch.tanh(scores @ v) * self.size))


class Decoder(nn.Module):
    """Layers between an embedding and an output that share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.output.weight = self.embedding.weight
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.register_buffer("mask", torch.triu(torch.full((PLACES, PLACES), -torch.inf), 1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        mask = self.mask.expand(tokens.shape[0], -1, -1)  # one value for all layers
        for layer in self.layers:
            x = layer(x, mask)
        return self.output(x)


class Collecting(Decoder):
    """The outputs of all layers are used in the end."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        every = [self.embedding(tokens)]
        for layer in self.layers:
            every.append(layer(every[-1], self.mask))
        return self.output(sum(every))


class Pair(nn.Module):
    """A layer of two outputs, which the next one takes in the other order."""

    def __init__(self, bend: Any = torch.tanh) -> None:
        super().__init__()
        self.bend = bend
        self.x, self.y = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.bend(self.y(y)) * x, y + self.x(x)


class Pairs(nn.Module):
    """Four layers of two outputs each, and a fifth that bends otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([*(Pair() for _ in range(4)), Pair(torch.relu)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        for layer in self.layers:
            y, x = layer(x, y)
        return x - 2 * y


class Residual(nn.Module):
    """A block of a residual network; it writes statistics, and the first of a stage has another shape."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv1d(into, out, 3, padding=1), nn.BatchNorm1d(out)
        self.short = nn.Conv1d(into, out, 1) if into != out else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.first(x)) + (x if self.short is None else self.short(x)))


def residual() -> nn.Module:
    return nn.Sequential(Residual(2, 3), Residual(3, 3), Residual(3, 3), nn.Flatten(), nn.Linear(12, 2))


def tokens() -> Any:
    return torch.randint(WORDS, (7, PLACES))


MODULES: dict[str, tuple[Any, Any]] = {
    "decoder": (Decoder, tokens),
    "residual": (residual, lambda: torch.randn(7, 2, 4)),
    "collecting": (Collecting, tokens),
    "pairs": (Pairs, lambda: torch.randn(7, WIDTH)),
}


@cache
def made(name: str) -> tuple[Any, Any, dict[str, Any]]:
    make, sample = MODULES[name]
    torch.manual_seed(0)
    module, x = make().double(), sample()
    x = x.double() if x.is_floating_point() else x
    own = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
    return export_module(module, (x,), True), x.numpy(), {n: tensor_to_array(t) for n, t in own.items()}


def slope(program: Program, x: Any) -> Any:
    """Outputs' sum of sines, new buffers, and the gradient: of two clients of their own weights, one with padding."""

    def loss(params: Any, rest: Any, weights: Any) -> Any:
        outputs, written = program({**rest, **params}, [x], jax.random.key(5), weights)
        return jnp.sum(jnp.sin(outputs[0]) * weights.reshape(-1, *[1] * (outputs[0].ndim - 1))), written

    def of(values: Any, rest: Any, weights: Any) -> Any:
        return jax.vmap(jax.value_and_grad(loss, has_aux=True), (0, None, 0))(values, rest, weights)

    return of


def arguments(values: dict[str, Any], rows: int) -> tuple[Any, Any, Any]:
    moves = {n for n, v in values.items() if v.dtype.kind == "f" and "running" not in n and "mask" not in n}
    clients = {n: jnp.stack([v, 1.1 * v]) for n, v in values.items() if n in moves}
    weights = jnp.ones((2, rows)).at[1, -2:].set(0)
    return clients, {n: v for n, v in values.items() if n not in moves}, weights


@pytest.mark.parametrize("name", ["decoder", "residual"])
def test_same_numbers(name: str) -> None:
    """Values, buffers, gradients and draws are those of the program without blocks."""
    exported, x, values = made(name)
    with jax.enable_x64(True):
        given = arguments(values, len(x))
        program = Program(exported, torch.float64, "blocks")
        assert len(program.blocks) == 3
        expected, found = (jax.jit(slope(p, x))(*given) for p in (Program(exported, torch.float64), program))
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("name", "layers"), [("decoder", 3), ("pairs", 4), ("collecting", 0), ("residual", 0)]
)
def test_one_block_is_compiled(name: str, layers: int) -> None:
    """One for all where each gives its outputs to the next one alone; weights may be held in a narrower type."""
    exported, x, values = made(name)
    with jax.enable_x64(True), fixed_draws():
        given = arguments(values, len(x))
        exact, of = jax.tree.map(lambda a: a.astype(np.float32).astype(a.dtype), given), None
        for held, exact_to, inputs in ((np.float64, 1e-12, given), (np.float32, 1e-6, exact)):
            of = slope(Program(exported, torch.float64), x)
            expected = jax.jit(of)(*inputs)
            with compiling_one_block(held):
                traced = jax.jit(slope(Program(exported, torch.float64), x)).trace(*inputs)
                found = traced.lower().compile()(*inputs)
            loops = [e for e in traced.jaxpr.eqns if e.primitive.name == "scan"]
            assert [e.params["length"] for e in loops] == ([layers] * 2 if layers else [])
            narrow = any(v.aval.dtype == np.float32 for e in loops for v in e.invars)
            assert narrow == (layers > 0 and held == np.float32)
            for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(a, b, rtol=exact_to, atol=exact_to)


def stages() -> nn.Module:
    """Stages of unequal widths, each of blocks: as in ConvNeXt, the blocks are those inside."""
    return nn.Sequential(*(nn.Sequential(Residual(a, b), Residual(b, b)) for a, b in ((2, 2), (2, 3))))


class Again(nn.Module):
    """One layer that is applied three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.layers[0](x, torch.zeros(PLACES, PLACES))  # which stand between the blocks
        return x


PLANS: dict[str, tuple[Any, Any, int]] = {
    "stages": (stages, torch.randn(7, 2, 4), 4),
    "again": (Again, torch.randn(7, PLACES, WIDTH), 3),
}


@pytest.mark.parametrize("name", PLANS)
def test_which_blocks(name: str) -> None:
    make, x, expected = PLANS[name]
    assert len(Program(export_module(make(), (x,), False), torch.float32, "blocks").blocks) == expected


def test_the_program_computes_again() -> None:
    """What a block computes is not held, also where the products of the gradient are rewritten."""
    exported, _, values = made("decoder")
    x = np.zeros((300, PLACES), int)
    given = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), arguments(values, len(x)))

    def compiled(remat: str | None, change: Any = lambda f: f) -> tuple[int, Any]:
        function = change(slope(Program(exported, torch.float64, remat), x))
        program = jax.jit(function).lower(*given).compile()
        return program.memory_analysis().temp_size_in_bytes, program

    everything, plain = compiled(None)
    assert compiled("blocks", with_half_products)[0] < 0.5 * everything
    held, products = compiled("products")
    assert held < 0.7 * everything
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4), products(*given), plain(*given))


def test_bad_remat() -> None:
    data = [(np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32))]
    for remat, more, words in (
        ("block", {}, "unknown remat 'block': did you mean 'blocks'"),
        ("blocks", {}, "remat = 'blocks': Linear has no blocks"),
        ("blocks", {"translate": False}, "remat = 'blocks', but the module runs in PyTorch"),
    ):
        with pytest.raises(fs.InvalidInput, match=words):
            fs.tasks.from_torch(nn.Linear(4, 4), nn.functional.mse_loss, data, remat=remat, **more)
