"""Random numbers of a client's PyTorch code: from a key, and gone without a trace."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler


def seed_of(key: bytes, *numbers: int) -> int:
    """A seed of 63 bits that follows from a key and some numbers."""
    words = key + b"".join(n.to_bytes(8, "little") for n in numbers)
    return int.from_bytes(blake2b(words, digest_size=8).digest(), "little") >> 1


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """PyTorch's random numbers from a seed; afterwards they go on where they were."""
    cuda = device if device is not None and device.type == "cuda" else None
    before = torch.default_generator.get_state()
    cuda_before = None if cuda is None else torch.cuda.get_rng_state(cuda)
    try:
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` looks for accelerators first
        if cuda is not None:
            torch.cuda.manual_seed(seed)
        yield
    finally:
        torch.default_generator.set_state(before)
        if cuda is not None and cuda_before is not None:
            torch.cuda.set_rng_state(cuda_before, cuda)


@contextmanager
def all_seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """The same for PyTorch, NumPy and Python, any of which a module or a loader's augmentation may draw from.

    NumPy's generator is exchanged, which is far faster than to read its state out and to write it back.
    """
    python, legacy = random.getstate(), np.random.get_bit_generator()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        random.seed(seed)
        np.random.set_bit_generator(_bit_generator())  # pyright: ignore[reportAttributeAccessIssue]
        np.random.seed(seed % 2**32)  # noqa: NPY002
        with seeded(seed, device):
            yield
    finally:
        random.setstate(python)
        np.random.set_bit_generator(legacy)  # pyright: ignore[reportAttributeAccessIssue]


def global_states() -> tuple[Any, ...]:
    """States of Python's and NumPy's global generators, which are equal as long as nobody draws."""
    _, words, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), np.asarray(words).tobytes(), *rest


@contextmanager
def kept_generators(loader: object) -> Iterator[None]:
    """Afterwards generators that a loader, its samplers or its dataset hold as attributes go on where they were."""
    held = list(_generators(loader, set()))
    before = [_state_of(generator) for generator in held]
    try:
        yield
    finally:
        for generator, state in zip(held, before, strict=True):
            _set_state(generator, state)


def _generators(part: object, seen: set[int]) -> Iterator[Any]:
    for value in getattr(part, "__dict__", {}).values():
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Generator | np.random.Generator | np.random.RandomState | random.Random):
            yield value
        elif isinstance(value, Dataset | Sampler):
            yield from _generators(value, seen)


def _state_of(generator: Any) -> Any:
    match generator:
        case np.random.Generator():
            return generator.bit_generator.state
        case random.Random():
            return generator.getstate()
    return generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    match generator:
        case np.random.Generator():
            generator.bit_generator.state = state
        case random.Random():
            generator.setstate(state)
        case _:
            generator.set_state(state)


@cache
def _bit_generator() -> np.random.MT19937:
    return np.random.MT19937(0)
