"""Predictions of tasks from PyTorch: the module's own outputs in evaluation mode, also after saving and loading."""

import functools

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.errors import InvalidInput
from harness import crossed

torch = pytest.importorskip("torch")
nn = torch.nn
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(300, 6)).astype(np.float32), RNG.integers(0, 3, 300)
CLIENTS = [(X[:8], Y[:8]), (X[8:24], Y[8:24])]


class Two(nn.Module):
    """Two outputs of a dictionary of inputs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 3), nn.Linear(2, 1)

    def forward(self, x):
        return {"a": self.first(x["u"]), "b": self.second(x["v"])[:, 0]}


def network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 3))
    net[0].bias.requires_grad_(False)
    return net


def other_start():
    """The same layers with other weights, a frozen one among them."""
    net = network()
    with torch.no_grad():
        net[0].bias.add_(1)
        net[4].weight.mul_(2)
    return net


@functools.cache
def trained(translate):
    """A task and what a round of it gives."""
    task = fs.tasks.from_torch(network(), nn.CrossEntropyLoss(), CLIENTS, batch_size=4, translate=translate)
    return task, fs.run(fs.FedAvg(0.2), task, rounds=1)


@pytest.mark.full
@pytest.mark.parametrize("translate", crossed([True, False], [False]))
def test_dropout_running_statistics_and_frozen_parameters(translate, tmp_path):
    net, (task, result) = network(), trained(translate)
    module = result.module().eval()
    with torch.no_grad():
        expected = module(torch.tensor(X)).numpy()
    np.testing.assert_allclose(result.predict(X, scores=True), expected, atol=1e-5)
    np.testing.assert_array_equal(result.predict(X), expected.argmax(1))
    assert not torch.equal(module[1].running_mean, net[1].running_mean)
    result.save(tmp_path)
    module_again = (
        other_start() if translate else network()
    )  # a module that ran in PyTorch keeps its frozen leaves
    for loaded in (fs.load(tmp_path, task), fs.load(tmp_path, module=module_again)):
        np.testing.assert_array_equal(loaded.predict(X), result.predict(X))
        torch.testing.assert_close(loaded.module().state_dict(), module.state_dict())


@pytest.mark.full
def test_inputs_and_outputs_of_several_arrays_are_regression():
    x = {"u": X, "v": X[:, :2]}

    def loss(outputs, y):
        return ((outputs["a"] - y) ** 2).mean() + (outputs["b"] ** 2).mean()

    module = Two()
    task = fs.tasks.from_torch(module, loss, [({k: a[:40] for k, a in x.items()}, X[:40, :3])])
    found = task.predict(task.init(None), x)
    with torch.no_grad():
        expected = module({k: torch.tensor(a) for k, a in x.items()})
    for name in ("a", "b"):
        np.testing.assert_allclose(found[name], expected[name].numpy(), atol=1e-5)


def test_what_does_not_fit_is_one_line(tmp_path):
    task, result = trained(False)
    result.save(tmp_path)
    for wrong, message in [
        (lambda: fs.load(tmp_path).predict(X), "names no ready task: give"),
        (
            lambda: fs.load(tmp_path).module(),
            r"has the weights of a model and not its code: give fs.load\(.*module",
        ),
        (lambda: fs.load(tmp_path, module=nn.Linear(6, 3)), "'weight' is missing"),
        (lambda: fs.load(tmp_path, module="net"), "module = 'net' must be a torch.nn.Module, an instance"),
        (lambda: fs.load(tmp_path, task, module=network()), "give task or module, not both"),
        (
            lambda: fs.load(tmp_path, module=network()).predict(X[:, :2]),
            r"cannot take inputs of shape \(2,\)",
        ),
        (lambda: fs.load(tmp_path, task).predict(X[:, :2]), r"the inputs of Sequential have shape \(6,\)"),
    ]:
        with pytest.raises(InvalidInput, match=message) as error:
            wrong()
        assert "\n" not in str(error.value)
