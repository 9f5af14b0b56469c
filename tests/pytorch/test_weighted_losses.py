"""Losses of PyTorch that are weighted means: in training and in evaluation PyTorch's own mean, of whatever rows."""

from __future__ import annotations

import copy
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import fedsolve as fs  # noqa: E402
from fedsolve.engine.compute.casting import run_key  # noqa: E402
from fedsolve.pytorch.translation.batch_sums import OnSums  # noqa: E402
from fedsolve.pytorch.translation.model import OnRows  # noqa: E402
from harness import crossed  # noqa: E402

CLASSES, ROWS = 4, 31
WEIGHT = torch.tensor([30.0, 1.0, 2.0, 0.5])
PADDED = 0  # the label of padding in sequences


def masked(denominator: Callable) -> Callable:
    def loss(outputs, y):
        values = F.cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="none")
        mask = (y.flatten() != PADDED).to(outputs.dtype)
        return (values * mask).sum() / denominator(mask.sum())

    return loss


def shares_of_the_batch(outputs, y):
    """The weights are divided by their sum before the values are added up."""
    mask = (y != PADDED).to(outputs.dtype)
    return (F.cross_entropy(outputs.transpose(1, 2), y, reduction="none") * mask / mask.sum()).sum()


def two_means(outputs, y):
    return F.cross_entropy(outputs, y, WEIGHT.to(outputs.dtype)) + 0.3 * outputs.square().mean()


def dice(outputs, y):
    p, own = outputs.softmax(1), (y[:, None] == torch.arange(CLASSES)).to(outputs.dtype)
    return 1 - (2 * (p * own).sum(0) / (p.sum(0) + own.sum(0))).mean()


LABELS = {
    "class weights": nn.CrossEntropyLoss(WEIGHT),
    "everything": nn.CrossEntropyLoss(WEIGHT, ignore_index=1, label_smoothing=0.1),
    "ignored": nn.CrossEntropyLoss(ignore_index=0),
    "of log-probabilities": lambda outputs, y: F.nll_loss(
        outputs.log_softmax(1), y, WEIGHT.to(outputs.dtype)
    ),
    "two means": two_means,
    "root": lambda outputs, y: (outputs[:, 0] - y).square().mean().sqrt(),
    "dice": dice,
}
SEQUENCES = {
    "sequences": lambda outputs, y: F.cross_entropy(outputs.transpose(1, 2), y, ignore_index=PADDED),
    "flat sequences": lambda outputs, y: F.cross_entropy(
        outputs.flatten(0, 1), y.flatten(), ignore_index=PADDED
    ),
    "mask": masked(lambda total: total),
    "at least 1": masked(lambda total: total.clamp(min=1)),
    "shares": shares_of_the_batch,
}
GATE = ("class weights", "two means", "sequences", "shares")


def in_double(loss: Callable) -> Callable:
    return copy.deepcopy(loss).double() if isinstance(loss, nn.Module) else loss


@pytest.mark.parametrize("name", crossed([*LABELS, *SEQUENCES], GATE))
def test_sums_make_pytorchs_value_and_gradient_of_any_rows(name):
    """Values and gradients in float64; the rows that are left out enter neither."""
    torch.manual_seed(0)
    shape = (ROWS, 5) if name in SEQUENCES else (ROWS,)
    outputs, y = torch.randn(*shape, CLASSES), torch.randint(0, CLASSES, shape)
    loss = (SEQUENCES | LABELS)[name]
    sums = OnSums(OnRows("the loss", loss, outputs, y, torch.float32), outputs, y)
    assert not sums.is_mean
    assert (sums.size is None) == (name in ("two means", "root", "dice"))
    chosen = np.arange(ROWS) % 3 == 0
    x = outputs.double()[torch.from_numpy(chosen)].requires_grad_()
    wanted = in_double(loss)(x, y[torch.from_numpy(chosen)])
    (slope,) = torch.autograd.grad(wanted, x)

    def value(x):
        each = sums(x, y.numpy())
        return sums.of_sums(jnp.sum(jnp.where(chosen[:, None], each, 0), axis=0))

    with jax.enable_x64(True):
        got, gradient = jax.jit(jax.value_and_grad(value))(outputs.double().numpy())
    assert float(got) == pytest.approx(wanted.item(), abs=1e-12)
    np.testing.assert_allclose(gradient[chosen], slope, atol=1e-12)
    np.testing.assert_array_equal(gradient[~chosen], 0)


@pytest.mark.parametrize(
    "loss", [nn.MSELoss(), nn.CrossEntropyLoss(reduction="none"), nn.L1Loss(reduction="none")]
)
def test_plain_means_stay_means(loss):
    y = torch.zeros(ROWS).long() if isinstance(loss, nn.CrossEntropyLoss) else torch.zeros(ROWS, 3)
    rows = OnRows("the loss", loss, torch.zeros(ROWS, 3), y, torch.float32)
    assert OnSums(rows, torch.zeros(ROWS, 3), y).is_mean


