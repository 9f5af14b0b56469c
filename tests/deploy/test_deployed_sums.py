"""Metrics from sums over clients in a deployment: the simulation's numbers, scikit-learn's, and what is believed."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import jax
import numpy as np
import pytest
from flwr.app import ConfigRecord
from sklearn import metrics as theirs

import fedsolve as fs
from deploy_small import clients_of, deploy
from fake_grid import over_the_wire
from fedsolve.deploy.codec import Expected, record_to_reply, to_record
from fedsolve.deploy.message import EvaluateReply, EvaluateRequest, PartMetrics, Sums
from fedsolve.deploy.reply_checks import check_evaluate_reply
from fedsolve.deploy.server.evaluation import EvaluationResult, find_metric_outliers
from fedsolve.results.callbacks import EachClient
from fedsolve.results.clients import read_client_metrics

MODEL = fs.tasks.Linear(3)
METRICS = {"auc": fs.metrics.AUC(64), "f1": fs.metrics.F1(), "n": fs.metrics.BinaryCounts()}
NAMES = ("loss", *METRICS)


def client(seed, n, positive=0.3):
    draw = np.random.default_rng(seed)
    y = (draw.random(n) < positive).astype(np.int32)
    return draw.normal(size=(n, 3)) + y[:, None], y


CLIENTS = [client(0, 40), client(1, 12), client(2, 12, 0.0), client(3, 40)]  # two sizes, a program each
TASK = fs.Task.from_arrays(
    fs.tasks.Logistic(MODEL), MODEL.init(jax.random.key(1)), CLIENTS, metrics=METRICS, batch_size=4
).hold_out(0.3)
START = jax.tree.map(lambda x: np.asarray(x, "float64"), TASK.init(jax.random.key(0)))
APP = clients_of(TASK, START)
OPTIONS = {"rounds": 1, "clients_per_round": 3}


def test_the_record_is_the_simulations(tmp_path):
    """Every column, and each client's own numbers in memory and in the file."""
    mine, simulated = EachClient(), EachClient()
    model, history, _ = deploy(
        fs.FedAvg(0.3), tmp_path, app=APP, params=START, population=4, client_metrics=NAMES,
        callbacks=[mine], **OPTIONS,
    )  # fmt: skip
    found = fs.run(fs.FedAvg(0.3), TASK, dtype="float64", eval_every=1, callbacks=[simulated], **OPTIONS)
    seen = history.evaluations
    alike = [name for name in found.metrics if name in seen and name not in ("round", "seconds")]
    for part in ("train", "validation"):
        assert {f"{part}_{name}" for name in ("loss", "auc", "auc_error", "f1", "n_tp", "n_fn")} <= set(alike)
    assert {"client_auc_worst", "client_f1_mean"} <= set(alike)
    for name in alike:
        np.testing.assert_allclose(seen[name], found.metrics[name], rtol=1e-12, err_msg=name)
    for clients in (mine.found, read_client_metrics(tmp_path / "server")):
        for round, own in simulated.found.items():
            assert clients[round].metrics.keys() == own.metrics.keys()
            for name, column in own.metrics.items():
                np.testing.assert_allclose(clients[round].metrics[name], column, rtol=1e-12, err_msg=name)
    x, y = (np.concatenate(part) for part in zip(*map(TASK.data.client, range(4)), strict=True))
    exact = theirs.roc_auc_score(y, np.asarray(MODEL(model, x)))
    assert abs(seen["train_auc"][-1] - exact) <= seen["train_auc_error"][-1] + 1e-12
    assert np.isnan(simulated.found[1].column("auc")[2])  # without positives


@pytest.mark.full
def test_nodes_with_pytorch_count_as_those_in_jax():
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0)).double()
    weights = {name: p.detach().numpy() for name, p in net.named_parameters()}
    x, y = CLIENTS[3]
    batches = list(zip(torch.tensor(x).split(7), torch.tensor(y, dtype=torch.float64).split(7), strict=True))
    loss = torch.nn.BCEWithLogitsLoss()
    found = fs.flower.TorchOracle(net, loss, batches, metrics=METRICS).measure(weights, NAMES)["train"]
    score = x @ weights["0.weight"][0] + weights["0.bias"]
    assert EvaluationResult(0, 0, NAMES, {0: {"train": found}}, {}).columns()["train_f1"] == pytest.approx(
        theirs.f1_score(y, score > 0)
    )
    assert found.sums["n"].values.tolist() == theirs.confusion_matrix(y, score > 0).ravel().tolist()
    with pytest.raises(fs.InvalidInput, match="takes weights of examples, and a batch is"):
        fs.flower.TorchOracle(net, loss, batches, metrics={"auc": fs.metrics.AUC(weighted=True)})


