"""The losses that scikit-learn's linear models stand for, of `coef_ x + intercept_`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from sklearn import linear_model, svm

from fedsolve.core.errors import InvalidInput, shown
from fedsolve.tasks.task import Examples

ExampleLoss = Callable[[Array, Array, Array | None], Array]
"""(outputs (n, outputs), targets (n,), weights of classes or None) -> loss of each example, shape (n,)."""


class WeightedExamples(NamedTuple):
    """Examples with a weight each: x (n, features), y (n,), weight (n,)."""

    x: Any
    y: Any
    weight: Any


def _of_margins(loss: Callable[[Array], Array]) -> ExampleLoss:
    """A loss of s m for each output m, s = 1 for the label's class and -1 else, summed.

    With an output for each class, a class's weight counts in its own output's problem alone, as in scikit-learn's one
    against the rest.
    """

    def each(outputs: Array, y: Array, weights: Array | None) -> Array:
        own = loss(_signs(outputs, y) * outputs)
        if weights is not None:
            several = outputs.shape[1] > 1
            own = own * (jnp.where(_is_own(outputs, y), weights, 1) if several else weights[y][:, None])
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
    """(m - y)^2 / 2."""
    return 0.5 * jnp.square(outputs[:, 0] - y)


def _is_own(outputs: Array, y: Array) -> Array:
    """Which output is the label's; of two classes there is one output, of the second."""
    return y[:, None] == (jnp.arange(outputs.shape[1]) if outputs.shape[1] > 1 else 1)


def _signs(outputs: Array, y: Array) -> Array:
    """1 for the label's output, else -1."""
    return jnp.where(_is_own(outputs, y), 1, -1).astype(outputs.dtype)


@dataclass(frozen=True)
class LinearLoss:
    """The mean over a batch of a loss of  coef_ x + intercept_, each example's times its weight and its class's.

    Attributes:
        example_loss: of outputs and targets.
        class_weights: of each class by number; None for 1.
    """

    example_loss: ExampleLoss
    class_weights: tuple[float, ...] | None = None

    def each(self, params: dict[str, Array], batch: Examples | WeightedExamples) -> Array:
        """The loss of each example, shape (n,)."""
        outputs = linear(params, batch.x)
        weights = None if self.class_weights is None else jnp.asarray(self.class_weights, outputs.dtype)
        own = self.example_loss(outputs, batch.y, weights)
        return own * batch.weight if isinstance(batch, WeightedExamples) else own

    def __call__(self, params: dict[str, Array], batch: Examples | WeightedExamples) -> Array:
        """The mean over the batch, shape ()."""
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
    """What a loss is called."""
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
    """The loss of each example that an estimator stands for, its penalty apart."""
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
    """What is to be said of an estimator's parameters: those that play no part.

    Raises:
        InvalidInput: one that would make another model, or an estimator with others than scikit-learn's.
    """
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
        own = _listed(given, [p for p in PENALTY if p in given and given[p] not in (None, "deprecated")])
        notes.append(
            f"{name} has a penalty of its own ({own}), which is not part of what is minimised: a method brings one, "
            "such as FedDualAvg(L1(...)) or weight decay"
        )
    idle = [p for p in sorted(SOLVER & given.keys()) if given[p] != defaults[p]]
    if idle:
        notes.append(f"the solver of {name} does not run: {_listed(given, idle)} has no effect")
    return tuple(notes)


def _penalises(given: Mapping[str, Any]) -> bool:
    """Whether the estimator's penalty would act."""
    if given.get("penalty", "l2") is None:
        return False
    if "C" in given:
        return not math.isinf(given["C"])
    return "alpha" in given and bool(np.any(np.asarray(given["alpha"]) != 0))


def _listed(given: Mapping[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name} = {shown(given[name])}" for name in names)
