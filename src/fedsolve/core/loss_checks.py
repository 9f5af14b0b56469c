"""What a client's loss must be, whichever framework computes it: each way in says what it saw, and is told the same.

The ways in are `fs.Task` and `JaxOracle` (JAX), `from_torch` and `TorchOracle` (PyTorch), and `SklearnOracle`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from fedsolve.core.errors import ConfidentialError, InvalidInput

REMEMBERED = "keep in a buffer (register_buffer) what it remembers"


def first_line(error: BaseException) -> str:
    """An exception's type and the first line of what it says."""
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first.strip()}"


def fails(name: str, given: str, error: Exception, more: str = "") -> InvalidInput:
    """That a function fails on a batch; what it raised may quote the batch, so that others are told its type alone."""
    # `given` says what it was called with, such as "on outputs of shape (4, 3) float32"; `more` what else was
    # seen
    line = f"{name} fails {given}: "
    return ConfidentialError(f"{line}{first_line(error)}{more}", f"{line}{type(error).__name__}")


def check_value(name: str, found: str, taken: bool, rows: int | None = None) -> None:
    """Raise `InvalidInput` unless the value of a batch is one number, or one for each of its `rows`."""
    # `found` says what it gave, such as "of shape (2, 5) and type float32", and `taken` whether that is taken
    if not taken:
        each = "for each example" if rows is None else f"for each of its {rows} examples"
        raise InvalidInput(
            f"{name} is {found}: it must be one real number, the mean over the batch, or one {each}"
        )


def check_mean(name: str, seen: str | None, remedy: str) -> None:
    """Raise `InvalidInput` if a loss mixes or adds examples: `seen` says how it differs from a mean, None if not."""
    if seen is not None:
        raise InvalidInput(f"{name} is not a mean over examples: {seen}; {remedy}")


def check_slope(name: str, depends: bool) -> None:
    """Raise `InvalidInput` if no parameter plays a part in a loss's gradient."""
    if not depends:
        raise InvalidInput(
            f"{name} depends on no parameter, so it has no gradient: compute it from the model's outputs, without "
            "argmax, rounding, detach or stop_gradient between them"
        )


def check_again(name: str, first: float, again: float, rounding: float, remedy: str) -> None:
    """Raise `InvalidInput` if a function gives another value when it is called again with all the same."""
    # the two values may be `rounding` of the first apart
    if not (first == again or abs(first - again) <= rounding * abs(first) or math.isnan(first + again)):
        raise InvalidInput(
            f"{name} is {first:.6g} and, computed again with the same weights, buffers, batch and random numbers, "
            f"{again:.6g}: {remedy}"
        )


def check_wide(of: str, types: Iterable[tuple[str, str, int]], remedy: str) -> None:
    """Raise `InvalidInput`, naming the first, if a model has floating-point numbers of 16 bits or fewer."""
    # `types` are name, type, and bytes of a number of each floating-point leaf
    for name, kind, size in types:
        if size < 4:
            where = f" in {name}" if name else ""
            raise InvalidInput(
                f"{of} has {kind} numbers{where}: runs are in float32 or float64; {remedy}, and give matmul_dtype = "
                "'bfloat16' to a run for products of local training in bfloat16"
            )


def why_not_finite(loss: float, gradient_is_finite: bool) -> str | None:
    """What is not finite before any step, so that no rate is at fault; None where all is."""
    if math.isfinite(loss) and gradient_is_finite:
        return None
    what = "gradient of the loss" if math.isfinite(loss) else "loss"  # no number: it may reach the server
    return f"the {what} is not finite at the model that the steps begin from: look at the data and the loss"