def answer(**sums):
    return PartMetrics(40, {"loss": 0.5}, {"loss": 40}, sums)


GOOD = {name: Sums(m, np.eye(1, m.width)[0] * 40) for name, m in METRICS.items()}
REQUEST = EvaluateRequest(
    experiment="e", round=1, client=0, population=2, last_used_round=-1, key=(0, 0), method={}, signature="",
    first_broadcast=None, buffers={}, metrics=NAMES, model=b"", steps=0, solver=None,
)  # fmt: skip


def read(metrics, change=None, declared=None):
    record = to_record(EvaluateReply("e", 1, 0, 0, {"train": metrics}))
    if change:
        record["train"] = ConfigRecord({**record["train"], **change})
    reply = record_to_reply(EvaluateReply, over_the_wire(record), Expected(metrics=NAMES))
    check_evaluate_reply(reply, REQUEST, declared)
    return reply.parts["train"]


def test_what_is_sent_is_what_arrives():
    back = read(answer(**GOOD), declared=40)
    assert back.sums.keys() == GOOD.keys()
    for name, sums in GOOD.items():
        assert back.sums[name].metric == sums.metric
        np.testing.assert_array_equal(back.sums[name].values, sums.values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sums": [-1.0] + [0.0] * 135}, "its train auc has a sum of -1, not a number of at least 0"),
        ({"sums": [float("nan")] + [0.0] * 135}, "its train auc has a sum of nan"),
        ({"sums": [41.0] + [0.0] * 135}, "its train auc has sums over 41 examples, of 40"),
        ({"sums": [0.0] * 135}, "it has 135 sums, and its metrics have 136"),
        ({"sums": [0] * 136}, "its sums are not floating-point numbers"),
        ({"summed": ["auc", "f1", "f1"]}, "it has sums of"),
        ({"summed": ["auc", "f1", "other"]}, "which were not asked for"),
        (
            {"kinds": [json.dumps({"metric": "AUC", "weighted": False, "bins": 2**40, "scale": 1.0})] * 3},
            "bins = ",
        ),
        ({"kinds": ["{}"] * 3}, "no metric of fs.metrics is described by"),
        ({"means": [0.5, 0.5]}, "it has 2 means where 4 metrics were asked for and it has sums of 3"),
        ({"more": 1}, "it has an unknown more"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sums_that_cannot_be_are_refused(change, message):
    with pytest.raises(fs.InvalidInput, match=re.escape(message)):
        read(answer(**GOOD), change)


def test_sums_alone_are_an_answer():
    request = replace(REQUEST, metrics=("f1",))
    record = to_record(EvaluateReply("e", 1, 0, 0, {"train": PartMetrics(40, {}, {}, {"f1": GOOD["f1"]})}))
    reply = record_to_reply(EvaluateReply, over_the_wire(record), Expected(metrics=("f1",)))
    check_evaluate_reply(reply, request)
    assert reply.parts["train"].sums["f1"].values.sum() == 40


def test_a_client_measures_no_more_examples_than_it_trains_on():
    with pytest.raises(fs.InvalidInput, match="it measures 40 training examples, and it trains on 19"):
        read(answer(**GOOD), declared=19)


def test_claims_far_beyond_the_others_and_other_metrics_are_left_out():
    answers = {i: {"train": answer(**GOOD)} for i in range(3)}
    far = replace(answer(**GOOD), examples=2**31 - 1)
    coarse = Sums(fs.metrics.AUC(8), np.zeros(16))
    answers |= {3: {"train": far}, 4: {"train": answer(**GOOD | {"auc": coarse})}}
    found = find_metric_outliers(answers, {})
    assert found.keys() == {3, 4}
    assert "it claims 2,147,483,647 train examples, more than 100,000 times the usual 40" in found[3]
    assert "its train auc is AUC(weighted=False, bins=8, scale=1.0), that of most clients" in found[4]
