"""What the numbers of a method are called where its user gives them: `client_lr`, not `inner.local.lr`."""

from __future__ import annotations

from collections.abc import Sequence

_HOLDERS = ("inner", "local", "server_optimizer")
_ARGUMENTS = {
    ("local", "lr"): "client_lr",
    ("local", "momentum"): "client_momentum",
    ("local", "learning_rate"): "client_lr",
    ("server_optimizer", "lr"): "server_lr",
    ("server_optimizer", "eta"): "server_lr",
    ("server_optimizer", "learning_rate"): "server_lr",
}


def argument_name(path: Sequence[str]) -> str:
    """The argument that a number comes from.

    Args:
        path: names of the fields that lead from the method to it.

    >>> argument_name(("inner", "local", "lr")), argument_name(("steps", "lam0"))
    ('client_lr', 'steps.lam0')
    >>> argument_name(("server_optimizer", "transformation", "values", "learning_rate"))
    'server_lr'
    """
    start = max((i + 1 for i, name in enumerate(path[:-1]) if name in _HOLDERS), default=0)
    # an optax transformation keeps its arguments under `values`, by the names that its user wrote
    names = path[-1:] if "values" in path[start:-1] else path[start:]
    holder = path[start - 1] if start else ""
    return ".".join([_ARGUMENTS.get((holder, names[0]), names[0]), *names[1:]])
