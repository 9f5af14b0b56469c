"""The networks against PyTorch's modules with the same weights: values and gradients of every parameter."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsolve.core.xla.convolutions import conv
from fedsolve.tasks.models.models import Affine, group_norm
from fedsolve.tasks.models.pictures import Block, Convolution, ResNet18, ResNetParams
from fedsolve.tasks.models.recurrent import GRU, LSTM, RecurrentLayer, RecurrentParams
from fedsolve.tasks.models.transformers import AttentionBlock, CausalTransformer, TransformerParams, ViT

KEY = jax.random.key(0)
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
TOKENS = np.random.default_rng(0).integers(0, 7, (3, 5))


def compare(model, params, x, torch_outputs, torch_params, dtype):
    """Outputs, and gradients of the mean of their sines, in the units of each array's largest entry."""
    import torch

    torch.sin(torch_outputs).mean().backward()

    def loss(params):
        outputs = model(params, x)
        return jnp.mean(jnp.sin(outputs)), outputs

    found, outputs = jax.jit(jax.grad(loss, has_aux=True))(params)
    close(outputs, torch_outputs.detach().numpy(), dtype)
    expected = torch_params(lambda p: p.grad)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        close(a, b, dtype)


def close(found, expected, dtype):
    assert found.dtype == dtype
    scale = float(np.max(np.abs(expected)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[dtype] * scale)


@pytest.fixture
def torch_of():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    yield torch
    torch.set_default_dtype(torch.float32)


def both_types(test):
    """In the gate the stricter."""
    types = [pytest.param("float32", marks=pytest.mark.full), "float64"]
    return pytest.mark.parametrize("dtype", types)(test)


def array(tensor):
    return jnp.asarray(tensor.detach().numpy())


@both_types
def test_lstm_is_pytorch_s(torch_of, dtype):
    torch = torch_of
    torch.set_default_dtype(getattr(torch, dtype))
    with jax.enable_x64(dtype == "float64"):
        embedding, lstm = torch.nn.Embedding(7, 4), torch.nn.LSTM(4, 6, 2, batch_first=True)
        middle, output = torch.nn.Linear(6, 3), torch.nn.Linear(3, 7)
        for i in range(2):  # PyTorch has the one bias twice
            getattr(lstm, f"bias_hh_l{i}").data.zero_()

        def params(of):
            layers = tuple(
                RecurrentLayer(
                    Affine(
                        array(of(getattr(lstm, f"weight_ih_l{i}"))), array(of(getattr(lstm, f"bias_ih_l{i}")))
                    ),
                    Affine(array(of(getattr(lstm, f"weight_hh_l{i}"))), None),
                )
                for i in range(2)
            )
            dense = [Affine(array(of(a.weight)), array(of(a.bias))) for a in (middle, output)]
            return RecurrentParams(array(of(embedding.weight)), layers, *dense)

        outputs = output(middle(lstm(embedding(torch.from_numpy(TOKENS)))[0]))
        compare(LSTM(7, 4, 6, 2, 3), params(lambda p: p), TOKENS, outputs, params, dtype)


@both_types
def test_gru_is_pytorch_s(torch_of, dtype):
    torch = torch_of
    torch.set_default_dtype(getattr(torch, dtype))
    with jax.enable_x64(dtype == "float64"):
        embedding, gru, output = (
            torch.nn.Embedding(7, 4),
            torch.nn.GRU(4, 6, 1, batch_first=True),
            torch.nn.Linear(6, 7),
        )
        gru.bias_hh_l0.data[:12] = 0  # of the reset and update gates PyTorch has the one bias twice

        def params(of):
            own = Affine(array(of(gru.weight_ih_l0)), array(of(gru.bias_ih_l0)))
            recurrent = Affine(array(of(gru.weight_hh_l0)), array(of(gru.bias_hh_l0))[12:])
            last = Affine(array(of(output.weight)), array(of(output.bias)))
            return RecurrentParams(array(of(embedding.weight)), (RecurrentLayer(own, recurrent),), None, last)

        outputs = output(gru(embedding(torch.from_numpy(TOKENS)))[0])
        compare(GRU(7, 4, 6, 1), params(lambda p: p), TOKENS, outputs, params, dtype)


@both_types
def test_convolution_with_group_norm_is_pytorch_s(torch_of, dtype):
    """A stride of 2 behind padding of an odd and an even side; 3 groups of 2 channels."""
    torch = torch_of
    torch.set_default_dtype(getattr(torch, dtype))
    with jax.enable_x64(dtype == "float64"):
        first, norm = torch.nn.Conv2d(3, 6, 3, 2, 1, bias=False), torch.nn.GroupNorm(3, 6)
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)

        def params(of):
            scale = Affine(array(of(norm.weight)), array(of(norm.bias)))
            return Convolution(array(of(first.weight)).transpose(2, 3, 1, 0), scale)

        def model(params, x):
            return group_norm(params.norm, conv(x, params.kernel, stride=2, padding=1), 3)

        x = np.random.default_rng(0).standard_normal((2, 5, 6, 3)).astype(dtype)
        outputs = norm(first(torch.from_numpy(x).permute(0, 3, 1, 2))).permute(0, 2, 3, 1)
        compare(model, params(lambda p: p), jnp.asarray(x), outputs, params, dtype)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_resnet_is_pytorch_s(torch_of, dtype):
    """On 16 x 16 pictures, so that the last stage has 2 x 2 places and every form of convolution occurs."""
    torch = torch_of
    torch.set_default_dtype(getattr(torch, dtype))
    nn = torch.nn

    def convolution(size, into, out, stride):
        return nn.Sequential(
            nn.Conv2d(into, out, size, stride, size // 2, bias=False), nn.GroupNorm(min(2, out), out)
        )

    width = [4, 4, 4, 8, 8, 16, 16, 32, 32]
    stem, output = convolution(3, 3, 4, 1), nn.Linear(32, 5)
    blocks = []
    for into, out in pairwise(width):
        stride = 1 if into == out else 2
        shortcut = None if into == out else convolution(1, into, out, 2)
        blocks.append((convolution(3, into, out, stride), convolution(3, out, out, 1), shortcut))
    for module in (stem, *(m for block in blocks for m in block if m is not None)):
        nn.init.normal_(module[1].weight, 1, 0.1)
        nn.init.normal_(module[1].bias, 0, 0.1)
    x = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3)).astype(np.uint8)
    y = torch.relu(stem(torch.from_numpy(x).permute(0, 3, 1, 2).to(torch.get_default_dtype()) / 255))
    for first, second, shortcut in blocks:
        y = torch.relu(second(torch.relu(first(y))) + (y if shortcut is None else shortcut(y)))
    outputs = output(y.mean((2, 3)))
    with jax.enable_x64(dtype == "float64"):

        def one(module, of):
            if module is None:
                return None
            norm = Affine(array(of(module[1].weight)), array(of(module[1].bias)))
            return Convolution(array(of(module[0].weight)).transpose(2, 3, 1, 0), norm)

        def params(of):
            last = Affine(array(of(output.weight)), array(of(output.bias)))
            made = tuple(Block(*(one(m, of) for m in block)) for block in blocks)
            return ResNetParams(one(stem, of), made, last)

        compare(ResNet18(5, 4, 2), params(lambda p: p), jnp.asarray(x), outputs, params, dtype)