def words(counts):
    """Sequences of 6 tokens, of which the last ones are padding in some; all of client 2's last one is."""
    draw = np.random.default_rng(0)
    clients = []
    for n in counts:
        x, y = draw.integers(1, 7, (n, 6)), draw.integers(1, 7, (n, 6))
        y[0, 2:] = PADDED
        clients.append((x, y))
    clients[-1][1][-1] = PADDED
    return clients


class Language(nn.Module):
    """Outputs of shape (n, time, vocabulary); `translated`: else by the values of its inputs."""

    def __init__(self, translated):
        super().__init__()
        self.embed, self.last, self.translated = nn.Embedding(7, 3), nn.Linear(3, 7), translated

    def forward(self, x):
        if not self.translated and x.max() < 0:
            x = -x
        return self.last(self.embed(x))


def language_loss(outputs, y):
    return F.cross_entropy(outputs.flatten(0, 1), y.flatten(), ignore_index=PADDED)


def of_tokens(outputs, y):
    """The share of tokens that are right."""
    there = y != PADDED
    return ((outputs.argmax(-1) == y) & there).sum() / there.double().sum()


def by_hand(module, loss, clients, rate, orders):
    """A round of FedAvg in plain PyTorch: a step on each batch of each client's order."""
    models = []
    for (x, y), batches in zip(clients, orders, strict=True):
        own = copy.deepcopy(module).double()
        for rows in batches:
            value = loss(own(torch.tensor(x[rows])), torch.tensor(y[rows]))
            for p, g in zip(
                own.parameters(), torch.autograd.grad(value, list(own.parameters())), strict=True
            ):
                if not torch.isnan(value):
                    p.data -= rate * g
        models.append(dict(own.named_parameters()))
    share = np.array([len(x) for x, _ in clients]) / sum(len(x) for x, _ in clients)
    return {n: sum(s * m[n].detach() for s, m in zip(share, models, strict=True)) for n in models[0]}


def orders_of(task, clients, batch_size):
    """The rows of each client's minibatches in the first round, as the engine shuffles them."""
    with jax.enable_x64(True):
        found = []
        for i, (x, _) in enumerate(clients):
            oracle = fs.flower.JaxOracle.of_task(task, i).begin(
                jax.random.fold_in(run_key(0), 0), i, jnp.float64
            )
            rows = np.asarray(oracle.order)[0][: len(x)]
            found.append(np.split(rows, range(batch_size, len(x), batch_size)))
        return found


@pytest.mark.parametrize("translated", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_language_models_round_and_metrics_are_pytorchs(translated):
    """Uneven clients and last batches, padded sequences, a batch of padding alone: which moves nothing.

    The largest output is no mean over examples: it is that of whole sets."""
    torch.manual_seed(0)
    clients, held_out = words((5, 3, 4)), words((7,))[0]
    module, largest = Language(translated), lambda outputs, y: outputs.max()
    metrics = {"accuracy": of_tokens, "largest": largest}
    task = fs.tasks.from_torch(module, language_loss, clients, test=held_out, metrics=metrics, batch_size=2)
    assert any("PyTorch" in note for note in task.notes) is not translated
    orders = orders_of(task, clients, 2)
    orders[-1] = [rows for rows in orders[-1] if (clients[-1][1][rows] != PADDED).any()]
    wanted = by_hand(module, language_loss, clients, 0.5, orders)
    result = fs.run(fs.FedAvg(client_lr=0.5), task, rounds=1, clients_per_round=3, dtype="float64")
    for name, value in wanted.items():
        np.testing.assert_allclose(result.params[name], value, atol=1e-12, err_msg=name)
    own = copy.deepcopy(module).double()
    own.load_state_dict(wanted)
    together = tuple(np.concatenate(part) for part in zip(*clients, strict=True))
    with torch.no_grad():
        for metric, function in (("loss", language_loss), *metrics.items()):
            value = {
                name: float(function(own(torch.tensor(x)), torch.tensor(y)))
                for name, (x, y) in {"train": together, "test": held_out, **dict(enumerate(clients))}.items()
            }
            for part in ("train", "test"):
                assert result.metrics[f"{part}_{metric}"][-1] == pytest.approx(value[part], abs=1e-12)
            if metric == "largest":
                continue
            mean = np.mean([value[i] for i in range(3)])
            assert result.metrics[f"client_{metric}_mean"][-1] == pytest.approx(mean, abs=1e-12)


@pytest.mark.parametrize("translate", [True, False])
def test_a_batch_in_which_nothing_counts_moves_nothing(translate):
    """PyTorch's mean is 0 / 0 there; a client of such batches alone has no loss of its own, and spoils no one's."""
    draw = np.random.default_rng(0)
    clients = [(draw.normal(size=(3, 2)).astype(np.float32), np.full(3, label)) for label in (1, 0, 2)]
    torch.manual_seed(0)
    module, loss = nn.Linear(2, 3), nn.CrossEntropyLoss(ignore_index=0)
    task = fs.tasks.from_torch(module, loss, clients, batch_size=2, translate=translate)
    result = fs.run(fs.FedAvg(client_lr=0.5), task, rounds=1, clients_per_round=3, dtype="float64")
    orders = [
        [] if label == 0 else order
        for label, order in zip((1, 0, 2), orders_of(task, clients, 2), strict=True)
    ]
    wide = [(x.astype(np.float64), y) for x, y in clients]
    for name, value in by_hand(module, loss, wide, 0.5, orders).items():
        np.testing.assert_allclose(result.params[name], value, atol=1e-12, err_msg=name)
    assert result.history.rounds["dropped"].sum() == 0
    own = copy.deepcopy(module).double()
    own.load_state_dict({n: torch.tensor(np.asarray(v)) for n, v in result.params.items()})
    with torch.no_grad():
        alone = [float(loss(own(torch.tensor(x)), torch.tensor(y))) for x, y in (wide[0], wide[2])]
    assert result.metrics["client_loss_mean"][-1] == pytest.approx(np.mean(alone), abs=1e-12)
    assert result.metrics["train_loss"][-1] == pytest.approx(np.mean(alone), abs=1e-12)


class Frozen(nn.Module):
    """With running statistics, a parameter that does not train, and two outputs."""

    def __init__(self, translated):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)
        self.last.bias.requires_grad_(False)
        self.translated = translated

    def forward(self, x):
        if not self.translated and x.max() < -1e9:
            x = -x
        h = self.norm(self.first(x))
        return self.last(h), h


