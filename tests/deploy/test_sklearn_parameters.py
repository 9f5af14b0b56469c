"""Every parameter of every estimator that SklearnOracle takes is used, named in a note, or refused."""

from __future__ import annotations

import numpy as np
import pytest

import fedsolve as fs
from deploy_small import POPULATION, deploy

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn import linear_model
from sklearn.svm import LinearSVC

from fedsolve.deploy.flower import client_app
from fedsolve.deploy.oracles.sklearn import SklearnOracle, parameters

X = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
Y = np.arange(12) % 2
ESTIMATORS = {
    c.__name__: c
    for c in (
        linear_model.LogisticRegression,
        linear_model.SGDClassifier,
        LinearSVC,
        linear_model.LinearRegression,
        linear_model.Ridge,
        linear_model.SGDRegressor,
    )
}
USED, PENALTY, IDLE, REFUSED = "used", "penalty", "idle", "refused"
VALUES = {  # a value that is no default, and what becomes of it
    "C": (1e-6, PENALTY), "alpha": (1e6, PENALTY), "l1_ratio": (0.5, PENALTY), "penalty": ("l1", PENALTY),
    "class_weight": ({0: 1.0, 1: 5.0}, USED), "fit_intercept": (False, USED), "loss": (None, USED),
    "average": (True, REFUSED), "early_stopping": (True, REFUSED), "positive": (True, REFUSED),
    "multi_class": ("crammer_singer", REFUSED),
    "copy_X": (False, IDLE), "dual": (True, IDLE), "epsilon": (0.2, IDLE), "eta0": (0.5, IDLE),
    "intercept_scaling": (2.0, IDLE), "learning_rate": ("constant", IDLE), "max_iter": (7, IDLE),
    "n_iter_no_change": (9, IDLE), "n_jobs": (2, IDLE), "power_t": (0.1, IDLE), "random_state": (0, IDLE),
    "shuffle": (False, IDLE), "solver": ("saga", IDLE), "tol": (0.5, IDLE), "validation_fraction": (0.3, IDLE),
    "verbose": (1, IDLE), "warm_start": (True, IDLE),
}  # fmt: skip
LOSSES = {"SGDClassifier": "log_loss", "LinearSVC": "hinge"}
CELLS = [(name, parameter) for name, kind in ESTIMATORS.items() for parameter in kind().get_params()]


def oracle(estimator):
    return SklearnOracle(estimator, X, Y, batch_size=None, epochs=1)


def loss(problem):
    params = {name: np.full_like(p, 0.7) for name, p in problem.params.items()}
    return float(problem._work.loss(params, problem._examples))


@pytest.mark.full_rows(
    "LogisticRegression-C",
    "LogisticRegression-class_weight",
    "LogisticRegression-fit_intercept",
    "SGDClassifier-class_weight",
    "LinearSVC-class_weight",
)
@pytest.mark.parametrize(("name", "parameter"), CELLS)
def test_no_parameter_is_dropped_in_silence(name, parameter):
    value, kind = VALUES[parameter]
    value = LOSSES.get(name, "squared_error") if parameter == "loss" else value
    make = ESTIMATORS[name]
    if kind == REFUSED:
        with pytest.raises(fs.InvalidInput, match=rf"{name}\({parameter}=.*\) is not supported"):
            oracle(make(**{parameter: value}))
        return
    plain, changed = oracle(make()), oracle(make(**{parameter: value}))
    if kind == USED and name != "SGDRegressor":
        assert loss(changed) != loss(plain)
    if kind == USED:
        assert changed.notes == plain.notes
    if kind == PENALTY:
        assert f"{parameter} = {value!r}" in changed.notes[0]
    if kind == IDLE:
        assert changed.notes == (
            *plain.notes,
            f"the solver of {name} does not run: {parameter} = {value!r} has no effect",
        )


@pytest.mark.parametrize(
    "estimator",
    [
        linear_model.LogisticRegression(C=np.inf),
        linear_model.SGDClassifier(penalty=None),
        linear_model.SGDRegressor(alpha=0.0),
        linear_model.Ridge(alpha=0.0),
        linear_model.LinearRegression(),
    ],
)
def test_nothing_is_said_where_nothing_is_dropped(estimator):
    assert oracle(estimator).notes == ()


def test_an_estimator_with_more_parameters_is_refused():
    with pytest.raises(fs.InvalidInput, match="parameters that nothing here would use, Cs, cv"):
        oracle(linear_model.LogisticRegressionCV())


def test_what_clients_note_is_in_the_runs_record(tmp_path):
    """Once, whoever says it."""
    estimator = linear_model.LogisticRegression(C=1e-6)
    app = client_app(lambda node: oracle(estimator))
    clients = list(range(POPULATION))
    _, history, _ = deploy(
        fs.FedAvg(0.1), tmp_path, app=app, params=parameters(estimator, 3, [0, 1]), clients=clients, rounds=1
    )
    assert [note for note in history.notes if "penalty of its own (C = 1e-06" in note] == [
        f"client 0: {oracle(estimator).notes[0]}"
    ]