def attention_block(torch, width, heads):
    layer = torch.nn.TransformerEncoderLayer(
        width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    for p in layer.parameters():
        p.data.normal_(0, 0.3)

    def params(of):
        def pair(weight, bias):
            return Affine(array(of(weight)), array(of(bias)))

        own = layer.self_attn
        return AttentionBlock(
            pair(layer.norm1.weight, layer.norm1.bias),
            pair(own.in_proj_weight, own.in_proj_bias),
            pair(own.out_proj.weight, own.out_proj.bias),
            pair(layer.norm2.weight, layer.norm2.bias),
            pair(layer.linear1.weight, layer.linear1.bias),
            pair(layer.linear2.weight, layer.linear2.bias),
        )

    return layer, params


@pytest.mark.full
@both_types
def test_causal_transformer_is_pytorch_s(torch_of, dtype):
    torch = torch_of
    torch.set_default_dtype(getattr(torch, dtype))
    with jax.enable_x64(dtype == "float64"):
        embedding, positions = torch.nn.Embedding(7, 8), torch.nn.Parameter(torch.randn(6, 8))
        (layer, block), norm, output = (
            attention_block(torch, 8, 2),
            torch.nn.LayerNorm(8),
            torch.nn.Linear(8, 7),
        )

        def params(of):
            pairs = [Affine(array(of(m.weight)), array(of(m.bias))) for m in (norm, output)]
            return TransformerParams(array(of(embedding.weight)), array(of(positions)), (block(of),), *pairs)

        mask = torch.nn.Transformer.generate_square_subsequent_mask(5)
        x = embedding(torch.from_numpy(TOKENS)) + positions[:5]
        outputs = output(norm(layer(x, src_mask=mask, is_causal=True)))
        compare(CausalTransformer(7, 6, 8, 1, 2), params(lambda p: p), TOKENS, outputs, params, dtype)


@both_types
def test_vit_is_pytorch_s(torch_of, dtype):
    """The patches' dense layer is a convolution as wide as its stride."""
    torch = torch_of
    torch.set_default_dtype(getattr(torch, dtype))
    with jax.enable_x64(dtype == "float64"):
        patches, positions = torch.nn.Conv2d(3, 8, 2, 2), torch.nn.Parameter(torch.randn(4, 8))
        (layer, block), norm, output = (
            attention_block(torch, 8, 2),
            torch.nn.LayerNorm(8),
            torch.nn.Linear(8, 5),
        )

        def params(of):
            kernel = array(of(patches.weight)).transpose(0, 2, 3, 1).reshape(8, -1)
            first = Affine(kernel, array(of(patches.bias)))
            pairs = [Affine(array(of(m.weight)), array(of(m.bias))) for m in (norm, output)]
            return TransformerParams(first, array(of(positions)), (block(of),), *pairs)

        x = np.random.default_rng(0).standard_normal((3, 4, 4, 3)).astype(dtype)
        y = patches(torch.from_numpy(x).permute(0, 3, 1, 2)).flatten(2).transpose(1, 2) + positions
        outputs = output(norm(layer(y)).mean(1))
        compare(ViT(5, 4, 2, 3, 8, 1, 2), params(lambda p: p), jnp.asarray(x), outputs, params, dtype)
