"""Linear models of scikit-learn: its losses, its minimisers, and estimators that predict afterwards."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle_small import key, local_work

import fedsolve as fs

sklearn = pytest.importorskip("sklearn")

from sklearn.linear_model import (  # noqa: E402
    LinearRegression,
    LogisticRegression,
    Perceptron,
    Ridge,
    SGDClassifier,
    SGDRegressor,
)
from sklearn.metrics import hinge_loss, log_loss, mean_squared_error  # noqa: E402
from sklearn.svm import LinearSVC  # noqa: E402

from fedsolve.deploy.oracles.sklearn import SklearnOracle, assign  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 4))
TWO = np.where(X[:, 0] + RNG.standard_normal(60) > 0, "yes", "no")
THREE = np.array(["b", "c", "a"])[np.argmax(X[:, :3] + RNG.standard_normal((60, 3)), axis=1)]
NUMBERS = X @ np.array([1.0, -2.0, 0.5, 0.0]) + 3 + 0.1 * RNG.standard_normal(60)


def against_the_rest(loss):
    """The sum over the classes of a loss of two classes, from scikit-learn's own function."""

    def total(y, scores, classes):
        scores = scores.reshape(len(y), -1)
        chosen = classes[1:] if scores.shape[1] == 1 else classes
        return sum(loss(y == c, scores[:, i]) for i, c in enumerate(chosen))

    return total


def sigmoid(m):
    return 1 / (1 + np.exp(-m))


def one_log_loss(own, m):
    return log_loss(own, sigmoid(m), labels=[False, True])


def softmax_log_loss(y, scores, classes):
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    return log_loss(y, p, labels=classes)


CLASSIFIERS = {
    "logistic, two": (LogisticRegression(), TWO, against_the_rest(one_log_loss)),
    "logistic, three": (LogisticRegression(), THREE, softmax_log_loss),
    "sgd log_loss, three": (SGDClassifier(loss="log_loss"), THREE, against_the_rest(one_log_loss)),
    "sgd hinge, two": (SGDClassifier(), TWO, against_the_rest(hinge_loss)),
    "svc hinge, three": (LinearSVC(loss="hinge"), THREE, against_the_rest(hinge_loss)),
    "svc, three": (
        LinearSVC(),
        THREE,
        against_the_rest(lambda own, m: np.mean(np.maximum(0, 1 - np.where(own, m, -m)) ** 2)),
    ),
}
REGRESSORS = {"least squares": LinearRegression(), "ridge": Ridge(), "sgd": SGDRegressor()}


def oracle(estimator, y, **options):
    problem = SklearnOracle(estimator, X, y, batch_size=None, epochs=1, **options)
    draw = np.random.default_rng(1)
    params = jax.tree.map(lambda p: draw.standard_normal(p.shape), problem.params)
    return problem, problem.begin(key(), 0, "float64"), params


def slope(function, params, step=1e-6):
    """Central differences."""
    found = {}
    for name, value in params.items():
        g = np.zeros(value.shape)
        for i in np.ndindex(value.shape):
            ends = []
            for sign in (1, -1):
                moved = value.copy()
                moved[i] += sign * step
                ends.append(float(function(params | {name: moved})))
            g[i] = (ends[0] - ends[1]) / (2 * step)
        found[name] = g
    return found


@pytest.mark.gate("logistic, two")
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_losses_of_classifiers_are_scikit_learns(name):
    """From the decision function of the estimator that the parameters were assigned to."""
    estimator, y, expected = CLASSIFIERS[name]
    with jax.enable_x64(True):
        problem, one, params = oracle(estimator, y)
        fitted = assign(sklearn.base.clone(estimator), params, problem.classes)

        def theirs(params):
            scores = assign(fitted, params, problem.classes).decision_function(X)
            return expected(y, scores, problem.classes)

        value, gradient = jax.jit(lambda w: one.full(w))(params)
        np.testing.assert_allclose(value, theirs(params), rtol=1e-12)
        numeric = slope(theirs, params)
        for leaf in params:
            np.testing.assert_allclose(gradient[leaf], numeric[leaf], atol=1e-6)
        outputs = 1 if len(problem.classes) == 2 else 3
        assert gradient["coef_"].shape == (outputs, 4)


