"""Papers by citation key, as lists and pages name them: author, year and title from their BibTeX."""

from __future__ import annotations

import re

from fedsolve.config.citations import BIBTEX

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
