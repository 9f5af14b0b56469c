"""Buffers that training does not change need no protection: private methods take them, and refuse all others."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import fedsolve as fs
from deploy_small import deploy
from fedsolve.deploy.signature import constant_digests, other_constant, usual_constants
from fedsolve.tasks.leaves import with_frozen
from fedsolve.tasks.loss_arguments import asked

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402

from fedsolve.deploy.flower import client_app  # noqa: E402
from fedsolve.deploy.oracles.torch import TorchOracle  # noqa: E402

X = np.random.default_rng(0).normal(size=(18, 4)).astype(np.float32)
Y = X[:, :1] - X[:, 1:2]
CLIENTS = [(X[6 * i : 6 * i + 6], Y[6 * i : 6 * i + 6]) for i in range(3)]


class Scaled(nn.Module):
    """Constants for inputs, places, and BatchNorm that is not trained."""

    def __init__(self, norm):
        super().__init__()
        self.last = nn.Linear(4, 1)
        self.norm = nn.BatchNorm1d(4)
        self.norm.running_mean.fill_(0.5)
        if norm == "frozen":
            self.norm.requires_grad_(False).eval()
        self.register_buffer("mean", torch.full((4,), 0.25))
        self.register_buffer("position_ids", torch.arange(4))

    def forward(self, x):
        return self.last(self.norm((x - self.mean)[:, self.position_ids]))


class Late(Scaled):
    """A buffer that changes with some inputs alone."""

    def forward(self, x):
        if self.training and x.abs().max() > 5:
            self.mean.add_(1)
        return super().forward(x)


def made(norm="frozen", kind=Scaled):
    torch.manual_seed(0)
    return kind(norm)


def oracle(client, norm="frozen", kind=Scaled, scale=1.0):
    x, y = (torch.as_tensor(a) for a in CLIENTS[client])
    return TorchOracle(made(norm, kind), nn.functional.mse_loss, [(x[:3], y[:3]), (scale * x[3:], y[3:])])


def private(at="server"):
    return fs.privacy.DifferentialPrivacy(
        fs.FedAvg(0.1, weighting="uniform"),
        1e-9,
        10.0,
        cohort=3,
        population=3,
        delta=1e-5,
        sampling="none",
        at=at,
    )


def test_only_what_training_changes_moves():
    assert oracle(0).moving_buffers == set()
    moving = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert oracle(0, "trained").moving_buffers == moving


@pytest.mark.full_rows("server-True")
@pytest.mark.parametrize(("at", "told"), [("server", True), ("client", False)])
def test_a_private_method_takes_constants(at, told, tmp_path):
    """As many steps as without privacy, whether the server gives the buffers or not; none travels back."""
    back = []

    def watch(node, what, content):
        back.append((what, "buffers" in content))
        return content

    start, given = fs.flower.torch_parameters(made()), {"tamper": watch, "population": 3, "rounds": 2}
    beside = fs.flower.torch_buffers(made())
    app = client_app(lambda node: oracle(node.client))
    model, history, _ = deploy(
        private(at), tmp_path / "a", app=app, params=start, buffers=beside if told else None, **given
    )
    assert history.rounds["rejected"].tolist() == [0, 0]
    assert ("train", True) not in back
    plain = fs.FedAvg(0.1, weighting="uniform")
    wanted, *_ = deploy(plain, tmp_path / "b", app=app, params=start, buffers=beside, **given)
    for name in wanted:
        np.testing.assert_allclose(model[name], wanted[name], atol=1e-6)


def test_a_private_method_refuses_what_moves(tmp_path):
    """When it is known from the start, and when it shows in a round."""
    for name, options, words in (
        ("known", {"norm": "trained"}, r"buffers that training changes \(norm.num_batches_tracked, "),
        ("late", {"kind": Late, "scale": 1e3}, r"buffers that training changes \(mean\)"),
    ):
        module = made(options.get("norm", "frozen"))
        app = client_app(lambda node, options=options: oracle(node.client, **options))
        given = {"params": fs.flower.torch_parameters(module), "buffers": fs.flower.torch_buffers(module)}
        with pytest.raises(fs.FedsolveError, match=words):
            deploy(private(), tmp_path / name, app=app, population=3, rounds=1, repeats=0, **given)


def test_constants_are_compared_when_clients_connect():
    ours = constant_digests(oracle(0).constants)
    other = oracle(0)
    other._own_module.mean.fill_(3.0)
    usual = usual_constants([ours, ours, constant_digests(other.constants)])
    assert other_constant(constant_digests(other.constants), usual) == "buffer mean"
    assert other_constant(constant_digests(oracle(1).constants), usual) is None


@pytest.mark.full
def test_a_translated_module_has_only_those_that_move():
    """And BatchNorm that is in evaluation mode stays there."""
    task = fs.tasks.from_torch(made(), nn.functional.mse_loss, CLIENTS, batch_size=None, translate=True)
    assert task.buffers is None
    method = private()
    assert task.around(method) is method
    module = made().eval()
    with torch.no_grad():
        wanted = float(nn.functional.mse_loss(module(torch.as_tensor(X)), torch.as_tensor(Y)))
    params = with_frozen(task.init(None), task.frozen)
    for key in (None, jax.random.key(0)):
        given = {"key": key} if "key" in asked(task.loss) else {}
        assert float(np.mean(task.loss(params, task.data.examples, **given))) == pytest.approx(
            wanted, rel=1e-5
        )
