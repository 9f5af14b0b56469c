"""One client's data behind a linear model of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from sklearn import linear_model, svm

from fedsolve.core.checks import check_same
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.tasks.task import Examples

ExampleLoss = Callable[[Array, Array], Array]
"""(outputs (n, outputs), targets (n,)) -> loss of each example, shape (n,)."""


def _of_margins(loss: Callable[[Array], Array]) -> ExampleLoss:
    """A loss of s m for each output m, s = 1 for the label's class and -1 else, summed."""
    return lambda outputs, y: jnp.sum(loss(_signs(outputs, y) * outputs), axis=1)


logistic = _of_margins(lambda m: jax.nn.softplus(-m))
"""log(1 + exp(-s m)), in nats."""
hinge = _of_margins(lambda m: jnp.maximum(0, 1 - m))
"""max(0, 1 - s m)."""
squared_hinge = _of_margins(lambda m: jnp.square(jnp.maximum(0, 1 - m)))


def multinomial(outputs: Array, y: Array) -> Array:
    """-log softmax(outputs)[y], in nats."""
    return jax.nn.logsumexp(outputs, axis=1) - jnp.take_along_axis(outputs, y[:, None], axis=1)[:, 0]


def squared(outputs: Array, y: Array) -> Array:
    """(m - y)^2 / 2."""
    return 0.5 * jnp.square(outputs[:, 0] - y)


def _signs(outputs: Array, y: Array) -> Array:
    """1 for the label's output, else -1; of two classes there is one output, of the second."""
    is_own = y[:, None] == (jnp.arange(outputs.shape[1]) if outputs.shape[1] > 1 else 1)
    return jnp.where(is_own, 1, -1).astype(outputs.dtype)


@dataclass(frozen=True)
class LinearLoss:
    """The mean over a batch of a loss of  coef_ x + intercept_."""

    example_loss: ExampleLoss

    def each(self, params: dict[str, Array], batch: Examples) -> Array:
        """The loss of each example, shape (n,)."""
        return self.example_loss(_linear(params, batch.x), batch.y)

    def __call__(self, params: dict[str, Array], batch: Examples) -> Array:
        """The mean over the batch, shape ()."""
        return jnp.mean(self.each(params, batch))


def accuracy(params: dict[str, Array], batch: Examples) -> Array:
    """Whether the class with the largest output (of two classes: the sign of the one output) is the label's, (n,)."""
    outputs = _linear(params, batch.x)
    largest = jnp.argmax(outputs, axis=1) if outputs.shape[1] > 1 else outputs[:, 0] > 0
    return (largest == batch.y).astype(outputs.dtype)


def _linear(params: dict[str, Array], x: Array) -> Array:
    """coef_ x + intercept_ of each example, shape (n, outputs)."""
    outputs = x @ params["coef_"].T
    return outputs + params["intercept_"] if "intercept_" in params else outputs


class SklearnOracle(JaxOracle):
    """A client's data for a linear model of scikit-learn, fitted by a federated method instead of its own solver.

    The loss is the mean of the estimator's own: logistic (`LogisticRegression`: multinomial for more than two
    classes; `SGDClassifier(loss="log_loss")`: one against the rest, summed), hinge (`SGDClassifier`, `LinearSVC`)
    and its square, or half the squared error (`LinearRegression`, `Ridge`, `SGDRegressor`). The estimator's penalty
    (`C`, `alpha`, `l1_ratio`) and solver are no part of it: a federated method brings its own, such as
    `FedDualAvg(L1(...))` or weight decay. Minibatches are those of `JaxOracle`.

    Clients measure `loss`, and of classifiers `accuracy`.

    `params` are {"coef_": (outputs, features), "intercept_": (outputs,)}, all 0, with an output for each class, one
    for two classes or a regression; without "intercept_" if the estimator has `fit_intercept=False`.

    Args:
        estimator: says which loss; it is neither fitted nor changed.
        x: inputs, shape (examples, features), dense and finite; converted to float32 or, if they are, float64.
        y: labels of any type, or finite numbers for a regression, shape (examples,).
        batch_size: examples of a minibatch, 1 .. examples; None sees all of them in each step.
        epochs: passes over the examples in a round, >= 1; or
        local_steps: local steps of a round, >= 1; exactly one of the two.
        classes: all labels of the federation, since a client may have only some; by default those in y.
        validation: (x, y) of examples that the client holds out; None for none.

    Raises:
        InvalidInput: another estimator or loss, labels outside `classes`, fewer than two classes, x and y that do
            not fit, no example, numbers that are not finite.
    """

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
        validation: tuple[Any, Any] | None = None,
    ) -> None:
        outputs, labels = 1, None
        if is_classifier(estimator):
            labels = self.classes = check_classes(y if classes is None else classes)
            outputs = _outputs(labels)
        examples = _examples(x, y, labels)
        held_out = None if validation is None else _examples(*validation, labels)
        params: dict[str, np.ndarray] = {"coef_": np.zeros((outputs, examples.x.shape[1]), np.float32)}
        if estimator.fit_intercept:
            params["intercept_"] = np.zeros(outputs, np.float32)
        loss = LinearLoss(loss_of(estimator, outputs))
        super().__init__(
            loss,
            params,
            examples,
            batch_size=batch_size,
            epochs=epochs,
            local_steps=local_steps,
            metrics={} if labels is None else {"accuracy": accuracy},
            validation=held_out,
        )


