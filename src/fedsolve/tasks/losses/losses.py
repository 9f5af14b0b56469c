"""Losses: hashable callables of (params, batch), each a mean over the first axis of the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.building import ADDED_LATER
from fedsolve.core.errors import InvalidInput, check_number
from fedsolve.core.types import Params
from fedsolve.core.xla.cross_entropy import cross_entropy
from fedsolve.data.columns import check_column
from fedsolve.data.examples import SparseRows
from fedsolve.tasks.loss_arguments import asked
from fedsolve.tasks.losses.weights import ClassWeighted
from fedsolve.tasks.models.models import Affine, dense_rows
from fedsolve.tasks.targets import Classes, Tags, Targets, TwoSides, first_wrong
from fedsolve.tasks.task import Examples

Model = Callable[[Params, Any], Array]
"""(params, inputs of shape (n, ...)) -> outputs of shape (n, ...); with an argument `key=None` where it draws."""


class OfOutputs:
    """A mean over examples of something of the model's outputs and the targets.

    It asks for a key where the model does, as one with dropout: `model(params, x, key=key)`. `each` gives the
    examples' own values, which uneven clients and evaluation need; `of` starts from the outputs, so that several
    metrics share one pass of the model.
    """

    model: Model

    def of(self, outputs: Array, y: Array) -> Array:
        """The value of each example, shape (n,), from outputs and targets."""
        raise NotImplementedError

    @property
    def asks(self) -> frozenset[str]:
        """The further arguments that it needs (`fedsolve.tasks.loss_arguments`): the model's."""
        return asked(self.model, "the model")

    def outputs(self, params: Params, x: Any) -> Any:
        """The model's outputs for inputs, in evaluation mode."""
        return self.model(params, x)

    def labels(self, outputs: Array) -> Array:
        """The predictions of `Task.predict`: labels, shape (n,) or (n, ...), for a loss of labels, else the outputs."""
        return outputs

    def targets(self, params: Params, batch: Examples) -> Targets | None:
        """Which targets it takes, as far as it says so: a task refuses others. Only shapes are looked at."""
        return None

    def each(self, params: Params, batch: Examples, key: Array | None = None) -> Array:
        """The value of each example, shape (n,)."""
        given = {} if key is None else {"key": key}
        x, y = batch  # of any pair, as from_arrays takes them
        return self.of(self.model(params, x, **given), y)

    def __call__(self, params: Params, batch: Examples, key: Array | None = None) -> Array:
        """The mean over the batch, shape ()."""
        return jnp.mean(self.each(params, batch, key))


class Pooled(OfOutputs):
    """A metric that is a mean over the parts of all examples together, such as their tokens.

    Evaluations weigh each example's value by `counts`, in each client and in all, of any metric that has this method
    and `each`. A loss has none: it is a mean over examples.
    """

    def counts(self, batch: Examples) -> Array:
        """How many parts each example's value is the mean of, shape (n,); one of 0 is left out."""
        raise NotImplementedError

    def __call__(self, params: Params, batch: Examples, key: Array | None = None) -> Array:
        counts = self.counts(batch)
        return jnp.sum(self.each(params, batch, key) * counts) / jnp.maximum(jnp.sum(counts), 1)


@dataclass(frozen=True)
class CrossEntropy(ClassWeighted, OfOutputs):
    """Cross-entropy: mean of -log softmax(model(x))[y], with logits (n, classes) and labels (n,), in nats.

    Attributes:
        model: (params, x of shape (n, ...)) -> outputs, a model of `fedsolve.tasks` or any hashable function.
        class_weights: a number for each class, at least 0; the loss is then the weighted mean, divided by the sum of
            the weights, as PyTorch's. None: all examples count alike.

    Raises:
        InvalidInput: weights that are no such numbers; when it is used, not one for each of the model's outputs.
    """

    model: Model
    class_weights: Sequence[float] | np.ndarray | None = field(default=None, metadata=ADDED_LATER)

    def targets(self, params: Params, batch: Examples) -> Targets:
        logits = self.model(params, batch[0])
        check_label_shapes(logits, batch[1])
        return Classes(logits.shape[-1])

    def labels(self, outputs: Array) -> Array:
        return jnp.argmax(outputs, axis=-1).astype(jnp.int32)

    def of(self, outputs: Array, y: Array) -> Array:
        check_label_shapes(outputs, y)
        logits = outputs.T
        return self.weighted(cross_entropy(logits, y), y == jnp.arange(logits.shape[0])[:, None])


