"""One client's data behind a linear model of scikit-learn."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from sklearn import linear_model, svm
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from fedsolve.core.errors import (
    ConfidentialError,
    InvalidInput,
    check_integer,
    check_same,
    shown,
    shown_label,
)
from fedsolve.core.trees import as_array, columns_of
from fedsolve.data.columns import check_column, check_same_columns
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.tasks.losses.weights import DISTORTED, check_class_weights
from fedsolve.tasks.sum_metrics import SumMetric
from fedsolve.tasks.task import Examples

# The losses that scikit-learn's linear models stand for, of `coef_ x + intercept_`.

ExampleLoss = Callable[[Array, Array, Array | None], Array]
"""(outputs (n, outputs), targets (n,), weights of classes or None) -> loss of each example, shape (n,)."""


class WeightedExamples(NamedTuple):
    """Examples with a weight each: x (n, features), y (n,), weight (n,)."""

    x: Any
    y: Any
    weight: Any


def _of_margins(loss: Callable[[Array], Array]) -> ExampleLoss:
    # A loss of s m for each output m, s = 1 for the label's class and -1 else, summed.
    #
    # With an output for each class, a class's weight counts in its own output's problem alone, as in scikit-learn's one
    # against the rest.
    def each(outputs: Array, y: Array, weights: Array | None) -> Array:
        own = loss(jnp.where(_label_mask(outputs, y), outputs, -outputs))
        if weights is not None:
            several = outputs.shape[1] > 1
            own = own * (jnp.where(_label_mask(outputs, y), weights, 1) if several else weights[y][:, None])
        return jnp.sum(own, axis=1)

    return each


logistic = _of_margins(lambda m: jax.nn.softplus(-m))
"""log(1 + exp(-s m)), in nats."""
hinge = _of_margins(lambda m: jnp.maximum(0, 1 - m))
"""max(0, 1 - s m)."""
squared_hinge = _of_margins(lambda m: jnp.square(jnp.maximum(0, 1 - m)))


def multinomial(outputs: Array, y: Array, weights: Array | None) -> Array:
    """-log softmax(outputs)[y], in nats, times the class's weight."""
    own = jax.nn.logsumexp(outputs, axis=1) - jnp.take_along_axis(outputs, y[:, None], axis=1)[:, 0]
    return own if weights is None else own * weights[y]


def squared(outputs: Array, y: Array, weights: Array | None) -> Array:
    return 0.5 * jnp.square(outputs[:, 0] - y)


def _label_mask(outputs: Array, y: Array) -> Array:
    # Which output is the label's; of two classes there is one output, of the second.
    return y[:, None] == (jnp.arange(outputs.shape[1]) if outputs.shape[1] > 1 else 1)


@dataclass(frozen=True)
class LinearLoss:
    """The mean over a batch of a loss of coef_ x + intercept_, each example's times its weight and its class's."""

    # Classes without `class_weights` (None) weigh 1.

    example_loss: ExampleLoss
    class_weights: tuple[float, ...] | None = None

    def each(self, params: dict[str, Array], batch: Examples | WeightedExamples) -> Array:
        outputs = linear(params, batch.x)
        weights = None if self.class_weights is None else jnp.asarray(self.class_weights, outputs.dtype)
        own = self.example_loss(outputs, batch.y, weights)
        return own * batch.weight if isinstance(batch, WeightedExamples) else own

    def __call__(self, params: dict[str, Array], batch: Examples | WeightedExamples) -> Array:
        return jnp.mean(self.each(params, batch))


def accuracy(params: dict[str, Array], batch: Examples | WeightedExamples) -> Array:
    """Whether the class with the largest output (of two classes: the sign of the one output) is the label's, (n,)."""
    outputs = linear(params, batch.x)
    largest = jnp.argmax(outputs, axis=1) if outputs.shape[1] > 1 else outputs[:, 0] > 0
    return (largest == batch.y).astype(outputs.dtype)


def linear(params: dict[str, Array], x: Array) -> Array:
    """coef_ x + intercept_ of each example, shape (n, outputs)."""
    outputs = x @ params["coef_"].T
    return outputs + params["intercept_"] if "intercept_" in params else outputs


def kind_of(loss: ExampleLoss) -> str:
    return next(name for name, known in _KINDS.items() if known is loss)


