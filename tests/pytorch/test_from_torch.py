"""Tasks of PyTorch modules: rounds equal PyTorch's by hand, translated or not; errors are one line."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import fedsolve as fs  # noqa: E402

COUNTS = (6, 3, 5)
RATE = 0.5


def clients():
    draw = np.random.default_rng(0)
    return [(draw.normal(size=(n, 4)).astype(np.float32), draw.integers(0, 3, n)) for n in COUNTS]


def network():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    module[3].bias.requires_grad_(False)
    return module


def by_hand(module):
    """One round of FedAvg, a step on all of each client's examples: parameters and running statistics."""
    params, buffers = [], []
    for x, y in clients():
        own = copy.deepcopy(module).train()
        F.cross_entropy(own(torch.tensor(x)), torch.tensor(y)).backward()
        params.append({n: p - RATE * p.grad if p.requires_grad else p for n, p in own.named_parameters()})
        buffers.append(dict(own.named_buffers()))
    share = np.array(COUNTS) / sum(COUNTS)
    mean = {n: sum(s * p[n].detach() for s, p in zip(share, params, strict=True)) for n in params[0]}
    return mean, {n: sum(b[n].double() for b in buffers) / len(buffers) for n in buffers[0]}


@pytest.mark.full
@pytest.mark.parametrize("translate", [True, False])
def test_a_round_is_pytorchs(translate):
    """Uneven clients, BatchNorm and a frozen leaf: padding enters neither loss nor statistics."""
    module = network()
    before = copy.deepcopy(module.state_dict())
    task = fs.tasks.from_torch(
        module, nn.CrossEntropyLoss(), clients(), batch_size=8, local_steps=1, translate=translate
    )
    result = fs.run(fs.FedAvg(client_lr=RATE), task, rounds=1, clients_per_round=3)
    params, buffers = by_hand(module)
    trained = result.module()
    for name, p in trained.named_parameters():
        np.testing.assert_allclose(p.detach(), params[name], atol=1e-6, err_msg=name)
    for name, b in trained.named_buffers():
        np.testing.assert_allclose(b, buffers[name], atol=1e-6, err_msg=name)
    assert trained is not module
    assert all(torch.equal(v, before[n]) for n, v in module.state_dict().items())
    with torch.no_grad():
        x, y = (np.concatenate(part) for part in zip(*clients(), strict=True))
        outputs = trained.eval()(torch.tensor(x))
    assert result.metrics["train_loss"][-1] == pytest.approx(
        float(F.cross_entropy(outputs, torch.tensor(y))), abs=1e-5
    )
    assert result.metrics["train_accuracy"][-1] == pytest.approx(
        float((outputs.argmax(1).numpy() == y).mean())
    )
    assert any("PyTorch" in note for note in result.history.notes) is not translate


class Branching(nn.Module):
    """One path or the other, by the values of its inputs."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        if x.sum() > 0:  # the line
            x = -x
        return self.last(x)


class OneSize(Branching):
    """It works for batches of one size."""

    def forward(self, x):
        return self.last(x.view(31, 4))


@pytest.mark.parametrize(
    ("module", "loss", "words"),
    [
        (
            Branching,
            nn.CrossEntropyLoss(),
            r"depends on the values of tensors at .*test_from_torch.py:\d+, `if x.sum",
        ),
        (OneSize, nn.CrossEntropyLoss(), "has . examples: OneSize fails in training"),
        (
            Branching,
            nn.CrossEntropyLoss(reduction="sum"),
            "the loss is not a mean over examples: of 31 examples it is",
        ),
        (
            Branching,
            lambda outputs, y: (outputs.amax(0) ** 2).mean(),
            "the mean of its values on each of them",
        ),
        (Branching, lambda outputs, y: 1.0, "the loss of a batch is a float: it must be one real number"),
        (dict, nn.CrossEntropyLoss(), "must be a torch.nn.Module"),
    ],
)
def test_what_cannot_be_translated_is_said_in_one_line(module, loss, words):
    with pytest.raises(fs.InvalidInput, match=words) as caught:
        fs.tasks.from_torch(module(), loss, clients(), translate=True)
    assert "\n" not in str(caught.value)


@pytest.mark.full
def test_what_cannot_be_translated_runs_in_pytorch_and_says_so():
    task = fs.tasks.from_torch(Branching(), F.cross_entropy, clients())
    assert "if x.sum" in task.notes[0]
    assert "it runs in PyTorch" in task.notes[0]


@pytest.mark.full
@pytest.mark.parametrize(
    "method",
    [
        fs.FedDuAdam(client_lr=0.1),
        fs.ControlVariates(fs.FedAvg(client_lr=0.1)),
        fs.Proximal(fs.FedExP(client_lr=0.1), 0.1),
        fs.FedOpt(fs.client.Armijo(), fs.server.ServerSGD(1.0)),
    ],
    ids=lambda m: type(m).__name__,
)
def test_methods_run_on_a_module_as_on_its_twin(method):
    """The model of this package with the module's weights takes the same steps."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    task = fs.tasks.from_torch(module, nn.CrossEntropyLoss(), clients(), batch_size=4)

    def outputs(params, x):
        import jax

        hidden = jax.nn.relu(x @ params["0.weight"].T + params["0.bias"])
        return hidden @ params["2.weight"].T + params["2.bias"]

    examples = [fs.Examples(x, y.astype(np.int32)) for x, y in clients()]
    twin = fs.Task.from_arrays(fs.tasks.CrossEntropy(outputs), task.init(None), examples, batch_size=4)
    ours, theirs = (fs.run(method, t, rounds=3, clients_per_round=2) for t in (task, twin))
    for name, value in theirs.params.items():
        np.testing.assert_allclose(ours.params[name], value, atol=1e-4, err_msg=name)


