"""What is typed as values: those of `--set`, of `--seeds`, and the axes of `--grid` as in `client_lr=1e-3:1:7log`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from fedsolve.core.errors import InvalidInput, check_different
from fedsolve.folders.untrusted import loads_toml

EXAMPLE = "--grid client_lr=1e-3:1:7log --grid server_lr=0.1,1,10"
_TEXT = re.compile(r"[A-Za-z_][\w.+:/@~-]*|(?:~|\.{0,2}/).*")
"""A word, a reference, an address or a path: no number, table or list of TOML begins so."""
_RANGE = re.compile(r"(?P<low>[^:,]+):(?P<high>[^:,]+):(?P<count>\d{1,9})(?P<kind>log|lin|)")
DRAWN = re.compile(r"[^:,]+:[^:,]+(:(log|int|logint))?")  # a range of a random search
_MOST_VALUES = 10_000
_FORMS = "a:b:Nlog (N values by equal factors), a:b:N (by equal steps) or v1,v2,v3; a random search also draws a:b:log"


def parse_assignments(texts: Sequence[str], option: str) -> dict[str, Any]:
    """`key=value` texts as a table; values are TOML, and a bare word or path is a text.

    >>> parse_assignments(["alpha=0.1", "model=mlp", "path=/my data", "partition={name='shards'}"], "--task-set")
    {'alpha': 0.1, 'model': 'mlp', 'path': '/my data', 'partition': {'name': 'shards'}}
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise InvalidInput(f"{option} {text!r} must be written key=value")
        if key in found:
            raise InvalidInput(f"{option} {key} is given twice")
        found[key] = parse_value(value, f"{option} {key}")
    return found


def parse_value(text: str, where: str) -> Any:
    try:
        table = loads_toml(f'"" = {text}')
        if len(table) == 1:
            return table[""]
    except ValueError:  # also Python's of a number of thousands of digits
        if _TEXT.fullmatch(text):
            return text
    shown = repr(text if len(text) < 80 else f"{text[:76]} ...")
    raise InvalidInput(
        f"{where} = {shown} is not a value: give a number, a text in quotes, true, false or {{...}}"
    )


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any] | str]:
    """`axis=values` texts as axes with their values; a range of a random search stays as it is.

    >>> parse_grid(["client_lr=1e-3:1:4log", "mu=0:1:3", "clip_norm=[none, 1.5]", "tau=1e-3:1:log"])
    {'client_lr': [0.001, 0.01, 0.1, 1.0], 'mu': [0.0, 0.5, 1.0], 'clip_norm': ['none', 1.5], 'tau': '1e-3:1:log'}
    """
    found: dict[str, list[Any] | str] = {}
    for text in texts:
        axis, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not axis or not values:
            raise InvalidInput(f"--grid {text!r} must be written axis=values, the values as {_FORMS}")
        if axis in found:
            raise InvalidInput(f"--grid {axis} is given twice")
        found[axis] = values if DRAWN.fullmatch(values) else axis_values(f"--grid {axis}", values)
    return found


def axis_values(where: str, given: Any) -> list[Any]:
    """The values of an axis, from text as it is typed or from a list."""
    if isinstance(given, str):
        values = _from_text(where, given)
    elif isinstance(given, list) and given:
        values = list(given)
    else:
        raise InvalidInput(f"{where} = {given!r} must be a list of values, or text such as '1e-3:1:7log'")
    # 1 and 0.5 of one axis are both floats: a program is compiled by the type of its numbers
    if any(isinstance(v, float) for v in values):
        values = [float(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in values]
    if len(values) > _MOST_VALUES:
        raise InvalidInput(f"{where}: {len(values):,} values are more than {_MOST_VALUES:,}")
    check_different(where, values)
    return values


def _from_text(where: str, text: str) -> list[Any]:
    match = _RANGE.fullmatch(text.replace(" ", ""))
    if match is None:
        if ":" in text:
            raise InvalidInput(f"{where}={text} is not a range: write {_FORMS}")
        listed = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        return [parse_value(part.strip(), where) for part in listed.split(",")]
    low, high = (_number(match[name], where, text) for name in ("low", "high"))
    count = int(match["count"])
    if not 1 <= count <= _MOST_VALUES or (count == 1) != (low == high):
        raise InvalidInput(
            f"{where}={text}: {count} values from {low:g} to {high:g} is not a range: write {_FORMS}"
        )
    if match["kind"] == "log":
        if low <= 0 or high <= 0:
            raise InvalidInput(
                f"{where}={text}: a log axis needs values > 0, not {min(low, high):g}; "
                f"start above 0, or write linear steps as {match['low']}:{match['high']}:{count}"
            )
        # equal factors: steps are equal in log10
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


def parse_seeds(text: str) -> int | list[int]:
    """How many seeds, or which: `5` is 0 to 4, `0,3,7` these three, `7,` that one."""
    text = text.replace(" ", "")
    if re.fullmatch(r"\d{1,19}", text):
        if int(text) == 0:
            raise InvalidInput("--seeds 0 must be at least 1, or which, as 0,3,7")
        return int(text)
    if not re.fullmatch(r"\d{1,19}(,\d{1,19})*,?", text):
        raise InvalidInput(f"--seeds {text!r} must be how many, as 5, or which, as 0,3,7")
    return [int(part) for part in text.split(",") if part]


def parse_method(text: str, labels: Sequence[str] = ()) -> dict[str, str]:
    """A method as it is typed, `FedAvg` or with a label `slow=FedAvg`, as a configuration has it; `labels` as they are.

    >>> parse_method("slow=FedAvg")
    {'name': 'FedAvg', 'label': 'slow'}
    """
    label, equals, name = text.partition("=")
    if not equals or text in labels:
        return {"name": text}
    if not label.strip():
        raise InvalidInput(
            f"'{text}': the label before = is empty: give one, such as slow={name or 'FedAvg'}"
        )
    return {"name": name, "label": label}


def check_labels(origin: str, labels: Sequence[str]) -> None:
    for label in labels:
        if labels.count(label) > 1:
            raise InvalidInput(
                f"{origin}: two methods are called '{label}': give each a label of its own, such as slow=NAME, or in a "
                'file label = "slow"'
            )
        if not label.strip():
            raise InvalidInput(f"{origin}: a method has an empty name")