_KINDS = {
    "logistic": logistic,
    "multinomial": multinomial,
    "hinge": hinge,
    "squared_hinge": squared_hinge,
    "squared": squared,
}
_REGRESSORS = (linear_model.LinearRegression, linear_model.Ridge, linear_model.SGDRegressor)
_SGD = {"log_loss": logistic, "hinge": hinge, "squared_hinge": squared_hinge}
SUPPORTED = (
    "LogisticRegression, SGDClassifier(loss='log_loss', 'hinge' or 'squared_hinge'), LinearSVC, LinearRegression, "
    "Ridge, SGDRegressor(loss='squared_error')"
)


def is_classifier(estimator: Any) -> bool:
    """Whether an estimator's targets are labels; `InvalidInput` if it is not supported."""
    if isinstance(estimator, linear_model.LogisticRegression | linear_model.SGDClassifier | svm.LinearSVC):
        return True
    if isinstance(estimator, _REGRESSORS):
        return False
    raise InvalidInput(f"estimator = {estimator!r} is not supported; these are: {SUPPORTED}")


def loss_of(estimator: Any, outputs: int) -> ExampleLoss:
    if isinstance(estimator, linear_model.LogisticRegression):
        return multinomial if outputs > 1 else logistic
    kind = getattr(estimator, "loss", "squared_error")
    if isinstance(estimator, _REGRESSORS) and kind == "squared_error":
        return squared
    if isinstance(estimator, linear_model.SGDClassifier | svm.LinearSVC) and kind in _SGD:
        return _SGD[kind]
    raise InvalidInput(f"{type(estimator).__name__}(loss={kind!r}) is not supported; these are: {SUPPORTED}")


USED = frozenset({"class_weight", "fit_intercept", "loss"})
"""What the loss and the parameters are made of (`loss` and class weights are checked there)."""

PENALTY = ("penalty", "C", "alpha", "l1_ratio")
"""The estimator's own penalty, which is noted wherever it would act: a method brings its own."""

SOLVER = frozenset((
    "copy_X", "dual", "epsilon", "eta0", "intercept_scaling", "learning_rate", "max_iter", "n_iter_no_change", "n_jobs",
    "power_t", "random_state", "shuffle", "solver", "tol", "validation_fraction", "verbose", "warm_start",
))  # fmt: skip
"""How scikit-learn's own solver goes on, which does not run: noted where it is not the default."""

REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = MappingProxyType(
    {
        "average": ((False,), "what a run ends with is the model of its last round"),
        "early_stopping": ((False,), "the server ends a run, by callbacks=[fs.EarlyStopping(...)]"),
        "multi_class": (("ovr",), "take LogisticRegression for one loss of all classes"),
        "positive": ((False,), "a method may have constraints"),
    }
)
"""What would make another model: the values that are taken, and what there is instead."""


def parameter_notes(estimator: Any) -> tuple[str, ...]:
    """What is to be said of an estimator's parameters: those that play no part."""
    name, given = type(estimator).__name__, estimator.get_params(deep=False)
    defaults = {p.name: p.default for p in inspect.signature(type(estimator).__init__).parameters.values()}
    unknown = sorted(given.keys() - USED - SOLVER - REFUSED.keys() - set(PENALTY))
    if unknown:
        raise InvalidInput(
            f"{name} has parameters that nothing here would use, {', '.join(unknown)}: give one of scikit-learn's "
            "estimators without them"
        )
    for parameter, (taken, instead) in REFUSED.items():
        if parameter in given and given[parameter] not in taken:
            raise InvalidInput(
                f"{name}({parameter}={shown(given[parameter])}) is not supported: leave {parameter} out; {instead}"
            )
    notes = []
    if _penalises(given):
        own = _assignments(given, [p for p in PENALTY if p in given and given[p] not in (None, "deprecated")])
        notes.append(
            f"{name} has a penalty of its own ({own}), which is not part of what is minimised: a method brings one, "
            "such as FedDualAvg(L1(...)) or weight decay"
        )
    idle = [p for p in sorted(SOLVER & given.keys()) if given[p] != defaults[p]]
    if idle:
        notes.append(f"the solver of {name} does not run: {_assignments(given, idle)} has no effect")
    return tuple(notes)


def _penalises(given: Mapping[str, Any]) -> bool:
    # Whether the estimator's penalty would act.
    if given.get("penalty", "l2") is None:
        return False
    if "C" in given:
        return not math.isinf(given["C"])
    return "alpha" in given and bool(np.any(np.asarray(given["alpha"]) != 0))


