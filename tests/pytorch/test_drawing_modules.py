"""Modules that draw random numbers in evaluation too: each example by the same draws, whatever stands beside it."""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.distributions import Normal, kl_divergence  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import fedsolve as fs  # noqa: E402
from fedsolve.pytorch.loss_analysis import analyse  # noqa: E402
from fedsolve.tasks.loss_arguments import asked, call  # noqa: E402
from fedsolve.tasks.task import Examples  # noqa: E402

DRAW = np.random.default_rng(0)
X, Y = DRAW.normal(size=(20, 4)).astype(np.float32), DRAW.integers(0, 3, 20)


class Autoencoder(nn.Module):
    """The textbook's variational autoencoder, with distributions."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        self.decoder = nn.Linear(2, 4)

    def forward(self, x):
        mean, log_std = self.encoder(x).chunk(2, 1)
        return self.decoder(Normal(mean, log_std.exp()).rsample()), mean, log_std


def bound(outputs, y):
    x, mean, log_std = outputs
    apart = kl_divergence(Normal(mean, log_std.exp()), Normal(0.0, 1.0)).sum(1)
    return (F.mse_loss(x, y, reduction="none").sum(1) + 0.1 * apart).mean()


def test_a_variational_autoencoder_trains():
    task = fs.tasks.from_torch(Autoencoder(), bound, [(X[:12], X[:12]), (X[12:], X[12:])], test=(X, X))
    assert task.notes == ()
    result = fs.run(fs.FedAvg(client_lr=0.05), task, rounds=15)
    losses = result.history.evaluations["test_loss"]
    assert losses[-1] < 0.8 * losses[0]
    for a, b in zip(result.predict(X), result.predict(X), strict=True):
        assert np.array_equal(a, b)


class Noisy(nn.Module):
    def __init__(self, noise):
        super().__init__()
        torch.manual_seed(0)
        self.last, self.noise = nn.Linear(4, 3), noise

    def forward(self, x):
        return self.last(self.noise(x))


def some(x):
    return x * torch.multinomial(x.softmax(1), 1)


@pytest.mark.parametrize(
    ("noise", "translated"),
    [
        (lambda x: F.dropout(x, 0.5, training=True), True),
        (some, False),
        (lambda x: x * (1 + random.random()), False),
    ],
)
def test_examples_draw_alike_in_evaluation(noise, translated):
    task = fs.tasks.from_torch(Noisy(noise), F.cross_entropy, [(X, Y)])
    assert (task.notes == ()) is translated
    assert "key" in asked(task.loss)  # in training each step has draws of its own
    each = getattr(task.loss, "each", task.loss)
    params = task.init(None)
    many, few = (np.asarray(call(each, params, Examples(X[i:], Y[i:]))[0]) for i in (0, 15))
    np.testing.assert_allclose(many[15:], few, rtol=1e-5)


def test_a_loss_that_draws_is_left_to_pytorch():
    outputs, y = torch.zeros(6, 3), torch.zeros(6, dtype=torch.long)
    found = analyse(
        "the loss", lambda o, y: F.cross_entropy(o + torch.rand_like(o), y), outputs, y, torch.float32, True
    )
    assert found.rows is None
    assert found.not_translated_because == "the loss draws random numbers"
