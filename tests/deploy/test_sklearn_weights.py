"""Weights of classes and examples, pipelines and metrics from sums on nodes, against scikit-learn's own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle_small import key

import fedsolve as fs

sklearn = pytest.importorskip("sklearn")

from sklearn import metrics as theirs  # noqa: E402
from sklearn.linear_model import LogisticRegression, SGDClassifier  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.svm import LinearSVC  # noqa: E402

from fedsolve.deploy.oracles.sklearn import SklearnOracle, assign  # noqa: E402
from fedsolve.deploy.server.evaluation import EvaluationResult  # noqa: E402

RNG = np.random.default_rng(0)
X = 3 + 2 * RNG.standard_normal((90, 3))
LABELS = np.array(["healthy", "ill", "risk"])[np.argmax(X + RNG.standard_normal((90, 3)), axis=1)]
TWO = np.where(LABELS == "ill", "ill", "well")
CLASS_WEIGHTS = {"ill": 7.0, "risk": 0.5}
EXAMPLE_WEIGHTS = RNG.uniform(0.1, 3, 90)
SITES = [slice(0, 60), slice(60, 90)]


def full(problem, params):
    """Loss and gradient of a node on all its examples."""
    with jax.enable_x64(True):
        return jax.device_get(jax.jit(lambda w: problem.begin(key(), 0, "float64").full(w))(params))


@pytest.mark.gate("two")
@pytest.mark.parametrize("y", [TWO, LABELS], ids=["two", "three"])
def test_two_sites_together_minimise_what_scikit_learn_does_on_all_examples(y):
    """At the coefficients of a fit without penalty the sites' gradients, by their examples, add up to 0."""
    weights = {label: w for label, w in CLASS_WEIGHTS.items() if label in y}
    estimator = LogisticRegression(C=np.inf, class_weight=weights, tol=1e-12, max_iter=10_000)
    fitted = sklearn.base.clone(estimator).fit(X, y, EXAMPLE_WEIGHTS)
    params = {"coef_": fitted.coef_, "intercept_": fitted.intercept_}
    classes, total, away = np.unique(y), 0.0, 0.0
    for site in SITES:
        given = {"classes": classes, "sample_weight": EXAMPLE_WEIGHTS[site], "batch_size": None, "epochs": 1}
        problem = SklearnOracle(estimator, X[site], y[site], **given)
        _, gradient = full(problem, params)
        total = total + problem.num_examples * gradient["coef_"]
        away = away + problem.num_examples * np.abs(gradient["coef_"]).max()
    assert np.abs(total).max() < 1e-4 * away


@pytest.mark.full
@pytest.mark.parametrize(
    ("estimator", "loss"),
    [
        (SGDClassifier(loss="log_loss", class_weight=CLASS_WEIGHTS), lambda m: np.log1p(np.exp(-m))),
        (LinearSVC(class_weight=CLASS_WEIGHTS), lambda m: np.maximum(0, 1 - m) ** 2),
    ],
    ids=["sgd", "svc"],
)
def test_one_against_the_rest_weighs_a_class_in_its_own_problem(estimator, loss):
    problem = SklearnOracle(estimator, X, LABELS, batch_size=None, epochs=1)
    params = jax.tree.map(lambda p: RNG.standard_normal(p.shape), problem.params)
    outputs = X @ params["coef_"].T + params["intercept_"]
    wanted = 0.0
    for i, label in enumerate(problem.classes):
        own = label == LABELS
        weights = np.where(own, CLASS_WEIGHTS.get(label, 1.0), 1.0)
        wanted += np.mean(weights * loss(np.where(own, 1, -1) * outputs[:, i]))
    assert full(problem, params)[0] == pytest.approx(wanted, rel=1e-12)


MEAN, DEVIATION = np.array([3.0, 3.1, 2.9]), np.array([2.0, 1.9, 2.1])


