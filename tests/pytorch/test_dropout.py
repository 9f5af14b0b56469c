"""Dropout of translated modules: how much it drops, what it makes of the rest, and when it draws anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import fedsolve as fs  # noqa: E402
from fedsolve.deploy.oracles.jax import JaxOracle  # noqa: E402
from fedsolve.engine.compute.clients import client_oracle  # noqa: E402
from fedsolve.engine.options import RunOptions  # noqa: E402
from fedsolve.engine.prepare import prepare  # noqa: E402
from fedsolve.pytorch.translation.model import Model  # noqa: E402

P = 0.3


class Kept(nn.Module):
    """Its inputs times 1, of which some are dropped."""

    def __init__(self, drop: Any = None) -> None:
        super().__init__()
        self.scale, self.drop = nn.Parameter(torch.ones(())), drop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.scale * x
        return F.dropout(x, P, self.training) if self.drop is None else self.drop(x)


class Weights(Kept):
    """The weights of attention to seven places: those of queries that are all alike, seen through values of 0 and 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        same = torch.zeros_like(x) * self.scale
        values = torch.eye(7).expand_as(x)
        return 7 * F.scaled_dot_product_attention(same, same, values, dropout_p=P if self.training else 0.0)


class Between(Kept):
    """What the second of two recurrent layers is given: both pass on what they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.RNN(7, 7, 2, nonlinearity="relu", bias=False, batch_first=True, dropout=P)
        for name, w in self.layers.named_parameters():
            with torch.no_grad():
                w.copy_(torch.eye(7) if "ih" in name else torch.zeros(7, 7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)[0]


KINDS = {
    "nn.Dropout": (lambda: Kept(nn.Dropout(P)), (300, 7, 7)),
    "F.dropout": (Kept, (300, 7, 7)),
    "nn.Dropout2d": (lambda: Kept(nn.Dropout2d(P)), (300, 7, 2, 2)),
    "attention": (Weights, (300, 7, 7)),
    "between layers": (Between, (300, 7, 7)),
}

GATE = ("F.dropout", "attention")


@pytest.mark.full
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k in GATE else pytest.mark.full) for k in KINDS]
)
def test_share_and_scale(kind: str) -> None:
    """A share P of what is drawn is 0, the rest 1 / (1 - P) of what it was; in evaluation all is as it was."""
    make, shape = KINDS[kind]
    module, x = make(), np.ones(shape, np.float32)
    model = Model(module, torch.ones(31, *shape[1:]))
    apply = jax.jit(lambda key: model(model.params, x, key))
    one, again, other, off = (np.asarray(apply(k)) for k in (*map(jax.random.key, (0, 0, 1)), None))
    np.testing.assert_allclose(off, 1, rtol=1e-6)
    assert np.array_equal(one, again)
    if kind == "nn.Dropout2d":  # a channel is there or not
        assert (one == one[:, :, :1, :1]).all()
        one, other = one[:, :, 0, 0], other[:, :, 0, 0]
    gone = one == 0
    assert abs(gone.mean() - P) < 5 * np.sqrt(P * (1 - P) / gone.size)
    np.testing.assert_allclose(one[~gone], 1 / (1 - P), rtol=1e-6)
    both = (gone & (other == 0)).mean()  # another key's draw has nothing to do with it
    assert abs(both - P**2) < 5 * np.sqrt(P**2 * (1 - P**2) / gone.size)


class Columns(nn.Module):
    """Inputs times a weight for each column, of which some are dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.drop = nn.Parameter(torch.ones(50)), nn.Dropout(P)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(x * self.weight)


@pytest.mark.full
def test_draws_follow_client_and_step() -> None:
    """The gradient of a mean of products shows what was dropped. All evaluations of one step see one draw."""
    clients = [(np.ones((3, 50), np.float32), np.zeros(3, np.float32))] * 2
    mean = lambda outputs, y: outputs.mean() + 0 * y.mean()  # noqa: E731
    task = fs.tasks.from_torch(Columns(), mean, clients, batch_size=1, translate=True)
    setup = prepare(fs.FedAvg(0.1), task, RunOptions(rounds=1, clients_per_round=2, chunk=1))
    w = {"weight": jnp.ones(50)}

    @jax.jit
    def look(client: Any, key: Any) -> Any:
        oracle = client_oracle(setup.program.work, setup.packed, key, client, jnp.int32(3))
        more = jax.tree.map(lambda x: 3 * x, w)
        steps = [(oracle(w, k), oracle.loss(w, k), oracle.loss(more, k)) for k in range(3)]
        return steps, oracle.full(w)

    dropped = set()
    for client in (0, 1):
        for seed in (0, 1):
            steps, (full, slope) = look(jnp.int32(client), jax.random.key(seed))
            assert full == pytest.approx(1)
            np.testing.assert_allclose(slope["weight"], 1 / 50, rtol=1e-6)
            for (loss, gradient), again, at_three in steps:
                kept = np.asarray(gradient["weight"]) > 0
                assert 5 < (~kept).sum() < 28
                assert float(loss) == pytest.approx(kept.mean() / (1 - P), rel=1e-5) == float(again)
                assert float(at_three) == pytest.approx(3 * float(loss), rel=1e-5)
                dropped.add(kept.tobytes())
    assert len(dropped) == 2 * 2 * 3
    deployed = JaxOracle.of_task(task, 1).begin(jax.random.key(1), 1, jnp.float32)
    ours = jax.jit(lambda oracle: oracle(w, 2))(deployed)
    assert ours[0] == steps[2][0][0]
    assert np.array_equal(ours[1]["weight"], steps[2][0][1]["weight"])
