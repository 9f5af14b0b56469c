"""A model that a user's own training loop changes in place: loaded, trained, checked and read, round after round.

The model is a PyTorch module, an estimator with `partial_fit`, or a dictionary of NumPy arrays; no framework is
imported here.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.errors import ConfidentialError, InvalidInput, check_same, of_type, shown
from fedsolve.core.loss_checks import first_line
from fedsolve.core.trees import named_leaves
from fedsolve.core.types import Params

MOST_EXAMPLES = 2**31 - 1
ATTRIBUTES = ("coef_", "intercept_", "coefs_", "intercepts_")
"""Attributes of an estimator that are its parameters: arrays, or lists of arrays."""


class TrainingRound(int):
    """The number of a round, from 1, as a training loop is given it.

    Args:
        number: >= 1.
        folder: a folder that is there.

    Attributes:
        folder: for what the loop keeps from round to round on its machine, such as an optimiser's state: below the
            node's state folder, of this client in this experiment; there already, and still there after a restart.
            A round may be asked for again, when its result did not reach the server.
    """

    folder: Path

    def __new__(cls, number: int, folder: Path) -> TrainingRound:
        new = super().__new__(cls, number)
        new.folder = folder
        return new


class LoopFailed(InvalidInput):
    """A training loop that raised an exception, or what it gave back cannot be used.

    Attributes:
        without_value: what others than the owner of the data may read.
    """

    def __init__(self, line: str, without_value: str | None = None) -> None:
        super().__init__(line)
        self.without_value = line if without_value is None else without_value


class Told(NamedTuple):
    """What a training loop returned: numbers of examples and local steps, its loss, further metrics."""

    examples: int
    steps: int | None
    loss: float | None
    metrics: Mapping[str, float]


Form = dict[str, tuple[tuple[int, ...], str]]
"""Shape and type of each parameter by its path."""


class Trainee(ABC):
    """A model as its user's loop has it, and its parameters as arrays: float32 or float64, what is narrower as float32.

    Attributes:
        model: what the loop is given.
        framework: the distribution that it is of.
    """

    framework = "numpy"

    def __init__(self, model: Any) -> None:
        self.model = model
        self._form = self.form
        if not self._form:
            raise InvalidInput(f"model = {of_type(model)} has no parameters to train")

    @property
    @abstractmethod
    def form(self) -> Form:
        """Shapes and types of its parameters as they are now."""

    @abstractmethod
    def read(self) -> Params:
        """The parameters; where they lie as they are sent, the model's own memory."""

    @abstractmethod
    def write(self, params: Params) -> None:
        """Load parameters, in the model's own types."""

    @property
    def buffers(self) -> dict[str, np.ndarray]:
        """Copies of what the model keeps beside its parameters, by name."""
        return {}

    def load_buffers(self, buffers: Mapping[str, np.ndarray]) -> None:
        if buffers:
            raise InvalidInput(f"the server has buffers ({', '.join(buffers)}), and the model here has none")

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """What all clients must share and no message has, by name."""
        return {}

    def trained(self) -> Params:
        """The parameters after a loop; `LoopFailed` if they are others than before, or not finite."""
        now = self.form
        for name in [*self._form, *now]:
            before, after = (_described(form.get(name)) for form in (self._form, now))
            if before != after:
                raise LoopFailed(f"the model came back with {after} as '{name}', where it had {before}")
        params = self.read()
        for name, leaf in zip(*named_leaves(params), strict=True):
            if not np.isfinite(leaf).all():
                raise LoopFailed(f"the model came back with '{name}' not finite: lower the loop's rate")
        return params


def _described(form: tuple[tuple[int, ...], str] | None) -> str:
    return "nothing" if form is None else f"{form[1]}{list(form[0])}"


def _wide(array: np.ndarray) -> np.ndarray:
    # as it is sent: floating-point numbers of 16 bits exactly, in 32
    return array.astype(np.float32) if array.dtype.itemsize < 4 else array