@pytest.mark.full
@pytest.mark.parametrize(
    "estimator",
    [LogisticRegression(), pytest.param(SGDClassifier(loss="log_loss"), marks=pytest.mark.full)],
    ids=str,
)
def test_a_pipeline_with_a_fitted_scaler(estimator):
    """The node's loss and metrics are of scaled inputs; the pipeline predicts from raw ones."""
    scaler = StandardScaler().fit([MEAN - DEVIATION, MEAN + DEVIATION])
    model = make_pipeline(scaler, estimator)
    given = {"batch_size": None, "epochs": 1, "validation": (X[:9], TWO[:9])}
    auc = {"auc": fs.metrics.AUC(), "f1": fs.metrics.F1()}
    problem = SklearnOracle(model, X, TWO, **given, metrics=auc)
    by_hand = SklearnOracle(estimator, (X - MEAN) / DEVIATION, TWO, **given | {"validation": None})
    params = jax.tree.map(lambda p: RNG.standard_normal(p.shape), problem.params)
    assert full(problem, params)[0] == pytest.approx(full(by_hand, params)[0], rel=1e-12)
    fitted = assign(model, params, problem.classes)
    assert fitted is model
    with jax.enable_x64(True):
        found = problem.measure(jax.tree.map(jnp.asarray, params), problem.metrics)
    columns = EvaluationResult(0, 0, tuple(problem.metrics), {0: found}, {}).columns()
    for part, rows in (("train", slice(None)), ("validation", slice(9))):
        y = (TWO[rows] != problem.classes[0]).astype(int)
        score, said = fitted.decision_function(X[rows]), fitted.predict(X[rows]) != problem.classes[0]
        assert columns[f"{part}_accuracy"] == pytest.approx(fitted.score(X[rows], TWO[rows]))
        assert columns[f"{part}_f1"] == pytest.approx(theirs.f1_score(y, said))
        apart = abs(columns[f"{part}_auc"] - theirs.roc_auc_score(y, score))
        assert apart <= columns[f"{part}_auc_error"] + 1e-12


@pytest.mark.full
def test_metrics_count_by_the_weights_of_examples():
    auc = {"auc": fs.metrics.AUC(weighted=True)}
    given = {"batch_size": None, "epochs": 1, "sample_weight": EXAMPLE_WEIGHTS, "metrics": auc}
    problem = SklearnOracle(LogisticRegression(), X, TWO, **given, validation=(X[:5], TWO[:5]))
    params = jax.tree.map(lambda p: RNG.standard_normal(p.shape), problem.params)
    found = problem.measure(params, ("auc",))
    value, bound = np.asarray(
        found["train"].sums["auc"].metric.of_sums(jnp.asarray(found["train"].sums["auc"].values))
    )
    score = X @ params["coef_"][0] + params["intercept_"]
    exact = theirs.roc_auc_score(TWO == "well", score, sample_weight=EXAMPLE_WEIGHTS)
    assert abs(value - exact) <= bound + 1e-6
    assert found["validation"].sums["auc"].values.sum() == 5


@pytest.mark.parametrize(
    ("estimator", "options", "message"),
    [
        (LogisticRegression(class_weight="balanced"), {}, "'balanced'.* gives different weights at each site"),
        (LogisticRegression(class_weight={"dead": 2}), {}, "class_weight has label 'dead', which is not among classes"),
        (LogisticRegression(class_weight={"ill": -2}), {}, "class_weights = .* must be a number for each class"),
        (LogisticRegression(), {"sample_weight": -EXAMPLE_WEIGHTS}, "a finite number of at least 0 for each of 90"),
        (LogisticRegression(), {"sample_weight": [1.0]}, r"sample_weight of shape \(1,\) must be"),
        (make_pipeline(StandardScaler(), LogisticRegression()), {}, "step 'standardscaler' .* is not fitted: every"),
        (make_pipeline(StandardScaler()), {}, "is not supported"),
    ],
    ids=lambda value: "",
)  # fmt: skip
def test_what_a_node_does_not_take(estimator, options, message):
    with pytest.raises(fs.InvalidInput, match=message):
        SklearnOracle(estimator, X, TWO, batch_size=None, epochs=1, **options)


@pytest.mark.full_rows("weights2-False")
@pytest.mark.parametrize(
    ("weights", "says"), [(None, False), ({"ill": 2.0}, True), ({"ill": 2.0, "well": 2.0}, False)]
)
def test_weights_that_distort_probabilities_are_noted(weights, says):
    """In the record of a federation and of a simulation."""
    y = np.array(["ill", "well"] * 5)
    oracle = SklearnOracle(
        LogisticRegression(C=np.inf, class_weight=weights), np.eye(10), y, batch_size=None, epochs=1
    )
    assert any("recalibrate" in note for note in oracle.notes) == says
    given = None if weights is None else tuple(weights.get(label, 1.0) for label in ("ill", "well"))
    loss = fs.tasks.Logistic(lambda w, x: x @ w, class_weights=given)
    task = fs.Task.from_arrays(loss, np.zeros(10), [(np.eye(10), np.arange(10) % 2)])
    assert any("recalibrate" in note for note in fs.run(fs.FedAvg(0.1), task, rounds=1).notes) == says
