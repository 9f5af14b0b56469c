"""A model that a user's own training loop changes in place: loaded, trained, checked and read, round after round.

The model is a PyTorch module, an estimator with `partial_fit`, or a dictionary of NumPy arrays; no framework is
imported here.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.errors import (
    ConfidentialError,
    InvalidInput,
    check_integer,
    check_same,
    is_plain_number,
    of_type,
    shown,
)
from fedsolve.core.loss_checks import first_line
from fedsolve.core.trees import named_leaves
from fedsolve.core.types import Params

ATTRIBUTES = ("coef_", "intercept_", "coefs_", "intercepts_")
"""Attributes of an estimator that are its parameters: arrays, or lists of arrays."""

UNMOVED = "its training loop left the model as it was: it must change the model that it is given, not a copy"


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


class ReadyLoop(ABC):
    """A training loop that is given and not written: a library's, or a command."""

    @abstractmethod
    def __call__(self, model: Any, round: Any, data: Any = None) -> Mapping[str, Any]:
        """Train the model in place, one round, as `fs.flower.TrainedClient` and `fs.tasks.from_training` call it.

        Args:
            model: that of the loop.
            round: its number, from 1, with its folder (`TrainingRound`).
            data: the client's data in a simulation; None for the loop's own.

        Returns:
            Numbers by name: `examples`, `steps` and losses where they are known.
        """


class Told(NamedTuple):
    """What a training loop or an evaluation returned: numbers of examples and local steps, metrics, also `loss`."""

    examples: int
    steps: int | None
    metrics: dict[str, float]

    @property
    def loss(self) -> float | None:
        return self.metrics.get("loss")


Form = dict[str, str]
"""Type and shape of each parameter, such as "float32[2, 3]", by its path."""


def form_of(named: Mapping[str, Any]) -> Form:
    return {name: f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for name, x in named.items()}


def type_in(form: str) -> np.dtype[Any]:
    return jnp.dtype(form.partition("[")[0])


def check_form(given: Form, wanted: Form) -> None:
    """Raise `InvalidInput` if a model came back from a loop with other names, shapes or types."""
    for name in [*wanted, *given]:
        now, before = (form.get(name, "nothing") for form in (given, wanted))
        if now != before:
            raise InvalidInput(f"the model came back with {now} as '{name}', where it had {before}")


class Trainee:
    """A model as its user's loop has it, and its parameters as arrays: float32 or float64, what is narrower as float32.

    Attributes:
        model: what the loop is given: a PyTorch module, of which the parameters that require gradients train, each once
            where it is tied; an estimator with arrays among its attributes; or a dictionary of NumPy arrays.
        framework: the distribution that it is of.
    """

    def __init__(self, model: Any) -> None:
        self.model, torch = model, sys.modules.get("torch")
        self._module: Any = None  # how modules are read and written
        if torch is not None and isinstance(model, torch.nn.Module):
            from fedsolve.pytorch.translation import arrays

            arrays.check_weights(model)
            self.framework, self._module = "torch", arrays
        elif isinstance(model, dict):
            self.framework = "numpy"
        elif hasattr(model, "partial_fit"):
            self.framework = "scikit-learn"
        else:
            raise InvalidInput(
                f"model = {shown(model)} must be a torch.nn.Module, an estimator with partial_fit, or a dictionary of "
                "NumPy arrays"
            )
        self._form = self.form
        if not self._form:
            raise InvalidInput(f"model = {of_type(model)} has no parameters to train")

    def _own(self) -> Any:
        # the parameters as the model has them: a tree of tensors or of arrays
        if self._module is not None:
            return self._module.trainable(self.model)
        own = self.model
        if self.framework == "scikit-learn":
            own = {name: getattr(own, name) for name in ATTRIBUTES if hasattr(own, name)}
            if not own:
                raise InvalidInput(
                    f"{type(self.model).__name__} has no {' or '.join(ATTRIBUTES[:2])} yet: call partial_fit once on a "
                    "few examples, with all classes, at every site and at the server"
                )
        for path, leaf in zip(*named_leaves(own), strict=True):
            if not isinstance(leaf, np.ndarray) or not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise InvalidInput(
                    f"'{path}' of the model is {shown(leaf)}: parameters are NumPy arrays of floating-point numbers; "
                    "keep all else outside of the model"
                )
        return own

    @property
    def form(self) -> Form:
        return form_of(dict(zip(*named_leaves(self._own()), strict=True)))

    def read(self) -> Params:
        return jax.tree.map(self._wide, self._own())

    def _wide(self, own: Any) -> np.ndarray:
        # numbers of 16 bits exactly, in 32
        if self._module is None:
            return own.astype(np.float32) if own.dtype.itemsize < 4 else own
        tensor = own.detach()
        return (tensor.float() if tensor.element_size() < 4 else tensor).cpu().numpy()

    def write(self, params: Params) -> None:
        own = self._own()
        given, known = (dict(zip(*named_leaves(tree), strict=True)) for tree in (params, own))
        if self._module is not None:
            self._module.assign(self.model, given)
            return
        check_same("parameter", given, known)
        for name, array in known.items():
            np.copyto(array, np.asarray(given[name]).astype(array.dtype, copy=False))

    @property
    def buffers(self) -> dict[str, np.ndarray]:
        """Copies of what a module keeps beside its parameters, by name."""
        return {} if self._module is None else self._module.buffers(self.model)

    def load_buffers(self, buffers: Mapping[str, np.ndarray]) -> None:
        """Load buffers; `InvalidInput` if they have other names or shapes than the model's."""
        own = self._module.buffer_tensors(self.model) if self._module else {}
        check_same("buffer", buffers, own)
        for name, tensor in own.items():
            tensor.copy_(self._module.as_tensor(buffers[name], tensor))

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """What all clients must share and no message has, by name."""
        if self._module is None:
            return {}
        still = self._module.constant_tensors(self.model)
        return {name: self._module.bytes_of(tensor) for name, tensor in still.items()}

    def trained(self) -> Params:
        """The parameters after a loop; `InvalidInput` if they are others than before, or not finite."""
        check_form(self.form, self._form)
        params = self.read()
        for name, leaf in zip(*named_leaves(params), strict=True):
            if not np.isfinite(leaf).all():
                raise InvalidInput(f"the model came back with '{name}' not finite: lower the loop's rate")
        return params