@dataclass(frozen=True)
class SquaredError(OfOutputs):
    """Squared error: mean of (model(x) - y)^2 over all entries, halved with `half`; outputs and y have equal shapes.

    Attributes:
        model: (params, x of shape (n, ...)) -> outputs, a model of `fedsolve.tasks` or any hashable function.
        half: the mean is halved, so that the gradient has no factor 2.
    """

    model: Model
    half: bool = False

    def targets(self, params: Params, batch: Examples) -> None:
        # numbers of the outputs' shape, whatever they are
        check_shapes(self.model(params, batch[0]), batch[1])

    def of(self, outputs: Array, y: Array) -> Array:
        check_shapes(outputs, y)
        squares = jnp.mean(jnp.square(outputs - y).reshape(len(outputs), -1), axis=1)
        return 0.5 * squares if self.half else squares


@dataclass(frozen=True)
class Logistic(ClassWeighted, OfOutputs):
    """Logistic loss: mean of log(1 + exp(-(2 y - 1) m)), with margins m = model(x) and labels 0 or 1, (n,), in nats.

    A label of -1 is taken for 0.

    Attributes:
        model: (params, x of shape (n, ...)) -> outputs, a model of `fedsolve.tasks` or any hashable function.
        class_weights: the weights of labels 0 and 1, as of `CrossEntropy`; None: all examples count alike.

    Raises:
        InvalidInput: weights that are no two such numbers.
    """

    model: Model
    class_weights: Sequence[float] | np.ndarray | None = field(default=None, metadata=ADDED_LATER)

    def targets(self, params: Params, batch: Examples) -> Targets:
        check_shapes(self.model(params, batch[0]), batch[1])
        return TwoSides()

    def labels(self, outputs: Array) -> Array:
        return (outputs > 0).astype(jnp.int32)

    def of(self, outputs: Array, y: Array) -> Array:
        check_shapes(outputs, y)
        own = jax.nn.softplus(jnp.where(y > 0, -outputs, outputs))  # neither overflows nor cancels
        return self.weighted(own, jnp.stack([y <= 0, y > 0]))


@dataclass(frozen=True)
class BinaryCrossEntropy(OfOutputs):
    """Binary cross-entropy of tags: mean of their sum of log(1 + exp(-(2 y - 1) m)), in nats.

    m = model(x) and y are (n, tags), y is 0 or 1.

    The tags are summed: each is a logistic regression of its own, whose rate does not depend on their number. y may be
    `fs.SparseRows`, an example's tags with the value 1.

    Attributes:
        model: (params, x of shape (n, ...)) -> outputs, a model of `fedsolve.tasks` or any hashable function.
    """

    model: Model

    def targets(self, params: Params, batch: Examples) -> Targets:
        x, y = batch
        outputs = self.model(params, x)
        if isinstance(y, SparseRows):
            return Tags(outputs.shape[-1])
        check_shapes(outputs, y)
        return TwoSides()

    def labels(self, outputs: Array) -> Array:
        return (outputs > 0).astype(jnp.int32)

    def of(self, outputs: Array, y: Array) -> Array:
        if isinstance(y, SparseRows):
            signs = 1 - 2 * dense_rows(y, outputs.shape[-1], outputs.dtype)
            return jnp.sum(jax.nn.softplus(signs * outputs), axis=1)
        check_shapes(outputs, y)
        own = jax.nn.softplus(jnp.where(y > 0, -outputs, outputs))
        return jnp.sum(own.T, axis=0)  # sums over the first axis are the fast ones on a CPU


