"""A PyTorch module on a client's minibatches, for arrays that a compiled program hands over."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fedsolve.core.errors import ConfidentialError, InvalidInput, check_same, of_type
from fedsolve.core.loss_checks import REMEMBERED, check_again, check_slope
from fedsolve.deploy.message import Sums
from fedsolve.pytorch.batch_losses import (
    are_classes,
    evaluated,
    mean_of,
    preserve_generators,
    seed_all,
    seed_of,
    value_or_zero,
)
from fedsolve.pytorch.callback import no_batch
from fedsolve.pytorch.loss_analysis import (
    LossAnalysis,
    analyse,
    check_form,
    check_size,
    failure,
    refuse_coupled,
    value_or_none,
)
from fedsolve.pytorch.preserved_state import preserve_state
from fedsolve.pytorch.reference import check_hooks, hooks_of, refuse_late_hooks
from fedsolve.pytorch.translation.arrays import (
    as_tensor,
    buffer_tensors,
    check_weights,
    mode_setter,
    preserve_attributes,
    refuse_sparse,
    substitute_tensors,
    trainable,
)
from fedsolve.pytorch.translation.batch_sums import to_float64
from fedsolve.pytorch.translation.export import call_module, loses_by_rounding, writes_to_parameter
from fedsolve.tasks.sum_metrics import SumMetric

Loader = Iterable[Any] | Callable[[torch.Generator], Iterable[Any]]


class Size(NamedTuple):
    """What one pass over a loader holds: batches, examples, and examples of the largest and the smallest batch."""

    batches: int
    examples: int
    largest: int
    smallest: int


class Minibatches:
    """The batches of a loader by number: 0, 1, ... through one pass, then on through the next in another order."""

    # The last one drawn is kept, so that a step may ask for its batch again. Batches are asked for in their order;
    # going back starts the pass again.

    def __init__(self, loader: Loader, coupled: bool = False) -> None:
        if not callable(loader) and (hasattr(loader, "__next__") or not hasattr(loader, "__iter__")):
            raise InvalidInput(
                f"the loader is {of_type(loader)}, which cannot be read again and again: "
                "give a DataLoader, a list of batches or a function of a generator"
            )
        self._loader, self.coupled = loader, coupled
        self.size = self._measure()
        if coupled and self.size.smallest != self.size.largest:
            raise InvalidInput(
                f"couples_examples = True and the loader's batches have {self.size.largest} to {self.size.smallest} "
                "examples: give drop_last=True"
            )
        self._pass: tuple[bytes, int] | None = None
        self._batches: Iterator[Any] = iter(())
        self._drawn = 0
        self._last: Any = None

    def at(self, key: bytes, step: int) -> Any:
        number, index = divmod(step, self.size.batches)
        if self._pass != (key, number) or index < self._drawn - 1:
            self._batches, self._pass, self._drawn = self._start(seed_of(key, 1, number)), (key, number), 0
        while self._drawn <= index:
            self._last = self._next(seed_of(key, 2, number, self._drawn))
            self._drawn += 1
        return self._last

    def all(self, key: bytes) -> Iterator[Any]:
        """The batches of one pass over all examples, the same at each call in a round; `coupled`: as in training."""
        batches = self._start(seed_of(key, 3), everything=not self.coupled)
        for index in count():
            batch = self._draw(batches, seed_of(key, 4, index))
            if batch is None:
                return
            yield check_pair(batch)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said where a pass is not over each example of the dataset once."""
        loader = self._loader
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            return ()
        sampler, drawn, all_of_them = loader.sampler, self.size.examples, _length(loader.dataset)
        repeats = isinstance(sampler, WeightedRandomSampler | RandomSampler) and sampler.replacement
        # a batch sampler may drop the last batch
        dropped = 0 if _counts_itself(loader) else self.size.largest
        if isinstance(sampler, SubsetRandomSampler) or not (repeats or drawn < all_of_them - dropped):
            return ()
        return (
            f"the loader's {type(sampler).__name__} draws {drawn} of {all_of_them} examples in a pass"
            f"{', some several times' * repeats}: full gradients and metrics are of such a pass too, and the client "
            f"counts for {drawn} examples",
        )

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Passes begin anew in this block; after it, generators that the loader holds go on where they were."""
        self._pass, self._batches, self._drawn, self._last = None, iter(()), 0, None
        if isinstance(self._loader, DataLoader):
            self._loader._iterator = None  # persistent workers, whose random numbers would go on
        with preserve_generators(self._loader):
            yield

    def _start(self, seed: int, everything: bool = False) -> Iterator[Any]:
        with seed_all(seed):
            if callable(self._loader):
                return iter(self._loader(torch.Generator().manual_seed(seed)))
            return iter(complete(self._loader) if everything else self._loader)

    def _draw(self, batches: Iterator[Any], seed: int) -> Any:
        # The next batch, None at the end; the loader's own generators are seeded too. A list has nothing random.
        for part in (self._loader, getattr(self._loader, "sampler", None)):
            generator = getattr(part, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(seed)
        if isinstance(self._loader, tuple | list):
            return next(batches, None)
        with seed_all(seed):
            try:
                return next(batches, None)
            except (RuntimeError, TypeError) as error:
                raise no_batch(error) or error from error

    def _next(self, seed: int) -> Any:
        batch = self._draw(self._batches, seed)
        if batch is None:
            raise InvalidInput(
                f"the loader gave {self._drawn} batches in a pass and {self.size.batches} before: "
                "give as many each time"
            )
        return check_pair(batch)

    def _measure(self) -> Size:
        # From the loader's own numbers where they can be trusted, else by one pass over it.
        loader = self._loader
        if isinstance(loader, DataLoader) and _counts_itself(loader):
            examples = len(loader.sampler)  # pyright: ignore[reportArgumentType]
            largest = min(loader.batch_size or 1, examples)
            rest = 0 if loader.drop_last else examples % (largest or 1)
            size = Size(len(loader), examples, largest, rest or largest)
        else:
            lengths = []
            batches = self._start(0)
            while (batch := self._draw(batches, seed_of(b"", len(lengths)))) is not None:
                lengths.append(num_examples(check_pair(batch)))
            size = Size(len(lengths), sum(lengths), max(lengths, default=0), min(lengths, default=0))
        if not size.batches or not size.examples:
            raise InvalidInput(
                "the loader is empty: leave the client out or give it examples (drop_last = False)"
            )
        if not size.smallest:
            raise InvalidInput("a batch of the loader has no targets: give each at least one example")
        return size


def _length(dataset: Any) -> int:
    return len(dataset) if hasattr(dataset, "__len__") else 0


def _counts_itself(loader: DataLoader[Any]) -> bool:
    # Whether a DataLoader makes batches by itself from a sampler that knows how many examples it draws.
    by_itself = type(loader.batch_sampler) is BatchSampler and not isinstance(loader.dataset, IterableDataset)
    return by_itself and hasattr(loader.sampler, "__len__")


def complete(loader: Any) -> Any:
    """A loader with the short batch at the end that it drops, and workers of its own."""
    if not isinstance(loader, DataLoader) or not (loader.drop_last or loader.persistent_workers):
        return loader
    return DataLoader(
        loader.dataset,
        batch_sampler=BatchSampler(loader.sampler, loader.batch_size or 1, drop_last=False),
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
    )


def check_pair(batch: Any) -> Any:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        what = f"{len(batch)} parts" if isinstance(batch, tuple | list) else of_type(batch)
        raise InvalidInput(f"a batch of the loader is {what}: it must be a pair (inputs, targets)")
    return batch


def num_examples(batch: Any) -> int:
    targets = batch[1]
    if not isinstance(targets, Tensor) or targets.ndim == 0:
        raise InvalidInput(f"the targets of a batch are {of_type(targets)}: give a tensor (examples, ...)")
    return len(targets)


def to_device(values: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """Tensors, also in tuples, lists and dictionaries, on a device; floating-point ones in a type, None for theirs."""
    if isinstance(values, Tensor):
        return values.to(device, dtype if values.is_floating_point() else None)
    if isinstance(values, dict):
        return {name: to_device(v, device, dtype) for name, v in values.items()}
    if isinstance(values, tuple | list):
        return type(values)([to_device(v, device, dtype) for v in values])
    return values


# Losses and gradients of a PyTorch module on a client's batches, for arrays that a compiled program hands over.

Tensors = dict[str, Tensor]
Arrays = dict[str, np.ndarray]


class Evaluations:
    """A module with a loss and batches; during an evaluation other values take the place of its own, which come back.

    `buffers` are running statistics and the like after the steps done so far, apart from the module's own, and
    `moving` the names of those that a trial has changed. `rounded`: the module gives something else for its inputs
    rounded to the type of its parameters.
    """

    def __init__(self, module: nn.Module, loss: Function, batches: Minibatches, device: torch.device) -> None:
        check_weights(module)
        refuse_late_hooks(module)
        self._module, self._loss, self._device = module.to(device), loss, device
        self._batches, self._set_mode = batches, mode_setter(module)
        self._params, self._buffers = trainable(module), buffer_tensors(module)
        refuse_sparse(module, self._buffers)
        self.buffers = {name: b.clone() for name, b in self._buffers.items()}
        self.moving: set[str] = set()
        self._updated: Any = None
        self.rounded = False
        self._kinds: dict[str, LossAnalysis] = {}
        self._batch: tuple[Any, tuple[Any, Any]] = (None, (None, None))

    def load(self, buffers: Mapping[str, np.ndarray]) -> None:
        """Take over other buffers; means of counters are rounded."""
        check_same("buffer", buffers, self._buffers)
        self.buffers = {name: as_tensor(buffers[name], b) for name, b in self._buffers.items()}
        self._updated = None

    def saved(self) -> dict[str, np.ndarray]:
        """Copies of the buffers, in the module's types."""
        return {n: b.to(self._buffers[n].dtype).cpu().numpy().copy() for n, b in self.buffers.items()}

    @contextmanager
    def restored(self) -> Iterator[None]:
        """After this block module and loss have the attributes that they had before."""
        self._batch = (None, (None, None))
        with preserve_attributes(self._module, self._loss):
            yield

    def step(self, params: Tensors, words: np.ndarray) -> tuple[np.ndarray, Arrays]:
        """Loss and gradient on a step's minibatch; the step's first gradient updates the buffers."""
        loss, gradient, after = self._at(params, words, with_gradient=True)
        if self._updated != words.tobytes():
            self.buffers, self._updated = after, words.tobytes()
        return loss, gradient

    def trial(self, params: Tensors, words: np.ndarray) -> np.ndarray:
        return self._at(params, words, with_gradient=False)[0]

    def full(self, params: Tensors, words: np.ndarray) -> tuple[np.ndarray, Arrays]:
        key, (values, dtype) = words.tobytes(), self._on_device(params)
        total: Any = torch.zeros((), dtype=dtype, device=self._device)
        gradient = {name: torch.zeros_like(v) for name, v in values.items()}
        examples, seen = 0, []
        with substitute_tensors(self._module, self._params | self._buffers, values | self._copies(dtype)):
            self._set_mode(False)
            with seed_all(seed_of(key, 5), self._device):
                for batch in self._batches.all(key):
                    x, y = to_device(batch, self._device, dtype)
                    outputs, weight = evaluated(self._module, x), num_examples(batch)
                    loss = self._value(outputs, x, y)
                    for name, g in self._gradient(loss).items():
                        gradient[name].add_(g, alpha=weight)
                    total += weight * loss.detach()
                    examples += weight
                    seen.append((pytree.tree_map_only(Tensor, Tensor.detach, outputs), y))
            mean, slopes = total / examples, {n: g / examples for n, g in gradient.items()}
            value, by_outputs = (mean, []) if self._batches.coupled else loss_of_all(self._loss, seen)
            value = value.to(dtype)
            if not torch.isclose(mean, value, rtol=100 * torch.finfo(dtype).eps, atol=0):
                # no mean over examples, such as one with weights: its gradient goes through the outputs of all
                mean, slopes = value, self._through(key, by_outputs, dtype)
        return _array(mean, dtype), {n: _array(g, dtype) for n, g in slopes.items()}

    def _through(self, key: bytes, by_outputs: list[Any], dtype: torch.dtype) -> Tensors:
        # The gradient from that by the outputs of each batch, which are computed once more.
        gradient = {name: torch.zeros_like(p) for name, p in self._params.items()}
        with seed_all(seed_of(key, 5), self._device):
            for batch, slopes in zip(self._batches.all(key), by_outputs, strict=True):
                outputs = evaluated(self._module, to_device(batch, self._device, dtype)[0])
                floats = [
                    t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.is_floating_point()
                ]
                value = torch.stack([(t * s).sum() for t, s in zip(floats, slopes, strict=True)]).sum()
                for name, g in self._gradient(value).items():
                    gradient[name].add_(g)
        return gradient

    def measure(
        self, params: Tensors, functions: Mapping[str, Function | SumMetric], batches: Minibatches
    ) -> tuple[dict[str, tuple[float, float] | Sums], int]:
        """Metrics of all examples in evaluation mode, and the number of examples."""
        # Each is a value with what it is a mean over; of a metric of `fs.metrics` its sums.
        measuring, examples = {}, 0
        key, (values, dtype) = b"measure", self._on_device(params)
        with substitute_tensors(self._module, self._params | self._buffers, values | self._copies(dtype)):
            self._set_mode(False)
            with seed_all(seed_of(key, 5), self._device), torch.no_grad():
                for batch in batches.all(key):
                    x, y = to_device(batch, self._device, dtype)
                    outputs, weight = evaluated(self._module, x), num_examples(batch)
                    for name, function in functions.items():
                        if name not in measuring:
                            measuring[name] = (
                                Summing(function)
                                if isinstance(function, SumMetric)
                                else Measuring(name, function, self._kind(name, function, outputs, y))
                            )
                        measuring[name].add(outputs, y, weight)
                    examples += weight
        return {name: of.result() for name, of in measuring.items()}, examples

    def _kind(self, name: str, function: Function, outputs: Any, y: Any) -> LossAnalysis:
        if name not in self._kinds:
            what = "the loss" if name == "loss" else f"metric {name}"
            coupled = name == "loss" and self._batches.coupled
            kind = LossAnalysis(function, couples_examples=True) if coupled else None
            self._kinds[name] = kind or kind_of(what, function, outputs, y, self._dtype)
        return self._kinds[name]

    def try_out(self, twice: bool) -> None:
        """Loss and gradient on the first batch, so that what is wrong with them is told before any round."""
        # With `twice` the loss must be the same when it is computed again.
        batch = self._batches.at(bytes(8), 0)
        x, y = to_device(batch, self._device, self._dtype)
        self.rounded = loses_by_rounding(self._module, to_device(batch[0], self._device, None), self._dtype)
        outputs, loss = self._try(x, y)
        if twice and not self._batches.coupled:
            refuse_coupled(self._loss, outputs, y, self._dtype)
        if twice:
            rounding = 1e3 * torch.finfo(self._dtype).eps
            check_again("the loss", float(loss), float(self._try(x, y)[1]), rounding, REMEMBERED)
        for size in sorted({self._batches.size.smallest, self._batches.size.largest} - {len(y)}):
            with self._trial():
                remedy = "take another batch size, or drop_last=True"
                check_size(self._module, self._loss, x, y, size, "a batch of the loader", remedy)

    def _try(self, x: Any, y: Any) -> tuple[Any, Tensor]:
        # Outputs and loss of a batch in training mode, whose gradient can be taken.
        own = {name: p.data for name, p in self._params.items()}
        with (
            self._trial(),
            torch.enable_grad(),
            preserve_state((self._loss,)),
            preserve_attributes(self._module, self._loss),
        ):
            # which they may write to: of a list of batches these are the user's own
            inputs, targets = pytree.tree_map_only(Tensor, Tensor.clone, (x, y))
            hooks = hooks_of(self._module)
            outputs = call_module(self._module, inputs, "training")
            check_hooks(self._module, hooks)
            same = self._copies(self._dtype)
            self.moving |= {n for n, b in self._buffers.items() if not torch.equal(b.data, same[n])}
            loss = self._value(outputs, inputs, targets)
            if loss.requires_grad or loss:  # else nothing in the batch counts
                check_slope("the loss", loss.requires_grad)
            try:
                self._gradient(loss)
            except Exception as error:  # whatever the user's code raises
                raise failure("the gradient of the loss", error, outputs, y) from error
            for name, p in self._params.items():
                if not torch.equal(p.data, own[name]):
                    raise writes_to_parameter(self._module, name)
        return pytree.tree_map_only(Tensor, Tensor.detach, outputs), loss.detach()

    @contextmanager
    def _trial(self) -> Iterator[None]:
        # The module in training mode, with copies of its tensors in their place.
        copies = {name: p.data.clone() for name, p in self._params.items()} | self._copies(self._dtype)
        with (
            substitute_tensors(self._module, self._params | self._buffers, copies),
            seed_all(0, self._device),
        ):
            self._set_mode(True)
            yield

    @property
    def _dtype(self) -> torch.dtype:
        return next(iter(self._params.values())).dtype

    def default_metrics(self) -> dict[str, Function]:
        """The accuracy where the targets of a batch are classes, else none."""
        dtype = self._dtype
        with substitute_tensors(self._module, self._buffers, self._copies(dtype)), torch.no_grad():
            self._set_mode(False)
            with seed_all(0, self._device):
                x, y = to_device(next(self._batches.all(b"sample")), self._device, dtype)
                return {"accuracy": _accuracy} if are_classes(self._module(x), y) else {}

    def _at(
        self, params: Tensors, words: np.ndarray, with_gradient: bool
    ) -> tuple[np.ndarray, Arrays, dict[str, Tensor]]:
        # Loss, gradient and buffers after it, in training mode on the minibatch of the step that words end with.
        key, step = words[:-1].tobytes(), int(words[-1])
        values, dtype = self._on_device(params)
        if self._batch[0] != (key, step, dtype):
            self._batch = (key, step, dtype), to_device(self._batches.at(key, step), self._device, dtype)
        with substitute_tensors(self._module, self._params | self._buffers, values | self._copies(dtype)):
            self._set_mode(True)
            with seed_all(seed_of(key, 0, step), self._device), torch.set_grad_enabled(with_gradient):
                x, y = self._batch[1]
                loss = self._value(self._module(x), x, y)
                gradient = self._gradient(loss) if with_gradient else {}
            after = {name: b.data for name, b in self._buffers.items()}
        return _array(loss, dtype), {name: _array(g, dtype) for name, g in gradient.items()}, after

    def _on_device(self, params: Tensors) -> tuple[Tensors, torch.dtype]:
        # Parameters where the module is, and their type; pairs of numbers begin where `view_as_complex` takes them.
        values = {n: (p.clone() if p.storage_offset() % 2 else p).to(self._device) for n, p in params.items()}
        return values, next(iter(values.values())).dtype

    def _copies(self, dtype: torch.dtype) -> dict[str, Tensor]:
        return {
            n: b.to(dtype if b.is_floating_point() else b.dtype, copy=True) for n, b in self.buffers.items()
        }

    def _value(self, outputs: Any, x: Any, y: Any) -> Tensor:
        try:
            value = value_or_zero(self._loss, outputs, y)
            check_form("the loss", value, num_examples((x, y)))
            value = mean_of(value)
        except InvalidInput:
            raise
        except Exception as error:  # whatever the user's code raises
            raise _no_class(self._loss, outputs, y) or failure("the loss", error, outputs, y) from error
        if not torch.isfinite(value):
            _refuse_not_finite(inputs=x, targets=y)
        return value

    def _gradient(self, loss: Tensor) -> dict[str, Tensor]:
        if not loss.requires_grad:  # a number for a batch in which nothing counts
            return {n: torch.zeros_like(p) for n, p in self._params.items()}
        parts = torch.autograd.grad(
            loss, list(self._params.values()), materialize_grads=True, allow_unused=True
        )
        return {n: g.to_dense() if g.is_sparse else g for n, g in zip(self._params, parts, strict=True)}


