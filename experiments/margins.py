"""The margins of `margins.toml`, which the studies state and judge by."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any


@cache
def margins() -> dict[str, dict[str, dict[str, Any]]]:
    """Study -> name -> value, unit and reason."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def margin(study: str, name: str) -> float:
    """The value of a study's margin.

    >>> margin("diloco", "as-good")
    0.05
    """
    return float(margins()[study][name]["value"])