@dataclass(frozen=True)
class Ridge:
    """Ridge penalty: a loss plus (l2 / 2) |w|^2, w the weight of a linear model (`Affine.weight`), without its bias.

    Every example carries the whole penalty, so that any mean of examples has it once.

    Attributes:
        loss: a loss of this module.
        l2: at least 0, in units of the loss per squared weight.

    Raises:
        InvalidInput: an l2 that is negative or not finite.
    """

    loss: OfOutputs
    l2: float

    def __post_init__(self) -> None:
        check_number("l2", self.l2, at_least=0)
        if hasattr(self.loss, "of_sums"):
            raise InvalidInput(
                f"Ridge adds its penalty to means over examples, and {type(self.loss).__name__} has class_weights: "
                "leave them out, or take weight_decay of the method in place of Ridge"
            )

    @property
    def asks(self) -> frozenset[str]:
        return self.loss.asks

    def outputs(self, params: Affine, x: Any) -> Any:
        """The model's outputs for inputs, in evaluation mode.

        Args:
            params: the model's.
            x: inputs, shape (n, ...).

        Returns:
            Those of its loss.
        """
        return self.loss.outputs(params, x)

    def labels(self, outputs: Array) -> Array:
        """The predictions of `Task.predict`: those of its loss.

        Args:
            outputs: of the model, shape (n,) or (n, ...).

        Returns:
            Labels, or the outputs.
        """
        return self.loss.labels(outputs)

    def targets(self, params: Affine, batch: Examples) -> Targets | None:
        """The targets that its loss takes.

        Args:
            params: the model's.
            batch: x and y.

        Returns:
            What its loss says, None if it says nothing.
        """
        return self.loss.targets(params, batch)

    def penalty(self, params: Affine) -> Array:
        """The penalty (l2 / 2) |w|^2.

        Args:
            params: the model's; its `weight` is penalised, its bias is not.

        Returns:
            A scalar.
        """
        return 0.5 * self.l2 * jnp.sum(jnp.square(params.weight))

    def each(self, params: Affine, batch: Examples, key: Array | None = None) -> Array:
        """The loss of each example plus the penalty, shape (n,).

        Args:
            params: the model's.
            batch: x and y, n examples.
            key: for a loss that draws; None in evaluation.

        Returns:
            Floats (n,).
        """
        return self.loss.each(params, batch, key) + self.penalty(params)

    def __call__(self, params: Affine, batch: Examples, key: Array | None = None) -> Array:
        return self.loss(params, batch, key) + self.penalty(params)


def check_shapes(outputs: Array, y: Array) -> None:
    # (n,) against (n, 1) would broadcast to (n, n)
    if outputs.shape != y.shape:
        remedy = ", give y[..., 0]" if y.shape == (*outputs.shape, 1) else ""
        remedy = ", take the model's outputs[..., 0]" if outputs.shape == (*y.shape, 1) else remedy
        raise InvalidInput(f"outputs have shape {outputs.shape}, targets {y.shape}: they must agree{remedy}")


def check_label_shapes(outputs: Array, y: Array) -> None:
    # the number of a class for each row of outputs, not one-hot
    rows = outputs.shape[:-1]
    if y.shape != rows:
        remedy = {outputs.shape: "give the number of the class, y.argmax(-1)", (*rows, 1): "give y[..., 0]"}
        raise InvalidInput(
            f"the labels of an example have shape {y.shape[1:]}, its outputs {outputs.shape[1:]}: "
            f"{remedy.get(y.shape, f'give labels of shape {rows[1:]}')}"
        )


def check_labels(y: Any, classes: int) -> np.ndarray:
    """Check labels: integers in 0 .. classes - 1, returned as int32, shape (examples,).

    Args:
        y: labels, shape (examples,).
        classes: how many classes there are.

    Returns:
        A copy of the labels, int32 of shape (examples,).

    Raises:
        InvalidInput: another shape, or the first label that is not an integer in the range, with its row.

    >>> check_labels([0, 2, 3], 3)
    Traceback (most recent call last):
    ...
    fedsolve.InvalidInput: label 3 in row 2 is outside 0 .. 2 of 3 classes
    """
    labels = check_column("labels", y)
    if not (np.issubdtype(labels.dtype, np.integer) or np.issubdtype(labels.dtype, np.floating)):
        raise InvalidInput(f"labels have type {labels.dtype}: give integers in 0 .. {classes - 1}")
    outside = first_wrong(Classes(classes), labels)
    if outside is not None:
        raise InvalidInput(
            f"label {outside.value} in row {outside.row} is outside 0 .. {classes - 1} of {classes} classes"
        )
    return labels.astype(np.int32)
