"""Numbers as people write them: losses, accuracies, mean ± deviation, bytes and times."""

from __future__ import annotations

import math
from collections.abc import Callable

from fedsolve.results.metrics import describe, duration

_SMALLEST, _LARGEST = 1e-4, 1e7
"""Between these a number is written without a power of ten."""
_DIGITS = 6
"""Significant digits of a mean at most, however small its deviation."""


def show_number(value: float) -> str:
    """A loss or another number with four decimals, small ones with three digits; 'diverged' if it is not finite.

    >>> show_number(0.123456), show_number(0.00087151), show_number(3.2e-9), show_number(float("nan"))
    ('0.1235', '0.000872', '3.2e-9', 'diverged')
    >>> show_number(12345.6), show_number(123456789.0), show_number(0.0)
    ('12,346', '1.23e8', '0')
    """
    if not math.isfinite(value):
        return "diverged"
    size = abs(value)
    if size == 0:
        return "0"
    if not _SMALLEST <= size < _LARGEST:
        return power_of_ten(f"{value:.3g}" if size >= _LARGEST else f"{value:.2g}")
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4f}" if size >= 0.01 else f"{value:.{2 - math.floor(math.log10(size))}f}"


def power_of_ten(text: str) -> str:
    """A number of the format `g` or `e`, its exponent as one types it.

    >>> power_of_ten("3.2e-09"), power_of_ten("1e+08"), power_of_ten("0.5")
    ('3.2e-9', '1e8', '0.5')
    """
    digits, e, exponent = text.partition("e")
    return f"{digits}e{int(exponent)}" if e else text


def plus_minus(mean: float, deviation: float) -> str:
    """A mean with a deviation, both to the second significant digit of the deviation.

    The mean has six significant digits at most; where no digit of the deviation is left, it has four.

    >>> plus_minus(0.43127, 0.0213), plus_minus(96.1, 1.96), plus_minus(1234.0, 87.1)
    ('0.431 ± 0.021', '96.1 ± 2.0', '1,234 ± 87')
    >>> plus_minus(8.74e-10, 2.1e-11), plus_minus(0.25, 0.0), plus_minus(98.3287, 3e-12)
    ('(8.74 ± 0.21)e-10', '0.25 ± 0', '98.33 ± 0')
    """
    if not math.isfinite(mean):
        return show_number(mean)
    size = max(abs(mean), deviation)
    if size and not _SMALLEST <= size < _LARGEST:
        power = math.floor(math.log10(size))
        return f"({plus_minus(mean / 10.0**power, deviation / 10.0**power)})e{power}"
    most = _DIGITS - 1 - (math.floor(math.log10(size)) if size else 0)
    decimals = 1 - math.floor(math.log10(float(f"{deviation:.1e}"))) if deviation else most + 1
    if decimals > most and deviation < 0.5 * 10.0**-most:
        text = f"{mean:,.{max(0, most - 2)}f}"
        return f"{text.rstrip('0').rstrip('.') if '.' in text else text} ± 0"
    decimals = max(0, min(decimals, most))
    return f"{mean:,.{decimals}f} ± {deviation:,.{decimals}f}"


def number_writer(key: str) -> Callable[[float], str]:
    """How a metric's value is written: accuracies in per cent, the rest by `show_number`."""
    if describe(key).unit != "%":
        return show_number
    return lambda v: f"{100 * v:.2f}" if math.isfinite(v) else "diverged"


def human_bytes(count: float) -> str:
    """A number of bytes with three digits in decimal units.

    >>> human_bytes(999), human_bytes(1_250_000)
    ('999 B', '1.25 MB')
    """
    size, units = float(count), ("B", "kB", "MB", "GB", "TB", "PB")
    for unit in units:
        if size < 999.5 or unit == units[-1]:
            return f"{int(size)} B" if unit == "B" else f"{size:#.3g} {unit}".replace(". ", " ")
        size /= 1000
    raise AssertionError("unreachable")


def human_time(seconds: float) -> str:
    """A time in one unit, of short ones a digit more.

    >>> human_time(0.0004), human_time(0.08), human_time(0.41), human_time(12.3), human_time(750)
    ('< 1 ms', '80 ms', '0.4 s', '12 s', '12 min')
    """
    if seconds < 0.001:
        return "< 1 ms" if seconds > 0 else "0 s"
    if seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 599.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    return duration(seconds)


def count_text(value: float) -> str:
    """A count, or a mean of counts with one decimal."""
    return f"{value:.1f}".removesuffix(".0")
