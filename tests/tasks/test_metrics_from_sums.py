"""fs.metrics against scikit-learn: values and bounds, and those of runs on any batches, clients and streams."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as theirs
from sklearn.linear_model import LogisticRegression

import fedsolve as fs
from fedsolve.data.federated import FederatedData
from fedsolve.engine.compute.clients import pack
from fedsolve.engine.evaluation import eval_sets as pooling
from fedsolve.engine.evaluation.eval_sets import sums_of_all
from fedsolve.engine.evaluation.evaluate import means_of
from fedsolve.engine.evaluation.example_metrics import EvalClients, Metrics
from fedsolve.tasks.metrics import describe, described
from fedsolve.tasks.sum_metrics import OnModel

RNG = np.random.default_rng(0)
Y = (RNG.random(400) < 0.1).astype(int)
SCORE = RNG.normal(size=400) + Y
SCORE[:50] = np.round(SCORE[:50], 1)  # some are equal
WEIGHT = RNG.random(400)
LOGITS, CLASSES = RNG.normal(size=(400, 5)) - [0, 0, 0, 9, 0], RNG.choice(4, 400)


def columns(metric, outputs, targets, weights=None):
    """Of sums over two halves, added up."""

    @jax.jit
    def sums_of(*given):
        each = metric.each(*given)
        return metric.totals(each, jnp.zeros(len(each), jnp.int32), 1)[0]

    total = np.zeros(metric.width)
    for rows in (slice(0, 200), slice(200, None)):
        given = [None if a is None else a[rows] for a in (outputs, targets, weights)]
        sums = np.asarray(sums_of(*given), float)
        metric.check_sums(sums, len(given[0]))
        total += sums
    return np.asarray(jax.jit(metric.of_sums)(total))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bins", [2, 10, 500, 4096])
def test_the_area_is_within_its_bound(bins, weighted):
    """The bound is half the share of pairs in one bin; pairs counted by hand for few bins."""
    weights = WEIGHT if weighted else None
    value, bound = columns(fs.metrics.AUC(bins, weighted=weighted), SCORE, Y, weights)
    assert abs(value - theirs.roc_auc_score(Y, SCORE, sample_weight=weights)) <= bound + 1e-6
    w = np.ones(400) if weights is None else weights
    root = np.sqrt(np.abs(SCORE))
    place = np.floor((0.5 + 0.5 * np.sign(SCORE) * root / (1 + root)) * bins)
    pairs = np.outer(w * Y, w * (1 - Y))
    same = (pairs * (place[:, None] == place[None])).sum() / pairs.sum()
    assert bound == pytest.approx(same / 2, rel=0.02, abs=1e-6)


def test_two_outputs_are_their_difference_and_scales_keep_order():
    two = np.stack([0.5 * SCORE, 1.5 * SCORE], axis=1)
    exact = theirs.roc_auc_score(Y, SCORE)
    for metric, outputs in ((fs.metrics.AUC(), two), (fs.metrics.AUC(scale=100.0), 100 * SCORE[:, None])):
        value, bound = columns(metric, outputs, Y)
        assert abs(value - exact) <= bound + 1e-6 < 0.01


@pytest.mark.parametrize("threshold", [0.0, 0.7])
@pytest.mark.parametrize("weights", [None, WEIGHT], ids=["alike", "weighted"])
def test_counts_of_two_classes(threshold, weights):
    said, given = threshold < SCORE, {"sample_weight": weights}
    wanted = {
        "F1": [theirs.f1_score(Y, said, **given)],
        "Precision": [theirs.precision_score(Y, said, **given)],
        "Sensitivity": [theirs.recall_score(Y, said, **given)],
        "Specificity": [theirs.recall_score(Y, said, pos_label=0, **given)],
        "BinaryCounts": theirs.confusion_matrix(Y, said, **given).ravel()[[3, 1, 0, 2]],
    }
    for name, values in wanted.items():
        metric = getattr(fs.metrics, name)(threshold, weighted=weights is not None)
        np.testing.assert_allclose(columns(metric, SCORE, Y, weights), values, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "weights", [pytest.param(None, marks=pytest.mark.full), WEIGHT], ids=["alike", "weighted"]
)
@pytest.mark.filterwarnings("ignore:y_pred contains classes")
def test_several_classes(weights):
    """One of which never occurs and is never predicted, and another that is predicted alone."""
    said, given = LOGITS.argmax(1), {"sample_weight": weights}
    macro = theirs.f1_score(CLASSES, said, average="macro", **given)
    balanced = theirs.balanced_accuracy_score(CLASSES, said, **given)
    for kind, wanted in ((fs.metrics.MacroF1, macro), (fs.metrics.BalancedAccuracy, balanced)):
        metric = kind(5, weighted=weights is not None)
        assert columns(metric, LOGITS, CLASSES, weights) == pytest.approx(wanted, rel=1e-5)
    assert columns(fs.metrics.MacroF1(2), SCORE, Y) == pytest.approx(
        theirs.f1_score(Y, SCORE > 0, average="macro"), rel=1e-5
    )


ODDS = 1.5 * SCORE - 3  # neither slope nor intercept of a calibrated model
LABELS = (RNG.random(400) < 1 / (1 + np.exp(-0.7 * ODDS - 0.5))).astype(int)
X2 = RNG.normal(size=(5, 2))
WEIGHTS, BIASES = ("coef_", "weight", "1.weight"), ("intercept_", "bias", "1.bias")


@pytest.mark.full_rows("alike")
@pytest.mark.parametrize("weights", [None, WEIGHT], ids=["alike", "weighted"])
def test_calibration_is_that_of_the_pooled_table(weights):
    """Brier score, calibration error, bins and logistic regression by scikit-learn and NumPy on all rows."""
    p, given = 1 / (1 + np.exp(-ODDS)), {"sample_weight": weights}
    w = np.ones(400) if weights is None else weights
    make = lambda kind, *more: kind(*more, weighted=weights is not None)  # noqa: E731
    found = columns(make(fs.metrics.BrierScore), ODDS, LABELS, weights)
    assert found == pytest.approx(theirs.brier_score_loss(LABELS, p, **given), rel=1e-5)
    place = np.minimum((p * 10).astype(int), 9)
    n, predicted, observed = (np.bincount(place, w * x, 10) for x in (np.ones(400), p, LABELS))
    error = np.abs(predicted - observed).sum() / n.sum()
    assert columns(make(fs.metrics.CalibrationError), ODDS, LABELS, weights) == pytest.approx(error, rel=1e-4)
    with np.errstate(invalid="ignore"):
        wanted = np.concatenate([n, predicted / n, observed / n])
    metric = make(fs.metrics.Reliability)
    np.testing.assert_allclose(columns(metric, ODDS, LABELS, weights), wanted, rtol=1e-4)
    assert metric.columns[0] == "_n_0"
    two = np.stack([0.25 * ODDS, 1.25 * ODDS], axis=1)
    fit = LogisticRegression(C=1e12, tol=1e-10).fit(ODDS[:, None], LABELS, **given)
    for bins in (512, 64):
        slope, intercept, *bounds = columns(make(fs.metrics.Calibration, bins), two, LABELS, weights)
        off = abs(slope - fit.coef_[0, 0]), abs(intercept - fit.intercept_[0])
        assert (np.array(off) <= bounds).all()
        assert (max(bounds) < 0.05) == (bins == 512)  # wide bins are worse, and say so


def test_calibration_that_cannot_be_found():
    """One class, separated classes, one score, and one that is no number; scores beyond the bins are at their end."""
    metric = fs.metrics.Calibration(64)
    found = jax.jit(lambda s, y: metric.of_sums(metric.totals(metric.each(s, y), jnp.zeros(4, int), 1)[0]))
    for scores, labels in (
        ([0.0, 1, 2, 3], [1, 1, 1, 1]),
        ([-2.0, -1, 1, 2], [0, 0, 1, 1]),
        ([1.0] * 4, [0, 1, 0, 1]),
        ([1.0, np.nan, 2, 3], [0, 1, 0, 1]),
    ):
        assert np.isnan(found(np.array(scores), np.array(labels))).all()
    far, near = (found(np.array([-x, -1, 1, x]), np.array([0, 1, 0, 1])) for x in (1e6, 32.0))
    np.testing.assert_array_equal(far, near)


@pytest.mark.parametrize(
    ("params", "layer"),
    [
        ({"coef_": np.array([[0.5, -2.0]]), "intercept_": np.array([0.3])}, "*"),
        ({"weight": np.array([0.5, -2.0]), "bias": np.array(0.3)}, "*"),
        ({"0.bias": X2, "1.weight": np.array([[1.0, 3], [1.5, 1]]), "1.bias": np.array([1, 1.3])}, "1.*"),
    ],
)
def test_a_recalibrated_model_has_the_log_odds_that_it_should(params, layer):
    def odds(p):
        weight, bias = ([v for k, v in p.items() if k in names][-1] for names in (WEIGHTS, BIASES))
        outputs = X2 @ weight.reshape(-1, 2).T + bias
        return outputs[:, -1] - (outputs[:, 0] if outputs.shape[1] == 2 else 0)

    found = fs.metrics.recalibrate(params, 0.5, -3.0, layer)
    np.testing.assert_allclose(odds(found), 0.5 * odds(params) - 3)
    assert set(found) == set(params)
    assert "0.bias" not in params or found["0.bias"] is X2
    with pytest.raises(fs.InvalidInput, match="must be one weight and one bias"):
        fs.metrics.recalibrate(params, 1.0, 0.0, "*weight" if "coef_" not in params else "coef_")
    hidden = {"hidden": X2, "weight": X2, "bias": np.zeros(1)}  # scaling both layers would scale twice
    with pytest.raises(fs.InvalidInput, match="must be one weight and one bias"):
        fs.metrics.recalibrate(hidden, 0.5, 0.0)
    with pytest.raises(fs.InvalidInput, match="slope = 0 must be"):
        fs.metrics.recalibrate(params, 0, 0.0, layer)


@pytest.mark.full
def test_what_is_unknown_is_nan():
    nothing = np.zeros(400, int)
    assert np.isnan(columns(fs.metrics.AUC(), SCORE, nothing)).all()
    assert np.isnan(columns(fs.metrics.Sensitivity(), SCORE, nothing)).all()
    each = fs.metrics.F1().each(jnp.array([1.0, jnp.nan]), jnp.array([1, 1]))
    assert jnp.isnan(fs.metrics.F1().totals(each, jnp.array([0, 1]), 2)).any(axis=1).tolist() == [False, True]


@pytest.mark.full
def test_more_ones_than_float32_counts():
    """2^24 + 2^21 examples of one bin; a sum of ones in float32 would end at 2^24."""
    count, metric = 2**24 + 2**21, fs.metrics.BinaryCounts()
    each = jnp.ones((count, 3), jnp.float32)
    assert sums_of_all(metric, each).tolist() == [0, 0, 0, count]


@pytest.mark.parametrize(
    "metric",
    [fs.metrics.AUC(7), fs.metrics.F1(0.5), fs.metrics.MacroF1(3, weighted=True), fs.metrics.Reliability(3)],
)
def test_a_description_makes_the_metric_again(metric):
    assert described(describe(metric)) == metric


@pytest.mark.parametrize(
    "call",
    [
        lambda: fs.metrics.AUC(1),
        lambda: fs.metrics.AUC(5000),
        lambda: fs.metrics.AUC(scale=0),
        lambda: fs.metrics.CalibrationError(0),
        lambda: fs.metrics.Calibration(5000),
        lambda: columns(fs.metrics.BrierScore(), LOGITS, CLASSES),
        lambda: described({"metric": "recalibrate"}),
        lambda: fs.metrics.MacroF1(1),
        lambda: fs.metrics.F1(float("nan")),
        lambda: fs.metrics.F1(weighted=1),
        lambda: columns(fs.metrics.AUC(), LOGITS, CLASSES),
        lambda: columns(fs.metrics.MacroF1(4), LOGITS, CLASSES),
        lambda: columns(fs.metrics.F1(), SCORE, LOGITS),
        lambda: described({"metric": "describe"}),
        lambda: task({"sens": fs.metrics.Sensitivity()}),  # less of which would be taken to be better
        lambda: described({"metric": "AUC", "bins": 3}),
    ],
)
def test_wrong_input_is_one_line(call):
    with pytest.raises(fs.InvalidInput) as error:
        call()
    assert "\n" not in str(error.value)


def score(w, x):
    return x @ w


def loss(w, batch):
    return jnp.mean(jnp.logaddexp(0, -(2 * batch[1] - 1) * score(w, batch[0])))


def client(n, positive=0.3):
    y = (RNG.random(n) < positive).astype(np.int32)
    return RNG.normal(size=(n, 3)) + y[:, None], y, RNG.uniform(0.1, 2, n)


CLIENTS = [client(40), client(7), client(13, 0.0), client(60)]
TEST, UNSEEN = client(51), [client(9)]
METRICS = {
    "auc": fs.metrics.AUC(),
    "weighted_auc": fs.metrics.AUC(weighted=True),
    "f1": fs.metrics.F1(),
    "n": fs.metrics.BinaryCounts(),
}


def task(metrics):
    bound = {name: OnModel(metric, score) for name, metric in metrics.items()}
    return fs.Task.from_arrays(loss, np.ones(3), CLIENTS, test=TEST, unseen=UNSEEN, metrics=bound)


@pytest.mark.full
def test_a_run_has_scikit_learns_values_of_all_examples_and_of_each_client():
    """Of uneven clients in blocks."""
    options = {"rounds": 2, "clients_per_round": 3, "eval_every": 2, "dtype": "float64"}
    each = fs.callbacks.EachClient()
    found = fs.run(fs.FedAvg(0.3), task(METRICS), callbacks=[each], **options)
    w = np.asarray(found.params)
    sets = {"train": [np.concatenate(part) for part in zip(*CLIENTS, strict=True)], "test": TEST}
    for name, (x, y, weight) in sets.items():
        values = {k.removeprefix(f"{name}_"): v[-1] for k, v in found.metrics.items() if k.startswith(name)}
        assert abs(values["auc"] - theirs.roc_auc_score(y, x @ w)) <= values["auc_error"] + 1e-12
        exact = theirs.roc_auc_score(y, x @ w, sample_weight=weight)
        assert abs(values["weighted_auc"] - exact) <= values["weighted_auc_error"] + 1e-12
        assert values["f1"] == pytest.approx(theirs.f1_score(y, x @ w > 0))
        counts = [values[f"n_{k}"] for k in ("tn", "fp", "fn", "tp")]
        assert counts == theirs.confusion_matrix(y, x @ w > 0).ravel().tolist()
    own = each.found[2]
    for i, (x, y, _) in enumerate(CLIENTS):
        if i == 2:
            assert np.isnan([own.column("auc")[i], own.column("auc_error")[i]]).all()
        else:
            apart = abs(own.column("auc")[i] - theirs.roc_auc_score(y, x @ w))
            assert apart <= own.column("auc_error")[i] + 1e-12


@pytest.mark.full
def test_a_streamed_run_and_a_sweep_have_the_values_of_a_run():
    """Streamed: to the same bits."""
    options = {"rounds": 2, "clients_per_round": 3, "eval_every": 2, "dtype": "float64"}
    found = fs.run(fs.FedAvg(0.3), task(METRICS), **options)
    several, one = ({name: METRICS[name] for name in names} for names in (("weighted_auc", "n"), ("auc",)))
    streamed = fs.run(fs.FedAvg(0.3), task(several), residency="stream", **options)
    swept = fs.sweep("FedAvg", task(one), grid={"client_lr": [0.3, 0.1]}, **options)
    assert {"train_weighted_auc", "test_weighted_auc", "unseen_weighted_auc", "test_n_tp"} <= set(
        streamed.metrics
    )
    for name, column in found.metrics.items():
        if name != "seconds" and name in streamed.metrics:
            np.testing.assert_array_equal(column, streamed.metrics[name], err_msg=name)
        if name.startswith(("test_", "unseen_auc")) and name in swept.metrics:
            np.testing.assert_allclose(swept.metrics[name][0, 0, -1], column[-1], rtol=1e-9, err_msg=name)
    assert "test_auc_error" in swept.metrics


def test_clients_are_taken_a_few_at_a_time(monkeypatch):
    """The same values where the sums of two clients at a time are held, of five."""
    data, work = FederatedData.from_clients([*CLIENTS, client(3)]), {"epochs": 1, "local_steps": None}
    packed = pack(data, loss, jnp.float32, batch_size=None, **work)[0]

    def measured(loss):
        metrics = Metrics(loss, tuple(task(METRICS).metrics.items()))
        return means_of(metrics, EvalClients.of(packed, np.arange(5)), jnp.ones(3))

    together = measured(loss)
    monkeypatch.setattr(pooling, "_SUMS_AT_ONCE", 2000)
    for a, b in zip(together, measured(lambda w, batch: loss(w, batch)), strict=True):  # another program
        np.testing.assert_array_equal(a, b)


@pytest.mark.full
def test_outputs_that_mix_examples_are_found():
    wrong = fs.Task.from_arrays(
        loss,
        np.ones(3),
        CLIENTS,
        metrics={"f1": OnModel(fs.metrics.F1(), lambda w, x: x @ w - (x @ w).mean())},
    )
    found = fs.run(fs.FedAvg(0.3), wrong, rounds=1)
    assert any("f1 is no mean over examples" in note for note in found.history.notes)


@pytest.mark.parametrize(
    ("translate", "statistics"),
    [
        (None, False),
        pytest.param(None, True, marks=pytest.mark.full),
        pytest.param(False, True, marks=pytest.mark.full),
    ],
)
@pytest.mark.full
def test_a_module_of_pytorch(translate, statistics):
    """With running statistics and a frozen weight, or neither."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 2))
    if statistics:
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
        net[0].weight.requires_grad_(False)
    clients = [(x.astype("f"), y.astype("i8")) for x, y, _ in CLIENTS]
    metrics = {"auc": fs.metrics.AUC(), "macro_f1": fs.metrics.MacroF1(2)}
    made = fs.tasks.from_torch(
        net, torch.nn.CrossEntropyLoss(), clients, metrics=metrics, translate=translate, batch_size=8
    )
    found = fs.run(fs.FedAvg(0.1), made, rounds=1)
    x, y = (np.concatenate(part) for part in zip(*clients, strict=True))
    with torch.no_grad():
        outputs = found.module().eval()(torch.tensor(x)).numpy()
    exact = theirs.roc_auc_score(y, outputs[:, 1] - outputs[:, 0])
    assert abs(found.metrics["train_auc"][-1] - exact) <= found.metrics["train_auc_error"][-1] + 1e-5
    macro = theirs.f1_score(y, outputs.argmax(1), average="macro")
    assert found.metrics["train_macro_f1"][-1] == pytest.approx(macro, rel=1e-5)
