"""How the axes of a grid are named, spaced and written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedsolve.core.checks import is_plain_number

_TITLES = {
    "client_lr": "Client learning rate",
    "server_lr": "Server learning rate",
    "tau": "Adaptivity τ",
    "eps_g": "Extrapolation ε_g",
    "eps": "ε",
    "mu": "Proximal weight μ",
    "beta1": "β₁",
    "beta2": "β₂",
    "client_momentum": "Client momentum",
    "weight_decay": "Weight decay",
    "clip_norm": "Clipping norm",
    "psi.weight": "Weight of the penalty",
    "constraint.radius": "Radius of the set",
}


def axis_title(name: str) -> str:
    """The title of an axis, with the setting's own name.

    >>> axis_title("client_lr"), axis_title("solver")
    ('Client learning rate (client_lr)', 'solver')
    """
    return f"{_TITLES[name]} ({name})" if name in _TITLES else name


def is_numeric(values: Sequence[Any]) -> bool:
    """Whether all values of an axis are finite numbers."""
    return all(is_plain_number(v) and np.isfinite(v) for v in values)


def is_log(values: Sequence[Any]) -> bool:
    """Whether an axis is spaced by factors: positive, over at least a decade, more evenly than by differences.

    >>> is_log([0.01, 0.03, 0.1]), is_log([1, 2, 3, 4]), is_log([None, 1.0])
    (True, False, False)
    """
    if len(values) < 2 or not is_numeric(values) or min(values) <= 0 or max(values) < 10 * min(values):
        return False
    x = np.sort(np.array(values, float))
    factors, steps = np.diff(np.log(x)), np.diff(x)
    return bool(np.ptp(factors) / factors.mean() <= np.ptp(steps) / steps.mean())


def value_text(value: Any) -> str:
    """A value of an axis in a few digits.

    >>> value_text(0.0031622776), value_text(None), value_text(True), value_text(1e-5), value_text(1e4)
    ('0.00316', 'none', 'true', '1e-05', '10000')
    """
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 and value.is_integer() else f"{value:.3g}"


def tick_texts(values: Sequence[Any]) -> list[str]:
    """The values for the ticks of an axis: powers of ten where all are whole or half decades.

    >>> tick_texts([0.01, 0.0316227766, 0.1])
    ['$10^{-2}$', '$10^{-1.5}$', '$10^{-1}$']
    """
    if len(values) > 2 and is_log(values):
        decades = 2 * np.log10(np.array(values, float))
        if np.allclose(decades, decades.round(), atol=2e-3) and (decades.round() % 2).any():
            return [f"$10^{{{d / 2:g}}}$" for d in decades.round()]
    texts = [value_text(v) for v in values]
    return texts if len(set(texts)) == len(texts) else [str(v) for v in values]