def _accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).double().mean()


def _refuse_not_finite(**parts: Any) -> None:
    # Raise `InvalidInput` if a part of a batch holds NaN or infinity, which the loss then shows.
    for name, part in parts.items():
        for t in pytree.tree_leaves(part):
            if isinstance(t, Tensor) and not torch.isfinite(t).all():
                raise InvalidInput(
                    f"the {name} of a batch hold a number that is not finite, and so is the loss: clean them, or leave "
                    "such examples out"
                )


def _no_class(loss: Function, outputs: Any, targets: Any) -> InvalidInput | None:
    # The reason why a loss failed, if it is that targets are no classes that the module tells apart.
    if not are_classes(outputs, targets):
        return None
    least, most, classes = int(targets.min()), int(targets.max()), outputs.shape[1]
    if least >= 0 and most < classes:
        return None
    if not targets.is_cuda and value_or_none(loss, outputs, targets.clamp(0, classes - 1)) is None:
        return None  # classes are not what it fails of; after a failure on CUDA nothing runs any more
    known = f"the module has outputs for {classes} classes, 0 to {classes - 1}"
    remedy = "number them from 0, or give it more outputs"
    return ConfidentialError(
        f"the targets of a batch are {least} to {most}, and {known}: {remedy}",
        f"the targets of a batch are others than these: {known}; {remedy}",
    )