@pytest.mark.parametrize("name", REGRESSORS)
def test_losses_of_regressors_are_scikit_learns(name):
    with jax.enable_x64(True):
        _, one, params = oracle(REGRESSORS[name], NUMBERS)
        fitted = assign(sklearn.base.clone(REGRESSORS[name]), params)
        value, gradient = jax.jit(lambda w: one.full(w))(params)
        np.testing.assert_allclose(value, mean_squared_error(NUMBERS, fitted.predict(X)) / 2, rtol=1e-12)
        residual = fitted.predict(X) - NUMBERS
        np.testing.assert_allclose(gradient["coef_"][0], X.T @ residual / 60, rtol=1e-10)
        np.testing.assert_allclose(gradient["intercept_"][0], residual.mean(), rtol=1e-10)


def trained(estimator, y, rate, rounds=1):
    problem = SklearnOracle(estimator, X, y, batch_size=None, local_steps=2000)
    message, _ = local_work(fs.FedAvg(rate), problem, problem.params, "float64")
    return problem, message.delta


@pytest.mark.full
def test_training_finds_what_scikit_learn_finds():
    """Least squares in closed form; logistic regression without penalty; with the same predictions."""
    with jax.enable_x64(True):
        _, found = trained(LinearRegression(), NUMBERS, 0.5)
        own, ours = LinearRegression().fit(X, NUMBERS), assign(LinearRegression(), found)
        np.testing.assert_allclose(ours.coef_, own.coef_, rtol=1e-8)
        np.testing.assert_allclose(ours.predict(X), own.predict(X), rtol=1e-8)
        assert isinstance(ours.intercept_, float)
        problem, found = trained(LogisticRegression(), THREE, 1.0)
        own = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000).fit(X, THREE)
        ours = assign(LogisticRegression(), found, problem.classes)
        np.testing.assert_allclose(ours.predict_proba(X), own.predict_proba(X), atol=1e-3)
        assert (ours.predict(X) == own.predict(X)).all()
        assert ours.score(X, THREE) == own.score(X, THREE)


@pytest.mark.full
def test_no_intercept():
    problem = SklearnOracle(Ridge(fit_intercept=False), X, NUMBERS, batch_size=8, epochs=1)
    assert list(problem.params) == ["coef_"]
    fitted = assign(Ridge(fit_intercept=False), {"coef_": np.ones((1, 4))})
    np.testing.assert_allclose(fitted.predict(X), X.sum(axis=1))


def test_a_client_without_some_classes():
    """Its labels keep their places; the order in which classes are given does not matter."""
    some = THREE != "b"
    problem = SklearnOracle(
        LogisticRegression(), X[some], THREE[some], batch_size=None, epochs=1, classes=["c", "a", "b"]
    )
    assert problem.classes.tolist() == ["a", "b", "c"]
    assert problem.params["coef_"].shape == (3, 4)
    params = {"coef_": np.zeros((3, 4)), "intercept_": np.log([0.5, 0.3, 0.2])}
    value = jax.jit(lambda w: problem.begin(key(), 0, "float32").full(w)[0])(params)
    share = np.mean(THREE[some] == "a")
    assert abs(float(value) + share * np.log(0.5) + (1 - share) * np.log(0.2)) < 1e-6


def test_minibatches_of_uneven_size_are_means():
    """60 rows in batches of 25: the last has 10."""
    problem = SklearnOracle(SGDRegressor(), X, NUMBERS, batch_size=25, epochs=1)
    one = problem.begin(key(), 0, "float32")
    loss = jax.jit(lambda k: one.loss(problem.params, k))
    losses = [float(loss(jnp.int32(k))) for k in range(3)]
    assert int(one.steps) == 3
    mean = np.average(losses, weights=[25, 25, 10])
    np.testing.assert_allclose(mean, np.mean(NUMBERS**2) / 2, rtol=1e-5)


