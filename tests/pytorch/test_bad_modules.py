"""Modules that cannot be translated, or not be trained: one line that says where, and what to do."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import fedsolve as fs  # noqa: E402
from harness import crossed  # noqa: E402

DRAW = np.random.default_rng(0)
CLIENTS = [(DRAW.normal(size=(n, 4)).astype(np.float32), DRAW.integers(0, 3, n)) for n in (6, 3)]


class Base(nn.Module):
    def __init__(self, buffer=None):
        super().__init__()
        self.last = nn.Linear(4, 3)
        if buffer is not None:
            self.register_buffer("seen", buffer)


class Loop(Base):
    def forward(self, x):
        while x.norm() > 1:  # as often as the values ask for
            x = x / 2
        return self.last(x)


class Number(Base):
    def forward(self, x):
        return self.last(x) * x.abs().max().item()


class Places(Base):
    def forward(self, x):
        return self.last(x) * len(x.nonzero())


class Mask(Base):
    def forward(self, x):
        y = self.last(x)
        return y - y[y > 0].mean()


class Selected(Base):
    def forward(self, x):
        y = self.last(x)
        return y - torch.masked_select(y, y > 0).mean()


class Written(Base):
    def forward(self, x):
        y = self.last(x).clone()
        y[y > 0] = x.reshape(-1)[: len(y[y > 0])]
        return y


class Exotic(Base):
    def forward(self, x):
        return self.last(x) * torch.linalg.det(x[:, :, None] * x[:, None] + torch.eye(4))[:, None]


class NumPy(Base):
    def forward(self, x):
        return self.last(torch.as_tensor(np.tanh(x.numpy())))


class ByLambda(Base):
    def forward(self, x):
        middle = lambda h: h.median(1).values  # noqa: E731
        return self.last(x - middle(x)[:, None])


NO_TRANSLATION = [
    (Loop, r"depends on the values of tensors at {file}, `while x\.norm\(\) > 1"),
    (
        Number,
        r"what aten\._local_scalar_dense\.default does at {file}, `return .*item\(\)` depends on the values",
    ),
    (Places, r"depends on the values of tensors at {file}, `return .*nonzero\(\)\)`: use torch\.where"),
    (
        Mask,
        r"what aten\.index\.Tensor does at {file}, `return y - y\[y > 0\]\.mean\(\)` depends on the values",
    ),
    (Selected, r"what aten\.masked_select\.default does at {file}, `return .*` depends on the values"),
    (Written, r"depends on the values of tensors"),
    (Exotic, r"there is no equivalent in JAX of aten\._linalg_det\.default at {file}, `return self\.last"),
    (ByLambda, r"JAX of aten\.median\.dim at {file}, `middle = lambda"),
    (NumPy, r"RuntimeError: .*numpy\(\).* at {file}, `return self\.last\(torch\.as_tensor"),
]
GATE = [row for row in NO_TRANSLATION if row[0] not in (Loop, Selected, Written)]


@pytest.mark.gate("Places-")
@pytest.mark.parametrize(
    ("kind", "words"), crossed(NO_TRANSLATION, GATE), ids=lambda v: getattr(v, "__name__", "")
)
def test_what_is_not_translated_and_where(kind, words, capfd):
    """Without a word of PyTorch's own on the terminal; the way out is said."""
    words = words.replace("{file}", r"\S*test_bad_modules\.py:\d+")
    with pytest.raises(fs.InvalidInput, match=words) as caught:
        fs.tasks.from_torch(kind(), nn.CrossEntropyLoss(), CLIENTS, translate=True)
    assert "leave translate=True out to run it in PyTorch" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_loss_that_is_not_translated():
    """CTC's sizes depend on the lengths, which PyTorch does not export: the module runs in PyTorch."""
    rng = np.random.default_rng(0)
    lengths = np.full(5, 2)
    clients = [(rng.normal(size=(5, 3, 4)).astype(np.float32), (rng.integers(1, 4, (5, 2)), lengths))]

    def loss(outputs, targets):
        steps = torch.full_like(targets[1], outputs.shape[1])
        return F.ctc_loss(outputs.log_softmax(-1).transpose(0, 1), targets[0], steps, targets[1])

    task = fs.tasks.from_torch(nn.Linear(4, 4), loss, clients)
    assert "what aten._ctc_loss.Tensor gives depends on the values of tensors" in task.notes[0]
    assert "it runs in PyTorch, one client after another" in task.notes[0]


class Growing(Base):
    def forward(self, x):
        if self.training:
            self.seen = torch.cat([self.seen, x.detach().mean(0, keepdim=True)])
        return self.last(x)


class Counting(Base):
    def forward(self, x):
        if self.training:
            self.seen = self.seen + x.detach().mean(0)
        return self.last(x)


class OnlyEvaluates(Base):
    def forward(self, x):
        if self.training:
            raise RuntimeError("not meant to be trained")
        return self.last(x)


