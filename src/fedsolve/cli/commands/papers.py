"""The BibTeX of everything that a configuration uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedsolve.cli.configuration.config import Config
from fedsolve.config.bibliography import BIBTEX
from fedsolve.config.references import is_reference

_JAX = "bradbury2018jax"


def keys_of(config: Config) -> list[str]:
    """Citation keys of what a configuration uses: its methods, task, partition, and JAX.

    Raises:
        InvalidInput: an unknown method, task or partition.
    """
    from fedsolve.cli.configuration.prepare import resolve_options
    from fedsolve.config.build import citations
    from fedsolve.data.partitioning.partitions import as_partition
    from fedsolve.tasks.catalogue import entry

    keys = [key for method in config.method for key in citations(method.name)]
    options = config.task_options
    if not is_reference(config.task):  # the user's own code is not imported to print papers
        keys.append(entry(config.task).citation)
        options = resolve_options(config)
    partition: Any = options.get("partition")
    if partition is not None:
        keys.append(as_partition(partition).citation)
    return [key for key in dict.fromkeys([*keys, _JAX]) if key]


def bibtex(keys: Sequence[str]) -> str:
    """The BibTeX entries of some keys."""
    return "\n\n".join(BIBTEX[key] for key in keys)
