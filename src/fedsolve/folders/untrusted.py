"""Files that somebody else may have written: never endless, never nested so deeply that reading them fails.

A file that a user names, on the command line or in a call, is the user's own choice, and may be a link. One that is
found in a folder, such as the record of a run or the arrays of a data folder, may have been put there by whoever gave
the folder away: with `follow=False` a link is refused, through which another file would be shown or changed.
"""

from __future__ import annotations

import codecs
import csv
import errno
import io
import json
import os
import re
import stat
import tomllib
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fedsolve.core.errors import InvalidInput

if TYPE_CHECKING:
    import numpy as np

DEEPEST = 64
"""How deeply values of a file may lie in one another: what fedsolve writes has at most a dozen levels."""
MALFORMED = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, StopIteration,
)  # fmt: skip
"""What taking values of another form apart raises: to be refused in one line."""
_LONGEST_NUMBER = 308  # digits of an integer that is a float, too
_MOST_DOTS = 100  # in a line of TOML
_NUMBER = re.compile(r"\d\.\d")


class Refused(OSError):
    def __str__(self) -> str:
        return str(self.strerror)


def read_bytes(path: Path, largest: int | None, *, follow: bool = True) -> bytes:
    """The content of a regular file, of at most `largest` bytes if that is given; `OSError` says why it is not read."""
    with open_regular(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if largest is not None and size > largest:
            raise Refused(0, f"it has {size:,} bytes, more than {largest:,}")
        return file.read(size)


def read_if_there(path: Path, largest: int, *, follow: bool = True) -> bytes | None:
    """Likewise, or None where there is no file; another error is `InvalidInput`."""
    try:
        return read_bytes(path, largest, follow=follow)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror or error}") from None


def read_text(path: Path, largest: int, *, follow: bool = True) -> str:
    return read_bytes(path, largest, follow=follow).decode()


def open_regular(path: Path, mode: str = "rb", *, follow: bool = True, buffering: int = -1) -> BinaryIO:
    """A regular file; `OSError` for a pipe or a device, and without `follow` for a link."""

    def opener(name: str, flags: int) -> int:
        # a pipe would wait for who reads or writes it
        opened = os.open(name, flags | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW), 0o666)
        kind = os.fstat(opened).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # of a folder, `open` says so
            os.close(opened)
            raise Refused(0, "it is no regular file")
        return opened

    try:
        return open(path, mode, buffering, opener=opener)  # pyright: ignore[reportReturnType] (bytes, whatever the mode)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise Refused(error.errno, "it is a symbolic link: only regular files are read") from None
        raise


def loads(text: str | bytes) -> Any:
    """The values in JSON text.

    `ValueError` if it is no JSON, its values lie more than 64 deep in one another, or an integer is beyond a float.

    >>> loads("[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: its values are nested more than 64 deep
    """
    try:
        value = json.loads(text, parse_int=_integer)
    except RecursionError:
        raise _too_deep() from None
    check_depth(value)
    return value


def loads_toml(text: str) -> dict[str, Any]:
    """The values in TOML text; `ValueError` if it is none, or if values or keys are nested too deep."""
    # tomllib takes the square of the number of parts of a key
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip()[:1] != "#" and _NUMBER.sub("", line).count(".") > _MOST_DOTS:
            raise ValueError(f"line {number} has more than {_MOST_DOTS} dots: write its keys as tables")
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise _too_deep() from None
    check_depth(table)
    return table