class Narrow(Base):
    def forward(self, x):
        return self.last(x[:, :3])


class Complex(Base):
    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.ones(3, dtype=torch.complex64))

    def forward(self, x):
        return (self.last(x) * self.turn).abs()


def _unsaved():
    module = Counting()
    module.register_buffer("seen", torch.zeros(4), persistent=False)
    return module


@pytest.mark.parametrize("translate", [None, False])
@pytest.mark.parametrize(
    ("module", "words"),
    [
        (
            lambda: Growing(torch.zeros(1, 4)),
            r"buffer 'seen' of Growing has shape \(1, 4\), after .* \(2, 4\): give",
        ),
        (
            OnlyEvaluates,
            r"OnlyEvaluates fails in training on .*: RuntimeError: not meant .* at \S+\.py:\d+, `raise",
        ),
        (
            Narrow,
            r"Narrow fails in evaluation on inputs of shape \(31, 4\): RuntimeError: mat1.*`return self\.last",
        ),
        (Complex, r"parameter 'turn' is complex: keep its real and imaginary parts .*view_as_complex"),
    ],
)
def test_what_cannot_be_trained(module, words, translate):
    with pytest.raises(fs.InvalidInput, match=words) as caught:
        fs.tasks.from_torch(module(), nn.CrossEntropyLoss(), CLIENTS, translate=translate)
    assert "\n" not in str(caught.value)


def test_a_loader_or_a_stream_is_no_client():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(CLIENTS)

    loader, wanted = torch.utils.data.DataLoader(CLIENTS), "client 1 is a Stream.*a data set of pairs"
    for given, words in ((loader, "client 1 is a DataLoader: give its dataset"), (Stream(), wanted)):
        with pytest.raises(fs.InvalidInput, match=words):
            fs.tasks.from_torch(nn.Linear(4, 3), nn.CrossEntropyLoss(), [CLIENTS[0], given])


@pytest.mark.full
def test_a_buffer_that_is_not_saved():
    with pytest.raises(fs.InvalidInput, match="writes to 'seen', which is not a buffer that it saves"):
        fs.tasks.from_torch(_unsaved(), nn.CrossEntropyLoss(), CLIENTS)


@pytest.mark.parametrize("persistent", [True, False])
def test_a_sparse_buffer(persistent):
    module = Base()
    module.register_buffer("edges", torch.eye(4).to_sparse(), persistent)
    with pytest.raises(fs.InvalidInput, match=r"'edges' of Base is sparse \(sparse_coo\): register it dense"):
        fs.tasks.from_torch(module, nn.CrossEntropyLoss(), CLIENTS)


class Bounded(Base):
    def forward(self, x):
        with torch.no_grad():
            self.last.weight.clamp_(-0.1, 0.1)
        return self.last(x)


class Following(Base):
    """A target network that follows the other, equal to it at the start."""

    def __init__(self):
        super().__init__()
        self.target = copy.deepcopy(self.last).requires_grad_(False)

    def forward(self, x):
        for own, follows in zip(self.last.parameters(), self.target.parameters(), strict=True):
            follows.data = 0.9 * follows.data + 0.1 * own.data
        return self.last(x) - self.target(x)


class Remembering(Base):
    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return self.last(x) / self.calls


@pytest.mark.parametrize("translate", [None, False])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Bounded, r"Bounded writes to its parameter 'last\.weight' when it is called"),
        (Following, r"Following writes to its parameter 'target\.weight' .* a moving average in a buffer"),
        (Remembering, "Remembering gives other outputs when it is called again in evaluation with the same"),
    ],
)
def test_state_that_no_run_would_know_of(kind, words, translate):
    """Weights written in `forward` were lost, and counters outside of buffers stood still."""
    with pytest.raises(fs.InvalidInput, match=words):
        fs.tasks.from_torch(kind(), nn.CrossEntropyLoss(), CLIENTS, translate=translate)


def test_a_loss_that_is_not_translated_and_where():
    def middle(outputs, y):
        return (nn.functional.cross_entropy(outputs, y, reduction="none") * outputs.median(1).values).mean()

    with pytest.raises(fs.InvalidInput, match=r"test_bad_modules\.py:\d+, `return \(nn\.functional\.cross"):
        fs.tasks.from_torch(nn.Linear(4, 3), middle, CLIENTS, translate=True)


def test_a_module_that_draws_in_evaluation_and_refuses_one_example(caplog):
    """Its difference from PyTorch was said to be "None"."""

    class Noisy(Base):
        def forward(self, x):
            centred = nn.functional.batch_norm(x, None, None, training=True)
            return self.last(nn.functional.dropout(centred, 0.5, True))

    with pytest.raises(
        fs.InvalidInput,
        match=r"one example at a time, since it draws in evaluation: Noisy or its loss fails: ValueError: Expe",
    ):
        fs.tasks.from_torch(Noisy(), nn.CrossEntropyLoss(), CLIENTS)
    assert not [r for r in caplog.records if r.levelname == "ERROR"]