def _assignments(given: Mapping[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name} = {shown(given[name])}" for name in names)


class SklearnOracle(JaxOracle):
    """Oracle of a linear model of scikit-learn, which a federated method fits in place of its own solver.

    The loss is the mean of the estimator's own: logistic (`LogisticRegression`: multinomial for more than two
    classes; `SGDClassifier(loss="log_loss")`: one against the rest, summed), hinge (`SGDClassifier`, `LinearSVC`)
    and its square, or half the squared error (`LinearRegression`, `Ridge`, `SGDRegressor`). The estimator's penalty
    (`C`, `alpha`, `l1_ratio`) and solver are no part of it, as `notes` and the run's record say: a federated method
    brings its own, such as `FedDualAvg(L1(...))` or weight decay. Minibatches are those of `JaxOracle`. Weights
    multiply the losses of examples, as in scikit-learn: `class_weight` given as numbers, {label: weight}, and
    `sample_weight`. The mean is over the number of examples, so clients together minimise what scikit-learn minimises
    on all their examples.

    The estimator may be a `Pipeline` whose steps before the last are fitted already, such as a `StandardScaler` with
    constants that all sites share: they are applied to x once, and neither fitted nor changed.

    Clients measure `loss`, of classifiers `accuracy`, and further metrics that are given.

    `params` are {"coef_": (outputs, features), "intercept_": (outputs,)}, all 0, with an output for each class, one
    for two classes or a regression; without "intercept_" if the estimator has `fit_intercept=False`.

    Args:
        estimator: says which loss; it is neither fitted nor changed.
        x: inputs, shape (examples, features), dense and finite; converted to float32 or, if they are, float64. Of a
            pipeline what its first step takes.
        y: labels of any type, or finite numbers for a regression, shape (examples,).
        batch_size: examples of a minibatch, 1 .. examples; None sees all of them in each step.
        epochs: passes over the examples in a round, >= 1; or
        local_steps: local steps of a round, >= 1; exactly one of the two.
        classes: all labels of the federation, since a client may have only some; by default those in y.
        validation: (x, y) of examples that the client holds out, or (x, y, sample_weight); None for none.
        sample_weight: of each example, at least 0, shape (examples,); None for 1.
        metrics: further ones by name, of `fs.metrics` or as `JaxOracle` takes them.

    Raises:
        InvalidInput: another estimator or loss, a parameter that would make another model (`positive`,
            `early_stopping`, `average`, `multi_class`), labels outside `classes`, fewer than two classes, x and y that
            do not fit, no example, numbers that are not finite, weights that are no numbers of at least 0, a pipeline
            with a step that is not fitted.
    """

    framework = "scikit-learn"

    def __init__(
        self,
        estimator: Any,
        x: Any,
        y: Any,
        *,
        batch_size: int | None,
        epochs: int | None = None,
        local_steps: int | None = None,
        classes: Sequence[Any] | np.ndarray | None = None,
        validation: tuple[Any, Any] | tuple[Any, Any, Any] | None = None,
        sample_weight: Any = None,
        metrics: Mapping[str, Callable[..., Any] | SumMetric] | None = None,
    ) -> None:
        constants = _constants(estimator) | _names(x)
        transform, estimator = _transform_of(estimator), final_step(estimator)
        outputs, labels = 1, None
        is_one_of_labels = is_classifier(estimator)
        self.notes = parameter_notes(estimator)
        if is_one_of_labels:
            labels = self.classes = check_classes(y if classes is None else classes)
            outputs = _outputs(labels)
            constants["classes"] = np.array(list(map(str, labels)))
        examples = _examples(_inputs("x", transform(x)), y, labels, sample_weight)
        held_out = None
        if validation is not None:
            inputs, targets, *weights = validation
            ones = None if sample_weight is None else np.ones(len(targets))
            inputs = _inputs("validation x", transform(_in_order("validation x", inputs, _labels(x), "x")))
            held_out = _examples(inputs, targets, labels, *(weights or [ones]))
        params = parameters(estimator, examples.x.shape[1], labels)
        loss = LinearLoss(loss_of(estimator, outputs), _class_weights(estimator, labels))
        constants["loss"] = np.array(kind_of(loss.example_loss))
        if loss.class_weights is not None:
            constants["class_weight"] = np.array(loss.class_weights)
            self.notes += (DISTORTED,) if len(set(loss.class_weights)) > 1 else ()
        super().__init__(
            loss,
            params,
            examples,
            batch_size=batch_size,
            epochs=epochs,
            local_steps=local_steps,
            metrics=({} if labels is None else {"accuracy": accuracy}) | dict(metrics or {}),
            predict=linear,
            validation=held_out,
        )
        self.constants = constants


def _in_order(name: str, x: Any, wanted: list[Any], of: str) -> Any:
    # Inputs, of a table with the columns in the order of the names; `InvalidInput` if it has others.
    own = _labels(x)
    if not own or not wanted or own == wanted:
        return x
    columns, known = ((tuple(map(str, labels)),) for labels in (own, wanted))
    check_same_columns(name, columns, known, of)
    return x.select(wanted) if hasattr(x, "select") else x[wanted]


def _labels(x: Any) -> list[Any]:
    # The names of a table's columns; none of what is no table.
    return [label for label, _ in columns_of(x) or ()]


def _inputs(name: str, x: Any) -> np.ndarray:
    if not hasattr(x, "__array__") and hasattr(x, "toarray"):
        raise InvalidInput(f"{name} is a sparse matrix: give a dense array, x.toarray()")
    array = as_array(name, x)
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"{name} has type {array.dtype}: give real numbers")
    return array


