"""Losses that couple examples, batches of every size that occurs, rows without a slope, data that change."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.data import DataLoader, Dataset, TensorDataset  # noqa: E402

import fedsolve as fs  # noqa: E402
from fedsolve.deploy.oracles.jax import JaxOracle  # noqa: E402
from fedsolve.deploy.oracles.torch import TorchOracle  # noqa: E402
from fedsolve.pytorch.loss_analysis import analyse, refuse_coupled  # noqa: E402
from fedsolve.tasks.task import Examples  # noqa: E402
from fedsolve.tasks.torch_modules.agreement import Agreement  # noqa: E402

DRAW = np.random.default_rng(0)
X, Y = DRAW.normal(size=(24, 4)), DRAW.integers(0, 3, 24)
REAL = DRAW.normal(size=24)


def linear(outputs=3):
    torch.manual_seed(0)
    return nn.Linear(4, outputs).double()


def loader(size=8, **given):
    return DataLoader(TensorDataset(torch.as_tensor(X), torch.as_tensor(Y)), size, **given)


def standardised(o, y):
    return F.cross_entropy((o - o.mean(0)) / (o.std(0, unbiased=False) + 1e-3), y)


def contrast(o, y):
    z = F.normalize(o, dim=1)
    return F.cross_entropy(z @ z.T - 9 * torch.eye(len(o), dtype=o.dtype), torch.arange(len(o)).roll(1))


def pairs(o, y):
    return F.relu(1 - (o[:, 0][:, None] - o[:, 0]) * torch.sign(y[:, None] - y)).mean()


def likelihood(o, y):
    return -(o[:, 0] - torch.logcumsumexp(o[:, 0], 0)).mean()


def worst(o, y):
    return F.cross_entropy(o, y, reduction="none").max()


def spread(o, y):
    return F.cross_entropy(o, y) + 0.1 * F.cross_entropy(o, y, reduction="none").std()


@pytest.mark.parametrize("loss", [standardised, contrast, pairs, likelihood, worst, spread])
def test_an_oracle_refuses_a_coupled_loss_that_is_not_said_to_be_one(loss):
    with pytest.raises(fs.InvalidInput, match=r"is not a mean over examples: .* couples_examples = True"):
        TorchOracle(linear(), loss, loader())


def test_a_coupled_loss_is_of_the_loaders_batches():
    """Step, full gradient and metric: PyTorch's own, of three batches and their mean; of equal sizes alone."""
    oracle = TorchOracle(linear(), contrast, loader(), couples_examples=True, metrics={})
    module, params = linear(), {n: p.detach().numpy() for n, p in linear().named_parameters()}
    each = [contrast(module(torch.as_tensor(X[i : i + 8])), None) for i in (0, 8, 16)]
    wanted = torch.stack(each).mean()
    slope = torch.autograd.grad(wanted, module.weight, retain_graph=True)[0]
    with jax.enable_x64(True):
        round_ = oracle.begin(jax.random.key(0), 0, jnp.float64)
        value, gradient = round_.full(params)
        np.testing.assert_allclose(value, wanted.item(), rtol=1e-12)
        np.testing.assert_allclose(gradient["weight"], slope, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(round_(params, 1)[0], each[1].item(), rtol=1e-12)
        measured = oracle.measure(params, ["loss"])["train"]
    np.testing.assert_allclose(measured.means["loss"], wanted.item(), rtol=1e-12)
    with pytest.raises(fs.InvalidInput, match="batches have 10 to 4 examples: give drop_last=True"):
        TorchOracle(linear(), contrast, loader(10), couples_examples=True)
    assert TorchOracle(linear(), contrast, loader(10, drop_last=True), couples_examples=True).steps == 2


def test_an_oracle_in_jax_couples_batches_as_a_task_does():
    def loss(w, x):
        return jnp.mean((x @ w / jnp.std(x @ w) - 1) ** 2)

    with pytest.raises(fs.InvalidInput, match="couples_examples = True where the task or oracle is made"):
        JaxOracle(loss, np.ones(4), X, batch_size=8, epochs=1)
    oracle = JaxOracle(loss, np.ones(4), X, batch_size=8, epochs=1, couples_examples=True)
    with jax.enable_x64(True):
        value, _ = oracle.begin(jax.random.key(0), 0, jnp.float64).full(jnp.ones(4))
        wanted = np.mean([loss(np.ones(4), X[i : i + 8]) for i in (0, 8, 16)])
        np.testing.assert_allclose(value, wanted, rtol=1e-10)
    with pytest.raises(fs.InvalidInput, match="24 examples and the loss couples those of batches of 9"):
        JaxOracle(loss, np.ones(4), X, batch_size=9, epochs=1, couples_examples=True)


def test_a_loss_that_mixes_equal_outputs():
    """As those of a last layer of zeros, on which it is by chance a mean."""
    equal, y = torch.zeros(12, 3), torch.as_tensor(Y[:12])
    with pytest.raises(fs.InvalidInput, match="not a mean over examples"):
        refuse_coupled(standardised, equal, y, torch.float32)
    with pytest.raises(fs.InvalidInput, match="not a mean over examples"):
        analyse("the loss", standardised, equal, y, torch.float32, only_means=True)


def masked(o, y):
    return F.cross_entropy(o[y > 0], y[y > 0])


@pytest.mark.parametrize(
    "loss",
    [
        masked,  # which no program can index
        lambda o, y: F.cross_entropy(o, y, weight=torch.tensor([1.0, 2.0, 5.0], dtype=o.dtype)),
        lambda o, y: F.mse_loss(o, F.one_hot(y, 3).to(o)).sqrt(),
        lambda o, y: F.mse_loss(o[:, 0].unsqueeze(1).squeeze(), y.to(o)),
        lambda o, y: F.cross_entropy(o.bfloat16(), y),
    ],
)
def test_averages_are_known_by_parts(loss):
    TorchOracle(linear(), loss, loader())


@pytest.mark.parametrize("loss", [masked, F.cross_entropy])
def test_rounding_to_16_bits_is_said(loss):
    outputs, y = torch.as_tensor(X[:, :3]).float(), torch.as_tensor(Y)
    if loss is masked:
        refuse_coupled(lambda o, y: masked(o.bfloat16(), y), outputs, y, torch.float32)
        return
    with pytest.raises(fs.InvalidInput, match=r"computed in 16 bits, whose rounding .* outputs\.float\(\)"):
        analyse(
            "the loss", lambda o, y: loss(o.bfloat16(), y), 9 * outputs, y, torch.float32, only_means=True
        )


class Squeezed(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = linear(1)

    def forward(self, x):
        return self.last(x).squeeze()


@pytest.mark.parametrize("translate", [None, False])
def test_squeeze_keeps_a_batch_of_one(translate):
    """A test set of one example; a client's batch of one is refused, as PyTorch would refuse it."""
    loss, y = nn.BCEWithLogitsLoss(), (Y > 0).astype(float)
    given = {"batch_size": 10, "metrics": {}, "translate": translate}
    task = fs.tasks.from_torch(Squeezed(), loss, [(X[:20], y[:20])], test=(X[:1], y[:1]), **given)
    found = fs.run(fs.FedAvg(0.1), task, rounds=1, dtype="float64", progress=False)
    wanted = loss(linear(1)(torch.as_tensor(X[:1]))[:, 0], torch.as_tensor(y[:1]))
    assert found.metrics["test_loss"][0] == pytest.approx(wanted.item(), rel=1e-10)
    with pytest.raises(
        fs.InvalidInput, match=r"a batch of client 1 has one example: the loss fails .*: take another"
    ):
        fs.tasks.from_torch(Squeezed(), loss, [(X[:20], y[:20]), (X[:11], y[:11])], **given)


class Topmost(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = linear()

    def forward(self, x):
        h = self.last(x)
        return h + 0 * h.topk(4, dim=0).values.mean() if self.training else h


def test_every_size_of_a_batch_is_tried():
    clients = [(X[:20], Y[:20]), (X[:13], Y[:13])]
    with pytest.raises(
        fs.InvalidInput, match=r"a batch of client 1 has 3 examples: Topmost fails in training"
    ):
        fs.tasks.from_torch(Topmost(), F.cross_entropy, clients, batch_size=10, translate=False)
    with pytest.raises(
        fs.InvalidInput, match=r"a batch of the loader has 3 examples: Topmost fails in training"
    ):
        TorchOracle(Topmost(), F.cross_entropy, loader(7))


class Held(nn.Module):
    """It takes its own type alone, as `own` does."""

    def __init__(self):
        super().__init__()
        self.last, self.own = linear().float(), torch.eye(4).to_sparse()

    def forward(self, x):
        return self.last(torch.sparse.mm(self.own, x.T).T)


def test_a_module_of_one_type_runs_in_it_and_says_so_in_another():
    task = fs.tasks.from_torch(Held(), F.cross_entropy, [(X, Y)], translate=False)
    fs.run(fs.FedAvg(0.1), task, rounds=1, progress=False)
    with pytest.raises(fs.InvalidInput, match=r"^Held or its loss fails: RuntimeError: ") as error:
        fs.run(fs.FedAvg(0.1), task, rounds=1, dtype="float64", progress=False)
    assert "\n" not in str(error.value)


class Auxiliary(nn.Module):
    """As GoogLeNet with its second output."""

    def __init__(self):
        super().__init__()
        self.last = linear()

    def forward(self, x):
        return self.last(x), (self.last(x) if self.training else None)


def test_an_output_that_is_none_in_evaluation():
    with pytest.raises(fs.InvalidInput, match="an output is a NoneType in evaluation: give tensors alone"):
        fs.tasks.from_torch(Auxiliary(), lambda o, y: F.cross_entropy(o[0], y), [(X, Y)], translate=False)


class Registering(nn.Module):
    def __init__(self, of):
        super().__init__()
        self.last, self.of = linear(), of

    def forward(self, x):
        if self.training:
            self.of(self.last)
        return self.last(x)


@pytest.mark.parametrize(
    ("of", "name"),
    [
        (lambda layer: layer.weight.register_hook(lambda g: g / 2), "last.weight"),
        (lambda layer: layer.register_full_backward_hook(lambda m, g, h: None), "last"),
    ],
)
def test_hooks_that_forward_registers(of, name):
    words = rf"Registering registers a hook on '{name}' whenever it is called, .* once, outside forward"
    module = Registering(of)
    with pytest.raises(fs.InvalidInput, match=words):
        TorchOracle(module, F.cross_entropy, loader())
    with pytest.raises(fs.InvalidInput, match=words):
        fs.tasks.from_torch(module, F.cross_entropy, [(X, Y)])
    assert not module.last.weight._backward_hooks


def test_a_sparse_buffer_that_would_be_sent():
    module = linear()
    module.register_buffer("own", torch.eye(4).to_sparse())
    with pytest.raises(fs.InvalidInput, match=r"'own' of Linear is sparse \(sparse_coo\)"):
        TorchOracle(module, F.cross_entropy, loader())


class Lengths(nn.Module):
    """Its norm has no slope at 0."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3, bias=False).double()

    def forward(self, x):
        h = self.last(x)
        return h / (h.pow(2).sum(1, keepdim=True).sqrt() + 1e-6)


FLAT = np.where(np.arange(24)[:, None] == 17, 0, X)


def test_a_row_without_slope_hides_no_difference():
    agreement = Agreement(Lengths(), {"loss": F.cross_entropy}, Examples(FLAT, Y), torch.float64)
    assert np.isfinite(agreement.results(agreement.start).training.gradient["last.weight"]).all()
    assert len(agreement.batch.x) == 23
    assert agreement.batch.x.any(1).all()


def test_a_run_names_an_example_without_slope():
    task = fs.tasks.from_torch(Lengths(), F.cross_entropy, [(X, Y), (FLAT, Y)])
    found = fs.run(fs.FedAvg(0.1), task, rounds=1, progress=False)
    assert any("is not finite on example 17 of client 1 at the model" in note for note in found.notes)


class Items(Dataset):
    def __init__(self, item):
        self.item = item

    def __len__(self):
        return 24

    def __getitem__(self, i):
        return self.item(i), int(Y[i])


def test_a_dataset_whose_later_items_are_random():
    items = Items(lambda i: torch.as_tensor(X[i]) + (i > 3) * torch.randn(4).double())
    task = fs.tasks.from_torch(linear(), F.cross_entropy, [items])
    assert [("client 0" in note and "read again" in note) for note in task.notes] == [True]


def test_a_dataset_that_writes_to_what_it_gave():
    own = np.zeros(4)
    items = Items(lambda i: np.copyto(own, X[i]) or own)
    with pytest.raises(fs.InvalidInput, match="writes to the items that it gave before: give a copy"):
        fs.tasks.from_torch(linear(), F.cross_entropy, [items])


def test_what_a_user_writes_to_afterwards_changes_no_task():
    x, w = X.copy(), np.ones(4)
    task = fs.Task.from_arrays(lambda w, x: jnp.mean((x @ w) ** 2), w, [X], test=x)
    x[:], w[:] = 0, 0
    np.testing.assert_array_equal(task.test, X)
    np.testing.assert_array_equal(task.init(jax.random.key(0)), np.ones(4))