def _array(tensor: Tensor, dtype: torch.dtype) -> np.ndarray:
    return tensor.detach().to(dtype).cpu().numpy()


def tensor_view(x: Any, wide: bool) -> Tensor:
    """A JAX array on the CPU as a tensor, in place; `wide`: float64 that came as words."""
    tensor = torch.from_dlpack(x)
    return tensor.view(torch.float64)[..., 0] if wide else tensor


MOST_ROWS = 31  # on which a metric is tested

Function = Callable[[Any, Any], Tensor]


class Measuring:
    """The value of one metric on some examples, batch after batch; `kind` is what it is."""

    def __init__(self, name: str, function: Function, kind: LossAnalysis) -> None:
        self._name, self._function, self._kind = name, function, kind
        # a function that cannot be exported may be a mean of some examples and none of others
        is_mean = kind.sums is None and not kind.not_a_mean_because and kind.rows is not None
        self._by_batch = is_mean or kind.couples_examples
        self._examples, self._total = 0, 0.0
        self._sums: Any = 0.0
        self._batches: list[Any] = []

    def add(self, outputs: Any, targets: Any, examples: int) -> None:
        self._examples += examples
        if self._by_batch:
            self._total += examples * float(self._value(outputs, targets))
        elif self._kind.sums is not None:
            with jax.enable_x64(True):
                self._sums = self._sums + np.asarray(self._kind.sums(*to_float64(outputs, targets))).sum(0)
        else:
            self._batches.append(pytree.tree_map_only(Tensor, lambda t: t.cpu(), (outputs, targets)))

    def result(self) -> tuple[float, float]:
        """The value of all, and what it is a mean over (see `Measured.counts`)."""
        if self._by_batch:
            return self._total / self._examples, self._examples
        if self._kind.sums is None:
            value = float(self._value(*joined(self._batches)))
            return value, self._examples if not self._kind.not_a_mean_because else _count(value, float("nan"))
        with jax.enable_x64(True):
            sums, size = jnp.asarray(self._sums), self._kind.sums.size
            value = float(self._kind.sums.of_sums(sums))
            return value, _count(value, float("nan") if size is None else float(size(sums)))

    def _value(self, outputs: Any, targets: Any) -> Tensor:
        try:
            return mean_of(self._function(outputs, targets))
        except Exception as error:  # whatever the user's code raises
            raise failure(self._name, error, outputs, targets) from error