def npz_arrays(file: BinaryIO, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Arrays of NumPy's npz format, all or those named (`KeyError`); `ValueError` if pickled or damaged."""
    import numpy as np  # not before it is needed: this module is loaded by every command

    try:
        with np.load(file, allow_pickle=False) as archive:
            found = archive.files
            if names is None or set(names) <= set(found):
                return {name: archive[name] for name in (found if names is None else names)}
    except Exception as error:  # as they come out of NumPy's reader, of zip files, and of Python's own parser
        raise ValueError(str(error) or type(error).__name__) from None
    missing = next(name for name in names if name not in found)
    raise KeyError(missing, ", ".join(found) or "nothing")


def check_shape(shape: Sequence[int]) -> None:
    """Raise `ValueError` if no array has a shape: of too many axes, or of more numbers than 64 bits count.

    >>> check_shape([3, 6148914691236517206])
    Traceback (most recent call last):
    ...
    ValueError: no array has this shape: iterator is too large
    """
    import numpy as np

    try:
        np.broadcast_to(np.zeros((), np.float32), tuple(shape))
    except (ValueError, OverflowError) as error:
        raise ValueError(f"no array has this shape: {error}") from None


def check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise _too_deep()


def _inside(value: Any) -> list[Any]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [part for part in parts if isinstance(part, dict | list)]


def _too_deep() -> ValueError:
    return ValueError(f"its values are nested more than {DEEPEST} deep")


def _integer(digits: str) -> int:
    if len(digits) > _LONGEST_NUMBER:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


# Text files that people write, as the editors and spreadsheets of any system save them.
#
# They are UTF-8 with or without a byte order mark, have any line ends, and accents in one character or in two.

_LONGEST_CELL = 2**31 - 1
"""Characters: those of `csv` are 131,072, and a note in a column that nobody reads may have more."""
_SEPARATORS = ",;\t|"
_NAME_IT = ", or set `encoding`, such as 'cp1252', in the schema or at the node for its own file"


def to_nfc(text: str) -> str:
    r"""Text with each accent in the character that it belongs to, where macOS may write two (Unicode's NFC).

    >>> to_nfc("gro\u0308\u00dfe") == "gr\u00f6\u00dfe"
    True
    """
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def read_user_text(path: Path, largest: int, *, follow: bool = True) -> str:
    """The text of a file in UTF-8, its lines ended by a newline; `OSError` and `InvalidInput` as they come."""
    content = read_bytes(path, largest, follow=follow)
    with _decoding(path, content):
        text = content.decode("utf-8-sig")
    return to_nfc(io.StringIO(text, newline=None).read())


def read_user_toml(path: Path, largest: int, *, follow: bool = True) -> dict[str, Any]:
    text = read_user_text(path, largest, follow=follow)
    try:
        return loads_toml(text)
    except ValueError as error:  # also Python's of a number of thousands of digits
        raise InvalidInput(f"{path} is not valid TOML: {error}") from None


def check_unique_column(path: Path, name: str, header: Sequence[str]) -> None:
    if (count := header.count(name)) > 1:
        raise InvalidInput(f"{path} has {count} columns called {name}: give each its own name")


@contextmanager
def csv_rows(
    path: Path, names: Collection[str] = (), separator: str = ",", encoding: str | None = None
) -> Iterator[Any]:
    """The rows of a CSV file, each a list of cells; its errors are `InvalidInput`, also within the block."""
    # Another separator counts if it shows more of the names in the first line. The encoding is that of a file that is
    # neither UTF-8 nor UTF-16 with a byte order mark: '' where none is known, None where nobody can say.
    before = csv.field_size_limit(_LONGEST_CELL)
    try:
        with open_regular(path) as file:
            codec = _codec(file, encoding or "")
            file.seek(0)
            remedy = "" if encoding is None else _NAME_IT
            with _decoding(path, b"" if codec else b"\0", codec, remedy):
                lines = map(to_nfc, io.TextIOWrapper(file, encoding=codec, newline=""))
                header = next(lines, "")

                def found(mark: str) -> int:
                    return len(
                        {n.strip() for n in next(csv.reader([header], delimiter=mark), [])} & set(names)
                    )

                best = max((separator, *_SEPARATORS), key=found)
                yield csv.reader(chain([header], lines), delimiter=best)
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    except csv.Error as error:
        raise InvalidInput(f"{path} is not a CSV file ({error}): save it as one") from None
    finally:
        csv.field_size_limit(before)


def _codec(file: BinaryIO, encoding: str) -> str:
    # how a table is decoded; '' for UTF-16 without a mark that nobody has named
    begin = file.read(4096)
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if b"\0" in begin:
        return encoding
    utf8 = codecs.getincrementaldecoder("utf-8")()
    with suppress(UnicodeDecodeError):
        while encoding and begin:
            utf8.decode(begin)
            begin = file.read(2**20)
        utf8.decode(b"", final=True)
        return "utf-8-sig"
    return encoding


@contextmanager
def _decoding(path: Path, begin: bytes, name: str = "UTF-8", remedy: str = "") -> Iterator[None]:
    # UTF-16 without a mark has zero bytes in every ASCII character
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in begin:
        raise InvalidInput(f"{path} is in UTF-16, which Windows calls Unicode: save it in UTF-8{remedy}")
    try:
        yield
    except UnicodeError:
        name = name.upper().removesuffix("-SIG")
        raise InvalidInput(f"{path} is not in {name}: save it in UTF-8{remedy}") from None