@pytest.mark.parametrize("translated", [pytest.param(True, marks=pytest.mark.full), False])
@pytest.mark.full
def test_a_metric_of_no_sums_is_pytorchs_on_whole_sets(translated):
    """The largest value of a set, of two outputs; beside a weighted loss, with buffers and a frozen parameter."""
    draw = np.random.default_rng(0)
    clients = [(draw.normal(size=(n, 2)).astype(np.float32), draw.integers(0, 2, n)) for n in (5, 3, 4)]
    torch.manual_seed(0)
    loss = lambda outputs, y: F.cross_entropy(outputs[0], y, torch.tensor([1.0, 9.0]).to(outputs[0]))  # noqa: E731
    largest = lambda outputs, y: (outputs[0][:, 0] * outputs[1][:, 0] + y).max()  # noqa: E731
    metrics = {"largest": largest}
    task = fs.tasks.from_torch(
        Frozen(translated), loss, clients, test=clients[1], metrics=metrics, batch_size=None
    )
    result = fs.run(fs.FedAvg(client_lr=0.1), task, rounds=1, clients_per_round=2)
    trained = result.module().eval()
    together = tuple(np.concatenate(part) for part in zip(*clients, strict=True))
    with torch.no_grad():
        for part, (x, y) in (("train", together), ("test", clients[1])):
            outputs = trained(torch.tensor(x))
            for name, function in (("loss", loss), ("largest", largest)):
                wanted = float(function(outputs, torch.tensor(y)))
                assert result.metrics[f"{part}_{name}"][-1] == pytest.approx(wanted, rel=1e-5)
    assert "client_largest_mean" not in result.metrics
    assert any("largest is no mean over examples" in note for note in result.history.notes)


def images(y):
    return [(np.zeros((len(y), 4), np.float32), y)]


@pytest.mark.parametrize(
    ("loss", "y", "words"),
    [
        (
            nn.CrossEntropyLoss(),
            np.array([1, 2, 7, 1]),
            r"on outputs of shape \(31, 3\) float32 and targets of shape \(31,\) int64: IndexError: Target 7 is out of "
            r"bounds.; the targets are 1 to 7",
        ),
        (
            nn.BCEWithLogitsLoss(),
            np.zeros((4, 3), int),
            r"targets of shape \(31, 3\) int64: RuntimeError: result type",
        ),
        (nn.CrossEntropyLoss(), np.zeros(4), r"and targets of shape \(31,\) float32: RuntimeError: "),
        (nn.CrossEntropyLoss(), np.zeros((4, 2), int), r"targets of shape \(31, 2\) int64"),
        (None, np.zeros(4, int), r"^the loss = None must be a function \(outputs, targets\) -> tensor"),
    ],
)
def test_a_loss_that_fails_says_on_what(loss, y, words):
    with pytest.raises(fs.InvalidInput, match=words) as caught:
        fs.tasks.from_torch(nn.Linear(4, 3), loss, images(y))
    assert "\n" not in str(caught.value)