class TrainingLoop(Trainee):
    """A model and the loop that trains it.

    Args:
        model: as `Trainee` takes it.
        train: called with the model, the round (`TrainingRound`) and what a caller adds.
        examples: the client's, where the loop does not return them; None if it does.
    """

    def __init__(self, model: Any, train: Callable[..., Any], examples: int | None = None) -> None:
        super().__init__(model)
        if not callable(train):
            raise InvalidInput(f"train = {shown(train)} must be a function of (model, round)")
        self._train, self._examples = train, check_integer("examples", examples, 1, none="of the loop")

    def run(self, params: Params, round: TrainingRound, client: int, *more: Any) -> tuple[Params, Told]:
        """Train from parameters: where the loop ends, and what it returned.

        `InvalidInput` names client and round: it raised an exception, or what it gave back cannot be used.
        """
        self.write(params)
        where = f"the training loop of client {client} in round {int(round)}"
        try:
            told = told_by(self._train(self.model, round, *more), self._examples)
            return self._from(params, self.trained()), told
        except ConfidentialError as error:
            raise ConfidentialError(f"{where}: {error}", f"{where}: {error.without_value}") from error
        except InvalidInput as error:
            raise InvalidInput(f"{where}: {error}") from error
        except Exception as error:  # whatever the user's code raises, which may quote its data
            failed = f"{where} failed: "
            raise ConfidentialError(failed + first_line(error), failed + type(error).__name__) from error

    def _from(self, start: Params, ends: Params) -> Params:
        # where numbers of 16 bits trained: as far from the start as from its rounded values, which the loop was given
        def leaf(end: np.ndarray, begin: Any, form: str) -> np.ndarray:
            if (kind := type_in(form)).itemsize >= 4:
                return end
            return np.asarray(begin) + (end - np.asarray(begin).astype(kind).astype(end.dtype))

        leaves, structure = jax.tree.flatten(ends)
        return structure.unflatten(map(leaf, leaves, jax.tree.leaves(start), self._form.values()))


def told_by(result: Any, examples: int | None = None, of: str = "train") -> Told:
    """What a training loop or an evaluation returned, checked.

    >>> told_by({"examples": 8, "steps": 2, "accuracy": 1})
    Told(examples=8, steps=2, metrics={'accuracy': 1.0})
    """
    given = result if isinstance(result, Mapping) else {"examples": result}
    given = {name: _scalar(value) for name, value in given.items() if value is not None}
    if "examples" not in given and examples is None:
        raise InvalidInput(
            f"train returned {shown(result)}: it must return the number of examples, or a mapping with 'examples', "
            "unless TrainedClient(examples=) says so"
        )
    if of == "evaluate" and not isinstance(result, Mapping):
        raise InvalidInput(f"evaluate returned {shown(result)}: it must return metrics by name")
    count = check_integer("examples", given.pop("examples", examples), 1, bits=31)
    steps = check_integer("steps", given.pop("steps", None), 1, bits=31, none="unknown")
    for name, value in given.items():
        if not is_plain_number(value):
            raise InvalidInput(f"{name} = {shown(value)} must be a number")
    return Told(count, steps, {name: float(value) for name, value in given.items()})


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
    return jax.tree.map(np.array, Trainee(model).read())


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
    Trainee(model).write(params)
    return model
