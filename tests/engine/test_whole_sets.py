"""Metrics that are no means over examples, against scikit-learn on whole sets: in runs, sweeps and after a resume."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.engine.evaluation.example_metrics import OnWholeSets

metrics = pytest.importorskip("sklearn.metrics")


def examples(count, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 5))
    return fs.Examples(x, (x[:, 0] + rng.normal(size=count) > 1).astype(np.int32))


CLIENTS, TEST = [examples(n, i) for i, n in enumerate((30, 7, 1, 60))], examples(700, 9)


def margin(w, batch):
    return batch.x @ w


def loss(w, batch):
    return jnp.mean(jax.nn.softplus(jnp.where(batch.y > 0, -1, 1) * margin(w, batch)))


def f1(w, batch):
    found, true = margin(w, batch) > 0, batch.y > 0
    return 2 * jnp.sum(found & true) / jnp.maximum(jnp.sum(found) + jnp.sum(true), 1)


def f1_on_the_host(w, batch):
    assert isinstance(batch.y, np.ndarray)
    return metrics.f1_score(batch.y, np.asarray(margin(w, batch)) > 0)


WHOLE = {
    "f1_gathered": fs.tasks.Whole(lambda w, batch: (batch.y, margin(w, batch) > 0), metrics.f1_score),
    "f1_host": f1_on_the_host,
    "auc": fs.tasks.Whole(lambda w, batch: (batch.y, margin(w, batch)), metrics.roc_auc_score),
    "positives": fs.tasks.Whole(lambda w, batch: margin(w, batch) > 0, np.sum),
}


def make(params=None, **changed):
    options = {"test": TEST, "metrics": {"f1": f1}, "whole": WHOLE, **changed}
    return fs.Task.from_arrays(loss, jnp.zeros(5) if params is None else params, CLIENTS, **options)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """Four rounds, stopped and resumed after two."""
    out = tmp_path_factory.mktemp("run") / "r"
    fs.run(fs.FedAvg(0.3), make(), rounds=2, eval_every=2, out=out)
    return fs.run(fs.FedAvg(0.3), make(), rounds=4, eval_every=2, out=out, resume=True)


@pytest.mark.full
def test_a_run(result):
    """700 test examples are more than a block of rows; F1 by all three ways is scikit-learn's."""
    pooled = jax.tree.map(lambda *parts: np.concatenate(parts), *CLIENTS)
    for part, rows in (("train", pooled), ("test", TEST)):
        scores = np.asarray(margin(result.params, rows))
        true = metrics.f1_score(rows.y, scores > 0)
        assert 0.3 < true < 0.7
        for name in ("f1", "f1_gathered", "f1_host"):
            assert result.metrics[f"{part}_{name}"][-1] == pytest.approx(true, abs=1e-6)
        auc = metrics.roc_auc_score(rows.y, scores)
        assert result.metrics[f"{part}_auc"][-1] == pytest.approx(auc, abs=1e-3)
        assert result.metrics[f"{part}_positives"][-1] == (scores > 0).sum()
    assert "client_f1_mean" not in result.metrics
    assert "client_loss_mean" in result.metrics
    assert any("f1 is no mean over examples" in note for note in result.history.notes)


@pytest.mark.full
def test_averaged_iterates_and_a_resume(result):
    """At (w_t + w_{t-1}) / 2; the same numbers as in one go."""
    path = [fs.run(fs.FedAvg(0.3), make(), rounds=n, eval_every=n).params for n in (3, 4)]
    middle = (np.asarray(path[0]) + np.asarray(path[1])) / 2
    want = metrics.roc_auc_score(TEST.y, margin(middle, TEST))
    assert result.metrics["test_auc_averaged"][-1] == pytest.approx(want, abs=1e-3)
    straight = fs.run(fs.FedAvg(0.3), make(), rounds=4, eval_every=2)
    for name in set(straight.metrics) - {"seconds"}:
        np.testing.assert_array_equal(result.metrics[name], straight.metrics[name], err_msg=name)