class _Module(Trainee):
    """A PyTorch module: parameters that require gradients, each once where it is tied."""

    framework = "torch"

    def __init__(self, model: Any) -> None:
        from fedsolve.pytorch.translation import arrays

        self._arrays = arrays
        arrays.check_weights(model)
        super().__init__(model)

    @property
    def form(self) -> Form:
        params = self._arrays.trainable(self.model)
        return {n: (tuple(p.shape), str(p.dtype).removeprefix("torch.")) for n, p in params.items()}

    def read(self) -> Params:
        return {n: self._array(p) for n, p in self._arrays.trainable(self.model).items()}

    def _array(self, parameter: Any) -> np.ndarray:
        tensor = parameter.detach()
        return (tensor.float() if tensor.element_size() < 4 else tensor).cpu().numpy()

    def write(self, params: Params) -> None:
        self._arrays.assign(self.model, params)

    @property
    def buffers(self) -> dict[str, np.ndarray]:
        return self._arrays.buffers(self.model)

    def load_buffers(self, buffers: Mapping[str, np.ndarray]) -> None:
        own = self._arrays.buffer_tensors(self.model)
        check_same(
            "buffer", {n: np.shape(b) for n, b in buffers.items()}, {n: b.shape for n, b in own.items()}
        )
        for name, tensor in own.items():
            tensor.copy_(self._arrays.as_tensor(buffers[name], tensor))

    @property
    def constants(self) -> dict[str, np.ndarray]:
        still = self._arrays.constant_tensors(self.model)
        return {name: self._arrays.bytes_of(tensor) for name, tensor in still.items()}


class _Arrays(Trainee):
    """A dictionary of NumPy arrays, perhaps in dictionaries."""

    @property
    def form(self) -> Form:
        paths, leaves = named_leaves(self._tree())
        for path, leaf in zip(paths, leaves, strict=True):
            if not isinstance(leaf, np.ndarray) or not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise InvalidInput(
                    f"'{path}' of the model is {shown(leaf)}: parameters are NumPy arrays of floating-point numbers; "
                    "keep all else outside of the model"
                )
        return {path: (leaf.shape, str(leaf.dtype)) for path, leaf in zip(paths, leaves, strict=True)}

    def _tree(self) -> Any:
        return self.model

    def read(self) -> Params:
        return jax.tree.map(_wide, self._tree())

    def write(self, params: Params) -> None:
        own = self._tree()
        given, known = jax.tree.structure(params), jax.tree.structure(own)
        if given != known:
            raise InvalidInput(f"the server's model is {given}, the model here {known}: build both alike")
        for array, value in zip(jax.tree.leaves(own), jax.tree.leaves(params), strict=True):
            np.copyto(array, np.asarray(value).astype(array.dtype, copy=False))


class _Estimator(_Arrays):
    """An estimator whose parameters are arrays among its attributes."""

    framework = "scikit-learn"

    def _tree(self) -> Any:
        own = {name: getattr(self.model, name) for name in ATTRIBUTES if hasattr(self.model, name)}
        if not own:
            raise InvalidInput(
                f"{type(self.model).__name__} has no {' or '.join(ATTRIBUTES[:2])} yet: call partial_fit once on a few "
                "examples, with all classes, at every site and at the server"
            )
        return own


