"""Papers by citation key: short names for lists, and the BibTeX of everything that a configuration uses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fedsolve.citations import BIBTEX
from fedsolve.cli.config import Config
from fedsolve.errors import unknown

_JAX = "bradbury2018jax"
_FIELD = re.compile(r"^\s*(\w+)\s*=\s*\{(.*?)\},?$", re.MULTILINE | re.DOTALL)


def short(key: str) -> str:
    """A paper in a list: first author and year.

    >>> short("reddi2021fedopt")
    'Reddi et al. 2021'
    """
    fields = _fields(key)
    authors = [_plain(a).split(",")[0] for a in re.split(r"\s+and\s+", fields.get("author", key))]
    names = (
        authors[0]
        if len(authors) == 1
        else " and ".join(authors)
        if len(authors) == 2
        else f"{authors[0]} et al."
    )
    return f"{names} {fields.get('year', '')}".strip()


def title(key: str) -> str:
    """The title of a paper."""
    return _plain(_fields(key).get("title", ""))


def keys_of(config: Config) -> list[str]:
    """Citation keys of what a configuration uses: its methods, task, partition, and JAX.

    Raises:
        InvalidInput: an unknown method, task or partition.
    """
    from fedsolve.algorithms.catalogue import citations
    from fedsolve.cli.prepare import resolve_options
    from fedsolve.data.partitions import as_partition
    from fedsolve.tasks.catalogue import TASKS

    if config.task not in TASKS:
        raise unknown("task", config.task, TASKS)
    keys = [key for method in config.method for key in citations(method.name)]
    keys.append(TASKS[config.task].citation)
    partition: Any = resolve_options(config).get("partition")
    if partition is not None:
        keys.append(as_partition(partition).citation)
    return [key for key in dict.fromkeys([*keys, _JAX]) if key]


def bibtex(keys: Sequence[str]) -> str:
    """The BibTeX entries of some keys."""
    return "\n\n".join(BIBTEX[key] for key in keys)


def _fields(key: str) -> dict[str, str]:
    return {name.lower(): " ".join(value.split()) for name, value in _FIELD.findall(BIBTEX.get(key, ""))}


def _plain(text: str) -> str:
    """BibTeX text without braces; accented letters as one character.

    >>> _plain('{FedDuA}: B{\\\\"u}cher')
    'FedDuA: Bücher'
    """
    import unicodedata

    marks = {"'": "\u0301", '"': "\u0308", "`": "\u0300", "^": "\u0302", "v": "\u030c", "~": "\u0303"}
    accent = r"\\(['\"`^~]|v(?=\{|\s))\s*\{?(\w)\}?"
    text = re.sub(accent, lambda m: unicodedata.normalize("NFC", m[2] + marks[m[1]]), text)
    return re.sub(r"[{}]", "", text)
