"""A model as a safetensors file, each array under its path in the tree; and the arrays of a file in a tree again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open

from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Params
from fedsolve.folders.sealed_arrays import MANIFEST, mapped_arrays, write_arrays
from fedsolve.folders.store import check_names
from fedsolve.folders.untrusted import loads

MODEL = "model.safetensors"
ALONE = "params"
"""The name of a model that is one array."""


def write_model(path: Path, params: Params, facts: dict[str, str]) -> None:
    """Parameters as a safetensors file, each leaf under its path in the tree, such as `0.weight`.

    What is no array, such as a model's activation function, is not among them.
    """
    arrays = {n: np.asarray(leaf, order="C") for n, leaf in leaves_by_path(params).items() if _is_array(leaf)}
    write_arrays(path, arrays, facts)


def read_model(path: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
    """The parameters that `write_record` kept, by name, and what the model keeps beside them, None if nothing.

    Raises:
        InvalidInput: the file is missing, damaged, or was not written by fedsolve.
    """
    try:
        if is_sealed(path):
            header, mapped = mapped_arrays(path, "model")
            facts, arrays = header.manifest, {name: np.array(x) for name, x in mapped.items()}
        else:
            with safe_open(path, "numpy") as file:
                facts = loads((file.metadata() or {})[MANIFEST])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        both = facts.get("holds") == "model, buffers"
    except InvalidInput:
        raise
    except FileNotFoundError:
        raise InvalidInput(f"{path} does not exist: give the folder of a finished run") from None
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError) as error:
        raise InvalidInput(f"{path} is no model that fedsolve wrote, or is damaged: {error}") from None
    if not both:
        return arrays, None
    parts: dict[str, dict[str, np.ndarray]] = {"model": {}, "buffers": {}}
    for name, array in arrays.items():
        part, _, inside = name.partition(".")
        if part not in parts:
            raise InvalidInput(f"{path} is damaged: it holds {name}, neither of the model nor of its buffers")
        parts[part][inside or ALONE] = array
    return parts["model"], parts["buffers"]


def is_sealed(path: Path) -> bool:
    """Whether a model's file has more in its metadata than a manifest, as files with checksums have."""
    with safe_open(path, "numpy") as file:
        return set(file.metadata() or {}) - {MANIFEST} != set()


def leaves_by_path(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree, each under its path, such as `0.weight`; `params` where there is one without a path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(at, simple=True, separator=".") or ALONE: leaf for at, leaf in leaves}


def like(arrays: dict[str, np.ndarray], tree: Any, where: str) -> Any:
    """Arrays by name in the structure of a tree, whose leaves that are no arrays stay as they are.

    Raises:
        InvalidInput: a leaf that is missing, too many, or of another shape; `where` is named.
    """
    leaves = leaves_by_path(tree)
    wanted = {name: leaf for name, leaf in leaves.items() if _is_array(leaf)}
    check_names(wanted, arrays, where, "it is of another task or model")
    for name, leaf in wanted.items():
        if arrays[name].shape != np.shape(leaf):
            raise InvalidInput(
                f"{name} has shape {arrays[name].shape} in {where}, in the task {np.shape(leaf)}"
            )
    return jax.tree.unflatten(jax.tree.structure(tree), [arrays.get(n, leaf) for n, leaf in leaves.items()])


def _is_array(leaf: Any) -> bool:
    return np.asarray(leaf).dtype != object
