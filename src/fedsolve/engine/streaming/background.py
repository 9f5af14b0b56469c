"""Work beside the device's: one call in a thread that ends with it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def in_background(function: Callable[..., T], *args: Any) -> Future[T]:
    """Begin a call in a thread of its own."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(function, *args)
    pool.shutdown(wait=False)
    return future
