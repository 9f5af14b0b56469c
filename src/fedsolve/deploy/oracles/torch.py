"""One client's data behind a PyTorch module, a loss and a loader."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jaxtyping import Array
from torch import Tensor, nn

from fedsolve.core.errors import InvalidInput, check_integer
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Scalar
from fedsolve.deploy.message import PartMetrics, Sums
from fedsolve.deploy.oracles.callback import Host, HostFunction
from fedsolve.deploy.oracles.node_oracle import LocalProblem
from fedsolve.deploy.oracles.torch_host import Evaluations, Loader, Minibatches, tensor_view
from fedsolve.deploy.signature import layer_settings, settings
from fedsolve.engine.compute.clients import own_key
from fedsolve.pytorch.batch_losses import preserve_generators
from fedsolve.pytorch.preserved_state import preserve_state
from fedsolve.pytorch.translation.arrays import (
    assign,
    buffer_tensors,
    buffers,
    bytes_of,
    constant_tensors,
    parameters,
)
from fedsolve.tasks.sum_metrics import SumMetric, refuse_weighted
from fedsolve.tasks.task_checks import check_metrics

__all__ = ["TorchOracle", "TorchRound", "assign", "buffers", "parameters"]

_STREAM = 0x7031
"""What the round's key is folded with for loaders and dropout, apart from its other uses."""