def trainee(model: Any) -> Trainee:
    """A model as arrays; `InvalidInput` for what is none.

    >>> trainee({"w": np.zeros(2, np.float32)}).form
    {'w': ((2,), 'float32')}
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        return _Module(model)
    if isinstance(model, dict):
        return _Arrays(model)
    if hasattr(model, "partial_fit"):
        return _Estimator(model)
    raise InvalidInput(
        f"model = {shown(model)} must be a torch.nn.Module, an estimator with partial_fit, or a dictionary of NumPy "
        "arrays"
    )


@dataclass
class TrainingLoop:
    """A model and the loop that trains it.

    Attributes:
        of: the model.
        train: called with the model, the round (`TrainingRound`) and what a caller adds.
        examples: the client's, where the loop does not return them; None if it does.
    """

    of: Trainee
    train: Callable[..., Any]
    examples: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.train):
            raise InvalidInput(f"train = {shown(self.train)} must be a function of (model, round)")
        if self.examples is not None:
            _whole("examples", self.examples, "a TrainedClient")

    def run(self, params: Params, round: TrainingRound, client: int, *more: Any) -> tuple[Params, Told]:
        """Train from parameters: where the loop ends, and what it returned.

        Raises:
            LoopFailed: it raised an exception, or what it gave back cannot be used; names client and round.
        """
        self.of.write(params)
        where = f"the training loop of client {client} in round {int(round)}"
        try:
            result = self.train(self.of.model, round, *more)
        except InvalidInput as error:
            others = error.without_value if isinstance(error, ConfidentialError) else error
            raise LoopFailed(f"{where}: {error}", f"{where}: {others}") from error
        except Exception as error:  # whatever the user's code raises, which may quote its data
            failed = f"{where} failed: "
            raise LoopFailed(failed + first_line(error), failed + type(error).__name__) from error
        try:
            told = told_by(result, self.examples)
            return self._ends(params), told
        except InvalidInput as error:
            raise LoopFailed(f"{where}: {error}") from None

    def _ends(self, start: Params) -> Params:
        # Where numbers of 16 bits trained: as far from the start as from its rounded values, which the loop was given.
        ends, forms = self.of.trained(), self.of.form

        def leaf(path: str, end: np.ndarray, begin: Any) -> np.ndarray:
            kind = jnp.dtype(forms[path][1])
            if kind.itemsize >= 4:
                return end
            return np.asarray(begin) + (end - np.asarray(begin).astype(kind).astype(end.dtype))

        paths, leaves = named_leaves(ends)
        begins = jax.tree.leaves(start)
        return jax.tree.structure(ends).unflatten(map(leaf, paths, leaves, begins))


def told_by(result: Any, examples: int | None = None) -> Told:
    """What a training loop returned, checked.

    >>> told_by({"examples": 8, "steps": 2, "loss": 0.5, "accuracy": 1})
    Told(examples=8, steps=2, loss=0.5, metrics={'accuracy': 1.0})
    """
    given = dict(result) if isinstance(result, Mapping) else {} if result is None else {"examples": result}
    if given.get("examples") is None and examples is not None:
        given["examples"] = examples
    if given.get("examples") is None:
        raise InvalidInput(
            f"train returned {shown(result)}: it must return the number of examples, or a mapping with 'examples', "
            "unless TrainedClient(examples=) says so"
        )
    count = _whole("examples", given.pop("examples"), "train")
    steps, loss = given.pop("steps", None), given.pop("loss", None)
    numbers = {name: _number(name, value) for name, value in given.items()}
    if loss is not None and not math.isfinite(loss := _number("loss", loss)):
        raise InvalidInput("train returned a loss that is not finite: leave it out where it is unknown")
    return Told(count, None if steps is None else _whole("steps", steps, "train"), loss, numbers)


def measured_by(result: Any, examples: int) -> tuple[int, dict[str, float]]:
    """Over how many examples, and which metrics by name: what `evaluate` returned, checked."""
    if not isinstance(result, Mapping):
        raise InvalidInput(f"evaluate returned {shown(result)}: it must return metrics by name")
    told, loss = told_by({**result, "loss": None}, examples), result.get("loss")
    return told.examples, {**told.metrics, **({} if loss is None else {"loss": _number("loss", loss)})}


def _whole(name: str, value: Any, of: str) -> int:
    number: Any = _scalar(value)
    if isinstance(number, bool) or not isinstance(number, Integral) or not 1 <= int(number) <= MOST_EXAMPLES:
        raise InvalidInput(f"{name} = {shown(number)} of {of} must be an integer from 1 to {MOST_EXAMPLES:,}")
    return int(number)


def _number(name: str, value: Any) -> float:
    value = _scalar(value)
    if not isinstance(name, str) or isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidInput(f"{shown(name)} = {shown(value)} of a training loop must be a number by name")
    return float(value)


def _scalar(value: Any) -> Any:
    # arrays and tensors of one entry as numbers
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def parameters(model: Any) -> Params:
    """Copies of the parameters of a training loop's model, for `server_app`.

    Args:
        model: a `torch.nn.Module`, an estimator with `partial_fit`, or a dictionary of NumPy arrays.

    Returns:
        Those that train, by name: float32 or float64, numbers of 16 bits as float32.

    Raises:
        InvalidInput: another kind of model, or one without parameters.

    >>> parameters({"w": np.ones(2, np.float16)})
    {'w': array([1., 1.], dtype=float32)}
    """
    return jax.tree.map(np.array, trainee(model).read())


def assign(model: Any, params: Params) -> Any:
    """Write trained parameters into the model of a training loop.

    Args:
        model: as `parameters` takes it; written to, in its own types.
        params: as trained.

    Returns:
        The model that was given.

    Raises:
        InvalidInput: parameters of other names or shapes.
    """
    trainee(model).write(params)
    return model