class Summing:
    """The sums of one metric of `fs.metrics` over some examples, batch after batch."""

    def __init__(self, metric: SumMetric) -> None:
        self._metric, self._each = metric, []

    def add(self, outputs: Any, targets: Any, examples: int) -> None:
        with jax.enable_x64(True):
            flat, y = to_float64(outputs, targets)
            self._each.append(self._metric.each(jnp.asarray(flat), jnp.asarray(y)))

    def result(self) -> Sums:
        with jax.enable_x64(True):
            each = jnp.concatenate(self._each)
            sums = self._metric.totals(each, jnp.zeros(len(each), jnp.int32), 1)[0]
            return Sums(self._metric, np.asarray(sums))


def kind_of(name: str, function: Function, outputs: Any, targets: Any, dtype: torch.dtype) -> LossAnalysis:
    rows = next(len(t) for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.ndim)
    if rows < 2:  # one example is too few to tell
        return LossAnalysis(function)
    few = lambda t: t[:MOST_ROWS].cpu() if t.ndim and len(t) == rows else t.cpu()  # noqa: E731
    some = pytree.tree_map_only(Tensor, few, (outputs, targets))
    return analyse(name, function, some[0], some[1], dtype, only_means=False)


def joined(batches: list[Any]) -> Any:
    """Outputs and targets of several batches as those of one; what has no rows as in the first."""
    trees = [pytree.tree_flatten(batch) for batch in batches]
    columns = zip(*(leaves for leaves, _ in trees), strict=True)
    whole = [torch.cat(c) if isinstance(c[0], Tensor) and c[0].ndim else c[0] for c in columns]
    return pytree.tree_unflatten(whole, trees[0][1])


def loss_of_all(function: Function, batches: list[Any]) -> tuple[Tensor, list[Any]]:
    """The loss of all examples together, and its gradient by the outputs of each batch, flat."""
    slopes = lambda t: t.detach().requires_grad_() if t.is_floating_point() else t  # noqa: E731
    batches = [(pytree.tree_map_only(Tensor, slopes, outputs), targets) for outputs, targets in batches]
    value = mean_of(value_or_zero(function, *joined(batches)))
    leaves = [
        [t for t in pytree.tree_leaves(o) if isinstance(t, Tensor) and t.requires_grad] for o, _ in batches
    ]
    flat = [t for batch in leaves for t in batch]
    gradients = iter(torch.autograd.grad(value, flat, materialize_grads=True, allow_unused=True))
    return value.detach(), [[next(gradients) for _ in batch] for batch in leaves]


def _count(value: float, size: float) -> float:
    return size if math.isfinite(value) else 0.0
