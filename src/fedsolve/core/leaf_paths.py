"""The leaves of a model by their paths, written with dots; a pattern matches a path or the end of one."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import jax

from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Params


def chosen_leaves(tree: Params, pattern: str) -> list[Any]:
    """The leaves whose path matches a pattern.

    Raises:
        InvalidInput: there is none.
    """
    paths, leaves = named_leaves(tree)
    found = [leaves[i] for i in matching(paths, pattern)]
    if not found:
        raise InvalidInput(f"no leaf of the model is called '{pattern}'; it has {', '.join(paths)}")
    return found


def named_leaves(tree: Params) -> tuple[list[str], list[Any]]:
    """The paths of a model's leaves, written with dots, and the leaves."""
    found, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [jax.tree_util.keystr(p, simple=True, separator=".") for p, _ in found], [
        leaf for _, leaf in found
    ]


def matching(paths: list[str], pattern: str) -> list[int]:
    """The numbers of the paths that a pattern matches, as a whole or at their end."""
    return [
        i for i, path in enumerate(paths) if fnmatchcase(path, pattern) or fnmatchcase(path, f"*.{pattern}")
    ]
