"""The papers, data sets and software that fedsolve names, by citation key: BibTeX, and words for lists and pages."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from importlib import resources

_ENTRY = re.compile(r"^@\w+\{([^,\s]+),.*?^\}$", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\s*(\w+)\s*=\s*\{(.*?)\},?$", re.MULTILINE | re.DOTALL)
_ACCENT = re.compile(r"\\(['\"`^~]|v(?=\{|\s))\s*\{?(\w)\}?")
_MARKS = {"'": "\u0301", '"': "\u0308", "`": "\u0300", "^": "\u0302", "v": "\u030c", "~": "\u0303"}


def _entries() -> dict[str, str]:
    text = resources.files("fedsolve.config").joinpath("bibliography.bib").read_text(encoding="utf-8")
    return {entry[1]: entry[0] for entry in _ENTRY.finditer(text)}


BIBTEX: Mapping[str, str] = _entries()
"""BibTeX entry of each key, as `bibliography.bib` has it."""


def short(key: str) -> str:
    """A paper in a list: first author and year.

    >>> short("reddi2021fedopt")
    'Reddi et al. 2021'
    """
    fields = _fields(key)
    authors = [_plain(a).split(",")[0] for a in re.split(r"\s+and\s+", fields.get("author", key))]
    names = " and ".join(authors) if len(authors) < 3 else f"{authors[0]} et al."
    return f"{names} {fields.get('year', '')}".strip()


def title(key: str) -> str:
    """The title of a paper."""
    return _plain(_fields(key).get("title", ""))


def _fields(key: str) -> dict[str, str]:
    return {name.lower(): " ".join(value.split()) for name, value in _FIELD.findall(BIBTEX.get(key, ""))}


def _plain(text: str) -> str:
    """BibTeX text without braces; accented letters as one character.

    >>> _plain('{FedDuA}: B{\\\\"u}cher')
    'FedDuA: Bücher'
    """
    text = _ACCENT.sub(lambda m: unicodedata.normalize("NFC", m[2] + _MARKS[m[1]]), text)
    return re.sub(r"[{}]", "", text)