def make(estimator=None, x=X, y=TWO, **options):
    estimator = LogisticRegression() if estimator is None else estimator
    return lambda: SklearnOracle(estimator, x, y, **({"batch_size": 8, "epochs": 1} | options))


BAD = {
    "estimator": (
        make(Perceptron(), X, TWO),
        r"Perceptron\(\) is not supported; these are: LogisticRegression",
    ),
    "no estimator": (make("ridge"), "'ridge' is not supported"),
    "loss": (make(SGDClassifier(loss="modified_huber")), r"SGDClassifier\(loss='modified_huber'\) is not"),
    "regression loss": (make(SGDRegressor(loss="huber"), y=NUMBERS), r"SGDRegressor\(loss='huber'\)"),
    "weights": (make(LogisticRegression(class_weight="balanced")), "class_weight='balanced'"),
    "positive": (make(Ridge(positive=True), y=NUMBERS), "positive=True"),
    "label": (make(classes=["no", "maybe"]), r"label 'yes' in row \d+ of y is not among classes"),
    "one class": (make(y=np.zeros(60)), r"only one class among"),
    "lengths": (make(y=TWO[:-1]), r"x has shape \(60, 4\), y \(59,\)"),
    "flat": (make(x=X[:, 0]), r"x has shape \(60,\)"),
    "empty": (make(x=X[:0], y=TWO[:0], classes=["no", "yes"]), "no examples"),
    "nan": (make(x=np.where(X[3] == X, np.nan, X)), "non-finite number in row 3"),
    "both": (make(local_steps=2), "exactly one"),
    "no classes": (lambda: assign(LogisticRegression(), {}), "needs classes"),
    "shape": (
        lambda: assign(Ridge(), {"coef_": np.zeros((2, 3)), "intercept_": np.zeros(1)}),
        r"parameter 'coef_' has shape \(2, 3\), the model here has \(1, 3\)",
    ),
    "missing": (lambda: assign(Ridge(), {"coef_": np.zeros((1, 3))}), "parameter 'intercept_' is missing"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    act, says = BAD[name]
    with pytest.raises(fs.InvalidInput, match=says):
        act()


def test_sparse_inputs_are_refused():
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(fs.InvalidInput, match=r"sparse matrix: give a dense array"):
        make(x=sparse.csr_matrix(X))()


@pytest.mark.full
@pytest.mark.parametrize(
    ("estimator", "y"),
    [pytest.param(LogisticRegression(), TWO, marks=pytest.mark.full), (LinearSVC(), THREE)],
)
def test_classifiers_are_measured_as_scikit_learn_scores_them(estimator, y):
    """Accuracy and loss on what is trained on and on what is held out; a regressor has its loss alone."""
    rest = {"classes": np.unique(y), "validation": (X[:9], y[:9])}
    with jax.enable_x64(True):
        problem, one, params = oracle(estimator, y, **rest)
        found = problem.measure(params, ("loss", "accuracy"))
        fitted = assign(sklearn.base.clone(estimator), params, problem.classes)
        assert found["train"].means["accuracy"] == pytest.approx(fitted.score(X, y), rel=1e-12)
        assert found["validation"].means["accuracy"] == pytest.approx(fitted.score(X[:9], y[:9]), rel=1e-12)
        wanted = float(jax.jit(lambda w: one.full(w)[0])(params))
        assert found["train"].means["loss"] == pytest.approx(wanted, rel=1e-12)
        assert (found["train"].examples, found["validation"].examples) == (60, 9)
        regressor, _, params = oracle(Ridge(), NUMBERS)
        assert regressor.metrics == ("loss",)
        assert list(regressor.measure(params, ("loss",))) == ["train"]