class Weights(nn.Module):
    """Other operands in training than in evaluation, in the same operations."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.first, self.second = kind, nn.Linear(4, 4), nn.Linear(4, 4)
        self.held = [torch.zeros(2, 4), torch.ones(2, 4)]

    def forward(self, x):
        first, second = self.first(x), self.second(x)
        return {
            "layer": lambda: (self.first if self.training else self.second)(x),
            "constant": lambda: first * torch.tensor(2.0 if self.training else 3.0),
            "attribute": lambda: first[:2] + self.held[self.training],
            "result": lambda: first if self.training else second,
            "none": lambda: first * torch.tensor(2.0) + second,
        }[self.kind]()


@pytest.mark.parametrize("kind", ["layer", "constant", "attribute", "result", "none"])
def test_modes_that_compute_the_same_have_one_program(kind):
    from fedsolve.pytorch.translation.export import is_same_in_both_modes

    assert is_same_in_both_modes(Weights(kind), torch.rand(5, 4)) == (kind == "none")
    layers = {"layer": nn.BatchNorm1d(4), "constant": nn.Dropout(0.5), "none": nn.Dropout(0.0)}
    module = nn.Sequential(nn.Linear(4, 4), layers.get(kind, nn.RReLU()))
    before = copy.deepcopy(module.state_dict())
    assert is_same_in_both_modes(module, torch.rand(5, 4)) == (kind == "none")
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_losses_that_are_equal_have_one_program(monkeypatch):
    from fedsolve.pytorch.translation import model

    exported, export = [], model.export_module
    monkeypatch.setattr(model, "_PROGRAMS", {})
    monkeypatch.setattr(model, "export_module", lambda *given: exported.append(1) or export(*given))
    outputs, y = torch.rand(7, 3), torch.arange(7) % 3
    for loss, count in (
        (nn.CrossEntropyLoss(), 1),
        (nn.CrossEntropyLoss(), 1),
        (nn.CrossEntropyLoss(label_smoothing=0.1), 2),
        (nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0])), 3),
        (nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 4.0])), 4),
        (lambda outputs, y: F.cross_entropy(outputs, y), 5),
    ):
        made = model.OnRows("the loss", loss, outputs, y, torch.float32)
        assert len(exported) == count
        np.testing.assert_allclose(made.of_batch(outputs.numpy(), y.numpy()), loss(outputs, y), rtol=1e-6)


@pytest.mark.full
def test_a_module_is_swept():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 3))
    task = fs.tasks.from_torch(module, nn.CrossEntropyLoss(), clients(), batch_size=4)
    found = fs.sweep("FedAvg", task, grid={"client_lr": [0.1, 0.5]}, rounds=2, clients_per_round=2)
    alone = fs.run(fs.FedAvg(client_lr=0.5), task, rounds=2, clients_per_round=2)
    np.testing.assert_allclose(
        found.metrics["train_loss"][1, 0, -1], alone.metrics["train_loss"][-1], atol=1e-5
    )


@pytest.mark.full
def test_pytorch_lists_its_operations_once_a_program(monkeypatch):
    """Left to itself it does so 50 times, a fifth of the time of an export; afterwards it does as before."""
    utils = pytest.importorskip("torch._export.utils")
    name = "_materialize_cpp_cia_ops"
    if not hasattr(utils, name):
        pytest.skip("this PyTorch lists them in another way")
    from fedsolve.pytorch.translation.export import export_module

    listed = []
    make = getattr(utils, name)
    monkeypatch.setattr(utils, name, lambda: listed.append(make()))
    export_module(network(), (torch.zeros(2, 4),), training=True)
    assert len(listed) == 1
    getattr(utils, name)()
    assert len(listed) == 2


def test_operations_that_pytorch_decomposes_by_itself_are_left_to_it(monkeypatch):
    """Rules are registered for those alone that stay whole, and the program's values are the module's."""
    from fedsolve.pytorch.translation.export import export_module

    parts = torch.export.exported_program
    name = "_override_composite_implicit_decomp"
    if not hasattr(parts, name):
        pytest.skip("this PyTorch decomposes in another way")
    numbers, register = [], getattr(parts, name)
    monkeypatch.setattr(parts, name, lambda rules: numbers.append(len(rules)) or register(rules))
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Hardswish(), nn.GRU(8, 3, batch_first=True))
    x = torch.randn(2, 5, 4)
    program = export_module(module, (x,), training=False)
    assert 0 < max(numbers) < 100, numbers
    whole = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert {f"aten.{name}" for name in ("layer_norm.default", "hardswish.default", "gru.input")} <= whole
    for ours, theirs in zip(program.module()(x), module(x), strict=True):
        torch.testing.assert_close(ours, theirs)