@pytest.mark.full
def test_a_sweep(result):
    """Each lane's own model, on the test set: the lane of the run has its numbers."""
    rates = {"client_lr": [0.3, 0.01]}
    found = fs.sweep("FedAvg", make(), rates, rounds=4, eval_every=2, select="test_f1_gathered:100")
    for name in ("f1", "f1_gathered", "f1_host", "auc"):
        np.testing.assert_allclose(
            found.metrics[f"test_{name}"][0, 0], result.metrics[f"test_{name}"], atol=2e-3
        )
        assert found.metrics[f"test_{name}"].shape == (2, 1, 3)
    assert found.metrics["test_auc"][0, 0, -1] != found.metrics["test_auc"][1, 0, -1]
    assert any("f1 is no mean over examples" in note for note in found.notes)


@pytest.mark.full
def test_a_model_with_other_leaves():
    """`Whole` and plain functions get the model as it was given, not its trained leaves alone."""
    whole = {
        "gathered": fs.tasks.Whole(
            lambda m, batch: (batch.y, m["act"](batch.x @ m["w"]) > 0), metrics.f1_score
        ),
        "host": lambda m, batch: metrics.f1_score(batch.y, np.asarray(m["act"](batch.x @ m["w"])) > 0),
    }
    task = fs.Task.from_arrays(
        lambda m, batch: loss(m["w"], batch), {"w": jnp.ones(5), "act": jnp.tanh}, CLIENTS, whole=whole
    )
    result = fs.run(fs.FedAvg(0.3), task, rounds=1)
    assert 0 < result.metrics["train_gathered"][0] == pytest.approx(result.metrics["train_host"][0])


def wrong(w, batch):
    return metrics.f1_score(np.zeros(3), [1, 2])


BAD = {
    "not a function": (3, "metric score = 3 must be a function"),
    "raises": (wrong, "score of the train set fails: ValueError"),
    "a vector": (lambda w, batch: np.ones(2), r"score of the train set has shape \(2,\)"),
    "a text": (lambda w, batch: "high", "score of the train set has shape .* one real number"),
    "outputs": (fs.tasks.Whole(lambda w, batch: batch.x @ w, lambda s: s), r"has shape \(98,\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    score, words = BAD[name]
    with pytest.raises(fs.InvalidInput, match=words) as raised:
        fs.run(fs.FedAvg(0.3), make(metrics={}, whole={"score": score}), rounds=1)
    assert "\n" not in str(raised.value)


def test_a_model_that_diverged_has_none():
    """Neither is called on it nor refused; at the first look what a metric raises is the user's to see."""
    whole = OnWholeSets({"score": wrong}, {})
    assert np.isnan(whole(jnp.full(5, jnp.nan), {"test": TEST}, False)["test_score"])
    assert np.isnan(whole(jnp.zeros(5), {"test": TEST}, False)["test_score"])
    gathered = OnWholeSets({"auc": WHOLE["auc"]}, {})
    overflown = TEST._replace(x=np.full_like(TEST.x, np.inf))
    assert np.isnan(gathered(jnp.zeros(5), {"test": overflown}, True)["test_auc"])


def test_names_and_parts():
    with pytest.raises(fs.InvalidInput, match="f1 is in metrics and in whole"):
        make(whole={"f1": f1_on_the_host})
    with pytest.raises(fs.InvalidInput, match="auc is a Whole: give it as whole="):
        make(metrics={"auc": WHOLE["auc"]}, whole={})
    with pytest.raises(fs.InvalidInput, match="score = 3 of Whole must be a function"):
        fs.tasks.Whole(margin, 3)  # type: ignore[arg-type]


@pytest.mark.full
def test_the_pages_example_runs():
    page = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text()
    names: dict = {}
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], names)
    x, y = (np.concatenate([c[i] for c in names["clients"]]) for i in (0, 1))
    true = metrics.f1_score(y, x @ np.asarray(names["result"].params) > 0)
    assert names["result"].metrics["train_f1"][-1] == pytest.approx(true)
