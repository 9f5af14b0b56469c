"""What clients measure by losses and metrics that are no plain means: PyTorch's own values of all their examples."""

from __future__ import annotations

import copy
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import fedsolve as fs  # noqa: E402
from fedsolve.deploy.codec import Expected, record_to_reply, to_record  # noqa: E402
from fedsolve.deploy.message import EvaluateReply, EvaluateRequest  # noqa: E402
from fedsolve.deploy.oracles.torch import TorchOracle  # noqa: E402
from fedsolve.deploy.reply_checks import check_evaluate_reply  # noqa: E402
from fedsolve.deploy.server.evaluation import EvaluationResult  # noqa: E402

WEIGHT = torch.tensor([1.0, 25.0, 3.0], dtype=torch.float64)
METRICS = ("loss", "f1", "auc")


def f1(outputs, y):
    """Of class 1, from three counts."""
    said, true = outputs.argmax(1) == 1, y == 1
    return 2 * (said & true).double().sum() / (said.double().sum() + true.double().sum())


def auc(outputs, y):
    """The share of pairs, one of class 1 and one of another, that are in order: it follows from no sums."""
    score = outputs[:, 1]
    pairs = (y[:, None] == 1) & (y[None] != 1)
    return ((score[:, None] > score[None]) & pairs).double().sum() / pairs.double().sum()


def client(seed, n):
    """Class 1 is rare, as in the batches of a client: some hold none of it."""
    draw = np.random.default_rng(seed)
    y = draw.choice(3, n, p=(0.6, 0.1, 0.3))
    y[0] = 1
    return torch.tensor(draw.normal(size=(n, 4)) + y[:, None] * 0.5), torch.tensor(y)


CLIENTS = client(0, 53), client(1, 47)


def module():
    torch.manual_seed(3)
    return nn.Linear(4, 3).double()


def batches(x, y, size=10):
    return list(zip(x.split(size), y.split(size), strict=True))


def oracle(x, y, loss=None):
    weighted = nn.CrossEntropyLoss(WEIGHT) if loss is None else loss
    return TorchOracle(module(), weighted, batches(x, y), metrics={"f1": f1, "auc": auc})


def params():
    return {name: p.detach().numpy() for name, p in module().named_parameters()}


def of_all(x, y):
    with torch.no_grad():
        outputs = module()(x)
        return {
            "loss": F.cross_entropy(outputs, y, WEIGHT).item(),
            "f1": f1(outputs, y).item(),
            "auc": auc(outputs, y).item(),
        }


def measured(which):
    found = oracle(*CLIENTS[which]).measure(params(), METRICS)["train"]
    assert found.means == pytest.approx(of_all(*CLIENTS[which]), rel=1e-12)
    return found


def test_metrics_are_of_all_examples_and_put_together_only_where_they_are_means():
    parts = [measured(0), measured(1)]
    for part, (_, y) in zip(parts, CLIENTS, strict=True):
        assert part.counts["loss"] == pytest.approx(WEIGHT[y].sum().item(), rel=1e-12)
        assert math.isnan(part.counts["f1"])
        assert math.isnan(part.counts["auc"])
    request = EvaluateRequest(
        experiment="e", round=1, client=0, population=2, last_used_round=-1, key=(0, 0), method={}, signature="",
        first_broadcast=None, buffers={}, metrics=METRICS, model=b"", steps=0, solver=None,
    )  # fmt: skip
    expected, answers = Expected(metrics=METRICS), {}
    for i, part in enumerate(parts):
        told = record_to_reply(
            EvaluateReply, to_record(EvaluateReply("e", 1, 0, 0, {"train": part})), expected
        )
        check_evaluate_reply(told, request)
        answers[i] = told.parts
    columns = EvaluationResult(1, 0, METRICS, answers, {}).columns()
    together = of_all(*(torch.cat(both) for both in zip(*CLIENTS, strict=True)))
    assert columns["train_loss"] == pytest.approx(together["loss"], rel=1e-12)
    assert columns["client_f1_mean"] == pytest.approx(np.mean([part.means["f1"] for part in parts]))
    assert math.isnan(columns["train_f1"])


def test_the_full_loss_is_pytorchs_of_all_examples():
    """Batches of different weights; and its gradient, which line searches and option I of SCAFFOLD take."""
    x, y = CLIENTS[0]
    own = module()
    wanted = F.cross_entropy(own(x), y, WEIGHT)
    slopes = dict(zip(params(), torch.autograd.grad(wanted, list(own.parameters())), strict=True))
    with jax.enable_x64(True):
        problem = oracle(x, y)
        round_ = problem.begin(jax.random.key(0), 0, jnp.float64)
        value, gradient = jax.jit(lambda w: round_.full(w))(params())
        assert float(value) == pytest.approx(wanted.item(), rel=1e-12)
        for name, slope in slopes.items():
            np.testing.assert_allclose(gradient[name], slope, atol=1e-12, err_msg=name)


def test_a_batch_in_which_nothing_counts_has_no_gradient():
    x, y = CLIENTS[0]
    ignored = torch.full_like(y, -100)
    ignored[10:] = y[10:]
    with jax.enable_x64(True):
        problem = oracle(x, ignored, nn.CrossEntropyLoss())
        round_ = problem.begin(jax.random.key(0), 0, jnp.float64)
        value, gradient = round_(params(), 0)
        assert float(value) == 0
        assert all(not np.asarray(g).any() for g in gradient.values())
        full, _ = round_.full(params())
        with torch.no_grad():
            assert float(full) == pytest.approx(F.cross_entropy(module()(x[10:]), y[10:]).item(), rel=1e-12)


@pytest.mark.full
def test_a_translated_task_measures_the_same_on_a_client():
    """`JaxOracle.of_task`: the weighted loss with its weights, and what PyTorch computes on whole sets."""
    loss, own = nn.CrossEntropyLoss(copy.deepcopy(WEIGHT).float()), module().float()
    clients = [(x.numpy(), y.numpy()) for x, y in CLIENTS]
    task = fs.tasks.from_torch(own, loss, clients, metrics={"f1": f1, "auc": auc})
    assert list(task.metrics) == ["f1"]
    assert list(task.whole) == ["auc"]
    assert "auc is no mean over examples" in task.notes[0]
    found = fs.flower.JaxOracle.of_task(task, 0).measure(task.init(None), METRICS)["train"]
    assert found.means == pytest.approx(of_all(*CLIENTS[0]), rel=1e-5)
    assert found.counts["loss"] == pytest.approx(WEIGHT[CLIENTS[0][1]].sum().item(), rel=1e-5)
    assert math.isnan(found.counts["f1"])
    assert math.isnan(found.counts["auc"])