def _examples(
    x: np.ndarray, y: Any, labels: np.ndarray | None, weight: Any = None
) -> Examples | WeightedExamples:
    # Inputs and targets as the loss takes them, labels by number, other targets as they are; weights beside them.
    y = as_array("y", y) if labels is None else check_column("y", y) if np.size(y) else np.asarray(y)
    if x.ndim != 2 or y.ndim != 1 or len(x) != len(y):
        raise InvalidInput(
            f"x has shape {x.shape}, y {y.shape}: they must be (examples, features) and (examples,)"
        )
    y = y.astype(np.result_type(y.dtype, np.float32)) if labels is None else numbered(y, labels)
    x = x.astype(np.result_type(x.dtype, np.float32))
    if weight is None:
        return Examples(x, y)
    weight = as_array("sample_weight", weight)
    if weight.shape != y.shape or not np.isfinite(weight).all() or (weight < 0).any() or not weight.any():
        raise InvalidInput(
            f"sample_weight of shape {weight.shape} must be a finite number of at least 0 for each of {len(y)} "
            "examples, not all 0"
        )
    return WeightedExamples(x, y, weight.astype(x.dtype))


def final_step(estimator: Any) -> Any:
    return estimator.steps[-1][1] if isinstance(estimator, Pipeline) else estimator


def _constants(estimator: Any) -> dict[str, np.ndarray]:
    # What a pipeline's steps before the last make of inputs: their parameters, and what they were fitted to.
    steps = estimator.steps[:-1] if isinstance(estimator, Pipeline) else []
    return {name: value for step, part in steps for name, value in _parts(step, part)}


_NO_MATTER = ("copy", "n_jobs", "verbose", "feature_names_in_")  # names of columns are compared apart


