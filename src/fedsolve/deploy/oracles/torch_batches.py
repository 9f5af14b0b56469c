"""A client's minibatches from a PyTorch loader, one for each local step, the same again for the same key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fedsolve.core.errors import InvalidInput, of_type
from fedsolve.pytorch.batch_losses import all_seeded, kept_generators, seed_of
from fedsolve.pytorch.callback import no_batch

Loader = Iterable[Any] | Callable[[torch.Generator], Iterable[Any]]


class Size(NamedTuple):
    """What one pass over a loader holds: batches, examples, and examples of the largest and the smallest batch."""

    batches: int
    examples: int
    largest: int
    smallest: int


class Minibatches:
    """The batches of a loader by number: 0, 1, ... through one pass, then on through the next in another order.

    The last one drawn is kept, so that a step may ask for its batch again. Batches are asked for in their
    order; going back starts the pass again.
    """

    def __init__(self, loader: Loader) -> None:
        if not callable(loader) and (hasattr(loader, "__next__") or not hasattr(loader, "__iter__")):
            raise InvalidInput(
                f"the loader is {of_type(loader)}, which cannot be read again and again: "
                "give a DataLoader, a list of batches or a function of a generator"
            )
        self._loader = loader
        self.size = self._measure()
        self._pass: tuple[bytes, int] | None = None
        self._batches: Iterator[Any] = iter(())
        self._drawn = 0
        self._last: Any = None

    def at(self, key: bytes, step: int) -> Any:
        """The batch of a local step in the round of this key."""
        number, index = divmod(step, self.size.batches)
        if self._pass != (key, number) or index < self._drawn - 1:
            self._batches, self._pass, self._drawn = self._start(seed_of(key, 1, number)), (key, number), 0
        while self._drawn <= index:
            self._last = self._next(seed_of(key, 2, number, self._drawn))
            self._drawn += 1
        return self._last

    def all(self, key: bytes) -> Iterator[Any]:
        """The batches of one pass over all examples, the same at each call in a round."""
        batches = self._start(seed_of(key, 3), everything=True)
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
        with kept_generators(self._loader):
            yield

    def _start(self, seed: int, everything: bool = False) -> Iterator[Any]:
        with all_seeded(seed):
            if callable(self._loader):
                return iter(self._loader(torch.Generator().manual_seed(seed)))
            return iter(complete(self._loader) if everything else self._loader)

    def _draw(self, batches: Iterator[Any], seed: int) -> Any:
        """The next batch, None at the end; the loader's own generators are seeded too. A list has nothing random."""
        for part in (self._loader, getattr(self._loader, "sampler", None)):
            generator = getattr(part, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(seed)
        if isinstance(self._loader, tuple | list):
            return next(batches, None)
        with all_seeded(seed):
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
        """From the loader's own numbers where they can be trusted, else by one pass over it."""
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
    """Whether a DataLoader makes batches by itself from a sampler that knows how many examples it draws."""
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
    """A batch that is a pair of inputs and targets, else `InvalidInput`."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        what = f"{len(batch)} parts" if isinstance(batch, tuple | list) else of_type(batch)
        raise InvalidInput(f"a batch of the loader is {what}: it must be a pair (inputs, targets)")
    return batch


def num_examples(batch: Any) -> int:
    """Examples of a batch: the first axis of its targets."""
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
