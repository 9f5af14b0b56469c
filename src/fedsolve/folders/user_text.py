"""Text files that people write, as the editors and spreadsheets of any system save them.

They are UTF-8 with or without a byte order mark, have any line ends, and accents in one character or in two.
"""

from __future__ import annotations

import codecs
import csv
import io
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedsolve.core.errors import InvalidInput
from fedsolve.folders.untrusted import loads_toml, open_regular, read_bytes

_LONGEST_CELL = 2**31 - 1
"""Characters: those of `csv` are 131,072, and a note in a column that nobody reads may have more."""


def composed(text: str) -> str:
    r"""Text with each accent in the character that it belongs to, where macOS may write two (Unicode's NFC).

    >>> composed("gro\u0308\u00dfe") == "gr\u00f6\u00dfe"
    True
    """
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def read_user_text(path: Path, largest: int, *, follow: bool = True) -> str:
    r"""The text of a file, its lines ended by `\n`; it may have `largest` bytes, and be a link if `follow` is true.

    Raises:
        OSError: as `open`, and for what is no regular file, or a larger one.
        InvalidInput: it is not in UTF-8.
    """
    content = read_bytes(path, largest, follow=follow)
    with _decoding(path, content):
        text = content.decode("utf-8-sig")
    return composed(io.StringIO(text, newline=None).read())


def read_user_toml(path: Path, largest: int, *, follow: bool = True) -> dict[str, Any]:
    """The values of a TOML file.

    Raises:
        OSError: as `read_user_text`.
        InvalidInput: it is not in UTF-8, or not TOML as `loads_toml` takes it.
    """
    text = read_user_text(path, largest, follow=follow)
    try:
        return loads_toml(text)
    except ValueError as error:  # also Python's of a number of thousands of digits
        raise InvalidInput(f"{path} is not valid TOML: {error}") from None


def check_once(path: Path, name: str, header: Sequence[str]) -> None:
    """Raise `InvalidInput` if several columns of a file have one name."""
    if (count := header.count(name)) > 1:
        raise InvalidInput(f"{path} has {count} columns called {name}: give each its own name")


@contextmanager
def csv_rows(path: Path) -> Iterator[Any]:
    """The rows of a CSV file, each a list of cells, as `csv.reader` gives them.

    Raises:
        InvalidInput: the file cannot be read, is not in UTF-8, or is no CSV file; also within the block.
    """
    before = csv.field_size_limit(_LONGEST_CELL)
    try:
        with open_regular(path) as file, _decoding(path, file.read(4096)):
            file.seek(0)
            lines = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
            yield csv.reader(map(composed, lines))
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    except csv.Error as error:
        raise InvalidInput(f"{path} is not a CSV file ({error}): save it as one") from None
    finally:
        csv.field_size_limit(before)


@contextmanager
def _decoding(path: Path, begin: bytes) -> Iterator[None]:
    """Within it, text that is not in UTF-8 becomes `InvalidInput`; `begin` are the file's first bytes."""
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in begin:
        raise InvalidInput(f"{path} is in UTF-16, which Windows calls Unicode: save it in UTF-8")
    try:
        yield
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not in UTF-8: save it in UTF-8") from None