def _parts(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    # Arrays, numbers and words in a step, those of estimators and lists within it too; not on how many rows.
    if hasattr(value, "get_params"):
        own = {k: v for k, v in vars(value).items() if k.endswith("_") and not k.startswith(("_", "n_"))}
        for key, part in sorted((value.get_params(deep=False) | own).items()):
            if key not in _NO_MATTER:
                yield from _parts(f"{name}.{key}", part)
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            yield from _parts(f"{name}.{i}", part)
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        yield name, value
    elif isinstance(value, np.ndarray):
        yield name, np.array([str(x) for x in value.ravel()])
    elif isinstance(value, int | float | str | np.generic):
        yield name, np.array(str(value))


def _names(x: Any) -> dict[str, np.ndarray]:
    labels = _labels(x)
    return {"columns": np.array(list(map(str, labels)))} if labels else {}


def _transform_of(estimator: Any) -> Callable[[Any], Any]:
    # What a pipeline does to inputs before its last step.
    steps = estimator.steps[:-1] if isinstance(estimator, Pipeline) else []
    steps = [(name, step) for name, step in steps if step not in (None, "passthrough")]
    for name, step in steps:
        try:
            check_is_fitted(step)
        except NotFittedError:
            raise InvalidInput(
                f"step '{name}' of the pipeline, {step!r}, is not fitted: every site would scale in its own way; fit "
                "it to constants that all sites share, such as StandardScaler().fit([mean - deviation, mean + "
                "deviation])"
            ) from None

    def transform(x: Any) -> Any:
        for name, step in steps:
            fitted = [*getattr(step, "feature_names_in_", ())]
            x = _in_order("x", x, fitted, f"what step '{name}' of the pipeline was fitted on")
            try:
                x = step.transform(x)
            except (TypeError, ValueError) as error:  # whose words may have values of x
                raise InvalidInput(
                    f"step '{name}' of the pipeline does not take x ({type(error).__name__}): give the columns that it "
                    "was fitted on"
                ) from None
        return x

    return transform


def _class_weights(estimator: Any, labels: np.ndarray | None) -> tuple[float, ...] | None:
    given = getattr(estimator, "class_weight", None)
    if given is None or labels is None:
        return None
    if not isinstance(given, Mapping):
        raise InvalidInput(
            f"{type(estimator).__name__}(class_weight={given!r}) gives different weights at each site: give numbers "
            "that all sites share, such as class_weight={0: 1.0, 1: 9.0}"
        )
    known = labels.tolist()
    for label in given:
        if label not in known:
            raise InvalidInput(f"class_weight has label {label!r}, which is not among classes = {known}")
    return check_class_weights([given.get(label, 1.0) for label in known])


def parameters(
    estimator: Any, features: int, classes: Sequence[Any] | np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """The initial parameters of an estimator, all 0, for `server_app`, from shapes without data.

    Args:
        estimator: as given to `SklearnOracle`.
        features: inputs of its last step, at least 1.
        classes: of a classifier, all labels of the federation.

    Returns:
        {"coef_": (outputs, features), "intercept_": (outputs,)}, float32, as `SklearnOracle.params`.

    Raises:
        InvalidInput: an estimator that is not supported, fewer than two classes, or features that are none.
    """
    estimator = final_step(estimator)
    outputs = _outputs(check_classes(() if classes is None else classes)) if is_classifier(estimator) else 1
    shape = (outputs, check_integer("features", features, 1))
    params = {"coef_": np.zeros(shape, np.float32)}
    return params | ({"intercept_": np.zeros(outputs, np.float32)} if estimator.fit_intercept else {})


def assign(estimator: Any, params: dict[str, Any], classes: Sequence[Any] | np.ndarray | None = None) -> Any:
    """Set the parameters of an estimator, so that it is fitted and predicts; the estimator is returned.

    Args:
        estimator: as given to `SklearnOracle`; of a pipeline the last step becomes fitted.
        params: as trained.
        classes: of a classifier, all labels of the federation.

    Returns:
        The estimator that was given.

    Raises:
        InvalidInput: an estimator that is not supported, a classifier without classes, parameters of other shapes.
    """
    if not isinstance(params, Mapping):
        raise InvalidInput(f"params = {shown(params)} must be a dictionary of arrays, as trained")
    values = {name: np.array(v, np.float64) for name, v in params.items()}
    whole, estimator = estimator, final_step(estimator)
    outputs, labels, fitted = 1, None, estimator
    if is_classifier(estimator):
        if classes is None:
            raise InvalidInput(f"{type(estimator).__name__} needs classes = all labels, in any order")
        labels = check_classes(classes)
        outputs = _outputs(labels)
    features = values["coef_"].shape[-1] if "coef_" in values else 0
    wanted = {"coef_": (outputs, features)} | ({"intercept_": (outputs,)} if estimator.fit_intercept else {})
    check_same("parameter", values, wanted)
    coef, intercept = values["coef_"], values.get("intercept_", np.zeros(outputs))
    if labels is not None:
        fitted.classes_ = labels
    else:  # scikit-learn keeps a vector, and a number except in SGDRegressor
        coef = coef[0]
        intercept = intercept if isinstance(estimator, linear_model.SGDRegressor) else float(intercept[0])
    fitted.coef_, fitted.intercept_, fitted.n_features_in_ = coef, intercept, features
    return whole


def check_classes(labels: Any) -> np.ndarray:
    """The classes among some labels, sorted as scikit-learn has them; `InvalidInput` if fewer than two."""
    classes = np.unique(check_column("classes", labels)) if np.size(labels) else np.zeros(0)
    if classes.dtype == object and isinstance(classes[0], str):
        classes = classes.astype(str)  # as scikit-learn has them
    if len(classes) < 2:
        raise InvalidInput(
            "there is only one class among the labels: give classes = all labels of the federation"
        )
    return classes


def numbered(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    if len(labels) and (classes.dtype.kind in "OU") != (labels.dtype.kind in "OU"):
        raise InvalidInput(
            f"y has labels of type {labels.dtype}, and classes = {classes.tolist()} are of another: give both the same"
        )
    index = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    wrong = classes[index] != labels
    if wrong.any():
        row = int(np.argmax(wrong))
        none = f"in row {row} of y is not among classes = {classes.tolist()}"
        raise ConfidentialError(f"label {shown_label(labels.tolist()[row])} {none}", f"the label {none}")
    return index.astype(np.int32)


def _outputs(classes: np.ndarray) -> int:
    return 1 if len(classes) == 2 else len(classes)
