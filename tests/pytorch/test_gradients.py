"""Values, gradients and running statistics of translated modules equal PyTorch's."""

from __future__ import annotations

import copy
from functools import partial

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from fedsolve.pytorch.translation.export import outputs_of  # noqa: E402
from fedsolve.pytorch.translation.model import Model, OnRows  # noqa: E402


class Pictures(nn.Module):
    """Convolution, Batch- and GroupNorm, pooling, a dropout that keeps all."""

    def __init__(self):
        super().__init__()
        self.first, self.batch = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.group = nn.Conv2d(4, 6, 3), nn.GroupNorm(2, 6)
        self.drop, self.last = nn.Dropout(0.0), nn.Linear(6 * 3 * 3, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.batch(self.first(x))), 2)
        x = F.relu(self.group(self.second(x)))
        return self.last(self.drop(x.flatten(1)))


class Words(nn.Module):
    """Two layers of LSTM over an embedding."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.lstm = nn.LSTM(5, 4, 2, batch_first=True)
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.lstm(self.embed(x))[0][:, -1])


class Attention(nn.Module):
    """A transformer's encoder, with a weight that is used twice and a value that no gradient passes."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True), 1)
        self.last = nn.Linear(6, 7, bias=False)
        self.last.weight = self.embed.weight

    def forward(self, x):
        with torch.no_grad():
            scale = 1 + self.embed.weight.square().mean()
        return self.last(self.body(self.embed(x)).mean(1) * scale)[:, :3]


def cast(dtype, tree):
    return {name: np.asarray(value, dtype) for name, value in tree.items()}


def perceptron():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


CASES = [
    (perceptron, lambda n: torch.randn(n, 4)),
    (Pictures, lambda n: torch.randn(n, 1, 10, 10)),
    (Words, lambda n: torch.randint(0, 7, (n, 6))),
    (Attention, lambda n: torch.randint(0, 7, (n, 6))),
]


@pytest.mark.full
@pytest.mark.parametrize(("kind", "inputs"), CASES)
def test_values_gradients_and_buffers_are_pytorchs(kind, inputs):
    torch.manual_seed(0)
    module = kind()
    if (
        kind is Attention
    ):  # in float32 PyTorch's attention in evaluation mode takes another path, with other rounding
        torch.backends.mha.set_fastpath_enabled(False)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        own = copy.deepcopy(module).to(dtype)
        x, y = inputs(9), torch.randint(0, 3, (9,))
        x = x.to(dtype) if x.is_floating_point() else x
        model = Model(module, inputs(31))  # translated as float32 whatever the run
        sample = inputs(31)
        loss = OnRows(
            "the loss", nn.CrossEntropyLoss(), outputs_of(module, sample), torch.arange(31) % 3, model.dtype
        )
        for training in (True, False):
            wanted = own.train(training)(x)
            value = F.cross_entropy(wanted, y)
            gradient = dict(
                zip(model.params, torch.autograd.grad(value, list(own.parameters())), strict=True)
            )
            with jax.enable_x64(dtype == torch.float64):
                as_run = partial(cast, str(dtype)[6:])

                def mean(params, model=model, loss=loss, training=training, x=x, y=y, as_run=as_run):
                    key = jax.random.key(0) if training else None
                    outputs, after = model.apply(params, as_run(model.buffers), x.numpy(), key)
                    return loss(outputs, y.numpy()).mean(), (outputs, after)

                (got, (outputs, after)), slope = jax.jit(jax.value_and_grad(mean, has_aux=True))(
                    as_run(model.params)
                )
            np.testing.assert_allclose(outputs, wanted.detach(), atol=tolerance)
            assert abs(float(got) - value.item()) < tolerance
            assert slope.keys() == gradient.keys()
            for name, g in gradient.items():
                np.testing.assert_allclose(slope[name], g, atol=tolerance, err_msg=name)
            if training:
                for name, b in own.named_buffers():
                    np.testing.assert_allclose(after[name], b, atol=tolerance, err_msg=name)
                    own.get_buffer(name).copy_(dict(module.named_buffers())[name])
