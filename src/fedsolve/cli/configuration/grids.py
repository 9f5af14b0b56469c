"""The grid of a sweep as it is typed: `client_lr=1e-3:1:7log`, `mu=0:1:5` or `weighting=uniform,examples`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedsolve.cli.configuration.values import parse_value
from fedsolve.core.checks import check_different
from fedsolve.core.errors import InvalidInput

_RANGE = re.compile(r"(?P<low>[^:,]+):(?P<high>[^:,]+):(?P<count>\d{1,9})(?P<kind>log|lin|)")
_MOST = 10_000
EXAMPLE = "--grid client_lr=1e-3:1:7log --grid server_lr=0.1,1,10"
_FORMS = "a:b:Nlog (N values by equal factors from a to b), a:b:N (by equal steps) or v1,v2,v3"


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """`axis=values` texts as axes with their values.

    Raises:
        InvalidInput: no `=`, an axis that comes twice, or values that cannot be read.

    >>> parse_grid(["client_lr=1e-3:1:4log", "mu=0:1:3", "clip_norm=none,1.5"])
    {'client_lr': [0.001, 0.01, 0.1, 1.0], 'mu': [0.0, 0.5, 1.0], 'clip_norm': ['none', 1.5]}
    """
    found: dict[str, list[Any]] = {}
    for text in texts:
        axis, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not axis or not values:
            raise InvalidInput(f"--grid {text!r} must be written axis=values, the values as {_FORMS}")
        if axis in found:
            raise InvalidInput(f"--grid {axis} is given twice")
        found[axis] = axis_values(f"--grid {axis}", values)
    return found


def axis_values(where: str, given: Any) -> list[Any]:
    """The values of an axis, from text as it is typed or from a list.

    Raises:
        InvalidInput: not a range or a list, a value that comes twice, values <= 0 on a log axis.
    """
    if isinstance(given, str):
        values = _from_text(where, given)
    elif isinstance(given, list) and given:
        values = list(given)
    else:
        raise InvalidInput(f"{where} = {given!r} must be a list of values, or text such as '1e-3:1:7log'")
    if any(isinstance(v, float) for v in values):
        values = [float(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in values]
    if len(values) > _MOST:
        raise InvalidInput(f"{where}: {len(values):,} values are more than {_MOST:,}")
    check_different(where, values)
    return values


def parse_seeds(text: str) -> int | list[int]:
    """How many seeds, or which: `5` is 0 to 4, `0,3,7` these three, `7,` that one.

    Raises:
        InvalidInput: anything else.
    """
    text = text.replace(" ", "")
    if re.fullmatch(r"\d{1,19}", text):
        if int(text) == 0:
            raise InvalidInput("--seeds 0 must be at least 1, or which, as 0,3,7")
        return int(text)
    if not re.fullmatch(r"\d{1,19}(,\d{1,19})*,?", text):
        raise InvalidInput(f"--seeds {text!r} must be how many, as 5, or which, as 0,3,7")
    return [int(part) for part in text.split(",") if part]


def with_values(settings: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A method's settings at one setting of the grid; `psi.weight` is a key of the table `psi`, 'none' leaves out.

    >>> with_values({"psi": {"name": "L1"}, "tau": 1.0}, {"psi.weight": 0.1, "tau": "none"})
    {'psi': {'name': 'L1', 'weight': 0.1}}
    """
    found = dict(settings)
    for axis, value in values.items():
        head, dot, key = axis.partition(".")
        if dot:
            table = found.get(head)
            if not isinstance(table, Mapping):
                raise InvalidInput(
                    f"the axis {axis} needs {head} as a table: give --set {head}={{name=...}} or the like"
                )
            rest = {k: v for k, v in table.items() if k != key}
            found[head] = rest if value in ("none", None) else {**rest, key: value}
        elif value in ("none", None):
            found.pop(axis, None)
        else:
            found[axis] = value
    return found


def _from_text(where: str, text: str) -> list[Any]:
    match = _RANGE.fullmatch(text.replace(" ", ""))
    if match is None:
        if ":" in text:
            raise InvalidInput(f"{where}={text} is not a range: write {_FORMS}")
        return [parse_value(part.strip(), where) for part in text.split(",")]
    low, high = (_number(match[name], where, text) for name in ("low", "high"))
    count = int(match["count"])
    if not 1 <= count <= _MOST or (count == 1) != (low == high):
        raise InvalidInput(
            f"{where}={text}: {count} values from {low:g} to {high:g} is no range: write {_FORMS}"
        )
    if match["kind"] == "log":
        if low <= 0 or high <= 0:
            raise InvalidInput(
                f"{where}={text}: a log axis needs values > 0, not {min(low, high):g}; "
                f"start above 0, or write linear steps as {match['low']}:{match['high']}:{count}"
            )
        steps = [math.log10(low) + i / max(count - 1, 1) * math.log10(high / low) for i in range(count)]
        values = [10.0**step for step in steps]
    else:
        values = [low + i / max(count - 1, 1) * (high - low) for i in range(count)]
    short = [float(f"{v:.10g}") for v in values]  # 0.1, not 0.10000000000000002
    return [low, *short[1:-1], high] if count > 1 else [low]


def _number(text: str, where: str, whole: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidInput(f"{where}={whole}: '{text}' is not a finite number")
    return value