def _examples(x: Any, y: Any, labels: np.ndarray | None) -> Examples:
    """Inputs and targets as the loss takes them: labels by number, other targets as they are."""
    if not hasattr(x, "__array__") and hasattr(x, "toarray"):
        raise InvalidInput("x is a sparse matrix: give a dense array, x.toarray()")
    x, y = np.asarray(x), np.asarray(y)
    if x.ndim != 2 or y.ndim != 1 or len(x) != len(y):
        raise InvalidInput(
            f"x has shape {x.shape}, y {y.shape}: they must be (examples, features) and (examples,)"
        )
    y = y.astype(np.result_type(y.dtype, np.float32)) if labels is None else numbered(y, labels)
    return Examples(x.astype(np.result_type(x.dtype, np.float32)), y)


def assign(estimator: Any, params: dict[str, Any], classes: Sequence[Any] | np.ndarray | None = None) -> Any:
    """Make an estimator a fitted one with these parameters: it predicts; returned for convenience.

    Args:
        estimator: as given to `SklearnOracle`.
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
    outputs, labels, fitted = 1, None, estimator
    if is_classifier(estimator):
        if classes is None:
            raise InvalidInput(f"{type(estimator).__name__} needs classes = all labels, in any order")
        labels = check_classes(classes)
        outputs = _outputs(labels)
    features = values["coef_"].shape[-1] if "coef_" in values else 0
    wanted = {"coef_": (outputs, features)} | ({"intercept_": (outputs,)} if estimator.fit_intercept else {})
    check_same("parameter", {name: v.shape for name, v in values.items()}, wanted)
    coef, intercept = values["coef_"], values.get("intercept_", np.zeros(outputs))
    if labels is not None:
        fitted.classes_ = labels
    else:  # scikit-learn keeps a vector, and a number except in SGDRegressor
        coef = coef[0]
        intercept = intercept if isinstance(estimator, linear_model.SGDRegressor) else float(intercept[0])
    fitted.coef_, fitted.intercept_, fitted.n_features_in_ = coef, intercept, features
    return fitted


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
    """The loss of each example that an estimator stands for, its penalty apart."""
    for name in ("class_weight", "positive"):
        if getattr(estimator, name, None):
            raise InvalidInput(
                f"{type(estimator).__name__}({name}={getattr(estimator, name)!r}) is not supported: leave {name} out"
            )
    if isinstance(estimator, linear_model.LogisticRegression):
        return multinomial if outputs > 1 else logistic
    kind = getattr(estimator, "loss", "squared_error")
    if isinstance(estimator, _REGRESSORS) and kind == "squared_error":
        return squared
    if isinstance(estimator, linear_model.SGDClassifier | svm.LinearSVC) and kind in _SGD:
        return _SGD[kind]
    raise InvalidInput(f"{type(estimator).__name__}(loss={kind!r}) is not supported; these are: {SUPPORTED}")


def check_classes(labels: Any) -> np.ndarray:
    """The classes among some labels, sorted as scikit-learn has them; `InvalidInput` if fewer than two."""
    classes = np.unique(np.asarray(labels))
    if len(classes) < 2:
        raise InvalidInput(
            f"there is only one class, {classes.tolist()}: give classes = all labels of the federation"
        )
    return classes


def numbered(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Labels as numbers of their classes, int32."""
    index = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    wrong = classes[index] != labels
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InvalidInput(
            f"label {labels.tolist()[row]!r} in row {row} of y is not among classes = {classes.tolist()}"
        )
    return index.astype(np.int32)


def _outputs(classes: np.ndarray) -> int:
    return 1 if len(classes) == 2 else len(classes)