class TorchOracle(LocalProblem):
    """Oracle of a PyTorch module, a loss and a client's data loader.

    Minibatches are those of the loader: step k takes its k-th batch; after the last one the next pass begins.
    Everything random (the loader's shuffles, dropout, augmentation) follows from the round's key, the client's number
    and the step. At one step every evaluation sees the same batch and the same dropout, so that losses can be
    compared. Minibatch losses and gradients are taken in training mode, `full` in evaluation mode and on all
    examples, also those that the loader drops; where its sampler draws some of them, or one twice, on what that draws
    (a note says so). Running statistics are updated by the first gradient of a step,
    never by a loss alone or by `full`.

    `params` are {name: array} of the module's parameters that require gradients; `buffers` what else it saves. The
    module is moved to the device, but its values stay: `assign` writes a result into it. Nothing else may use
    the module while a round runs. Its inputs may be a tensor or a tuple, list or dictionary of tensors.

    Args:
        module: the model, called with the inputs of a batch; its parameters float32 or float64.
        loss: (outputs, targets) -> tensor of shape (), the mean over the batch, or each example's own, (examples, ...);
            or what follows from sums over it, such as a mean with weights or without ignored targets. A batch in which
            nothing counts moves nothing.
        loader: a DataLoader or anything that can be iterated again and again for batches (inputs, targets), tensors of
            shape (examples, ...), or a function from a seeded `torch.Generator` to one pass. One without a length is
            counted once. Each pass reads it anew: what changes in it changes the training.
        epochs: passes over the loader in a round, >= 1; 1 unless `steps` are given; or
        steps: local steps of a round, >= 1, each on one batch.
        metrics: further ones, name -> (outputs, targets) -> tensor of shape (), which the client can measure a model by
            beside `loss`, each on all of its examples, or one of `fs.metrics`; None for the accuracy where targets are
            classes.
        validation: a loader of examples that the client holds out, in the form of `loader`; None for none.
        device: where the module computes, such as "cpu" or "cuda:1"; None for CUDA if there is one, else the CPU.
        exact_loss: False if losses at one step cannot be compared (a module with random numbers of its own); methods
            that search along a line then refuse this client.
        couples_examples: whether the loss of an example depends on the others of its batch, as a contrastive or a Cox
            loss. All batches of a loader then have one size (drop_last=True), and `full` and the metric `loss` are
            means over these batches, as in the engine.

    Raises:
        InvalidInput: a loader that is empty, can be read only once or whose batches are no pairs, a loss that is no
            number, a sum, one that couples examples and does not say so, another one when it is computed again or
            without a gradient, a module with nothing to train or that writes to its own weights, epochs or steps below
            1.
    """

    framework = "torch"

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Any, Any], Tensor],
        loader: Loader,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        metrics: Mapping[str, Callable[[Any, Any], Tensor] | SumMetric] | None = None,
        validation: Loader | None = None,
        device: str | torch.device | None = None,
        exact_loss: bool = True,
        couples_examples: bool = False,
    ) -> None:
        self.params, self.exact_loss, self._own_module = parameters(module), exact_loss, module
        with preserve_generators(loader):
            batches = Minibatches(loader, couples_examples)
        self.notes = batches.notes
        self.num_examples, self.batch_size = batches.size.examples, batches.size.largest
        self.steps = _steps(epochs, steps, batches.size.batches)
        target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._module = Evaluations(module, loss, batches, target)
        with preserve_state((module, loss), (loader,)):
            self._module.try_out(exact_loss)
        check_metrics({} if metrics is None else metrics, {})
        refuse_weighted(metrics or {})
        self._loss, self._given_metrics = loss, metrics
        self._settings = settings(loss, "loss", bytes_of) | layer_settings(module)
        self._sets = {"train": batches} | (
            {} if validation is None else {"validation": Minibatches(validation, couples_examples)}
        )
        self._host = Host({"step": self._module.step, "trial": self._module.trial, "full": self._module.full})
        self.failing_plainly = self._host.failing_plainly

    @property
    def metrics(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The names of the metrics: `loss` and those given, or `accuracy` if targets are classes."""
        return tuple(self._functions)

    @cached_property
    def _functions(self) -> dict[str, Callable[[Any, Any], Tensor] | SumMetric]:
        given = self._given_metrics
        return {"loss": self._loss, **(self._module.default_metrics() if given is None else given)}

    @property
    def buffers(self) -> dict[str, np.ndarray]:
        """The module's buffers by name, such as running statistics, after all work so far."""
        jax.effects_barrier()
        return self._module.saved()

    @property
    def moving_buffers(self) -> set[str]:
        """The names of the buffers that the module changed when it was tried."""
        return self._module.moving

    @property
    def constants(self) -> dict[str, np.ndarray]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As bytes: frozen parameters, buffers that are not sent or that training leaves; settings of loss, layers."""
        still = {n: b for n, b in buffer_tensors(self._own_module).items() if n not in self._module.moving}
        own = {name: bytes_of(t) for name, t in constant_tensors(self._own_module).items()}
        return own | {f"buffer {name}": bytes_of(t) for name, t in still.items()} | self._settings

    def load_buffers(self, buffers: Mapping[str, np.ndarray]) -> None:
        """Load the server's buffers (see `LocalProblem`); means of counters are rounded."""
        self._module.load(buffers)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """As `LocalProblem.restored`; so are the module's attributes, and generators that the loader holds."""
        vars(self).pop("_functions", None)  # found again, which draws from the loader
        with ExitStack() as stack:
            for part in (self._module, *self._sets.values()):
                stack.enter_context(part.restored())
            with super().restored():
                yield

    def begin(self, key: Array, client: Scalar, dtype: Any, noise: Array | None = None) -> TorchRound:
        if jnp.dtype(dtype) not in (jnp.float32, jnp.float64):
            raise InvalidInput(f"dtype = {jnp.dtype(dtype)} must be float32 or float64 for a PyTorch module")
        if self._module.rounded and jnp.dtype(dtype) == jnp.float32:
            raise InvalidInput(
                "the module gives something else for the loader's float64 inputs rounded to float32: subtract from "
                "them a constant that all clients share, or run in float64"
            )
        torch_key = jax.random.fold_in(jax.random.fold_in(key, _STREAM), client)
        noise = own_key(key, client) if noise is None else noise
        words = jnp.concatenate([self._host.number, jax.random.key_data(torch_key)])
        client = jnp.asarray(client, jnp.int32)
        return TorchRound(self.steps, self.num_examples, self.batch_size, words, client, noise, self)

    def begin_steps(self, key: Array, client: Scalar, dtype: Any, steps: int) -> TorchRound:
        """The oracle of a number of local steps (see `LocalProblem.begin_steps`), each on the loader's next batch."""
        return replace(self.begin(key, client, dtype), steps=steps)

    def measure(self, params: Params, metrics: Collection[str]) -> dict[str, PartMetrics]:
        """Metrics of a model (see `LocalProblem.measure`) in evaluation mode: PyTorch's own values of all examples."""
        functions = {name: f for name, f in self._functions.items() if name in metrics}
        tensors = {name: torch.tensor(np.asarray(p)) for name, p in params.items()}
        measured = {}
        for part, batches in self._sets.items():
            values, examples = self._module.measure(tensors, functions, batches)
            sums = {name: value for name, value in values.items() if isinstance(value, Sums)}
            pairs = {name: value for name, value in values.items() if not isinstance(value, Sums)}
            means, counts = ({name: pair[k] for name, pair in pairs.items()} for k in (0, 1))
            measured[part] = PartMetrics(examples, means, counts, sums)
        return measured


_STEP, _TRIAL, _FULL = (HostFunction(name, tensor_view) for name in ("step", "trial", "full"))


@dataclass(frozen=True, eq=False)
class TorchRound(Oracle):
    """A `TorchOracle` in one round of so many steps: a pytree of words, the client's number and its key.

    The words are the number of the oracle's `Host` and the round's key, so that a program of this round serves other
    rounds and other oracles of the same sizes. What `begin` returned keeps its oracle alive; a copy of it does not.
    """

    steps: int  # pyright: ignore[reportIncompatibleVariableOverride]
    num_examples: int  # pyright: ignore[reportIncompatibleVariableOverride]
    batch_size: int  # pyright: ignore[reportIncompatibleVariableOverride]
    words: Array
    client: Any
    key: Any
    problem: TorchOracle | None = None

    @property
    def bound(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.steps

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        return _STEP.value_and_grad(params, self._at(step))

    def loss(self, params: Params, step: Scalar) -> Scalar:
        """Loss alone on the same minibatch, with the same dropout."""
        return _TRIAL.value(params, self._at(step))

    def full(self, params: Params) -> tuple[Scalar, Params]:
        """Loss and gradient on all of the client's examples, in evaluation mode."""
        return _FULL.value_and_grad(params, self.words)

    def _at(self, step: Scalar) -> Array:
        # What names the step to the host: the round's words and its number, as one array.
        return jnp.append(self.words, jnp.asarray(step, jnp.uint32))


jax.tree_util.register_dataclass(
    TorchRound, ["words", "client", "key"], ["steps", "num_examples", "batch_size"], drop_fields=["problem"]
)


def _steps(epochs: int | None, steps: int | None, batches: int) -> int:
    if epochs is not None and steps is not None:
        raise InvalidInput(f"epochs = {epochs}, steps = {steps}: give at most one of them")
    name, value = ("steps", steps) if steps is not None else ("epochs", 1 if epochs is None else epochs)
    count = check_integer(name, value, 1)
    return count if steps is not None else count * batches
